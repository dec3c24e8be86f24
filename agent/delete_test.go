package agent

import (
	"testing"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// If an instance exists but stays Pending, such as a paused guest, the agent restarts it once and does
// not replace it.
func TestAPendingInstanceIsRestartedOnce(t *testing.T) {
	r := newRig(t).start()
	slow := func(q *agentv1.ApplyWorkloadRequest) {
		q.Spec.GetContainer().Env = map[string]string{"SIM_START_DELAY": "1h"}
	}
	r.apply("web", "sim/run", slow, content("c1:a"), revision("c1-0123456789abcdef"))
	r.until(func() bool { return r.observed("web") != nil }, func() string { return "the agent never made the instance" })
	before := r.observed("web")
	r.apply("web", "sim/run", slow, content("c1:a"), revision("c1-0123456789abcdef-r1"))
	r.until(func() bool { return r.hooks.count("halt web") > 0 && r.a.runner.State().Depth() == 0 }, func() string {
		return "after the order to restart, the agent does not stop the instance, or its work queue never becomes empty"
	})
	if n, o := r.hooks.count("halt web"), r.observed("web"); n != 1 || o == nil || o.RuntimeID != before.RuntimeID || o.State != driver.Pending {
		t.Errorf("the pending instance was stopped %d times and changed from %+v to %+v; want one restart of the same instance", n, before, o)
	}
}

// A new order arrives before the delete of its workload is carried out. The agent runs the workload as the
// new order says, and marks the workload's tombstone (the record of the delete) as done.
func TestANewOrderClosesAPendingDelete(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run")
	r.reaches("web", running)
	r.hooks.set(func(h *hooks) {
		h.remove = func(driver.ID) error { return driver.Errorf(driver.RuntimeUnhealthy, "remove", "busy") }
	})
	r.delete("web")
	r.until(func() bool { return r.hooks.count("remove web") > 0 }, func() string { return "the agent never called the driver's Remove for the deleted workload" })
	r.hooks.set(func(h *hooks) { h.remove = nil })
	r.apply("web", "sim/run")
	check := func(when string) {
		t.Helper()
		r.reaches("web", running)
		r.until(func() bool { return !r.a.runner.State().Working("web") }, func() string { return when + ": the agent still works on the workload" })
		if r.a.runner.State().Tombstone("web").Done != true {
			t.Errorf("%s: the tombstone of the workload is not marked as done, although a newer order runs the workload", when)
		}
	}
	check("after a new order")
	saved, err := r.a.store.Load()
	if err != nil || len(saved.Tombstones) != 1 || !saved.Tombstones[0].Done {
		t.Fatalf("the state file has tombstones %+v, error %v; want one tombstone, marked as done", saved.Tombstones, err)
	}
	saved.Tombstones[0].Done = false // an earlier version of the agent stored the tombstone like this
	if err := r.a.store.Write(core.Store{Tombstones: saved.Tombstones}); err != nil {
		t.Fatal(err)
	}
	r.restart()
	check("after a restart")
}
