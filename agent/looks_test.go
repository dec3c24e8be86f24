package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
)

// A list that began before a look at one workload and ends after it changes nothing about that workload. A
// list that began later does.
func TestASlowListDoesNotUndoALook(t *testing.T) {
	r := newRig(t).start()
	began := time.Now()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	idle := func() {
		t.Helper()
		r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "never idle" })
	}
	idle()
	looks := r.hooks.count("look web")
	if looks == 0 {
		t.Fatal("nobody looked at it alone")
	}
	list := func(began time.Time) {
		t.Helper()
		e, _ := r.a.runner.State().Engine(driver.Container)
		if _, err := r.a.runner.Do(core.Listed{Kind: driver.Container, Bound: e.Bound, Began: began}); err != nil {
			t.Fatal(err)
		}
	}
	list(began)
	idle()
	if n := r.hooks.count("look web"); n != looks {
		t.Errorf("an older List without it had it looked at %d times more", n-looks)
	}
	list(time.Now())
	r.until(func() bool { return r.hooks.count("look web") > looks }, func() string { return "a newer List without it was no news" })
	r.reaches("web", running)
}

// settles waits until no work is due and no burst of events is being gathered.
func (r *rig) settles() {
	r.t.Helper()
	synctest.Wait()
	time.Sleep(time.Second)
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "never idle" })
}

// After an event of one workload, only that workload is looked at. The engine is listed after events of most
// workloads, or of an unknown one.
func TestAnEventCausesOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ReconcileInterval = 24 * time.Hour }).start()
		ids := []string{"a", "b", "c", "d", "e"}
		for _, id := range ids {
			r.apply(id, "sim/run", content("c1:"+id))
		}
		for _, id := range ids {
			r.reaches(id, running)
		}
		r.settles()
		lists, others := r.hooks.count("list"), r.hooks.count("look b")
		if err := r.engine.Kill("a", 1); err != nil {
			t.Fatal(err)
		}
		r.until(func() bool { return r.hooks.count("ensure a") == 2 }, func() string { return "its end was not seen" })
		r.reaches("a", running)
		r.settles()
		if n := r.hooks.count("list") - lists; n != 0 {
			t.Errorf("%d looks at everything after the end of one", n)
		}
		if n := r.hooks.count("look b") - others; n != 0 {
			t.Errorf("%d looks at another", n)
		}
		for _, id := range ids {
			if err := r.engine.Kill(driver.ID(id), 1); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			r.until(func() bool { return r.hooks.count("ensure "+id) >= 2 }, func() string { return "the end of " + id + " was not seen" })
			r.reaches(id, running)
		}
		r.settles()
		// Starts are events too, and may come after the look that follows each start.
		if n := r.hooks.count("list") - lists; n < 1 || n > 2 {
			t.Errorf("%d looks at everything after the end of all, want one for the ends and one for the starts at most", n)
		}
		lists = r.hooks.count("list")
		stray := driver.Spec{ID: "stray", Content: "c1:x", ClusterID: Unbound, NodeID: r.cfg.NodeID, Running: true, Body: container("sim/run")}
		if err := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: r.cfg.NodeID}).Ensure(t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		r.reaches("stray", running)
		if n := r.hooks.count("list") - lists; n == 0 {
			t.Error("one that nobody ordered was told of by no look at everything")
		}
		r.halt()
	})
}

// A workload ends after its last look, while the agent is still working on it.
func TestAnEventDuringALookIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ReconcileInterval = 24 * time.Hour }).start()
		var once sync.Once
		r.hooks.set(func(h *hooks) {
			h.looked = func(id driver.ID) {
				if r.hooks.count("ensure web") == 0 {
					return
				}
				once.Do(func() {
					if err := r.engine.Kill(id, 1); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second) // until the burst of its events is over
				})
			}
		})
		r.apply("web", "sim/run", content("c1:a"))
		r.until(func() bool { return r.hooks.count("ensure web") == 2 }, func() string { return "its end was not seen" })
		r.reaches("web", running)
		r.halt()
	})
}
