package sched

import "github.com/persys/compute/fsm"

// awaitPort reports whether the order for w must wait, because another workload (the holder) may still bind a
// host port that w demands. An order that is sent now would fail, and its agent would not retry it. If the
// holder keeps the port for good, mustLeave handles the conflict. If the holder may keep the port for long
// (heldUp), w moves to a node with room for it. If workloads wait for one another in a circle, the workload
// that changed last is evicted, which frees its ports. If local data binds that workload to the node, it gets
// its order at once: the agent then stops the previous instance, which also frees the ports, and retries to
// bind the new ports.
func (p *planner) awaitPort(w *fsm.Workload) bool {
	by, port := p.portBlock(w)
	if by == "" {
		return false
	}
	n, _ := p.State.Node(w.Node)
	_, on := p.State.PortHolder(n.Engine(), port)
	text := "host port " + portText(port) + " is still held by " + by + " on node " + on
	if p.lastInCircle(w, by) {
		if w.BoundByData(n) {
			return false
		}
		p.evict(w, fsm.CodeDoesNotFit, text+", which waits for a port of this one", false)
		return true
	}
	if p.heldUp(by) && !w.BoundByData(n) && p.spare(w) != "" {
		p.evict(w, fsm.CodeDoesNotFit, text+", which cannot leave it", false)
		return true
	}
	// A held workload keeps the reason why it is held. If it got the reason AwaitStop here, the two
	// reasons would replace each other in every step.
	if !holds(w.Reason.Code) {
		p.explain(w, fsm.CodeAwaitStop, text)
	}
	return true
}

// heldUp reports whether the workload that holds a port (the holder) may keep it for long: no node has room for
// the holder's new revision, so the holder keeps running unchanged, or the holder itself waits for a port of
// such a workload. Only awaitPort may check this, not mustLeave. If mustLeave did, the waiting workload would
// leave, its resources would be treated as free, and the planner would release and hold the holder again and
// again.
func (p *planner) heldUp(by string) bool {
	for range maxCircle {
		h, ok := p.State.Workload(by)
		if !ok {
			return false
		}
		if n, ok := p.State.Node(h.Node); ok && runsUnchanged(h, n) {
			return true
		}
		if by, _ = p.portBlock(h); by == "" {
			return false
		}
	}
	return false // the workloads wait for one another in a circle: see lastInCircle
}

// runsUnchanged reports whether w should leave node n but stays there because no other node has room,
// and gets no order for its new revision: see hold.
func runsUnchanged(w *fsm.Workload, n *fsm.Node) bool {
	_, taint := evicts(w.Demand, n) // a workload that has to leave because of a taint still gets its order
	return holds(w.Reason.Code) && !w.Acknowledged && w.Desired == fsm.DesiredRunning && taint == 0
}

// portBlock returns another workload that still holds a host port which the order for w needs, and
// that port; by is "" if there is none.
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

// maxCircle is the maximum number of workloads that are followed in the search for a circle of workloads that
// wait for one another.
const maxCircle = 64

// lastInCircle reports whether w is in a circle of workloads that wait for the ports of one another, and
// changed last of all workloads in the circle. by is the workload that w waits for.
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
