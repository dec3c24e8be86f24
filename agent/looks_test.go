package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
)

// A list of the engine and an inspection of one workload (Look) overlap. If the list was started before the
// inspection, the agent ignores the list's entry for that workload, even if the list ended later. If the list
// was started after the inspection, the agent uses that entry.
func TestASlowListDoesNotUndoALook(t *testing.T) {
	r := newRig(t).start()
	began := time.Now()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	idle := func() {
		t.Helper()
		r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
	}
	idle()
	looks := r.hooks.count("look web")
	if looks == 0 {
		t.Fatal("the agent did not inspect the workload after its start")
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
		t.Errorf("a list that was started before the inspection of the workload, and lacks it, caused %d more inspections; want none", n-looks)
	}
	list(time.Now())
	r.until(func() bool { return r.hooks.count("look web") > looks }, func() string {
		return "a list that was started after the inspection, and lacks the workload, caused no new inspection"
	})
	r.reaches("web", running)
}

// settles waits until the agent has handled all engine events and has no action to carry out.
func (r *rig) settles() {
	r.t.Helper()
	synctest.Wait()
	time.Sleep(time.Second)
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
}

// After an event about one workload, the agent inspects only that workload. It lists the whole engine after a
// burst of events about most workloads, or after an event about an unknown workload.
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
		r.until(func() bool { return r.hooks.count("ensure a") == 2 }, func() string { return "the agent did not see the end of workload a" })
		r.reaches("a", running)
		r.settles()
		if n := r.hooks.count("list") - lists; n != 0 {
			t.Errorf("the engine was listed %d times after one workload ended, want 0", n)
		}
		if n := r.hooks.count("look b") - others; n != 0 {
			t.Errorf("the agent inspected a workload that had no event %d times, want 0", n)
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
		// The engine sends an event for each start too. If that event arrives after the inspection that follows
		// the start, it causes one more list.
		if n := r.hooks.count("list") - lists; n < 1 || n > 2 {
			t.Errorf("after all workloads ended the engine was listed %d times, want one list after the exits, and at most one more after the restarts", n)
		}
		lists = r.hooks.count("list")
		stray := driver.Spec{ID: "stray", Content: "c1:x", ClusterID: Unbound, NodeID: r.cfg.NodeID, Running: true, Body: container("sim/run")}
		if err := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: r.cfg.NodeID}).Ensure(t.Context(), stray); err != nil {
			t.Fatal(err)
		}
		r.reaches("stray", running)
		if n := r.hooks.count("list") - lists; n == 0 {
			t.Error("the event of an unknown instance caused no list of the engine")
		}
		r.halt()
	})
}

// A workload ends while an action on it is in progress, after the action's last inspection. The agent does not
// lose the event about the end.
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
					time.Sleep(time.Second) // wait until the burst of events is over
				})
			}
		})
		r.apply("web", "sim/run", content("c1:a"))
		r.until(func() bool { return r.hooks.count("ensure web") == 2 }, func() string { return "the agent did not see the end of workload web" })
		r.reaches("web", running)
		r.halt()
	})
}
