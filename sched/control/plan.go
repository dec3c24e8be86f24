package control

import (
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// planning is the planning cycle of the leader: observe, plan, propose, confirm, give orders. Then it waits
// for a change of the state, or for the WakeAt that the planner returned. Only one cycle runs at a time.
type planning struct {
	busy      bool
	due       bool  // a change since the last planning step began needs another step
	notBefore int64 // earliest time for the next planning step, on the monotonic clock
	wake      *timer

	view    fsm.View     // newest view whose changes were received
	changes []fsm.Change // changes since the last planning step
	inPlan  []fsm.Change // changes that the present planning step evaluates
	spare   []fsm.Change // empty slice that is reused for the next changes
	fresh   bool         // changes were missed, so the planner must read the whole view
	stale   bool         // the planner's cache must be built again
	cache   *sched.Cache
}

// afterTrouble is the pause after a planning step of which it is unknown whether its commands are in the log.
const afterTrouble = 50 * time.Millisecond

// signal requests another planning step.
func (t *Term) signal() { t.plan.due = true }

// startPlan begins a planning cycle if one is requested, its pause is over, and no other cycle
// runs.
func (t *Term) startPlan() {
	p := &t.plan
	if p.busy || !p.due {
		return
	}
	if wait := t.until(p.notBefore); wait > 0 {
		if p.wake == nil || p.wake.pos < 0 || p.wake.at != p.notBefore {
			t.wakeIn(wait)
		}
		return
	}
	t.stop(p.wake)
	if p.fresh || p.stale || p.cache == nil {
		p.cache = sched.NewCache()
		clear(p.changes)
		p.changes = p.changes[:0]
	}
	changes := p.changes
	p.changes, p.spare = p.spare, nil
	p.busy, p.due, p.fresh, p.stale = true, false, false, false

	t.keepUp(p.view.Info().Clock)
	live := t.live.snapshot(t.now.Wall, max(0, t.cfg.Tuning.UnavailableGrace))
	live.offset = t.offset.at(t.now)
	live.outstanding = t.orders.outstanding.Copy()
	live.moves = t.live.movesOf(p.view)
	t.emit(Plan{
		World: sched.World{
			State: p.view, Changes: changes, Live: live, Now: t.planned(), Epoch: t.epoch, Tuning: t.cfg.Tuning,
		},
		Cache: p.cache,
	})
	p.inPlan = changes
}

// wakeIn requests another planning step after the time d.
func (t *Term) wakeIn(d time.Duration) {
	t.stop(t.plan.wake)
	t.plan.wake = t.after(d, t.signal)
}

// planDone carries out the result of a planning step: it proposes the commands.
func (t *Term) planDone(in Planned) {
	if !t.plan.busy {
		return
	}
	t.reuse()
	step := in.Step
	if len(step.Commands) == 0 {
		t.proposed(in, nil)
		return
	}
	t.propose(func(err error) { t.proposed(in, err) }, step.Commands...)
}

// proposed continues after the commands of a planning step were proposed. If the commands are in
// the log, the orders of the step follow. If it is unknown whether they are, proposed plans again.
func (t *Term) proposed(in Planned, err error) {
	t.live.clearExpiring()
	if err != nil {
		t.planLost()
		return
	}
	t.inquire(in.Step.Inquiries)
	if len(in.Step.Orders) == 0 {
		t.rest(in)
		return
	}
	t.emit(Confirm{ID: t.await(func(answer Input) {
		if answer.(Confirmed).Err != nil {
			t.planLost()
			return
		}
		t.enqueueOrders(in.Step.Orders)
		t.rest(in)
	})})
}

// planLost plans again with a new cache, because it is unknown whether the commands of a step are in the log.
func (t *Term) planLost() {
	p := &t.plan
	p.busy, p.due, p.stale = false, true, true
	p.notBefore = t.now.Mono + int64(afterTrouble)
	t.emit(PlanLost{})
}

// rest ends a planning cycle and begins the pause before the next one. The planner pauses for at least
// StepEvery, so that the next step serves many changes. After a slow step the pause is nine times as long
// as the step, up to slowest, so that planning uses about a tenth of a core.
func (t *Term) rest(in Planned) {
	const slowest = 50 * time.Millisecond
	pace := max(t.cfg.StepEvery, min(slowest, 9*in.Took))
	t.plan.busy = false
	t.plan.notBefore = t.now.Mono + int64(pace)
	wait := time.Minute
	if at := in.Step.WakeAt; at > 0 {
		wait = min(wait, time.Duration(at-t.planned()))
	}
	t.wakeIn(max(pace, wait))
}

// spareChanges is the largest capacity of the Go slice of changes that is kept for the next plan.
const spareChanges = 16 << 10

// reuse keeps the Go slice of changes after a plan, to collect the next changes in it. Under load the
// slice is long, and allocating a new one for each step would cost more than the planning.
func (t *Term) reuse() {
	p := &t.plan
	if cap(p.inPlan) <= spareChanges {
		clear(p.inPlan) // drop the pointers, so that the changed records do not stay in memory
		p.spare = p.inPlan[:0]
	}
	p.inPlan = nil
}
