package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func nodeLabels(pairs ...string) func(*commandv1.PutNamespace) {
	return func(b *commandv1.PutNamespace) {
		b.NodeLabels = nil
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			b.NodeLabels = append(b.NodeLabels, &commandv1.Label{Key: key, Value: value})
		}
	}
}

// TestNodePools: a namespace names labels, and its workloads are assigned only to nodes that carry all of them.
func TestNodePools(t *testing.T) {
	for _, c := range []struct {
		name    string
		pool    []string
		carries []string
		refused string // words of the refusal; "" if the assignment is accepted
	}{
		{"a namespace without labels may use every node", nil, nil, ""},
		{"a node that carries the label is used", []string{"pool=shop"}, []string{"pool=shop", "zone=a"}, ""},
		{"a node without the label is not used", []string{"pool=shop"}, []string{"zone=a"}, "pool=shop"},
		{"a node with another value of the label is not used", []string{"pool=shop"}, []string{"pool=bank"}, "pool=shop"},
		{"a node that carries only one of two labels is not used", []string{"zone=a", "pool=shop"}, []string{"pool=shop"}, "zone=a"},
		{"a node that carries both labels is used", []string{"zone=a", "pool=shop"}, []string{"zone=a", "pool=shop"}, ""},
		{"node.id with the id of the node is a label of the node", []string{"node.id=n"}, nil, ""},
		{"node.id with the id of another node is no label of the node", []string{"node.id=m"}, nil, "node.id=m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(register("n", func(n *commandv1.RegisterNode) {
				n.Labels = nil
				for _, l := range c.carries {
					key, value, _ := strings.Cut(l, "=")
					n.Labels = append(n.Labels, &commandv1.Label{Key: key, Value: value})
				}
			}))
			w.ok(putNamespace("a", nodeLabels(c.pool...)))
			w.ok(put("mine", inNamespace("a")))
			w.ok(put("other"))
			res := w.do(w.assign("mine", "n"))
			if c.refused == "" {
				is(t, `node of workload "mine"`, w.workload("mine").Node, "n")
			} else if res.Skipped != 1 || !strings.Contains(res.Reason, c.refused) || !strings.Contains(res.Reason, `namespace "a"`) {
				t.Errorf("%d items of the assignment were skipped with reason %q, want 1 item, and a reason with namespace \"a\" and label %q", res.Skipped, res.Reason, c.refused)
			}
			is(t, "number of skipped items for a workload of another namespace", w.do(w.assign("other", "n")).Skipped, 0)
		})
	}
}

// TestAdoptionInANodePool: a person adopts an orphan (an instance without a record) with a specification
// of some namespace. The node of the orphan must have the labels that this namespace demands, not those
// that the default namespace demands.
func TestAdoptionInANodePool(t *testing.T) {
	for _, c := range []struct {
		name    string
		set     func(w *world)
		refused bool
	}{
		{"a node outside of the pool of the namespace does not adopt", func(w *world) { w.ok(putNamespace("shop", nodeLabels("pool=shop"))) }, true},
		{"a node in the pool of the namespace adopts, even if it is outside of the pool of the default namespace", func(w *world) {
			w.ok(putNamespace("shop"))
			w.ok(putNamespace(DefaultNamespace, nodeLabels("pool=other")))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(register("b"))
			c.set(w)
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "ghost", DriftOrphan)}))
			res := w.do(adopt("b", "ghost", inNamespace("shop")))
			if c.refused {
				refused(t, res, NoCapacity, "pool=shop", `namespace "shop"`)
				return
			}
			is(t, "verdict on the command", res.Kind, OK)
			is(t, `node of workload "ghost"`, w.workload("ghost").Node, "b")
		})
	}
}

func nodePoolsScenario(w *world) {
	w.do(register("n"))
	w.do(putNamespace("a", nodeLabels("zone=x", "pool=shop")))
	w.do(putNamespace("a", nodeLabels("pool=shop", "zone=x")))
	w.do(putNamespace("b", nodeLabels("-=x")))
	w.do(put("web", inNamespace("a")))
	w.do(w.assign("web", "n"))
	w.do(register("n", func(n *commandv1.RegisterNode) {
		n.Labels = []*commandv1.Label{{Key: "pool", Value: "shop"}, {Key: "zone", Value: "x"}}
	}))
	w.do(w.assign("web", "n"))
	w.do(putNamespace("a"))
}

func TestNodePoolOfANamespaceIsChecked(t *testing.T) {
	w := formed(t)
	many := make([]string, 17)
	for i := range many {
		many[i] = "k" + decimal(i) + "=v"
	}
	refused(t, w.do(putNamespace("a", nodeLabels("-=x"))), Invalid, "node_labels.key")
	refused(t, w.do(putNamespace("a", nodeLabels("pool="+strings.Repeat("x", 256)))), Invalid, "node_labels.value", "256")
	refused(t, w.do(putNamespace("a", nodeLabels(many...))), Invalid, "node_labels: 17", "at most 16")
	w.ok(putNamespace("a", nodeLabels("zone=a", "pool=shop")))
	is(t, "node labels in the event NamespaceCreated", detail(w.eventOf(EventNamespaceCreated), "node_labels"), "pool=shop,zone=a")
	is(t, "verdict on a put of the same labels in another order", w.do(putNamespace("a", nodeLabels("pool=shop", "zone=a"))).Kind, AlreadyDone)
	w.ok(putNamespace("a", nodeLabels("pool=shop")))
	w.ok(putNamespace("a"))
	n, _ := w.s.Namespace("a")
	is(t, "number of node labels after a put without labels", len(n.NodeLabels), 0)
}
