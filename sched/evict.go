package sched

import (
	"cmp"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// CodeConstraintChanged is the reason of a workload that left its node because labels or
// constraints no longer match.
const CodeConstraintChanged = "ConstraintChanged"

// evictPass evaluates every placed workload that changed, whose node changed, or whose
// deadline has passed. A workload for which something is proposed stays in the queue, in
// case the proposal is not applied.
func (p *planner) evictPass() {
	for _, id := range p.c.workloads.take() {
		w, ok := p.State.Workload(id)
		if !ok || w.Node == "" || w.Desired == fsm.DesiredDeleted {
			p.c.due.set(id, 0)
			if !ok || w.Node != "" || w.Desired != fsm.DesiredRunning {
				delete(p.c.verdicts, id)
			}
			continue
		}
		delete(p.c.verdicts, id)
		n, ok := p.State.Node(w.Node)
		if !ok {
			continue
		}
		acted, due := true, int64(0)
		if !p.done[id] {
			acted, due = p.judge(w, n)
		}
		p.c.due.set(id, due)
		if acted {
			p.c.workloads.add(id)
		}
	}
}

// judge decides whether a placed workload must leave its node or has failed. due is when
// to look again; 0 = when something changes.
func (p *planner) judge(w *fsm.Workload, n *fsm.Node) (acted bool, due int64) {
	if p.lost[n.ID] || p.back[n.ID] {
		return true, 0 // the next step sees the node's new state
	}
	if until := p.stopsUntil(w, n); until > p.Now {
		// Evaluated in every step: the time moves with the leader's clock offset.
		p.wake(until)
		return true, 0
	}
	code, message, gone := p.mustLeave(w, n)
	switch {
	case code == fsm.CodeAwaitFailover && w.Reason.Code == code:
		return false, 0
	case code == fsm.CodeAwaitFailover:
		p.explain(w, code, message)
		return true, 0
	case code == fsm.CodeAwaitStop:
		return p.explain(w, code, message), 0
	case code == fsm.CodeDraining && p.heldByRollout(w):
		return true, 0
	case code != "":
		p.evict(w, code, message, gone)
		return true, 0
	case !n.Up:
		return false, 0
	}
	return p.retry(w)
}

// mustLeave says why a workload may not stay on its node, "" if it may.
func (p *planner) mustLeave(w *fsm.Workload, n *fsm.Node) (code, message string, gone bool) {
	switch {
	case !n.Up && w.Demand.Exclusive && !n.Fenced && p.stopsUntil(w, n) == 0:
		return fsm.CodeAwaitFailover, awaitFence(n.ID), false
	case !n.Up && w.Demand.Exclusive && !n.Fenced:
		return fsm.CodeNodeLost, "the lease of node " + n.ID + " ended and its fencer has had the time to stop this", true
	case !n.Up && !n.Fenced && w.Desired == fsm.DesiredStopped && !stopped(w):
		// Off its node it would count as stopped, but no report says that it has stopped.
		return fsm.CodeAwaitStop, awaitReturn(n.ID), false
	case !n.Up:
		return fsm.CodeNodeLost, "the lease of node " + n.ID + " ended", n.Fenced
	case n.Draining:
		return fsm.CodeDraining, "node " + n.ID + " is draining", false
	}
	if r := fits(w.Demand, n); r.filter != passes {
		return misfitCode(r.filter), p.c.nodes.sentence(p.State, w.Demand, p.c.nodes.slotOf[n.ID], r), false
	}
	if guarded(w.Demand) && !n.Facts.SelfFencing {
		// The node has no fencer any more. The workload can still be moved in order.
		return fsm.CodeDoesNotFit, p.c.nodes.sentence(p.State, w.Demand, p.c.nodes.slotOf[n.ID], rejection{filter: noFencer}), false
	}
	for _, port := range w.Demand.Ports {
		holder, on := p.State.PortHolder(n.Engine(), port)
		if holder == "" || holder == w.ID {
			continue
		}
		// A holder that is leaving gives the port back soon: see awaitPort. A workload
		// that was given up keeps the ports of its former instance.
		if h, ok := p.State.Workload(holder); ok && h.Node == on && (h.Wants(port) || h.Retry.Terminal) {
			return fsm.CodeDoesNotFit, "host port " + portText(port) + " is held by " + holder + " on " + on, false
		}
	}
	return "", "", false
}

// unknownBound is the fence bound, in seconds, of a node that registered none.
const unknownBound = 60

// stopsUntil returns by when the fencer of a lost node must have stopped a workload: one
// fence bound after this leader learned that the node was lost, which is never before the
// lease ended for the node. 0 if no fencer stops it.
func (p *planner) stopsUntil(w *fsm.Workload, n *fsm.Node) int64 {
	if n.Up || n.Fenced || !w.Guarded(n) {
		return 0
	}
	bound := int64(n.Facts.FenceBound)
	if bound == 0 {
		bound = unknownBound
	}
	since := p.Now
	if p.Live != nil { // PlanDrain and PlanPlace have no liveness
		since = cmp.Or(p.Live.DownSince(n.ID), since)
	}
	return since + bound*1e9
}

// awaitFence is the message of an exclusive workload on a lost node.
func awaitFence(node string) string {
	return "node " + node + " is lost and may still run this exclusive workload; once it is known to be off: persysctl node fence " + node
}

// awaitReturn is the message of a workload that is to be stopped on a lost node.
func awaitReturn(node string) string {
	return "node " + node + " is lost and may still run this; it is stopped once the node is back; if that is known to be off: persysctl node fence " + node
}

func misfitCode(f filter) string {
	switch f {
	case wrongType:
		return fsm.CodeRuntimeNotOffered
	case noLabel, constraint:
		return CodeConstraintChanged
	}
	return fsm.CodeDoesNotFit
}

func (p *planner) evict(w *fsm.Workload, code, message string, gone bool) bool {
	if !p.spend() {
		return false
	}
	p.mark(w.ID)
	p.evicted = append(p.evicted, &commandv1.Eviction{
		Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation), Code: code, Message: message, Gone: gone,
	})
	p.note("Evict", w.ID, w.Node, code+": "+message)
	return true
}

// evictOvercommitted takes workloads off nodes whose capacity an update exceeds. Only
// workloads whose order the node has not accepted yet are moved. Running workloads stay,
// also if a node comes back with less capacity. Lower priorities go first, then newer
// orders.
func (p *planner) evictOvercommitted() {
	x := p.c.nodes
	for _, id := range p.c.capacity.take() {
		s, ok := x.slotOf[id]
		if !ok || !x.overfull(s) {
			continue
		}
		n := x.recs[s]
		if p.lost[id] {
			p.c.capacity.add(id) // the node may be heard again before this step is in the log
		}
		if !n.Up || n.Draining || p.lost[id] {
			continue // its workloads leave anyway
		}
		var moving []*fsm.Workload
		use := newUsage(x, s)
		p.State.WorkloadsOn(id, func(w *fsm.Workload) bool {
			if code, _, _ := p.mustLeave(w, n); code == "" {
				use.add(w.Demand, +1)
				if !w.Acknowledged {
					moving = append(moving, w)
				}
			}
			return true
		})
		slices.SortFunc(moving, func(a, b *fsm.Workload) int {
			switch {
			case a.Demand.Priority != b.Demand.Priority:
				return cmp.Compare(a.Demand.Priority, b.Demand.Priority)
			case a.Generation != b.Generation:
				if b.Generation.Less(a.Generation) {
					return -1
				}
				return 1
			}
			return cmp.Compare(a.ID, b.ID)
		})
		for _, w := range moving {
			over := use.over(w.Demand)
			if over.filter == passes {
				continue
			}
			if !p.evict(w, fsm.CodeDoesNotFit, "node "+id+" has too little "+over.short()+" for the changed workload", false) {
				p.c.capacity.add(id)
				break
			}
			p.c.capacity.add(id)
			use.add(w.Demand, -1)
		}
	}
}

// overfull reports whether more of a node is promised than it has. A total of 0 means
// unknown.
func (x *nodeIndex) overfull(s int32) bool {
	if x.cpu[s] > 0 && x.usedCPU[s] > x.cpu[s] || x.mem[s] > 0 && x.usedMem[s] > x.mem[s] {
		return true
	}
	return slices.ContainsFunc(x.pools[s], func(p pool) bool { return p.total > 0 && p.used > p.total })
}

// usage adds up the demands of the workloads that stay on one node.
type usage struct {
	cpu, mem, cpuTotal, memTotal int64
	pools                        []pool
}

func newUsage(x *nodeIndex, s int32) *usage {
	u := &usage{cpuTotal: x.cpu[s], memTotal: x.mem[s], pools: slices.Clone(x.pools[s])}
	for i := range u.pools {
		u.pools[i].used = 0
	}
	return u
}

func (u *usage) pool(name string) *pool {
	for i := range u.pools {
		if u.pools[i].name == name || name == "" {
			return &u.pools[i]
		}
	}
	return nil
}

func (u *usage) add(d *fsm.Demand, sign int64) {
	u.cpu += sign * d.CPU
	u.mem += sign * d.Memory
	if p := u.pool(d.Pool); p != nil {
		p.used += sign * d.Disk
	}
}

// over returns the first overfull resource that d uses.
func (u *usage) over(d *fsm.Demand) rejection {
	switch p := u.pool(d.Pool); {
	case d.CPU > 0 && u.cpuTotal > 0 && u.cpu > u.cpuTotal:
		return rejection{filter: shortCPU}
	case d.Memory > 0 && u.memTotal > 0 && u.mem > u.memTotal:
		return rejection{filter: shortMemory}
	case d.Disk > 0 && p != nil && p.total > 0 && p.used > p.total:
		return rejection{filter: shortDisk, key: p.name}
	}
	return rejection{}
}
