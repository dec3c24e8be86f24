package sched

import (
	"fmt"

	"github.com/persys/compute/fsm"
)

// order is the pass that gives nodes the orders that they have not acknowledged: an apply order for the present
// generation of a workload, and a delete order for a residual (a previous instance that the node must remove).
// Orders that are still being delivered are not issued again, and nodes that are down get no orders.
func (p *planner) order() {
	left := p.Tuning.MaxCommands
	give := func(o Order) bool {
		if p.Live.Outstanding(o) {
			return true
		}
		if left == 0 {
			p.more = true
			return false
		}
		left--
		p.step.Orders = append(p.step.Orders, o)
		return true
	}
	p.State.Unacknowledged(func(w *fsm.Workload) bool {
		if p.done[w.ID] || p.held[w.ID] || w.Desired == fsm.DesiredDeleted || w.Retry.Terminal || w.Retry.NextAt != 0 || !p.reachable(w.Node) {
			return true
		}
		if p.awaitPort(w) {
			return true
		}
		return give(Order{Op: OpApply, Node: w.Node, Workload: w.ID, Generation: w.Generation})
	})
	p.c.leaving.keep(func(node string) bool { return p.State.Alloc(node).Residuals > 0 })
	for _, node := range p.c.leaving.sorted() {
		p.overdue(node)
		if !p.reachable(node) {
			continue
		}
		p.State.Residuals(node, func(r *fsm.Residual) bool {
			if p.done[r.Workload] {
				return true // a later pass of this step may place the workload on this node again
			}
			return give(Order{Op: OpDelete, Node: node, Workload: r.Workload, Generation: r.Generation})
		})
	}
}

// overdue proposes the reason DeleteTimeout, once per workload, if a node has not carried out a
// delete in time. It also requests a read of the agent's recent tasks.
func (p *planner) overdue(node string) {
	if p.Tuning.DeleteTimeout <= 0 {
		return
	}
	p.State.Residuals(node, func(r *fsm.Residual) bool {
		w, ok := p.State.Workload(r.Workload)
		if !ok || w.Desired != fsm.DesiredDeleted || w.Reason.Code == fsm.CodeDeleteTimeout {
			return true
		}
		if at := r.Since + p.Tuning.DeleteTimeout; at > p.Now {
			p.wake(at)
			return true
		}
		state, next := "has not removed it", "if it is gone for good: persysctl node remove "+node+" --force"
		if !p.reachable(node) {
			state = "cannot be reached"
		}
		p.explain(w, fsm.CodeDeleteTimeout, fmt.Sprintf("node %s %s for %d s; %s, or: persysctl delete %s --force",
			node, state, p.Tuning.DeleteTimeout/second, next, w.ID))
		p.step.Inquiries = append(p.step.Inquiries, Inquiry{node, w.ID})
		return true
	})
}
