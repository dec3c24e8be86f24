package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func cpu(millicores int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.CpuMillicores = millicores })
}

func inZone(zone string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Labels = []*commandv1.Label{{Key: "zone", Value: zone}} })
}

func zone(name string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: name}} }
}

func withData(p *commandv1.WorkloadPut) {
	p.Demand.LocalData = []*commandv1.LocalData{{Name: "volume data"}}
}

func discarding(p *commandv1.WorkloadPut) { p.DiscardData = true }

func (w *world) drainDiscarding(id string) {
	w.do(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: id, On: true, DiscardData: true}}})
}

// held checks that a workload which should leave a node still runs there, that its record has the reason
// code, and that the message of the reason contains the given words.
func (w *world) held(t *testing.T, id, node, code string, words ...string) {
	t.Helper()
	x := w.get(id)
	if x.Node != node || x.Reason.Code != code {
		t.Fatalf("workload %q is on node %q with reason %+v, want it held on node %q with reason code %s", id, x.Node, x.Reason, node, code)
	}
	for _, word := range words {
		if !strings.Contains(x.Reason.Message, word) {
			t.Errorf("reason of %s: %q lacks %q", id, x.Reason.Message, word)
		}
	}
}

func (w *world) on(t *testing.T, id, node string) {
	t.Helper()
	if x := w.get(id); x.Node != node || x.Status != fsm.StatusRunning || x.Reason.Code != "" {
		t.Fatalf("workload %q is %s on node %q with reason %+v, want it to run on node %q", id, x.Status, x.Node, x.Reason, node)
	}
}

// makesRoom runs workload high on node a and workload low, of lower priority, on node b. Then node a
// stops supporting the type of high, which must move to b, and low must be evicted from b to make room.
func (w *world) makesRoom(t *testing.T, high, low func(*commandv1.WorkloadPut)) {
	t.Helper()
	vm := demand(func(d *commandv1.Demand) { d.Type = "vm" })
	prio := demand(func(d *commandv1.Demand) { d.Priority = 2 })
	both := func(n *commandv1.RegisterNode) { n.Types = []string{"container", "vm"} }
	w.node("a", both)
	w.apply("high", high, vm, prio)
	w.settle()
	w.node("b", both)
	w.apply("low", low, demand(func(d *commandv1.Demand) {
		d.Constraints = []*commandv1.Constraint{{Key: "node.id", Op: "in", Values: []string{"b"}}}
	}))
	w.settle()
	w.on(t, "low", "b")
	w.node("a") // node a now offers only the type container
	w.settle()
	w.on(t, "high", "b")
	if x := w.get("low"); x.Node != "" || x.PreemptedBy != "high" {
		t.Errorf("workload low is on node %q and preempted by %q, want it preempted by high", x.Node, x.PreemptedBy)
	}
}

func TestWorkloadsLeaveANodeOrStay(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a drain without another node leaves the workload running", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			w.drain("a", true)
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "draining", "runs on unchanged", "0/1 nodes fit")
			if w.get("web").Status != fsm.StatusRunning {
				t.Errorf("web has status %s, want Running", w.get("web").Status)
			}
			w.node("b")
			w.settle()
			w.on(t, "web", "b")
		}},
		{"the room made for a workload that has grown stays reserved for it", func(t *testing.T, w *world) {
			prio := func(n int32) func(*commandv1.WorkloadPut) {
				return demand(func(d *commandv1.Demand) { d.Priority = n })
			}
			w.apply("top", cpu(2000), prio(9))
			w.apply("high", cpu(2000), prio(2))
			w.settle()
			w.node("b")
			w.apply("low", cpu(3000), prio(1))
			w.settle()
			w.on(t, "low", "b")
			w.apply("high", cpu(3000), prio(2))
			w.settle()
			w.on(t, "high", "b")
			if x := w.get("low"); x.Node != "" || x.PreemptedBy != "high" {
				t.Errorf("workload low is on node %q and preempted by %q, want it on no node and preempted by high", x.Node, x.PreemptedBy)
			}
		}},
		{"the room made for a workload stays reserved for it, with one command per step", func(t *testing.T, w *world) {
			w.tuning.MaxCommands = 1
			w.makesRoom(t, cpu(3000), cpu(3000))
		}},
		{"the host port of a preempted workload stays reserved for the preemptor, with one command per step", func(t *testing.T, w *world) {
			w.tuning.MaxCommands = 1
			w.makesRoom(t, demand(port(81, "tcp")), demand(port(81, "tcp")))
		}},
		{"a held workload keeps its reason while its order waits for a host port", func(t *testing.T, w *world) {
			w.apply("old", demand(port(80, "tcp")))
			w.apply("new", withData)
			w.settle()
			w.node("b", zone("b"))
			w.apply("old", inZone("b"))
			for w.step() { // workload old has to leave, but the agent has not stopped it yet
			}
			w.apply("new", demand(port(80, "tcp")), withData)
			w.drain("a", true)
			for range 10 {
				w.step()
			}
			if w.step() {
				t.Errorf("the planner must record the reason of workload new once, but proposes it in every step: %+v", w.get("new").Reason)
			}
			w.held(t, "new", "a", fsm.CodeHoldsData, "draining")
		}},
		{"a drain moves as many workloads as the other nodes have room for", func(t *testing.T, w *world) {
			for _, id := range []string{"x", "y", "z"} {
				w.apply(id, cpu(1000))
			}
			w.settle()
			w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2000 })
			w.drain("a", true)
			w.settle()
			on := map[string]int{}
			for _, id := range []string{"x", "y", "z"} {
				if w.get(id).Status != fsm.StatusRunning {
					t.Errorf("workload %s is %s, want Running", id, w.get(id).Status)
				}
				on[w.get(id).Node]++
			}
			if on["a"] != 1 || on["b"] != 2 {
				t.Errorf("the numbers of workloads by node are %v, want 1 on node \"a\" and 2 on node \"b\"", on)
			}
		}},
		{"room for workloads that wait until they are stopped is not given to others in later steps", func(t *testing.T, w *world) {
			w.apply("x", cpu(1000))
			w.apply("y", cpu(1000))
			w.settle()
			w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 1000 })
			w.drain("a", true)
			for range 5 {
				w.step() // the agent of node a does not answer
			}
			left := 0
			for _, id := range []string{"x", "y"} {
				if w.get(id).Node == "" {
					left++
				}
			}
			if left != 1 {
				t.Errorf("%d workloads left the node, want 1, because the other node has room for one", left)
			}
		}},
		{"the reason is cleared when the drain ends", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			w.drain("a", true)
			w.settle()
			w.drain("a", false)
			w.settle()
			w.on(t, "web", "a")
		}},
		{"a stopped workload without data leaves a draining node", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			w.apply("web", func(p *commandv1.WorkloadPut) { p.Desired = "Stopped" })
			w.settle()
			w.drain("a", true)
			w.settle()
			if x := w.get("web"); x.Node != "" || x.Status != fsm.StatusStopped {
				t.Errorf("the stopped workload has status %s on node %q, want it Stopped and on no node", x.Status, x.Node)
			}
		}},
		{"a stopped workload with data stays on a draining node", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.apply("db", withData, func(p *commandv1.WorkloadPut) { p.Desired = "Stopped" })
			w.settle()
			w.node("b")
			w.drain("a", true)
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData)
		}},
		{"a drain leaves a workload with data, and the reason names the command to move it", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.node("b")
			w.drain("a", true)
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "volume data", "persysctl drain a --discard-data")
			w.drainDiscarding("a")
			w.settle()
			w.on(t, "db", "b")
		}},
		{"a drain that discards data leaves the workload running without another node", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.drainDiscarding("a")
			w.settle()
			w.held(t, "db", "a", fsm.CodeCannotMove, "0/1 nodes fit")
		}},
		{"constraints that no node satisfies leave the workload running", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			before := w.get("web").Actual.Generation
			w.apply("web", inZone("nowhere"))
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "needs zone=nowhere", "runs on unchanged")
			x := w.get("web")
			if x.Status != fsm.StatusUpdating || x.Acknowledged || x.Actual.Generation != before {
				t.Errorf("workload web is %s, its order is acknowledged: %t, and it runs generation %s; want it Updating with an order that is not acknowledged, and its former generation running", x.Status, x.Acknowledged, x.Actual.Generation)
			}
			w.apply("web")
			w.settle()
			w.on(t, "web", "a")
		}},
		{"constraints that another node satisfies move the workload", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			w.node("b", zone("x"))
			w.apply("web", inZone("x"))
			w.settle()
			w.on(t, "web", "b")
		}},
		{"constraints do not move a workload with data", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.node("b", zone("x"))
			w.apply("db", withData, inZone("x"))
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "volume data", "persysctl apply --discard-data")
			w.apply("db", withData, inZone("x"), discarding)
			w.settle()
			w.on(t, "db", "b")
		}},
		{"a label that a node loses stops no workload with data on the node, even if another node has the label", func(t *testing.T, w *world) {
			w.label("a", "zone", "x")
			w.apply("db", withData, inZone("x"))
			w.settle()
			before := w.get("db")
			w.label("a", "zone", "y")
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "zone=x", "volume data")
			w.node("b", zone("x"))
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "zone=x", "volume data")
			after := w.get("db")
			residuals := w.state.Alloc("a").Residuals
			if after.Generation != before.Generation || !after.Acknowledged || after.Actual.State != fsm.ActualRunning || residuals != 0 {
				t.Errorf("node \"a\" must get no order, but the generation was %s and is %s, the order is acknowledged: %t, the state is %s, and the node has %d instances to remove",
					before.Generation, after.Generation, after.Acknowledged, after.Actual.State, residuals)
			}
			w.label("a", "zone", "x")
			w.settle()
			w.on(t, "db", "a")
		}},
		{"a demand that no node has room for leaves the workload running", func(t *testing.T, w *world) {
			w.apply("web")
			w.settle()
			w.apply("web", cpu(5000))
			w.settle()
			w.held(t, "web", "a", fsm.CodeCannotMove, "too little CPU", "runs on unchanged")
			if w.get("web").Acknowledged {
				t.Error("the planner must hold an order whose demand fits on no node, but gave it")
			}
			w.apply("web", cpu(4000))
			w.settle()
			w.on(t, "web", "a")
		}},
		{"a demand that only another node has room for does not move a workload with data", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.settle()
			w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 8000 })
			w.apply("db", withData, cpu(5000))
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "too little CPU", "volume data")
		}},
		{"a workload with data stays bound to its lost node until the node returns", func(t *testing.T, w *world) {
			w.apply("db", withData)
			w.apply("web")
			w.settle()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			w.on(t, "web", "b")
			w.held(t, "db", "a", fsm.CodeHoldsData, "persysctl node fence a --discard-data")
			w.heard["a"] = true
			w.settle()
			w.on(t, "db", "a")
		}},
		{"a fence alone does not move a workload with data", func(t *testing.T, w *world) {
			w.apply("db", withData, demand(func(d *commandv1.Demand) { d.Exclusive = true }))
			w.settle()
			w.node("b")
			w.heard["a"] = false
			w.settle()
			fence := &commandv1.FenceNode{Id: "a"}
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: fence}})
			w.settle()
			w.held(t, "db", "a", fsm.CodeHoldsData, "is fenced", "volume data")
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a", DiscardData: true}}})
			w.settle()
			w.on(t, "db", "b")
		}},
		{"a workload of higher priority leaves a draining node once others were preempted", func(t *testing.T, w *world) {
			w.apply("high", cpu(3000), demand(func(d *commandv1.Demand) { d.Priority = 5 }))
			w.settle()
			w.node("b")
			w.apply("low", cpu(3000))
			w.settle()
			w.on(t, "low", "b")
			w.drain("a", true)
			w.step()
			if w.get("high").Status != fsm.StatusRunning {
				t.Error("workload high must run until another node has room for it, but was stopped")
			}
			w.answer()
			w.settle()
			w.on(t, "high", "b")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			c.run(t, w)
			if err := w.state.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
