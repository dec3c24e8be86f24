package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// desire asks for a state as a user does.
func (w *world) desire(id, state string) fsm.Result {
	return w.try(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: state}}})
}

func (w *world) report(r *commandv1.WorkloadReport) {
	w.t.Helper()
	x := w.get(r.Workload)
	r.Node, r.Generation, r.ObservedAt = x.Node, fsm.GenerationPB(x.Generation), w.now
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
}

// does runs the planner until a time and returns its first order. Agents do not answer.
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
	w.t.Fatalf("the planner does not come to rest")
	return ""
}

// TestReconcileTable compares the planner with the table desired × actual of
// contract/semantics section 5, cell by cell. The test is more exact in three ways:
//
//   - An order is not given again while its node works on it. A cell that asks for an order
//     gives it at once, within the backoff of a first failure, or after the apply limit
//     (45 s, section 6).
//   - The apply limit also ends Pending and Unknown of a workload that should run, which the
//     table leaves alone.
//   - Missing is acted on after the grace of the same section.
func TestReconcileTable(t *testing.T) {
	const (
		none  = ""
		start = "apply Running"
		stop  = "apply Stopped"
		del   = "delete"
	)
	backoff, grace, limit := 5*second, 20*second, 50*second // one backoff; Missing's grace, or the limit, and one backoff
	for _, row := range []struct {
		desired string
		cells   map[fsm.Actual]string // what the table says
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
					if peer == "existing" { // its heartbeats name no generation
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
						within = limit // its node has accepted the order and may be at work
					}
					early := w.now + within
					if got := w.does(early); got != want {
						t.Fatalf("within %d s: %q, the table says %q", within/second, got, want)
					}
					if want == none && actual != fsm.ActualRunning && row.desired == "Running" {
						// Sooner or later the limit ends it: the seeds' apply timeout.
						if got := w.does(w.now + limit); got != start {
							t.Fatalf("after the limit: %q", got)
						}
					} else if want == none {
						if got := w.does(w.now + 3600*second); got != none {
							t.Fatalf("in an hour: %q", got)
						}
					}
				})
			}
		}
	}
}

// TestReconcilePass compares the planner with the numbered conditions of the same section.
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
				t.Fatalf("in a frozen mode: %q", got)
			}
		}},
		{"2 BackoffWait, 5 retry due", func(t *testing.T) {
			w := running(t)
			w.say("web", "Failed")
			w.step()
			x := w.get("web")
			if x.Status != fsm.StatusRetryPending || x.Reason.Code != fsm.CodeBackoff || w.does(x.Retry.NextAt-1) != "" {
				t.Fatalf("%s %+v", x.Status, x.Reason)
			}
			if got := w.does(x.Retry.NextAt); got != "apply Running" || w.get("web").Retry.NextAt != 0 {
				t.Fatalf("%q, next at %d", got, w.get("web").Retry.NextAt)
			}
		}},
		{"3 FinalizeDelete: desired Deleted and no node", func(t *testing.T) {
			w := newWorld(t)
			w.apply("web")
			w.desire("web", "Deleted")
			if _, ok := w.state.Workload("web"); ok {
				t.Fatal("it is still there")
			}
		}},
		{"4 no node and placement fails", func(t *testing.T) {
			w := newWorld(t)
			w.apply("web")
			w.settle()
			if x := w.get("web"); x.Status != fsm.StatusPending || x.Reason.Code != fsm.CodeUnplaced || x.Reason.Message == "" {
				t.Fatalf("%s %+v", x.Status, x.Reason)
			}
		}},
		{"6 the node is unavailable: reassigned, attempts begin anew", func(t *testing.T) {
			w := running(t)
			w.say("web", "Failed")
			w.step()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			x := w.get("web")
			if x.Node != "b" || x.PreviousNode != "a" || x.Retry.Attempts != 0 {
				t.Fatalf("on %q after %q, %+v", x.Node, x.PreviousNode, x.Retry)
			}
			found := false
			w.state.Events(0, func(e *fsm.Event) bool {
				found = found || e.Type == fsm.EventRescheduled && e.Workload == "web"
				return true
			})
			if !found {
				t.Fatal("no event Rescheduled")
			}
		}},
		{"6 the node is unavailable: no target", func(t *testing.T) {
			w := running(t)
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "" || x.Status != fsm.StatusPending || x.Reason.Code != fsm.CodeUnplaced {
				t.Fatalf("on %q, %s %+v", x.Node, x.Status, x.Reason)
			}
		}},
		{"6 AwaitFailover: what is exclusive stays until a person says so", func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "a" || x.Reason.Code != fsm.CodeAwaitFailover || !strings.Contains(x.Reason.Message, "persysctl node fence a") {
				t.Fatalf("on %q, %+v", x.Node, x.Reason)
			}
		}},
		{"6 not for Deleted", func(t *testing.T) {
			w := running(t)
			w.desire("web", "Deleted")
			w.node("b")
			w.heard["a"] = false
			w.settle()
			if x := w.get("web"); x.Node != "" || x.Status != fsm.StatusDeleting {
				t.Fatalf("on %q, %s", x.Node, x.Status)
			}
		}},
		{"9 the node cannot be told: said, and tried again", func(t *testing.T) {
			w := running(t)
			w.desire("web", "Stopped")
			w.do(&commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: []*commandv1.Unplaced{
				{Workload: "web", IfGeneration: fsm.GenerationPB(w.get("web").Generation), Code: fsm.CodeDispatchFailed, Message: "refused"}}}}})
			if got := w.does(w.now + second); got != "apply Stopped" {
				t.Fatalf("%q", got)
			}
		}},
		{"10 NoAction: desired equals actual", func(t *testing.T) {
			w := running(t)
			if got := w.does(w.now + 3600*second); got != "" {
				t.Fatalf("%q", got)
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
				t.Fatalf("on %q, %+v", x.Node, x.Reason)
			}
		}},
	} {
		t.Run(c.row, c.run)
	}
}

// TestStopsConverge: a stop is ordered again until the workload is stopped.
func TestStopsConverge(t *testing.T) {
	// stopping is a world in which web runs and is to be stopped, and its order is out.
	stopping := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		w.desire("web", "Stopped")
		if got := w.does(w.now); got != "apply Stopped" {
			t.Fatalf("%q", got)
		}
		return w
	}
	refused := &commandv1.WorkloadReport{Workload: "web", Refused: true, State: "Failed", Code: "RUNTIME_ERROR", Message: "cannot stop it"}
	t.Run("one that was refused is known to run, and is tried again after a backoff", func(t *testing.T) {
		w := stopping(t)
		w.report(refused)
		x := w.get("web")
		if x.Actual.State != fsm.ActualRunning || x.Status != fsm.StatusRunning || x.Reason.Code != "RUNTIME_ERROR" ||
			x.Reason.Message != "node a has not stopped it: cannot stop it" {
			t.Fatalf("%s, %s %+v", x.Actual.State, x.Status, x.Reason)
		}
		w.step()
		x = w.get("web")
		if x.Status != fsm.StatusRetryPending || x.Retry.Attempts != 1 || x.Retry.NextAt <= w.now || x.Retry.NextAt > w.now+w.tuning.RetryBase {
			t.Fatalf("%s %+v", x.Status, x.Retry)
		}
		if got := w.does(x.Retry.NextAt); got != "apply Stopped" {
			t.Fatalf("%q", got)
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if x := w.get("web"); x.Status != fsm.StatusStopped || x.Retry.Attempts != 0 || x.Reason.Code != fsm.CodeUserStop {
			t.Fatalf("%s %+v %+v", x.Status, x.Retry, x.Reason)
		}
	})
	t.Run("a permanent class makes no stop final", func(t *testing.T) {
		w := stopping(t)
		r := &commandv1.WorkloadReport{Workload: "web", Refused: true, State: "Failed", Code: "INVALID_SPECIFICATION"}
		w.report(r)
		if got := w.does(w.now + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("%q, %+v", got, w.get("web").Retry)
		}
	})
	t.Run("attempts are used up: said once, and it goes on", func(t *testing.T) {
		w := stopping(t)
		begun := w.now
		for w.get("web").Reason.Code != fsm.CodeExhausted {
			if w.now > begun+600*second {
				t.Fatalf("after ten minutes: %+v", w.get("web").Retry)
			}
			if got := w.does(w.now + w.tuning.RetryMax); got != "apply Stopped" {
				t.Fatalf("%q, %+v", got, w.get("web").Retry)
			}
			w.report(refused)
			w.step()
		}
		if w.now < begun+w.tuning.FailureGrace {
			t.Errorf("said after %d s, within the grace", (w.now-begun)/second)
		}
		x := w.get("web")
		if x.Retry.Terminal || x.Status != fsm.StatusRetryPending || !strings.Contains(x.Reason.Message, "persysctl stop web") {
			t.Fatalf("%s %+v %+v", x.Status, x.Retry, x.Reason)
		}
		for range 3 {
			if got := w.does(w.now + w.tuning.RetryMax); got != "apply Stopped" {
				t.Fatalf("%q", got)
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
			t.Fatalf("%d events WorkloadFailed", failed)
		}
	})
	t.Run("a second stop of what runs on is an order, of what is stopped is done", func(t *testing.T) {
		w := stopping(t)
		if r := w.desire("web", "Stopped"); r.Kind != fsm.AlreadyDone {
			t.Fatalf("while the order is on its way: %+v", r)
		}
		w.report(refused)
		w.step()
		g := w.get("web").Generation
		if r := w.desire("web", "Stopped"); r.Kind == fsm.AlreadyDone || !g.Less(w.get("web").Generation) {
			t.Fatalf("%+v", r)
		}
		if got := w.does(w.now); got != "apply Stopped" {
			t.Fatalf("at once: %q", got)
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if r := w.desire("web", "Stopped"); r.Kind != fsm.AlreadyDone {
			t.Fatalf("stopped: %+v", r)
		}
	})
	t.Run("what is started behind its back is a drift while it runs, and is stopped", func(t *testing.T) {
		w := stopping(t)
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		w.now += 600 * second
		w.settle()
		w.say("web", "Running")
		w.step()
		found := w.compare("a", w.lists("web"))
		if told(found) != "web state_mismatch Stopped/Running" {
			t.Fatalf("%q", told(found))
		}
		w.note("a", found)
		if got := w.does(w.now + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("%q", got)
		}
		if found := w.compare("a", w.lists("web")); told(found) != "web state_mismatch Stopped/Running" {
			t.Fatalf("while the order is on its way: %q", told(found))
		}
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
		if found := w.compare("a", w.lists("web", state(fsm.ActualStopped))); len(found) != 0 {
			t.Fatalf("%q", told(found))
		}
	})
	t.Run("an agent that loses its file and says nothing more is asked again", func(t *testing.T) {
		w := stopping(t)
		w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Pending"})
		begun := w.now
		if got := w.does(begun + w.tuning.ApplyTimeout - 1); got != "" {
			t.Fatalf("early: %q", got)
		}
		if got := w.does(begun + w.tuning.ApplyTimeout + w.tuning.RetryBase); got != "apply Stopped" {
			t.Fatalf("%q", got)
		}
	})
}

// TestAStopOnALostNodeIsNotTakenForDone: a workload that is to be stopped on a lost node
// counts as stopped once the node has reported that, or is fenced.
func TestAStopOnALostNodeIsNotTakenForDone(t *testing.T) {
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
			t.Fatalf("%s on %q, %+v: it may still run there", x.Status, x.Node, x.Reason)
		}
		if s := w.plan(); len(s.Commands)+len(s.Orders) > 0 {
			t.Fatalf("a second step gives %v %v", s.Commands, s.Orders)
		}
	}
	isStopped := func(t *testing.T, w *world, node string) {
		t.Helper()
		if x := w.get("web"); x.Status != fsm.StatusStopped || x.Node != node || x.Reason.Code != fsm.CodeUserStop {
			t.Fatalf("%s on %q, %+v", x.Status, x.Node, x.Reason)
		}
	}
	// A node that is lost before it hears of the stop.
	stop := func(w *world) { w.desire("web", "Stopped") }
	lose := func(w *world) { w.heard["a"] = false; w.settle() }
	settle := func(w *world) { w.settle() }
	for _, c := range []struct {
		what   string
		before []func(*world)
		then   func(*testing.T, *world)
	}{
		{"its node comes back and is told", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.heard["a"] = true
			if got := w.does(w.now + second); got != "apply Stopped" {
				t.Fatalf("%q", got)
			}
			w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Stopped"})
			isStopped(t, w, "a")
		}},
		{"its node took the order and is lost before it said more", []func(*world){func(w *world) {
			w.desire("web", "Stopped")
			w.report(&commandv1.WorkloadReport{Workload: "web", Acknowledged: true, State: "Pending"})
		}, lose}, waits},
		{"its node is fenced", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
			w.settle()
			isStopped(t, w, "")
		}},
		{"its node is removed", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "a"}}})
			w.settle()
			isStopped(t, w, "")
		}},
		{"it had been stopped", []func(*world){stop, settle, lose}, func(t *testing.T, w *world) { isStopped(t, w, "") }},
		{"it is started again: elsewhere", []func(*world){stop, lose}, func(t *testing.T, w *world) {
			waits(t, w)
			w.desire("web", "Running")
			w.settle()
			if x := w.get("web"); x.Node != "b" || x.Status != fsm.StatusRunning {
				t.Fatalf("%s on %q, %+v", x.Status, x.Node, x.Reason)
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
