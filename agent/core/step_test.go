package core

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// history sends events to Step, one second apart, and keeps the State and the effects.
type history struct {
	t       *testing.T
	s       State
	now     time.Time
	clock   time.Duration
	effects []Effect // effects of the last event
}

func newHistory(t *testing.T, set func(*Settings), saved ...*Intent) *history {
	settings := Settings{Node: "a", Policy: policy, Concurrency: 8}
	if set != nil {
		set(&settings)
	}
	h := &history{t: t, now: time.Unix(1000, 0), clock: 1000 * time.Second}
	h.s = Restore(settings, Saved{Intents: saved, Meta: Meta{InstanceID: "i1"}}, h.now)
	h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now})
	return h
}

func (h *history) step(e Event) *history {
	h.now, h.clock = h.now.Add(time.Second), h.clock+time.Second
	h.s, h.effects = Step(h.s, Input{Now: h.now, Clock: h.clock, Event: e})
	return h
}

// answer returns the effect Answer that the last event caused.
func (h *history) answer() Answer {
	for _, e := range h.effects {
		if a, ok := e.(Answer); ok {
			return a
		}
	}
	h.t.Fatalf("no answer in %v", h.effects)
	return Answer{}
}

// act returns the Act that the last event caused, or nil.
func (h *history) act() *Act {
	for _, e := range h.effects {
		if a, ok := e.(*Act); ok {
			return a
		}
	}
	return nil
}

// look reports to Step the result of the Look (an inspection) that the last event caused: the
// instance is in the given state.
func (h *history) look(state workload.State) *history {
	h.t.Helper()
	a := h.act()
	if a == nil || a.Verb != Look {
		h.t.Fatalf("the core's action is %+v, want a Look", a)
	}
	var o *workload.Observed
	if state != workload.Absent {
		o = &workload.Observed{ID: workload.ID(a.ID), State: state, Content: a.Intent.EngineContent, RuntimeID: "r1", StartedAt: h.now}
	}
	return h.step(Done{Act: a, Observed: o, Began: h.now})
}

func order(sequence, term uint64, change ...func(*Order)) Apply {
	o := Order{
		ID: "db", Kind: workload.Container, Content: "c1:a", SpecHash: "a1:x", Running: true,
		Generation: workload.Generation{Incarnation: 1, Sequence: sequence},
		Sender:     Sender{Epoch: &Epoch{ClusterID: "c1", Incarnation: 1, Term: term}},
	}
	for _, fn := range change {
		fn(&o)
	}
	return Apply{o}
}

func deletion(sequence, term uint64) Delete {
	return Delete{ID: "db", Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Incarnation: 1, Term: term}},
		Generation: workload.Generation{Incarnation: 1, Sequence: sequence}}
}

func leasedOrder(o *Order) { o.Exclusive, o.OnLostLease = true, "stop" }

func withFencer(s *Settings) { s.Fencer = true }

// TestStepJudgesOrders checks which orders are accepted. The agent runs db at generation 5, ordered in term
// 7, and has deleted old at generation 9.
func TestStepJudgesOrders(t *testing.T) {
	for _, c := range []struct {
		name   string
		event  Event
		fenced bool
		says   string // text of the refusal; empty if the order is accepted
	}{
		{"an order of a newer generation is accepted", order(6, 7), false, ""},
		{"an order of the same generation is accepted", order(5, 7), false, ""},
		{"an order of an older generation is refused", order(4, 7), true, "outdated"},
		{"an order of an older epoch is refused", order(6, 6), true, "older than"},
		{"an order without epoch is refused", order(6, 7, func(o *Order) { o.Epoch = nil }), true, "missing"},
		{"an order for another node is refused", order(6, 7, func(o *Order) { o.Node = "b" }), true, `this is node "a"`},
		{"an order for another instance of the agent is refused", order(6, 7, func(o *Order) { o.Instance = "i0" }), true, "this is agent instance i1"},
		{"an order of another cluster is refused", order(6, 7, func(o *Order) { o.Epoch.ClusterID = "c2" }), true, "c2"},
		{"an order with the generation of a tombstone is refused", order(9, 7, func(o *Order) { o.ID = "old" }), true, "deleted at generation 1.9"},
		{"an order with a higher generation than the tombstone is accepted", order(10, 7, func(o *Order) { o.ID = "old" }), false, ""},
		{"a delete of an older generation is refused", deletion(4, 7), true, "outdated"},
		{"a delete of the same generation is accepted", deletion(5, 7), false, ""},
		{"a delete of an older epoch is refused", deletion(6, 6), true, "older than"},
		{"a scheduler's response of an older epoch is refused", Heard{"c1", &Epoch{ClusterID: "c1", Incarnation: 1, Term: 6}}, true, "is older than"},
		{"a read of an older epoch is refused", Call{Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Incarnation: 1, Term: 6}}}, true, "older than"},
		{"a read without epoch is answered", Call{}, false, ""},
		{"a call without epoch that changes the machine is refused", Call{Changes: true}, true, "missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory(t, nil).step(order(5, 7)).look(workload.Absent)
			gone := deletion(9, 7)
			gone.ID = "old"
			no := h.step(gone).step(c.event).answer().Refusal
			switch {
			case c.says == "" && no != nil:
				t.Errorf("refused: %s", no.Message)
			case c.says != "" && (no == nil || no.Fenced != c.fenced || !strings.Contains(no.Message, c.says)):
				// If the epoch is missing, a refused Call gets a different message from a refused Apply.
				t.Errorf("the answer is %+v, want a refusal that says %q", no, c.says)
			}
		})
	}
}

// If a step writes to the state file, its first effect is the only Store, so that everything is stored before
// the order is answered.
func TestStepStoresBeforeItAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		event Event
		has   func(Store) bool
	}{
		{"an apply stores order, task and epoch", order(6, 8), func(s Store) bool { return len(s.Intents) == 1 && len(s.Tasks) > 0 && s.Meta.Epoch.Term == 8 }},
		{"a refused apply stores its epoch", order(4, 8), func(s Store) bool { return len(s.Intents) == 0 && s.Meta.Epoch.Term == 8 }},
		{"a delete stores order, tombstone and epoch", deletion(6, 8), func(s Store) bool {
			return len(s.Intents) == 1 && s.Intents[0].Deleting && len(s.Tombstones) == 1 && s.Meta.Epoch.Term == 8
		}},
		{"a delete of an absent workload stores a tombstone", func() Delete { d := deletion(1, 7); d.ID = "x"; return d }(), func(s Store) bool { return len(s.Tombstones) == 1 && s.Tombstones[0].Done }},
		{"a scheduler's response stores its epoch", Heard{"c1", &Epoch{ClusterID: "c1", Incarnation: 1, Term: 8}}, func(s Store) bool { return s.Meta.Epoch.Term == 8 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory(t, nil).step(order(5, 7)).look(workload.Absent).step(c.event)
			for i, e := range h.effects {
				if s, ok := e.(Store); ok != (i == 0) || ok && (!s.Required || !c.has(s)) {
					t.Fatalf("effect %d is %+v", i, e)
				}
			}
		})
	}
}

// A step does not change the State that it was given.
func TestStepDoesNotChangeItsState(t *testing.T) {
	h := newHistory(t, nil)
	before := h.s
	h.step(order(5, 7))
	if before.Get("db") != nil || before.Meta.Epoch.Owned() || before.Depth() != 0 {
		t.Errorf("the step changed the previous State, which now has the order: %+v", before.Get("db"))
	}
	if h.s.Get("db") == nil {
		t.Error("the State that the step returned lacks the workload")
	}
}

// TestDevicesOfAnEngineThatIsDown: the node keeps the numbers of devices that its container engine reported
// last, even if the agent is restarted while the engine does not answer.
func TestDevicesOfAnEngineThatIsDown(t *testing.T) {
	gpus := map[string]int64{"vendor.com/gpu": 2}
	restart := func(saved Meta) *history {
		h := newHistory(t, nil)
		h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8}, Saved{Meta: saved}, h.now)
		h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container, workload.VM}})
		return h.step(Probed{Kind: workload.VM, EngineID: "libvirt", Healthy: true})
	}
	h := restart(Meta{InstanceID: "i1"})
	h.step(Probed{Kind: workload.Container, EngineID: "e1", Healthy: true, Devices: gpus})
	h.step(Probed{Kind: workload.Container, Reason: "no answer"})
	if got := h.s.Devices(); !maps.Equal(got, gpus) {
		t.Errorf("after the engine stopped answering, the State has the devices %v, want %v, those of its last answer", got, gpus)
	}
	h = restart(h.s.Meta)
	h.step(Probed{Kind: workload.Container, Reason: "no answer"})
	if got := h.s.Devices(); !maps.Equal(got, gpus) {
		t.Errorf("after a restart of the agent, with the engine still down, the State has the devices %v, want %v, those of the state file", got, gpus)
	}
	h.step(Probed{Kind: workload.Container, EngineID: "e1", Healthy: true})
	if got := h.s.Devices(); len(got) > 0 || len(h.s.Meta.Devices) > 0 {
		t.Errorf("the engine reports no devices, but the State has %v and the state file %v; want none", got, h.s.Meta.Devices)
	}
}

// TestUpdatedStackSignalsUnchangedServices: an order changes the content of a stack, and also a file that its
// containers read from memory. Ensure recreates only the changed services, so the containers of the other services
// are signalled afterwards. A workload that is no stack gets a new container, which reads the new file when it
// starts.
func TestUpdatedStackSignalsUnchangedServices(t *testing.T) {
	for kind, signalled := range map[workload.Kind]bool{workload.Compose: true, workload.Container: false} {
		live := func(content, files string) func(*Order) {
			return func(o *Order) {
				o.Kind, o.Content, o.SpecHash, o.Traits = kind, content, content+files, Traits{LiveFiles: files}
			}
		}
		h := newHistory(t, nil)
		h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{kind}})
		h.step(Listed{Kind: kind, Bound: h.s.engines[0].Bound, Began: h.now})
		h.step(order(5, 7, live("c1:a", "one"))).look(workload.Absent)
		h.step(Done{Act: h.act()}).look(workload.Running)
		a := h.step(order(6, 7, live("c1:b", "two"))).act()
		old := workload.Observed{ID: "db", State: workload.Running, Content: "c1:a", RuntimeID: "r1", StartedAt: h.now}
		h.step(Done{Act: a, Observed: &old, Began: h.now})
		if a = h.act(); a == nil || a.Verb != Ensure {
			t.Fatalf("%s: after the order with new content the core's action is %+v, want an Ensure", kind, a)
		}
		h.step(Done{Act: a}).look(workload.Running)
		if a = h.act(); (a != nil && a.Verb == Refresh) != signalled {
			t.Errorf("%s: after the start of the new content the core's action is %+v; want a Refresh: %t", kind, a, signalled)
		}
		if signalled {
			if h.step(Done{Act: a}).look(workload.Running); h.act() != nil || h.s.Get("db").Intent.Refresh {
				t.Errorf("%s: after the refresh the core's action is %+v, want no action and no pending refresh", kind, h.act())
			}
		}
	}
}

// At most one Act (an action of the driver) is in progress for a workload at any time, until the workload
// is in its desired state.
func TestOneActPerWorkload(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7)).look(workload.Absent)
	start := h.act()
	if start == nil || start.Verb != Ensure || start.Cluster != "c1" {
		t.Fatalf("the core's action is %+v, want the start of the workload", start)
	}
	if h.step(Wake{"db"}); h.act() != nil {
		t.Errorf("a second action on the workload began while the first was in progress: %+v", h.act())
	}
	h.step(Done{Act: start}).look(workload.Running)
	h.look(workload.Running) // the Wake that arrived during the previous action asked for this inspection
	if w := h.s.Get("db"); w.Status.State != workload.Running || w.Task.Open() {
		t.Errorf("%+v, task %+v", w.Status, w.Task)
	}
	h.step(Done{Act: start})
	if h.act() != nil {
		t.Error("the second Done for the same action had an effect")
	}
	remove := h.step(deletion(6, 7)).act()
	if remove == nil || remove.Verb != Remove {
		t.Fatalf("the core's action is %+v, want the removal of the workload", remove)
	}
	if h.step(Done{Act: remove}); h.s.Get("db") != nil || !h.s.Tombstone("db").Done {
		t.Errorf("%+v, tombstone %+v", h.s.Get("db"), h.s.Tombstone("db"))
	}
}

// If the state file cannot be written (StoreFailed) and no caller waits for the answer, the core retries
// the start of the workload.
func TestStepRetriesAfterFailedStore(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7))
	h.step(StoreFailed{ID: "db"})
	if h.s.InWork("db") || h.s.Depth() != 1 {
		t.Errorf("after a failed Store an action on db is in progress: %t, want false; %d workloads have an action due, want 1", h.s.InWork("db"), h.s.Depth())
	}
	h.now = h.now.Add(policy.Base)
	if h.step(Tick{}); h.act() == nil {
		t.Error("the start was not tried again after the failed Store")
	}
}

// After a restart of the agent, an exclusive workload is started only after a new order, or after its
// instance was seen running.
func TestStepHoldsExclusiveWorkloads(t *testing.T) {
	in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a+exclusive", Content: "c1:a", SpecHash: "a1:x", Exclusive: true,
		Generation: workload.Generation{Incarnation: 1, Sequence: 5}}
	exclusive := func(o *Order) { o.Exclusive = true }
	held := newHistory(t, nil, in).step(Start{}).look(workload.Absent)
	if a := held.act(); a != nil {
		t.Fatalf("a restored exclusive workload was started without a new order: %+v", a)
	}
	if st := held.s.Get("db").Status; st.State != workload.Stopped || st.Message != waitsMessage {
		t.Errorf("reported as %+v", st)
	}
	if a := held.step(order(5, 7, exclusive)).look(workload.Absent).act(); a == nil || a.Verb != Ensure {
		t.Errorf("a restored exclusive workload was not started by a new order: %+v", a)
	}
	adopted := newHistory(t, nil, in).step(Start{}).look(workload.Running)
	if st := adopted.s.Get("db").Status; st.State != workload.Running {
		t.Errorf("after a restart of the agent the running instance is reported as %+v, want it adopted and reported as Running", st)
	}
}

// If an exclusive job ended while the agent was down, the agent reports its end. Otherwise the schedulers would order the
// job again, and it would run a second time.
func TestStepReportsTheEndOfAnExclusiveJobAfterARestart(t *testing.T) {
	in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a+exclusive", Content: "c1:a", SpecHash: "a1:x", Exclusive: true,
		Generation: workload.Generation{Incarnation: 1, Sequence: 5}, Traits: Traits{RestartPolicy: "no"}}
	for _, c := range []struct {
		state  workload.State
		code   int
		want   workload.State
		reason string
	}{
		{workload.Stopped, 0, workload.Stopped, ReasonCompleted},
		{workload.Failed, 3, workload.Failed, ""},
	} {
		h := newHistory(t, nil, in).step(Start{})
		a := h.act()
		h.step(Done{Act: a, Began: h.now, Observed: &workload.Observed{
			ID: "db", State: c.state, ExitCode: c.code, Content: in.EngineContent, RuntimeID: "r1", StartedAt: h.now.Add(-time.Minute), FinishedAt: h.now,
		}})
		st := h.s.Get("db").Status
		if a := h.act(); a != nil || st.State != c.want || st.Reason != c.reason || st.Exit.EndedAt.IsZero() || st.Exit.Code != c.code {
			t.Errorf("a job that ended with exit code %d is reported as %+v, and the core began %+v; want the exit of the job in the report, and no action", c.code, st, a)
		}
		// A repetition of the order does not run the job again, whether it succeeded or failed. An order of a newer
		// generation runs a failed job again.
		job := func(o *Order) { o.Exclusive, o.Traits.RestartPolicy = true, "no" }
		if a := h.step(order(5, 7, job)).answer(); !a.Skipped {
			t.Errorf("the job ended with exit code %d; the repetition of its order was answered %+v, want skipped", c.code, a)
		}
		if a := h.step(order(6, 7, job)).answer(); a.Skipped != (c.code == 0) {
			t.Errorf("the job ended with exit code %d; an order of a newer generation was answered %+v, want it skipped only after exit code 0", c.code, a)
		}
	}
}

// If a container with the restart policy no fails, the schedulers do not run it again either, unless
// somebody asks for another run. They do run failed jobs again, and failed containers without a restart
// policy.
func TestStepGivesUpAFailedContainerThatNeverRestarts(t *testing.T) {
	for _, c := range []struct {
		fact     string
		traits   Traits
		kept     bool // Observed.KeepEnded, which the driver of stacks sets
		given    workload.Generation
		terminal string
	}{
		{"a service", Traits{RestartPolicy: "no"}, false, workload.Generation{Incarnation: 1, Sequence: 5}, "true"},
		{"a job", Traits{RestartPolicy: "no", Job: true}, false, workload.Generation{Incarnation: 1, Sequence: 5}, ""},
		{"a service of a legacy v1 scheduler", Traits{RestartPolicy: "no"}, false, workload.Generation{}, ""},
		{"a service with a number of restarts", Traits{RestartPolicy: "on-failure", MaxRestarts: 3}, false, workload.Generation{Incarnation: 1, Sequence: 5}, "true"},
		{"a service without a number of restarts", Traits{RestartPolicy: "on-failure"}, false, workload.Generation{Incarnation: 1, Sequence: 5}, ""},
		{"a service without a policy", Traits{}, false, workload.Generation{Incarnation: 1, Sequence: 5}, ""},
		{"a stack whose services never restart", Traits{}, true, workload.Generation{Incarnation: 1, Sequence: 5}, "true"},
		{"a stack that is a job", Traits{Job: true}, true, workload.Generation{Incarnation: 1, Sequence: 5}, ""},
	} {
		h := newHistory(t, nil).step(order(5, 7, func(o *Order) { o.Traits, o.Generation = c.traits, c.given }))
		h.step(Done{Act: h.look(workload.Absent).act(), Began: h.now})
		h.step(Done{Act: h.act(), Began: h.now, Observed: &workload.Observed{
			ID: "db", State: workload.Failed, ExitCode: 3, Content: "c1:a", Generation: c.given, RuntimeID: "r1",
			StartedAt: h.now.Add(-time.Second), FinishedAt: h.now, KeepEnded: c.kept,
		}})
		st := h.s.Get("db").Status
		if final := c.kept || c.traits.RestartPolicy != ""; (st.State == workload.Failed) != final || final && st.Exit.Code != 3 {
			t.Errorf("%s that ended with exit code 3 is reported as %+v, want it reported as Failed with the exit code: %t", c.fact, st, final)
		}
		if got := st.Metadata["retry_terminal"]; got != c.terminal || (got != "") != strings.HasSuffix(st.Message, neverAgain) {
			t.Errorf("%s that ended with exit code 3 is reported as %+v, want retry_terminal %q", c.fact, st, c.terminal)
		}
		if c.terminal != "" && st.State != workload.Failed {
			t.Errorf("%s that ended with exit code 3 is reported as %s, want Failed", c.fact, st.State)
		}
		if c.terminal != "" {
			again := func(o *Order) { o.Traits = c.traits }
			if a := h.step(order(6, 7, again)).answer(); a.Skipped {
				t.Errorf("%s: an order of a newer generation was skipped, want that the workload runs again: %+v", c.fact, a)
			}
		}
	}
}

// TestARepeatedOrderRunsAJobOnce: a new leader of the schedulers repeats an order, because the replicated
// state contains no acknowledgement of it by the agent. The job runs once, whether the repetition arrives
// before or after its end.
func TestARepeatedOrderRunsAJobOnce(t *testing.T) {
	once := func(o *Order) { o.Traits.RestartPolicy = "no" }
	ended := func(h *history) *history {
		t.Helper()
		a := h.act()
		if a == nil || a.Verb != Look {
			t.Fatalf("the core's action is %+v, want a Look", a)
		}
		return h.step(Done{Act: a, Began: h.now, Observed: &workload.Observed{
			ID: workload.ID(a.ID), State: workload.Stopped, Content: a.Intent.EngineContent, RuntimeID: "r1", StartedAt: h.now.Add(-time.Second), FinishedAt: h.now,
		}})
	}
	for _, when := range []string{"never", "during the start", "after the start"} {
		t.Run(when, func(t *testing.T) {
			h := newHistory(t, nil).step(order(1, 1, once))
			start := h.look(workload.Absent).act()
			if start == nil || start.Verb != Ensure {
				t.Fatalf("the core's action is %+v, want the start of the job", start)
			}
			if when == "during the start" {
				h.step(order(1, 2, once))
			}
			h.step(Done{Act: start, Began: h.now})
			if when == "after the start" {
				look := h.act()
				h.step(order(1, 2, once))
				h.effects = []Effect{look}
			}
			for range 3 {
				ended(h)
				if a := h.act(); a == nil {
					break
				} else if a.Verb != Look {
					t.Fatalf("after the end of the job the core's action is %+v, want none", a)
				}
			}
			w := h.s.Get("db")
			if w.Status.Reason != ReasonCompleted || w.Task.Open() {
				t.Errorf("the job ended with success, but its report is %+v and its task %+v; want the reason Completed and a task that has ended", w.Status, w.Task)
			}
		})
	}
}

// A workload with on_lost_lease: stop starts only under a lease that the fencer has confirmed. After the lease has
// ended, it starts only on a newer order.
func TestStepRunsLeasedWorkloadsUnderTheLease(t *testing.T) {
	h := newHistory(t, withFencer)
	if a := h.step(order(5, 7, leasedOrder)).answer(); a.Unavailable == "" || a.Retry {
		t.Fatalf("an order for a leased workload on a node without a lease was answered %+v, want Unavailable without Retry", a)
	}
	h.step(Leased{h.clock + time.Hour})
	if a := h.step(order(5, 7, leasedOrder)).answer(); a.Unavailable == "" || !a.Retry {
		t.Fatalf("before the fencer confirmed the leased workload, its order was answered %+v, want Unavailable with Retry", a)
	}
	renew := func(lapses uint64) *history {
		h.t.Helper()
		h.step(FencerDue{})
		sent := h.effects[len(h.effects)-1].(Renew).Renewal
		return h.step(FencerAnswered{Sent: sent, Status: lease.Status{Deadline: sent.Deadline, Lapses: lapses, Leased: sent.Leased}})
	}
	renew(0)
	if a := h.step(order(5, 7, leasedOrder)).answer(); a.Intent == nil {
		t.Fatalf("confirmed: %+v", a)
	}
	h.look(workload.Absent)
	start := h.act()
	if start == nil {
		start = renew(0).act()
	}
	if start == nil || !start.Leased || start.Verb != Ensure {
		t.Fatalf("the core's action is %+v, want a start under the lease", start)
	}
	renew(1) // the fencer reports that the lease ended while the workload was being started
	cancelled := false
	for _, e := range h.effects {
		c, ok := e.(Cancel)
		cancelled = cancelled || ok && c.Act == start && !c.Starting
	}
	if !cancelled {
		t.Fatalf("the end of the lease did not cancel the start: %v", h.effects)
	}
	h.step(FencerDue{})
	if told := h.effects[0].(Renew).Renewal.Lapses; told != 0 {
		t.Error("the agent confirmed the end of the lease to the fencer while a start under that lease was in progress")
	}
	h.step(Done{Act: start, Failed: &Failed{Class: workload.RuntimeError, Message: "cancelled"}})
	h.step(FencerDue{})
	if told := h.effects[len(h.effects)-1].(Renew).Renewal.Lapses; told != 1 {
		t.Errorf("after the cancelled start the agent has confirmed %d lapses (ends of a lease) to the fencer, want 1", told)
	}
	h.step(order(5, 7, leasedOrder))
	if w := h.s.Get("db"); !w.Waiting() || w.Status.State == workload.Running {
		t.Errorf("a repetition of the order from before the end of the lease started the workload: %+v", w.Status)
	}
}

// While drivers that use another cluster label are being made, the core creates no instance, because it would
// get the old label.
func TestStepWaitsForTheLabel(t *testing.T) {
	h := newHistory(t, nil)
	h.s.Bound = "unbound"
	h.step(order(5, 7))
	if rebound := len(h.effects) > 1 && h.act() == nil; !rebound || h.s.rebinding != "c1" {
		t.Fatalf("an action began before there were drivers for the new label: %v", h.effects)
	}
	h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	if a := h.look(workload.Absent).act(); a == nil || a.Cluster != "c1" {
		t.Errorf("the core's action is %+v, want a start under the new label", a)
	}
}

// An engine accepts every Ensure but never lists an instance. After maxTurns attempts in a row, the core pauses
// its work on the workload.
func TestWorkPausesAfterTooManyTurns(t *testing.T) {
	h := newHistory(t, nil)
	h.step(order(1, 1))
	acts := 0
	for ; h.act() != nil && acts < 10*maxTurns; acts++ {
		if a := h.act(); a.Verb == Look {
			h.look(workload.Absent)
		} else {
			h.step(Done{Act: a})
		}
	}
	if acts == 0 || acts > 2*maxTurns {
		t.Fatalf("the core began %d actions without a pause, want at most %d", acts, 2*maxTurns)
	}
	h.now = h.now.Add(policy.Base)
	if h.step(Tick{}); h.act() == nil {
		t.Error("after the pause the core began no further action")
	}
}

// While all drivers are being replaced, the driver of another engine is added. The added driver does not end
// the replacement. The core creates no instance before the replacement ends, because the instance would get
// the label of the previous cluster.
func TestAddedEngineDoesNotEndTheReplacementOfDrivers(t *testing.T) {
	h := newHistory(t, nil)
	h.s.rebinding = "c2"
	h.step(order(1, 1))
	if h.step(Engines{Added: true, Kinds: []workload.Kind{workload.VM}}); h.act() != nil || h.s.rebinding != "c2" {
		t.Errorf("after an engine was added, the core's action is %+v and it waits for drivers of cluster %q; want no action and cluster \"c2\"", h.act(), h.s.rebinding)
	}
	if h.step(Engines{Cluster: "c2", Kinds: []workload.Kind{workload.Container, workload.VM}}); h.s.rebinding != "" {
		t.Errorf("the replacement of the drivers has ended, but the State still waits for drivers for cluster %q", h.s.rebinding)
	}
}

// Until an order is carried out, the report of its workload says that the agent works on it, and what the
// driver does. Until then, an instance of the previous order is not reported as running.
func TestReportSaysWhatTheAgentDoes(t *testing.T) {
	h := newHistory(t, nil)
	says := func(want string) {
		t.Helper()
		st := h.s.Get("db").Status
		if got := string(st.State) + " " + st.Reason + ": " + st.Message; got != want {
			t.Fatalf("the state, reason and message in the report of the workload are %q, want %q", got, want)
		}
	}
	h.step(order(5, 7))
	h.look(workload.Absent)
	says("Pending Working: in work")
	h.step(Progress{ID: "db", Text: "pulling app: 1 of 9 GB"})
	says("Pending Working: pulling app: 1 of 9 GB")
	ensure := func() *Act {
		j, _ := h.s.jobs.Get("db")
		return j.act
	}
	h.step(Progress{ID: "db"}).step(Done{Act: ensure()}).look(workload.Running)
	says("Running : ")

	// An instance of the previous order runs. The agent receives an update, then a stop, then a delete. Until
	// each order is carried out, the report is Pending.
	h.step(order(6, 7, func(o *Order) { o.Content, o.SpecHash = "c1:b", "a1:y" }))
	says("Pending Working: in work")
	former := &workload.Observed{ID: "db", State: workload.Running, Content: "c1:a", RuntimeID: "r1", StartedAt: h.now}
	h.step(Done{Act: h.act(), Observed: former, Began: h.now})
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now, Seen: []workload.Observed{*former}})
	says("Pending Working: in work")
	h.step(Done{Act: ensure()}).look(workload.Running)
	h.look(workload.Running) // the list of the engine made the core ask for another inspection
	h.step(order(7, 7, func(o *Order) { o.Content, o.SpecHash, o.Running = "c1:b", "a1:y", false }))
	h.look(workload.Running)
	says("Pending Working: in work")
	h.step(Done{Act: ensure()}).look(workload.Stopped)
	says("Stopped : ")
	h.step(order(8, 7, func(o *Order) { o.Content, o.SpecHash = "c1:b", "a1:y" }))
	h.look(workload.Running)
	h.step(deletion(9, 7))
	h.step(Progress{ID: "db", Text: "stopping, up to 60 s"})
	says("Pending : being deleted; now: stopping, up to 60 s")
}

// TestWaitingStacksBlockNoOthers: a stack that waits for its dependency, which may take hours, is not counted
// in Settings.Concurrency (the limit of concurrent actions), so other workloads of its node are started
// meanwhile. A stack that pulls an image is counted.
func TestWaitingStacksBlockNoOthers(t *testing.T) {
	h := newHistory(t, func(s *Settings) { s.Concurrency = 1 })
	other := func(id string) Apply { return order(5, 7, func(o *Order) { o.ID = id }) }
	h.step(order(5, 7)).look(workload.Absent)
	wait := h.act()
	h.step(Progress{ID: "db", Text: "pulling app: 1 of 9 GB"})
	if h.step(other("web")); h.act() != nil {
		t.Fatalf("the core began %+v while the pull for db was in progress, want no action, because Settings.Concurrency is 1", h.act())
	}
	h.step(Progress{ID: "db", Text: workload.WaitingFor + "migrate to end with success, 180 min"})
	if a := h.act(); a == nil || a.ID != "web" {
		t.Fatalf("while db waits for its dependency the core began %+v, want the start of web", a)
	}
	h.look(workload.Absent)
	if a := h.act(); a == nil || a.ID != "web" || a.Verb != Ensure {
		t.Fatalf("after the inspection of web the core's action is %+v, want the start of web", a)
	}
	if st := h.s.Get("db").Status; st.Reason != ReasonWorking || st.Message != "waiting for migrate to end with success, 180 min" {
		t.Errorf("db is %+v", st)
	}
	// A new order ends the wait at any time.
	h.step(Done{Act: h.act()}).look(workload.Running)
	h.step(deletion(6, 7))
	for _, e := range h.effects {
		if c, ok := e.(Cancel); ok && c.Act == wait {
			return
		}
	}
	t.Errorf("a delete of db must cancel the wait of its start, but the effects are %v", h.effects)
}

// While a failed action is tried again, the report shows the failure and what the driver does now.
func TestReportAfterAFailureSaysWhatTheAgentDoes(t *testing.T) {
	h := newHistory(t, nil)
	h.step(order(5, 7))
	h.look(workload.Absent)
	h.step(Done{Act: h.act(), Failed: &Failed{Class: workload.NetworkUnreachable, Message: "no route"}})
	h.step(Progress{ID: "db", Text: "pulling app: 1 of 9 GB"})
	st := h.s.Get("db").Status
	if st.Reason != "" || st.Class != workload.NetworkUnreachable || st.Message != "no route; now: pulling app: 1 of 9 GB" {
		t.Fatalf("%+v", st)
	}
}

// TestReportsAskForAnotherNode: after Policy.Limit failed attempts, the report says that another node may be tried, if
// the failures have a cause on this node and no instance of the workload runs.
func TestReportsAskForAnotherNode(t *testing.T) {
	for name, c := range map[string]struct {
		class    workload.Class
		attempts int
		observed workload.State
		kind     workload.Kind
		busy     string
		want     bool
	}{
		"a full disk":                               {workload.StorageFull, policy.Limit, workload.Absent, workload.Container, "", true},
		"a full disk, too few attempts":             {workload.StorageFull, policy.Limit - 1, workload.Absent, workload.Container, "", false},
		"an image that is not on the node":          {workload.ImageNotOnNode, policy.Limit, workload.Absent, workload.Container, "", true},
		"a taken port, the container did not start": {workload.PortBindConflict, policy.Limit, workload.Failed, workload.Container, "", true},
		"a taken port, the former revision runs":    {workload.PortBindConflict, policy.Limit, workload.Running, workload.Container, "", false},
		"a taken port, the container is paused":     {workload.PortBindConflict, policy.Limit, workload.Stopped, workload.Container, "", false},
		"a taken port, other services may run":      {workload.PortBindConflict, policy.Limit, workload.Failed, workload.Compose, "", false},
		"an unreachable registry, now it pulls":     {workload.NetworkUnreachable, policy.Limit, workload.Absent, workload.Container, "pulling app: 1 of 9 GB", false},
	} {
		h := newHistory(t, nil)
		h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container, workload.Compose}})
		for _, kind := range []workload.Kind{workload.Container, workload.Compose} {
			e, _ := h.s.Engine(kind)
			h.step(Listed{Kind: kind, Bound: e.Bound, Began: h.now})
		}
		h.step(order(5, 7, func(o *Order) { o.Kind = c.kind }))
		w := *h.s.Get("db")
		w.Task, w.Observed, w.busy = nil, nil, c.busy
		if c.observed != workload.Absent {
			w.Observed = &workload.Observed{ID: "db", State: c.observed, Content: "c1:former", RuntimeID: "r1"}
		}
		if c.observed == workload.Stopped {
			w.Observed.StartedAt = h.now // the container is paused
		}
		w.Failure = Failure{Class: c.class, Message: "it failed", Attempts: policy.Limit, OfNode: c.attempts, Next: h.now.Add(time.Minute), At: h.now}
		x := &step{State: h.s, now: h.now}
		if st := x.assess(&w); st.TryElsewhere != c.want {
			t.Errorf("%s: the report is %+v, want that another node may be tried: %t", name, st, c.want)
		}
	}
}

// TestFailuresOfTheNodeAreCountedInARow: the agent counts attempts in a row that fail because of the node, such
// as a full disk. A failure with another cause resets the count to zero.
func TestFailuresOfTheNodeAreCountedInARow(t *testing.T) {
	for _, c := range []struct {
		classes []workload.Class
		want    int
	}{
		{[]workload.Class{workload.StorageFull, workload.PortBindConflict, workload.NetworkUnreachable}, 3},
		{[]workload.Class{workload.RuntimeError, workload.RuntimeError, workload.StorageFull}, 1},
		{[]workload.Class{workload.StorageFull, workload.StorageFull, workload.RuntimeUnhealthy}, 0},
		{[]workload.Class{workload.StorageFull, workload.ImagePullAuthFailed}, 0},
	} {
		var f Failure
		for _, class := range c.classes {
			f = policy.failed(f, class, "it failed", time.Unix(1000, 0))
		}
		if f.OfNode != c.want {
			t.Errorf("after %v there are %d failures of the node in a row, want %d", c.classes, f.OfNode, c.want)
		}
	}
}

// While a stack waits for a dependency, the engine lists containers that are not started yet. The agent does
// not treat these containers as failed.
func TestNoFailureIsCountedDuringAStart(t *testing.T) {
	h := newHistory(t, nil)
	h.step(order(5, 7))
	h.look(workload.Absent)
	act := h.act()
	waits := workload.Observed{ID: "db", State: workload.Failed, RuntimeID: "r1", Message: "service web created, not started"}
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now, Seen: []workload.Observed{waits}})
	if w := h.s.Get("db"); w.Failure.Attempts != 0 || w.Status.Reason != ReasonWorking {
		t.Fatalf("%+v %+v", w.Failure, w.Status)
	}
	h.step(Done{Act: act}).look(workload.Running)
	if w := h.s.Get("db"); w.Failure.Attempts != 0 || w.Status.State != workload.Running || w.Task.Error != "" {
		t.Fatalf("%+v %+v %+v", w.Failure, w.Status, w.Task)
	}
}

// TestFailureOfAFormerOrder: an agent may restart after it stored a new order and before it stored a report
// about that order. It then drops a stored failure that is older than the order, and keeps a newer one. A
// garbage collection that began after the failure is no new order, so the failure is kept.
func TestFailureOfAFormerOrder(t *testing.T) {
	ordered := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		at     time.Time
		action string
		kept   bool
	}{
		"before the order":            {ordered.Add(-time.Second), ActionApply, false},
		"after the order":             {ordered.Add(time.Second), ActionApply, true},
		"before a garbage collection": {ordered.Add(-time.Second), ActionGC, true},
	} {
		in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:b"}
		saved := Saved{
			Intents: []*Intent{in}, Tasks: []*Task{NewTask(c.action, "db", ordered)},
			Status: map[string]SavedStatus{"db": {Status: &Status{ID: "db"}, Failure: Failure{Message: "no such image", Attempts: 1, Final: true, At: c.at}}},
		}
		if got := Restore(Settings{}, saved, ordered.Add(time.Minute)).Get("db").Failure; (got != Failure{}) != c.kept {
			t.Errorf("stored failure from %s: the restarted agent has the failure record %+v, want the stored failure kept: %t", name, got, c.kept)
		}
	}
}
