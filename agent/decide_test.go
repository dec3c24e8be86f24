package agent

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

var states = []driver.State{driver.Absent, driver.Pending, driver.Running, driver.Stopped, driver.Failed, driver.Unknown}

// TestDecideTable is the table of decide's comment, every cell.
func TestDecideTable(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		d    desired
		o    observation // state is filled in
		f    failure
		want [6]verb // in the order of states
	}{
		{"running, same content", desired{running: true, content: "x"}, observation{content: "x"}, failure{},
			[6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"running, other content", desired{running: true, content: "y"}, observation{content: "x"}, failure{},
			[6]verb{doEnsure, doEnsure, doEnsure, doEnsure, doEnsure, doNothing}},
		{"running, content unknown", desired{running: true, content: "y"}, observation{}, failure{},
			[6]verb{doEnsure, doEnsure, doEnsure, doEnsure, doEnsure, doNothing}},
		{"running, content unknown but current", desired{running: true, content: "y"}, observation{current: true}, failure{},
			[6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"stopped, same content", desired{content: "x"}, observation{content: "x"}, failure{},
			[6]verb{doNothing, doHalt, doHalt, doNothing, doNothing, doHalt}},
		{"stopped, other content", desired{content: "y"}, observation{content: "x"}, failure{},
			[6]verb{doNothing, doHalt, doHalt, doNothing, doNothing, doHalt}},
		{"waits for an order after a restart", desired{running: true, content: "x", waits: true, asked: true}, observation{content: "x"}, failure{},
			[6]verb{doNothing, doNothing, doNothing, doNothing, doNothing, doNothing}},
		{"waits, other content", desired{running: true, content: "y", waits: true, recreate: true}, observation{content: "x"}, failure{},
			[6]verb{doNothing, doNothing, doRecreate, doNothing, doNothing, doNothing}},
		{"waits, deleting", desired{running: true, content: "x", waits: true, deleting: true}, observation{content: "x"}, failure{},
			[6]verb{doRemove, doRemove, doRemove, doRemove, doRemove, doRemove}},
		{"deleting", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, failure{},
			[6]verb{doRemove, doRemove, doRemove, doRemove, doRemove, doRemove}},
		{"deleting, in back-off, asked", desired{running: true, content: "x", deleting: true, asked: true}, observation{content: "x"}, failure{Attempts: 1, Next: now.Add(1)},
			[6]verb{doWait, doWait, doWait, doWait, doWait, doWait}},
		{"deleting, given up before it", desired{running: true, content: "x", deleting: true}, observation{content: "x"}, failure{Attempts: 3, Final: true},
			[6]verb{doRemove, doRemove, doRemove, doRemove, doRemove, doRemove}},
		{"recreate", desired{running: true, content: "x", recreate: true}, observation{content: "x"}, failure{},
			[6]verb{doEnsure, doRecreate, doRecreate, doRecreate, doRecreate, doRecreate}},
		{"restart", desired{running: true, content: "x", restart: true}, observation{content: "x"}, failure{},
			[6]verb{doEnsure, doRestart, doRestart, doEnsure, doEnsure, doNothing}},
		{"restart, in back-off", desired{running: true, content: "x", restart: true}, observation{content: "x"}, failure{Attempts: 1, Next: now.Add(1)},
			[6]verb{doWait, doWait, doWait, doWait, doWait, doNothing}},
		{"restart of what is stopped", desired{content: "x", restart: true}, observation{content: "x"}, failure{},
			[6]verb{doNothing, doHalt, doHalt, doNothing, doNothing, doHalt}},
		{"running, in back-off", desired{running: true, content: "x"}, observation{content: "x"}, failure{Attempts: 1, Next: now.Add(1)},
			[6]verb{doWait, doNothing, doNothing, doWait, doWait, doNothing}},
		{"running, back-off over", desired{running: true, content: "x"}, observation{content: "x"}, failure{Attempts: 1, Next: now},
			[6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"running, given up", desired{running: true, content: "x"}, observation{content: "x"}, failure{Attempts: 3, Final: true},
			[6]verb{doNothing, doNothing, doNothing, doNothing, doNothing, doNothing}},
		{"running, given up, asked again", desired{running: true, content: "x", asked: true}, observation{content: "x"}, failure{Attempts: 3, Final: true},
			[6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"running, ended by its policy", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"}, failure{Ended: "m"},
			[6]verb{doEnsure, doNothing, doNothing, doNothing, doNothing, doNothing}},
		{"running, ended by its policy, asked", desired{running: true, content: "x", keepEnded: true, asked: true}, observation{content: "x"}, failure{Ended: "m"},
			[6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"running, ended by its policy, then a start failed", desired{running: true, content: "x", keepEnded: true}, observation{content: "x"},
			failure{Ended: "m", Attempts: 1, Next: now}, [6]verb{doEnsure, doNothing, doNothing, doEnsure, doEnsure, doNothing}},
		{"stopped, halt failed, in back-off", desired{content: "x"}, observation{content: "x"}, failure{Attempts: 1, Next: now.Add(1)},
			[6]verb{doNothing, doWait, doWait, doNothing, doNothing, doWait}},
	} {
		for i, state := range states {
			t.Run(c.name+", "+string(state), func(t *testing.T) {
				o := c.o
				o.state = state
				if state == driver.Absent {
					o = observation{state: state}
				}
				if got := decide(c.d, o, c.f, now); got.do != c.want[i] {
					t.Errorf("%s, want %s", got.do, c.want[i])
				} else if got.do == doWait && !got.until.Equal(c.f.Next) {
					t.Errorf("waits until %v, want %v", got.until, c.f.Next)
				}
			})
		}
	}
}

// What never gets to run, as a guest that its hypervisor has paused, is restarted once and stays what it is.
func TestARestartOfWhatDoesNotRun(t *testing.T) {
	r := newRig(t).start()
	slow := func(q *agentv1.ApplyWorkloadRequest) {
		q.Spec.GetContainer().Env = map[string]string{"SIM_START_DELAY": "1h"}
	}
	r.apply("web", "sim/run", slow, content("c1:a"), revision("c1-0123456789abcdef"))
	r.until(func() bool { return r.observed("web") != nil }, func() string { return "never made" })
	before := r.observed("web")
	r.apply("web", "sim/run", slow, content("c1:a"), revision("c1-0123456789abcdef-r1"))
	r.until(func() bool { return r.hooks.count("halt web") > 0 && r.a.queue.depth() == 0 }, func() string { return "never restarted, or for ever" })
	if n, o := r.hooks.count("halt web"), r.observed("web"); n != 1 || o == nil || o.RuntimeID != before.RuntimeID || o.State != driver.Pending {
		t.Errorf("stopped %d times, and from %+v it became %+v", n, before, o)
	}
}

func TestBackoff(t *testing.T) {
	p := retryPolicy{base: 5 * time.Second, max: 2 * time.Minute, limit: 3, stable: 30 * time.Second}
	now := time.Unix(1000, 0)
	for n, want := range map[int]time.Duration{1: 5 * time.Second, 2: 10 * time.Second, 3: 20 * time.Second, 6: 2 * time.Minute, 60: 2 * time.Minute} {
		if got := p.delay(n); got != want {
			t.Errorf("delay before attempt %d after failure %d: %s, want %s", n+1, n, got, want)
		}
	}
	for _, c := range []struct {
		name    string
		class   driver.Class
		before  int
		endless bool
		next    time.Duration // 0: never
		final   bool
	}{
		{"first transient", driver.NetworkTimeout, 0, false, 5 * time.Second, false},
		{"second transient", driver.NetworkTimeout, 1, false, 10 * time.Second, false},
		{"third transient is the schedulers'", driver.NetworkTimeout, 2, false, 0, true},
		{"third transient without schedulers", driver.NetworkTimeout, 2, true, 2 * time.Minute, true},
		{"permanent is final at once", driver.InvalidImage, 0, false, 0, true},
		{"permanent without schedulers too", driver.PortBindConflict, 0, true, 0, true},
		{"space is tried slowly for ever", driver.StorageFull, 9, false, 2 * time.Minute, true},
		{"the engine's trouble uses nothing up", driver.RuntimeUnhealthy, 1, false, 5 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := p
			q.endless = c.endless
			f := q.failed(failure{Attempts: c.before}, c.class, "m", now)
			if f.Final != c.final {
				t.Errorf("final %t, want %t", f.Final, c.final)
			}
			if got := f.Next.IsZero(); got != (c.next == 0) || !got && f.Next.Sub(now) != c.next {
				t.Errorf("next %v, want in %v", f.Next, c.next)
			}
		})
	}
}

// A port may have been bound by what was just being removed: that is waited for, and nothing else is.
func TestAPortThatIsBeingFreed(t *testing.T) {
	now := time.Now()
	p := retryPolicy{base: 5 * time.Second, max: 2 * time.Minute, limit: 3}
	bound := driver.Errorf(driver.PortBindConflict, "start", "port 443 is bound")
	gone := &tombstone{DeletedAt: now.Add(-lingers), Done: true}
	runs, stops, anew := intent{DesiredState: "running"}, intent{DesiredState: "stopped"}, intent{DesiredState: "running", Recreate: true}
	for name, c := range map[string]struct {
		tomb  *tombstone
		other intent
		shown *driver.Observed
		err   error
		waits bool
	}{
		"is being removed":     {&tombstone{DeletedAt: now.Add(-time.Hour)}, runs, nil, bound, true},
		"was just removed":     {&tombstone{DeletedAt: now.Add(-lingers / 2), Done: true}, runs, nil, bound, true},
		"was removed long ago": {gone, stops, nil, bound, false},
		"is being stopped":     {gone, stops, &driver.Observed{State: driver.Running}, bound, true},
		"is stopped":           {gone, stops, &driver.Observed{State: driver.Stopped}, bound, false},
		"runs":                 {gone, runs, &driver.Observed{State: driver.Running}, bound, false},
		"is being made anew":   {gone, anew, &driver.Observed{State: driver.Running}, bound, true},
		"changes its type":     {gone, intent{DesiredState: "running", PreviousTypes: []driver.Kind{driver.VM}}, nil, bound, true},
		"of another failure":   {&tombstone{DeletedAt: now}, runs, nil, driver.Errorf(driver.InvalidImage, "pull", "no such image"), false},
	} {
		works := func(yield func(*intent, *driver.Observed) bool) { yield(&c.other, c.shown) }
		f := p.after(failure{}, &intent{}, c.err, ending(map[string]*tombstone{"old": c.tomb}, works, now), now)
		if f.Final == c.waits || f.Next.IsZero() == c.waits || f.Class != driver.ClassOf(c.err) {
			t.Errorf("%s: %+v, want it tried again: %t", name, f, c.waits)
		}
	}
}

// A start that failed is tried again, whatever the restart policy says of what ended: an engine shows it as
// failed, and as never having run.
func TestAStartThatFailedIsTriedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	r := NewRules("a", nil)
	nobody := func(func(*intent, *driver.Observed) bool) {}
	freed := map[string]*Tombstone{"old": {ID: "old"}}
	for _, c := range []struct {
		name, policy string
		class        driver.Class
		tombs        map[string]*Tombstone
		forgotten    bool // by the agent, or noted as an end by an earlier version
		noted        Failure
	}{
		{"transient", "no", driver.RuntimeError, nil, false, Failure{}},
		{"transient, always", "always", driver.RuntimeError, nil, false, Failure{}},
		{"a port that is being freed", "no", driver.PortBindConflict, freed, false, Failure{}},
		{"a port that is being freed, always", "always", driver.PortBindConflict, freed, false, Failure{}},
		{"forgotten", "no", driver.RuntimeError, nil, true, Failure{}},
		{"forgotten, always", "always", driver.RuntimeError, nil, true, Failure{}},
		{"noted as an end", "no", driver.RuntimeError, nil, true, Failure{Class: driver.RuntimeError, Ended: "x", Final: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := container("img")
			spec.GetContainer().RestartPolicy = &agentv1.RestartPolicy{Policy: c.policy}
			in := &Intent{ID: "web", Type: driver.Container, DesiredState: "running", EngineContent: "x", spec: spec}
			o := &driver.Observed{ID: "web", Content: "x", State: driver.Failed, Class: c.class, Message: "could not start", ExitCode: 128}
			m := Memory{Failure: c.noted}
			if !c.forgotten {
				m.Failure = r.Failed(in, m.Failure, driver.Errorf(c.class, "start", "could not start"), c.tombs, nobody, now)
			}
			do, until, m := r.Next(in, m, o, now)
			if do != "wait" || m.Failure.Attempts != 1 {
				t.Fatalf("at once: %s, %+v; want it to wait, after 1 attempt", do, m.Failure)
			}
			if do, _, m = r.Next(in, m, o, until); do != "ensure" || m.Failure.Attempts != 1 {
				t.Errorf("later: %s, %+v; want another start", do, m.Failure)
			}
		})
	}
}

// A delete that is not carried out when its workload is ordered anew is no delete under way any more.
func TestAnOvertakenDeleteHoldsUpNothing(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run")
	r.reaches("web", running)
	r.hooks.set(func(h *hooks) {
		h.remove = func(driver.ID) error { return driver.Errorf(driver.RuntimeUnhealthy, "remove", "busy") }
	})
	r.delete("web")
	r.until(func() bool { return r.hooks.count("remove web") > 0 }, func() string { return "never removed" })
	r.hooks.set(func(h *hooks) { h.remove = nil })
	r.apply("web", "sim/run")
	check := func(when string) {
		t.Helper()
		r.reaches("web", running)
		r.until(func() bool { return !r.a.inWork("web") }, func() string { return when + ": still in work" })
		r.a.mu.Lock()
		defer r.a.mu.Unlock()
		if ending(r.a.tombs, r.a.shown, time.Now().Add(lingers)) {
			t.Errorf("%s: it is still said to be ending", when)
		}
	}
	check("ordered anew")
	saved, err := r.a.store.load()
	if err != nil || len(saved.tombstones) != 1 || !saved.tombstones[0].Done {
		t.Fatalf("%+v, %v; want the tombstone done on disk", saved.tombstones, err)
	}
	saved.tombstones[0].Done = false // as earlier versions left it
	if err := r.a.store.update(func(w write) error { return w.tombstone(saved.tombstones[0]) }); err != nil {
		t.Fatal(err)
	}
	r.restart()
	check("after a restart")
}

func TestSettle(t *testing.T) {
	p := retryPolicy{base: 5 * time.Second, max: 2 * time.Minute, limit: 3, stable: 30 * time.Second}
	now := time.Unix(1000, 0)
	ended := func(ran time.Duration, state driver.State) driver.Observed {
		return driver.Observed{RuntimeID: "r", State: state, StartedAt: now.Add(-ran), FinishedAt: now, ExitCode: 1}
	}
	run := desired{running: true}
	once := p.settle(run, ended(time.Second, driver.Failed), failure{}, now)
	if once.Attempts != 1 || once.Next.Sub(now) != 5*time.Second || once.Final {
		t.Errorf("an end counts once and waits 5 s, got %+v", once)
	}
	if again := p.settle(run, ended(time.Second, driver.Failed), once, now.Add(time.Second)); again != once {
		t.Errorf("the same end seen again counts nothing, got %+v", again)
	}
	if f := p.settle(run, ended(time.Hour, driver.Failed), failure{Attempts: 2}, now); f.Attempts != 0 {
		t.Errorf("an end after a long run starts over, got %+v", f)
	}
	if f := p.settle(run, ended(time.Second, driver.Stopped), failure{}, now); f.Attempts != 1 {
		t.Errorf("exit code 0 of what should run counts too, got %+v", f)
	}
	if f := p.settle(desired{running: true, asked: true}, ended(time.Second, driver.Stopped), failure{}, now); f.Attempts != 0 || f.Ended == "" {
		t.Errorf("an end from before the order does not count, got %+v", f)
	}
	if f := p.settle(desired{running: true, keepEnded: true}, ended(time.Second, driver.Failed), failure{}, now); !f.Final || f.Attempts != 0 {
		t.Errorf("under a policy that keeps it ended, it is Failed at once, got %+v", f)
	}
	if f := p.settle(run, driver.Observed{State: driver.Stopped}, failure{}, now); f != (failure{}) {
		t.Errorf("created and not started is no end, got %+v", f)
	}
	if f := p.settle(run, driver.Observed{State: driver.Running, StartedAt: now.Add(-31 * time.Second)}, once, now); f != (failure{}) {
		t.Errorf("a stable run is forgiven, got %+v", f)
	}
	if f := p.settle(run, driver.Observed{State: driver.Running, StartedAt: now.Add(-time.Second)}, once, now); f != once {
		t.Errorf("a fresh run is not forgiven yet, got %+v", f)
	}
	if f := p.settle(desired{}, driver.Observed{State: driver.Stopped}, once, now); f != (failure{}) {
		t.Errorf("what is stopped as desired has no failures, got %+v", f)
	}
}

// TestReportOfAStopThatFailed: what could not be stopped runs, with the reason why.
func TestReportOfAStopThatFailed(t *testing.T) {
	now := time.Unix(1000, 0)
	r := NewRules("a", nil)
	in := &Intent{ID: "web", Type: driver.Container, DesiredState: "stopped", EngineContent: "x"}
	runs := &driver.Observed{ID: "web", State: driver.Running, Content: "x"}
	m := Memory{}
	for range 3 {
		m.Failure = r.Failed(in, m.Failure, driver.Errorf(driver.RuntimeError, "halt", "it does not stop"), nil, func(func(*intent, *driver.Observed) bool) {}, now)
	}
	if !m.Failure.Final {
		t.Fatalf("%+v", m.Failure)
	}
	if state, class, message := r.Report(in, false, runs, m, now); state != agentv1.ActualState_ACTUAL_STATE_RUNNING || class != driver.RuntimeError || message == "" {
		t.Fatalf("%s %s %q", state, class, message)
	}
	m.Asked = true // a new order
	if do, _, _ := r.Next(in, m, runs, now); do != "halt" {
		t.Fatalf("ordered again: %s", do)
	}
}

// A machine of a legacy v1 agent has no labels: it is known by its name, and runs on as it is. Under a guard, which
// stops only what is marked, it is defined anew.
func TestMachineOfAnExistingAgent(t *testing.T) {
	vm := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{Vcpus: 1, MemoryMb: 64}}}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	req := &agentv1.ApplyWorkloadRequest{Id: "vm", RevisionId: "rev-7", Spec: vm}
	old, err := follow(key, nil, driver.VM, req, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old.LegacyRevision, old.LegacyContent = old.RevisionID, old.SpecHash
	theirs := &driver.Observed{ID: "vm", State: driver.Running}
	next := func(in *intent, o *driver.Observed) verb {
		return decide(in.desired(false, o), in.observed(o), failure{}, time.Now()).do
	}
	if do := next(old, theirs); do != doNothing {
		t.Errorf("after the agent was replaced: %v", do)
	}
	if do := next(old, &driver.Observed{ID: "vm", State: driver.Running, Owned: true}); do != doEnsure {
		t.Errorf("of an update cut short: %v", do)
	}
	req.RevisionId, req.Content, req.Exclusive, req.OnLostLease = "c1-1", "c1:a", true, "keep"
	for want, policy := range map[verb]string{doNothing: "keep", doEnsure: "stop"} {
		req.OnLostLease = policy
		in, err := follow(key, old, driver.VM, req, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if do := next(in, theirs); do != want {
			t.Errorf("with on_lost_lease %s: %v, want %v", policy, do, want)
		}
	}
}

// A machine without a mark that has the name of a workload is a stranger's, unless a legacy v1 agent left that
// workload.
func TestWhoseMachineHasNoMark(t *testing.T) {
	a := &Agent{workloads: map[string]*workload{}}
	for id, in := range map[string]*intent{
		"ordered":   {Type: driver.VM},
		"container": {Type: driver.Container, LegacyContent: "h"},
		"left":      {Type: driver.VM, LegacyContent: "h"},
		"changed":   {Type: driver.Container, LegacyContent: "h", PreviousTypes: []driver.Kind{driver.VM}},
	} {
		a.workloads[id] = &workload{id: id, intent: in}
		if got, want := a.taken(driver.VM, driver.ID(id)), id == "left" || id == "changed"; got != want {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
}
