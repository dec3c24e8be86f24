package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	dockercontainer "github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestLimitsHold: the schedulers place no more workloads on a node than its limits allow, and the agent
// itself also refuses more. The error names the requested and the available resources. A container that
// uses more disk than its limit is stopped until there is space.
func TestLimitsHold(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Schedulers: 1, Binaries: shipped(t), SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Env: map[string]string{
		// The settings make the agent offer half of one CPU, independent of the CPUs of this machine.
		"PERSYS_RESOURCE_THRESHOLD": "50", "PERSYS_RESERVED_CPU": strconv.Itoa((runtime.NumCPU() - 1) * 1000),
	}}))
	order := func(id string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), id+".yaml")
		must(t, os.WriteFile(file, fmt.Appendf(nil, `id: %s
resources: {cpu: 300m, memory: 32Mi, disk: 1Gi}
container:
  image: %s
  managed_volumes: [{name: %s-data, path: /data}]
`, id, image, id), 0o600))
		ctl(t, c, "apply", "-f", file)
	}
	order("first")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "first", settle, running))

	// Apply a workload that needs more than the node has left. It must not be placed, and its reason must say
	// why.
	order("second")
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "second", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() != ""
	}))
	if view.GetAssignedNodeId() != "" || view.GetStatus() != "Pending" {
		t.Errorf("the workload is %s on node %q, want it Pending and unplaced", view.GetStatus(), view.GetAssignedNodeId())
	}
	if why := ctl(t, c, "why", "second", "-o", "json"); !strings.Contains(why, "CPU: needs 300 millicores, 200 free of 500 (300 promised)") {
		t.Errorf("the reason of the unplaced workload has no figures:\n%s", why)
	}
	if err := c.WaitNode(t.Context(), a.NodeID, "Ready", settle); err != nil {
		t.Error(err)
	}
	ctl(t, c, "delete", "second", "--wait")

	// A file of 1.2 GiB in a volume of 1 GiB.
	data := filepath.Join(filepath.Dir(a.StatePath), "volumes", "local", "first-data", "f")
	f, err := os.Create(data)
	must(t, err)
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, 1200<<20))
	must(t, f.Close())
	again := func() { // restart the agent, because it measures disk usage at the start and then once a minute
		t.Helper()
		must(t, a.Terminate(settle))
		must(t, a.Start())
	}
	runs := func() int {
		t.Helper()
		n := 0
		for _, x := range got[[]dockercontainer.Summary](t)(e.Containers(t.Context(), id)) {
			if string(x.State) == "running" {
				n++
			}
		}
		return n
	}
	again()
	// Wait until the agent has stopped the workload. Its status is then Failed, or that of a workload that waits
	// for another attempt.
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "first", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetStatus() != "Running" && strings.Contains(w.GetReason().GetMessage(), "its limit is 1024 MiB; stopped")
	}))
	must(t, testbed.Poll(t.Context(), settle, "the container's end", func(context.Context) error {
		if n := runs(); n != 0 {
			return fmt.Errorf("%d containers still run", n)
		}
		return nil
	}))
	must(t, os.Remove(data))
	again()
	ctl(t, c, "retry", "first") // without the retry, the workload would wait for its backoff or would have no attempts left
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "first", settle, running))
	must(t, testbed.Poll(t.Context(), settle, "use and limit", func(context.Context) error {
		if out := ctl(t, c, "get", "first"); !strings.Contains(out, " of 1Gi (measured)") {
			return fmt.Errorf("persysctl get does not show the disk use and the limit:\n%s", out)
		}
		return nil
	}))

	// Send the agent an order that exceeds its limits, as schedulers that do not know these limits would. The
	// agent must refuse it. The order has a much later term than the real leader, so that the agent does not
	// refuse it for its epoch.
	cc, err := grpc.NewClient("passthrough:///"+a.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer cc.Close()
	resp, err := agentv1.NewAgentServiceClient(cc).ApplyWorkload(t.Context(), &agentv1.ApplyWorkloadRequest{
		Id: "third", NodeId: a.NodeID, Type: agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER, RevisionId: "r1", Content: "c1:third",
		DesiredState: agentv1.DesiredState_DESIRED_STATE_RUNNING,
		Epoch:        &agentv1.Epoch{ClusterId: id, Incarnation: incarnation(t, c, 0), Term: 1 << 40},
		Generation:   &agentv1.Generation{Incarnation: incarnation(t, c, 0), Sequence: 1 << 40},
		Spec: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
			Image: image, Resources: &agentv1.ResourceLimits{CpuMillicores: 300},
		}}},
	})
	must(t, err)
	if resp.GetApplied() || resp.GetStatus().GetMetadata()["failure_reason"] != "INSUFFICIENT_RESOURCES" ||
		!strings.Contains(resp.GetMessage(), "CPU: needs 300 millicores, but 300 of the 500 that node") {
		t.Errorf("the agent answers an order beyond its limits with %v, want a refusal with the figures", resp)
	}
}
