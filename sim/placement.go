package sim

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// With the fault Placement, workloads have required rules, and the namespace has a node pool that users change:
//
//   - The members of group g are kept on different nodes (anti_affinity), or spread over the zones with a
//     difference of at most 1, as the seed decides.
//   - w0 must run in the zone of w1 (affinity).
//   - w2 must not run on the node of w1 (anti_affinity).
//
// Other workloads have no rules.

// spreads reports whether the members of group g are spread over zones in this run.
func (w *world) spreads() bool { return w.cfg.Seed%2 == 0 }

// addRules adds the rules of a workload to its demand.
func (w *world) addRules(id, group string, d *commandv1.Demand) {
	p := &commandv1.Placement{}
	switch {
	case group == "g" && w.spreads():
		p.Spread = []*commandv1.Spread{{By: "zone", MaxSkew: 1, Must: true}}
	case group == "g":
		p.Affinities = []*commandv1.Affinity{{Anti: true, Group: "g", By: fsm.ByHost, Must: true}}
	case id == "w0":
		p.Affinities = []*commandv1.Affinity{{Workload: "w1", By: "zone", Must: true}}
	case id == "w2":
		p.Affinities = []*commandv1.Affinity{{Anti: true, Workload: "w1", By: fsm.ByHost, Must: true}}
	default:
		return
	}
	d.Constraints, d.Placement = nil, p
}

// setPool makes a user limit the namespace to the nodes of a zone; "" allows all nodes.
func (w *world) setPool(zone string) {
	b := &commandv1.PutNamespace{Name: fsm.DefaultNamespace}
	if zone != "" {
		b.NodeLabels = []*commandv1.Label{{Key: "zone", Value: zone}}
	}
	w.ask("set the pool of the namespace to zone "+zone, func(c *commandv1.Command) {
		c.Body = &commandv1.Command_PutNamespace{PutNamespace: b}
	}, nil).must = true
}

// checkRules checks that each assignment of a planning step satisfies the required rules of its workload, and the
// node pool, in the state from which the step was planned and with the assignments before it.
func (w *world) checkRules(s fsm.View, step sched.Step) {
	moved := map[string]string{} // node of each workload that this step has assigned
	nodeOf := func(id string) string {
		if n, ok := moved[id]; ok {
			return n
		}
		if x, ok := s.Workload(id); ok {
			return x.Node
		}
		return ""
	}
	zoneOf := func(node string) string {
		n, ok := s.Node(node)
		if !ok {
			return ""
		}
		zone, _ := n.Label("zone")
		return zone
	}
	for _, c := range step.Commands {
		for _, a := range c.GetAssign().GetAssignments() {
			id, node := a.GetWorkload(), a.GetNode()
			x, ok := s.Workload(id)
			n, known := s.Node(node)
			if !ok || !known {
				continue
			}
			pool, _ := s.Namespace(fsm.DefaultNamespace)
			if missing, misses := n.MissesLabel(pool.NodeLabels); misses {
				w.violate("pool", id, node, "the workload is assigned to a node without the label %s=%s of the namespace's pool", missing.Key, missing.Value)
			}
			if p := x.Demand.Placement; p != nil {
				w.checkOne(s, x, node, nodeOf, zoneOf)
			}
			moved[id] = node
		}
	}
}

// checkOne checks that the assignment of one workload to a node satisfies the placement rules of
// the workload.
func (w *world) checkOne(s fsm.View, x *fsm.Workload, node string, nodeOf, zoneOf func(string) string) {
	switch {
	case x.ID == "w0":
		if at := nodeOf("w1"); at == "" || zoneOf(at) != zoneOf(node) {
			w.violate("affinity", x.ID, node, "the workload must be in the zone of w1, which is on node %q in zone %q", at, zoneOf(at))
		}
	case x.ID == "w2":
		if nodeOf("w1") == node {
			w.violate("anti-affinity", x.ID, node, "the workload must not be on the node of w1")
		}
	case x.Demand.Group != "g":
	case w.spreads():
		open := map[string]bool{} // zones with a node that may take members
		pool, _ := s.Namespace(fsm.DefaultNamespace)
		s.Nodes("", func(n *fsm.Node) bool {
			if _, misses := n.MissesLabel(pool.NodeLabels); n.Schedulable() && !misses {
				zone, _ := n.Label("zone")
				open[zone] = true
			}
			return true
		})
		all := map[string]int{}
		s.Group("g", func(y *fsm.Workload) bool {
			if at := nodeOf(y.ID); at != "" && y.ID != x.ID {
				all[zoneOf(at)]++
			}
			return true
		})
		low := all[zoneOf(node)]
		for zone := range open {
			low = min(low, all[zone])
		}
		if n := all[zoneOf(node)] + 1; n > low+1 {
			w.violate("spread", x.ID, node, "zone %s has %d members then, and another zone has %d; the difference may be 1", zoneOf(node), n, low)
		}
	default:
		s.Group("g", func(y *fsm.Workload) bool {
			if y.ID != x.ID && nodeOf(y.ID) == node {
				w.violate("anti-affinity", x.ID, node, "member %s of its group is on the same node", y.ID)
			}
			return true
		})
	}
}

// assignsAnywhere imitates a planner that ignores placement rules: it changes the assignments of a
// planning step so that they name the nodes that are up, in turn.
func assignsAnywhere(view fsm.View, commands []fsm.Command) {
	var up []string
	view.Nodes("", func(n *fsm.Node) bool {
		if n.Schedulable() {
			up = append(up, n.ID)
		}
		return true
	})
	i := 0
	for _, c := range commands {
		for _, a := range c.GetAssign().GetAssignments() {
			a.Node = up[(i+int(a.GetIfGeneration().GetSequence()))%len(up)]
			i++
		}
	}
}
