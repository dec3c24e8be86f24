package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// later is a time in Unix nanoseconds that is, in milliseconds, above every incarnation in these tests.
const later = int64(4_000_000_000_000) * 1_000_000

func restored(t *testing.T, backup, present State) State {
	t.Helper()
	s, err := Restored(backup, present, RestoreInfo{At: later, By: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s
}

// withState returns a copy of w with the state s.
func (w *world) withState(s State) *world {
	next := *w
	next.s, next.index = s, max(w.index, s.Info().Index)
	return &next
}

// formedAgain returns a newly formed cluster with the cluster id of w, as an operator forms it
// after the loss of all schedulers.
func formedAgain(w *world) *world {
	fresh := uninitialised(w.t)
	c := initCluster(w.s.Info().ClusterID)
	c.GetInitCluster().Incarnation = w.s.Info().Incarnation + 1
	fresh.ok(c)
	return fresh
}

func lastEvent(s State) (e *Event) {
	s.EventsBack(func(x *Event) bool { e = x; return false })
	return e
}

func TestRestoredMergesBackupAndPresentState(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a new cluster gets everything under a new incarnation", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			fresh := formedAgain(w)
			s := restored(t, w.s, fresh.s)
			x, _ := s.Workload("web")
			is(t, `node of workload "web"`, x.Node, "a")
			is(t, `status of workload "web"`, x.Status, StatusRunning)
			is(t, `generation of workload "web"`, x.Generation, w.workload("web").Generation)
			is(t, "number of nodes in the restored state", s.NodeCount(), 2)
			is(t, "Incarnation in the state", s.Info().Incarnation, uint64(4_000_000_000_000))
			is(t, "type of the last event", lastEvent(s).Type, EventClusterRestored)
			is(t, "caller in the event", lastEvent(s).By, "admin")
		}},
		{"a new cluster keeps the nodes that have registered and takes placements from the backup", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(nodeState("a", false))
			fresh := formedAgain(w)
			fresh.ok(register("a", engine("another")))
			s := restored(t, w.s, fresh.s)
			x, _ := s.Workload("web")
			is(t, `node of workload "web"`, x.Node, "a")
			is(t, `status of workload "web"`, x.Status, StatusRunning)
			n, _ := s.Node("a")
			is(t, `engine of node "a", as it registered with the new cluster`, n.Engine(), "another")
			is(t, "number of nodes in the restored state", s.NodeCount(), 2)
		}},
		{"nodes that have registered with the new cluster keep cordon and drain of the backup", func(t *testing.T, w *world) {
			w.ok(cordon("a", true))
			w.ok(drain("b", true))
			fresh := formedAgain(w)
			fresh.ok(register("a"))
			fresh.ok(register("b"))
			s := restored(t, w.s, fresh.s)
			a, _ := s.Node("a")
			b, _ := s.Node("b")
			is(t, `node "a" is cordoned`, a.Cordoned, true)
			is(t, `node "b" is draining`, b.Draining, true)
		}},
		{"a node that was fenced since the backup has no residuals, and its deletions leave tombstones", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			w.ok(w.evict("web", CodeDraining, false))
			w.place("old", "a")
			w.run("old")
			w.ok(remove("old", false))
			fresh := formedAgain(w)
			fresh.ok(register("a"))
			fresh.ok(nodeState("a", false))
			fresh.ok(fence("a"))
			s := restored(t, w.s, fresh.s)
			is(t, `number of residuals on the fenced node "a"`, s.Alloc("a").Residuals, 0)
			_, back := s.Workload("old")
			is(t, "the workload that was being deleted has a record", back, false)
			_, remembered := s.Tombstone("old")
			is(t, "the deleted workload has a tombstone", remembered, true)
		}},
		{"the new incarnation is above the incarnations of both states even if the clock is behind", func(t *testing.T, w *world) {
			s, err := Restored(w.s, w.s, RestoreInfo{At: 0})
			if err != nil {
				t.Fatal(err)
			}
			is(t, "Incarnation in the state", s.Info().Incarnation, w.s.Info().Incarnation+1)
		}},
		{"the index of the restored state is above the index of the present state", func(t *testing.T, w *world) {
			old := w.s
			w.place("web", "a")
			is(t, "log index of the restored state", restored(t, old, w.s).Info().Index, w.s.Info().Index+1)
		}},
		{"an unchanged workload keeps node, generation and status", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			s := restored(t, w.s, w.s)
			x, _ := s.Workload("web")
			is(t, `workload "web" runs on node "a" with an acknowledged order`, x.Node == "a" && x.Acknowledged && x.Status == StatusRunning, true)
			is(t, `generation of workload "web"`, x.Generation, w.workload("web").Generation)
		}},
		{"a changed specification is restored on the present node", func(t *testing.T, w *world) {
			w.place("web", "a", content("c1:old"))
			w.run("web")
			backup := w.s
			w.ok(put("web", content("c1:new")))
			w.ok(w.evict("web", CodeDraining, false))
			w.ok(w.assign("web", "b"))
			w.run("web")
			s := restored(t, backup, w.s)
			x, _ := s.Workload("web")
			is(t, `content of workload "web"`, x.Content, "c1:old")
			is(t, `node of workload "web"`, x.Node, "b")
			is(t, `status of workload "web"`, x.Status, StatusUpdating)
			is(t, "incarnation in the generation of the new order", x.Generation.Incarnation, s.Info().Incarnation)
			_, left := s.Residual("a", "web")
			is(t, `node "a", which may still run the workload, has a residual`, left, true)
		}},
		{"a deleted workload is restored and placed again", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.run("web")
			backup, g := w.s, w.generation("web")
			w.ok(remove("web", false))
			w.ok(gone("web", "a", GenerationPB(Generation{Incarnation: g.Incarnation, Sequence: w.s.Info().Sequence})))
			s := restored(t, backup, w.s)
			x, _ := s.Workload("web")
			is(t, `status of workload "web"`, x.Status, StatusPending)
			is(t, `node of workload "web"`, x.Node, "")
		}},
		{"a workload that the backup lacks has no record", func(t *testing.T, w *world) {
			backup := w.s
			w.place("web", "a")
			s := restored(t, backup, w.s)
			is(t, "number of workloads in the restored state", s.WorkloadCount(), 0)
			is(t, `number of workloads that reserve resources on node "a"`, s.Alloc("a").Workloads, 0)
		}},
		{"a delete that finished after the backup stays finished", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			backup := w.s
			w.ok(gone("web", "a", GenerationPB(Generation{Incarnation: w.s.Info().Incarnation, Sequence: w.s.Info().Sequence})))
			is(t, "number of workloads before the restore", w.s.WorkloadCount(), 0)
			is(t, "number of workloads after the restore", restored(t, backup, w.s).WorkloadCount(), 0)
		}},
		{"mode, nodes and replicas are those of the present state", func(t *testing.T, w *world) {
			w.ok(putReplica("r1", 1))
			backup := w.s
			w.ok(setMode("degraded", "etcd is away"))
			w.ok(cordon2(w, "a"))
			w.ok(removeReplica("r1"))
			w.ok(putReplica("r2", 1))
			s := restored(t, backup, w.s)
			is(t, "mode of the restored state", s.Info().Mode, ModeDegraded)
			is(t, "MirrorEtcd in the state", s.Info().MirrorEtcd, w.s.Info().MirrorEtcd)
			n, _ := s.Node("a")
			is(t, `node "a" is cordoned`, n.Cordoned, true)
			_, r1 := s.Replica("r1")
			_, r2 := s.Replica("r2")
			is(t, "replica r1 has a record", r1, false)
			is(t, "replica r2 has a record", r2, true)
		}},
		{"a backup of another cluster restores only the workloads, under the present id", func(t *testing.T, w *world) {
			w.place("web", "a")
			other := uninitialised(t)
			other.ok(initCluster("c2"))
			s := restored(t, w.s, other.s)
			is(t, "ClusterID in the state", s.Info().ClusterID, "c2")
			is(t, "number of nodes in the restored state", s.NodeCount(), 0)
			x, _ := s.Workload("web")
			is(t, `status of workload "web"`, x.Status, StatusPending)
		}},
		{"an uninitialised state is not a backup", func(t *testing.T, w *world) {
			_, err := Restored(New(), w.s, RestoreInfo{At: later})
			if err == nil || !strings.Contains(err.Error(), "never formed") {
				t.Errorf("Restored with a state that was never initialised returned error %v, want one that contains \"never formed\"", err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			before := snapshotBytes(t, w.s)
			kept := w.s
			c.run(t, w)
			if string(snapshotBytes(t, kept)) != string(before) {
				t.Error("Restored must not change its input states, but did")
			}
		})
	}
}

// cordon2 cordons a node (excludes it from new placements) in a frozen mode, which refuses the command
// cordon. It sets the mode to normal, cordons the node, and returns the command that sets the frozen mode
// again.
func cordon2(w *world, node string) Command {
	info := w.s.Info()
	w.ok(setMode("normal", ""))
	w.ok(cordon(node, true))
	return setMode(string(info.Mode), info.ModeReason)
}

// TestRestoredSnapshot: a snapshot of a restored state, which the other replicas install, reads
// back as the same state.
func TestRestoredSnapshot(t *testing.T) {
	w := formed(t, "a", "b")
	w.place("web", "a")
	backup := w.s
	w.ok(put("web", content("c1:new")))
	s := restored(t, backup, w.s)
	again, err := ReadSnapshot(strings.NewReader(string(snapshotBytes(t, s))))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "read from the snapshot of the restored state", s, again)
}

func TestRecoveredStateHasOneReplica(t *testing.T) {
	w := formed(t, "a")
	w.ok(putReplica("r1", 1))
	w.ok(putReplica("r2", 1))
	w.place("web", "a")
	w.run("web")
	s := w.s.Recovered("r2", RestoreInfo{At: later, By: "operator"})
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	_, r1 := s.Replica("r1")
	_, r2 := s.Replica("r2")
	is(t, "replica r1 has a record", r1, false)
	is(t, "replica r2 has a record", r2, true)
	is(t, "Incarnation in the state", s.Info().Incarnation, uint64(4_000_000_000_000))
	x, _ := s.Workload("web")
	is(t, `status of workload "web"`, x.Status, StatusRunning)
	is(t, "type of the last event", lastEvent(s).Type, EventClusterRecovered)
}

// TestNodeAheadOfState: after a recovery from an older state, a node reports a generation that is newer than
// the state. The workload is bound to that node.
func TestNodeAheadOfState(t *testing.T) {
	says := func(node string, g Generation) Command {
		return report(&commandv1.WorkloadReport{Workload: "web", Node: node, Generation: GenerationPB(g), State: string(ActualRunning)})
	}
	build := func(t *testing.T, opts ...func(*commandv1.WorkloadPut)) *world {
		w := formed(t, "a", "b")
		w.place("web", "a", opts...)
		w.run("web")
		return w.withState(w.s.Recovered("none", RestoreInfo{At: later}))
	}
	ahead := func(w *world) Generation {
		g := w.workload("web").Generation
		g.Sequence += 5
		return g
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"a newer generation on the same node gets a new order", func(t *testing.T, w *world) {
			w.ok(says("a", ahead(w)))
			x := w.workload("web")
			is(t, `node of workload "web"`, x.Node, "a")
			is(t, `the order of workload "web" is acknowledged`, x.Acknowledged, false)
			is(t, "incarnation in the generation of the new order", x.Generation.Incarnation, w.s.Info().Incarnation)
		}},
		{"a workload whose retries were exhausted gets a new order", func(t *testing.T, w *world) {
			w.ok(w.retry("web", 5, 0, true))
			w.ok(says("a", ahead(w)))
			is(t, `workload "web" is given up`, w.workload("web").Retry.Terminal, false)
			is(t, `status of workload "web"`, w.workload("web").Status, StatusUpdating)
		}},
		{"a newer generation on another node moves the workload and leaves a residual", func(t *testing.T, w *world) {
			w.ok(says("b", ahead(w)))
			x := w.workload("web")
			is(t, `node of workload "web"`, x.Node, "b")
			_, left := w.s.Residual("a", "web")
			is(t, `there is a residual of workload "web" on node "a"`, left, true)
			is(t, "reason of the event WorkloadScheduled", w.eventOf(EventWorkloadScheduled).Reason, CodeFoundThere)
		}},
		{"an older generation changes nothing", func(t *testing.T, w *world) {
			g := w.workload("web").Generation
			g.Sequence--
			w.do(says("b", g))
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
		{"a gone instance does not move the workload", func(t *testing.T, w *world) {
			w.do(gone("web", "b", GenerationPB(ahead(w))))
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
		{"a report does not count after a newer order", func(t *testing.T, w *world) {
			g := ahead(w)
			w.ok(userRetry("web"))
			w.do(says("b", g))
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, build(t)) })
	}
}

// TestMayOutliveLeaseUntilAccepted: MayOutliveLease says that a node may not stop a workload when its lease
// ends. After a restore, an import, or a report that is newer than the state, it is set until the node accepts
// a new order. Until then it is unknown which lease policies the node has accepted, and its fencer stops only
// workloads whose policy it has accepted.
func TestMayOutliveLeaseUntilAccepted(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world) *world
	}{
		{"restored", func(t *testing.T, w *world) *world {
			w.place("db", "a", content("c1:stop"), stops)
			w.run("db")
			backup := w.s
			w.ok(put("db", content("c1:keep"), exclusive))
			w.run("db")
			return w.withState(restored(t, backup, w.s))
		}},
		{"a report newer than the state", func(t *testing.T, w *world) *world {
			w.place("db", "a", content("c1:stop"), stops)
			w.run("db")
			old := w.s
			w.ok(put("db", content("c1:keep"), exclusive))
			said := w.says("db", "Running")
			back := w.withState(old.Recovered("r0", RestoreInfo{At: later, By: "admin"}))
			back.now = later
			back.ok(said)
			return back
		}},
		{"adopted", func(t *testing.T, w *world) *world {
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "db", DriftOrphan)}))
			w.ok(adopt("a", "db", stops))
			return w
		}},
		{"an imported workload whose order was not accepted", func(t *testing.T, w *world) *world {
			w.place("db", "a", stops)
			return w.withState(assembled(t, w.s))
		}},
		{"an imported workload whose order may have been refused", func(t *testing.T, w *world) *world {
			w.place("db", "a", stops)
			w.ok(w.says("db", "Failed"))
			return w.withState(assembled(t, w.s))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "b")
			w.ok(register("a", fencing))
			w = c.run(t, w)
			w.now = max(w.now, w.s.Info().Clock)
			w.ok(nodeState("a", false))
			is(t, `reason code of workload "db" before its node has accepted the lease policy`, w.workload("db").Reason.Code, CodeAwaitFailover)
			skipped(t, w.do(w.evict("db", CodeNodeLost, true)), "not fenced")
			w.ok(nodeState("a", true))
			w.run("db")
			w.ok(nodeState("a", false))
			is(t, `reason code of workload "db" after its node has accepted the lease policy`, w.workload("db").Reason.Code, CodeNodeLost)
		})
	}
}

// assembled returns the state that Assemble builds from the records of s in the form in which the mirror
// in etcd stores them, without MayOutliveLease.
func assembled(t *testing.T, s State) State {
	t.Helper()
	a := Assemble(Origin{ClusterID: "c1", FeatureLevel: FeatureLevel})
	s.Nodes("", func(n *Node) bool {
		if err := a.Node(nodePB(n)); err != nil {
			t.Fatal(err)
		}
		return true
	})
	s.Workloads("", func(w *Workload) bool {
		m := workloadPB(w)
		m.MayOutliveLease = false
		if err := a.Workload(m); err != nil {
			t.Fatal(err)
		}
		return true
	})
	out, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestoredMayOutliveLease: a workload that only the backup has is Pending after the restore, even if its
// MayOutliveLease is set in the backup.
func TestRestoredMayOutliveLease(t *testing.T) {
	w := formed(t, "b")
	w.ok(register("a", fencing))
	w.place("db", "a", exclusive)
	w.run("db")
	w.ok(put("db", content("c1:stop"), stops))
	backup := w.s
	is(t, `MayOutliveLease of workload "db" in the backup`, w.workload("db").MayOutliveLease, true)
	w.ok(remove("db", true))
	other := uninitialised(t)
	other.ok(initCluster("c2"))
	for name, present := range map[string]State{"the cluster that has deleted the workload since": w.s, "another cluster": other.s} {
		x, _ := restored(t, backup, present).Workload("db")
		is(t, "status of workload \"db\" after a restore into "+name, x.Status, StatusPending)
	}
}
