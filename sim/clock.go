package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// proc is a process that can be paused and killed: a replica, an agent or a machine. Events that were
// scheduled before its last restart are dropped. Events of a paused process wait until the pause ends, in
// order.
type proc struct {
	name   string
	alive  bool
	life   int
	paused int64 // time at which the pause ends; 0 = not paused
}

func (p *proc) kill() { p.alive = false; p.life++; p.paused = 0 }

type event struct {
	at   int64
	seq  uint64
	p    *proc
	life int
	fn   func()
}

type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// clock holds the virtual time, the only source of randomness, and the queue of events.
type clock struct {
	now    int64 // Unix nanoseconds
	rng    *rand.Rand
	queue  events
	seq    uint64
	events int
}

// after runs fn after d nanoseconds, unless p was restarted or killed by then. p may be nil.
func (c *clock) after(d int64, p *proc, fn func()) {
	e := &event{at: c.now + max(d, 0), p: p, fn: fn}
	c.seq++
	e.seq = c.seq
	if p != nil {
		e.life = p.life
	}
	heap.Push(&c.queue, e)
}

// next runs the next event. It returns false if no event is due before the time until.
func (c *clock) next(until int64) bool {
	for len(c.queue) > 0 && c.queue[0].at <= until {
		e := heap.Pop(&c.queue).(*event)
		if e.p != nil {
			if e.p.life != e.life || !e.p.alive {
				continue
			}
			if e.p.paused > e.at {
				e.at = e.p.paused
				heap.Push(&c.queue, e)
				continue
			}
		}
		c.now = e.at
		c.events++
		e.fn()
		return true
	}
	c.now = max(c.now, until)
	return false
}

// between draws a random number, evenly from low to high.
func (c *clock) between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + c.rng.Int64N(high-low+1)
}

// chance returns true with a probability of p per thousand.
func (c *clock) chance(p int) bool { return c.rng.IntN(1000) < p }

// pick draws a random element of a list.
func pick[T any](c *clock, list []T) T { return list[c.rng.IntN(len(list))] }
