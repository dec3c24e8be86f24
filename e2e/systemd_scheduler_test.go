package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// TestSystemdScheduler runs a scheduler by the packaged unit under a real systemd, as the user persys and
// without any capability. It starts, and after a kill systemd starts it again with its state.
func TestSystemdScheduler(t *testing.T) {
	theEngine(t)
	bins := shipped(t)
	machine, ctl := aSystemd(t)
	port := got[[]int](t)(harness.FreePorts(4))
	env := []string{
		"SCHEDULER_INSECURE=true", "SCHEDULER_DNS_ADDR=none", "ETCD_ENDPOINTS=none",
		fmt.Sprint("GRPC_PORT=", port[0]), fmt.Sprint("METRICS_PORT=", port[1]),
		fmt.Sprint("SCHEDULER_RAFT_ADDR=127.0.0.1:", port[2]), fmt.Sprint("SCHEDULER_GOSSIP_ADDR=127.0.0.1:", port[3]),
	}
	user := func(file, line string) error {
		have, err := os.ReadFile(machine.Path(file))
		if err != nil {
			return err
		}
		return machine.Write(file, append(have, line+"\n"...), 0o644)
	}
	must(t, errors.Join(
		user("/etc/passwd", "persys:x:64999:64999::/var/lib/persys:/usr/sbin/nologin"),
		user("/etc/group", "persys:x:64999:"),
		machine.Install("/usr/bin/persys-scheduler", bins.Scheduler, 0o755),
		machine.Write("/etc/persys/scheduler.env", []byte(strings.Join(env, "\n")+"\n"), 0o600),
		machine.Install("/etc/systemd/system/persys-scheduler.service", filepath.Join("..", "deploy", "systemd", "persys-scheduler.service"), 0o644),
	))
	ctl("daemon-reload")
	ctl("start", "persys-scheduler")

	conn := got[*dial.Conn](t)(dial.Dial(t.Context(), dial.Options{Addrs: []string{fmt.Sprint("127.0.0.1:", port[0])}, Insecure: true}))
	defer conn.Close()
	control := controlv1.NewAgentControlClient(conn)
	must(t, testbed.Poll(t.Context(), settle, "a scheduler that takes a workload", func(ctx context.Context) error {
		resp, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: "kept", Spec: container("nowhere.example/none:1")})
		if err == nil && !resp.GetSuccess() {
			err = errors.New(resp.GetErrorMessage())
		}
		return err
	}))
	process := machine.Path("/proc/" + ctl("show", "--property=MainPID", "--value", "persys-scheduler"))
	confined(t, process)

	restarts := func() string { return ctl("show", "--property=NRestarts", "--value", "persys-scheduler") }
	before := restarts()
	ctl("kill", "--signal=KILL", "persys-scheduler")
	must(t, testbed.Poll(t.Context(), settle, "the workload after the kill", func(ctx context.Context) error {
		if now := restarts(); now == before {
			return fmt.Errorf("systemd has not restarted the killed scheduler: its number of restarts is still %s", now)
		}
		_, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "kept"})
		return err
	}))
}

// confined checks that a process, given by its folder in /proc, has no capability and cannot gain one.
func confined(t *testing.T, process string) {
	t.Helper()
	const none = "0000000000000000"
	status := string(got[[]byte](t)(os.ReadFile(filepath.Join(process, "status"))))
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(status, set+":\t"+none+"\n") {
			t.Errorf("the capability set %s of the scheduler is not %s:\n%s", set, none, status)
		}
	}
}
