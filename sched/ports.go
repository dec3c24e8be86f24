package sched

import "github.com/persys/compute/fsm"

// awaitPort reports whether an order waits because one of its host ports is still
// bound, or may be, by what is on its way out: an agent that was told now would
// fail for good. Those who keep a port that others want are not waited for, see
// mustLeave. Of workloads that wait for one another in a circle the one that
// changed last leaves its node, which frees what it binds.
func (p *planner) awaitPort(w *fsm.Workload) bool {
	by, port := p.portBlock(w)
	if by == "" {
		return false
	}
	n, _ := p.State.Node(w.Node)
	_, on := p.State.PortHolder(n.Engine(), port)
	text := "host port " + portText(port) + " is still held by " + by + " on node " + on
	if p.lastInCircle(w, by) {
		p.evict(w, fsm.CodeDoesNotFit, text+", which waits for a port of this one", false)
		return true
	}
	p.explain(w, fsm.CodeAwaitStop, text)
	return true
}

// portBlock names the first other workload that holds a host port of an order
// which is to be given, "" if none does.
func (p *planner) portBlock(w *fsm.Workload) (by string, port fsm.HostPort) {
	if len(w.Demand.Ports) == 0 || w.Desired != fsm.DesiredRunning || w.Acknowledged || w.Node == "" {
		return "", fsm.HostPort{}
	}
	n, ok := p.State.Node(w.Node)
	if !ok {
		return "", fsm.HostPort{}
	}
	for _, port := range w.Demand.Ports {
		if holder, on := p.State.PortHolder(n.Engine(), port); holder != "" && (holder != w.ID || on != w.Node) {
			return holder, port
		}
	}
	return "", fsm.HostPort{}
}

// maxCircle bounds how many workloads are looked at to find a circle.
const maxCircle = 64

// lastInCircle reports whether whoever w waits for waits, in the end, for w, and w
// changed last of them.
func (p *planner) lastInCircle(w *fsm.Workload, by string) bool {
	last := true
	for range maxCircle {
		if by == w.ID {
			return last
		}
		h, ok := p.State.Workload(by)
		if !ok {
			return false
		}
		if w.Generation.Less(h.Generation) || w.Generation == h.Generation && w.ID < h.ID {
			last = false
		}
		if by, _ = p.portBlock(h); by == "" {
			return false
		}
	}
	return false
}
