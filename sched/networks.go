package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// releaseSlices takes back the slices of networks whose nodes had no member for a day. A slice that was taken
// back is given to no node for a while. After that, nodes that answer at ports in ingress mode get the free
// slices, and the waiting workloads are evaluated again.
func (p *planner) releaseSlices() {
	c := p.c
	if !c.slicesKnown {
		c.slicesKnown, c.sliceDue = true, p.nextSlice()
	}
	if c.sliceDue != 0 && c.sliceDue <= p.Now {
		p.State.Networks(func(n *fsm.Network) bool {
			for _, s := range n.Slices {
				if n.Idle(s, p.Now) && p.spend() {
					p.idle = append(p.idle, &commandv1.IdleSlice{Network: n.ID, Node: s.Node})
					p.note("ReleaseSlice", "", s.Node, "network "+n.Name)
				}
			}
			for _, node := range lacking(p.State, n, p.Now) {
				if p.spend() {
					p.idle = append(p.idle, &commandv1.IdleSlice{Network: n.ID, Node: node, Give: true})
					p.note("GiveSlice", "", node, "network "+n.Name)
				}
			}
			return true
		})
		c.version++
		c.sliceDue = p.nextSlice()
	}
	p.wake(c.sliceDue)
}

// lacking returns the nodes that should get a slice of a network, because they can answer at its ports in ingress mode
// and have no slice yet. It returns at most as many nodes as the network has free slices.
func lacking(v fsm.View, n *fsm.Network, at int64) (out []string) {
	room := 0
	if n.Ingress {
		room = n.Room(at)
	}
	if room == 0 {
		return nil
	}
	has := map[string]bool{}
	for _, s := range n.Slices {
		has[s.Node] = true
	}
	v.Nodes("", func(node *fsm.Node) bool {
		if !has[node.ID] && n.Wants(node) {
			out = append(out, node.ID)
		}
		return len(out) < room
	})
	return out
}

// nextSlice returns the earliest time at which a slice of a network may be taken back from its node, or at which a slice
// that was taken back may be given away again; 0 = none. If a free slice waits for a node, nextSlice returns the
// present time.
func (p *planner) nextSlice() (due int64) {
	p.State.Networks(func(n *fsm.Network) bool {
		if len(lacking(p.State, n, p.Now)) > 0 {
			due = p.Now
		}
		for _, s := range n.Slices {
			switch {
			case s.Node != "" && s.EmptySince != 0 && !n.Ingress:
				due = earlier(due, s.EmptySince+fsm.SliceIdle)
			case s.Node == "" && s.FreeAt > p.Now:
				due = earlier(due, s.FreeAt)
			}
		}
		return true
	})
	return due
}
