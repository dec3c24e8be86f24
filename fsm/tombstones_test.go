package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// buried is a world whose node a was fenced while it had web, which then was
// deleted, and is back. It returns the generation that a was told.
func buried(w *world, opts ...func(*commandv1.WorkloadPut)) *commandv1.Generation {
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

func TestGraves(t *testing.T) {
	prove4 := func(facts []fact) {
		for _, f := range facts {
			t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
		}
	}
	prove4([]fact{
		{"what was deleted is remembered with its last generation and node", func(t *testing.T, w *world) {
			w.place("web", "a", hostPort(80))
			w.ok(remove("web", true))
			g, ok := w.s.Tombstone("web")
			is(t, "grave", ok, true)
			is(t, "node", g.Node, "a")
			is(t, "generation", g.Generation, Generation{w.s.Info().Incarnation, w.s.Info().Sequence})
			is(t, "ports", len(g.Claims.Ports), 1)
			is(t, "at", g.At, w.now)
		}},
		{"a delete that ends with its last residual digs, too", func(t *testing.T, w *world) {
			w.place("web", "a")
			w.ok(remove("web", false))
			is(t, "graves while it is deleted", w.s.TombstoneCount(), 0)
			w.ok(gone("web", "a", nil))
			g, _ := w.s.Tombstone("web")
			is(t, "node", g.Node, "a")
		}},
		{"a node that returns with it is told to let go, and then it ends", func(t *testing.T, w *world) {
			told := buried(w, hostPort(80))
			w.ok(saysOf("web", "a", "Running", told))
			r, ok := w.s.Residual("a", "web")
			is(t, "residual", ok, true)
			is(t, "reason", r.Reason, CodeLeftBehind)
			is(t, "newer than what it was told", GenerationOf(told).Less(r.Generation), true)
			is(t, "event", w.eventOf(EventDriftDetected).Node, "a")
			holder, _ := w.s.PortHolder(w.node("a").Engine(), HostPort{80, "tcp"})
			is(t, "its port is held meanwhile", holder, "web")
			is(t, "workloads", w.s.WorkloadCount(), 0)
			w.ok(gone("web", "a", GenerationPB(r.Generation)))
			is(t, "residuals", w.s.ResidualCount(), 0)
			is(t, "graves", w.s.TombstoneCount(), 1)
		}},
		{"a second word adds nothing", func(t *testing.T, w *world) {
			told := buried(w)
			w.ok(saysOf("web", "a", "Running", told))
			w.do(saysOf("web", "a", "Failed", told))
			is(t, "changes", len(w.last), 0)
		}},
		{"a node that was removed and registers anew is told as well", func(t *testing.T, w *world) {
			w.place("web", "a")
			told := w.generation("web")
			w.ok(nodeState("a", false))
			w.ok(removeNode("a", false))
			w.ok(remove("web", false))
			w.ok(register("a"))
			w.ok(saysOf("web", "a", "Running", told))
			is(t, "residuals", w.s.ResidualCount(), 1)
		}},
		{"a workload made anew has no grave, and its older instance is left over all the same", func(t *testing.T, w *world) {
			told := buried(w)
			w.ok(put("web"))
			is(t, "graves", w.s.TombstoneCount(), 0)
			w.ok(saysOf("web", "a", "Running", told))
			is(t, "residuals", w.s.ResidualCount(), 1)
		}},
		{"deleted twice, it lies in its newest grave", func(t *testing.T, w *world) {
			buried(w)
			first, _ := w.s.Tombstone("web")
			w.ok(put("web"))
			w.ok(remove("web", false))
			last, _ := w.s.Tombstone("web")
			is(t, "newer", first.Generation.Less(last.Generation) && first.Index < last.Index, true)
			is(t, "graves", w.s.TombstoneCount(), 1)
		}},
	})
	for _, c := range []struct {
		name string
		said func(w *world, told *commandv1.Generation) Command
	}{
		{"gone", func(_ *world, g *commandv1.Generation) Command { return gone("web", "a", g) }},
		{"Missing", func(_ *world, g *commandv1.Generation) Command { return saysOf("web", "a", "Missing", g) }},
		{"no generation", func(*world, *commandv1.Generation) Command { return saysOf("web", "a", "Running", nil) }},
		{"a generation later than its end", func(w *world, g *commandv1.Generation) Command {
			return saysOf("web", "a", "Running", &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence + 1000})
		}},
		{"something while it is down", func(w *world, g *commandv1.Generation) Command {
			w.ok(nodeState("a", false))
			return saysOf("web", "a", "Running", g)
		}},
		{"something under the name of no node", func(_ *world, g *commandv1.Generation) Command { return saysOf("web", "z", "Running", g) }},
	} {
		prove4([]fact{{"nothing is left over when a node says " + c.name, func(t *testing.T, w *world) {
			told := buried(w)
			is(t, "skipped", w.do(c.said(w, told)).Skipped, 1)
			is(t, "residuals", w.s.ResidualCount(), 0)
		}}})
	}
}

// TestGravesAreBounded: the oldest go first, in the order of the log.
func TestGravesAreBounded(t *testing.T) {
	w := formed(t, "a")
	tx := w.s.Begin()
	const over = 3
	for i := range MaxTombstones + over {
		id := fmt.Sprintf("w%d", MaxTombstones+over-i) // not the order of their names
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
	is(t, "graves", s.TombstoneCount(), MaxTombstones)
	for i := range over + 1 {
		_, ok := s.Tombstone(fmt.Sprintf("w%d", MaxTombstones+over-i))
		is(t, fmt.Sprintf("number %d is remembered", i+1), ok, i == over)
	}
}

// What graves a state has that came back.
func TestRestoredGraves(t *testing.T) {
	for _, f := range []fact{
		{"what was deleted before the backup, or here, stays so", func(t *testing.T, w *world) {
			w.ok(put("old"))
			w.ok(remove("old", false))
			backup := w.s
			w.ok(put("old"))
			w.ok(put("new"))
			w.ok(remove("new", false))
			s := restored(t, backup, w.s)
			_, before := s.Tombstone("old")
			_, since := s.Tombstone("new")
			is(t, "deleted before the backup", before, true)
			is(t, "deleted here since", since, true)
		}},
		{"what comes back has no grave", func(t *testing.T, w *world) {
			w.ok(put("web"))
			backup := w.s
			w.ok(remove("web", false))
			is(t, "graves", restored(t, backup, w.s).TombstoneCount(), 0)
		}},
		{"what the backup lacks was not deleted and runs on", func(t *testing.T, w *world) {
			backup := w.s
			w.place("web", "a")
			w.run("web")
			told := w.generation("web")
			next := w.wentOn(restored(t, backup, w.s))
			is(t, "skipped", next.do(saysOf("web", "a", "Running", told)).Skipped, 1)
			is(t, "residuals", next.s.ResidualCount(), 0)
		}},
		{"what was deleted, made anew and is lacked runs on, too", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(remove("web", false))
			backup := w.s
			w.place("web", "a")
			told := w.generation("web")
			next := w.wentOn(restored(t, backup, w.s))
			is(t, "graves", next.s.TombstoneCount(), 1)
			is(t, "skipped", next.do(saysOf("web", "a", "Running", told)).Skipped, 1)
			is(t, "residuals", next.s.ResidualCount(), 0)
		}},
		{"another cluster's dead are not ours", func(t *testing.T, w *world) {
			w.ok(put("web"))
			w.ok(remove("web", false))
			other := virgin(t)
			other.ok(initCluster("c2"))
			is(t, "graves", restored(t, w.s, other.s).TombstoneCount(), 0)
		}},
	} {
		t.Run(f.name, func(t *testing.T) { f.run(t, formed(t, "a", "b")) })
	}
}
