package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func (w *world) taint(id string, t *commandv1.Taint) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: &commandv1.TaintNode{
		Id: id, Taints: []*commandv1.NodeTaint{{Taint: t, Removed: t.GetEffect() == ""}},
	}}})
}

func (w *world) label(id, key, value string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_LabelNode{LabelNode: &commandv1.LabelNode{
		Id: id, Labels: []*commandv1.NodeLabel{{Key: key, Value: value}},
	}}})
}

func noExecute(seconds uint32) *commandv1.Taint {
	return &commandv1.Taint{Key: "repair", Effect: fsm.TaintNoExecute, Seconds: seconds}
}

func tolerates(key string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Tolerations = []*commandv1.Taint{{Key: key}} })
}

// TestTaintsOfPeople: a person taints or labels node a. Each case says what must then happen to the workloads
// on a, and to new ones.
func TestTaintsOfPeople(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"NoSchedule keeps new workloads away and moves no running ones", func(t *testing.T, w *world) {
			w.taint("a", &commandv1.Taint{Key: "repair", Value: "disk", Effect: fsm.TaintNoSchedule})
			w.apply("new")
			w.settle()
			w.on(t, "web", "a")
			if x := w.get("new"); x.Node != "" || !strings.Contains(x.Reason.Message, "1 taint repair=disk") {
				t.Errorf("workload new is on node %q with reason %s, want it unplaced because of taint repair=disk", x.Node, x.Reason.Message)
			}
			w.taint("a", &commandv1.Taint{Key: "repair"})
			w.settle()
			w.on(t, "new", "a")
		}},
		{"a workload leaves after the seconds of a NoExecute taint, not before", func(t *testing.T, w *world) {
			w.node("b")
			w.taint("a", noExecute(30))
			set := w.now
			for w.now < set+30*second {
				w.step()
				w.on(t, "web", "a")
				at := w.plan().WakeAt
				if at <= w.now || at > set+30*second {
					t.Fatalf("the planner must ask for a step within 30 s after the taint was set, but asks for one %d ms after it", (at-set)/millisecond)
				}
				w.now = at
			}
			w.settle()
			w.on(t, "web", "b")
		}},
		{"the reason of the move names the taint", func(t *testing.T, w *world) {
			w.node("b")
			w.taint("a", noExecute(0))
			w.step()
			if x := w.get("web"); x.Reason.Code != fsm.CodeTainted || x.Reason.Message != "taint repair:NoExecute of node a is not tolerated" {
				t.Errorf("the reason of the move is %+v, want Tainted, with the taint that is not tolerated", x.Reason)
			}
		}},
		{"a workload that tolerates the taint stays", func(t *testing.T, w *world) {
			w.apply("web", tolerates("repair"))
			w.settle()
			w.node("b")
			w.taint("a", noExecute(0))
			w.settle()
			w.on(t, "web", "a")
		}},
		{"a taint that is removed before its seconds end moves no workload", func(t *testing.T, w *world) {
			w.node("b")
			w.taint("a", noExecute(30))
			w.step()
			w.taint("a", &commandv1.Taint{Key: "repair"})
			w.now += 60 * second
			w.settle()
			w.on(t, "web", "a")
		}},
		{"if no other node has room, the workload keeps running, and the reason says so", func(t *testing.T, w *world) {
			w.taint("a", noExecute(0))
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "repair:NoExecute", "runs on unchanged", "1 taint repair")
			if w.get("web").Status != fsm.StatusRunning {
				t.Errorf("web has status %s, want Running", w.get("web").Status)
			}
			w.node("b")
			w.settle()
			w.on(t, "web", "b")
		}},
		{"local data binds the workload to the node", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.node("b")
			w.taint("a", noExecute(0))
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "repair:NoExecute", "only copy of volume data", "--discard-data")
			w.on(t, "web", "b")
			w.apply("db", withData, discarding)
			w.settle()
			w.on(t, "db", "b")
		}},
		{"an exclusive workload is stopped before it starts elsewhere", func(t *testing.T, w *world) {
			w.apply("one", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.node("b")
			w.taint("a", noExecute(0))
			for range 5 {
				w.step() // the agent of node a does not answer
			}
			if x := w.get("one"); x.Node != "" || x.Reason.Code != fsm.CodeAwaitStop {
				t.Errorf("the exclusive workload is on node %q with reason %+v, want it unplaced with the reason AwaitStop", x.Node, x.Reason)
			}
			w.answer()
			w.settle()
			w.on(t, "one", "b")
		}},
		{"a workload returns to its node when the taint is removed while it waits", func(t *testing.T, w *world) {
			w.node("b")
			w.taint("a", noExecute(0))
			w.step()
			w.taint("a", &commandv1.Taint{Key: "repair"})
			w.settle()
			w.on(t, "web", "a")
		}},
		{"a label set by a person moves workloads that no longer match", func(t *testing.T, w *world) {
			w.node("b", zone("y"))
			w.label("a", "zone", "x")
			w.apply("x", inZone("x"))
			w.settle()
			w.on(t, "x", "a")
			w.label("a", "zone", "z")
			w.label("b", "zone", "x")
			w.settle()
			w.on(t, "x", "b")
		}},
		{"a plan tells that a workload would leave because of the taint", func(t *testing.T, w *world) {
			w.node("b")
			w.taint("a", noExecute(0))
			m := PlanPlace(w.state, []*fsm.Workload{w.get("web")}, w.tuning)
			if m[0].To != "b" {
				t.Errorf("PlanPlace returned %+v, want a move to node b", m[0])
			}
			w.cordon("b", true)
			m = PlanPlace(w.state, []*fsm.Workload{w.get("web")}, w.tuning)
			if m[0].To != "a" || !strings.Contains(m[0].Message, "taint repair:NoExecute of node a is not tolerated") {
				t.Errorf("PlanPlace returned %+v, want that it stays on node a, because of the taint that is not tolerated", m[0])
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web")
			w.settle()
			w.on(t, "web", "a")
			c.run(t, w)
		})
	}
}

// TestTaintDuringAnUpdate: during a rolling update, a node gets a NoExecute taint. Members of the
// group must leave it only as long as at most max_parallel members are unavailable.
func TestTaintDuringAnUpdate(t *testing.T) {
	w := newGroupWorld(t, "web 3")
	for _, word := range []string{"update web 3 to 2 by 1", "step"} {
		w.play(word)
	}
	x := w.get("web-1")
	w.do(&commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: &commandv1.TaintNode{
		Id: x.Node, Taints: []*commandv1.NodeTaint{{Taint: noExecute(0)}},
	}}})
	_, r, _ := w.state.Apply(fsm.Meta{Index: w.index + 1, Term: 4}, &commandv1.Command{
		Head: &commandv1.Head{At: w.now, By: "leader", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 4}},
		Body: &commandv1.Command_Evict{Evict: &commandv1.Evict{Evictions: []*commandv1.Eviction{
			{Workload: x.ID, IfGeneration: fsm.GenerationPB(x.Generation), Code: fsm.CodeTainted},
		}}},
	})
	if r.Skipped != 1 || !strings.Contains(r.Reason, "update of its group") {
		t.Errorf("the eviction of workload %s must be skipped because of the update of its group, but returned %+v", x.ID, r)
	}
}
