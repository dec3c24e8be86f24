package leader

import "time"

// pulse notices that this process did not run for a while, or that its clock was
// set: something beats every pulseEvery, and a beat that comes much too late was
// a pause. It is for one caller at a time.
type pulse struct{ last time.Time }

const (
	pulseEvery = 200 * time.Millisecond
	pulseLate  = 200 * time.Millisecond // lateness beyond this is a pause, not scheduling noise
	clockStep  = 10 * time.Millisecond  // the wall clock was set if it moved this much by itself
)

// beat returns by how much deadlines on the wall clock must move: by the whole
// time since the last beat if there was a pause (part of it was none, but a
// deadline may be late and never early), and by what the wall clock jumped.
func (p *pulse) beat(now time.Time) (shift time.Duration) {
	last := p.last
	p.last = now
	if last.IsZero() {
		return 0
	}
	ran := now.Sub(last) // by the monotonic clock, which stands still while the machine sleeps
	if ran > pulseEvery+pulseLate || ran < 0 {
		shift = ran
	}
	if step := now.Round(0).Sub(last.Round(0)) - ran; step.Abs() >= clockStep {
		shift += step
	}
	return shift
}

// lead is by how much the planner's clock goes before the wall clock. Time in the state never goes
// back, and what a replica wrote whose clock was ahead would lie in the planner's future: whatever waits
// from then on would wait until the wall clock gets there. So the planner's clock is never behind the
// state's, and loses a quarter until the wall clock has caught up: meanwhile waits take up to a third
// longer, and nothing stands still. Leases are on the wall clock.
type lead struct {
	clock int64     // the planner's at since, Unix nanoseconds
	since time.Time // zero: it goes with the wall clock
}

// at is the lead at a moment.
func (l lead) at(now time.Time) time.Duration { return l.after(now.Sub(l.since), now.UnixNano()) }

// after is the lead when some time has passed, as the monotonic clock has it: the wall clock may have been
// set meanwhile, back or forward, and the planner's does not follow where that would take it back.
func (l lead) after(ran time.Duration, wall int64) time.Duration {
	if l.since.IsZero() {
		return 0
	}
	return max(0, time.Duration(l.clock-wall)+max(0, ran)*3/4)
}
