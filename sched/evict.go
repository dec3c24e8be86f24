package sched

import (
	"cmp"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// CodeConstraintChanged is the reason code of a workload that left its node because the labels of
// the node no longer satisfy the constraints of the workload.
const CodeConstraintChanged = "ConstraintChanged"

// evictPass evaluates every placed workload that changed, whose node changed, or whose deadline has passed.
// If the step proposes something for a workload, the workload stays in the queue, because the proposal may be
// lost or refused.
func (p *planner) evictPass() {
	if p.c.stuckAt != p.c.version {
		for _, id := range p.c.stuck.take() {
			p.c.workloads.add(id)
		}
		p.c.stuckAt = p.c.version
	}
	for _, id := range p.c.workloads.take() {
		w, ok := p.State.Workload(id)
		if ok && w.IsTemplate() {
			p.c.due.set(id, p.dueOfTemplate(w))
			if p.done[id] {
				p.c.workloads.add(id) // the proposal may be lost or refused
			}
			continue
		}
		if ok && isJob(w) && w.Desired == fsm.DesiredRunning && (p.over[id] || w.Node == "") {
			p.c.due.set(id, nextOfJob(w))
			if p.over[id] {
				p.c.workloads.add(id) // a job that ends in this step stays queued: its command may be lost, or may not fit into this step
			}
			continue
		}
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
		if !p.done[id] && !p.held[id] {
			acted, due = p.judge(w, n)
			due = earlier(due, nextOfJob(w))
		}
		p.c.due.set(id, due)
		if acted {
			p.c.workloads.add(id)
		}
	}
}

// judge decides whether a placed workload must leave its node or has failed. due is the time of the next
// evaluation; 0 = after the next change.
func (p *planner) judge(w *fsm.Workload, n *fsm.Node) (acted bool, due int64) {
	if p.lost[n.ID] || p.back[n.ID] {
		return true, 0 // this step marks the node up or down, so wait for the next step
	}
	if until := p.stopsUntil(w, n); until > p.Now {
		// Compute this time in every step instead of keeping it as a deadline in the cache: it moves when
		// the leader's clock offset changes.
		p.wake(until)
		return true, 0
	}
	if w.EndedForGood() {
		return false, 0 // it stays: on another node it would run a second time
	}
	finishes := w.FinishesOn(n, p.Now)
	if leavesLast(w, n, p.Now) {
		return p.say(w, fsm.CodeCannotMove, "node "+n.ID+" is draining, and a member of a system workload leaves it last"), 0
	}
	code, message, gone := p.mustLeave(w, n)
	if m, moves := p.State.Move(w.ID); moves && code != "" {
		switch {
		case m.Open() && n.Up:
			code = "" // its volumes are being moved to another node, and it leaves with them
		case m.Returnable() && !n.Up && w.Node == m.To && (code == fsm.CodeNodeLost || leavesNode(code)) && !p.canReturn(m):
			return p.explain(w, fsm.CodeHoldsData, "node "+m.From+" keeps the former copy of its volumes and has not reported it: start that node, or give that copy up ("+m.Command(fsm.MoveSettle)+")"), 0
		}
	}
	switch {
	case code == fsm.CodeAwaitFailover && w.Reason.Code == code:
		return false, 0
	case code == fsm.CodeAwaitFailover:
		p.explain(w, code, message)
		return true, 0
	case code == fsm.CodeAwaitStop, code == fsm.CodeHoldsData:
		return p.explain(w, code, message), 0
	case leavesNode(code) && p.heldByRollout(w):
		return true, 0
	case code != "" && n.Up:
		if !p.leave(w, n, code, message) {
			_, due = p.retry(w) // the workload stays, so its failures on this node are counted and retried
		}
		return true, due
	case code != "":
		p.evict(w, code, message, gone)
		return true, 0
	case !n.Up:
		return false, 0
	case finishes && w.Actual.State == fsm.ActualRunning:
		if p.say(w, fsm.CodeAwaitEnd, n.EndsText()) { // use say, not hold: hold delays new messages, and this message changes only with another drain
			return true, 0
		}
	case holds(w.Reason.Code), w.Reason.Code == fsm.CodeAwaitEnd:
		return p.say(w, "", ""), 0
	}
	if acted, due = p.moveOn(w, n); acted {
		return true, 0
	}
	if finishes {
		due = earlier(due, n.JobsUntil)
	}
	again := due
	acted, due = p.retry(w)
	due = earlier(due, again)
	if _, at := evicts(w.Demand, n); at > 0 {
		due = earlier(due, at)
	}
	return acted, due
}

// earlier returns the earlier of two times; 0 means no time.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// leavesNode reports whether the code means that people drained or tainted the node. The specification of the
// workload is not the cause then, so an update of its group goes on, and the workload still gets orders until
// it leaves.
func leavesNode(code string) bool { return code == fsm.CodeDraining || code == fsm.CodeTainted }

// mustLeave returns why a workload may not stay on its node; all results are zero if the workload
// may stay. code and message are the reason. gone means that the node runs no instance of the
// workload any more.
func (p *planner) mustLeave(w *fsm.Workload, n *fsm.Node) (code, message string, gone bool) {
	switch {
	case !n.Up && w.IsMember() && !n.Fenced:
		return "", "", false // a member of a system workload stays bound to its lost node
	case !n.Up && w.BoundByData(n):
		return fsm.CodeHoldsData, w.AwaitsData(n), false
	case !n.Up && w.Demand.Exclusive && !n.Fenced && p.stopsUntil(w, n) == 0:
		return fsm.CodeAwaitFailover, awaitFence(n.ID), false
	case !n.Up && w.Demand.Exclusive && !n.Fenced:
		return fsm.CodeNodeLost, "the lease of node " + n.ID + " ended and its fencer has had the time to stop the workload", true
	case !n.Up && !n.Fenced && w.Desired == fsm.DesiredStopped && !stopped(w):
		// The workload stays bound to its lost node: if it were taken off that node, its record would say
		// that it is stopped, although no report has confirmed the stop.
		return fsm.CodeAwaitStop, awaitReturn(n.ID), false
	case !n.Up:
		return fsm.CodeNodeLost, "the lease of node " + n.ID + " ended", n.Fenced
	case n.Draining && !w.FinishesOn(n, p.Now):
		return fsm.CodeDraining, "node " + n.ID + " is draining", false
	}
	if t, at := evicts(w.Demand, n); at > 0 && at <= p.Now {
		return fsm.CodeTainted, "taint " + t.String() + " of node " + n.ID + " is not tolerated", false
	}
	if w.Adopted != "" {
		return "", "", false // legacy v1 schedulers placed the workload by other rules, so its present node is accepted
	}
	if r := fits(p.c.nodes.pooled[w.In()], w.Demand, n); r.filter != passes {
		return misfitCode(r.filter), p.c.nodes.sentence(p.State, w.Demand, p.c.nodes.slotOf[n.ID], r), false
	}
	if stopsOnLostLease(w.Demand) && !n.Facts.SelfFencing {
		// The node no longer has a fencer. But the node is up, so the workload can still be stopped and moved.
		return fsm.CodeDoesNotFit, p.c.nodes.sentence(p.State, w.Demand, p.c.nodes.slotOf[n.ID], rejection{filter: noFencer}), false
	}
	for _, name := range w.Demand.Networks {
		if net, ok := p.State.Network(w.In(), name); ok {
			if _, has := net.SliceOf(n.ID); !has {
				return fsm.CodeDoesNotFit, "node " + n.ID + " has no slice of network " + name, false
			}
		}
	}
	for _, port := range w.Demand.Ports {
		holder, on := p.State.PortHolder(n.Engine(), port)
		if holder == "" || holder == w.ID {
			continue
		}
		// If the workload that holds the port is about to leave, it frees the port soon: see awaitPort. A
		// workload that was given up, or that its node cannot run, keeps the ports of its previous instance.
		if h, ok := p.State.Workload(holder); ok && h.Node == on && (h.Wants(port) || h.Retry.Terminal || h.FailsOnNode()) {
			return fsm.CodeDoesNotFit, "host port " + portText(port) + " is held by " + holder + " on " + on, false
		}
	}
	return "", "", false
}

// unknownBound is the fence bound in seconds that is assumed for a node that registered none. The
// fence bound is the longest time from the end of the lease until the node's fencer has stopped the
// workloads that must stop then.
const unknownBound = 60

// stopsUntil returns the time by which the fencer of a lost node must have stopped a workload: one fence
// bound after this leader learned that the node was lost. The leader never learns that before the lease
// ended on the node. It returns 0 if no fencer stops the workload.
func (p *planner) stopsUntil(w *fsm.Workload, n *fsm.Node) int64 {
	if n.Up || n.Fenced || !w.StopsOnLostLease(n) {
		return 0
	}
	bound := int64(n.Facts.FenceBound)
	if bound == 0 {
		bound = unknownBound
	}
	since := p.Now
	if p.Live != nil { // Live is nil in PlanDrain and PlanPlace
		since = cmp.Or(p.Live.DownSince(n.ID), since)
	}
	return since + bound*1e9
}

// awaitFence returns the message for an exclusive workload whose node is lost: it waits for a fence.
func awaitFence(node string) string {
	return "node " + node + " is lost and may still run this exclusive workload; once it is known to be off: persysctl node fence " + node
}

// awaitReturn returns the message for a workload that has to be stopped and whose node is lost.
func awaitReturn(node string) string {
	return "node " + node + " is lost and may still run this workload, which is stopped once the node is back; if the node is known to be off: persysctl node fence " + node
}

func misfitCode(f filter) string {
	switch f {
	case wrongType:
		return fsm.CodeRuntimeNotOffered
	case outsidePool, noLabel, constraint, wrongNode:
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
		IfDraining: code == fsm.CodeDraining,
	})
	p.note("Evict", w.ID, w.Node, code+": "+message)
	return true
}

// evictOvercommitted evicts workloads from nodes whose capacity is exceeded after an update. It evicts only
// workloads whose order the node has not accepted yet. Running workloads stay, even if a node returns with
// less capacity. The workload with the lowest priority is evicted first; among equal priorities, the one with
// the newest order.
func (p *planner) evictOvercommitted() {
	x := p.c.nodes
	for _, id := range p.c.capacity.take() {
		s, ok := x.slotOf[id]
		if !ok || !x.overfull(s) {
			continue
		}
		n := x.recs[s]
		if p.lost[id] {
			p.c.capacity.add(id) // the node is down, but may return before the commands of this step are applied, so check it again
		}
		if !n.Up || n.Draining || p.lost[id] {
			continue // the workloads of this node leave it for another reason
		}
		var moving []*fsm.Workload
		use := p.staying(n, func(w *fsm.Workload) {
			if !w.Acknowledged && !w.SameInstance() && !p.done[w.ID] {
				moving = append(moving, w)
			}
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
			p.c.capacity.add(id)
			p.leave(w, n, fsm.CodeDoesNotFit, "node "+id+" has too little "+over.short()+" for the changed workload")
			if !p.done[w.ID] && !p.held[w.ID] {
				break // the limit of items in this step is reached
			}
			use.add(w.Demand, -1)
		}
	}
}

// overfull reports whether more of a resource is reserved on a node than the node has. A total of 0 means
// unknown.
func (x *nodeIndex) overfull(s int32) bool {
	if x.cpu[s] > 0 && x.usedCPU[s] > x.cpu[s] || x.mem[s] > 0 && x.usedMem[s] > x.mem[s] {
		return true
	}
	if slices.ContainsFunc(x.devices[s], func(d devices) bool { return overbooked(x.devices[s], d.name) }) {
		return true
	}
	return slices.ContainsFunc(x.pools[s], func(p pool) bool { return p.total > 0 && p.used > p.total })
}

// usage is the sum of the demands of the workloads that stay on one node.
type usage struct {
	cpu, mem, cpuTotal, memTotal int64
	pools                        []pool
	devices                      []devices
}

// staying adds up the demands of the workloads that may stay on node n, and calls fn for each of
// them. fn may be nil.
func (p *planner) staying(n *fsm.Node, fn func(*fsm.Workload)) *usage {
	use := newUsage(p.c.nodes, p.c.nodes.slotOf[n.ID])
	p.State.WorkloadsOn(n.ID, func(w *fsm.Workload) bool {
		if code, _, _ := p.mustLeave(w, n); code == "" {
			use.add(w.Demand, +1)
			if fn != nil {
				fn(w)
			}
		}
		return true
	})
	return use
}

func newUsage(x *nodeIndex, s int32) *usage {
	u := &usage{cpuTotal: x.cpu[s], memTotal: x.mem[s], pools: slices.Clone(x.pools[s])}
	for i := range u.pools {
		u.pools[i].used = 0
	}
	for _, d := range x.recs[s].Facts.Devices {
		u.devices = append(u.devices, devices{name: d.Name, total: d.Count})
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
	u.devices = takeDevices(u.devices, d.Devices, sign)
}

// over returns the first resource that d uses and of which more is reserved than the node has.
func (u *usage) over(d *fsm.Demand) rejection {
	switch p := u.pool(d.Pool); {
	case d.CPU > 0 && u.cpuTotal > 0 && u.cpu > u.cpuTotal:
		return rejection{filter: shortCPU}
	case d.Memory > 0 && u.memTotal > 0 && u.mem > u.memTotal:
		return rejection{filter: shortMemory}
	case d.Disk > 0 && p != nil && p.total > 0 && p.used > p.total:
		return rejection{filter: shortDisk, key: p.name}
	}
	for _, want := range d.Devices {
		offered := slices.ContainsFunc(u.devices, func(have devices) bool { return have.total > 0 && fsm.Offers(have.name, want.Name) })
		if !offered || want.Count > 0 && overbooked(u.devices, want.Name) {
			return rejection{filter: shortDevice, key: want.Name}
		}
	}
	return rejection{}
}
