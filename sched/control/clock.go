package control

import (
	"container/heap"
	"time"
)

// pauseDetector detects that the process did not run for a while, or that the wall clock was set. A Term is
// stepped at least every pulseEvery, so a much longer gap between two steps means that the process was
// paused.
type pauseDetector struct {
	last    Time
	started bool
}

const (
	pulseEvery = 200 * time.Millisecond
	pulseLate  = 200 * time.Millisecond // a step that is late by more than this means that the process was paused; a shorter delay is normal scheduling
	clockStep  = 10 * time.Millisecond  // the wall clock was set if it differs by this much from the monotonic clock
)

// observe returns the nanoseconds by which deadlines on the wall clock must move: after a pause the whole
// time since the last step, and after the wall clock was set, the change. The process ran for a part of the
// time since the last step, but a deadline may be late and never early.
func (p *pauseDetector) observe(now Time) (shift int64) {
	last, started := p.last, p.started
	p.last, p.started = now, true
	if !started {
		return 0
	}
	ran := now.Mono - last.Mono // the monotonic clock stops while the machine sleeps, and the wall clock then jumps
	if ran > int64(pulseEvery+pulseLate) {
		shift = ran
	}
	if step := now.Wall - last.Wall - ran; step >= int64(clockStep) || step <= -int64(clockStep) {
		shift += step
	}
	return shift
}

// clockOffset is how far the planner's clock is ahead of the wall clock. The clock of the state never goes
// back. So after a leader whose clock was ahead, the clock of the state is ahead of this replica's wall
// clock. If the planner used the wall clock, every wait would last until the wall clock has caught up. So the
// planner's clock starts at the clock of the state and runs at three quarters of the normal speed until the
// wall clock has caught up. Until then a wait takes up to a third longer. Leases use the wall clock.
type clockOffset struct {
	planner int64 // planner's clock at the time since, Unix nanoseconds
	since   int64 // monotonic time at which offset and planner were set
	set     bool  // if false, the planner's clock is the wall clock
}

// at returns the clock offset at a moment, in nanoseconds. It counts elapsed time by the monotonic
// clock, because the wall clock may be set meanwhile.
func (o clockOffset) at(now Time) int64 {
	if !o.set {
		return 0
	}
	return max(0, o.planner-now.Wall+max(0, now.Mono-o.since)*3/4)
}

// farAhead is the smallest offset that is reported as a wrong clock.
const farAhead = 10 * time.Second

// keepUp moves the planner's clock forward to state, the time on the clock of the state, if the
// planner's clock is behind it.
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

// planned returns the present time on the planner's clock in Unix nanoseconds. The planner's commands carry
// this time.
func (t *Term) planned() int64 { return t.now.Wall + t.offset.at(t.now) }

// allowForPause moves every deadline by the time for which the process was paused, so that no deadline passes early.
func (t *Term) allowForPause() {
	if d := t.pause.observe(t.now); d != 0 {
		t.shifted += d
		t.live.shift(d)
		t.plan.stale = true // the planner's cache holds deadlines from before the pause, so it is built again
		t.emit(Paused{By: time.Duration(d)})
	}
}

// timer runs a function at a given time. It stays in the heap of timers until it has run or is stopped.
type timer struct {
	at  int64 // time at which the function runs, on the monotonic clock
	seq uint64
	fn  func()
	pos int // index in the heap of timers; -1 = not in the heap
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

// after runs fn in the first step that comes at least d from now.
func (t *Term) after(d time.Duration, fn func()) *timer {
	t.timers.seq++
	e := &timer{at: t.now.Mono + max(0, int64(d)), seq: t.timers.seq, fn: fn}
	heap.Push(&t.timers, e)
	return e
}

// stop removes a timer. It reports whether the timer had not run yet. e may be nil.
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
