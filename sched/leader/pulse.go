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
