package sched

import (
	"slices"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func labels(kv ...string) []*commandv1.Label {
	var out []*commandv1.Label
	for i := 0; i < len(kv); i += 2 {
		out = append(out, &commandv1.Label{Key: kv[i], Value: kv[i+1]})
	}
	return out
}

// TestFilters puts one node before one workload. An empty reason means that the
// node fits.
func TestFilters(t *testing.T) {
	type nodeSet = func(*commandv1.RegisterNode)
	type demandSet = func(*commandv1.Demand)
	constraint := func(key, op string, values ...string) demandSet {
		return func(d *commandv1.Demand) {
			d.Constraints = []*commandv1.Constraint{{Key: key, Op: op, Values: values}}
		}
	}
	zone := func(n *commandv1.RegisterNode) { n.Labels = labels("zone", "x") }
	tainted := func(effect string) nodeSet {
		return func(n *commandv1.RegisterNode) {
			n.Taints = []*commandv1.Taint{{Key: "dedicated", Value: "gpu", Effect: effect}}
		}
	}
	tolerate := func(key, value, effect string) demandSet {
		return func(d *commandv1.Demand) {
			d.Tolerations = []*commandv1.Taint{{Key: key, Value: value, Effect: effect}}
		}
	}
	none := func(*commandv1.RegisterNode) {}
	for _, c := range []struct {
		name           string
		node           nodeSet
		demand         demandSet
		before         func(*world)
		filter, reason string
		summary        string
	}{
		{name: "an ordinary node fits", node: none, demand: func(*commandv1.Demand) {}},
		{name: "a lost node", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.heard["a"] = false; w.step() },
			filter: "readiness", reason: "the node is not ready: lease expired", summary: "0/1 nodes fit: 1 not ready"},
		{name: "a draining node", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.drain("a", true) },
			filter: "readiness", reason: "the node is draining", summary: "0/1 nodes fit: 1 draining"},
		{name: "a cordoned node", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.cordon("a", true) },
			filter: "readiness", reason: "the node is cordoned", summary: "0/1 nodes fit: 1 cordoned"},
		{name: "on_lost_lease=stop needs a fencer", node: none,
			demand: func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, fsm.OnLostLeaseStop }, filter: "fencer",
			reason:  "fencer: on_lost_lease is stop, and the node has no fencer that stops the workload when the lease ends (self_fencing)",
			summary: "0/1 nodes fit: 1 no fencer for on_lost_lease=stop"},
		{name: "a node with a fencer", node: func(n *commandv1.RegisterNode) { n.SelfFencing = true },
			demand: func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, fsm.OnLostLeaseStop }},
		{name: "a type that is not offered", node: none, demand: func(d *commandv1.Demand) { d.Type = "vm" },
			filter: "workload type", reason: "workload type: needs vm, the node offers compose, container", summary: "0/1 nodes fit: 1 type vm"},
		{name: "a legacy v1 peer offers compose", node: func(n *commandv1.RegisterNode) { n.Types = nil }, demand: func(d *commandv1.Demand) { d.Type = "compose" }},
		{name: "a legacy v1 peer offers no VM", node: func(n *commandv1.RegisterNode) { n.Types = nil }, demand: func(d *commandv1.Demand) { d.Type = "vm" },
			filter: "workload type", reason: "workload type: needs vm, the node offers container, compose", summary: "0/1 nodes fit: 1 type vm"},
		{name: "a storage driver that is there", node: func(n *commandv1.RegisterNode) { n.StorageDrivers = []string{"nfs"} }, demand: func(d *commandv1.Demand) { d.StorageDrivers = []string{"nfs"} }},
		{name: "a storage driver that is not", node: func(n *commandv1.RegisterNode) { n.StorageDrivers = []string{"local"} }, demand: func(d *commandv1.Demand) { d.StorageDrivers = []string{"nfs"} },
			filter: "storage driver", reason: "storage driver: needs nfs, the node offers local", summary: "0/1 nodes fit: 1 storage driver nfs"},
		{name: "a label with another value", node: zone, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "y") },
			filter: "labels", reason: "label: needs zone=y, the node has zone=x", summary: "0/1 nodes fit: 1 label zone=y"},
		{name: "a label that is missing", node: none, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "y") },
			filter: "labels", reason: "label: needs zone=y, the node has no label zone", summary: "0/1 nodes fit: 1 label zone=y"},
		{name: "a label that matches", node: zone, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "x") }},
		{name: "= holds", node: zone, demand: constraint("zone", "=", "x")},
		{name: "= fails", node: zone, demand: constraint("zone", "=", "y"),
			filter: "constraints", reason: "constraint: needs zone=y, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone=y"},
		{name: "= fails without the label", node: none, demand: constraint("zone", "=", "y"),
			filter: "constraints", reason: "constraint: needs zone=y, the node has no label zone", summary: "0/1 nodes fit: 1 constraint zone=y"},
		{name: "!= holds", node: zone, demand: constraint("zone", "!=", "y")},
		{name: "!= holds without the label", node: none, demand: constraint("zone", "!=", "y")},
		{name: "!= fails", node: zone, demand: constraint("zone", "!=", "x"),
			filter: "constraints", reason: "constraint: needs zone!=x, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone!=x"},
		{name: "in holds", node: zone, demand: constraint("zone", "in", "y", "x")},
		{name: "in fails", node: zone, demand: constraint("zone", "in", "y", "z"),
			filter: "constraints", reason: "constraint: needs zone in (y, z), the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone in (y, z)"},
		{name: "not-in holds", node: zone, demand: constraint("zone", "not-in", "y")},
		{name: "not-in fails", node: zone, demand: constraint("zone", "not-in", "x", "y"),
			filter: "constraints", reason: "constraint: needs zone not-in (x, y), the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone not-in (x, y)"},
		{name: "exists holds", node: zone, demand: constraint("zone", "exists")},
		{name: "exists fails", node: none, demand: constraint("zone", "exists"),
			filter: "constraints", reason: "constraint: needs zone exists, the node has no label zone", summary: "0/1 nodes fit: 1 constraint zone exists"},
		{name: "not-exists holds", node: none, demand: constraint("zone", "not-exists")},
		{name: "not-exists fails", node: zone, demand: constraint("zone", "not-exists"),
			filter: "constraints", reason: "constraint: needs zone not-exists, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone not-exists"},
		{name: "node.id holds", node: none, demand: constraint("node.id", "=", "a")},
		{name: "node.id fails", node: none, demand: constraint("node.id", "=", "b"),
			filter: "constraints", reason: "constraint: needs node.id=b, the node has node.id=a", summary: "0/1 nodes fit: 1 constraint node.id=b"},
		{name: "a taint repels", node: tainted("NoSchedule"), demand: func(*commandv1.Demand) {},
			filter: "taints", reason: "taint: dedicated=gpu:NoSchedule is not tolerated", summary: "0/1 nodes fit: 1 taint dedicated=gpu"},
		{name: "a soft taint does not", node: tainted("PreferNoSchedule"), demand: func(*commandv1.Demand) {}},
		{name: "a taint is tolerated", node: tainted("NoSchedule"), demand: tolerate("dedicated", "gpu", "NoSchedule")},
		{name: "a toleration of any value and effect", node: tainted("NoSchedule"), demand: tolerate("dedicated", "", "")},
		{name: "a toleration of another value", node: tainted("NoSchedule"), demand: tolerate("dedicated", "db", ""),
			filter: "taints", reason: "taint: dedicated=gpu:NoSchedule is not tolerated", summary: "0/1 nodes fit: 1 taint dedicated=gpu"},
		{name: "CPU to the last millicore", node: none, demand: func(d *commandv1.Demand) { d.CpuMillicores = 200 }, before: func(w *world) { w.fill(3800, 0, 0) }},
		{name: "CPU short", node: none, demand: func(d *commandv1.Demand) { d.CpuMillicores = 500 }, before: func(w *world) { w.fill(3800, 0, 0) },
			filter: "CPU", reason: "CPU: needs 500 millicores, 200 free of 4000 (3800 promised)", summary: "0/1 nodes fit: 1 CPU"},
		{name: "memory short", node: none, demand: func(d *commandv1.Demand) { d.MemoryMib = 1024 }, before: func(w *world) { w.fill(0, 8000, 0) },
			filter: "memory", reason: "memory: needs 1024 MiB, 192 free of 8192 (8000 promised)", summary: "0/1 nodes fit: 1 memory"},
		{name: "disk short in the first pool", node: none, demand: func(d *commandv1.Demand) { d.DiskGb = 50 }, before: func(w *world) { w.fill(0, 0, 60) },
			filter: "disk", reason: "disk in pool fast: needs 50 GB, 40 free of 100 (60 promised)", summary: "0/1 nodes fit: 1 disk"},
		{name: "disk short in a named pool",
			node:   func(n *commandv1.RegisterNode) { n.Pools = append(n.Pools, &commandv1.Pool{Name: "slow", TotalGb: 10}) },
			demand: func(d *commandv1.Demand) { d.DiskGb, d.StoragePool = 50, "slow" },
			filter: "disk", reason: "disk in pool slow: needs 50 GB, 10 free of 10 (0 promised)", summary: "0/1 nodes fit: 1 disk in pool slow"},
		{name: "a pool that is not there", node: none, demand: func(d *commandv1.Demand) { d.DiskGb, d.StoragePool = 5, "slow" },
			filter: "disk", reason: "disk: needs pool slow, the node offers fast", summary: "0/1 nodes fit: 1 no storage pool slow"},
		{name: "no pool at all", node: func(n *commandv1.RegisterNode) { n.Pools = nil }, demand: func(d *commandv1.Demand) { d.DiskGb = 5 },
			filter: "disk", reason: "disk: needs 5 GB, the node offers no storage pool", summary: "0/1 nodes fit: 1 no storage pool"},
		{name: "a port that is taken", node: none, demand: port(80, "tcp"), before: func(w *world) { w.apply("other", demand(port(80, "tcp"))); w.settle() },
			filter: "host ports", reason: "host port 80/tcp is held by other on a", summary: "0/1 nodes fit: 1 port 80/tcp"},
		{name: "a port of the other protocol is free", node: none, demand: port(80, "udp"), before: func(w *world) { w.apply("other", demand(port(80, "tcp"))); w.settle() }},
		{name: "a port taken on another node of the engine", node: func(n *commandv1.RegisterNode) { n.EngineId = "e" }, demand: port(80, "tcp"),
			before: func(w *world) {
				w.node("b", func(n *commandv1.RegisterNode) { n.EngineId = "e" })
				w.apply("other", demand(port(80, "tcp")), demand(func(d *commandv1.Demand) { constraint("node.id", "=", "b")(d) }))
				w.settle()
				w.cordon("b", true)
			},
			filter: "host ports", reason: "host port 80/tcp is held by other on b", summary: "0/2 nodes fit: 1 cordoned, 1 port 80/tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a", c.node)
			if c.before != nil {
				c.before(w)
			}
			w.apply("web", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib = 0, 0 }), demand(c.demand))
			e := Explain(w.state, w.get("web"), w.tuning)
			i := 0
			for e.Nodes[i].Node != "a" {
				i++
			}
			v := e.Nodes[i]
			if v.Fits != (c.reason == "") || v.Filter != c.filter || v.Reason != c.reason {
				t.Errorf("verdict %+v, want %q: %q", v, c.filter, c.reason)
			}
			w.settle()
			got := w.get("web")
			if c.reason == "" {
				if got.Node != "a" {
					t.Errorf("it fits but is on %q: %+v", got.Node, got.Reason)
				}
				return
			}
			if got.Node != "" || got.Reason.Code != fsm.CodeUnplaced || got.Reason.Message != c.summary {
				t.Errorf("on %q: %+v, want %q", got.Node, got.Reason, c.summary)
			}
			if e.Message != c.summary || e.Code != fsm.CodeUnplaced {
				t.Errorf("explained as %s %q", e.Code, e.Message)
			}
		})
	}
}

func port(n uint32, protocol string) func(*commandv1.Demand) {
	return func(d *commandv1.Demand) { d.HostPorts = []*commandv1.Port{{Port: n, Protocol: protocol}} }
}

// fill uses that many resources of the node.
func (w *world) fill(cpu, mem, disk int64) {
	w.apply("filler", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb = cpu, mem, disk }))
	w.settle()
}

func TestScores(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.node("b", func(n *commandv1.RegisterNode) {
		n.Taints = []*commandv1.Taint{{Key: "spot", Effect: "PreferNoSchedule"}}
	})
	w.apply("one", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb, d.Group = 2048, 0, 0, "g" }))
	w.settle()
	if got := w.get("one").Node; got != "a" {
		t.Fatalf("the first goes to %q, although b prefers to be left alone", got)
	}
	w.apply("two", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb, d.Group = 300, 0, 30, "g" }))
	e := Explain(w.state, w.get("two"), w.tuning)
	byNode := map[string]Score{}
	for _, v := range e.Nodes {
		byNode[v.Node] = v.Score
	}
	// a: a third of 2048/4000 used, and one workload; the demand adds a third of
	// 300/3584 and of 30/96, the next lower quarter powers of two.
	added := int64((300*whole/3584 + 30*whole/96) / 3)
	if got, want := byNode["a"], (Score{Load: 512000/3 + 10, Added: added, Group: perMember}); got != total(want) {
		t.Errorf("a: %+v, want %+v", got, total(want))
	}
	if got, want := byNode["b"], (Score{Added: added, Taint: perAvoid}); got != total(want) {
		t.Errorf("b: %+v, want %+v", got, total(want))
	}
	if e.Fit != 2 || e.Total != 2 || e.Nodes[0].Node != "b" {
		t.Errorf("%d of %d fit, best %s", e.Fit, e.Total, e.Nodes[0].Node)
	}
}

func total(s Score) Score {
	s.Total = s.Load + s.Added + s.Group + s.Taint
	return s
}

func TestExplainAPlacedWorkloadFreesItsOwn(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Group = 4000, "g" }), demand(port(80, "tcp")))
	w.settle()
	e := Explain(w.state, w.get("web"), w.tuning)
	if len(e.Nodes) != 1 || !e.Nodes[0].Fits || !e.Nodes[0].Current || e.Node != "a" || e.Score.Group != 0 {
		t.Fatalf("%+v", e)
	}
}

func TestPlanDrainMovesWhatFits(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	for _, id := range []string{"x", "y"} {
		w.apply(id, demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 }))
	}
	w.apply("hot", demand(func(d *commandv1.Demand) { d.Priority, d.CpuMillicores = 1, 0 }))
	w.settle()
	w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 3000 })
	moves := PlanDrain(w.state, "a", w.tuning)
	if len(moves) != 3 || moves[0] != (Move{Workload: "hot", To: "b"}) || moves[1] != (Move{Workload: "x", To: "b"}) ||
		moves[2] != (Move{Workload: "y", Message: "0/2 nodes fit: 1 CPU, 1 draining"}) {
		t.Fatalf("%+v", moves)
	}
	if n, _ := w.state.Node("a"); n.Draining {
		t.Fatal("a preview changed the state")
	}
}

func TestPlanPlaceKeepsWhatStillFits(t *testing.T) {
	w := newWorld(t)
	w.node("a", func(n *commandv1.RegisterNode) { n.CpuMillicores = 4000 })
	w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 4000 })
	w.apply("web", demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 }))
	w.settle()
	have, _ := w.state.Workload("web")
	other := map[string]string{"a": "b", "b": "a"}[have.Node]
	grown := func(cpu int64) *fsm.Workload {
		x, d := *have, *have.Demand
		x.Demand, d.CPU = &d, cpu
		return &x
	}
	fresh := &fsm.Workload{ID: "new", Desired: fsm.DesiredRunning, Demand: &fsm.Demand{Type: "container", CPU: 1500}, Actual: &fsm.Observation{}}
	for _, c := range []struct {
		fact  string
		plan  []*fsm.Workload
		moves []string
	}{
		{"it stays with more", []*fsm.Workload{grown(4000)}, []string{have.Node}},
		{"it stays with what it has beside a new one", []*fsm.Workload{grown(2000), fresh}, []string{have.Node, other}},
		{"the new one sees the growth", []*fsm.Workload{grown(4000), fresh}, []string{have.Node, other}},
		{"no node has so much", []*fsm.Workload{grown(5000)}, []string{""}},
	} {
		var got []string
		for _, m := range PlanPlace(w.state, c.plan, Tuning{}) {
			got = append(got, m.To)
		}
		if !slices.Equal(got, c.moves) {
			t.Errorf("%s: %v, want %v", c.fact, got, c.moves)
		}
	}
}

// TestPlanPlaceOnALostNode: an exclusive workload stays bound to its lost node, unless the
// node's fencer stops it.
func TestPlanPlaceOnALostNode(t *testing.T) {
	w := newWorld(t)
	guard := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 9 }
	w.node("a", guard)
	for id, onLost := range map[string]string{"guarded": "stop", "kept": "keep"} {
		w.apply(id, demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, onLost }))
	}
	w.settle()
	w.node("b", guard)
	w.heard["a"] = false
	w.step()
	moves := PlanPlace(w.state, []*fsm.Workload{w.get("guarded"), w.get("kept")}, w.tuning)
	if want := []Move{{Workload: "guarded", To: "b"}, {Workload: "kept", To: "a"}}; !slices.Equal(moves, want) {
		t.Errorf("%+v, want %+v", moves, want)
	}
}
