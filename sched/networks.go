package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// releaseSlices takes back the slices of networks whose nodes had no member for a day.
func (p *planner) releaseSlices() {
	c := p.c
	if !c.slicesKnown {
		c.slicesKnown, c.sliceDue = true, 0
		p.State.Networks(func(n *fsm.Network) bool {
			for _, s := range n.Slices {
				if s.Node != "" && s.EmptySince != 0 {
					c.sliceDue = earlier(c.sliceDue, s.EmptySince+fsm.SliceIdle)
				}
			}
			return true
		})
	}
	if c.sliceDue == 0 || c.sliceDue > p.Now {
		p.wake(c.sliceDue)
		return
	}
	p.State.Networks(func(n *fsm.Network) bool {
		for _, s := range n.Slices {
			if s.Idle(p.Now) && p.spend() {
				p.idle = append(p.idle, &commandv1.IdleSlice{Network: n.ID, Node: s.Node})
				p.note("ReleaseSlice", "", s.Node, "network "+n.Name)
			}
		}
		return true
	})
}
