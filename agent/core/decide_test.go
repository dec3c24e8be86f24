package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

var states = []workload.State{workload.Absent, workload.Pending, workload.Running, workload.Stopped, workload.Failed, workload.Unknown}

// The doc comment of decide has a table of orders, instance states and actions. The test checks that decide
// returns these actions.
func TestDecideFollowsItsTable(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		d    desired
		o    observation // the test runs this observation with each state in turn
		f    Failure
		want [6]Verb // one verb for each instance state, in the order of states
	}{
		{"running, same content", desired{running: true, content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"running, other content", desired{running: true, content: "y"}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Ensure, Ensure, Ensure, Ensure, Nothing}},
		{"running, content unknown", desired{running: true, content: "y"}, observation{}, Failure{},
			[6]Verb{Ensure, Ensure, Ensure, Ensure, Ensure, Nothing}},
		{"desired running, content unknown, revision current", desired{running: true, content: "y"}, observation{current: true}, Failure{},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"stopped, same content", desired{content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"stopped, other content", desired{content: "y"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"stopped, other services of a failed stack run", desired{content: "x"}, observation{content: "x", partly: true}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Halt, Halt}},
		{"stopped after a lost lease", desired{running: true, lapsed: true, content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"stopped after a lost lease, other services of a failed stack run", desired{running: true, lapsed: true, content: "x"}, observation{content: "x", partly: true}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Halt, Halt}},
		{"over its disk limit", desired{running: true, over: true, content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"over its disk limit, other services of a failed stack run", desired{running: true, over: true, content: "x"}, observation{content: "x", partly: true}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Halt, Halt}},
		{"waits for an order after a restart", desired{running: true, content: "x", waits: true, asked: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"waits for an order after a restart, other content", desired{running: true, content: "y", waits: true, recreate: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Nothing, Recreate, Nothing, Nothing, Nothing}},
		{"waits for an order after a restart, deleting", desired{running: true, content: "x", waits: true, deleting: true}, observation{content: "x"}, Failure{},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"deleting", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, Failure{},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"deleting, in back-off, a new order arrived", desired{running: true, content: "x", deleting: true, asked: true}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Wait, Wait, Wait, Wait, Wait}},
		{"deleting a workload whose attempts were used up", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"recreate", desired{running: true, content: "x", recreate: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Recreate, Recreate, Recreate, Recreate, Recreate}},
		{"restart", desired{running: true, content: "x", restart: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Restart, Restart, Ensure, Ensure, Nothing}},
		{"restart, in back-off", desired{running: true, content: "x", restart: true}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Wait, Wait, Wait, Wait, Nothing}},
		{"refresh", desired{running: true, content: "x", refresh: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Refresh, Refresh, Ensure, Ensure, Nothing}},
		{"refresh, other content", desired{running: true, content: "y", refresh: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Ensure, Ensure, Ensure, Ensure, Nothing}},
		{"refresh and restart", desired{running: true, content: "x", refresh: true, restart: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Restart, Restart, Ensure, Ensure, Nothing}},
		{"a stopped instance is started by a restart", desired{content: "x", restart: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"running, in back-off", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Nothing, Nothing, Wait, Wait, Nothing}},
		{"running, back-off over", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"desired running, all attempts used up", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Nothing, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"desired running, all attempts used up, a new order arrived", desired{running: true, content: "x", asked: true}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"desired running, kept stopped by its restart policy", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"}, Failure{Ended: "m"},
			[6]Verb{Ensure, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"desired running, kept stopped by its restart policy, a new order arrived", desired{running: true, content: "x", keepEnded: true, asked: true}, observation{content: "x"}, Failure{Ended: "m"},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"desired running, kept stopped by its restart policy, then a start failed", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"},
			Failure{Ended: "m", Attempts: 1, Next: now}, [6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"desired stopped, a halt failed, in back-off", desired{content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Nothing, Wait, Wait, Nothing, Nothing, Wait}},
	} {
		for i, state := range states {
			t.Run(c.name+", "+string(state), func(t *testing.T) {
				o := c.o
				o.state = state
				if state == workload.Absent {
					o = observation{state: state}
				}
				if got := decide(c.d, o, c.f, now); got.do != c.want[i] {
					t.Errorf("%s, want %s", got.do, c.want[i])
				} else if got.do == Wait && !got.until.Equal(c.f.Next) {
					t.Errorf("decide waits until %v, want %v", got.until, c.f.Next)
				}
			})
		}
	}
}

func TestRetryDelayDoublesUpToTheMaximum(t *testing.T) {
	p := Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second}
	now := time.Unix(1000, 0)
	for n, want := range map[int]time.Duration{1: 5 * time.Second, 2: 10 * time.Second, 3: 20 * time.Second, 6: 2 * time.Minute, 60: 2 * time.Minute} {
		if got := p.delay(n); got != want {
			t.Errorf("delay before attempt %d after failure %d: %s, want %s", n+1, n, got, want)
		}
	}
	for _, c := range []struct {
		name    string
		class   workload.Class
		before  int
		endless bool
		next    time.Duration // delay before the next attempt; 0 means no further attempt
		final   bool
	}{
		{"the first failure of a workload by itself is retried", workload.RuntimeError, 0, false, 5 * time.Second, false},
		{"the second failure of a workload by itself is retried later", workload.RuntimeError, 1, false, 10 * time.Second, false},
		{"the third failure of a workload by itself is left to the schedulers", workload.RuntimeError, 2, false, 0, true},
		{"the third failure on a standalone agent is retried", workload.RuntimeError, 2, true, 2 * time.Minute, true},
		{"an invalid image is final at once", workload.InvalidImage, 0, false, 0, true},
		{"an invalid specification without schedulers is final too", workload.InvalidSpecification, 0, true, 0, true},
		{"an unreachable registry is retried for ever", workload.NetworkTimeout, 99, false, 2 * time.Minute, false},
		{"a full disk is retried for ever", workload.StorageFull, 9, false, 2 * time.Minute, false},
		{"a taken port is retried for ever, at short intervals", workload.PortBindConflict, 9, false, localMax, false},
		{"a name of a foreign container is retried for ever, at short intervals", workload.NameConflict, 9, false, localMax, false},
		{"a missing folder is retried for ever, at short intervals", workload.RuntimeResourceMissing, 9, false, localMax, false},
		{"a registry that is away is retried for ever", workload.NetworkUnreachable, 9, false, 2 * time.Minute, false},
		{"the first retry for a taken port is soon", workload.PortBindConflict, 0, false, 5 * time.Second, false},
		{"a failure of the engine uses up no attempt", workload.RuntimeUnhealthy, 1, false, 5 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := p
			q.Endless = c.endless
			f := q.failed(Failure{Attempts: c.before}, c.class, "m", now)
			if f.Final != c.final {
				t.Errorf("final %t, want %t", f.Final, c.final)
			}
			if got := f.Next.IsZero(); got != (c.next == 0) || !got && f.Next.Sub(now) != c.next {
				t.Errorf("the next attempt is at %v, want in %v", f.Next, c.next)
			}
		})
	}
}

func TestSettleCountsAndForgetsFailures(t *testing.T) {
	p := Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second}
	now := time.Unix(1000, 0)
	ended := func(ran time.Duration, state workload.State) workload.Observed {
		return workload.Observed{RuntimeID: "r", State: state, StartedAt: now.Add(-ran), FinishedAt: now, ExitCode: 1}
	}
	run := desired{running: true}
	once := p.settle(run, ended(time.Second, workload.Failed), Failure{}, now)
	if once.Attempts != 1 || once.Next.Sub(now) != 5*time.Second || once.Final {
		t.Errorf("the first exit must count as one failure with a retry after 5 s, got %+v", once)
	}
	if again := p.settle(run, ended(time.Second, workload.Failed), once, now.Add(time.Second)); again != once {
		t.Errorf("an exit that was counted already must add no failure, got %+v", again)
	}
	if f := p.settle(run, ended(time.Hour, workload.Failed), Failure{Attempts: 2}, now); f.Attempts != 0 {
		t.Errorf("an exit after a long run must reset the failure count, got %+v", f)
	}
	if f := p.settle(run, ended(time.Second, workload.Stopped), Failure{}, now); f.Attempts != 1 {
		t.Errorf("an exit with code 0 must count as a failure of a workload that should run, got %+v", f)
	}
	if f := p.settle(desired{running: true, asked: true}, ended(time.Second, workload.Stopped), Failure{}, now); f.Attempts != 0 || f.Ended == "" {
		t.Errorf("an exit before the newest order must add no failure, got %+v", f)
	}
	if f := p.settle(desired{running: true, keepEnded: true}, ended(time.Second, workload.Failed), Failure{}, now); !f.Final || f.Attempts != 0 {
		t.Errorf("a workload that its restart policy keeps stopped must be Failed after the first exit with an error, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Stopped}, Failure{}, now); f != (Failure{}) {
		t.Errorf("an instance that was created but not started must add no failure, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Running, StartedAt: now.Add(-31 * time.Second)}, once, now); f != (Failure{}) {
		t.Errorf("failures must be forgotten after a run of 31 s, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Running, StartedAt: now.Add(-time.Second)}, once, now); f != once {
		t.Errorf("failures must be kept after a run of 1 s, got %+v", f)
	}
	if f := p.settle(desired{}, workload.Observed{State: workload.Stopped}, once, now); f != (Failure{}) {
		t.Errorf("a workload that is stopped as desired must have no failures, got %+v", f)
	}
}

var policy = Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second}

// with returns a step (the working state of one call of Step) with these workloads, and with these tombstones
// (records of deleted workloads). Its engine has the observed instances of the workloads.
func with(now time.Time, tombs []*Tombstone, workloads ...*Workload) *step {
	saved := Saved{Tombstones: tombs}
	for _, w := range workloads {
		saved.Intents = append(saved.Intents, w.Intent)
	}
	s := Restore(Settings{Node: "a", Policy: policy, Concurrency: 8}, saved, now)
	s.engines = []Engine{{Kind: workload.Container, Bound: 1, Listed: true, Probed: true, Healthy: true}}
	x := &step{State: s, now: now, fresh: map[*Workload]bool{}}
	for _, w := range workloads {
		have := x.edit(x.Get(w.Intent.ID))
		have.Observed, have.Failure, have.memory.waits = w.Observed, w.Failure, false
	}
	return x
}

// A workload failed to start because its host port or name is in use. The agent starts it again as soon as any
// instance of this machine ends, because that instance may have used the port or name.
func TestATakenPortOrNameIsRetriedAfterAnInstanceEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	runs := workload.Observed{ID: "old", RuntimeID: "r", State: workload.Running}
	for name, c := range map[string]struct {
		class workload.Class
		next  func(x *step) *workload.Observed // new observation of the instance that holds the port or the name
		due   bool
	}{
		"the instance of the previous type is gone":      {workload.PortBindConflict, func(*step) *workload.Observed { return nil }, true},
		"the instance of the previous type has stopped":  {workload.PortBindConflict, func(*step) *workload.Observed { o := runs; o.State = workload.Stopped; return &o }, true},
		"the instance of the previous type was replaced": {workload.NameConflict, func(*step) *workload.Observed { o := runs; o.RuntimeID = "s"; return &o }, true},
		"the instance of the previous type runs":         {workload.PortBindConflict, func(*step) *workload.Observed { o := runs; return &o }, false},
		"an unreachable registry":                        {workload.NetworkUnreachable, func(*step) *workload.Observed { return nil }, false},
		"an invalid image":                               {workload.InvalidImage, func(*step) *workload.Observed { return nil }, false},
	} {
		waits := &Intent{ID: "web", Type: workload.Container, DesiredState: "running", EngineContent: "x"}
		other := &Intent{ID: "old", Type: workload.Container, DesiredState: "running"}
		shown := runs
		x := with(now, nil, &Workload{Intent: waits, Failure: policy.after(Failure{}, waits, c.class, "m", now)}, &Workload{Intent: other, Observed: &shown})
		before := x.Get("web").Failure
		x.saw(x.edit(x.Get("old")), c.next(x), now)
		if got := !x.Get("web").Failure.Next.Equal(before.Next); got != c.due {
			t.Errorf("%s: the next attempt is at %v, before it was at %v; want it at once: %t", name, x.Get("web").Failure.Next, before.Next, c.due)
		}
	}
}

// A failed start is retried even if the restart policy keeps ended workloads stopped. The engine
// reports such an instance as Failed, without a start time.
func TestFailedStartIsRetried(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name, policy string
		class        workload.Class
		forgotten    bool // the agent has forgotten the failed start, or an earlier version of the agent counted it as an exit
		noted        Failure
	}{
		{"a failed start", "no", workload.RuntimeError, false, Failure{}},
		{"a failed start, with restart policy always", "always", workload.RuntimeError, false, Failure{}},
		{"a taken port", "no", workload.PortBindConflict, false, Failure{}},
		{"a taken port, with restart policy always", "always", workload.PortBindConflict, false, Failure{}},
		{"a failed start that the agent has forgotten", "no", workload.RuntimeError, true, Failure{}},
		{"a failed start that the agent has forgotten, with restart policy always", "always", workload.RuntimeError, true, Failure{}},
		{"a failed start that was recorded as an exit", "no", workload.RuntimeError, true, Failure{Class: workload.RuntimeError, Ended: "x", Final: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Intent{ID: "web", Type: workload.Container, DesiredState: "running", EngineContent: "x", Traits: Traits{RestartPolicy: c.policy}}
			o := &workload.Observed{ID: "web", Content: "x", State: workload.Failed, Class: c.class, Message: "could not start", ExitCode: 128}
			x := with(now, nil, &Workload{Intent: in, Observed: o, Failure: c.noted})
			w := x.Get("web")
			if !c.forgotten {
				w.Failure = policy.after(w.Failure, in, c.class, "could not start", now)
			}
			next := x.evaluate(w)
			if next.do != Wait || w.Failure.Attempts != 1 {
				t.Fatalf("after a failed start the next action is %s with failures %+v; want Wait after 1 attempt", next.do, w.Failure)
			}
			x.now = next.until
			if next = x.evaluate(w); next.do != Ensure || w.Failure.Attempts != 1 {
				t.Errorf("after the back-off the next action is %s with failures %+v; want another start", next.do, w.Failure)
			}
		})
	}
}

// An order stops a workload, but the driver's stop fails. The workload is reported as Running, with the error.
func TestReportOfFailedStop(t *testing.T) {
	now := time.Unix(1000, 0)
	in := &Intent{ID: "web", Type: workload.Container, DesiredState: "stopped", EngineContent: "x"}
	runs := &workload.Observed{ID: "web", State: workload.Running, Content: "x"}
	x := with(now, nil, &Workload{Intent: in, Observed: runs})
	w := x.Get("web")
	for range 3 {
		w.Failure = policy.after(w.Failure, in, workload.RuntimeError, "it does not stop", now)
	}
	if !w.Failure.Final {
		t.Fatalf("after three failed stops the failure is %+v, want Final", w.Failure)
	}
	if st := x.assess(w); st.State != workload.Running || st.Class != workload.RuntimeError || st.Message == "" {
		t.Fatalf("the status after a failed stop is %+v, want Running with the error", st)
	}
	w.memory.asked = true // a new order arrived
	if next := x.evaluate(w); next.do != Halt {
		t.Fatalf("ordered again: %s", next.do)
	}
}

// A VM of a legacy v1 agent has no labels. The agent finds it by name and keeps it running. If the workload
// becomes leased (stopped when the lease ends), the VM is replaced, because the fencer stops only labelled
// instances.
func TestLegacyVMWithoutLabels(t *testing.T) {
	now := time.Unix(1000, 0)
	order := Order{ID: "vm", Kind: workload.VM, Revision: "rev-7", SpecHash: "a1:x", Running: true}
	old := follow(nil, order, now)
	old.LegacyRevision, old.LegacyContent = old.RevisionID, old.SpecHash
	theirs := &workload.Observed{ID: "vm", State: workload.Running}
	next := func(in *Intent, o *workload.Observed) Verb {
		return decide((&Workload{Intent: in, Observed: o}).desired(), in.observed(o), Failure{}, now).do
	}
	if do := next(old, theirs); do != Nothing {
		t.Errorf("after our agent replaced the legacy v1 agent, the next action is %v, want none", do)
	}
	if do := next(old, &workload.Observed{ID: "vm", State: workload.Running, Owned: true}); do != Ensure {
		t.Errorf("after an interrupted update of an unlabelled VM, the next action is %v, want ensure", do)
	}
	order.Revision, order.Content, order.Exclusive = "c1-1", "c1:a", true
	for want, policy := range map[Verb]string{Nothing: "keep", Ensure: "stop"} {
		order.OnLostLease = policy
		if do := next(follow(old, order, now), theirs); do != want {
			t.Errorf("with on_lost_lease %s the next action is %v, want %v", policy, do, want)
		}
	}
}

// TestAdoptedOrder: a scheduler has imported a workload from the etcd of a legacy v1 cluster, and orders it.
// The specification in the order differs from the one in the agent's state file, which a legacy v1 agent wrote.
// The agent changes nothing on the engine until a user changes the specification. It keeps the specification in
// its state file, because only that specification names the volumes.
func TestAdoptedOrder(t *testing.T) {
	now := time.Unix(1000, 0)
	verb := func(in *Intent, o *workload.Observed) Verb {
		return decide((&Workload{Intent: in, Observed: o}).desired(), in.observed(o), Failure{}, now).do
	}
	imported := Order{ID: "web", Kind: workload.Container, Revision: "rev-9", Content: "c1:imported", SpecHash: "a1:imported", Running: true, Adopts: true, Body: "imported"}
	theirs := &workload.Observed{ID: "web", State: workload.Running, Revision: "rev-7"}
	old := &Intent{
		ID: "web", Type: workload.Container, RevisionID: "rev-7", DesiredState: "running", SpecHash: "a1:file", EngineContent: "a1:file",
		LegacyRevision: "rev-7", LegacyContent: "a1:file", Body: "file",
	}
	t.Run("with the record of the legacy v1 agent", func(t *testing.T) {
		in := follow(old, imported, now)
		if do := verb(in, theirs); do != Nothing || in.Body != "file" || in.Content != "c1:imported" || in.RevisionID != "rev-9" {
			t.Fatalf("%v %+v", do, in)
		}
		again := follow(in, imported, now)
		if do := verb(again, theirs); do != Nothing || again.Body != "file" || !again.sameOrder(in) {
			t.Fatalf("after the same order arrived again, the next action is %v with intent %+v", do, again)
		}
		restart := imported
		restart.Revision = "c1-imported-r1"
		if in := follow(again, restart, now); !in.Restart || in.Body != "file" {
			t.Errorf("a restart: %+v", in)
		}
		changed := imported
		changed.Revision, changed.Content, changed.SpecHash, changed.Adopts, changed.Body = "c1-new", "c1:new", "a1:new", false, "new"
		if in := follow(again, changed, now); verb(in, theirs) != Ensure || in.Body != "new" {
			t.Errorf("after the specification changed, the next action is %v with intent %+v; want ensure with the new specification", verb(in, theirs), in)
		}
	})
	t.Run("without a record", func(t *testing.T) {
		in := follow(nil, imported, now)
		theirs := *theirs
		for _, revision := range []string{"rev-9", "rev-7"} {
			theirs.Revision = revision
			if do := verb(in, &theirs); do != Nothing {
				t.Errorf("for an instance of revision %s the next action is %v, want none", revision, do)
			}
		}
		theirs.Content = "c1:other"
		if do := verb(in, &theirs); do != Ensure {
			t.Errorf("for an instance with our labels and another content the next action is %v", do)
		}
		stack := imported
		stack.Kind = workload.Compose
		if do := verb(follow(nil, stack, now), &workload.Observed{ID: "web", State: workload.Running}); do != Nothing {
			t.Errorf("for a stack without labels the next action is %v", do)
		}
	})
	t.Run("of a workload that is not imported", func(t *testing.T) {
		order := imported
		order.Adopts = false
		if in := follow(old, order, now); verb(in, theirs) != Ensure || in.Body != "imported" {
			t.Errorf("%v %+v", verb(in, theirs), in)
		}
	})
}

// A VM without labels that has the name of a workload belongs to somebody else, unless the workload was taken
// over from a legacy v1 agent.
func TestForeignVMWithoutLabels(t *testing.T) {
	var list []*Workload
	for id, in := range map[string]*Intent{
		"ordered":   {Type: workload.VM},
		"container": {Type: workload.Container, LegacyContent: "h"},
		"left":      {Type: workload.VM, LegacyContent: "h"},
		"changed":   {Type: workload.Container, LegacyContent: "h", PreviousTypes: []workload.Kind{workload.VM}},
	} {
		in.ID = id
		list = append(list, &Workload{Intent: in})
	}
	x := with(time.Now(), nil, list...)
	for _, w := range list {
		id := w.Intent.ID
		if got, want := x.Taken(workload.VM, id), id == "left" || id == "changed"; got != want {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
}

// Earlier versions used the same content label for exclusive workloads and others. If a workload stops being
// exclusive after an upgrade of the agent, it gets a new content label once, so that its instance is replaced.
func TestExclusiveWorkloadOfEarlierVersion(t *testing.T) {
	var old *Intent
	for _, c := range []struct{ exclusive, told bool }{{true, true}, {false, true}, {false, false}, {true, true}} {
		in := follow(old, Order{ID: "db", Kind: workload.Container, Revision: "r1", Content: "c1:a", SpecHash: "a1:x", Running: true, Exclusive: c.exclusive}, time.Now())
		if told := old == nil || in.EngineContent != old.EngineContent; told != c.told {
			t.Errorf("the driver is called with running %v and content %q, want %v", told, in.EngineContent, c.told)
		}
		if old == nil {
			in.EngineContent = in.Content
		}
		old = in
	}
}

func TestHistoryIsBounded(t *testing.T) {
	now := time.Now()
	var tasks []*Task
	for i := range MaxTasks + 10 {
		tasks = append(tasks, NewTask(ActionApply, "w", now.Add(time.Duration(i-MaxTasks)*time.Second)).Ended("", false, now))
	}
	tasks = append(tasks, NewTask(ActionApply, "old", now.Add(-8*24*time.Hour)).Ended("", false, now))
	s, _ := Step(Restore(Settings{}, Saved{Tasks: tasks}, now), Input{Now: now, Event: Prune{}})
	n, oldest := 0, ""
	for task := range s.Tasks() {
		if n == 0 {
			oldest = task.Workload
		}
		n++
	}
	if n != MaxTasks || oldest == "old" {
		t.Errorf("the task history has %d tasks, the oldest for %q; want MaxTasks without the oldest one", n, oldest)
	}
}

// A node registers as self-fencing if it stops its exclusive workloads itself when its lease ends. If only one
// fencer process runs, the node does not register so, because the schedulers rely on two.
func TestSingleFencerIsNotSelfFencing(t *testing.T) {
	now := time.Now()
	var f fencer
	for _, c := range []struct {
		name   string
		after  time.Duration
		second bool
		want   bool
	}{
		{"the first fencer has just started", 0, false, false},
		{"two fencers run", time.Second, true, true},
		{"the second fencer is missing for a short time", time.Second + fencerAway - 1, false, true},
		{"the second fencer is missing for longer than fencerAway", time.Second + fencerAway, false, false},
		{"the second fencer is back", 2 * fencerAway, true, true},
	} {
		if f.heard(lease.Status{Second: c.second}, now.Add(c.after)); f.alive != c.want {
			t.Errorf("%s: registered as self_fencing %t, want %t", c.name, f.alive, c.want)
		}
	}
}

// TestChangedLiveFilesRefreshAnInstance: an order changes only the files that a running instance reads from memory.
// The order is not skipped as a repetition, and it asks for a refresh: the files are replaced and the instance stays.
func TestChangedLiveFilesRefreshAnInstance(t *testing.T) {
	order := func(files string) Order {
		return Order{ID: "w", Kind: workload.Container, Running: true, Content: "c1:x", SpecHash: "a1:" + files, Traits: Traits{LiveFiles: files}}
	}
	now := time.Unix(1000, 0)
	first := follow(nil, order("a"), now)
	if first.Refresh || !follow(first, order("a"), now).sameOrder(first) {
		t.Error("a repeated order asks for something else")
	}
	next := follow(first, order("b"), now)
	if !next.Refresh || next.sameOrder(first) || next.EngineContent != first.EngineContent {
		t.Errorf("other files make the intent %+v, want a refresh of the same content", next)
	}
	if again := follow(next, order("b"), now); !again.Refresh {
		t.Error("a repeated order drops the refresh that is not carried out yet")
	}
	if none := follow(next, order(""), now); none.Refresh {
		t.Error("a refresh is wanted without files that change in place")
	}
	if env := follow(first, Order{ID: "w", Kind: workload.Container, Running: true, Content: "c1:x", SpecHash: "a1:other", Traits: Traits{LiveFiles: "a"}}, now); env.Refresh {
		t.Error("a change of another field asks for a refresh")
	}
}
