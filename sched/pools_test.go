package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// pool sets the labels that a namespace requires of its nodes.
func (w *world) pool(name string, labels ...string) {
	w.t.Helper()
	b := &commandv1.PutNamespace{Name: name}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		b.NodeLabels = append(b.NodeLabels, &commandv1.Label{Key: key, Value: value})
	}
	if r := w.try(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: b}}); r.Kind != fsm.OK && r.Kind != fsm.AlreadyDone {
		w.t.Fatalf("the namespace was refused: %s", r.Reason)
	}
}

// TestNodePools: workloads of a namespace with a node pool are placed only on nodes of that pool.
// Namespace shop requires the label pool=shop, which node b has and node a has not.
func TestNodePools(t *testing.T) {
	in := func(p *commandv1.WorkloadPut) { p.Namespace = "shop" }
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"workloads of the namespace go to the pool only", func(t *testing.T, w *world) {
			for _, id := range []string{"w1", "w2", "w3"} {
				w.apply(id, in)
			}
			w.settle()
			for _, id := range []string{"w1", "w2", "w3"} {
				w.on(t, id, "b")
			}
		}},
		{"other namespaces may use the nodes of the pool", func(t *testing.T, w *world) {
			w.cordon("a", true)
			w.apply("other")
			w.settle()
			w.on(t, "other", "b")
		}},
		{"the constraints of the workload hold too", func(t *testing.T, w *world) {
			w.node("c")
			w.label("c", "pool", "shop")
			w.label("c", "disk", "ssd")
			w.apply("w1", in, demand(func(d *commandv1.Demand) {
				d.Constraints = []*commandv1.Constraint{{Key: "disk", Op: "=", Values: []string{"ssd"}}}
			}))
			w.settle()
			w.on(t, "w1", "c")
		}},
		{"a workload that names a node outside of the pool waits", func(t *testing.T, w *world) {
			w.apply("w1", in, demand(func(d *commandv1.Demand) {
				d.Constraints = []*commandv1.Constraint{{Key: fsm.NodeIDLabel, Op: "=", Values: []string{"a"}}}
			}))
			w.settle()
			if x := w.get("w1"); x.Node != "" || !strings.Contains(x.Reason.Message, "label pool=shop for namespace shop") {
				t.Errorf("workload w1 is on node %q with reason %q, want it unplaced with a reason that names the namespace and the label", x.Node, x.Reason.Message)
			}
		}},
		{"two labels must both match", func(t *testing.T, w *world) {
			w.pool("shop", "pool=shop", "zone=x")
			w.apply("w1", in)
			w.settle()
			if at := w.get("w1").Node; at != "" {
				t.Errorf("workload w1 is on node %q, want it unplaced", at)
			}
			w.label("b", "zone", "x")
			w.settle()
			w.on(t, "w1", "b")
		}},
		{"a workload moves when the namespace gets another pool, if that pool has room", func(t *testing.T, w *world) {
			w.apply("w1", in)
			w.settle()
			w.pool("shop", "pool=new")
			w.settle()
			w.held(t, "w1", "b", fsm.CodeCannotMove, "namespace: shop requires nodes with pool=new, the node has pool=shop", "runs on unchanged")
			w.label("a", "pool", "new")
			w.settle()
			w.on(t, "w1", "a")
		}},
		{"a workload moves when its node loses the label", func(t *testing.T, w *world) {
			w.apply("w1", in)
			w.settle()
			w.label("a", "pool", "shop")
			w.label("b", "pool", "bank")
			w.settle()
			w.on(t, "w1", "a")
		}},
		{"local data binds to a node outside of the pool", func(t *testing.T, w *world) {
			w.apply("db", in, withData)
			w.settle()
			w.label("a", "pool", "new")
			w.pool("shop", "pool=new")
			w.settle()
			w.held(t, "db", "b", fsm.CodeHoldsData, "pool=new", "--discard-data")
		}},
		{"a namespace without a pool uses every node again", func(t *testing.T, w *world) {
			w.label("b", "pool", "bank")
			w.apply("w1", in)
			w.settle()
			if at := w.get("w1").Node; at != "" {
				t.Errorf("workload w1 is on node %q, want it unplaced", at)
			}
			w.pool("shop")
			w.settle()
			if w.get("w1").Node == "" {
				t.Errorf("workload w1 must be placed, but is not; its reason is %s", w.get("w1").Reason.Message)
			}
		}},
		{"the members of a system workload stay when the pool has no node", func(t *testing.T, w *world) {
			w.apply("sys", in, system)
			w.has("sys", "sys-b@b")
			w.say("sys-b", "Running")
			w.pool("shop", "pool=shpo")
			w.settle()
			w.has("sys", "sys-b@b")
			w.label("a", "pool", "shpo")
			w.pass(emptyPoolAgain + second)
			w.has("sys", "sys-a@a")
		}},
		{"a member of a system workload with local data stays when its node leaves the pool", func(t *testing.T, w *world) {
			w.apply("sys", in, system, withData)
			w.has("sys", "sys-b@b")
			w.say("sys-b", "Running")
			w.label("b", "pool", "bank")
			w.has("sys", "sys-b@b")
		}},
		{"a system workload has members in the pool only", func(t *testing.T, w *world) {
			w.apply("sys", in, system)
			w.has("sys", "sys-b@b")
			w.label("a", "pool", "shop")
			w.label("b", "pool", "bank")
			w.has("sys", "sys-a@a")
			w.pool("shop")
			w.has("sys", "sys-a@a sys-b@b")
		}},
		{"why names the namespace, the label and the commands", func(t *testing.T, w *world) {
			w.apply("w1", in)
			w.settle()
			for _, v := range Explain(w.state, w.get("w1"), w.tuning).Nodes {
				if v.Node == "a" && (v.Filter != "namespace" || v.Reason != "namespace: shop requires nodes with pool=shop, the node has no label pool; "+
					"an admin may set the label of the node (persysctl node label), or node_labels of the namespace (persysctl namespace set shop --nodes)") {
					t.Errorf("persysctl why rejects node \"a\" by filter %q with reason %q, want filter namespace, and a reason that names the label and the commands", v.Filter, v.Reason)
				}
			}
		}},
		{"a plan keeps to the pool", func(t *testing.T, w *world) {
			w.apply("w1", in)
			w.apply("w2", in)
			moves := PlanPlace(w.state, []*fsm.Workload{w.get("w1"), w.get("w2")}, w.tuning)
			if moves[0].To != "b" || moves[1].To != "b" {
				t.Errorf("the plan of the apply is %+v, want both workloads on node \"b\"", moves)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.node("b")
			w.label("b", "pool", "shop")
			w.pool("shop", "pool=shop")
			c.run(t, w)
		})
	}
}
