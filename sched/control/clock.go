package control

import (
	"container/heap"
	"time"
)

// pauseDetector notices that the process did not run for a while, or that the wall clock
// was set. A Term is stepped at least every pulseEvery, so a much longer gap between two
// steps was a pause.
type pauseDetector struct {
	last    Moment
	started bool
}

const (
	pulseEvery = 200 * time.Millisecond
	pulseLate  = 200 * time.Millisecond // more lateness than this is a pause, not scheduling noise
	clockStep  = 10 * time.Millisecond  // the wall clock was set if it moved this much by itself
)

// observe returns by how much deadlines on the wall clock must move, nanoseconds: by the
// whole gap if there was a pause, and by the step if the wall clock was set. Part of the
// gap was no pause, but a deadline may be late and never early.
func (p *pauseDetector) observe(now Moment) (shift int64) {
	last, started := p.last, p.started
	p.last, p.started = now, true
	if !started {
		return 0
	}
	ran := now.Mono - last.Mono // stands still while the machine sleeps; then the wall clock steps
	if ran > int64(pulseEvery+pulseLate) {
		shift = ran
	}
	if step := now.Wall - last.Wall - ran; step >= int64(clockStep) || step <= -int64(clockStep) {
		shift += step
	}
	return shift
}

// clockOffset is how far the planner's clock is ahead of the wall clock. Time in the
// state never goes back. If a replica with a clock that was ahead has written to it, the
// planner's deadlines would lie in the future of this replica's wall clock, and every
// wait would last until the wall clock gets there. So the planner's clock starts at the
// state's and runs at three quarters of its speed until the wall clock has caught up:
// meanwhile waits take up to a third longer, and none stands still. Leases stay on the
// wall clock.
type clockOffset struct {
	planner int64 // the planner's clock at since, Unix nanoseconds
	since   int64 // monotonic
	set     bool  // unset: the planner's clock is the wall clock
}

// at returns the offset at a moment, nanoseconds. It goes by the monotonic clock because
// the wall clock may be set meanwhile.
func (o clockOffset) at(now Moment) int64 {
	if !o.set {
		return 0
	}
	return max(0, o.planner-now.Wall+max(0, now.Mono-o.since)*3/4)
}

// farAhead is the offset from which on the clocks are reported as wrong.
const farAhead = 10 * time.Second

// keepUp moves the planner's clock up to the state's.
func (t *Term) keepUp(state int64) {
	was := t.offset.at(t.now)
	by := max(was, state-t.now.Wall)
	if by > was {
		t.offset = clockOffset{planner: t.now.Wall + by, since: t.now.Mono, set: true}
	}
	told := t.toldBehind
	if t.toldBehind = by >= int64(farAhead); t.toldBehind && !told {
		t.emit(ClockBehind{By: time.Duration(by)})
	}
}

// planned is the time that the planner goes by and that commands carry, Unix nanoseconds.
func (t *Term) planned() int64 { return t.now.Wall + t.offset.at(t.now) }

// allowForPause moves every deadline by the time that the process missed.
func (t *Term) allowForPause() {
	if d := t.pause.observe(t.now); d != 0 {
		t.live.shift(d)
		t.plan.stale = true // the planner's cache holds some deadlines as they were
		t.emit(Paused{By: time.Duration(d)})
	}
}

// timer runs a function at a time; it is in the heap until then, or until it is stopped.
type timer struct {
	at  int64 // monotonic
	seq uint64
	fn  func()
	pos int // -1 = not in the heap
}

type timers struct {
	heap []*timer
	seq  uint64
}

func (h *timers) Len() int { return len(h.heap) }
func (h *timers) Less(i, j int) bool {
	a, b := h.heap[i], h.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}
func (h *timers) Swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].pos, h.heap[j].pos = i, j
}
func (h *timers) Push(x any) { e := x.(*timer); e.pos = len(h.heap); h.heap = append(h.heap, e) }
func (h *timers) Pop() any {
	last := len(h.heap) - 1
	e := h.heap[last]
	h.heap[last] = nil
	h.heap = h.heap[:last]
	e.pos = -1
	return e
}

// after runs fn in the first step that is d later or more.
func (t *Term) after(d time.Duration, fn func()) *timer {
	t.timers.seq++
	e := &timer{at: t.now.Mono + max(0, int64(d)), seq: t.timers.seq, fn: fn}
	heap.Push(&t.timers, e)
	return e
}

// stop takes a timer back and reports whether it was still to run; nil never was.
func (t *Term) stop(e *timer) bool {
	if e == nil || e.pos < 0 {
		return false
	}
	heap.Remove(&t.timers, e.pos)
	return true
}

func (t *Term) runTimers() {
	for t.timers.Len() > 0 && t.timers.heap[0].at <= t.now.Mono {
		heap.Pop(&t.timers).(*timer).fn()
	}
}
