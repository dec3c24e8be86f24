package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/order"
)

// deletedWhileFenced places web on node a, confirms that a is off (fence), deletes web, and lets a
// register again. It returns the generation of web that node a had received.
func deletedWhileFenced(w *world, opts ...func(*commandv1.WorkloadPut)) *commandv1.Generation {
	w.place("web", "a", opts...)
	w.run("web")
	told := w.generation("web")
	w.ok(nodeState("a", false))
	w.ok(fence("a"))
	w.ok(w.evict("web", CodeNodeLost, true))
	w.ok(remove("web", false))
	w.ok(register("a"))
	return told
}

func saysOf(id, node, state string, g *commandv1.Generation) Command {
	return report(&commandv1.WorkloadReport{Workload: id, Node: node, Generation: g, State: state})
}

func TestTombstonesOfDeletedWorkloads(t *testing.T) {
	prove4 := func(facts []fact) {
		for _, f := range facts {
			t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
		}
	}
	prove4([]fact{
		{"a deleted workload leaves a tombstone with its last generation and node", func(t *testing.T, w *world) {
			w.place("web", "a", hostPort(80))
			w.ok(remove("web", true))
			g, ok := w.s.Tombstone("web")
			is(t, `there is a tombstone of workload "web"`, ok, true)
			is(t, "node in the tombstone", g.Node, "a")
			is(t, "generation in the tombstone", g.Generation, Generation{Incarnation: w.s.Info().Incarnation, Sequence: w.s.Info().Sequence})
			is(t, "number of host ports in the tombstone", len(g.Claims.Ports), 1)
			is(t, "time of the tombstone", g.At, w.now)
		}},
		{"a delete that ends with its last residual leaves a tombstone", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			is(t, "number of tombstones while the workload is being deleted", w.s.TombstoneCount(), 0)
			w.ok(gone("web", "a", nil))
			g, _ := w.s.Tombstone("web")
			is(t, "node in the tombstone", g.Node, "a")
		}},
		{"a returning node that still runs the workload gets a residual until the instance is gone", func(t *testing.T, w *world) {
			told := deletedWhileFenced(w, hostPort(80))
			w.ok(saysOf("web", "a", "Running", told))
			r, ok := w.s.Residual("a", "web")
			is(t, "there is a residual of the workload", ok, true)
			is(t, `reason of the residual of workload "web" on node "a"`, r.Reason, CodeLeftBehind)
			is(t, "the generation of the residual is above that of the instance on the node", order.GenerationOf(told).Less(r.Generation), true)
			is(t, "node of the event DriftDetected", w.eventOf(EventDriftDetected).Node, "a")
			holder, _ := w.s.PortHolder(w.node("a").Engine(), HostPort{Port: 80, Protocol: "tcp"})
			is(t, "workload that holds port 80", holder, "web")
			is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
			w.ok(gone("web", "a", GenerationPB(r.Generation)))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
			is(t, "number of tombstones in the state", w.s.TombstoneCount(), 1)
		}},
		{"a second report of the instance changes nothing", func(t *testing.T, w *world) {
			told := deletedWhileFenced(w)
			w.ok(saysOf("web", "a", "Running", told))
			w.do(saysOf("web", "a", "Failed", told))
			is(t, "number of records that the last command changed", len(w.last), 0)
		}},
		{"a node that was removed and registers again gets a residual", func(t *testing.T, w *world) {
			w.place("web", "a")
			told := w.generation("web")
			w.ok(nodeState("a", false))
			w.ok(removeNode("a", false))
			w.ok(remove("web", false))
			w.ok(register("a"))
			w.ok(saysOf("web", "a", "Running", told))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"a workload that is created again has no tombstone, and its older instance is a residual", func(t *testing.T, w *world) {
			told := deletedWhileFenced(w)
			w.ok(put("web"))
			is(t, "number of tombstones in the state", w.s.TombstoneCount(), 0)
			w.ok(saysOf("web", "a", "Running", told))
			is(t, "number of residuals in the state", w.s.ResidualCount(), 1)
		}},
		{"a second delete replaces the tombstone", func(t *testing.T, w *world) {
			deletedWhileFenced(w)
			first, _ := w.s.Tombstone("web")
			w.ok(put("web"))
			w.ok(remove("web", false))
			last, _ := w.s.Tombstone("web")
			is(t, "generation and index of the second tombstone are above those of the first", first.Generation.Less(last.Generation) && first.Index < last.Index, true)
			is(t, "number of tombstones in the state", w.s.TombstoneCount(), 1)
		}},
	})
	for _, c := range []struct {
		name string
		said func(w *world, told *commandv1.Generation) Command
	}{
		{"an instance that is gone", func(_ *world, g *commandv1.Generation) Command { return gone("web", "a", g) }},
		{"the state Missing", func(_ *world, g *commandv1.Generation) Command { return saysOf("web", "a", "Missing", g) }},
		{"a running instance without a generation", func(*world, *commandv1.Generation) Command { return saysOf("web", "a", "Running", nil) }},
		{"a running instance of a generation newer than the tombstone", func(w *world, g *commandv1.Generation) Command {
			return saysOf("web", "a", "Running", &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence + 1000})
		}},
		{"a running instance while the node is down", func(w *world, g *commandv1.Generation) Command {
			w.ok(nodeState("a", false))
			return saysOf("web", "a", "Running", g)
		}},
		{"a running instance on an unknown node", func(_ *world, g *commandv1.Generation) Command { return saysOf("web", "z", "Running", g) }},
	} {
		prove4([]fact{{"a node gets no residual of a deleted workload after a report of " + c.name, func(t *testing.T, w *world) {
			told := deletedWhileFenced(w)
			is(t, "number of skipped items of the command", w.do(c.said(w, told)).Skipped, 1)
			is(t, "number of residuals in the state", w.s.ResidualCount(), 0)
		}}})
	}
}

// TestTombstonesAreBounded: if there are more than MaxTombstones, those with the lowest log indexes
// are dropped.
func TestTombstonesAreBounded(t *testing.T) {
	w := formed(t, "a")
	tx := w.s.Begin()
	const over = 3
	for i := range MaxTombstones + over {
		id := fmt.Sprintf("w%d", MaxTombstones+over-i) // the order of the ids is not the order of the deletions
		m := Meta{uint64(1000 + i), 1}
		if res, _ := tx.Apply(m, put(id)); res.Err() != nil {
			t.Fatal(res.Reason)
		}
		if res, _ := tx.Apply(m, remove(id, false)); res.Err() != nil {
			t.Fatal(res.Reason)
		}
	}
	s := tx.Commit()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	is(t, "number of tombstones in the state", s.TombstoneCount(), MaxTombstones)
	for i := range over + 1 {
		_, ok := s.Tombstone(fmt.Sprintf("w%d", MaxTombstones+over-i))
		is(t, fmt.Sprintf("the workload that was deleted as number %d has a tombstone", i+1), ok, i == over)
	}
}

// TestRestoredTombstones: a restored state has the tombstones of the backup and of the present
// state, except those of restored workloads.
func TestRestoredTombstones(t *testing.T) {
	for _, f := range []fact{
		{"deletions before the backup and in the present state keep their tombstones", func(t *testing.T, w *world) {
			w.ok(put("old"))
			w.ok(remove("old", false))
			backup := w.s
			w.ok(put("old"))
			w.ok(put("new"))
			w.ok(remove("new", false))
			s := restored(t, backup, w.s)
			_, before := s.Tombstone("old")
			_, since := s.Tombstone("new")
			is(t, "the workload that was deleted before the backup has a tombstone", before, true)
			is(t, "the workload that was deleted after the backup has a tombstone", since, true)
		}},
		{"a restored workload has no tombstone", func(t *testing.T, w *world) {
			w.ok(put("web"))
			backup := w.s
			w.ok(remove("web", false))
			is(t, "number of tombstones in the state", restored(t, backup, w.s).TombstoneCount(), 0)
		}},
		{"a workload that the backup lacks is not deleted", func(t *testing.T, w *world) {
			backup := w.s
			w.place("web", "a")
			w.run("web")
			told := w.generation("web")
			next := w.withState(restored(t, backup, w.s))
			is(t, "number of skipped items of the command", next.do(saysOf("web", "a", "Running", told)).Skipped, 1)
			is(t, "number of residuals in the state", next.s.ResidualCount(), 0)
		}},
		{"a workload that was created again after the backup is not deleted", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(remove("web", false))
			backup := w.s
			w.place("web", "a")
			told := w.generation("web")
			next := w.withState(restored(t, backup, w.s))
			is(t, "number of tombstones in the state", next.s.TombstoneCount(), 1)
			is(t, "number of skipped items of the command", next.do(saysOf("web", "a", "Running", told)).Skipped, 1)
			is(t, "number of residuals in the state", next.s.ResidualCount(), 0)
		}},
		{"tombstones of another cluster are not restored", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(remove("web", false))
			other := uninitialised(t)
			other.ok(initCluster("c2"))
			is(t, "number of tombstones in the state", restored(t, w.s, other.s).TombstoneCount(), 0)
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}
