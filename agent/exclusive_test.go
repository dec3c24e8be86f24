package agent

import (
	"slices"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

func exclusive(r *agentv1.ApplyWorkloadRequest) { r.Exclusive = true }

// The agent restarts and finds an exclusive workload that does not run. The schedulers may have placed the
// workload on another node meanwhile. So the agent starts it only after a new order.
func TestExclusiveWaitsForAnOrderAfterARestart(t *testing.T) {
	for _, c := range []struct {
		name    string
		cluster bool
		options []option
		waits   bool
	}{
		{"exclusive", true, []option{exclusive}, true},
		{"ordinary", true, nil, false},
		{"exclusive, standalone", false, []option{exclusive}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if c.cluster {
				r.cfg.Control = leader()
			}
			r.start()
			options := append([]option{content("c1:a"), by(7), at(5)}, c.options...)
			r.apply("db", "sim/run", options...)
			r.reaches("db", running)
			r.halt()
			if err := r.engine.PowerOff(); err != nil {
				t.Fatal(err)
			}
			before := r.hooks.count("ensure db")
			r.start()
			if !c.waits {
				r.reaches("db", running)
				return
			}
			idle := func() {
				r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
			}
			idle()
			r.a.runner.Sweep()
			idle()
			if st := r.reaches("db", halted); st.Message != "exclusive: waits for the scheduler's order after a restart" || st.Generation.GetSequence() != 5 {
				t.Errorf("the exclusive workload that waits for an order is reported as %v, want the reason and generation 5", st)
			}
			if n := r.hooks.count("ensure db"); n != before {
				t.Fatalf("the exclusive workload was started %d times without a new order", n-before)
			}
			if out := r.apply("db", "sim/run", append(options, at(4))...); !out.Fenced {
				t.Errorf("an order with an older generation than the stored one must be refused as fenced, got %v", out)
			}
			idle()
			r.reaches("db", halted)
			// The schedulers repeat the order of the workload. Now the agent starts the workload.
			r.apply("db", "sim/run", options...)
			r.reaches("db", running)
		})
	}
}

// An exclusive workload kept running while its agent restarted. The agent continues with the running instance,
// and restarts the workload when it ends.
func TestExclusiveThatRunsIsAdopted(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("db", "sim/run", content("c1:a"), by(7), at(5), exclusive)
	r.reaches("db", running)
	before := r.observed("db").RuntimeID
	r.restart()
	r.reaches("db", running)
	if after := r.observed("db").RuntimeID; after != before {
		t.Errorf("the exclusive workload's instance %s was replaced by %s, want the same instance", before, after)
	}
	runs := r.observed("db").StartedAt
	if err := r.engine.Kill("db", 1); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { o := r.observed("db"); return o != nil && o.StartedAt.After(runs) },
		func() string { return "an adopted instance that ended was not started again" })
}

// An engine must not start an exclusive workload by itself, and the restart policy of an instance cannot be
// changed. So if a workload becomes exclusive, or stops being exclusive, its instance is replaced. The old
// instance is not removed first, because a removal would delete the volumes of a stack.
func TestTheEngineIsToldWhenAWorkloadBecomesExclusive(t *testing.T) {
	r := newRig(t).start()
	var told []bool
	r.hooks.set(func(h *hooks) {
		h.ensure = func(s driver.Spec) error { told = append(told, s.Exclusive); return nil }
	})
	ordinary := func(r *agentv1.ApplyWorkloadRequest) { r.Exclusive = false }
	for _, o := range []option{ordinary, exclusive, exclusive, ordinary} {
		r.apply("db", "sim/run", content("c1:a"), o)
		if st := r.reaches("db", running); st.Content != "c1:a" {
			t.Errorf("the workload is reported with content %q, want the content of its order", st.Content)
		}
	}
	r.halt()
	if want := []bool{false, true, false}; !slices.Equal(told, want) {
		t.Errorf("the calls of Ensure had these values of Spec.Exclusive: %v, want %v", told, want)
	}
	if n := r.hooks.count("remove db"); n != 0 {
		t.Errorf("the instance was removed %d times before it was replaced, want none", n)
	}
}
