package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/driver/sim"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// awaitNoRecord waits until the schedulers have no record of a workload.
func awaitNoRecord(t *testing.T, c *harness.Cluster, id string, limit time.Duration) {
	t.Helper()
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	must(t, testbed.Poll(t.Context(), limit, "the end of "+id, func(ctx context.Context) error {
		w, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return fmt.Errorf("the schedulers still have the workload, in state %s (%s): %w", w.GetWorkload().GetStatus(), w.GetWorkload().GetReason().GetMessage(), err)
	}))
}

// awaitNoRun waits until no engine runs a workload.
func awaitNoRun(t *testing.T, c *harness.Cluster, id string) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, "the last run of "+id+" to end", func(context.Context) error {
		if runs := runsOf(t, c, id); slices.ContainsFunc(runs, func(r sim.Run) bool { return r.To == 0 }) {
			return fmt.Errorf("an engine still runs the workload: %+v", runs)
		}
		return nil
	}))
}

// TestStopsAndDeletesEnd: on a healthy node a stop or a delete takes seconds. On a lost node it completes
// when the node returns, or when an operator fences or removes the node, and until then no program reports it
// as completed. A node that returns after it was fenced or removed stops the workloads that were deleted in
// the meantime.
func TestStopsAndDeletesEnd(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ids := []string{"well", "halted", "waits", "forced", "removed"}
	for _, id := range ids {
		apply(t, c, id, container("persys/any:1"))
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}

	began := time.Now()
	ctl(t, c, "delete", "well", "--yes")
	awaitNoRecord(t, c, "well", 10*time.Second)
	t.Logf("a delete on a healthy node took %s", time.Since(began).Round(time.Millisecond))
	awaitNoRun(t, c, "well")

	// Kill the agent and then stop the workload, so that the order does not arrive. The workload may still run
	// on the node, and the reason in its record must say so.
	must(t, a.Kill())
	ctl(t, c, "stop", "halted")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "halted", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == fsm.CodeAwaitStop && strings.Contains(w.GetReason().GetMessage(), "persysctl node fence "+a.NodeID)
	}))
	if view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "halted", settle, func(*controlv1.WorkloadView) bool { return true })); view.GetStatus() != "Unknown" {
		t.Errorf("a workload that was ordered to stop on a lost node is shown as %s, want Unknown", view.GetStatus())
	}
	ctl(t, c, "delete", "waits", "--yes")
	must(t, a.Start())
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "halted", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetStatus() == "Stopped" && w.GetReason().GetCode() == fsm.CodeUserStop
	}))
	awaitNoRun(t, c, "halted")
	awaitNoRecord(t, c, "waits", settle)
	awaitNoRun(t, c, "waits")

	// The operator deletes one workload with --force, and removes the node of the other workloads.
	for _, id := range []string{"forced", "removed"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	must(t, a.Kill())
	must(t, c.WaitNode(t.Context(), a.NodeID, "NotReady", settle))
	for range 2 { // the delete is repeated; the second one changes nothing
		ctl(t, c, "delete", "removed", "--yes")
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "removed", settle, func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Deleting" }))
	ctl(t, c, "delete", "forced", "--force", "--yes")
	awaitNoRecord(t, c, "forced", 10*time.Second)
	ctl(t, c, "node", "remove", a.NodeID, "--force", "--yes")
	awaitNoRecord(t, c, "removed", 10*time.Second)

	// The node returns with its disk.
	must(t, a.Start())
	must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	awaitNoRun(t, c, "forced")
	awaitNoRun(t, c, "removed")
}
