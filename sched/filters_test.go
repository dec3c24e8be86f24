package sched

import (
	"reflect"
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

// TestFiltersRejectNodes: each case has one node and one workload, and the reason why the planner
// must reject the node. If the case has no reason, the node must be accepted.
func TestFiltersRejectNodes(t *testing.T) {
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
		{name: "free devices fit", node: withDevices("gpu", 2), demand: func(d *commandv1.Demand) { d.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: 2}} }},
		{name: "more devices than the node has do not fit", node: withDevices("gpu", 2), demand: func(d *commandv1.Demand) { d.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: 3}} },
			filter: "devices", reason: "devices gpu: needs 3 devices, 2 free of 2 (0 promised)", summary: "0/1 nodes fit: 1 device gpu"},
		{name: "an ordinary node fits", node: none, demand: func(*commandv1.Demand) {}},
		{name: "a lost node is rejected", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.heard["a"] = false; w.step() },
			filter: "readiness", reason: "the node is not ready: lease expired", summary: "0/1 nodes fit: 1 not ready"},
		{name: "a draining node is rejected", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.drain("a", true) },
			filter: "readiness", reason: "the node is draining", summary: "0/1 nodes fit: 1 draining"},
		{name: "a cordoned node is rejected", node: none, demand: func(*commandv1.Demand) {}, before: func(w *world) { w.cordon("a", true) },
			filter: "readiness", reason: "the node is cordoned", summary: "0/1 nodes fit: 1 cordoned"},
		{name: "on_lost_lease=stop needs a fencer", node: none,
			demand: func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, fsm.OnLostLeaseStop }, filter: "fencer",
			reason:  "fencer: on_lost_lease is stop, and the node has no fencer that stops the workload when the lease ends (self_fencing)",
			summary: "0/1 nodes fit: 1 no fencer for on_lost_lease=stop"},
		{name: "a node with a fencer accepts on_lost_lease=stop", node: func(n *commandv1.RegisterNode) { n.SelfFencing = true },
			demand: func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, fsm.OnLostLeaseStop }},
		{name: "secrets as files need an agent that keeps them in memory", node: none, demand: func(d *commandv1.Demand) { d.MemoryFiles = true },
			filter: "files in memory", reason: "files in memory: the agent of the node does not know secrets and configs as files, or the machine has no tmpfs at /run or /dev/shm",
			summary: "0/1 nodes fit: 1 keeps no secrets and configs in memory"},
		{name: "a node whose agent keeps files in memory accepts secrets as files", node: func(n *commandv1.RegisterNode) { n.MemoryFiles = true }, demand: func(d *commandv1.Demand) { d.MemoryFiles = true }},
		{name: "a node that does not offer the workload type is rejected", node: none, demand: func(d *commandv1.Demand) { d.Type = "vm" },
			filter: "workload type", reason: "workload type: needs vm, the node offers compose, container", summary: "0/1 nodes fit: 1 type vm"},
		{name: "a legacy v1 peer offers compose", node: func(n *commandv1.RegisterNode) { n.Types = nil }, demand: func(d *commandv1.Demand) { d.Type = "compose" }},
		{name: "a legacy v1 peer offers no VM", node: func(n *commandv1.RegisterNode) { n.Types = nil }, demand: func(d *commandv1.Demand) { d.Type = "vm" },
			filter: "workload type", reason: "workload type: needs vm, the node offers container, compose", summary: "0/1 nodes fit: 1 type vm"},
		{name: "a node with the storage driver is accepted", node: func(n *commandv1.RegisterNode) { n.StorageDrivers = []string{"nfs"} }, demand: func(d *commandv1.Demand) { d.StorageDrivers = []string{"nfs"} }},
		{name: "a node without the storage driver is rejected", node: func(n *commandv1.RegisterNode) { n.StorageDrivers = []string{"local"} }, demand: func(d *commandv1.Demand) { d.StorageDrivers = []string{"nfs"} },
			filter: "storage driver", reason: "storage driver: needs nfs, the node offers local", summary: "0/1 nodes fit: 1 storage driver nfs"},
		{name: "a node with another value of the label is rejected", node: zone, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "y") },
			filter: "labels", reason: "label: needs zone=y, the node has zone=x", summary: "0/1 nodes fit: 1 label zone=y"},
		{name: "a node without the label is rejected", node: none, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "y") },
			filter: "labels", reason: "label: needs zone=y, the node has no label zone", summary: "0/1 nodes fit: 1 label zone=y"},
		{name: "a node with the label is accepted", node: zone, demand: func(d *commandv1.Demand) { d.Labels = labels("zone", "x") }},
		{name: "= holds", node: zone, demand: constraint("zone", "=", "x")},
		{name: "= fails", node: zone, demand: constraint("zone", "=", "y"),
			filter: "constraints", reason: "constraint: needs zone=y, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone=y"},
		{name: "= fails without the label", node: none, demand: constraint("zone", "=", "y"),
			filter: "constraints", reason: "constraint: needs zone=y, the node has no label zone", summary: "0/1 nodes fit: 1 constraint zone=y"},
		{name: "!= holds", node: zone, demand: constraint("zone", "!=", "y")},
		{name: "!= holds without the label", node: none, demand: constraint("zone", "!=", "y")},
		{name: "!= fails", node: zone, demand: constraint("zone", "!=", "x"),
			filter: "constraints", reason: "constraint: needs zone!=x, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone!=x"},
		{name: "the operator in holds", node: zone, demand: constraint("zone", "in", "y", "x")},
		{name: "the operator in fails", node: zone, demand: constraint("zone", "in", "y", "z"),
			filter: "constraints", reason: "constraint: needs zone in (y, z), the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone in (y, z)"},
		{name: "the operator not-in holds", node: zone, demand: constraint("zone", "not-in", "y")},
		{name: "the operator not-in fails", node: zone, demand: constraint("zone", "not-in", "x", "y"),
			filter: "constraints", reason: "constraint: needs zone not-in (x, y), the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone not-in (x, y)"},
		{name: "the operator exists holds", node: zone, demand: constraint("zone", "exists")},
		{name: "the operator exists fails", node: none, demand: constraint("zone", "exists"),
			filter: "constraints", reason: "constraint: needs zone exists, the node has no label zone", summary: "0/1 nodes fit: 1 constraint zone exists"},
		{name: "the operator not-exists holds", node: none, demand: constraint("zone", "not-exists")},
		{name: "the operator not-exists fails", node: zone, demand: constraint("zone", "not-exists"),
			filter: "constraints", reason: "constraint: needs zone not-exists, the node has zone=x", summary: "0/1 nodes fit: 1 constraint zone not-exists"},
		{name: "a constraint on node.id holds", node: none, demand: constraint("node.id", "=", "a")},
		{name: "a constraint on node.id fails", node: none, demand: constraint("node.id", "=", "b"),
			filter: "constraints", reason: "constraint: needs node.id=b, the node has node.id=a", summary: "0/1 nodes fit: 1 constraint node.id=b"},
		{name: "a node with a taint that is not tolerated is rejected", node: tainted("NoSchedule"), demand: func(*commandv1.Demand) {},
			filter: "taints", reason: "taint: dedicated=gpu:NoSchedule is not tolerated", summary: "0/1 nodes fit: 1 taint dedicated=gpu"},
		{name: "a node with a PreferNoSchedule taint is accepted", node: tainted("PreferNoSchedule"), demand: func(*commandv1.Demand) {}},
		{name: "a node with a tolerated taint is accepted", node: tainted("NoSchedule"), demand: tolerate("dedicated", "gpu", "NoSchedule")},
		{name: "a toleration of any value and effect tolerates the taint", node: tainted("NoSchedule"), demand: tolerate("dedicated", "", "")},
		{name: "a toleration of every taint tolerates the taint", node: tainted("NoSchedule"), demand: tolerate(fsm.AnyTaint, "", "")},
		{name: "a toleration of another effect does not tolerate the taint", node: tainted("NoSchedule"), demand: tolerate(fsm.AnyTaint, "", "NoExecute"),
			filter: "taints", reason: "taint: dedicated=gpu:NoSchedule is not tolerated", summary: "0/1 nodes fit: 1 taint dedicated=gpu"},
		{name: "a toleration of another value does not tolerate the taint", node: tainted("NoSchedule"), demand: tolerate("dedicated", "db", ""),
			filter: "taints", reason: "taint: dedicated=gpu:NoSchedule is not tolerated", summary: "0/1 nodes fit: 1 taint dedicated=gpu"},
		{name: "a demand for the last millicore fits", node: none, demand: func(d *commandv1.Demand) { d.CpuMillicores = 200 }, before: func(w *world) { w.fill(3800, 0, 0) }},
		{name: "a node with too little free CPU is rejected", node: none, demand: func(d *commandv1.Demand) { d.CpuMillicores = 500 }, before: func(w *world) { w.fill(3800, 0, 0) },
			filter: "CPU", reason: "CPU: needs 500 millicores, 200 free of 4000 (3800 promised)", summary: "0/1 nodes fit: 1 CPU"},
		{name: "a node with too little free memory is rejected", node: none, demand: func(d *commandv1.Demand) { d.MemoryMib = 1024 }, before: func(w *world) { w.fill(0, 8000, 0) },
			filter: "memory", reason: "memory: needs 1024 MiB, 192 free of 8192 (8000 promised)", summary: "0/1 nodes fit: 1 memory"},
		{name: "a node with too little free disk in its first pool is rejected", node: none, demand: func(d *commandv1.Demand) { d.DiskGb = 50 }, before: func(w *world) { w.fill(0, 0, 60) },
			filter: "disk", reason: "disk in pool fast: needs 50 GB, 40 free of 100 (60 promised)", summary: "0/1 nodes fit: 1 disk"},
		{name: "a node with too little free disk in the named pool is rejected",
			node:   func(n *commandv1.RegisterNode) { n.Pools = append(n.Pools, &commandv1.Pool{Name: "slow", TotalGb: 10}) },
			demand: func(d *commandv1.Demand) { d.DiskGb, d.StoragePool = 50, "slow" },
			filter: "disk", reason: "disk in pool slow: needs 50 GB, 10 free of 10 (0 promised)", summary: "0/1 nodes fit: 1 disk in pool slow"},
		{name: "a node without the named pool is rejected", node: none, demand: func(d *commandv1.Demand) { d.DiskGb, d.StoragePool = 5, "slow" },
			filter: "disk", reason: "disk: needs pool slow, the node offers fast", summary: "0/1 nodes fit: 1 no storage pool slow"},
		{name: "a node without any pool is rejected", node: func(n *commandv1.RegisterNode) { n.Pools = nil }, demand: func(d *commandv1.Demand) { d.DiskGb = 5 },
			filter: "disk", reason: "disk: needs 5 GB, the node offers no storage pool", summary: "0/1 nodes fit: 1 no storage pool"},
		{name: "a node on which the host port is taken is rejected", node: none, demand: port(80, "tcp"), before: func(w *world) { w.apply("other", demand(port(80, "tcp"))); w.settle() },
			filter: "host ports", reason: "host port 80/tcp is held by other on a", summary: "0/1 nodes fit: 1 port 80/tcp"},
		{name: "a host port at which the node's agent listens is rejected", node: none, demand: port(50051, "tcp"),
			filter: "host ports", reason: "host port 50051/tcp is used by the agent on this node", summary: "0/1 nodes fit: 1 port 50051/tcp"},
		{name: "a host port at which the agent serves metrics is rejected", node: func(n *commandv1.RegisterNode) { n.MetricsPort = 8089 }, demand: port(8089, "tcp"),
			filter: "host ports", reason: "host port 8089/tcp is used by the agent on this node", summary: "0/1 nodes fit: 1 port 8089/tcp"},
		{name: "the number of the agent's port is accepted for the other protocol", node: none, demand: port(50051, "udp")},
		{name: "a host port of a scheduler on the node's machine is rejected", node: none, demand: port(8088, "udp"), before: func(w *world) { w.replica("s1", "10.0.0.1") },
			filter: "host ports", reason: "host port 8088/udp is used by scheduler s1 on this node", summary: "0/1 nodes fit: 1 port 8088/udp"},
		{name: "the host port of networks between nodes is rejected", node: func(n *commandv1.RegisterNode) {
			n.Networking = &commandv1.NodeNetworking{Address: "10.0.0.1", Mtu: 1450}
		}, demand: port(4790, "udp"), filter: "host ports", reason: "host port 4790/udp is used by networks on this node", summary: "0/1 nodes fit: 1 port 4790/udp"},
		{name: "the host port of networks is accepted on a node without networks", node: none, demand: port(4790, "udp")},
		{name: "a host port of a scheduler on another machine is accepted", node: none, demand: port(8085, "tcp"), before: func(w *world) { w.replica("s1", "10.0.0.10") }},
		{name: "a host port that is taken for the other protocol is accepted", node: none, demand: port(80, "udp"), before: func(w *world) { w.apply("other", demand(port(80, "tcp"))); w.settle() }},
		{name: "a host port that is taken on another node of the same engine is rejected", node: func(n *commandv1.RegisterNode) { n.EngineId = "e" }, demand: port(80, "tcp"),
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
				t.Errorf("the verdict on node a is %+v, want rejection by filter %q with reason %q (both empty: the node fits)", v, c.filter, c.reason)
			}
			w.settle()
			got := w.get("web")
			if c.reason == "" {
				if got.Node != "a" {
					t.Errorf("the workload fits on node a and must be placed there, but is on %q: %+v", got.Node, got.Reason)
				}
				return
			}
			if got.Node != "" || got.Reason.Code != fsm.CodeUnplaced || got.Reason.Message != c.summary {
				t.Errorf("workload web is on node %q with reason %+v, want it unplaced with the message %q", got.Node, got.Reason, c.summary)
			}
			if e.Message != c.summary || e.Code != fsm.CodeUnplaced {
				t.Errorf("Explain returns code %q and message %q, want code Unplaced and the same message as in the record", e.Code, e.Message)
			}
		})
	}
}

func port(n uint32, protocol string) func(*commandv1.Demand) {
	return func(d *commandv1.Demand) { d.HostPorts = []*commandv1.Port{{Port: n, Protocol: protocol}} }
}

// replica adds the record of a scheduler, which listens at an address of its machine.
func (w *world) replica(name, at string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
		Id: name, Name: name, GrpcAddr: at + ":8085", HttpAddr: at + ":8084", RaftAddr: at + ":8086", GossipAddr: at + ":8088", DnsAddr: at + ":8053", FeatureLevel: 1,
	}}})
}

// TestPortsOfProgramsChange: a workload that fits nowhere, because a program of the cluster uses its host port on the
// only node, is placed when the agent or the scheduler listens at another port or on another machine.
func TestPortsOfProgramsChange(t *testing.T) {
	for name, c := range map[string]struct {
		port   uint32
		change func(w *world)
	}{
		"a workload is placed when the agent listens at another port":        {50051, func(w *world) { w.node("a", func(n *commandv1.RegisterNode) { n.Endpoint = "10.0.0.1:6000" }) }},
		"a workload is placed when the agent serves metrics at another port": {8089, func(w *world) { w.node("a", func(n *commandv1.RegisterNode) { n.MetricsPort = 6001 }) }},
		"a workload is placed when the scheduler is on another machine":      {8086, func(w *world) { w.replica("s1", "10.0.0.2") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a", func(n *commandv1.RegisterNode) { n.MetricsPort = 8089 })
			w.replica("s1", "10.0.0.1")
			w.apply("web", demand(port(c.port, "tcp")))
			w.step()
			if x := w.get("web"); x.Node != "" {
				t.Fatalf("workload web must fit nowhere, but is on node %s", x.Node)
			}
			c.change(w)
			w.step()
			if x := w.get("web"); x.Node != "a" {
				t.Errorf("workload web must be placed on node a, but has the reason %+v", x.Reason)
			}
		})
	}
}

// fill reserves the given CPU, memory and disk on the node under test.
func (w *world) fill(cpu, mem, disk int64) {
	w.apply("filler", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb = cpu, mem, disk }))
	w.settle()
}

func TestScoresOfNodes(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.node("b", func(n *commandv1.RegisterNode) {
		n.Taints = []*commandv1.Taint{{Key: "spot", Effect: "PreferNoSchedule"}}
	})
	w.apply("one", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb, d.Group = 2048, 0, 0, "g" }))
	w.settle()
	if got := w.get("one").Node; got != "a" {
		t.Fatalf("the first workload must go to node \"a\", because node \"b\" has a PreferNoSchedule taint, but goes to node %q", got)
	}
	w.apply("two", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib, d.DiskGb, d.Group = 300, 0, 30, "g" }))
	e := Explain(w.state, w.get("two"), w.tuning)
	byNode := map[string]Score{}
	for _, v := range e.Nodes {
		byNode[v.Node] = v.Score
	}
	// Load is in millionths of a node, the mean of the shares of CPU, memory and disk. The demand adds 300
	// millicores and 30 GB to a node whose size class has 3584 millicores and 96 GB: roundDown rounds 4000
	// and 100 down to these.
	added := int64((300*whole/3584 + 30*whole/96) / 3)
	if got, want := byNode["a"], (Score{Load: 512000/3 + 10, Added: added, Group: perMember}); got != total(want) {
		t.Errorf("the score of node a is %+v, want %+v", got, total(want))
	}
	if got, want := byNode["b"], (Score{Added: added, Taint: perAvoid}); got != total(want) {
		t.Errorf("the score of node b is %+v, want %+v", got, total(want))
	}
	if e.Fit != 2 || e.Total != 2 || e.Nodes[0].Node != "b" {
		t.Errorf("Explain says that %d of %d nodes fit, the best being %q; want 2 of 2 nodes, the best being \"b\"", e.Fit, e.Total, e.Nodes[0].Node)
	}
}

func total(s Score) Score {
	s.Total = s.Load + s.Added + s.Group + s.Taint
	return s
}

func TestExplainFreesResourcesOfThePlacedWorkload(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web", demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Group = 4000, "g" }), demand(port(80, "tcp")))
	w.settle()
	e := Explain(w.state, w.get("web"), w.tuning)
	if len(e.Nodes) != 1 || !e.Nodes[0].Fits || !e.Nodes[0].Current || e.Node != "a" || e.Score.Group != 0 {
		t.Fatalf("Explain returned %+v, want that node a fits as the present node, without a penalty for the workload's own group", e)
	}
}

func TestPlanDrainMovesFittingWorkloads(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	for _, id := range []string{"x", "y"} {
		w.apply(id, demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 }))
	}
	w.apply("hot", demand(func(d *commandv1.Demand) { d.Priority, d.CpuMillicores = 1, 0 }))
	w.apply("db", withData, cpu(0))
	w.settle()
	w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 3000 })
	last := Move{Workload: "y", To: "a", Message: "runs on, because no other node takes it: 0/2 nodes fit: 1 CPU, 1 draining"}
	data := []string{"volume data"}
	for discard, db := range map[bool]Move{
		false: {Workload: "db", To: "a", Message: "stays, because only this node has volume data", Data: data},
		true:  {Workload: "db", To: "b", Data: data},
	} {
		moves := PlanDrain(w.state, "a", discard, 0, w.tuning)
		if want := []Move{{Workload: "hot", To: "b"}, db, {Workload: "x", To: "b"}, last}; !reflect.DeepEqual(moves, want) {
			t.Errorf("PlanDrain with discard %t returns %+v, want %+v", discard, moves, want)
		}
	}
	if n, _ := w.state.Node("a"); n.Draining {
		t.Fatal("PlanDrain must not change the state, but node a is draining")
	}
}

func TestPlanPlaceKeepsFittingWorkloads(t *testing.T) {
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
		{"a workload that grows stays on its node", []*fsm.Workload{grown(4000)}, []string{have.Node}},
		{"an updated workload keeps its node beside a new workload", []*fsm.Workload{grown(2000), fresh}, []string{have.Node, other}},
		{"a new workload is placed after a workload has grown", []*fsm.Workload{grown(4000), fresh}, []string{have.Node, other}},
		{"a workload that has outgrown every node stays on its node", []*fsm.Workload{grown(5000)}, []string{have.Node}},
	} {
		var got []string
		for _, m := range PlanPlace(w.state, c.plan, Tuning{}) {
			got = append(got, m.To)
		}
		if !slices.Equal(got, c.moves) {
			t.Errorf("%s: PlanPlace moves the workloads to %v, want %v", c.fact, got, c.moves)
		}
	}
}

// TestPlanPlaceOnALostNode: an exclusive workload stays bound to its lost node, unless the
// node's fencer stops it.
func TestPlanPlaceOnALostNode(t *testing.T) {
	w := newWorld(t)
	fencing := func(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 9 }
	w.node("a", fencing)
	for id, onLost := range map[string]string{"stops": "stop", "kept": "keep"} {
		w.apply(id, demand(func(d *commandv1.Demand) { d.Exclusive, d.OnLostLease = true, onLost }))
	}
	w.settle()
	w.node("b", fencing)
	w.heard["a"] = false
	w.step()
	moves := PlanPlace(w.state, []*fsm.Workload{w.get("stops"), w.get("kept")}, w.tuning)
	if want := []Move{{Workload: "stops", To: "b"}, {Workload: "kept", To: "a"}}; !reflect.DeepEqual(moves, want) {
		t.Errorf("PlanPlace returns %+v, want %+v", moves, want)
	}
}

// `persysctl why` names the field of the workload file that would have to change, for each filter that such a change can
// satisfy.
func TestFiltersNameTheirField(t *testing.T) {
	if len(filterFields) != len(filterNames) {
		t.Fatalf("filterFields has %d entries for %d filters, want one for each filter", len(filterFields), len(filterNames))
	}
	without := map[filter]bool{passes: true, notUp: true, draining: true, cordoned: true, stopping: true, failedThere: true, barred: true, repelled: true, outsidePool: true}
	for f := range filterNames {
		if (filterFields[f] == "") != without[filter(f)] {
			t.Errorf("filter %q names the field %q of a workload file; want that it names a field: %t", filterNames[f], filterFields[f], !without[filter(f)])
		}
	}
}
