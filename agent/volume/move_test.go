package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order"
	"github.com/persys/compute/order/wire"
)

func TestCopyInUse(t *testing.T) {
	zero, one, two, three := order.Generation{}, order.Generation{Incarnation: 1, Sequence: 1}, order.Generation{Incarnation: 1, Sequence: 2}, order.Generation{Incarnation: 1, Sequence: 3}
	for _, c := range []struct {
		name         string
		v            Volume
		copy, undone order.Generation
		want         string // part of the error; "" = the copy is used
		after        copies
	}{
		{"a volume that never moved", Volume{}, zero, zero, "", copies{}},
		{"the copy that a move made", Volume{Copy: one}, one, zero, "", copies{copy: one}},
		{"an order from before a move", Volume{Copy: one}, zero, zero, "another copy", copies{}},
		{"an order for a copy that another node has", Volume{}, one, zero, "another copy", copies{}},
		{"a copy that was set aside", Volume{Aside: one}, zero, zero, "set its copy aside", copies{}},
		{"a copy that was set aside for a move that was undone", Volume{Aside: one}, zero, one, "", copies{undone: one}},
		{"a copy that was set aside for a move, and a later move was undone", Volume{Aside: one}, zero, two, "set its copy aside", copies{}},
		{"a copy that was set aside again after a move was undone", Volume{Aside: two, Undone: one}, zero, one, "set its copy aside", copies{}},
		{"an undone move before the copy was set aside", Volume{Copy: one}, one, two, "", copies{copy: one, undone: two}},
		{"an order from before a later undone move", Volume{Undone: two}, zero, one, "", copies{undone: two}},
		{"a complete incoming copy", Volume{Phase: Moving, Incoming: two, Complete: true}, two, zero, "", copies{copy: two}},
		{"an incomplete incoming copy", Volume{Phase: Moving, Incoming: two}, two, zero, "being copied", copies{}},
		{"an incoming copy of another move", Volume{Phase: Moving, Incoming: two, Complete: true}, three, zero, "being copied", copies{}},
		{"an incoming copy, and an order without a copy", Volume{Phase: Moving, Incoming: two, Complete: true}, zero, zero, "being copied", copies{}},
	} {
		got, err := copyInUse(c.v, c.copy, c.undone)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: the error is %v, want one with %q", c.name, err, c.want)
			}
		} else if err != nil || got != c.after {
			t.Errorf("%s: the result is %+v (error %v), want %+v", c.name, got, err, c.after)
		}
	}
}

// TestSourceIsSetAside: the last copy renames the folder, also if the agent was killed in between. Nothing else gets the
// folder, and garbage collection leaves it alone.
func TestSourceIsSetAside(t *testing.T) {
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", folder("data")); err != nil {
		t.Fatal(err)
	}
	move := order.Generation{Incarnation: 1, Sequence: 5}
	plain := filepath.Join(b.cfg.Pools[0].Path, "data")
	if err := os.WriteFile(filepath.Join(plain, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := b.m.OpenSource(move, order.Generation{}, "db", "default", "data", true)
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	if _, err := os.Stat(plain); !os.IsNotExist(err) {
		t.Errorf("the folder still has its name: %v", err)
	}
	if _, err := b.as("db", "", folder("data")); err == nil {
		t.Error("an order without an undone move got the copy that was set aside")
	}
	if _, err := b.m.OpenSource(order.Generation{Incarnation: 1, Sequence: 4}, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("an older move got the copy that was set aside")
	}
	b.m.SetMoves(map[order.Generation]bool{move: true})
	if err := b.m.Release(t.Context(), "db", Retention{Keep: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Delete(t.Context(), "local:data"); err == nil {
		t.Error("a copy that a move needs was deleted by hand")
	}
	// Another move has no right to the copy.
	if err := b.m.DropCopy(t.Context(), order.Generation{Incarnation: 1, Sequence: 6}, "db", "default", "data", true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(plain), ".aside-data", "file")); err != nil {
		t.Fatalf("the copy that was set aside is gone: %v", err)
	}
	if err := b.m.DropCopy(t.Context(), move, "db", "default", "data", true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(plain), ".aside-data")); !os.IsNotExist(err) {
		t.Errorf("the copy that was set aside still exists: %v", err)
	}
}

// incoming makes a complete incoming copy of volume data for a move, with a file unless it is empty.
func (b *bench) incoming(move order.Generation, empty bool) string {
	b.Helper()
	root, err := b.m.OpenTarget(move, "db", "default", "data", "")
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	if !empty {
		if err := root.WriteFile("file", []byte("x"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if err := b.m.Complete(move, "default", "data"); err != nil {
		b.Fatal(err)
	}
	return root.Name()
}

// ordered returns the volume of an order that names the copy in use and the last undone move.
func ordered(copy, undone order.Generation) *agentv1.ManagedVolumeSpec {
	s := folder("data")
	if !copy.IsZero() {
		s.Copy = wire.Agent(copy)
	}
	if !undone.IsZero() {
		s.Undone = wire.Agent(undone)
	}
	return s
}

// TestAMovedVolumeIsNeverMadeEmpty: a workload gets no empty folder in the place of the data that it had on another node.
func TestAMovedVolumeIsNeverMadeEmpty(t *testing.T) {
	move := order.Generation{Incarnation: 1, Sequence: 5}
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err == nil {
		t.Error("an order for a copy that this node does not have made an empty volume")
	}
	path := b.incoming(move, false)
	aside := path + ".unmounted"
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"the folder is missing", func() error { return os.Rename(path, aside) }},
		{"the folder is empty", func() error { return os.Mkdir(path, 0o755) }},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.as("db", "", ordered(move, order.Generation{})); err == nil {
			t.Errorf("%s: the workload got it", c.name)
		}
	}
	if err := errors.Join(os.Remove(path), os.Rename(aside, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err != nil {
		t.Errorf("the workload does not get its copy: %v", err)
	}
	v, _ := b.m.get("local:data")
	v.Phase = Provisioning // a record that has lost its folder
	if err := b.m.put(&v); err != nil {
		t.Fatal(err)
	}
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err == nil {
		t.Error("a moved volume was provisioned again")
	}

	b = newBench(t, Machine{})
	b.incoming(move, true)
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err != nil {
		t.Errorf("a volume that had no files is refused: %v", err)
	}
}

// TestAnUndoneMoveIsTakenBack: the source takes its copy back when the move is undone, also if its workload stays stopped. So
// a later move finds the copy in place.
func TestAnUndoneMoveIsTakenBack(t *testing.T) {
	first, second, third := order.Generation{Incarnation: 1, Sequence: 5}, order.Generation{Incarnation: 1, Sequence: 6}, order.Generation{Incarnation: 1, Sequence: 7}
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", folder("data")); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(b.cfg.Pools[0].Path, "data")
	aside := filepath.Join(b.cfg.Pools[0].Path, ".aside-data")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	source := func(move order.Generation) {
		t.Helper()
		root, err := b.m.OpenSource(move, order.Generation{}, "db", "default", "data", true)
		must(err)
		must(root.Close())
	}
	must(os.WriteFile(filepath.Join(plain, "file"), []byte("x"), 0o600))
	source(first)
	must(b.m.KeepCopy(first, order.Generation{}, "db", "default", "data", false))
	must(os.Rename(aside, aside+".unmounted"))
	for _, back := range []bool{false, true} {
		if err := b.m.KeepCopy(first, order.Generation{}, "db", "default", "data", back); err == nil {
			t.Errorf("a copy whose folder is missing is reported (taken back: %t)", back)
		}
	}
	must(os.Mkdir(plain, 0o755)) // by the engine
	if err := b.m.KeepCopy(first, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("an empty folder was taken back in the place of the copy")
	}
	must(os.Rename(aside+".unmounted", aside))
	must(b.m.Release(t.Context(), "db", Retention{Keep: true}))
	must(b.m.KeepCopy(first, order.Generation{}, "db", "default", "data", true))
	b.restart()
	if v, _ := b.m.get("local:data"); v.Phase != Retained || !v.ReleasedAt.IsZero() {
		t.Errorf("the copy that was taken back is %s since %v, want Retained and no time", v.Phase, v.ReleasedAt)
	}
	source(second)
	if err := b.m.KeepCopy(first, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("the end of an older move took back a copy that was set aside for a newer move")
	}
	if _, err := b.as("db", "", ordered(order.Generation{}, first)); err == nil {
		t.Error("an order from before the second move got the copy")
	}
	if err := b.m.KeepCopy(third, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("the end of a later move took back a copy that was set aside for another move")
	}
	must(b.m.KeepCopy(second, order.Generation{}, "db", "default", "data", true))
	if _, err := b.as("db", "", ordered(order.Generation{}, second)); err != nil {
		t.Errorf("after the undone moves the workload does not get its copy: %v", err)
	}
}

// TestAReturnedVolumeRetiresTheOtherCopy: a copy that was in use, and was given up, is set aside and stays.
func TestAReturnedVolumeRetiresTheOtherCopy(t *testing.T) {
	move := order.Generation{Incarnation: 1, Sequence: 5}
	b := newBench(t, Machine{})
	path := b.incoming(move, false)
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Retire(move, "db", "default", "data"); err == nil {
		t.Error("a copy was set aside while a workload uses it")
	}
	if err := b.m.Release(t.Context(), "db", Retention{Keep: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.m.DropCopy(t.Context(), move, "db", "default", "data", false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), ".aside-data", "file")); err != nil {
		t.Errorf("the copy that was in use is gone: %v", err)
	}
	if _, err := b.as("db", "", ordered(move, order.Generation{})); err == nil {
		t.Error("a late order got the copy that was given up")
	}
}

// TestACopyIsNotForgotten: a copy whose disk is missing is not taken for deleted, and before the schedulers have listed the
// moves no copy that is set aside is deleted by hand.
func TestACopyIsNotForgotten(t *testing.T) {
	move := order.Generation{Incarnation: 1, Sequence: 5}
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", folder("data")); err != nil {
		t.Fatal(err)
	}
	root, err := b.m.OpenSource(move, order.Generation{}, "db", "default", "data", true)
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	if err := b.m.Release(t.Context(), "db", Retention{Keep: true}); err != nil {
		t.Fatal(err)
	}
	b.restart()
	if err := b.m.Delete(t.Context(), "local:data"); err == nil {
		t.Error("a copy that was set aside was deleted before the schedulers had listed the moves")
	}
	aside := filepath.Join(b.cfg.Pools[0].Path, ".aside-data")
	if err := os.Rename(aside, aside+".unmounted"); err != nil {
		t.Fatal(err)
	}
	if err := b.m.DropCopy(t.Context(), move, "db", "default", "data", true); err == nil {
		t.Error("a copy whose folder is missing is reported as deleted")
	}
}

// TestAnOldCopyIsNoSource: a node has a complete copy of a move that was undone while the node was away, so the other node has
// newer data. The other node is given up, and the volume moves on from this node: its old copy is not served and not taken
// into use.
func TestAnOldCopyIsNoSource(t *testing.T) {
	first, second := order.Generation{Incarnation: 1, Sequence: 5}, order.Generation{Incarnation: 1, Sequence: 6}
	b := newBench(t, Machine{})
	b.incoming(first, false)
	for _, final := range []bool{false, true} {
		if root, err := b.m.OpenSource(second, order.Generation{}, "db", "default", "data", final); err == nil {
			root.Close()
			t.Errorf("the old copy was served (last copy: %t)", final)
		}
	}
	if err := b.m.KeepCopy(second, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("the old copy is reported as the copy in use")
	}
	if v, _ := b.m.get("local:data"); v.Phase != Moving || v.Incoming != first {
		t.Errorf("the old copy was taken into use: %+v", v)
	}
	// If the first move was placed, and the workload never started here, its copy is the copy in use.
	if err := b.m.KeepCopy(second, first, "db", "default", "data", true); err != nil {
		t.Errorf("the copy in use is not reported: %v", err)
	}
	root, err := b.m.OpenSource(order.Generation{Incarnation: 1, Sequence: 7}, first, "db", "default", "data", true)
	if err != nil {
		t.Fatalf("the copy in use is not served: %v", err)
	}
	root.Close()
}

// TestALaterUndoneMoveTakesBackNoOldCopy: the first move is done, but this node was away and keeps the copy that it set aside.
// The other node is given up, and a move from this node begins and is undone. The old copy stays aside.
func TestALaterUndoneMoveTakesBackNoOldCopy(t *testing.T) {
	first, second := order.Generation{Incarnation: 1, Sequence: 5}, order.Generation{Incarnation: 1, Sequence: 6}
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", folder("data")); err != nil {
		t.Fatal(err)
	}
	root, err := b.m.OpenSource(first, order.Generation{}, "db", "default", "data", true)
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	if root, err := b.m.OpenSource(second, order.Generation{}, "db", "default", "data", true); err == nil {
		root.Close()
		t.Error("the old copy was served")
	}
	if err := b.m.KeepCopy(second, order.Generation{}, "db", "default", "data", true); err == nil {
		t.Error("the end of the second move took the old copy back")
	}
	if _, err := b.as("db", "", ordered(order.Generation{}, second)); err == nil {
		t.Error("an order after the second move got the old copy")
	}
}

// TestAMoveTakesNoVolumeOfAnotherNamespace: a volume that was made before ids contained the namespace has the id of another
// namespace's volume.
func TestAMoveTakesNoVolumeOfAnotherNamespace(t *testing.T) {
	move := order.Generation{Incarnation: 1, Sequence: 5}
	b := newBench(t, Machine{})
	if _, err := b.as("db", "", folder("data")); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Release(t.Context(), "db", Retention{Keep: true}); err != nil {
		t.Fatal(err)
	}
	v, _ := b.m.get("local:data")
	for _, namespace := range []string{"shop", ""} {
		if v.Namespace, v.Owner = namespace, ""; namespace == "" {
			namespace = defaultNamespace
		}
		if err := b.m.put(&v); err != nil {
			t.Fatal(err)
		}
		ours := namespace == defaultNamespace
		if err := b.m.KeepCopy(move, order.Generation{}, "db", "default", "data", false); (err == nil) != ours {
			t.Errorf("namespace %s: the copy is reported with the error %v", namespace, err)
		}
		root, err := b.m.OpenSource(move, order.Generation{}, "db", "default", "data", true)
		if (err == nil) != ours {
			t.Errorf("namespace %s: the volume is opened with the error %v", namespace, err)
		}
		if err == nil {
			root.Close()
		}
		now, _ := b.m.get("local:data")
		if now.Aside.IsZero() == ours {
			t.Errorf("namespace %s: the volume is set aside for %s", namespace, now.Aside)
		}
		if !ours { // as if another workload had set it aside
			now.Aside = move
			if err := b.m.put(&now); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.m.DropCopy(t.Context(), move, "db", "default", "data", true); (err == nil) != ours {
			t.Errorf("namespace %s: the copy is deleted with the error %v", namespace, err)
		}
		if _, ok := b.m.get("local:data"); ok == ours {
			t.Errorf("namespace %s: the volume exists: %t", namespace, ok)
		}
	}
}
