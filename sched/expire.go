package sched

import (
	"cmp"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// expire marks nodes as down whose lease has ended, and marks nodes as up that have sent a heartbeat again. A
// node that is marked as down gets no new workloads in the same step.
func (p *planner) expire() {
	type heard struct {
		node string
		at   int64
	}
	collect := func(from func(int64, func(NodeID, int64) bool), until int64, up bool) []heard {
		var all []heard
		from(until, func(node NodeID, at int64) bool {
			if n, ok := p.State.Node(node); ok && n.Up != up && !n.Fenced { // a fenced node must register again before it counts as up
				all = append(all, heard{node, at})
				p.c.recheck(p.State, node) // evaluate all pending workloads: some may have waited for this node to stop an instance
			}
			return true
		})
		slices.SortFunc(all, func(a, b heard) int { return cmp.Compare(a.node, b.node) })
		return all
	}
	grace := max(0, p.Tuning.UnavailableGrace)
	for _, h := range collect(p.Live.Expired, p.Now-grace, false) {
		p.lost[h.node] = true
		p.c.withhold(h.node)
		if p.spend() {
			p.states = append(p.states, &commandv1.NodeState{
				Id: h.node, Reason: "lease expired", UpdatedBy: "monitor", LastHeartbeat: h.at,
			})
			p.note("NodeLost", "", h.node, "lease expired")
		}
	}
	for _, h := range collect(p.Live.Returned, p.Now, true) {
		p.back[h.node] = true
		if p.spend() {
			p.states = append(p.states, &commandv1.NodeState{Id: h.node, Up: true, UpdatedBy: "heartbeat", LastHeartbeat: h.at})
			p.note("NodeReady", "", h.node, "heard again")
		}
	}
	if at := p.Live.NextExpiry(); at != 0 {
		p.wake(at + grace)
	}
}

// reachable reports whether a node can get orders in this step.
func (p *planner) reachable(node string) bool {
	n, ok := p.State.Node(node)
	return ok && n.Up && !p.lost[node]
}
