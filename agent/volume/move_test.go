package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/order"
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
	root, err := b.m.OpenSource(move, "db", "default", "data", true)
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
	if _, err := b.m.OpenSource(order.Generation{Incarnation: 1, Sequence: 4}, "db", "default", "data", true); err == nil {
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
