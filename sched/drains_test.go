package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// drainBy drains a node and lets running jobs end there for a number of seconds.
func (w *world) drainBy(id string, seconds uint32) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: id, On: true, DeadlineSeconds: &seconds}}})
}

// TestDecisionsForAnEndedDrainAreDropped: because node a is draining, the planner decides that a workload
// leaves the node, or that the member of a system workload is deleted. A person ends the drain before this
// decision is committed. The decision must be skipped.
func TestDecisionsForAnEndedDrainAreDropped(t *testing.T) {
	for _, c := range []struct {
		id  string
		set []func(*commandv1.WorkloadPut)
		on  string // the workload on node a
	}{
		{"web", nil, "web"},
		{"log", []func(*commandv1.WorkloadPut){system}, "log-a"},
	} {
		t.Run(c.id, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply(c.id, c.set...)
			w.settle()
			w.node("b")
			w.settle()
			before := w.get(c.on)
			w.drain("a", true)
			s := w.plan()
			w.drain("a", false)
			dropped := 0
			for _, x := range s.Commands {
				if r := w.try(x); r.Skipped == 1 && r.Reason == "node a is no longer draining" {
					dropped++
				}
			}
			if dropped != 1 {
				t.Errorf("%d of the commands %v were skipped because the drain had ended, want 1", dropped, s.Commands)
			}
			w.settle()
			if got := w.get(c.on); got.Node != "a" || got.Generation != before.Generation || got.Desired != before.Desired {
				t.Errorf("workload %q has the desired state %s, node %q and generation %s, want it unchanged on node \"a\"", got.ID, got.Desired, got.Node, got.Generation)
			}
		})
	}
}

// TestADrainLetsJobsEnd: node a runs the job pack and the service web, and is drained with a deadline of 60 s for jobs.
// Node b has room for both.
func TestADrainLetsJobsEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a service moves at once, and the job stays with the reason and the time", func(t *testing.T, w *world) {
			w.on(t, "web", "b")
			w.held(t, "pack", "a", fsm.CodeAwaitEnd, "node a is draining", "may end there until 2023-11-14T22:14:20Z")
		}},
		{"a job that ends before the deadline runs once", func(t *testing.T, w *world) {
			was := w.get("pack").Generation
			w.exits("pack", 0)
			w.settle()
			p := w.get("pack")
			if !p.Finished() || !p.Result.Succeeded || p.Result.Node != "a" || p.Retry.Attempts != 0 {
				t.Errorf("the job, which was at generation %s, has the result %+v, want success on node \"a\"", was, p.Result)
			}
		}},
		{"the job moves when the deadline is over, and not before", func(t *testing.T, w *world) {
			at := w.plan().WakeAt
			for ; at < testStart+60*second; at = w.plan().WakeAt {
				w.now = max(at, w.now+1)
				w.step()
				w.held(t, "pack", "a", fsm.CodeAwaitEnd)
			}
			w.now = testStart + 60*second
			w.step()
			if p := w.get("pack"); p.Node == "a" {
				t.Fatalf("after the deadline the job is still on node a: %+v", p.Reason)
			}
			w.settle()
			w.on(t, "pack", "b")
		}},
		{"a failed attempt is counted before the job moves", func(t *testing.T, w *world) {
			w.exits("pack", 1)
			w.settle()
			w.on(t, "pack", "b")
			if p := w.get("pack"); p.Retry.Attempts != 1 {
				t.Errorf("the job has %d failed attempts, want 1", p.Retry.Attempts)
			}
		}},
		{"deadline 0 moves the job at once", func(t *testing.T, w *world) {
			w.drainBy("a", 0)
			w.settle()
			w.on(t, "pack", "b")
		}},
		{"a drain command without a deadline keeps the deadline that the drain has", func(t *testing.T, w *world) {
			w.drain("a", true)
			w.settle()
			w.held(t, "pack", "a", fsm.CodeAwaitEnd, "22:14:20Z")
		}},
		{"after another deadline was set, the reason has the new deadline at once", func(t *testing.T, w *world) {
			w.drainBy("a", 90)
			w.step()
			w.held(t, "pack", "a", fsm.CodeAwaitEnd, "22:14:50Z")
		}},
		{"the end of the drain clears the reason and the deadline", func(t *testing.T, w *world) {
			w.drain("a", false)
			w.settle()
			w.on(t, "pack", "a")
			if p := w.get("pack"); p.Reason.Code != "" {
				t.Errorf("after the drain has ended, the reason of the job is %+v, want none", p.Reason)
			}
			w.drain("a", true)
			w.settle()
			w.on(t, "pack", "b")
		}},
		{"a NoExecute taint moves a job although its deadline has not passed", func(t *testing.T, w *world) {
			w.taint("a", noExecute(0))
			w.settle()
			w.on(t, "pack", "b")
		}},
		{"a job whose specification was changed starts on another node", func(t *testing.T, w *world) {
			w.apply("pack", job(demand(func(d *commandv1.Demand) { d.CpuMillicores = 250 })))
			w.settle()
			w.on(t, "pack", "b")
		}},
		{"the plan of a drain and of an apply say until when the job may stay", func(t *testing.T, w *world) {
			const until = testStart + 60*second
			w.drain("a", false)
			moves := PlanDrain(w.state, "a", false, until, w.tuning)
			if len(moves) != 1 || moves[0].To != "a" || moves[0].StaysUntil != until || !strings.Contains(moves[0].Message, "22:14:20Z") {
				t.Errorf("the plan of a drain is %+v, want that pack stays until the deadline", moves)
			}
			if moves = PlanDrain(w.state, "a", false, 0, w.tuning); len(moves) != 1 || moves[0].To != "b" {
				t.Errorf("the plan of a drain without a deadline is %+v, want that pack moves to b", moves)
			}
			w.drainBy("a", 60)
			if m := PlanPlace(w.state, []*fsm.Workload{w.get("pack")}, w.tuning)[0]; m.To != "a" || !strings.Contains(m.Message, "22:14:20Z") {
				t.Errorf("the plan of an apply is %+v, want that pack stays until the deadline", m)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("pack", job())
			w.apply("web")
			w.settle()
			w.node("b")
			w.drainBy("a", 60)
			w.settle()
			c.run(t, w)
			if err := w.state.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestADrainLetsTheJobOfASystemWorkloadEnd: a system workload runs a job on every node. On the draining node,
// its member leaves last, and only when the job has ended or the deadline of the drain has passed.
func TestADrainLetsTheJobOfASystemWorkloadEnd(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.node("b")
	w.apply("clean", job(), system)
	w.has("clean", "clean-a@a clean-b@b")
	w.drainBy("a", 60)
	w.drainBy("b", 60)
	w.has("clean", "clean-a@a clean-b@b")
	w.held(t, "clean-a", "a", fsm.CodeAwaitEnd, "may end there until")
	w.exits("clean-b", 0)
	w.now = testStart + 45*second // settle advances the clock by less than the 10 s of a lease
	w.has("clean", "clean-a@a clean-b@")
	w.now = testStart + 60*second
	w.has("clean", "clean-b@")
	if m := w.get("clean-b"); !m.Finished() || !m.Result.Succeeded {
		t.Errorf("the member that ended before the deadline has result %+v, want success", m.Result)
	}
}

// TestADrainMovesAJobThatHasNotStarted: a draining node refuses new workloads, so a job whose order it has not accepted
// moves at once.
func TestADrainMovesAJobThatHasNotStarted(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("pack", job())
	w.step()
	if p := w.get("pack"); p.Node != "a" || p.Acknowledged {
		t.Fatalf("the job is on %q, acknowledged %t, want it ordered on a and not acknowledged", p.Node, p.Acknowledged)
	}
	w.node("b")
	w.drainBy("a", 60)
	w.step()
	if p := w.get("pack"); p.Node == "a" {
		t.Fatalf("the job must leave the draining node at once, because it has not started, but waits there with reason %+v", p.Reason)
	}
	w.settle()
	w.on(t, "pack", "b")
}

// TestADrainKeepsAMemberThatStartsMeanwhile: a draining node has not accepted the order of a member, the job
// of a system workload, so the planner proposes to delete the member. Before the proposal is applied, the
// node accepts the order. The deletion must be skipped.
func TestADrainKeepsAMemberThatStartsMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("clean", job(), system)
	for m, ok := w.state.Workload("clean-a"); !ok || m.Node == ""; m, ok = w.state.Workload("clean-a") {
		w.step()
	}
	w.drainBy("a", 60)
	planned := w.plan().Commands
	if len(planned) != 1 || !planned[0].GetPlaceMembers().GetChanges()[0].GetDelete() {
		t.Fatalf("the planner proposes %v, want to delete the member", planned)
	}
	w.say("clean-a", "Running")
	if r := w.try(planned[0]); r.Skipped != 1 || !strings.Contains(r.Reason, "may end there until") {
		t.Errorf("the deletion of the running member gives %+v, want that it is skipped with the deadline", r)
	}
	w.has("clean", "clean-a@a")
	w.held(t, "clean-a", "a", fsm.CodeAwaitEnd, "may end there until")
}
