package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// releaseSlices takes back the slices of networks whose nodes had no member for a day. When the rest of a slice that
// was taken back ends, it has the waiting workloads evaluated again.
func (p *planner) releaseSlices() {
	c := p.c
	if !c.slicesKnown {
		c.slicesKnown, c.sliceDue = true, p.nextSlice()
	}
	if c.sliceDue != 0 && c.sliceDue <= p.Now {
		p.State.Networks(func(n *fsm.Network) bool {
			for _, s := range n.Slices {
				if s.Idle(p.Now) && p.spend() {
					p.idle = append(p.idle, &commandv1.IdleSlice{Network: n.ID, Node: s.Node})
					p.note("ReleaseSlice", "", s.Node, "network "+n.Name)
				}
			}
			return true
		})
		c.version++
		c.sliceDue = p.nextSlice()
	}
	p.wake(c.sliceDue)
}

// nextSlice returns the earliest time at which a slice may be taken back, or at which the rest of a slice ends; 0 = none.
func (p *planner) nextSlice() (due int64) {
	p.State.Networks(func(n *fsm.Network) bool {
		for _, s := range n.Slices {
			switch {
			case s.Node != "" && s.EmptySince != 0:
				due = earlier(due, s.EmptySince+fsm.SliceIdle)
			case s.Node == "" && s.FreeAt > p.Now:
				due = earlier(due, s.FreeAt)
			}
		}
		return true
	})
	return due
}
