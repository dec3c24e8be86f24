package rpc

import (
	"testing"

	"github.com/persys/compute/fsm"
)

// TestSystemMember: for each state of a member of a system workload: whether the member must be ready, whether it is
// ready, and whether it has failed for good.
func TestSystemMember(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(of, w *fsm.Workload, n *fsm.Node)
		none   bool // there is no member yet
		want   string
	}{
		{name: "a running member", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Status = fsm.StatusRunning }, want: "ready"},
		{name: "a placed member that does not run yet", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Status = fsm.StatusScheduled }, want: "waits"},
		{name: "an unhealthy member", change: func(_, w *fsm.Workload, _ *fsm.Node) {
			w.Status, w.Actual.Health = fsm.StatusRunning, fsm.Unhealthy
		}, want: "waits"},
		{name: "a member with an older specification", change: func(_, w *fsm.Workload, _ *fsm.Node) {
			w.Status, w.Content = fsm.StatusRunning, "c1:old"
		}, want: "waits"},
		{name: "no member yet", none: true, want: "waits"},
		{name: "a member on a lost node", change: func(_, w *fsm.Workload, n *fsm.Node) { w.Status, n.Up = fsm.StatusUnknown, false }, want: "does not count"},
		{name: "a member that a user stopped", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Desired = fsm.DesiredStopped }, want: "does not count"},
		{name: "a stopped system workload without a member", none: true, change: func(of, _ *fsm.Workload, _ *fsm.Node) { of.Desired = fsm.DesiredStopped }, want: "does not count"},
		{name: "a member that is stopping with its system workload", change: func(of, w *fsm.Workload, _ *fsm.Node) {
			of.Desired, w.Desired, w.Status = fsm.DesiredStopped, fsm.DesiredStopped, fsm.StatusUpdating
		}, want: "waits"},
		{name: "a member that has stopped with its system workload", change: func(of, w *fsm.Workload, _ *fsm.Node) {
			of.Desired, w.Desired, w.Status = fsm.DesiredStopped, fsm.DesiredStopped, fsm.StatusStopped
		}, want: "ready"},
		{name: "a failed member that waits for a retry", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Status = fsm.StatusRetryPending }, want: "waits"},
		{name: "a failed member without further retries", change: func(_, w *fsm.Workload, _ *fsm.Node) {
			w.Status, w.Reason.Code = fsm.StatusFailed, fsm.CodeExhausted
		}, want: "failed"},
		{name: "a job that runs", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Demand.Job, w.Status = &fsm.Job{}, fsm.StatusRunning }, want: "waits"},
		{name: "a job that succeeded", change: func(_, w *fsm.Workload, _ *fsm.Node) {
			w.Demand.Job, w.Result = &fsm.Job{}, &fsm.JobResult{Succeeded: true}
		}, want: "ready"},
		{name: "a job that failed", change: func(_, w *fsm.Workload, _ *fsm.Node) { w.Demand.Job, w.Result = &fsm.Job{}, &fsm.JobResult{} }, want: "failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := &fsm.Workload{ID: "log", Content: "c1:new", Desired: fsm.DesiredRunning, Demand: &fsm.Demand{}}
			w := &fsm.Workload{ID: "log-n1", Content: "c1:new", Desired: fsm.DesiredRunning, Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}
			n := &fsm.Node{ID: "n1", Up: true}
			if c.change != nil {
				c.change(of, w, n)
			}
			if c.none {
				w = nil
			}
			got := "waits"
			switch m, counts := systemMember(of, n, w); {
			case !counts:
				got = "does not count"
			case m == nil:
				got = "ready"
			case m.Failed:
				got = "failed"
			}
			is(t, "whether the member counts, waits, is ready or has failed", got, c.want)
		})
	}
}
