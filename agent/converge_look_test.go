package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
)

// TestASlowListIsNoNews: a List that began before a look at one workload, and ends after it, does not
// take back what that saw. One that began later does, and has it looked at again.
func TestASlowListIsNoNews(t *testing.T) {
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

// settles waits until nothing is to be done: no work, and no burst of events that is being gathered.
func (r *rig) settles() {
	r.t.Helper()
	synctest.Wait()
	time.Sleep(time.Second)
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "never idle" })
}

// TestAHintIsALookAtOne: what an engine hints at is looked at alone. The others are not, unless most of them
// are hinted at, or one that nobody knows.
func TestAHintIsALookAtOne(t *testing.T) {
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
		// Their starts are hints too, and may come after the look that follows each.
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

// TestAHintDuringALook: what ends after the last look at it has its answer, and before the agent is done with
// it, is seen all the same.
func TestAHintDuringALook(t *testing.T) {
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
					time.Sleep(time.Second) // the burst of its events is over
				})
			}
		})
		r.apply("web", "sim/run", content("c1:a"))
		r.until(func() bool { return r.hooks.count("ensure web") == 2 }, func() string { return "its end was not seen" })
		r.reaches("web", running)
		r.halt()
	})
}
