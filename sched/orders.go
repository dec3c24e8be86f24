package sched

import "github.com/persys/compute/fsm"

// order tells nodes what they have not acknowledged: the present generation of
// what they ought to have, and the end of what they ought not. Orders that are
// on their way already are not given twice; nodes that are down get none.
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
		if p.done[w.ID] || w.Desired == fsm.DesiredDeleted || w.Retry.Terminal || w.Retry.NextAt != 0 || !p.reachable(w.Node) {
			return true
		}
		return give(Order{Op: OpApply, Node: w.Node, Workload: w.ID, Generation: w.Generation})
	})
	p.c.leaving.keep(func(node string) bool { return p.State.Alloc(node).Residuals > 0 })
	for _, node := range p.c.leaving.sorted() {
		if !p.reachable(node) {
			continue
		}
		p.State.Residuals(node, func(r *fsm.Residual) bool {
			if p.done[r.Workload] {
				return true // it may be on its way back there
			}
			return give(Order{Op: OpDelete, Node: node, Workload: r.Workload, Generation: r.Generation})
		})
	}
}
