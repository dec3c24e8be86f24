package agent

import (
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

func exclusive(r *agentv1.ApplyWorkloadRequest) { r.Exclusive = true }

// TestExclusiveWaitsForAnOrderAfterARestart: while the machine was down, the schedulers may have
// placed it elsewhere.
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
				r.until(func() bool { return r.a.queue.depth() == 0 }, func() string { return "never idle" })
			}
			idle()
			r.a.sweep(r.a.life)
			idle()
			if st := r.reaches("db", halted); st.Message != waitsMessage || st.Generation.GetSequence() != 5 {
				t.Errorf("reported as %v", st)
			}
			if n := r.hooks.count("ensure db"); n != before {
				t.Fatalf("started %d times without an order", n-before)
			}
			if out := r.apply("db", "sim/run", append(options, at(4))...); !out.Fenced {
				t.Errorf("an outdated order: want fenced, got %v", out)
			}
			idle()
			r.reaches("db", halted)
			// The same order again is a fresh one.
			r.apply("db", "sim/run", options...)
			r.reaches("db", running)
		})
	}
}

// TestExclusiveThatRunsIsAdopted: it is the agent's again, which also starts it again.
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
