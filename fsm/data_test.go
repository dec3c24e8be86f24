package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func keeps(names ...string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		for _, n := range names {
			p.Demand.LocalData = append(p.Demand.LocalData, &commandv1.LocalData{Name: n})
		}
	}
}

func discards(p *commandv1.WorkloadPut) { p.DiscardData = true }

func drainDiscarding(id string) Command {
	c := drain(id, true)
	c.GetDrainNode().DiscardData = true
	return c
}

func fenceDiscarding(id string) Command {
	c := fence(id)
	c.GetFenceNode().DiscardData = true
	return c
}

func removeDiscarding(id string) Command {
	c := removeNode(id, false)
	c.GetRemoveNode().DiscardData = true
	return c
}

// TestLocalDataBindsAWorkload: a workload that keeps data on node a leaves it only after a person said to
// discard the data.
func TestLocalDataBindsAWorkload(t *testing.T) {
	stays := func(t *testing.T, w *world, code string, gone bool) {
		t.Helper()
		if res := w.do(w.evict("db", code, gone)); res.Skipped != 1 || !strings.Contains(res.Reason, "volume data") {
			t.Errorf("the eviction for reason %s skipped %d items (%s), want 1 skipped item with a reason that names the volume data", code, res.Skipped, res.Reason)
		}
		is(t, `node of workload "db"`, w.workload("db").Node, "a")
	}
	moves := func(t *testing.T, w *world, code string, gone bool) {
		t.Helper()
		w.ok(w.evict("db", code, gone))
		x := w.workload("db")
		is(t, `node of workload "db"`, x.Node, "")
		is(t, `local data of workload "db"`, len(x.Data), 0)
		is(t, `DiscardData of workload "db"`, x.DiscardData, false)
		if e := w.eventOf(EventWorkloadEvicted); !strings.Contains(e.Message, "leaves volume data behind on node a") {
			t.Errorf("the event of the eviction is %q, want it to name the volume data", e.Message)
		}
	}
	running := func(w *world) {
		w.place("db", "a", keeps("volume data"))
		w.run("db")
	}
	lost := func(w *world) {
		running(w)
		w.ok(nodeState("a", false))
	}
	prove(t, []fact{
		{"a drain leaves the workload on its node", func(t *testing.T, w *world) {
			running(w)
			w.ok(drain("a", true))
			stays(t, w, CodeDraining, false)
		}},
		{"a drain that discards data moves the workload", func(t *testing.T, w *world) {
			running(w)
			w.ok(drainDiscarding("a"))
			is(t, "events of the last command", strings.Join(w.events(), " "), EventNodeDraining+" "+EventDataDiscarded)
			moves(t, w, CodeDraining, false)
		}},
		{"a second drain of the node may be ordered to discard data", func(t *testing.T, w *world) {
			running(w)
			w.ok(drain("a", true))
			w.ok(drainDiscarding("a"))
			is(t, "verdict on the repeated command", w.do(drainDiscarding("a")).Kind, AlreadyDone)
			moves(t, w, CodeDraining, false)
		}},
		{"the end of a drain clears DiscardData", func(t *testing.T, w *world) {
			running(w)
			w.ok(drainDiscarding("a"))
			w.ok(drain("a", false))
			w.ok(drain("a", true))
			stays(t, w, CodeDraining, false)
		}},
		{"an apply during the drain keeps DiscardData", func(t *testing.T, w *world) {
			running(w)
			w.ok(drainDiscarding("a"))
			w.ok(put("db", keeps("volume data"), content("c1:other")))
			w.run("db")
			moves(t, w, CodeDraining, false)
		}},
		{"changed constraints leave the workload on its node", func(t *testing.T, w *world) {
			running(w)
			w.ok(put("db", keeps("volume data"), content("c1:other")))
			stays(t, w, "ConstraintChanged", false)
		}},
		{"after an apply that discards data the workload may move", func(t *testing.T, w *world) {
			running(w)
			w.ok(put("db", keeps("volume data"), content("c1:other"), discards))
			w.eventOf(EventDataDiscarded)
			moves(t, w, "ConstraintChanged", false)
		}},
		{"an apply that changes nothing else may still discard data", func(t *testing.T, w *world) {
			lost(w)
			w.ok(put("db", keeps("volume data"), discards))
			w.eventOf(EventDataDiscarded)
			moves(t, w, CodeNodeLost, false)
		}},
		{"the DiscardData of an apply is cleared when the node accepts the order", func(t *testing.T, w *world) {
			running(w)
			w.ok(put("db", keeps("volume data"), content("c1:other"), discards))
			w.run("db")
			stays(t, w, CodeDraining, false)
		}},
		{"a later apply clears DiscardData", func(t *testing.T, w *world) {
			running(w)
			w.ok(put("db", keeps("volume data"), content("c1:other"), discards))
			w.ok(put("db", keeps("volume data"), content("c1:third")))
			stays(t, w, "ConstraintChanged", false)
		}},
		{"data that the new specification does not name still binds the workload", func(t *testing.T, w *world) {
			running(w)
			w.ok(put("db", content("c1:other")))
			w.run("db")
			stays(t, w, CodeDraining, false)
		}},
		{"data of an order that the node never accepted does not bind the workload", func(t *testing.T, w *world) {
			w.place("db", "a", keeps("volume data"))
			w.ok(w.evict("db", CodeNodeLost, false))
			is(t, `node of workload "db"`, w.workload("db").Node, "")
		}},
		{"a refused order leaves no data", func(t *testing.T, w *world) {
			w.place("db", "a", keeps("volume data"))
			w.ok(report(&commandv1.WorkloadReport{Workload: "db", Node: "a", Generation: w.generation("db"), Refused: true, Code: CodeRuntimeNotOffered}))
			w.ok(w.evict("db", CodeRuntimeNotOffered, false))
			is(t, `node of workload "db"`, w.workload("db").Node, "")
		}},
		{"data in a shared pool does not bind the workload", func(t *testing.T, w *world) {
			w.ok(register("a", func(n *commandv1.RegisterNode) {
				n.Pools = append(n.Pools, &commandv1.Pool{Name: "export", Type: "nfs", TotalGb: 10})
			}))
			w.place("db", "a", func(p *commandv1.WorkloadPut) {
				p.Demand.LocalData = []*commandv1.LocalData{{Name: "disk vda", Pool: "export"}}
			})
			w.run("db")
			w.ok(w.evict("db", CodeDraining, false))
		}},
		{"data in a pool that the node does not report binds the workload", func(t *testing.T, w *world) {
			w.place("db", "a", func(p *commandv1.WorkloadPut) {
				p.Demand.LocalData = []*commandv1.LocalData{{Name: "volume data", Pool: "unknown"}}
			})
			w.run("db")
			stays(t, w, CodeDraining, false)
		}},
		{"a lost node keeps the workload, and the reason names the data and the command to run", func(t *testing.T, w *world) {
			lost(w)
			stays(t, w, CodeNodeLost, false)
			r := w.workload("db").Reason
			if r.Code != CodeHoldsData || !strings.Contains(r.Message, "volume data") || !strings.Contains(r.Message, "persysctl node fence a --discard-data") {
				t.Errorf("the reason of the workload is %+v, want HoldsData with the command that discards the data", r)
			}
		}},
		{"a fenced node keeps the workload", func(t *testing.T, w *world) {
			lost(w)
			w.ok(fence("a"))
			stays(t, w, CodeNodeLost, true)
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, CodeHoldsData)
		}},
		{"a fenced node that returns still has the workload", func(t *testing.T, w *world) {
			lost(w)
			w.ok(fence("a"))
			w.ok(register("a"))
			w.run("db")
			is(t, `status of workload "db"`, w.workload("db").Status, StatusRunning)
			is(t, `reason code of workload "db"`, w.workload("db").Reason.Code, "")
		}},
		{"a fence that discards data moves the workload", func(t *testing.T, w *world) {
			lost(w)
			w.ok(fenceDiscarding("a"))
			moves(t, w, CodeNodeLost, true)
		}},
		{"a second fence of the node may be ordered to discard data", func(t *testing.T, w *world) {
			lost(w)
			w.ok(fence("a"))
			w.ok(fenceDiscarding("a"))
			is(t, "verdict on the repeated command", w.do(fenceDiscarding("a")).Kind, AlreadyDone)
			moves(t, w, CodeNodeLost, true)
		}},
		{"the return of a fenced node clears DiscardData", func(t *testing.T, w *world) {
			lost(w)
			w.ok(fenceDiscarding("a"))
			w.ok(register("a"))
			stays(t, w, CodeDraining, false)
		}},
		{"a node with data is not removed, not even by force", func(t *testing.T, w *world) {
			lost(w)
			refused(t, w.do(removeNode("a", false)), Conflict, "db (volume data)", "--discard-data")
			refused(t, w.do(removeNode("a", true)), Conflict, "db (volume data)", "--discard-data")
		}},
		{"the removal of a node may be ordered to discard data", func(t *testing.T, w *world) {
			lost(w)
			w.ok(removeDiscarding("a"))
			is(t, `node of workload "db"`, w.workload("db").Node, "")
			if e := w.eventOf(EventWorkloadEvicted); !strings.Contains(e.Message, "volume data") {
				t.Errorf("the event of the eviction is %q, want it to name the volume data", e.Message)
			}
		}},
		{"another machine does not get the id of a node that holds data", func(t *testing.T, w *world) {
			w.ok(register("a", engine("e1")))
			lost(w)
			as := func(engineID string) Command {
				return register("a", engine(engineID), func(n *commandv1.RegisterNode) { n.InstanceId = "other" })
			}
			silent := w.do(as(""))
			refused(t, silent, Conflict, "db (volume data)", "may be the same machine", "when its engine answers")
			if strings.Contains(silent.Reason, "fence") {
				t.Errorf("while the engine is not known, the refusal advises to fence a machine that may run: %s", silent.Reason)
			}
			other := as("e2")
			refused(t, w.do(other), Conflict, "db (volume data)", "on another engine", "persysctl node fence a --discard-data")
			w.ok(fence("a"))
			refused(t, w.do(other), Conflict, "db (volume data)")
			w.ok(fenceDiscarding("a"))
			w.ok(other)
		}},
		{"a former machine whose engine is not known may be this one", func(t *testing.T, w *world) {
			lost(w)
			other := register("a", engine("e2"), func(n *commandv1.RegisterNode) { n.InstanceId = "other" })
			refused(t, w.do(other), Conflict, "db (volume data)", "not known whether both use the same engine", "this one runs no workload", "persysctl node fence a --discard-data")
		}},
		{"another instance of the workload cannot be adopted", func(t *testing.T, w *world) {
			running(w)
			w.ok(setDrifts([]*commandv1.Drift{drifted("b", "db", DriftOrphan)}))
			refused(t, w.do(adopt("b", "db")), Conflict, "volume data")
		}},
		{"a delete needs no discard_data", func(t *testing.T, w *world) {
			running(w)
			w.ok(remove("db", false))
			is(t, `node of workload "db"`, w.workload("db").Node, "")
		}},
	})
}

func TestLocalDataHasBounds(t *testing.T) {
	w := formed(t, "a")
	refused(t, w.do(put("db", keeps(strings.Repeat("x", 161)))), Invalid, "local_data[0].name", "161")
	refused(t, w.do(put("db", keeps(make([]string, 65)...))), Invalid, "local_data", "65")
	refused(t, w.do(put("db", keeps(""))), Invalid, "local_data[0].name")
}

func TestDataTextNamesTheFirstData(t *testing.T) {
	is(t, "DataText of two names", DataText([]string{"a", "b"}), "a, b")
	is(t, "DataText of five names", DataText([]string{"a", "b", "c", "d", "e"}), "a, b, c and 2 more")
}
