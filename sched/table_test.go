package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// desire sets the desired state of a workload, as if a user had sent the request.
func (w *world) desire(id, state string) fsm.Result {
	return w.try(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: state}}})
}

func (w *world) report(r *commandv1.WorkloadReport) {
	w.t.Helper()
	x := w.get(r.Workload)
	r.Node, r.Generation, r.ObservedAt = x.Node, fsm.GenerationPB(x.Generation), w.now
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
}

// does runs the planner until the time until, and returns its first order as text. The agents do
// not answer.
func (w *world) does(until int64) string {
	w.t.Helper()
	for range 1000 {
		if s := w.plan(); len(s.Orders) > 0 {
			o := s.Orders[0]
			if x, ok := w.state.Workload(o.Workload); ok && o.Op == OpApply {
				return "apply " + string(x.Desired)
			}
			return map[Op]string{OpApply: "apply", OpDelete: "delete"}[o.Op]
		} else if len(s.Commands) > 0 {
			for _, c := range s.Commands {
				w.do(c)
			}
			continue
		} else if s.WakeAt == 0 || s.WakeAt > until {
			return ""
		} else {
			w.now = max(w.now, s.WakeAt)
		}
	}
	w.t.Fatalf("the planner must stop proposing changes, but still does after many steps")
	return ""
}

// TestReconcileTable compares the planner with the table desired × actual of contract/semantics section 5,
// cell by cell. The test is more precise than the table in three points:
//
//   - An order is not given again while its node works on it. If a cell requires an order,
//     it is given at once, within the backoff of a first failure, or after the apply limit
//     (45 s, section 6).
//   - A workload that should run but stays Pending or Unknown beyond the apply limit gets an order too. The
//     table has no action for these states.
//   - A Missing workload gets its order only after the grace period of that section.
func TestReconcileTable(t *testing.T) {
	const (
		none  = ""
		start = "apply Running"
		stop  = "apply Stopped"
		del   = "delete"
	)
	// Times after which an order must have been given: one backoff; the grace period for missing workloads
	// plus a backoff; the apply limit plus a backoff.
	backoff, grace, limit := 5*second, 20*second, 50*second
	for _, row := range []struct {
		desired string
		cells   map[fsm.Actual]string // for each actual state: the expected action
	}{
		{"Running", map[fsm.Actual]string{
			fsm.ActualMissing: start, fsm.ActualPending: none, fsm.ActualRunning: none,
			fsm.ActualStopped: start, fsm.ActualFailed: start, fsm.ActualUnknown: none,
		}},
		{"Stopped", map[fsm.Actual]string{
			fsm.ActualMissing: none, fsm.ActualPending: stop, fsm.ActualRunning: stop,
			fsm.ActualStopped: none, fsm.ActualFailed: none, fsm.ActualUnknown: stop,
		}},
		{"Deleted", map[fsm.Actual]string{
			fsm.ActualMissing: del, fsm.ActualPending: del, fsm.ActualRunning: del,
			fsm.ActualStopped: del, fsm.ActualFailed: del, fsm.ActualUnknown: del,
		}},
	} {
		for actual, want := range row.cells {
			for _, peer := range []string{"ours", "existing"} {
				t.Run(fmt.Sprintf("%s/%s/%s", row.desired, actual, peer), func(t *testing.T) {
					w := newWorld(t)
					w.node("a", func(n *commandv1.RegisterNode) {
						if peer == "existing" {
							n.Protocol, n.InstanceId = 0, ""
						}
					})
					w.apply("web")
					w.settle()
					if row.desired == "Stopped" {
						w.desire("web", "Stopped")
						w.plan()
						w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Pending"})
					}
					r := &commandv1.WorkloadReport{Workload: "web", State: string(actual)}
					w.report(r)
					if peer == "existing" { // the heartbeats of a legacy v1 agent have no generation
						r.Generation = nil
						w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
					}
					if row.desired == "Deleted" {
						w.desire("web", "Deleted")
					}
					within := backoff
					switch {
					case row.desired == "Running" && actual == fsm.ActualMissing:
						within = grace
					case row.desired == "Stopped" && want != none:
						within = limit // the node has accepted the order and may still be working on it
					}
					early := w.now + within
					if got := w.does(early); got != want {
						t.Fatalf("the order that is given within %d s is %q, want %q as in the table", within/second, got, want)
					}
					if want == none && actual != fsm.ActualRunning && row.desired == "Running" {
						// The apply limit ends the states Pending and Unknown.
						if got := w.does(w.now + limit); got != start {
							t.Fatalf("after the apply limit the order is %q, want an order to start again", got)
						}
					} else if want == none {
						if got := w.does(w.now + 3600*second); got != none {
							t.Fatalf("within an hour the order %q was given, want none", got)
						}
					}
				})
			}
		}
	}
}

// TestReconcilePass compares the planner with the numbered conditions of contract/semantics section 5.
func TestReconcilePass(t *testing.T) {
	running := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		return w
	}
	for _, c := range []struct {
		row string
		run func(t *testing.T)
	}{
		{"1 Frozen: not in normal mode", func(t *testing.T) {
			w := running(t)
			w.say("web", "Failed")
			w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "degraded"}}})
			if got := w.does(w.now + 600*second); got != "" {
				t.Fatalf("in a frozen mode the order is %q, want none", got)
			}
		}},
		{"2 BackoffWait, 5 retry due", func(t *testing.T) {
			w := running(t)
			w.say("web", "Failed")
			w.step()
			x := w.get("web")
			if x.Status != fsm.StatusRetryPending || x.Reason.Code != fsm.CodeBackoff || w.does(x.Retry.NextAt-1) != "" {
				t.Fatalf("web is %s, reason %+v, want RetryPending with the reason Backoff", x.Status, x.Reason)
			}
			if got := w.does(x.Retry.NextAt); got != "apply Running" || w.get("web").Retry.NextAt != 0 {
				t.Fatalf("the order is %q, the next retry is at %d, want apply Running, and no further retry scheduled", got, w.get("web").Retry.NextAt)
			}
		}},
		{"3 FinalizeDelete: desired Deleted and no node", func(t *testing.T) {
			w := newWorld(t)
			w.apply("web")
			w.desire("web", "Deleted")
			if _, ok := w.state.Workload("web"); ok {
				t.Fatal("the record of the deleted workload must be removed, but still exists")
			}
		}},
		{"4 no node and placement fails", func(t *testing.T) {
			w := newWorld(t)
			w.apply("web")
			w.settle()
			if x := w.get("web"); x.Status != fsm.StatusPending || x.Reason.Code != fsm.CodeUnplaced || x.Reason.Message == "" {
				t.Fatalf("the workload is %s, reason %+v, want Pending with the reason Unplaced", x.Status, x.Reason)
			}
		}},
		{"6 the node is unavailable: reassigned, attempts start again at zero", func(t *testing.T) {
			w := running(t)
			w.say("web", "Failed")
			w.step()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			x := w.get("web")
			if x.Node != "b" || x.PreviousNode != "a" || x.Retry.Attempts != 0 {
				t.Fatalf("the workload is on %q after %q, retry %+v, want it on b after a, without failed attempts", x.Node, x.PreviousNode, x.Retry)
			}
			found := false
			w.state.Events(0, func(e *fsm.Event) bool {
				found = found || e.Type == fsm.EventRescheduled && e.Workload == "web"
				return true
			})
			if !found {
				t.Fatal("the history must have the event Rescheduled, but does not")
			}
		}},
		{"6 the node is unavailable: no target", func(t *testing.T) {
			w := running(t)
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "" || x.Status != fsm.StatusPending || x.Reason.Code != fsm.CodeUnplaced {
				t.Fatalf("the workload is on %q, %s, reason %+v, want it unplaced and Pending with the reason Unplaced", x.Node, x.Status, x.Reason)
			}
		}},
		{"6 AwaitFailover: an exclusive workload stays until a person fences the node", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "a" || x.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(x.Reason.Message, "persysctl node fence a") {
				t.Fatalf("the workload is on %q, reason %+v, want node a and the reason AwaitFailover with the fence command", x.Node, x.Reason)
			}
		}},
		{"6 the node is unavailable: a deleted workload is not reassigned", func(t *testing.T) {
			w := running(t)
			w.desire("web", "Deleted")
			w.node("b")
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "" || x.Status != fsm.StatusDeleting {
				t.Fatalf("the workload is on %q, status %s, want it unplaced and Deleting", x.Node, x.Status)
			}
		}},
		{"9 the order does not reach the node: reported and retried", func(t *testing.T) {
			w := running(t)
			w.desire("web", "Stopped")
			w.do(&commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: []*commandv1.Unplaced{
				{Workload: "web", IfGeneration: fsm.GenerationPB(w.get("web").Generation), Code: fsm.CodeDispatchFailed, Message: "refused"}}}}})
			if got := w.does(w.now + second); got != "apply Stopped" {
				t.Fatalf("the order is %q, want apply Stopped", got)
			}
		}},
		{"10 NoAction: desired equals actual", func(t *testing.T) {
			w := running(t)
			if got := w.does(w.now + 3600*second); got != "" {
				t.Fatalf("the order is %q, want none", got)
			}
		}},
		{"runtime not available: the node loses the type and the workload", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			for w.get("web").Node == "" {
				w.step()
			}
			w.report(&commandv1.WorkloadReport{Workload: "web", Refused: true, State: "Failed", Code: fsm.CodeRuntimeNotOffered})
			w.node("b")
			w.settle()
			if x := w.get("web"); x.Node != "b" {
				t.Fatalf("the workload is on %q, reason %+v, want node b", x.Node, x.Reason)
			}
		}},
	} {
		t.Run(c.row, c.run)
	}
}

// TestStopsConverge: a stop is ordered again until the workload is stopped.
func TestStopsConverge(t *testing.T) {
	// stopping returns a world in which web runs and the order to stop it was given.
	stopping := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.desire("web", "Stopped")
		if got := w.does(w.now); got != "apply Stopped" {
			t.Fatalf("the order is %q, want apply Stopped", got)
		}
		return w
	}
	refused := &commandv1.WorkloadReport{Workload: "web", Refused: true, State: "Failed", Code: "RUNTIME_ERROR", Message: "cannot stop it"}
	t.Run("after a refused stop the workload counts as running and is retried after a backoff", func(t *testing.T) {
		w := stopping(t)
		w.report(refused)
		x := w.get("web")
		if x.Actual.State != fsm.ActualRunning || x.Status != fsm.StatusRunning || x.Reason.Code != "RUNTIME_ERROR" ||
			x.Reason.Message != "node a has not stopped it: cannot stop it" {
			t.Fatalf("web is reported %s, status %s, reason %+v, want the reason that node a cannot stop it", x.Actual.State, x.Status, x.Reason)
		}
		w.step()
		x = w.get("web")
		if x.Status != fsm.StatusRetryPending || x.Retry.Attempts != 1 || x.Retry.NextAt <= w.now || x.Retry.NextAt > w.now+w.tuning.RetryBase {
			t.Fatalf("web is %s, retry %+v, want RetryPending after 1 attempt, with a next attempt within RetryBase", x.Status, x.Retry)
		}
		if got := w.does(x.Retry.NextAt); got != "apply Stopped" {
			t.Fatalf("the order is %q, want apply Stopped", got)
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if x := w.get("web"); x.Status != fsm.StatusStopped || x.Retry.Attempts != 0 || x.Reason.Code != fsm.CodeUserStop {
			t.Fatalf("web is %s, retry %+v, reason %+v, want Stopped with the reason UserStop and no failed attempts", x.Status, x.Retry, x.Reason)
		}
	})
	t.Run("a stop is retried after a failure of a permanent class", func(t *testing.T) {
		w := stopping(t)
		r := &commandv1.WorkloadReport{Workload: "web", Refused: true, State: "Failed", Code: "INVALID_SPECIFICATION"}
		w.report(r)
		if got := w.does(w.now + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("the order is %q, the retry %+v, want apply Stopped", got, w.get("web").Retry)
		}
	})
	t.Run("a stop is retried after its attempts are used up, with one event", func(t *testing.T) {
		w := stopping(t)
		begun := w.now
		for w.get("web").Reason.Code != fsm.CodeExhausted {
			if w.now > begun+600*second {
				t.Fatalf("the stop must have used up its attempts within ten minutes, but the retry is %+v", w.get("web").Retry)
			}
			if got := w.does(w.now + w.tuning.RetryMax); got != "apply Stopped" {
				t.Fatalf("the order is %q, the retry %+v, want apply Stopped", got, w.get("web").Retry)
			}
			w.report(refused)
			w.step()
		}
		if w.now < begun+w.tuning.FailureGrace {
			t.Errorf("the reason must not be recorded within the failure grace, but was after %d s", (w.now-begun)/second)
		}
		x := w.get("web")
		if x.Retry.Terminal || x.Status != fsm.StatusRetryPending || !strings.Contains(x.Reason.Message, "persysctl stop web") {
			t.Fatalf("web is %s, retry %+v, reason %+v, want RetryPending with the advice persysctl stop web, not given up", x.Status, x.Retry, x.Reason)
		}
		for range 3 {
			if got := w.does(w.now + w.tuning.RetryMax); got != "apply Stopped" {
				t.Fatalf("the order is %q, want apply Stopped", got)
			}
			w.report(refused)
			w.step()
		}
		failed := 0
		w.state.Events(0, func(e *fsm.Event) bool {
			if e.Type == fsm.EventWorkloadFailed {
				failed++
			}
			return true
		})
		if failed != 1 {
			t.Fatalf("the history has %d events WorkloadFailed, want 1", failed)
		}
	})
	t.Run("a second stop request gives an order if the workload still runs, otherwise it is AlreadyDone", func(t *testing.T) {
		w := stopping(t)
		if r := w.desire("web", "Stopped"); r.Kind != fsm.AlreadyDone {
			t.Fatalf("a stop request while the order is being delivered returned %+v, want AlreadyDone", r)
		}
		w.report(refused)
		w.step()
		g := w.get("web").Generation
		if r := w.desire("web", "Stopped"); r.Kind == fsm.AlreadyDone || !g.Less(w.get("web").Generation) {
			t.Fatalf("a stop request for a workload that still runs returned %+v, want a new order", r)
		}
		if got := w.does(w.now); got != "apply Stopped" {
			t.Fatalf("at once the order is %q, want apply Stopped", got)
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if r := w.desire("web", "Stopped"); r.Kind != fsm.AlreadyDone {
			t.Fatalf("a stop request for a stopped workload returned %+v, want AlreadyDone", r)
		}
	})
	t.Run("an instance that was started by hand is a drift until it is stopped", func(t *testing.T) {
		w := stopping(t)
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		w.now += 600 * second
		w.settle()
		w.say("web", "Running")
		w.step()
		found := w.compare("a", w.lists("web"))
		if told(found) != "web state_mismatch Stopped/Running" {
			t.Fatalf("Compare found %q, want a state_mismatch of web", told(found))
		}
		w.note("a", found)
		if got := w.does(w.now + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("the order is %q, want apply Stopped", got)
		}
		if found := w.compare("a", w.lists("web")); told(found) != "web state_mismatch Stopped/Running" {
			t.Fatalf("while the order is being delivered Compare found %q, want one state_mismatch of web", told(found))
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if found := w.compare("a", w.lists("web", state(fsm.ActualStopped))); len(found) != 0 {
			t.Fatalf("after the stop Compare found %q, want nothing", told(found))
		}
	})
	t.Run("an agent that lost its state file and no longer reports the workload gets the order again", func(t *testing.T) {
		w := stopping(t)
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Pending"})
		begun := w.now
		if got := w.does(begun + w.tuning.ApplyTimeout - 1); got != "" {
			t.Fatalf("before the timeout the order is %q, want none", got)
		}
		if got := w.does(begun + w.tuning.ApplyTimeout + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("after the timeout the order is %q, want apply Stopped", got)
		}
	})
}

// TestStopOnALostNodeIsNotDone: a workload that is to be stopped on a lost node gets the status Stopped
// only once the node has reported the stop, or an operator has confirmed that the node is off (fence).
func TestStopOnALostNodeIsNotDone(t *testing.T) {
	lost := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.node("b")
		return w
	}
	waits := func(t *testing.T, w *world) {
		t.Helper()
		x := w.get("web")
		if x.Status != fsm.StatusUnknown || x.Node != "a" || x.Reason.Code != fsm.CodeAwaitStop || !strings.Contains(x.Reason.Message, "persysctl node fence a") {
			t.Fatalf("the workload may still run on its lost node, so it must be Unknown on node a with the reason AwaitStop; it is %s on %q, reason %+v", x.Status, x.Node, x.Reason)
		}
		if s := w.plan(); len(s.Commands)+len(s.Orders) > 0 {
			t.Fatalf("a second step proposes %v and orders %v, want nothing", s.Commands, s.Orders)
		}
	}
	isStopped := func(t *testing.T, w *world, node string) {
		t.Helper()
		if x := w.get("web"); x.Status != fsm.StatusStopped || x.Node != node || x.Reason.Code != fsm.CodeUserStop {
			t.Fatalf("the workload is %s on %q, reason %+v, want it Stopped on its node with the reason UserStop", x.Status, x.Node, x.Reason)
		}
	}
	// The node is lost before it gets the order to stop.
	stop := func(w *world) { w.desire("web", "Stopped") }
	lose := func(w *world) { w.heard["a"] = false; w.settle() }
	settle := func(w *world) { w.settle() }
	for _, c := range []struct {
		what   string
		before []func(*world)
		then   func(*testing.T, *world)
	}{
		{"the node returns and gets the order to stop", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.heard["a"] = true
			if got := w.does(w.now + second); got != "apply Stopped" {
				t.Fatalf("the order is %q, want apply Stopped", got)
			}
			w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
			isStopped(t, w, "a")
		}},
		{"the node accepted the order and is lost before it reports", []func(*world){func(w *world) {
			w.desire("web", "Stopped")
			w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Pending"})
		}, lose}, waits},
		{"the node is fenced after it was lost", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
			w.settle()
			isStopped(t, w, "")
		}},
		{"the node is removed after it was lost", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "a"}}})
			w.settle()
			isStopped(t, w, "")
		}},
		{"the workload was stopped before the node was lost", []func(*world){stop, settle, lose}, func(t *testing.T, w *world) { isStopped(t, w, "") }},
		{"a start places the workload on another node", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.desire("web", "Running")
			w.settle()
			if x := w.get("web"); x.Node != "b" || x.Status != fsm.StatusRunning {
				t.Fatalf("the workload is %s on %q, reason %+v, want it running on node b", x.Status, x.Node, x.Reason)
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := lost(t)
			for _, do := range c.before {
				do(w)
			}
			c.then(t, w)
			if err := w.state.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
