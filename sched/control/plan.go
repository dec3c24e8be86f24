package control

import (
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// planning is the cycle of the leader: observe, plan, propose, confirm, give orders, wait
// for a change or for the deadline that the plan named. One cycle is under way at a time.
type planning struct {
	busy      bool
	due       bool  // something changed since the last plan began
	notBefore int64 // monotonic; the next plan begins then at the earliest
	wake      *timer

	view    fsm.View     // up to which changes were received
	changes []fsm.Change // since the last plan
	inPlan  []fsm.Change // handed to the plan under way
	spare   []fsm.Change // an empty slice, to be filled next
	fresh   bool         // changes were missed
	stale   bool         // the cache must not be used again
	cache   *sched.Cache
}

// afterTrouble is the rest after a step whose outcome is unknown.
const afterTrouble = 50 * time.Millisecond

// signal has the planner look again.
func (t *Term) signal() { t.plan.due = true }

// startPlan begins a planning cycle if one is due.
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
	t.emit(Plan{
		World: sched.World{
			State: p.view, Changes: changes, Live: live, Now: t.planned(), Epoch: t.epoch, Tuning: t.cfg.Tuning,
		},
		Cache: p.cache,
	})
	p.inPlan = changes
}

// wakeIn has the planner look again after d.
func (t *Term) wakeIn(d time.Duration) {
	t.stop(t.plan.wake)
	t.plan.wake = t.after(d, t.signal)
}

// planDone carries out a planned step.
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

// proposed goes on with a step whose commands were judged, or lost.
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
		t.give(in.Step.Orders)
		t.rest(in)
	})})
}

// planLost looks at everything anew: the outcome of a step is unknown.
func (t *Term) planLost() {
	p := &t.plan
	p.busy, p.due, p.stale = false, true, true
	p.notBefore = t.now.Mono + int64(afterTrouble)
	t.emit(PlanLost{})
}

// rest ends a cycle. The rest lets changes pile up, so that one step serves many of
// them. After a step that took long it is longer: planning uses at most a tenth of a
// core, and rests at most slowest.
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

// spareChanges is the largest room that is kept from one plan to the next.
const spareChanges = 16 << 10

// reuse takes back the changes of a step that is planned; under load they are many, and
// new room for each step costs more than planning does.
func (t *Term) reuse() {
	p := &t.plan
	if cap(p.inPlan) <= spareChanges {
		clear(p.inPlan) // the records are not to be kept alive
		p.spare = p.inPlan[:0]
	}
	p.inPlan = nil
}
