package sched

import (
	"github.com/persys/compute/fsm"
)

// A workload that should leave a node that is up is evicted only if both conditions hold:
//
//   - its local data does not bind it to the node (fsm/data.go);
//   - if it runs, another node has room for it. The planner reserves that room before the workload stops: in
//     this step, and in each later step (see reserve) until the workload is placed.
//
// Otherwise it is held: it still runs, unchanged, and its record has the reason. An order that would change
// it is not given.

// holds reports whether the reason code means that a workload is held on its node.
func holds(code string) bool { return code == fsm.CodeHoldsData || code == fsm.CodeCannotMove }

// runs reports whether the node last reported an instance that runs or may run. It also returns true for a
// stack of which one service has failed, because its other services may run.
func runs(w *fsm.Workload) bool {
	switch w.Actual.State {
	case fsm.ActualRunning, fsm.ActualPending, fsm.ActualUnknown:
		return true
	case fsm.ActualFailed:
		return w.Demand.Type == "compose"
	}
	return false
}

// reserve reserves resources on nodes in this step, before any other placement:
//
//   - for workloads that left a node for another one and wait until the previous node has stopped them, so that
//     the planner does not use the same resources for workloads that leave later;
//   - for workloads with a priority that stay on a node they should leave (held), so that the workloads
//     that were evicted for them do not get the resources back.
func (p *planner) reserve() {
	p.reserveLeft()
	for _, id := range p.c.workloads.sorted() {
		w, ok := p.State.Workload(id)
		if !ok || w.Node == "" || w.Desired != fsm.DesiredRunning || w.Reason.Code != fsm.CodeCannotMove || w.Demand.Priority <= 0 {
			continue
		}
		n, ok := p.State.Node(w.Node)
		if !ok || !n.Up || p.lost[n.ID] || p.back[n.ID] {
			continue
		}
		if p.awaitsRoom(w, n) {
			p.roomFor(w)
		}
	}
}

// awaitsRoom reports whether a held workload leaves its node n as soon as another node has room for it.
func (p *planner) awaitsRoom(w *fsm.Workload, n *fsm.Node) bool {
	if code, _, _ := p.mustLeave(w, n); code != "" {
		return code != fsm.CodeHoldsData && !(leavesNode(code) && p.heldByRollout(w))
	}
	return !w.Acknowledged && p.staying(n, nil).over(w.Demand).filter != passes
}

// room is the result of roomFor: either the node with room, or a text about the eviction that the
// workload waits for. If both are empty, no room can be made. If no node has room now, summary
// counts the reasons.
type room struct {
	has     NodeID
	waits   string
	summary string
}

// roomFor finds room for a workload that must leave its node, and reserves it in this step. It searches once
// per step and workload.
func (p *planner) roomFor(w *fsm.Workload) room {
	if r, ok := p.rooms[w.ID]; ok {
		return r
	}
	r := room{has: p.spare(w)}
	if r.has == "" {
		r.summary = p.summary(w) // compute the summary first, because preempt and keepRoom change the counts
		// Evict nothing for w until its record has the reason CannotMove: before that, reserve keeps no
		// room for w, and the evicted workloads would return to their node.
		if w.Reason.Code == fsm.CodeCannotMove {
			r.waits = p.preempt(w)
		} else if best, ok := p.clearance(w, p.State.RankOf(w)); ok {
			r.waits = p.waitsFor(w, best)
			p.keepRoom(w.Demand, best.slot)
		}
	}
	if p.rooms == nil {
		p.rooms = map[string]room{}
	}
	p.rooms[w.ID] = r
	return r
}

// spare finds free room for a workload on another node and reserves it in this step; "" if no node has room.
func (p *planner) spare(w *fsm.Workload) NodeID {
	if p.hopeless(w) {
		return ""
	}
	who := p.subject(w)
	q := p.c.find(p.State, who, w.Demand)
	if q.best < 0 {
		if len(who.never) == 0 { // workloads with an equal demand may have other volumes
			p.failed[string(p.key)] = true
		}
		return ""
	}
	p.keepRoom(w.Demand, q.best)
	return p.c.nodes.recs[q.best].ID
}

func (p *planner) reserveLeft() {
	seen := map[string]bool{}
	for _, node := range p.c.leaving.sorted() {
		if !p.reachable(node) {
			continue
		}
		p.State.Residuals(node, func(r *fsm.Residual) bool {
			if seen[r.Workload] || !leftByChoice(r.Reason) {
				return true
			}
			w, ok := p.State.Workload(r.Workload)
			if !ok || w.Node != "" || w.Desired != fsm.DesiredRunning {
				return true
			}
			if _, _, _, wait := p.former(w); wait == "" {
				return true
			}
			seen[w.ID] = true
			if q := p.c.find(p.State, p.subject(w), w.Demand); q.best >= 0 {
				p.keepRoom(w.Demand, q.best)
			}
			return true
		})
	}
}

// leftByChoice reports whether the reason code means that the planner evicted a workload from a node that was
// up, to move it to another one.
func leftByChoice(code string) bool {
	switch code {
	case fsm.CodeDraining, fsm.CodeTainted, fsm.CodeDoesNotFit, fsm.CodeRuntimeNotOffered, CodeConstraintChanged, fsm.CodeFailedOnNode, fsm.CodeRebalanced:
		return true
	}
	return false
}

// keepRoom reserves the resources and host ports of a demand on a node for the rest of this step,
// so that no later placement of the step takes them.
func (p *planner) keepRoom(d *fsm.Demand, s int32) {
	room := amounts(d)
	room.Ports = d.Ports
	p.c.promise(p.State, subject{}, &room, s)
}

// leave handles a workload that must leave a node that is up: it evicts the workload or holds it there. It
// reports whether it proposed anything.
func (p *planner) leave(w *fsm.Workload, n *fsm.Node, code, message string) bool {
	if why := p.keep(w, n, code, message); why.code != "" {
		return p.hold(w, why.code, why.message, !leavesNode(code))
	}
	p.evict(w, code, message, false)
	return true
}

// kept is the reason why a workload is held on its node; the zero value if it is not held.
type kept struct{ code, message string }

// keep decides whether a workload that should leave node n for the given reason is held there. If a running
// workload may leave, keep reserves room for it on the node that it will move to.
func (p *planner) keep(w *fsm.Workload, n *fsm.Node, code, message string) kept {
	if w.BoundByData(n) {
		return kept{fsm.CodeHoldsData, message + "; " + w.KeptByData(n)}
	}
	if w.Desired != fsm.DesiredRunning || !runs(w) {
		return kept{}
	}
	r := p.roomFor(w)
	if r.has != "" {
		return kept{}
	}
	return kept{fsm.CodeCannotMove, message + "; it runs on unchanged, because no other node takes it: " + r.summary + prefixed("; ", r.waits)}
}

// hold keeps a workload on the node that it should leave, and records the reason. It reports
// whether it proposed a command. With unchanged, the workload gets no new order, so that it runs as
// before.
func (p *planner) hold(w *fsm.Workload, code, message string, unchanged bool) bool {
	if unchanged {
		p.rest(w)
	}
	// If only the counts in the message have changed, do not commit the new message each time.
	if until := w.Reason.At + explainEvery; w.Reason.Code == code && w.Reason.Message != message && until > p.Now {
		p.wake(until)
		return false
	}
	return p.say(w, code, message)
}

// say proposes to record the reason of a placed workload, unless the record has that reason
// already. It reports whether it made a proposal. The step then proposes nothing else for the
// workload.
func (p *planner) say(w *fsm.Workload, code, message string) bool {
	said := p.explain(w, code, message)
	if said {
		p.rest(w)
	}
	return said
}

// rest makes this step give no order for workload w.
func (p *planner) rest(w *fsm.Workload) {
	if p.held == nil {
		p.held = map[string]bool{}
	}
	p.held[w.ID] = true
}
