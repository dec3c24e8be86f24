package agent

import (
	"slices"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

func exclusive(r *agentv1.ApplyWorkloadRequest) { r.Exclusive = true }

// While the machine was down, the schedulers may have placed the exclusive workload on another node. So the
// agent starts it only after a new order.
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
				r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "never idle" })
			}
			idle()
			r.a.runner.Sweep()
			idle()
			if st := r.reaches("db", halted); st.Message != "exclusive: waits for the scheduler's order after a restart" || st.Generation.GetSequence() != 5 {
				t.Errorf("reported as %v", st)
			}
			if n := r.hooks.count("ensure db"); n != before {
				t.Fatalf("the exclusive workload was started %d times without a new order", n-before)
			}
			if out := r.apply("db", "sim/run", append(options, at(4))...); !out.Fenced {
				t.Errorf("an outdated order must be fenced, got %v", out)
			}
			idle()
			r.reaches("db", halted)
			// The workload starts when the schedulers repeat its order.
			r.apply("db", "sim/run", options...)
			r.reaches("db", running)
		})
	}
}

// An exclusive workload that kept running while its agent restarted is adopted, and is restarted when it
// ends.
func TestExclusiveThatRunsIsAdopted(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("db", "sim/run", content("c1:a"), by(7), at(5), exclusive)
	r.reaches("db", running)
	before := r.observed("db").RuntimeID
	r.restart()
	r.reaches("db", running)
	if after := r.observed("db").RuntimeID; after != before {
		t.Errorf("%s became %s", before, after)
	}
	runs := r.observed("db").StartedAt
	if err := r.engine.Kill("db", 1); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { o := r.observed("db"); return o != nil && o.StartedAt.After(runs) },
		func() string { return "an adopted instance that ended was not started again" })
}

// An engine must not start an exclusive workload by itself. So if a workload becomes exclusive or ordinary,
// its instance is replaced. The old instance is not removed first, because a removal would delete the volumes
// of a stack.
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
		t.Errorf("the driver is called with exclusive: %v, want %v", told, want)
	}
	if n := r.hooks.count("remove db"); n != 0 {
		t.Errorf("removed %d times", n)
	}
}
