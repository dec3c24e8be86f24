package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// wall is the wall clock at the moment when the monotonic clock is 0.
const wall = int64(1_790_000_000_000_000_000)

// bench drives a Term in a test. The test itself carries out the effects and passes the answers to the Term.
type bench struct {
	t     *testing.T
	term  *Term
	state fsm.State
	now   Time
	index uint64
	calls Call
	out   []Effect // effects that the test has not read yet
}

// lead starts a leadership term over a state with the named nodes.
func lead(t *testing.T, cfg Settings, nodes ...string) *bench {
	t.Helper()
	b := &bench{t: t, state: fsm.New(), now: Time{Wall: wall}}
	b.apply(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	for _, n := range nodes {
		b.apply(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: n, Endpoint: "10.0.0.1:50051", CpuMillicores: 64_000, MemoryMib: 65_536, Types: []string{"container"}, Protocol: 1, InstanceId: "i-" + n,
		}}})
	}
	b.term = New(cfg, fsm.Epoch{Incarnation: 1, Term: 1}, b.now, b.state)
	return b
}

// apply applies a command to the state and returns its changes.
func (b *bench) apply(c *commandv1.Command) []fsm.Change {
	b.t.Helper()
	b.index++
	if c.Head == nil {
		c.Head = &commandv1.Head{At: b.now.Wall, By: "test"}
	}
	next, r, changes := b.state.Apply(fsm.Meta{Index: b.index, Term: 1}, c)
	if r.Err() != nil {
		b.t.Fatalf("command %v was refused: %v", c, r.Err())
	}
	b.state = next
	return changes
}

// put stores a workload that is assigned to node a, which has not acknowledged it yet, and returns
// the order for it.
func (b *bench) put(id string) sched.Order {
	b.t.Helper()
	changes := b.apply(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: id, Spec: []byte(id), Content: "c1:" + fmt.Sprintf("%064x", b.index), Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10},
	}}}}})
	w, _ := b.state.Workload(id)
	changes = append(changes, b.apply(&commandv1.Command{
		Head: &commandv1.Head{Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}, At: b.now.Wall, By: "leader"},
		Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{{
			Workload: id, Node: "a", IfGeneration: fsm.GenerationPB(w.Generation),
		}}}},
	})...)
	w, _ = b.state.Workload(id)
	if w.Node != "a" {
		b.t.Fatalf("workload %s is on node %q, want node a", id, w.Node)
	}
	b.step(Updates{View: b.state, Changes: changes})
	return sched.Order{Op: sched.OpApply, Node: "a", Workload: id, Generation: w.Generation}
}

func (b *bench) step(in Input) {
	b.t.Helper()
	b.out = append(b.out, b.term.Step(b.now, b.state, in)...)
	if err := b.term.Check(); err != nil {
		b.t.Fatalf("after input %T the invariants must hold, but Check returned %v", in, err)
	}
}

// pass lets the time d pass on the clock of the test, and steps the term whenever its WakeAt is
// reached.
func (b *bench) pass(d time.Duration) {
	b.t.Helper()
	for end := b.now.Mono + int64(d); b.now.Mono < end; {
		at := min(end, max(b.term.WakeAt(), b.now.Mono+1))
		b.now = Time{b.now.Wall + at - b.now.Mono, at}
		b.step(Tick{})
	}
}

// take returns the effects of type E that the test has not read yet.
func take[E Effect](b *bench) (out []E) {
	rest := b.out[:0:0]
	for _, e := range b.out {
		if wanted, ok := e.(E); ok {
			out = append(out, wanted)
		} else {
			rest = append(rest, e)
		}
	}
	b.out = rest
	return out
}

// one returns the only effect of type E that the test has not read yet, and fails the test unless
// there is exactly one.
func one[E Effect](b *bench) E {
	b.t.Helper()
	got := take[E](b)
	if len(got) != 1 {
		b.t.Fatalf("there are %d effects of type %T, want 1: %v", len(got), *new(E), got)
	}
	return got[0]
}

// beat passes a heartbeat to the term.
func (b *bench) beat(hb sched.Heartbeat) Call {
	b.t.Helper()
	b.calls++
	b.step(Heartbeat{Call: b.calls, Beat: hb})
	return b.calls
}

// order passes orders to the term in the way in which a planning step returns them.
func (b *bench) order(orders ...sched.Order) {
	b.t.Helper()
	b.pass(2 * time.Minute) // longer than any wait between retries
	for range take[Plan](b) {
		b.step(Planned{Step: sched.Step{Orders: orders}})
	}
	b.step(Confirmed{ID: one[Confirm](b).ID})
}

func TestHeartbeatIsAnsweredAfterAConfirm(t *testing.T) {
	for _, c := range []struct {
		fact     string
		answer   error
		duration time.Duration
		err      error
	}{
		{"leadership is confirmed: the lease is extended", nil, 10 * time.Second, nil},
		{"the Confirm fails: the old lease is repeated", errors.New("no quorum"), 0, nil},
		{"this replica was deposed: there is no lease", ErrNotLeading, 0, ErrNotLeading},
	} {
		t.Run(c.fact, func(t *testing.T) {
			b := lead(t, Settings{}, "a")
			b.pass(time.Second)
			first, _, _ := b.term.Lease("a")
			call := b.beat(sched.Heartbeat{Node: "a"})
			is(t, "number of replies before the Confirm is answered", len(take[Reply](b)), 0)
			b.step(Confirmed{ID: one[Confirm](b).ID, Err: c.answer})
			r := one[Reply](b)
			is(t, "call that the reply answers", r.Call, call)
			is(t, "error in the reply", r.Err, c.err)
			is(t, "duration of the lease", time.Duration(r.Lease.Duration), c.duration)
			now, _, _ := b.term.Lease("a")
			is(t, "the end of the lease is later than before", now > first, c.duration > 0)
		})
	}
}

// TestClockSetBeforeTheConfirm: the wall clock is set between a heartbeat and the confirmation of leadership. The lease
// of the node still counts from the arrival of the heartbeat.
func TestClockSetBeforeTheConfirm(t *testing.T) {
	for _, step := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			b := lead(t, Settings{}, "a")
			b.pass(time.Second)
			b.beat(sched.Heartbeat{Node: "a"})
			received := b.now.Wall + int64(step)
			b.now.Wall += int64(step)
			b.step(Confirmed{ID: one[Confirm](b).ID})
			is(t, "duration of the lease", time.Duration(one[Reply](b).Lease.Duration), 10*time.Second)
			end, _, _ := b.term.Lease("a")
			is(t, "time from the arrival of the heartbeat to the end of the lease that the leader stores", time.Duration(end-received), time.Duration(b.term.live.length(1)))
		})
	}
}

// TestVolumesInHeartbeats: the leader proposes the volumes of a heartbeat only if the state does not have them yet.
func TestVolumesInHeartbeats(t *testing.T) {
	b := lead(t, Settings{}, "a")
	b.pass(time.Second)
	take[Propose](b)
	beat := func() []Propose {
		t.Helper()
		b.beat(sched.Heartbeat{Node: "a", Volumes: &commandv1.ReportVolumes{Node: "a", Complete: true, Volumes: []*commandv1.HeldVolume{{Name: "data", Driver: fsm.DriverLocal}}}})
		b.step(Confirmed{ID: one[Confirm](b).ID})
		b.pass(time.Second)
		return take[Propose](b)
	}
	got := beat()
	if len(got) != 1 || got[0].Commands[0].GetReportVolumes() == nil {
		t.Fatalf("after the heartbeat the leader proposed %v, want one command with the volumes of the heartbeat", got)
	}
	b.step(Updates{View: b.state, Changes: b.apply(got[0].Commands[0])})
	b.step(Proposed{ID: got[0].ID})
	take[Propose](b)
	is(t, "number of proposals after a heartbeat with the same volumes", len(beat()), 0)
}

func TestConfirmsInFlight(t *testing.T) {
	b := lead(t, Settings{}, "a", "b")
	b.pass(time.Second)
	b.beat(sched.Heartbeat{Node: "a"})
	first := one[Confirm](b)
	b.pass(100 * time.Millisecond)
	b.beat(sched.Heartbeat{Node: "b"})
	is(t, "number of Confirms that began within ConfirmEvery after the first", len(take[Confirm](b)), 0)
	b.pass(100 * time.Millisecond)
	second := one[Confirm](b)
	b.step(Confirmed{ID: second.ID})
	is(t, "call that the second Confirm answers", one[Reply](b).Call, Call(2))
	b.step(Confirmed{ID: first.ID, Err: errors.New("too late")})
	is(t, "call that the first Confirm answers, although it failed", one[Reply](b).Call, Call(1))
}

func TestAbandonedCallGetsTheOldLease(t *testing.T) {
	b := lead(t, Settings{}, "a")
	b.pass(time.Second)
	call := b.beat(sched.Heartbeat{Node: "a"})
	end, _, _ := b.term.Lease("a")
	b.step(Abandoned{Call: call})
	is(t, "duration of the lease", one[Reply](b).Lease.Duration, 0)
	b.step(Confirmed{ID: one[Confirm](b).ID})
	is(t, "number of replies to the abandoned call after the Confirm", len(take[Reply](b)), 0)
	now, _, _ := b.term.Lease("a")
	is(t, "end of the lease after the abandoned call", now, end)
}

func TestLostTermAnswersEveryCaller(t *testing.T) {
	b := lead(t, Settings{}, "a", "b")
	b.pass(time.Second)
	b.beat(sched.Heartbeat{Node: "a"})
	b.beat(sched.Heartbeat{Node: "b"})
	b.step(Lost{})
	for _, r := range take[Reply](b) {
		is(t, "error in the reply", r.Err, ErrNotLeading)
	}
	b.beat(sched.Heartbeat{Node: "a"})
	is(t, "number of replies after the term has ended", len(take[Reply](b)), 0)
}

func TestOrdersInFlight(t *testing.T) {
	newer := func(o sched.Order) sched.Order { o.Generation.Sequence++; return o }
	t.Run("a newer order waits until the delivery of an older one has ended", func(t *testing.T) {
		b := lead(t, Settings{}, "a")
		o := b.put("web")
		b.order(o)
		first := one[Deliver](b)
		is(t, "epoch of the delivery", first.Epoch, b.term.Epoch())
		b.term.enqueueOrders([]sched.Order{newer(o)})
		b.step(Tick{})
		is(t, "number of deliveries of the newer order while the older one is in flight", len(take[Deliver](b)), 0)
		b.step(Delivered{ID: first.ID, Ack: sched.Ack{Accepted: true}})
		is(t, "order that is delivered next", one[Deliver](b).Order, newer(o))
	})
	t.Run("an answer after the deadline is ignored", func(t *testing.T) {
		b := lead(t, Settings{}, "a")
		o := b.put("web")
		b.order(o)
		first := one[Deliver](b)
		b.pass(11 * time.Second)
		is(t, "number of the try that missed its deadline", one[Undelivered](b).Try, 1)
		b.step(Delivered{ID: first.ID, Ack: sched.Ack{Accepted: true}})
		b.pass(time.Second)
		for _, p := range take[Propose](b) {
			is(t, "number of reports that the leader commits because of the late answer", p.Reports, 0)
		}
	})
	t.Run("an order that waited for its turn needs another Confirm, and is dropped if the state no longer needs it", func(t *testing.T) {
		b := lead(t, Settings{Parallel: 1}, "a")
		first, second, third := b.put("a1"), b.put("a2"), b.put("a3")
		b.order(first, second, third)
		flight := one[Deliver](b)
		b.pass(2 * time.Second)
		b.apply(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "a2", Force: true}}})
		b.step(Delivered{ID: flight.ID, Ack: sched.Ack{Accepted: true}})
		is(t, "number of deliveries before the Confirm", len(take[Deliver](b)), 0)
		b.step(Confirmed{ID: one[Confirm](b).ID})
		is(t, "number of deliveries of an order that the state no longer needs", len(take[Deliver](b)), 0)
		b.pass(time.Second)
		b.step(Confirmed{ID: one[Confirm](b).ID})
		is(t, "order that is delivered after its Confirm", one[Deliver](b).Order, third)
	})
	t.Run("the answer to an order that was carried out before does not say how the instance ended", func(t *testing.T) {
		for _, c := range []struct{ state, want fsm.Actual }{
			{fsm.ActualRunning, fsm.ActualRunning}, {fsm.ActualPending, fsm.ActualPending}, {fsm.ActualStopped, ""}, {fsm.ActualFailed, ""},
		} {
			b := lead(t, Settings{}, "a")
			b.order(b.put("web"))
			b.step(Delivered{ID: one[Deliver](b).ID, Ack: sched.Ack{Accepted: true, Skipped: true, State: c.state}})
			b.pass(time.Second)
			var got []*commandv1.WorkloadReport
			for _, p := range take[Propose](b) {
				for _, cmd := range p.Commands {
					got = append(got, cmd.GetReport().GetReports()...)
				}
			}
			is(t, "number of reports", len(got), 1)
			is(t, "the report acknowledges the order", got[0].GetAcknowledged(), true)
			is(t, "state after "+string(c.state), fsm.Actual(got[0].GetState()), c.want)
		}
	})
	t.Run("the queue of a node is bounded", func(t *testing.T) {
		b := lead(t, Settings{NodeQueue: 2, NodeParallel: 1}, "a")
		b.order(b.put("a1"), b.put("a2"), b.put("a3"))
		is(t, "number of orders that the dispatcher holds", b.term.Stats().Orders, 2)
		is(t, "number of orders in flight", len(take[Deliver](b)), 1)
	})
}

func TestOutstandingOrders(t *testing.T) {
	b := lead(t, Settings{}, "a")
	o := b.put("web")
	at := func(step int) sched.Order {
		next := o
		next.Generation.Sequence = uint64(int(o.Generation.Sequence) + step)
		return next
	}
	outstanding := func(o sched.Order) bool {
		s := snapshot{outstanding: b.term.orders.outstanding.Copy()}
		return s.Outstanding(o)
	}
	is(t, "the order is outstanding before it is given", outstanding(o), false)
	b.order(o)
	is(t, "the order is outstanding while it is in flight", outstanding(o), true)
	is(t, "an older order for the same workload is outstanding", outstanding(at(-1)), true)
	is(t, "a newer order for the same workload is outstanding", outstanding(at(1)), false)
	b.term.enqueueOrders([]sched.Order{at(1)})
	is(t, "the newer order is outstanding once it waits for the delivery in flight", outstanding(at(1)), true)
	is(t, `workload "web" is busy on node "a", to which its order is sent`, b.term.orders.busy("a", "web"), true)
	is(t, `workload "web" is busy on node "b", to which no order is sent`, b.term.orders.busy("b", "web"), false)
}

func TestReportsOfABatchAreBounded(t *testing.T) {
	var r reports
	r.init(0)
	for i := range 25 {
		r.add(&commandv1.WorkloadReport{Node: "a", Workload: fmt.Sprint(i)})
	}
	is(t, "number of reports in the first batch", len(r.take(10)), 10)
	is(t, "number of reports in the second batch", len(r.take(10)), 10)
	is(t, "number of reports in the third batch", len(r.take(10)), 5)
	is(t, "number of reports in the fourth batch", len(r.take(10)), 0)
}

func TestLivenessKeepsTheNewerRecord(t *testing.T) {
	l := table()
	l.observe(&fsm.Node{ID: "a", Up: true, ModifyIndex: 5}, 100)
	l.observe(&fsm.Node{ID: "a", Up: false, ModifyIndex: 4}, 101)
	n, _ := l.nodes.Get("a")
	is(t, `node "a" is up after a record that is older than the last one`, n.up, true)
	l.removed(&fsm.Node{ID: "a", ModifyIndex: 4})
	_, ok := l.nodes.Get("a")
	is(t, `node "a" is known after a removal that is older than its last record`, ok, true)
	l.removed(&fsm.Node{ID: "a", ModifyIndex: 5})
	_, ok = l.nodes.Get("a")
	is(t, `node "a" is known after its removal`, ok, false)
	is(t, "earliest end of a lease after the only node was removed", l.snapshot(0, 0).nextExpiry, 0)
}

func TestNodeBeingDeclaredLostIsGrantedNothing(t *testing.T) {
	l := table()
	l.observe(&fsm.Node{ID: "a", Up: true, ModifyIndex: 1}, 100)
	is(t, "number of nodes whose lease has ended", len(l.snapshot(110, 0).expired), 1)
	ok, _ := l.extend("a", 109)
	is(t, "the lease is extended while the node is being declared lost", ok, false)
	l.clearExpiring()
	ok, _ = l.extend("a", 111)
	is(t, "the lease is extended after the node was not declared lost", ok, true)
	is(t, "earliest end of a lease after the extension", l.snapshot(111, 0).nextExpiry, 121)
}

// table returns a liveness table whose leases last 10 ns.
func table() *liveness {
	l := &liveness{}
	l.init(&Settings{LegacyLease: 10})
	return l
}

func TestPauseDetectorShiftsDeadlines(t *testing.T) {
	for _, c := range []struct {
		fact      string
		ran, wall time.Duration // time that passes on the monotonic clock and on the wall clock
		shift     time.Duration
	}{
		{"a step on time shifts no deadline", pulseEvery, pulseEvery, 0},
		{"a step that is slightly late shifts no deadline", pulseEvery + pulseLate, pulseEvery + pulseLate, 0},
		{"a pause shifts the deadlines by the whole gap", 3 * time.Second, 3 * time.Second, 3 * time.Second},
		{"a wall clock that was set back shifts the deadlines back", pulseEvery, pulseEvery - time.Hour, -time.Hour},
		{"the sleep of the machine shifts the deadlines by its length", pulseEvery, pulseEvery + time.Hour, time.Hour},
		{"a pause during which the clock was set shifts the deadlines by both", 3 * time.Second, time.Hour, time.Hour},
		{"a wall clock that drifts a little shifts no deadline", pulseEvery, pulseEvery + clockStep/2, 0},
	} {
		t.Run(c.fact, func(t *testing.T) {
			var p pauseDetector
			is(t, "shift of the deadlines by the first step", p.observe(Time{Wall: wall, Mono: 5}), 0)
			is(t, "shift of the deadlines by the second step", time.Duration(p.observe(Time{Wall: wall + int64(c.wall), Mono: 5 + int64(c.ran)})), c.shift)
		})
	}
}

// The clocks of two replicas always differ a little. Such a difference must not make the planner drop its
// cache.
func TestClockOffsetKeepsTheCache(t *testing.T) {
	b := lead(t, Settings{}, "a")
	for range 3 {
		b.pass(100 * time.Millisecond)
		state := b.now.Wall + int64(50*time.Millisecond)
		b.term.now = b.now
		b.term.keepUp(state)
		is(t, "time on the planner's clock", b.term.planned(), state)
		is(t, "the planner's cache must be built again", b.term.plan.stale, false)
	}
}

// The planner's clock runs at three quarters of its speed until the wall clock has caught up. If a
// wrong wall clock is corrected, the planner's clock does not run ahead of the corrected one.
func TestClockOffsetShrinks(t *testing.T) {
	is(t, "offset of a clockOffset that was never set", clockOffset{}.at(Time{Mono: int64(time.Hour)}), 0)
	o := clockOffset{planner: wall + int64(time.Hour), set: true}
	for _, c := range []struct {
		fact            string
		ran, wall       time.Duration // time that has passed on each clock since the start
		offset, planner time.Duration
	}{
		{"no time has passed", 0, 0, time.Hour, time.Hour},
		{"a minute has passed on both clocks", time.Minute, time.Minute, time.Hour - 15*time.Second, time.Hour + 45*time.Second},
		{"the wall clock has caught up", 4 * time.Hour, 4 * time.Hour, 0, 4 * time.Hour},
		{"the wall clock is set right", time.Minute, time.Minute + time.Hour, 0, time.Hour + time.Minute},
		{"the wall clock is set right except for ten minutes", time.Minute, 50 * time.Minute, 10*time.Minute + 45*time.Second, time.Hour + 45*time.Second},
		{"the wall clock is set back again", time.Minute, time.Minute - time.Hour, 2*time.Hour - 15*time.Second, time.Hour + 45*time.Second},
	} {
		by := time.Duration(o.at(Time{Wall: wall + int64(c.wall), Mono: int64(c.ran)}))
		is(t, "the offset, "+c.fact, by, c.offset)
		is(t, "the planner's time, "+c.fact, c.wall+by, c.planner)
	}
}

func TestLeaseTermsGrowWithTheCluster(t *testing.T) {
	s := Settings{}.WithDefaults()
	for _, c := range []struct {
		protocol           uint32
		nodes              int
		interval, duration time.Duration
	}{
		{1, 3, 3 * time.Second, 10 * time.Second},
		{1, 1000, 3 * time.Second, 10 * time.Second},
		{1, 4000, 12 * time.Second, 40 * time.Second},
		{0, 3, 10 * time.Second, time.Minute},
		{0, 4000, 10 * time.Second, time.Minute},
	} {
		t.Run(fmt.Sprintf("protocol %d, %d nodes", c.protocol, c.nodes), func(t *testing.T) {
			interval, duration := s.leaseTerms(c.protocol, c.nodes)
			is(t, "heartbeat interval", interval, c.interval)
			is(t, "duration of the lease", duration, c.duration)
		})
	}
}

func TestSettingsRefuseAShortLease(t *testing.T) {
	is(t, "a node lease of 8 s is refused", Settings{NodeLease: 8 * time.Second}.Validate() != nil, true)
	is(t, "a node lease of 9 s is refused", Settings{NodeLease: 9 * time.Second}.Validate() != nil, false)
}

func TestOnlyTheZeroTuningGetsDefaults(t *testing.T) {
	is(t, "the zero Tuning becomes the default", Settings{}.WithDefaults().Tuning, sched.DefaultTuning())
	none := sched.DefaultTuning()
	none.MissingGrace = 0
	is(t, "a zero field of a set Tuning stays zero", Settings{Tuning: none}.WithDefaults().Tuning, none)
}

func TestDriftOfADeletedOrphanIsClosedAtOnce(t *testing.T) {
	b := lead(t, Settings{Inspect: true, DriftInterval: time.Hour, Inspections: 1}, "a")
	orphan := &commandv1.Drift{Node: "a", Workload: "ghost", Type: fsm.DriftOrphan, Action: fsm.ActionInvestigate}
	head := &commandv1.Head{Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}, At: wall, By: "leader"}
	b.apply(&commandv1.Command{Head: head, Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{Open: []*commandv1.Drift{orphan}}}})
	b.apply(&commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: "a", Workload: "ghost"}}})
	left, ok := b.state.Residual("a", "ghost")
	is(t, `node "a" has a residual of the orphan`, ok, true)
	b.step(Updates{View: b.state, Changes: b.apply(&commandv1.Command{Head: head, Body: &commandv1.Command_Report{Report: &commandv1.Report{
		Reports: []*commandv1.WorkloadReport{{Node: "a", Workload: "ghost", Generation: fsm.GenerationPB(left.Generation), Gone: true}},
	}}})})
	b.pass(2 * time.Minute) // two slots of an interval of an hour
	b.step(Listed{ID: one[List](b).ID})
	var closed []*commandv1.Drift
	for _, p := range take[Propose](b) {
		for _, c := range p.Commands {
			closed = append(closed, c.GetSetDrifts().GetClosed()...)
		}
	}
	is(t, "number of drifts that the leader proposes to close", len(closed), 1)
	is(t, "workload of the drift that the leader proposes to close", closed[0].GetWorkload(), "ghost")
}

// TestMovesUnderAChangedPolicy: the leader searches for moves only if the cluster's policy allows some, and drops the moves
// of a search if the policy has changed since the search began.
func TestMovesUnderAChangedPolicy(t *testing.T) {
	for _, changed := range []bool{false, true} {
		b := lead(t, Settings{}, "a")
		set := func(perHour uint32) {
			p := &commandv1.RebalancePolicy{PerHour: perHour, AtOnce: 1, MinGainPercent: 10}
			b.step(Updates{View: b.state, Changes: b.apply(&commandv1.Command{Body: &commandv1.Command_SetRebalancePolicy{SetRebalancePolicy: &commandv1.SetRebalancePolicy{Policy: p}}})})
		}
		b.pass(sched.BalanceEvery + time.Second)
		is(t, "number of searches for moves while the policy allows none", len(take[Balance](b)), 0)
		set(10)
		b.pass(sched.BalanceEvery + time.Second)
		search := one[Balance](b)
		if changed {
			set(5)
		}
		b.step(Balanced{ID: search.ID, Moves: []sched.BalanceMove{{Workload: "w", From: "a", To: "b"}}})
		moves := 0
		for _, p := range take[Propose](b) {
			for _, c := range p.Commands {
				moves += len(c.GetMoveWorkloads().GetMoves())
			}
		}
		is(t, "the leader proposes the move; it must not if the policy has changed since", moves == 1, !changed)
	}
}

// TestExitOfAJobThatItsDeadlineEnded: a job is ended by its deadline while its instance runs. The node
// reports how the instance ended only after the state has dropped its residual. The leader commits the exit
// all the same.
func TestExitOfAJobThatItsDeadlineEnded(t *testing.T) {
	b := lead(t, Settings{}, "a")
	epoch := &commandv1.Head{Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}, At: wall, By: "leader"}
	b.apply(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "j", Spec: []byte("j"), Content: "c1:" + strings.Repeat("0", 64), Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10, Job: &commandv1.Job{}},
	}}}}})
	w, _ := b.state.Workload("j")
	b.apply(&commandv1.Command{Head: epoch, Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{{
		Workload: "j", Node: "a", IfGeneration: fsm.GenerationPB(w.Generation),
	}}}}})
	w, _ = b.state.Workload("j")
	b.apply(&commandv1.Command{Head: epoch, Body: &commandv1.Command_FinishJobs{FinishJobs: &commandv1.FinishJobs{Ends: []*commandv1.JobEnd{{
		Workload: "j", IfGeneration: fsm.GenerationPB(w.Generation), Code: "DeadlineExceeded",
	}}}}})
	w, _ = b.state.Workload("j")
	b.apply(&commandv1.Command{Head: epoch, Body: &commandv1.Command_Report{Report: &commandv1.Report{
		Reports: []*commandv1.WorkloadReport{{Node: "a", Workload: "j", Generation: fsm.GenerationPB(w.Generation), Gone: true}},
	}}})
	_, left := b.state.Residual("a", "j")
	is(t, `node "a" has a residual of the job`, left, false)

	node, _ := b.state.Node("a")
	gone := sched.Reported{Workload: "j", Gone: true, Observation: fsm.Observation{Generation: w.Generation, Exit: &fsm.Exit{Code: 9}}}
	rep := reportDiff(b.state, node, &gone)
	is(t, "exit code in the report to commit", rep.GetExit().GetCode(), 9)
	b.apply(&commandv1.Command{Head: epoch, Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{rep}}}})
	w, _ = b.state.Workload("j")
	is(t, "the record of the job has the exit code 9", w.Result.Exit != nil && w.Result.Exit.Code == 9, true)
	is(t, "a repeated report is committed again", reportDiff(b.state, node, &gone) != nil, false)
}
