package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func TestRegisterNode(t *testing.T) {
	prove(t, []fact{
		{"a new node is Ready", func(t *testing.T, w *world) {
			w.ok(register("c"))
			is(t, `status of node "c"`, w.node("c").Status(), NodeReady)
			is(t, `cause of the last change of node "c"`, w.node("c").UpdatedBy, "register")
			is(t, "events of the last command", strings.Join(w.events(), " "), EventNodeRegistered)
		}},
		{"a registration with equal facts changes nothing", func(t *testing.T, w *world) {
			is(t, "verdict on the command", w.do(register("a")).Kind, AlreadyDone)
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"a registration that differs only in its timestamp changes nothing", func(t *testing.T, w *world) {
			res := w.do(register("a", func(n *commandv1.RegisterNode) { n.Timestamp = "2026-01-02T03:04:05Z" }))
			is(t, "verdict on the command", res.Kind, AlreadyDone)
		}},
		{"SameFacts tells the leader before a proposal that a registration changes nothing", func(t *testing.T, w *world) {
			is(t, `SameFacts of node "a"`, w.node("a").SameFacts(register("a").GetRegisterNode()), true)
			is(t, `SameFacts of node "a"`, w.node("a").SameFacts(register("a", engine("e")).GetRegisterNode()), false)
			w.ok(nodeState("a", false))
			is(t, `SameFacts of node "a" after it was lost`, w.node("a").SameFacts(register("a").GetRegisterNode()), false)
		}},
		{"another machine cannot take the id of a node that is up", func(t *testing.T, w *world) {
			res := w.do(register("a", func(n *commandv1.RegisterNode) { n.InstanceId = "other" }))
			refused(t, res, Conflict, "instance-a", "other")
		}},
		{"another machine takes the id of a lost node", func(t *testing.T, w *world) {
			w.ok(nodeState("a", false))
			w.ok(register("a", func(n *commandv1.RegisterNode) { n.InstanceId = "other" }))
			is(t, `instance id of node "a"`, w.node("a").Facts.InstanceID, "other")
			is(t, `node "a" is up`, w.node("a").Up, true)
		}},
		{"a registration keeps cordon and drain and clears the fence", func(t *testing.T, w *world) {
			w.ok(cordon("a", true))
			w.ok(drain("a", true))
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			w.ok(register("a"))
			n := w.node("a")
			is(t, `node "a" is cordoned`, n.Cordoned, true)
			is(t, `status of node "a"`, n.Status(), NodeDraining)
			is(t, `node "a" is fenced`, n.Fenced, false)
			is(t, "events of the last command", strings.Join(w.events(), " "), EventNodeReady)
		}},
		{"names of types and drivers are normalised", func(t *testing.T, w *world) {
			w.ok(register("c", func(n *commandv1.RegisterNode) {
				n.Types = []string{"VM", "docker-container", "Container", "docker-compose"}
				n.StorageDrivers = []string{"ceph_rbd", "NFS"}
			}))
			is(t, `types of node "c"`, strings.Join(w.node("c").Facts.Types, " "), "compose container vm")
			is(t, `storage drivers of node "c"`, strings.Join(w.node("c").Facts.StorageDrivers, " "), "ceph-rbd local nfs")
		}},
		{"a legacy node runs all but virtual machines", func(t *testing.T, w *world) {
			w.ok(register("c", func(n *commandv1.RegisterNode) { n.Types = nil }))
			is(t, `node "c" runs type compose`, w.node("c").Runs("compose"), true)
			is(t, `node "c" runs type vm`, w.node("c").Runs("vm"), false)
		}},
		{"port holders move with a node to another engine", func(t *testing.T, w *world) {
			w.place("web", "a", hostPort(80))
			w.place("old", "a", hostPort(81))
			w.ok(w.evict("old", CodeDraining, false))
			w.ok(register("a", engine("e")))
			id, node := w.s.PortHolder("e", HostPort{Port: 80, Protocol: "tcp"})
			is(t, `node and workload that hold port 80 of engine "e"`, pair(node, id), "a/web")
			id, node = w.s.PortHolder("e", HostPort{Port: 81, Protocol: "tcp"})
			is(t, `node and workload that hold port 81 of engine "e"`, pair(node, id), "a/old")
			id, _ = w.s.PortHolder("node:a", HostPort{Port: 80, Protocol: "tcp"})
			is(t, "workload that holds port 80 of the former engine", id, "")
		}},
		{"reserved disk moves when another pool becomes the first pool of the node", func(t *testing.T, w *world) {
			w.place("db", "a", demand(func(d *commandv1.Demand) { d.DiskGb = 30 }))
			is(t, `Disk reserved on node "a"`, w.s.Alloc("a").Disk[0], PoolUse{"main", 30})
			w.ok(register("a", func(n *commandv1.RegisterNode) {
				n.Pools = []*commandv1.Pool{{Name: "fast", TotalGb: 50}, {Name: "main", TotalGb: 100}}
			}))
			is(t, `Disk reserved on node "a"`, w.s.Alloc("a").Disk[0], PoolUse{"fast", 30})
		}},
	})
	long := strings.Repeat("x", 1025)
	for _, c := range []struct {
		name  string
		opt   func(*commandv1.RegisterNode)
		names []string
	}{
		{"a malformed id is refused", func(n *commandv1.RegisterNode) { n.Id = "a b" }, []string{"id", "a b"}},
		{"a node without an endpoint is refused", func(n *commandv1.RegisterNode) { n.Endpoint = "" }, []string{"endpoint"}},
		{"a node without CPU is refused", func(n *commandv1.RegisterNode) { n.CpuMillicores = 0 }, []string{"cpu_millicores", "0"}},
		{"a negative amount of memory is refused", func(n *commandv1.RegisterNode) { n.MemoryMib = -1 }, []string{"memory_mib", "-1"}},
		{"a negative lease is refused", func(n *commandv1.RegisterNode) { n.LeaseSeconds = -1 }, []string{"lease_seconds", "-1"}},
		{"an engine id with a zero byte is refused", func(n *commandv1.RegisterNode) { n.EngineId = "a\x00b" }, []string{"engine_id"}},
		{"a pool without a name is refused", func(n *commandv1.RegisterNode) { n.Pools = []*commandv1.Pool{{}} }, []string{"pools[0].name"}},
		{"a pool of negative size is refused", func(n *commandv1.RegisterNode) { n.Pools[0].TotalGb = -1 }, []string{"pools[0].total_gb", "-1"}},
		{"the same pool twice is refused", func(n *commandv1.RegisterNode) { n.Pools = append(n.Pools, n.Pools[0]) }, []string{"pools[1].name", "main"}},
		{"more than 256 labels are refused", func(n *commandv1.RegisterNode) { n.Labels = make([]*commandv1.Label, 257) }, []string{"labels", "257", "256"}},
		{"more than 256 pools are refused", func(n *commandv1.RegisterNode) { n.Pools = make([]*commandv1.Pool, 257) }, []string{"pools", "257", "256"}},
		{"a taint with a value that is too long is refused", func(n *commandv1.RegisterNode) { n.Taints = []*commandv1.Taint{{Key: "k", Value: long}} }, []string{"taints", "1025", "1024"}},
		{"an agent version that is too long is refused", func(n *commandv1.RegisterNode) { n.AgentVersion = long }, []string{"agent_version", "1025", "1024"}},
	} {
		t.Run("refuses "+c.name, func(t *testing.T) {
			refused(t, formed(t).do(register("c", c.opt)), Invalid, c.names...)
		})
	}
}

// TestRegisterInPlaceOfALostNode: another machine cannot register under the id of a lost node
// that may still run an exclusive workload.
func TestRegisterInPlaceOfALostNode(t *testing.T) {
	other := func(n *commandv1.RegisterNode) { n.InstanceId = "other" }
	silent := func(n *commandv1.RegisterNode) { n.InstanceId = "" }
	lost := func(w *world, opts ...func(*commandv1.WorkloadPut)) {
		w.ok(register("a", engine("engine-a")))
		w.place("db", "a", opts...)
		w.run("db")
		w.ok(nodeState("a", false))
	}
	for _, f := range []fact{
		{"another machine is refused until the node is fenced", func(t *testing.T, w *world) {
			lost(w, exclusive)
			refused(t, w.do(register("a", other, engine("engine-z"))), Conflict,
				"instance-a", "other", "db", "persysctl node fence a")
			is(t, `node "a" is up`, w.node("a").Up, false)
			is(t, `instance id of node "a"`, w.node("a").Facts.InstanceID, "instance-a")
		}},
		{"a machine without an engine id is refused", func(t *testing.T, w *world) {
			lost(w, exclusive)
			refused(t, w.do(register("a", other)), Conflict, "may be the same machine", "when its engine answers")
		}},
		{"a legacy v1 peer, which sends no instance id, is refused", func(t *testing.T, w *world) {
			lost(w, exclusive)
			refused(t, w.do(register("a", silent)), Conflict, "sends no instance id", "persysctl node fence a")
		}},
		{"a machine without an instance id is refused while the former one is up", func(t *testing.T, w *world) {
			lost(w, exclusive)
			w.ok(register("a", engine("engine-a")))
			refused(t, w.do(register("a", silent)), Conflict, "persysctl node fence a")
		}},
		{"another machine is refused while the node has a residual of an exclusive workload", func(t *testing.T, w *world) {
			w.ok(register("a", engine("engine-a")))
			w.place("db", "a", exclusive)
			w.ok(w.evict("db", CodeDraining, false))
			w.ok(nodeState("a", false))
			refused(t, w.do(register("a", other, engine("engine-z"))), Conflict, "db", "persysctl node fence a")
		}},
		{"another machine registers after a fence", func(t *testing.T, w *world) {
			lost(w, exclusive)
			w.ok(fence("a"))
			w.ok(register("a", other, engine("engine-z")))
			is(t, `node "a" is up`, w.node("a").Up, true)
		}},
		{"the same instance registers again", func(t *testing.T, w *world) {
			lost(w, exclusive)
			w.ok(register("a", engine("engine-z")))
		}},
		{"an agent that lost its instance file registers with the same engine", func(t *testing.T, w *world) {
			lost(w, exclusive)
			w.ok(register("a", other, engine("engine-a")))
		}},
		{"another machine registers if the lost node has no exclusive workload", func(t *testing.T, w *world) {
			lost(w)
			w.ok(register("a", other, engine("engine-z")))
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}

func TestNodeStates(t *testing.T) {
	prove(t, []fact{
		{"a lost node makes its workloads Unknown", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(nodeState("a", false))
			is(t, `status of the lost node "a"`, w.node("a").Status(), NodeNotReady)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUnknown)
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeNodeLost)
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
			is(t, "number of workloads with status Unknown", w.s.StatusCount(StatusUnknown), 1)
			is(t, "node of the event NodeLost", w.eventOf(EventNodeLost).Node, "a")
		}},
		{"an exclusive workload waits for a fence, and its reason names the command", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(nodeState("a", false))
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeAwaitFailover)
			if m := w.workload("db").Reason.Message; !strings.Contains(m, "persysctl node fence a") {
				t.Errorf("the reason is %q, want it to name the command persysctl node fence a", m)
			}
		}},
		{"an exclusive workload on a self-fencing node does not wait for the operator", func(t *testing.T, w *world) {
			w.ok(register("c", func(n *commandv1.RegisterNode) { n.SelfFencing = true }))
			w.place("db", "c", exclusive, demand(func(d *commandv1.Demand) { d.OnLostLease = "stop" }))
			w.ok(nodeState("c", false))
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeNodeLost)
		}},
		{"a workload is kept until its node has accepted its lease policy", func(t *testing.T, w *world) {
			w.ok(register("c", fencing))
			is(t, `fence bound of node "c", in seconds`, w.node("c").Facts.FenceBound, 9)
			w.place("db", "c", exclusive)
			w.run("db")
			w.ok(put("db", stops))
			is(t, `MayOutliveLease of workload "db" before the node has accepted on_lost_lease: stop`, w.workload("db").MayOutliveLease, true)
			w.ok(nodeState("c", false))
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeAwaitFailover)
			skipped(t, w.do(w.evict("db", CodeNodeLost, true)), "not fenced")
			w.ok(nodeState("c", true))
			w.run("db")
			is(t, `MayOutliveLease of workload "db" after the node has accepted on_lost_lease: stop`, w.workload("db").MayOutliveLease, false)
			w.ok(nodeState("c", false))
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeNodeLost)
		}},
		{"workloads of a returning node get their former state", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.place("new", "a")
			w.ok(nodeState("a", false))
			w.ok(nodeState("a", true))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusRunning)
			is(t, `reason of workload "web" after its node has returned`, w.workload("web").Reason, Reason{})
			is(t, `status of workload "new"`, w.workload("new").Status, StatusScheduled)
			is(t, "node of the event NodeReady", w.eventOf(EventNodeReady).Node, "a")
		}},
		{"only a registration lifts a fence", func(t *testing.T, w *world) {
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			skipped(t, w.do(nodeState("a", true)), "a", "fenced", "registration")
			is(t, `node "a" is up`, w.node("a").Up, false)
			w.ok(register("a"))
			is(t, `node "a" is up`, w.node("a").Up, true)
			is(t, `node "a" is fenced`, w.node("a").Fenced, false)
		}},
		{"reporting the present state of a node changes nothing", func(t *testing.T, w *world) {
			w.ok(nodeState("a", true))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"an unknown node is skipped", func(t *testing.T, w *world) {
			is(t, "number of skipped items of the command", w.do(nodeState("zz", false)).Skipped, 1)
		}},
		{"a node that becomes ready keeps its drain", func(t *testing.T, w *world) {
			w.ok(drain("a", true))
			w.ok(nodeState("a", false))
			w.ok(nodeState("a", true))
			is(t, `status of node "a"`, w.node("a").Status(), NodeDraining)
		}},
	})
}

func TestNodeAdministration(t *testing.T) {
	prove(t, []fact{
		{"a cordoned node gets no new workloads", func(t *testing.T, w *world) {
			w.ok(cordon("a", true))
			is(t, `node "a" is schedulable`, w.node("a").Schedulable(), false)
			is(t, `status of node "a"`, w.node("a").Status(), NodeReady)
			is(t, "verdict on the repeated command", w.do(cordon("a", true)).Kind, AlreadyDone)
			w.ok(cordon("a", false))
			is(t, `node "a" is schedulable`, w.node("a").Schedulable(), true)
		}},
		{"a draining node gets no new workloads", func(t *testing.T, w *world) {
			w.ok(drain("a", true))
			is(t, `node "a" is schedulable`, w.node("a").Schedulable(), false)
			is(t, "verdict on the repeated command", w.do(drain("a", true)).Kind, AlreadyDone)
			w.ok(drain("a", false))
			is(t, "events of the last command", strings.Join(w.events(), " "), EventNodeDrainEnded)
		}},
		{"administration of an unknown node is not found", func(t *testing.T, w *world) {
			for _, c := range []Command{cordon("z", true), drain("z", true), fence("z"), removeNode("z", true)} {
				refused(t, w.do(c), NotFound, "z")
			}
		}},
		{"a node that is up cannot be fenced", func(t *testing.T, w *world) {
			refused(t, w.do(fence("a")), Conflict, "a", "Ready", "stop it first")
		}},
		{"a fence clears residuals and finishes deletions", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
			is(t, "verdict on the repeated command", w.do(fence("a")).Kind, AlreadyDone)
		}},
		{"a fence ends the wait of exclusive workloads", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(nodeState("a", false))
			w.ok(fence("a"))
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeNodeLost)
			w.ok(w.evict("db", CodeNodeLost, true))
			w.bind("db", "b")
		}},
		{"a node with workloads is removed only by force", func(t *testing.T, w *world) {
			w.place("web", "a")
			refused(t, w.do(removeNode("a", false)), Conflict, "a", "1 workloads")
		}},
		{"a node with residuals is removed only by force", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(w.evict("web", CodeDraining, false))
			refused(t, w.do(removeNode("a", false)), Conflict, "a", "1 residuals")
		}},
		{"an empty node is removed", func(t *testing.T, w *world) {
			w.ok(removeNode("a", false))
			is(t, "number of nodes in the state", w.s.NodeCount(), 1)
			is(t, "events of the last command", strings.Join(w.events(), " "), EventNodeRemoved)
		}},
		{"a forced removal of a node unplaces its workloads and finishes deletions", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.place("old", "a")
			w.ok(remove("old", false))
			w.ok(removeNode("a", true))
			is(t, `status of workload "web"`, w.workload("web").Status, StatusPending)
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, CodeNodeRemoved)
			is(t, `previous node of workload "web"`, w.workload("web").PreviousNode, "a")
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 1)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
		}},
		{"a lost node with workloads is removed without force", func(t *testing.T, w *world) {
			w.place("db", "a", exclusive)
			w.ok(nodeState("a", false))
			w.ok(removeNode("a", false))
			is(t, `status of workload "db"`, w.workload("db").Status, StatusPending)
		}},
	})
}
