package core

import (
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
	settings := Settings{Node: "a", Policy: policy, Concurrency: 8, StopGrace: 30 * time.Second}
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

// answer returns the Answer to the last event.
func (h *history) answer() Answer {
	for _, e := range h.effects {
		if a, ok := e.(Answer); ok {
			return a
		}
	}
	h.t.Fatalf("no answer in %v", h.effects)
	return Answer{}
}

// act returns the Act of the last event, or nil.
func (h *history) act() *Act {
	for _, e := range h.effects {
		if a, ok := e.(*Act); ok {
			return a
		}
	}
	return nil
}

// look completes the Look of the last event with an instance in the given state.
func (h *history) look(state workload.State) *history {
	h.t.Helper()
	a := h.act()
	if a == nil || a.Verb != Look {
		h.t.Fatalf("want a look, have %+v", a)
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

func guardedOrder(o *Order) { o.Exclusive, o.OnLostLease = true, "stop" }

func withFencer(s *Settings) { s.Fencer = true }

// Orders are accepted or refused by an agent that runs db at generation 5 under term 7 and has
// deleted old at generation 9.
func TestStepJudgesOrders(t *testing.T) {
	for _, c := range []struct {
		name   string
		event  Event
		fenced bool
		says   string // text of the refusal; empty: accepted
	}{
		{"a newer generation is taken", order(6, 7), false, ""},
		{"the same generation is taken", order(5, 7), false, ""},
		{"an older generation is refused", order(4, 7), true, "outdated"},
		{"an older epoch is refused", order(6, 6), true, "older than"},
		{"an order without epoch is refused", order(6, 7, func(o *Order) { o.Epoch = nil }), true, "missing"},
		{"an order for another node is refused", order(6, 7, func(o *Order) { o.Node = "b" }), true, `this is node "a"`},
		{"an order for another instance is refused", order(6, 7, func(o *Order) { o.Instance = "i0" }), true, "this is instance i1"},
		{"an order of another cluster is refused", order(6, 7, func(o *Order) { o.Epoch.ClusterID = "c2" }), true, "c2"},
		{"an order at a tombstone is refused", order(9, 7, func(o *Order) { o.ID = "old" }), true, "deleted at 1.9"},
		{"an order above a tombstone is taken", order(10, 7, func(o *Order) { o.ID = "old" }), false, ""},
		{"an older delete is refused", deletion(4, 7), true, "outdated"},
		{"a delete of the same generation is taken", deletion(5, 7), false, ""},
		{"a delete of an older epoch is refused", deletion(6, 6), true, "older than"},
		{"an answer of an older epoch does not count", Heard{"c1", &Epoch{ClusterID: "c1", Incarnation: 1, Term: 6}}, true, "superseded"},
		{"a read of an older epoch is refused", Call{Sender: Sender{Epoch: &Epoch{ClusterID: "c1", Incarnation: 1, Term: 6}}}, true, "older than"},
		{"a read without epoch is answered", Call{}, false, ""},
		{"a change without epoch is refused", Call{Changes: true}, true, "missing"},
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
				// Call words the refusal of a missing epoch differently.
				t.Errorf("%+v, want a refusal that says %q", no, c.says)
			}
		})
	}
}

// A step returns one Store, before every other effect.
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
		{"an answer stores its epoch", Heard{"c1", &Epoch{ClusterID: "c1", Incarnation: 1, Term: 8}}, func(s Store) bool { return s.Meta.Epoch.Term == 8 }},
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
		t.Errorf("the former state has the order: %+v", before.Get("db"))
	}
	if h.s.Get("db") == nil {
		t.Error("the new state has it not")
	}
}

// Each workload has at most one Act at a time, until it is in its desired state.
func TestOneActPerWorkload(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7)).look(workload.Absent)
	start := h.act()
	if start == nil || start.Verb != Ensure || start.Cluster != "c1" {
		t.Fatalf("want a start, have %+v", start)
	}
	if h.step(Wake{"db"}); h.act() != nil {
		t.Errorf("a second act began: %+v", h.act())
	}
	h.step(Done{Act: start}).look(workload.Running)
	h.look(workload.Running) // requested by the Wake that arrived meanwhile
	if w := h.s.Get("db"); w.Status.State != workload.Running || w.Task.Open() {
		t.Errorf("%+v, task %+v", w.Status, w.Task)
	}
	h.step(Done{Act: start})
	if h.act() != nil {
		t.Error("an outcome that comes twice counts twice")
	}
	remove := h.step(deletion(6, 7)).act()
	if remove == nil || remove.Verb != Remove {
		t.Fatalf("want a removal, have %+v", remove)
	}
	if h.step(Done{Act: remove}); h.s.Get("db") != nil || !h.s.Tombstone("db").Done {
		t.Errorf("%+v, tombstone %+v", h.s.Get("db"), h.s.Tombstone("db"))
	}
}

// After a failed Store of a step without sender the work is retried.
func TestStepRetriesAfterFailedStore(t *testing.T) {
	h := newHistory(t, nil).step(order(5, 7))
	h.step(StoreFailed{"db"})
	if h.s.InWork("db") || h.s.Depth() != 1 {
		t.Errorf("in work %t, depth %d", h.s.InWork("db"), h.s.Depth())
	}
	h.now = h.now.Add(policy.Base)
	if h.step(Tick{}); h.act() == nil {
		t.Error("it is not tried again")
	}
}

// A restored exclusive workload is not started before a new order or an observation of a running
// instance.
func TestStepHoldsExclusiveWorkloads(t *testing.T) {
	in := &Intent{ID: "db", Type: workload.Container, DesiredState: "running", EngineContent: "c1:a+exclusive", Content: "c1:a", SpecHash: "a1:x", Exclusive: true,
		Generation: workload.Generation{Incarnation: 1, Sequence: 5}}
	exclusive := func(o *Order) { o.Exclusive = true }
	held := newHistory(t, nil, in).step(Start{}).look(workload.Absent)
	if a := held.act(); a != nil {
		t.Fatalf("started without an order: %+v", a)
	}
	if st := held.s.Get("db").Status; st.State != workload.Stopped || st.Message != waitsMessage {
		t.Errorf("reported as %+v", st)
	}
	if a := held.step(order(5, 7, exclusive)).look(workload.Absent).act(); a == nil || a.Verb != Ensure {
		t.Errorf("not started by an order: %+v", a)
	}
	adopted := newHistory(t, nil, in).step(Start{}).look(workload.Running)
	if st := adopted.s.Get("db").Status; st.State != workload.Running {
		t.Errorf("not adopted: %+v", st)
	}
}

// A workload with on_lost_lease: stop starts only under a confirmed lease, and after a lapse only on
// a newer order.
func TestStepGuardsWithTheLease(t *testing.T) {
	h := newHistory(t, withFencer)
	if a := h.step(order(5, 7, guardedOrder)).answer(); a.Unavailable == "" || a.Retry {
		t.Fatalf("without a lease: %+v", a)
	}
	h.step(Leased{h.clock + time.Hour})
	if a := h.step(order(5, 7, guardedOrder)).answer(); a.Unavailable == "" || !a.Retry {
		t.Fatalf("before the fencer has confirmed it: %+v", a)
	}
	renew := func(lapses uint64) *history {
		h.t.Helper()
		h.step(FencerDue{})
		sent := h.effects[len(h.effects)-1].(Renew).Renewal
		return h.step(FencerAnswered{Sent: sent, Status: lease.Status{Deadline: sent.Deadline, Lapses: lapses, Guarded: sent.Guarded}})
	}
	renew(0)
	if a := h.step(order(5, 7, guardedOrder)).answer(); a.Intent == nil {
		t.Fatalf("confirmed: %+v", a)
	}
	h.look(workload.Absent)
	start := h.act()
	if start == nil {
		start = renew(0).act()
	}
	if start == nil || !start.Guarded || start.Verb != Ensure {
		t.Fatalf("want a guarded start, have %+v", start)
	}
	renew(1) // the lease ended during the start
	cancelled := false
	for _, e := range h.effects {
		c, ok := e.(Cancel)
		cancelled = cancelled || ok && c.Act == start && !c.Starting
	}
	if !cancelled {
		t.Fatalf("the start goes on: %v", h.effects)
	}
	h.step(FencerDue{})
	if told := h.effects[0].(Renew).Renewal.Lapses; told != 0 {
		t.Error("the lapse is confirmed while a start is under way")
	}
	h.step(Done{Act: start, Failed: &Failed{workload.RuntimeError, "cancelled"}})
	h.step(FencerDue{})
	if told := h.effects[len(h.effects)-1].(Renew).Renewal.Lapses; told != 1 {
		t.Errorf("lapses confirmed: %d, want 1", told)
	}
	h.step(order(5, 7, guardedOrder))
	if w := h.s.Get("db"); !w.Waiting() || w.Status.State == workload.Running {
		t.Errorf("the order from before the lapse counts: %+v", w.Status)
	}
}

// No instance is created while drivers for another cluster label are being made.
func TestStepWaitsForTheLabel(t *testing.T) {
	h := newHistory(t, nil)
	h.s.Bound = "unbound"
	h.step(order(5, 7))
	if rebound := len(h.effects) > 1 && h.act() == nil; !rebound || h.s.rebinding != "c1" {
		t.Fatalf("work began under the old label: %v", h.effects)
	}
	h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
	if a := h.look(workload.Absent).act(); a == nil || a.Cluster != "c1" {
		t.Errorf("want a start under the new label, have %+v", a)
	}
}

// Work pauses after maxTurns if an engine accepts every Ensure but never lists an instance.
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
		t.Fatalf("%d acts without a pause, want at most %d", acts, 2*maxTurns)
	}
	h.now = h.now.Add(policy.Base)
	if h.step(Tick{}); h.act() == nil {
		t.Error("the work does not go on after the pause")
	}
}

// An engine that is added during a replacement of the drivers does not end it. No instance is
// created before the replacement, because it would get the previous label.
func TestAddedEngineDoesNotEndTheReplacementOfDrivers(t *testing.T) {
	h := newHistory(t, nil)
	h.s.rebinding = "c2"
	h.step(order(1, 1))
	if h.step(Engines{Added: true, Kinds: []workload.Kind{workload.VM}}); h.act() != nil || h.s.rebinding != "c2" {
		t.Errorf("act %+v, replacement for %q; want none, and c2", h.act(), h.s.rebinding)
	}
	if h.step(Engines{Cluster: "c2", Kinds: []workload.Kind{workload.Container, workload.VM}}); h.s.rebinding != "" {
		t.Errorf("a finished replacement is still under way: %q", h.s.rebinding)
	}
}
