package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func (w *world) network(name, cidr string, mtu uint32) {
	w.t.Helper()
	if r := w.try(&commandv1.Command{Body: &commandv1.Command_PutNetwork{PutNetwork: &commandv1.PutNetwork{Name: name, Cidr: cidr, Mtu: mtu}}}); r.Kind != fsm.OK {
		w.t.Fatalf("the network was refused: %s", r.Reason)
	}
}

func networked(address string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) {
		n.Networking = &commandv1.NodeNetworking{Address: address, Mtu: 1450}
	}
}

// TestNetworks: nodes a and b can take part in networks, node old cannot. Network back has addresses for one
// node only (one slice), and network wide needs a larger MTU than the nodes allow.
func TestNetworks(t *testing.T) {
	joins := func(names ...string) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) { d.Networks = names })
	}
	unplaced := func(t *testing.T, w *world, id string, words ...string) {
		t.Helper()
		x := w.get(id)
		for _, word := range words {
			if x.Node != "" || x.Reason.Code != fsm.CodeUnplaced || !strings.Contains(x.Reason.Message, word) {
				t.Errorf("workload %q is on node %q with reason %q, want it unplaced with a reason that contains %q", id, x.Node, x.Reason.Message, word)
			}
		}
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"members go only to nodes that can take part in networks", func(t *testing.T, w *world) {
			w.network("more", "10.60.0.0/20", 0)
			for _, id := range []string{"w1", "w2", "w3", "w4"} {
				w.apply(id, joins("more"))
			}
			w.settle()
			for _, id := range []string{"w1", "w2", "w3", "w4"} {
				if at := w.get(id).Node; at != "a" && at != "b" {
					t.Errorf("workload %q is on node %q, want node \"a\" or \"b\"", id, at)
				}
			}
		}},
		{"all members go to the only node with a slice", func(t *testing.T, w *world) {
			for _, id := range []string{"w1", "w2", "w3"} {
				w.apply(id, joins("back"))
				w.settle()
			}
			w.on(t, "w2", w.get("w1").Node)
			w.on(t, "w3", w.get("w1").Node)
		}},
		{"a member waits if the node with the only slice takes no workloads", func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.apply("w1", joins("back"))
			w.settle()
			w.on(t, "w1", "a")
			w.cordon("a", true)
			w.cordon("b", false)
			w.apply("w2", joins("back"))
			w.settle()
			unplaced(t, w, "w2", "1 no slice left in network back", "1 cannot take part in networks", "1 cordoned")
			var why []string
			for _, n := range Explain(w.state, w.get("w2"), w.tuning).Nodes {
				why = append(why, n.Node+": "+n.Filter+": "+n.Reason)
			}
			text := strings.Join(why, "\n")
			for _, word := range []string{"b: networks: networks: no slice left in network back", "old: networks: networks: the node cannot take part in networks: its agent does not support networks"} {
				if !strings.Contains(text, word) {
					t.Errorf("why says\n%s\nwant %q", text, word)
				}
			}
		}},
		{"if one slice is left, two members of one step do not go to two nodes", func(t *testing.T, w *world) {
			w.apply("w1", joins("back"))
			w.apply("w2", joins("back"))
			w.settle()
			w.on(t, "w2", w.get("w1").Node)
		}},
		{"a workload moves if a new specification adds a network of which its node gets no slice", func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.apply("w1", joins("back"))
			w.settle()
			w.cordon("b", false)
			w.cordon("a", true)
			w.apply("w2")
			w.cordon("old", true)
			w.settle()
			w.on(t, "w2", "b")
			w.cordon("a", false)
			w.apply("w2", joins("back"), func(p *commandv1.WorkloadPut) { p.Content = "c1:changed" })
			w.settle()
			w.on(t, "w2", "a")
		}},
		{"a workload waits if the MTU of its network is larger than the nodes allow", func(t *testing.T, w *world) {
			w.apply("w1", joins("wide"))
			w.settle()
			unplaced(t, w, "w1", "2 MTU of network wide")
		}},
		{"a slice is taken back after a day without member, and a waiting workload is then placed", func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.apply("w1", joins("back"))
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "w1"}}})
			w.settle()
			n, _ := w.state.Network("", "back")
			if s, has := n.SliceOf("a"); !has || s.EmptySince == 0 {
				t.Fatalf("after the delete the slice of node \"a\" is %+v (found: %t), want a slice without members", s, has)
			}
			if at := w.plain().WakeAt; at == 0 || at > n.Slices[0].EmptySince+fsm.SliceIdle {
				t.Errorf("the planner wants its next step at %d ns, want it within a day after %d ns, when the slice became empty", at, n.Slices[0].EmptySince)
			}
			w.now += fsm.SliceIdle
			w.settle()
			n, _ = w.state.Network("", "back")
			if _, has := n.SliceOf("a"); has {
				t.Error("after a day without members the slice of node \"a\" must be taken back, but is not")
			}
			w.cordon("a", true)
			w.cordon("b", false)
			w.apply("w2", joins("back"))
			w.settle()
			unplaced(t, w, "w2", "no slice left in network back")
			if at := w.plan().WakeAt; at == 0 || at > n.Slices[0].FreeAt {
				t.Errorf("the planner wants its next step at %d ns, want it at %d ns or earlier, when the slice may be given to a node again", at, n.Slices[0].FreeAt)
			}
			w.now = n.Slices[0].FreeAt // nothing else happens until then
			w.settle()
			w.on(t, "w2", "b")
		}},
		{"a slice that becomes free goes to a node that answers at ports in mode ingress", func(t *testing.T, w *world) {
			for id, address := range map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"} {
				w.node(id, networked(address), func(n *commandv1.RegisterNode) { n.Networking.Ingress = true })
			}
			w.apply("w1", joins("back"), demand(func(d *commandv1.Demand) {
				d.Ingress = []*commandv1.IngressPort{{Port: 80, Protocol: "tcp", Target: 80}}
			}))
			w.settle()
			w.desire("w1", "Stopped") // it is not placed again
			w.settle()
			owner := func() string {
				n, _ := w.state.Network("", "back")
				return n.Slices[0].Node
			}
			if owner() != "a" {
				t.Fatalf("the only slice belongs to node %q, want node \"a\"", owner())
			}
			w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "a", Force: true}}})
			w.settle()
			n, _ := w.state.Network("", "back")
			if at := w.plan().WakeAt; owner() != "" || at == 0 || at > n.Slices[0].FreeAt {
				t.Errorf("the only slice belongs to node %q, and the planner wants its next step at %d ns; want no node, and a step at %d ns or earlier", owner(), at, n.Slices[0].FreeAt)
			}
			w.now = n.Slices[0].FreeAt
			w.settle()
			if owner() != "b" {
				t.Errorf("the only slice belongs to node %q, want node \"b\"", owner())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a", networked("10.0.0.1"))
			w.node("b", networked("10.0.0.2"))
			w.node("old")
			w.network("back", "10.50.0.0/26", 0)
			w.network("wide", "10.51.0.0/26", 8950)
			c.run(t, w)
		})
	}
}
