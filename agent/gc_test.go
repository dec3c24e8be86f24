package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/garbage"
)

// heap is the garbage that a simulated engine holds. It belongs to the engine: new drivers for the engine
// use the same heap.
type heap struct {
	mu      sync.Mutex
	items   []driver.Garbage
	down    error
	removed []string
}

// collector is a driver of the simulated engine that reports garbage.
type collector struct {
	driver.Driver
	*heap
}

func (c collector) Probe(ctx context.Context) (driver.Capacity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return driver.Capacity{Reason: c.down.Error()}, c.down
	}
	return c.Driver.Probe(ctx)
}

func (c *heap) Garbage(context.Context, driver.GarbageQuery) ([]driver.Garbage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.items), nil
}

func (c *heap) Collect(_ context.Context, g driver.Garbage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = append(c.removed, g.Name)
	c.items = slices.DeleteFunc(c.items, func(o driver.Garbage) bool { return o == g })
	return nil
}

func (c *heap) gone() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.removed)
}

// collecting makes a rig (an agent on a simulated engine) whose driver reports these items as garbage.
func collecting(t *testing.T, items []driver.Garbage, change ...func(*Config)) (*rig, *heap) {
	t.Helper()
	r := newRig(t, change...)
	c := &heap{items: items}
	r.make = func(b Binding) ([]driver.Driver, error) {
		list, err := r.factory(b)
		if err != nil {
			return nil, err
		}
		return []driver.Driver{collector{list[0], c}}, nil
	}
	return r.start(), c
}

func (r *rig) gc(dry, orphans bool) *agentv1.CollectGarbageResponse {
	r.t.Helper()
	out, err := r.api.CollectGarbage(context.Background(), &agentv1.CollectGarbageRequest{DryRun: dry, Orphans: orphans, By: "persys://c1/user/ada"})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func TestGarbageIsListedAndRemoved(t *testing.T) {
	items := []driver.Garbage{
		{Kind: driver.Orphan, Name: "ghost", Workload: "ghost", Reason: "nobody ordered it"},
		{Kind: driver.Leftover, Name: "web--old", Workload: "web", Reason: "left by a replacement"},
	}
	r, c := collecting(t, items)
	if out := r.gc(true, true); len(out.Items) != 2 || len(c.gone()) != 0 || out.Items[0].Removed {
		t.Fatalf("a dry run of garbage collection found %v and removed %v; want nothing removed", out, c.gone())
	}
	out := r.gc(false, false)
	if got := c.gone(); !slices.Equal(got, []string{"web--old"}) || out.Items[0].Removed || !out.Items[1].Removed {
		t.Fatalf("garbage collection without orphans removed %v, want only the leftover", got)
	}
	r.gc(false, true)
	if got := c.gone(); !slices.Equal(got, []string{"web--old", "ghost"}) {
		t.Errorf("garbage collection with orphans removed %v", got)
	}
	acts, err := r.api.ListActions(context.Background(), &agentv1.ListActionsRequest{ActionType: core.ActionGC})
	if err != nil || len(acts.Actions) != 2 || !strings.Contains(acts.Actions[0].Error, "leftover web--old: left by a replacement; removal requested by persys://c1/user/ada") ||
		acts.Actions[0].Status != core.TaskCompleted || acts.Actions[0].EndedAt == 0 {
		t.Errorf("the task history has %v, error %v; want two collections with the removed item", acts, err)
	}
}

func TestGarbageIsCollectedByItself(t *testing.T) {
	r, c := collecting(t, []driver.Garbage{{Kind: driver.Leftover, Name: "old"}, {Kind: driver.Orphan, Name: "ghost"}}, func(cfg *Config) {
		cfg.GC.Every, cfg.ReconcileInterval = 10*time.Millisecond, 20*time.Millisecond
	})
	r.until(func() bool { return len(c.gone()) > 0 }, func() string { return "the periodic garbage collection removed nothing" })
	if got := c.gone(); !slices.Equal(got, []string{"old"}) {
		t.Errorf("the periodic garbage collection removed %v", got)
	}
}

// While an engine does not answer, none of its garbage is removed. No record and no volume is removed either,
// because an instance on that engine may use them.
func TestNoGarbageWhileARuntimeIsDown(t *testing.T) {
	r, c := collecting(t, []driver.Garbage{{Kind: driver.Leftover, Name: "old"}}, func(cfg *Config) { cfg.GC.VolumesAfter = time.Nanosecond })
	r.apply("web", "img:1", managed(&agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data"}))
	r.reaches("web", running)
	r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.KeepVolumes = true })
	r.gone("web")
	c.mu.Lock()
	c.down = errors.New("cannot connect")
	c.mu.Unlock()
	out := r.gc(false, true)
	if len(out.Items) != 0 || len(out.Skipped) != 2 || !strings.Contains(out.Skipped[0], "cannot connect") || len(c.gone()) != 0 {
		t.Fatalf("with an engine down, the collection returned %v and removed %v; want two skipped engines and nothing removed", out, c.gone())
	}
	c.mu.Lock()
	c.down = nil
	c.mu.Unlock()
	data := filepath.Join(filepath.Dir(r.cfg.StatePath), "volumes", "local", "data")
	if _, err := os.Stat(data); err != nil {
		t.Fatal(err)
	}
	if out := r.gc(false, false); len(out.Items) != 2 || out.Items[1].Name != "local:data" || !out.Items[1].Removed || exists(data) {
		t.Errorf("the volume that was released long ago is not listed as garbage: %v", out)
	}
}

// Legacy v1 schedulers leave it to agents to drop an order that failed permanently. Our schedulers drop such
// orders themselves.
func TestOnlyLegacySchedulersLetAgentsForgetFailedOrders(t *testing.T) {
	for _, c := range []struct {
		name  string
		epoch bool
		want  int
	}{{"an agent of legacy v1 schedulers drops the order", false, 1}, {"an agent of our schedulers keeps the order", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			s, o := leader(), []option{by(1), at(1)}
			if !c.epoch {
				s, o = existing(), nil
			}
			r, _ := collecting(t, nil, under(s), func(cfg *Config) { cfg.GC.FailedAfter = time.Nanosecond })
			r.hooks.set(func(h *hooks) {
				h.ensure = func(driver.Spec) error { return driver.Errorf(driver.InvalidImage, "pull", "no such image") }
			})
			r.apply("bad", "img:1", o...)
			r.reaches("bad", failing)
			if out := r.found(); len(out) != c.want {
				t.Errorf("a dry run of garbage collection found %v", out)
			}
		})
	}
}

// found returns the garbage that a dry run finds. It calls the collector directly and not through
// the API.
func (r *rig) found() []garbage.Finding {
	return r.a.garbage.Collect(context.Background(), true, false, "").Items
}

// The agent removes garbage and restarts. Its history still contains the removal, so that the schedulers can
// read it later.
func TestRemovalIsDurable(t *testing.T) {
	r, _ := collecting(t, []driver.Garbage{{Kind: driver.Leftover, Name: "old"}})
	r.gc(false, false)
	r.halt()
	db, err := bolt.Open(r.cfg.StatePath, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	_ = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("tasks")).ForEach(func(k, _ []byte) error {
			if strings.HasPrefix(string(k), "gc-leftover-old-") {
				n++
			}
			return nil
		})
	})
	if n != 1 {
		t.Errorf("after a restart of the agent the task history has %d records of removals", n)
	}
}
