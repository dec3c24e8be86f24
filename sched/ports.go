package sched

import "github.com/persys/compute/fsm"

// awaitPort reports whether an order must wait because a workload that is leaving the node
// may still bind one of its host ports: given now, the order would fail for good. A
// workload that keeps its port is not waited for, see mustLeave. If workloads wait for one
// another in a circle, the one that changed last leaves its node, which frees its ports.
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

// portBlock returns the first other workload that holds a host port of an order that is to
// be given; "" if there is none.
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

// maxCircle bounds the workloads that are followed to find a circle.
const maxCircle = 64

// lastInCircle reports whether w is in a circle of workloads that wait for one another and
// changed last of them. by is the workload that w waits for.
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
