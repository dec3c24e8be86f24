package cluster

import (
	"testing"
)

// TestDropBefore: replicas drop log entries and snapshots from before an index. A replica that was off meanwhile gets
// the state as a snapshot, and after a restart of all replicas nothing is missing.
func TestDropBefore(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	g.put("first", 1)
	l := g.leader()
	// Take a snapshot before the index that DropBefore gets later. DropBefore must delete
	// this snapshot.
	if err := l.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	off := g.index(g.follower(l))
	g.close(off)
	for i := range int64(20) {
		g.put("second", i)
	}
	l = g.waitLeader()
	index := l.Store().View().Info().Index
	if err := l.DropBefore(index + 1_000_000); err != nil {
		t.Fatal(err)
	}
	if oldest, err := l.Oldest(); err != nil || oldest >= index {
		t.Errorf("DropBefore of an index that is not applied yet must drop nothing, but the oldest entry or snapshot now has index %d (error %v)", oldest, err)
	}
	for _, n := range g.snapshot() {
		for {
			if _, err := n.Store().At(t.Context(), index); err != nil {
				t.Fatal(err)
			}
			if err := n.DropBefore(index); err == nil {
				break
			}
		}
		if oldest, err := n.Oldest(); err != nil || oldest < index {
			t.Errorf("after DropBefore the oldest entry or snapshot has index %d (error %v), want at least %d", oldest, err, index)
		}
		if n.raft.ReloadableConfig().TrailingLogs != n.cfg.Timing.TrailingEntries {
			t.Error("after DropBefore the Raft setting TrailingLogs must have its configured value again, but has another")
		}
	}
	g.start(off)
	g.settled(3)
	for i := range 3 {
		g.close(i)
	}
	for i := range 3 {
		g.start(i)
	}
	n := g.settled(3)
	g.put("third", 3)
	if _, err := n.Store().At(t.Context(), index); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "second", "third"} {
		if _, ok := g.leader().Store().View().Workload(id); !ok {
			t.Errorf("after the restart of all replicas workload %s is missing", id)
		}
	}
}
