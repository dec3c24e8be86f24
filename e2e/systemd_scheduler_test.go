package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestSystemdScheduler runs a scheduler by the packed unit under a real systemd, as the user persys
// and without rights but one: it comes up, one thread of it is woken late (ADR 31), and systemd
// brings it back with what it knew when it was killed.
func TestSystemdScheduler(t *testing.T) {
	theEngine(t) // the machine has its socket
	bins := shipped(t)
	testbed.Program(t, "systemctl")
	machine, err := harness.BootSystemd(t.Context(), t.TempDir())
	testbed.Need(t, "a systemd that may be process 1", err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine says:\n%s", machine.Log())
		}
		must(t, machine.Close())
	})
	env := []string{"SCHEDULER_INSECURE=true", "SCHEDULER_DNS_ADDR=none", "ETCD_ENDPOINTS=none", "LOG_LEVEL=info"}
	for _, name := range []string{"GRPC_PORT", "METRICS_PORT"} {
		env = append(env, fmt.Sprintf("%s=%d", name, got[int](t)(harness.FreePort())))
	}
	for _, name := range []string{"SCHEDULER_RAFT_ADDR", "SCHEDULER_GOSSIP_ADDR"} {
		env = append(env, fmt.Sprintf("%s=127.0.0.1:%d", name, got[int](t)(harness.FreePort())))
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
	ctl := func(args ...string) string {
		t.Helper()
		return got[string](t)(machine.Ctl(t.Context(), args...))
	}
	ctl("daemon-reload")
	ctl("start", "persys-scheduler")
	leads := func(times int) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "a scheduler that leads", func(context.Context) error {
			if n := strings.Count(machine.Log(), "msg=leading "); n != times {
				return fmt.Errorf("it says so %d times, want %d", n, times)
			}
			return nil
		}))
	}
	leads(1)
	late := 0
	tasks := machine.Path("/proc/" + ctl("show", "--property=MainPID", "--value", "persys-scheduler") + "/task")
	for _, task := range got[[]os.DirEntry](t)(os.ReadDir(tasks)) {
		raw := got[[]byte](t)(os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(tasks)), task.Name(), "timerslack_ns")))
		if strings.TrimSpace(string(raw)) != "50000" {
			late++
		}
	}
	if late != 1 {
		t.Errorf("%d of its threads may be woken late, want the runtime's monitor alone", late)
	}
	ctl("kill", "--signal=KILL", "persys-scheduler")
	leads(2)
}
