package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

// An agent that was killed after it started a job, but before it stored that the order was carried out,
// resumes the order. It does not run the job a second time, whether the job ended while the agent was down or
// ends later.
func TestStepRunsAJobOnceIfTheAgentRestarts(t *testing.T) {
	for _, c := range []struct {
		name string
		seen workload.State // what the new process sees first
		end  workload.State
	}{
		{"the job ended while the agent was down", workload.Stopped, workload.Stopped},
		{"the job failed while the agent was down", workload.Failed, workload.Failed},
		{"the job ends later", workload.Running, workload.Stopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x",
				Generation: workload.Generation{Incarnation: 1, Sequence: 5}, Traits: Traits{RestartPolicy: "no"}}
			h := &history{t: t, now: now, clock: 1000 * time.Second}
			h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8},
				Saved{Intents: []*Intent{in}, Tasks: []*Task{NewTask(ActionApply, "db", now)}, Meta: Meta{InstanceID: "i1"}}, h.now)
			h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
			e, _ := h.s.Engine(workload.Container)
			// sees sends the event, which may be a list of the engine with the instance in the given state.
			// If Step then inspects the instance, the inspection shows the same state.
			sees := func(state workload.State, event func([]workload.Observed) Event) {
				t.Helper()
				o := workload.Observed{ID: "db", State: state, Content: in.EngineContent, Generation: in.Generation, RuntimeID: "r1", StartedAt: now}
				if state != workload.Running {
					o.FinishedAt = now.Add(time.Second)
				}
				h.step(event([]workload.Observed{o}))
				for a := h.act(); a != nil; a = h.act() {
					if a.Verb != Look {
						t.Fatalf("the core began the action %s on a job that has already run, want none", a.Verb)
					}
					seen := o
					h.step(Done{Act: a, Observed: &seen, Began: h.now})
				}
			}
			list := func(o []workload.Observed) Event {
				return Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: o}
			}
			sees(c.seen, list)
			sees(c.seen, func([]workload.Observed) Event { return Start{} })
			sees(c.end, list)
			if st := h.s.Get("db").Status; st.State != c.end || st.Exit.EndedAt.IsZero() {
				t.Errorf("the job that has ended is reported as %+v, want its end state, and its order carried out", st)
			}
		})
	}
}

// A service of a stack fails, and its restart policy lets the agent start it again. This start does not carry
// out a new order. So the driver must not start other services of the stack that have ended and that their
// restart policies keep ended. A start for a newer order starts all services of the stack, also if the first
// attempt of that start fails.
func TestStepTellsARepeatedStartFromAnOrder(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7))
	a := h.look(workload.Absent).act()
	if a.Verb != Ensure || a.Repeats {
		t.Fatalf("the first start for the order is %+v, want an Ensure with Repeats false", a)
	}
	h.step(Done{Act: a, Began: h.now})
	end := h.now
	failed := func() {
		t.Helper()
		h.step(Done{Act: h.act(), Began: h.now, Observed: &workload.Observed{ID: "db", State: workload.Failed, Content: "c1:a", RuntimeID: "r1",
			ExitCode: 3, StartedAt: end.Add(-time.Second), FinishedAt: end}})
	}
	again := func() *Act {
		t.Helper()
		h.now, h.clock = h.now.Add(time.Minute), h.clock+time.Minute
		for h.step(Wake{"db"}); h.act() != nil && h.act().Verb == Look; {
			failed()
		}
		return h.act()
	}
	failed()
	if a = again(); a == nil || a.Verb != Ensure || !a.Repeats {
		t.Fatalf("after a service failed the core's action is %+v, want an Ensure with Repeats true", a)
	}
	h.step(Done{Act: a, Began: h.now})
	failed()
	h.step(order(6, 7))
	failed()
	a = h.act()
	if a == nil || a.Verb != Ensure || a.Repeats {
		t.Fatalf("after a newer order the core's action is %+v, want an Ensure with Repeats false", a)
	}
	h.step(Done{Act: a, Began: h.now, Failed: &Failed{Class: workload.RuntimeUnhealthy, Message: "the engine is away"}})
	if a = again(); a == nil || a.Verb != Ensure || a.Repeats {
		t.Fatalf("after a failed start for the newer order the core's action is %+v, want an Ensure with Repeats false", a)
	}
	h.step(Done{Act: a, Began: h.now, Failed: &Failed{Class: workload.RuntimeError, Message: "a dependency ended with exit code 3", Started: true}})
	if a = again(); a == nil || a.Verb != Ensure || !a.Repeats {
		t.Fatalf("after the stack was started and a dependency failed, the core's action is %+v, want an Ensure with Repeats true", a)
	}
}

// An agent runs a job and gets a newer order with the same specification. The running instance satisfies the
// new order. When that instance ends, the agent does not start the job again.
func TestStepRunsAJobOnceIfANewerOrderFindsItRunning(t *testing.T) {
	now := time.Unix(1000, 0)
	first := workload.Generation{Incarnation: 1, Sequence: 5}
	newer := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x",
		Generation: workload.Generation{Incarnation: 1, Sequence: 6}, Traits: Traits{RestartPolicy: "no"}}
	h := &history{t: t, now: now, clock: 1000 * time.Second}
	// The agent was restarted after it stored the newer order and before it carried the order out.
	h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8},
		Saved{Intents: []*Intent{newer}, Tasks: []*Task{NewTask(ActionApply, "db", now)}, Meta: Meta{InstanceID: "i1"}}, h.now)
	h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	e, _ := h.s.Engine(workload.Container)
	for _, state := range []workload.State{workload.Running, workload.Stopped} {
		o := workload.Observed{ID: "db", State: state, Content: "c1:a", Generation: first, RuntimeID: "r1", StartedAt: now}
		if state != workload.Running {
			o.FinishedAt = now.Add(time.Second)
		}
		h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{o}})
		if state == workload.Running {
			h.step(Start{})
		}
		for a := h.act(); a != nil; a = h.act() {
			if a.Verb != Look {
				t.Fatalf("the core began the action %s on a job that has already run, want none", a.Verb)
			}
			seen := o
			h.step(Done{Act: a, Observed: &seen, Began: h.now})
		}
	}
	if w := h.s.Get("db"); w.Status.State != workload.Stopped || w.Task.Open() {
		t.Errorf("the job that ended with success is reported as %s, want Stopped; its order counts as carried out: %t, want true", w.Status.State, !w.Task.Open())
	}
}

// A job is deleted at its deadline while it runs. The agent stops its instance and inspects it before the removal, and
// reports exit code and output with the removal.
func TestStepReportsHowAStoppedJobEnded(t *testing.T) {
	for _, c := range []struct {
		name string
		job  bool
		end  workload.State // state of the instance before the delete
		ends bool           // the agent stops and inspects the instance
		exit bool           // the report of the removal says how the job ended
	}{
		{"a job that runs", true, workload.Running, true, true},
		{"a job that has ended", true, workload.Failed, false, true},
		{"a service that runs", false, workload.Running, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x",
				Generation: workload.Generation{Incarnation: 1, Sequence: 5}, Traits: Traits{RestartPolicy: "no", Job: c.job}}
			h := &history{t: t, now: now, clock: 1000 * time.Second}
			h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8}, Saved{Intents: []*Intent{in}, Meta: Meta{InstanceID: "i1"}}, h.now)
			h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
			e, _ := h.s.Engine(workload.Container)
			o := workload.Observed{ID: "db", State: c.end, Content: in.EngineContent, Generation: in.Generation, RuntimeID: "r1", StartedAt: now}
			if c.end != workload.Running {
				o.FinishedAt, o.ExitCode, o.Output = now.Add(time.Second), 137, "row 7"
			}
			h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{o}})
			h.step(Start{})
			if a := h.act(); a != nil {
				h.step(Done{Act: a, Observed: &o, Began: h.now})
			}
			h.step(Delete{ID: "db", Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Term: 1}, Node: "a"}, Generation: workload.Generation{Incarnation: 1, Sequence: 6}})
			a := h.act()
			if a == nil || a.Verb != Remove || a.Ends != c.ends {
				t.Fatalf("the core's action is %+v, want a removal with Ends %t", a, c.ends)
			}
			done := Done{Act: a}
			if c.ends {
				done.Observed = &workload.Observed{ID: "db", State: workload.Failed, RuntimeID: "r1", StartedAt: now, FinishedAt: h.now, ExitCode: 137, Output: "row 7"}
			}
			h.step(done)
			_, gone := h.s.Changes(true, true, 0, h.now)
			if len(gone) != 1 || (gone[0].Exit != nil) != c.exit || c.exit && (gone[0].Exit.Code != 137 || gone[0].Exit.Output != "row 7") {
				t.Errorf("the agent reports the delete %+v with the exit %+v of the job, want the exit set: %t", gone[0], gone[0].Exit, c.exit)
			}
		})
	}
}

// The agent stops the instance of an exclusive job to run the job again, and is restarted before it has started the new
// instance. The agent must not report the end of the stopped instance as a success of the job: the job waits for
// another order.
func TestStepReportsNoSuccessOfAnExclusiveJobThatItStopped(t *testing.T) {
	now := time.Unix(1000, 0)
	in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x", Exclusive: true,
		Restart: true, Generation: workload.Generation{Incarnation: 1, Sequence: 6}, Traits: Traits{RestartPolicy: "no", Job: true}}
	h := &history{t: t, now: now, clock: 1000 * time.Second}
	h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8},
		Saved{Intents: []*Intent{in}, Tasks: []*Task{NewTask(ActionApply, "db", now)}, Meta: Meta{InstanceID: "i1"}}, h.now)
	h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	e, _ := h.s.Engine(workload.Container)
	o := workload.Observed{ID: "db", State: workload.Stopped, Content: "c1:a", Generation: workload.Generation{Incarnation: 1, Sequence: 5}, RuntimeID: "r1",
		StartedAt: now.Add(-time.Minute), FinishedAt: now.Add(-time.Second)}
	list := func() {
		h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{o}})
	}
	list()
	for h.step(Start{}); h.act() != nil; {
		if h.act().Verb != Look {
			t.Fatalf("the core began the action %s, want none before another order", h.act().Verb)
		}
		seen := o
		h.step(Done{Act: h.act(), Observed: &seen, Began: h.now})
	}
	list()
	if st := h.s.Get("db").Status; st.Message != waitsMessage || st.Reason != "" || !st.Exit.EndedAt.IsZero() {
		t.Errorf("the job is reported as %+v, want that it waits for an order, without an end", st)
	}
}

// A removal has stopped the instance of a job, but the removal then failed, or the agent could not store its
// result. The core tries the removal again. The report of the delete contains the exit of the job, although
// the instance is gone by then.
func TestStepRemovesAJobAgainIfItsExitIsNotStored(t *testing.T) {
	for _, c := range []struct {
		name   string
		ended  bool    // the job had ended by itself before the delete
		failed *Failed // result of the first removal
		stores int     // number of writes that fail
	}{
		{"the removal failed after it stopped the job, and one write fails", false, &Failed{Class: workload.RuntimeUnhealthy, Message: "the engine is away"}, 1},
		{"the removal succeeded", false, nil, 1},
		{"the removal succeeded and two writes fail", false, nil, 2},
		{"the job had ended by itself, and one write fails", true, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a", SpecHash: "a1:x",
				Generation: workload.Generation{Incarnation: 1, Sequence: 5}, Traits: Traits{RestartPolicy: "no", Job: true}}
			h := &history{t: t, now: time.Unix(1000, 0), clock: 1000 * time.Second}
			h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8}, Saved{Intents: []*Intent{in}, Meta: Meta{InstanceID: "i1"}}, h.now)
			h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
			list := func(o ...workload.Observed) {
				h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now, Seen: o})
			}
			o := workload.Observed{ID: "db", State: workload.Running, Content: "c1:a", Generation: in.Generation, RuntimeID: "r1", StartedAt: h.now}
			last := o
			last.State, last.ExitCode, last.FinishedAt = workload.Failed, 3, h.now.Add(time.Second)
			if c.ended {
				o = last
			}
			list(o)
			if h.step(Start{}); h.act() != nil {
				h.step(Done{Act: h.act(), Observed: &o, Began: h.now})
			}
			h.step(Delete{ID: "db", Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Term: 1}, Node: "a"}, Generation: workload.Generation{Incarnation: 1, Sequence: 6}})
			a := h.act()
			if a == nil || a.Verb != Remove || a.Ends == c.ended {
				t.Fatalf("the core's action is %+v, want a removal that inspects the instance: %t", a, !c.ended)
			}
			done := Done{Act: a, Failed: c.failed}
			if !c.ended {
				done.Observed = &last
			}
			for range c.stores {
				list() // the instance is removed
				before := h.s
				h.step(done)
				store, ok := h.effects[0].(Store)
				if !ok || !store.Required || store.Workload != "db" {
					t.Fatalf("the first effect is %+v, want a required Store for db", h.effects[0])
				}
				h.s = before // the write fails
				if a = h.step(StoreFailed{ID: store.Workload, Exit: store.Exit}).act(); a == nil {
					h.now = h.now.Add(policy.Base)
					a = h.step(Tick{}).act()
				}
				if a == nil || a.Verb != Remove {
					t.Fatalf("after the failed Store the core's action is %+v, want another removal", a)
				}
				done = Done{Act: a}
			}
			h.step(done)
			if _, gone := h.s.Changes(true, true, 0, h.now); len(gone) != 1 || gone[0].Exit == nil || gone[0].Exit.Code != 3 {
				t.Errorf("the agent reports %+v as deleted, want one delete that contains the job's exit code 3", gone)
			}
		})
	}
}
