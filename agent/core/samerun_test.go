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

// sameJob changes the test order to one for a job, whose orders since generation n ask for the same run; 0 = a new run.
func sameJob(n uint64) func(*Order) {
	return func(o *Order) {
		o.Traits = Traits{RestartPolicy: "no", Job: true}
		if n != 0 {
			o.SameSince = workload.Generation{Incarnation: 1, Sequence: n}
		}
	}
}

// TestStepContinuesAnActionUnderARenewedOrder: the order of a job is renewed while the agent starts the instance. The action
// carries out the renewed order too.
func TestStepContinuesAnActionUnderARenewedOrder(t *testing.T) {
	for since, again := range map[uint64]bool{5: false, 0: true} {
		h := newHistory(t, nil).step(order(5, 7, sameJob(0)))
		start := h.look(workload.Absent).act()
		task := h.s.Get("db").Task
		h.step(order(6, 7, sameJob(since)))
		if got := h.s.Get("db").Task; (got.ID != task.ID) != again {
			t.Errorf("orders since %d ask for the same run: the agent has begun the task %s after %s, want another one: %t", since, got.ID, task.ID, again)
		}
		h.step(Done{Act: start, Began: h.now, Failed: &Failed{Class: workload.ImagePullTimeout, Message: "no route"}})
		if n := h.s.Get("db").Failure.Attempts; (n == 0) != again {
			t.Errorf("orders since %d ask for the same run: the start has failed, and the agent counts %d failures under the renewed order", since, n)
		}
	}
}

// TestStepKnowsTheRunOfAnInstanceThatWasStartedAgain: a retry starts the container of the former run again, so its label has the
// generation of the former order. Then the order of the retry is renewed while the engine is silent, and the run ends.
func TestStepKnowsTheRunOfAnInstanceThatWasStartedAgain(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7, sameJob(0)))
	o := workload.Observed{
		ID: "db", State: workload.Failed, Content: "c1:a", Generation: workload.Generation{Incarnation: 1, Sequence: 5}, RuntimeID: "r1", ExitCode: 3,
		StartedAt: h.now, FinishedAt: h.now,
	}
	see := func(state workload.State) *Act {
		a := h.act()
		if a == nil || a.Verb != Look {
			t.Fatalf("the core's action is %+v, want a look", a)
		}
		seen := o
		if seen.State = state; state == workload.Running {
			seen.FinishedAt = time.Time{}
		}
		return h.step(Done{Act: a, Observed: &seen, Began: h.now}).act()
	}
	see(workload.Failed) // the run of generation 5 ended before the agent settled
	h.step(order(6, 7, sameJob(0)))
	start := see(workload.Failed)
	if start == nil || start.Verb != Ensure {
		t.Fatalf("after the retry the core's action is %+v, want a start", start)
	}
	o.StartedAt = h.now.Add(time.Second)
	h.step(Done{Act: start, Began: h.now})
	see(workload.Running)
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now, Trouble: "the engine does not answer"})
	o.FinishedAt = h.now
	h.step(order(7, 7, sameJob(6)))
	if a := see(workload.Failed); a != nil {
		t.Errorf("after the renewed order the core's action is %+v, want none: the run has ended", a)
	}
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now.Add(time.Second), Seen: []workload.Observed{o}})
	if st := h.s.Get("db").Status; st.Exit.Code != 3 || st.Generation.Sequence != 7 {
		t.Errorf("the job is reported as %+v, want its exit under generation 7", st)
	}
}
