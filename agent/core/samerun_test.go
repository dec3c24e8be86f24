package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

// TestStepReportsAnExitUnderARenewedOrder: a job has ended while the agent does not know it yet, and its order is renewed, for
// example with another priority. Only an order for a new run starts the job again.
func TestStepReportsAnExitUnderARenewedOrder(t *testing.T) {
	gen := func(n uint64) workload.Generation { return workload.Generation{Incarnation: 1, Sequence: n} }
	for _, c := range []struct {
		name    string
		since   workload.Generation // of the renewed order
		stopped bool                // the lease has ended, and the fencer has stopped the instance
		again   bool                // the job runs again
	}{
		{"the same run", gen(6), false, false},
		{"a new run", workload.Generation{}, false, true},
		{"a run of which the agent has no order", gen(7), false, true},
		{"the run was stopped because the lease ended", gen(6), true, true},
	} {
		for code, state := range map[int]workload.State{0: workload.Stopped, 3: workload.Failed} {
			h := restoredJob(t, workload.Container, pending[""], Failure{})
			in := *h.s.Get("pack").Intent
			o := workload.Observed{
				ID: "pack", State: state, Content: "c1:a", Generation: gen(6), RuntimeID: "r1", ExitCode: code,
				StartedAt: h.now.Add(-20 * time.Second), FinishedAt: h.now.Add(-time.Second),
			}
			if c.stopped {
				h.s.Get("pack").Failure.Stopped = mark(&o)
			}
			list := Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now}
			silent := list
			silent.Trouble = "the engine does not answer"
			h.step(silent)
			h.step(Apply{Order: Order{
				Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Term: 1}}, ID: "pack", Kind: in.Type, Content: "c1:a", Generation: gen(8), SameSince: c.since,
				Running: true, Traits: in.Traits,
			}})
			look := h.act()
			list.Seen = []workload.Observed{o}
			h.step(list)
			a := h.step(Done{Act: look, Observed: &o, Began: h.now}).act()
			st := h.s.Get("pack").Status
			if again := a != nil && a.Verb == Ensure; again != c.again {
				t.Errorf("%s, exit code %d: the core's action is %+v, want a start: %t", c.name, code, a, c.again)
			}
			if ended := !st.Exit.EndedAt.IsZero() && st.Exit.Code == code && st.Generation == gen(8); ended == c.again {
				t.Errorf("%s, exit code %d: the job is reported as %+v, want its exit: %t", c.name, code, st, !c.again)
			}
		}
	}
}
