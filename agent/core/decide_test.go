package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

var states = []workload.State{workload.Absent, workload.Pending, workload.Running, workload.Stopped, workload.Failed, workload.Unknown}

// decide returns the verbs of the table in its comment.
func TestDecideTable(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		d    desired
		o    observation // the test sets state
		f    Failure
		want [6]Verb // one per state, in the order of states
	}{
		{"running, same content", desired{running: true, content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"running, other content", desired{running: true, content: "y"}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Ensure, Ensure, Ensure, Ensure, Nothing}},
		{"running, content unknown", desired{running: true, content: "y"}, observation{}, Failure{},
			[6]Verb{Ensure, Ensure, Ensure, Ensure, Ensure, Nothing}},
		{"running, content unknown but current", desired{running: true, content: "y"}, observation{current: true}, Failure{},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"stopped, same content", desired{content: "x"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"stopped, other content", desired{content: "y"}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"waits for an order after a restart", desired{running: true, content: "x", waits: true, asked: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"waits, other content", desired{running: true, content: "y", waits: true, recreate: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Nothing, Recreate, Nothing, Nothing, Nothing}},
		{"waits, deleting", desired{running: true, content: "x", waits: true, deleting: true}, observation{content: "x"}, Failure{},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"deleting", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, Failure{},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"deleting, in back-off, asked", desired{running: true, content: "x", deleting: true, asked: true}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Wait, Wait, Wait, Wait, Wait}},
		{"deleting, given up before it", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Remove, Remove, Remove, Remove, Remove, Remove}},
		{"recreate", desired{running: true, content: "x", recreate: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Recreate, Recreate, Recreate, Recreate, Recreate}},
		{"restart", desired{running: true, content: "x", restart: true}, observation{content: "x"}, Failure{},
			[6]Verb{Ensure, Restart, Restart, Ensure, Ensure, Nothing}},
		{"restart, in back-off", desired{running: true, content: "x", restart: true}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Wait, Wait, Wait, Wait, Nothing}},
		{"restart of what is stopped", desired{content: "x", restart: true}, observation{content: "x"}, Failure{},
			[6]Verb{Nothing, Halt, Halt, Nothing, Nothing, Halt}},
		{"running, in back-off", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
			[6]Verb{Wait, Nothing, Nothing, Wait, Wait, Nothing}},
		{"running, back-off over", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"running, given up", desired{running: true, content: "x"}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Nothing, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"running, given up, asked again", desired{running: true, content: "x", asked: true}, observation{content: "x"}, Failure{Attempts: 3, Final: true},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"running, ended by its policy", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"}, Failure{Ended: "m"},
			[6]Verb{Ensure, Nothing, Nothing, Nothing, Nothing, Nothing}},
		{"running, ended by its policy, asked", desired{running: true, content: "x", keepEnded: true, asked: true}, observation{content: "x"}, Failure{Ended: "m"},
			[6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"running, ended by its policy, then a start failed", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"},
			Failure{Ended: "m", Attempts: 1, Next: now}, [6]Verb{Ensure, Nothing, Nothing, Ensure, Ensure, Nothing}},
		{"stopped, halt failed, in back-off", desired{content: "x"}, observation{content: "x"}, Failure{Attempts: 1, Next: now.Add(1)},
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
					t.Errorf("waits until %v, want %v", got.until, c.f.Next)
				}
			})
		}
	}
}

func TestBackoff(t *testing.T) {
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
		next    time.Duration // 0 means never
		final   bool
	}{
		{"first transient", workload.NetworkTimeout, 0, false, 5 * time.Second, false},
		{"second transient", workload.NetworkTimeout, 1, false, 10 * time.Second, false},
		{"third transient is the schedulers'", workload.NetworkTimeout, 2, false, 0, true},
		{"third transient without schedulers", workload.NetworkTimeout, 2, true, 2 * time.Minute, true},
		{"permanent is final at once", workload.InvalidImage, 0, false, 0, true},
		{"permanent without schedulers too", workload.PortBindConflict, 0, true, 0, true},
		{"space is tried slowly for ever", workload.StorageFull, 9, false, 2 * time.Minute, true},
		{"the engine's trouble uses nothing up", workload.RuntimeUnhealthy, 1, false, 5 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := p
			q.Endless = c.endless
			f := q.failed(Failure{Attempts: c.before}, c.class, "m", now)
			if f.Final != c.final {
				t.Errorf("final %t, want %t", f.Final, c.final)
			}
			if got := f.Next.IsZero(); got != (c.next == 0) || !got && f.Next.Sub(now) != c.next {
				t.Errorf("next %v, want in %v", f.Next, c.next)
			}
		})
	}
}

func TestSettle(t *testing.T) {
	p := Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second}
	now := time.Unix(1000, 0)
	ended := func(ran time.Duration, state workload.State) workload.Observed {
		return workload.Observed{RuntimeID: "r", State: state, StartedAt: now.Add(-ran), FinishedAt: now, ExitCode: 1}
	}
	run := desired{running: true}
	once := p.settle(run, ended(time.Second, workload.Failed), Failure{}, now)
	if once.Attempts != 1 || once.Next.Sub(now) != 5*time.Second || once.Final {
		t.Errorf("an end counts once and waits 5 s, got %+v", once)
	}
	if again := p.settle(run, ended(time.Second, workload.Failed), once, now.Add(time.Second)); again != once {
		t.Errorf("the same end seen again counts nothing, got %+v", again)
	}
	if f := p.settle(run, ended(time.Hour, workload.Failed), Failure{Attempts: 2}, now); f.Attempts != 0 {
		t.Errorf("an end after a long run starts over, got %+v", f)
	}
	if f := p.settle(run, ended(time.Second, workload.Stopped), Failure{}, now); f.Attempts != 1 {
		t.Errorf("exit code 0 of what should run counts too, got %+v", f)
	}
	if f := p.settle(desired{running: true, asked: true}, ended(time.Second, workload.Stopped), Failure{}, now); f.Attempts != 0 || f.Ended == "" {
		t.Errorf("an end from before the order does not count, got %+v", f)
	}
	if f := p.settle(desired{running: true, keepEnded: true}, ended(time.Second, workload.Failed), Failure{}, now); !f.Final || f.Attempts != 0 {
		t.Errorf("under a policy that keeps it ended, it is Failed at once, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Stopped}, Failure{}, now); f != (Failure{}) {
		t.Errorf("created and not started is no end, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Running, StartedAt: now.Add(-31 * time.Second)}, once, now); f != (Failure{}) {
		t.Errorf("a stable run is forgiven, got %+v", f)
	}
	if f := p.settle(run, workload.Observed{State: workload.Running, StartedAt: now.Add(-time.Second)}, once, now); f != once {
		t.Errorf("a fresh run is not forgiven yet, got %+v", f)
	}
	if f := p.settle(desired{}, workload.Observed{State: workload.Stopped}, once, now); f != (Failure{}) {
		t.Errorf("what is stopped as desired has no failures, got %+v", f)
	}
}

var policy = Policy{Base: 5 * time.Second, Max: 2 * time.Minute, Limit: 3, Stable: 30 * time.Second}

// with returns a step on a State with these tombstones and workloads, and the instances observed for
// them.
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

// A port conflict is retried only while another instance is ending.
func TestPortConflictIsRetried(t *testing.T) {
	now := time.Now()
	gone := &Tombstone{ID: "old", DeletedAt: now.Add(-lingers), Done: true}
	runs, stops, anew := Intent{DesiredState: "running"}, Intent{DesiredState: "stopped"}, Intent{DesiredState: "running", Recreate: true}
	for name, c := range map[string]struct {
		tomb  *Tombstone
		other Intent
		shown *workload.Observed
		class workload.Class
		waits bool
	}{
		"is being removed":     {&Tombstone{ID: "old", DeletedAt: now.Add(-time.Hour)}, runs, nil, workload.PortBindConflict, true},
		"was just removed":     {&Tombstone{ID: "old", DeletedAt: now.Add(-lingers / 2), Done: true}, runs, nil, workload.PortBindConflict, true},
		"was removed long ago": {gone, stops, nil, workload.PortBindConflict, false},
		"is being stopped":     {gone, stops, &workload.Observed{State: workload.Running}, workload.PortBindConflict, true},
		"is stopped":           {gone, stops, &workload.Observed{State: workload.Stopped}, workload.PortBindConflict, false},
		"runs":                 {gone, runs, &workload.Observed{State: workload.Running}, workload.PortBindConflict, false},
		"is being replaced":    {gone, anew, &workload.Observed{State: workload.Running}, workload.PortBindConflict, true},
		"changes its type":     {gone, Intent{DesiredState: "running", PreviousTypes: []workload.Kind{workload.VM}}, nil, workload.PortBindConflict, true},
		"of another failure":   {&Tombstone{ID: "old", DeletedAt: now}, runs, nil, workload.InvalidImage, false},
	} {
		c.other.ID = "other"
		x := with(now, []*Tombstone{c.tomb}, &Workload{Intent: &c.other, Observed: c.shown})
		f := policy.after(Failure{}, &Intent{}, c.class, "m", x.ending(now), now)
		if f.Final == c.waits || f.Next.IsZero() == c.waits || f.Class != c.class {
			t.Errorf("%s: %+v, want it tried again: %t", name, f, c.waits)
		}
	}
}

// A failed start is retried even if the restart policy keeps ended workloads stopped. The engine
// reports such an instance as Failed, without a start time.
func TestFailedStartIsRetried(t *testing.T) {
	now := time.Unix(1000, 0)
	freed := []*Tombstone{{ID: "old"}}
	for _, c := range []struct {
		name, policy string
		class        workload.Class
		tombs        []*Tombstone
		forgotten    bool // the agent lost the count, or an earlier version recorded it as an end
		noted        Failure
	}{
		{"transient", "no", workload.RuntimeError, nil, false, Failure{}},
		{"transient, always", "always", workload.RuntimeError, nil, false, Failure{}},
		{"a port that is being freed", "no", workload.PortBindConflict, freed, false, Failure{}},
		{"a port that is being freed, always", "always", workload.PortBindConflict, freed, false, Failure{}},
		{"forgotten", "no", workload.RuntimeError, nil, true, Failure{}},
		{"forgotten, always", "always", workload.RuntimeError, nil, true, Failure{}},
		{"noted as an end", "no", workload.RuntimeError, nil, true, Failure{Class: workload.RuntimeError, Ended: "x", Final: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &Intent{ID: "web", Type: workload.Container, DesiredState: "running", EngineContent: "x", Traits: Traits{RestartPolicy: c.policy}}
			o := &workload.Observed{ID: "web", Content: "x", State: workload.Failed, Class: c.class, Message: "could not start", ExitCode: 128}
			x := with(now, c.tombs, &Workload{Intent: in, Observed: o, Failure: c.noted})
			w := x.Get("web")
			if !c.forgotten {
				w.Failure = policy.after(w.Failure, in, c.class, "could not start", x.ending(now), now)
			}
			next := x.consider(w)
			if next.do != Wait || w.Failure.Attempts != 1 {
				t.Fatalf("at once: %s, %+v; want it to wait, after 1 attempt", next.do, w.Failure)
			}
			x.now = next.until
			if next = x.consider(w); next.do != Ensure || w.Failure.Attempts != 1 {
				t.Errorf("later: %s, %+v; want another start", next.do, w.Failure)
			}
		})
	}
}

// A workload that could not be stopped is reported as Running, with the error.
func TestReportOfFailedStop(t *testing.T) {
	now := time.Unix(1000, 0)
	in := &Intent{ID: "web", Type: workload.Container, DesiredState: "stopped", EngineContent: "x"}
	runs := &workload.Observed{ID: "web", State: workload.Running, Content: "x"}
	x := with(now, nil, &Workload{Intent: in, Observed: runs})
	w := x.Get("web")
	for range 3 {
		w.Failure = policy.after(w.Failure, in, workload.RuntimeError, "it does not stop", false, now)
	}
	if !w.Failure.Final {
		t.Fatalf("%+v", w.Failure)
	}
	if st := x.assess(w); st.State != workload.Running || st.Class != workload.RuntimeError || st.Message == "" {
		t.Fatalf("%+v", st)
	}
	w.memory.asked = true // a new order arrived
	if next := x.consider(w); next.do != Halt {
		t.Fatalf("ordered again: %s", next.do)
	}
}

// A VM of a legacy v1 agent has no labels. It is matched by name and keeps running. If it becomes
// guarded, it is replaced, because the fencer stops only labelled instances.
func TestLegacyVMWithoutLabels(t *testing.T) {
	now := time.Unix(1000, 0)
	order := Order{ID: "vm", Kind: workload.VM, Revision: "rev-7", SpecHash: "a1:x", Running: true}
	old := follow(nil, order, now)
	old.LegacyRevision, old.LegacyContent = old.RevisionID, old.SpecHash
	theirs := &workload.Observed{ID: "vm", State: workload.Running}
	next := func(in *Intent, o *workload.Observed) Verb {
		return decide(in.desired(false, o), in.observed(o), Failure{}, now).do
	}
	if do := next(old, theirs); do != Nothing {
		t.Errorf("after the agent was replaced: %v", do)
	}
	if do := next(old, &workload.Observed{ID: "vm", State: workload.Running, Owned: true}); do != Ensure {
		t.Errorf("of an update that was cut short: %v", do)
	}
	order.Revision, order.Content, order.Exclusive = "c1-1", "c1:a", true
	for want, policy := range map[Verb]string{Nothing: "keep", Ensure: "stop"} {
		order.OnLostLease = policy
		if do := next(follow(old, order, now), theirs); do != want {
			t.Errorf("with on_lost_lease %s: %v, want %v", policy, do, want)
		}
	}
}

// An unlabelled VM with the name of a workload is foreign, unless the workload was taken over from a
// legacy v1 agent.
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

// Earlier versions used the same content label for exclusive and ordinary workloads. A workload that
// becomes ordinary after an upgrade gets a new content label once.
func TestExclusiveWorkloadOfEarlierVersion(t *testing.T) {
	var old *Intent
	for _, c := range []struct{ exclusive, told bool }{{true, true}, {false, true}, {false, false}, {true, true}} {
		in := follow(old, Order{ID: "db", Kind: workload.Container, Revision: "r1", Content: "c1:a", SpecHash: "a1:x", Running: true, Exclusive: c.exclusive}, time.Now())
		if told := old == nil || in.EngineContent != old.EngineContent; told != c.told {
			t.Errorf("its engine is told %v with content %q, want %v", told, in.EngineContent, c.told)
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
		t.Errorf("%d tasks are kept, the oldest for %q", n, oldest)
	}
}

// A node with a single fencer is not registered as self-fencing, because the schedulers rely on two.
func TestSingleFencerIsNotSelfFencing(t *testing.T) {
	now := time.Now()
	var f fencer
	for _, c := range []struct {
		name   string
		after  time.Duration
		second bool
		want   bool
	}{
		{"the first has just started", 0, false, false},
		{"there are two", time.Second, true, true},
		{"the second is being started again", time.Second + fencerAway - 1, false, true},
		{"it does not come", time.Second + fencerAway, false, false},
		{"it is back", 2 * fencerAway, true, true},
	} {
		if f.heard(lease.Status{Second: c.second}, now.Add(c.after)); f.alive != c.want {
			t.Errorf("%s: registered as self_fencing %t, want %t", c.name, f.alive, c.want)
		}
	}
}
