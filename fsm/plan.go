package fsm

import (
	"fmt"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/order"
)

// A planner command carries independent items. An item that the present state no longer permits is skipped
// and counted, and Result.Reason holds the reason for the first skipped item.

func (r *Result) skip(why string) {
	r.Skipped++
	if r.Reason == "" {
		r.Reason = why
	}
}

// planned returns the workload with this id, which an item of a planner command names, if g, the generation
// that the planner saw, is still its present one. Otherwise it returns why the item is skipped.
func (t *Tx) planned(id string, g *commandv1.Generation) (*Workload, string) {
	w, ok := t.r.workloads.Get(id)
	switch {
	case !ok:
		return nil, fmt.Sprintf("workload %q does not exist", id)
	case w.Generation != order.GenerationOf(g):
		return nil, fmt.Sprintf("workload %q is at generation %s, planned for %s", id, w.Generation, order.GenerationOf(g))
	case w.Desired == DesiredDeleted:
		return nil, fmt.Sprintf("workload %q is being deleted", id)
	}
	return w, ""
}

// assign binds workloads to nodes that can still take them.
func (t *Tx) assign(b *commandv1.Assign) (res Result) {
	for _, a := range b.GetAssignments() {
		old, why := t.planned(a.GetWorkload(), a.GetIfGeneration())
		if why != "" {
			res.skip(why)
			continue
		}
		n, _ := t.r.nodes.Get(a.GetNode())
		if why := t.unfit(old, n, a.GetNode()); why != "" {
			res.skip(why)
			continue
		}
		w := *old
		if r, ok := t.r.residuals.Get(pair(n.ID, old.ID)); ok {
			t.dropResidual(r) // a workload may use the resources that its own residual on this node reserves
			t.holdPorts(&w, r.Demand.Ports)
		}
		w.Node = n.ID
		t.nextOrder(&w)
		w.Acknowledged = false
		w.AssignedAt = t.r.info.Clock
		if w.Demand.Job != nil && w.JobSince == 0 {
			w.JobSince = t.r.info.Clock
		}
		w.Actual = unobserved
		w.Reason = Reason{}
		t.putWorkload(old, &w)
		e := Event{Type: EventWorkloadScheduled, Workload: w.ID, Node: n.ID, Message: a.GetReason()}
		if w.PreviousNode != "" {
			e.Type = EventRescheduled
			e.Details = []Label{{"previous_node", w.PreviousNode}}
		}
		t.event(e)
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// unfit returns why w cannot be assigned to n now; "" if it can. Only the planner checks labels, constraints and
// taints, because a violation of them is a poor placement that does no harm.
func (t *Tx) unfit(w *Workload, n *Node, node string) string {
	switch {
	case w.IsTemplate():
		return fmt.Sprintf("workload %q is a template and is not placed", w.ID)
	case w.Node != "":
		return fmt.Sprintf("workload %q is on node %s already", w.ID, w.Node)
	case w.Desired != DesiredRunning:
		return fmt.Sprintf("workload %q has the desired state %s", w.ID, w.Desired)
	case n == nil:
		return fmt.Sprintf("node %q does not exist", node)
	case !n.Schedulable():
		return fmt.Sprintf("node %q is not schedulable", n.ID)
	case !n.Runs(w.Demand.Type):
		return fmt.Sprintf("node %q does not run type %s", n.ID, w.Demand.Type)
	case t.barred(w, n) != "":
		return t.barred(w, n)
	case t.outside(w, n) != "":
		return t.outside(w, n)
	case t.networkFault(w, n) != "":
		return t.networkFault(w, n)
	case w.Demand.Exclusive && t.hasResidual(w.ID):
		return fmt.Sprintf("exclusive workload %q may still run elsewhere", w.ID)
	}
	// A former instance of the same workload, which this node must still remove, may reserve
	// resources on the node. Treat these resources as free for this assignment, because the new
	// instance replaces the former one.
	var own Demand
	if r, ok := t.r.residuals.Get(pair(n.ID, w.ID)); ok {
		own = r.Demand
	}
	d, a := w.Demand, t.state().Alloc(n.ID)
	if d.CPU > 0 && d.CPU > n.Facts.CPU-a.CPU+own.CPU {
		return fmt.Sprintf("node %q has no %d millicores left", n.ID, d.CPU)
	}
	if d.Memory > 0 && d.Memory > n.Facts.Memory-a.Memory+own.Memory {
		return fmt.Sprintf("node %q has no %d MiB left", n.ID, d.Memory)
	}
	if d.Disk > 0 {
		pool := n.pool(d.Pool)
		free := n.poolTotal(pool) - a.poolUse(pool)
		if n.pool(own.Pool) == pool {
			free += own.Disk
		}
		if d.Disk > free {
			return fmt.Sprintf("node %q has no %d GB left in pool %q", n.ID, d.Disk, pool)
		}
	}
	if why := lacksDevices(n, &a, d, own.Devices, nil); why != "" {
		return why
	}
	for _, p := range d.Ports {
		holder, on := t.state().PortHolder(n.Engine(), p)
		if holder != "" && (holder != w.ID || on != n.ID) {
			return fmt.Sprintf("port %d/%s of node %q is held by workload %q on node %q", p.Port, p.Protocol, n.ID, holder, on)
		}
	}
	return ""
}

func (n *Node) poolTotal(name string) int64 {
	for _, p := range n.Facts.Pools {
		if p.Name == name {
			return p.Total
		}
	}
	return 0
}

func (a *Alloc) poolUse(name string) int64 {
	for _, u := range a.Disk {
		if u.Pool == name {
			return u.GB
		}
	}
	return 0
}

// evict removes workloads from their nodes, so that the planner places them again.
func (t *Tx) evict(b *commandv1.Evict) (res Result) {
	for _, e := range b.GetEvictions() {
		old, why := t.planned(e.GetWorkload(), e.GetIfGeneration())
		if why == "" && old.Node == "" {
			why = fmt.Sprintf("workload %q is on no node", old.ID)
		}
		if why == "" && e.GetGone() && !t.mayBeGone(old) {
			why = fmt.Sprintf("exclusive workload %q may still run on node %s, which is not fenced", old.ID, old.Node)
		}
		if why == "" && old.reportsSuccess() { // the node has reported it since the planner looked
			why = fmt.Sprintf("job %q has succeeded on node %s, so it does not run again", old.ID, old.Node)
		}
		if why == "" {
			why = t.keepsData(old)
		}
		if why == "" && e.GetCode() == CodeFailedOnNode {
			why = old.noMove(t.r.info.Clock)
		}
		var by *Workload
		if why == "" {
			by, why = t.preempts(e, old)
		}
		if why == "" && (e.GetCode() == CodeDraining || e.GetCode() == CodeTainted) && t.held(old) {
			why = fmt.Sprintf("workload %q leaves node %s only when the update of its group permits it", old.ID, old.Node)
		}
		if why == "" && e.GetIfDraining() {
			if n := t.nodeOf(old); !n.Draining {
				why = n.drainEnded()
			}
		}
		if why == "" && e.GetCode() == CodeDraining {
			if n := t.nodeOf(old); old.FinishesOn(n, t.r.info.Clock) {
				why = fmt.Sprintf("job %q stays on its node: %s", old.ID, n.EndsText())
			}
		}
		if why != "" {
			res.skip(why)
			continue
		}
		w := *old
		n := t.nodeOf(old)
		leaves := leftText(n, old.DataOn(n))
		t.release(&w, e.GetGone(), e.GetCode())
		if e.GetCode() == CodeFailedOnNode {
			w.FailedOn = old.leftFailing(t.r.info.Clock)
		}
		w.Reason = Reason{Code: e.GetCode(), Message: e.GetMessage(), At: t.r.info.Clock, Retryable: true}
		if w.Desired == DesiredStopped {
			w.Reason = reasonOf(&w, nil, t.r.info.Clock)
		}
		left := Event{
			Type: EventWorkloadEvicted, Workload: w.ID, Node: old.Node,
			Reason: e.GetCode(), Message: e.GetMessage() + suffix("; it leaves ", leaves),
		}
		if by != nil {
			w.PreemptedBy = by.ID
			w.PreemptedAt = max(w.PreemptedAt, min(e.GetPreemptedAt(), t.r.info.Clock))
			left.Details = []Label{{"preempted_by", by.ID}, {"preempted_by_namespace", by.In()}}
		}
		t.putWorkload(old, &w)
		t.event(left)
		if by != nil {
			t.preempted(old, by)
		}
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// mayBeGone prevents a second instance of an exclusive workload. A planner may treat the workload as gone
// only if an operator has confirmed that the node is off (fence), or if the node is lost and stops the
// workload by itself when its lease ends. A report that the instance is missing is no proof: an engine that
// is still starting lists no instances, and may start the workload later. The agent's answer to a delete
// order is a proof, because with that answer the agent also promises to refuse older orders
// (contract/semantics section 5: no re-placing at the first missing signal).
func (t *Tx) mayBeGone(w *Workload) bool {
	if !w.Demand.Exclusive {
		return true
	}
	n := t.nodeOf(w)
	return n.Fenced || (!n.Up && !keepsOnLostLease(w, n))
}

// scheduleRetries carries out what the planner decided about failed workloads: retry later (backoff), order
// again now, or give up.
func (t *Tx) scheduleRetries(b *commandv1.ScheduleRetries) (res Result) {
	clock := t.r.info.Clock
	for _, r := range b.GetRetries() {
		old, why := t.planned(r.GetWorkload(), r.GetIfGeneration())
		if why == "" && old.Node == "" {
			why = fmt.Sprintf("workload %q is on no node", old.ID)
		}
		if why == "" && old.reportsSuccess() { // the node has reported it since the planner looked
			why = fmt.Sprintf("job %q has succeeded on node %s, so it does not run again", old.ID, old.Node)
		}
		if why != "" {
			res.skip(why)
			continue
		}
		w := *old
		w.Retry.Attempts = r.GetAttempts()
		w.Retry.NextAt = 0
		w.Retry.Terminal = r.GetTerminal()
		w.Retry.StableSince, w.Retry.Verdict = 0, Verdict{}
		if w.Retry.FirstFailureAt == 0 {
			w.Retry.FirstFailureAt = clock
		}
		w.Reason = Reason{Code: r.GetCode(), Message: r.GetMessage(), At: clock, Retryable: !r.GetTerminal()}
		e := Event{
			Type: EventRetryTriggered, Workload: w.ID, Node: w.Node,
			Details: []Label{{"attempts", strconv.Itoa(int(w.Retry.Attempts))}},
		}
		switch {
		case r.GetTerminal():
			e.Type = EventWorkloadFailed
			if w.Reason.Code == "" {
				w.Reason.Code = CodeExhausted
			}
			w.Retry.Verdict = Verdict{w.Reason.Code, w.Reason.Message}
		case r.GetNextAt() > 0:
			w.Retry.NextAt = r.GetNextAt()
			if w.Reason.Code == CodeExhausted && old.Retry.Attempts < old.Retry.MaxAttempts {
				e.Type = EventWorkloadFailed // a stop is retried forever (stops.go), but only its last counted attempt makes this event
			}
			if w.Reason.Code == "" {
				w.Reason.Code = CodeBackoff
			}
			e.Details = append(e.Details, Label{"next_at", strconv.FormatInt(w.Retry.NextAt, 10)})
		default:
			// Give the order a new generation but no new revision, so that the agent does not restart a workload that
			// runs after all. Only RetryWorkload forces a restart.
			t.repeatOrder(&w)
			if old.reportsEnd() {
				w.SameSince = Generation{} // the exit of the former run is counted: the node must run the job again
			}
			if w.Demand.Job != nil && old.Actual.State == ActualStopped {
				w.SameSince = Generation{}
				w.Restarts++ // this job exited with code 0, which its success codes exclude; without a restart the agent would not run it again
			}
		}
		e.Reason, e.Message = w.Reason.Code, w.Reason.Message
		t.putWorkload(old, &w)
		t.event(e)
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// explainUnplaced stores the planner's reason why a workload is not placed, or does not leave its node. If
// the command has no reason code, the reason is computed again from the record of the workload.
func (t *Tx) explainUnplaced(b *commandv1.ExplainUnplaced) (res Result) {
	for _, u := range b.GetWorkloads() {
		old, why := t.planned(u.GetWorkload(), u.GetIfGeneration())
		if w, ok := t.r.workloads.Get(u.GetWorkload()); ok && t.overdue(w, u) {
			old, why = w, ""
		}
		if why != "" {
			res.skip(why)
			continue
		}
		if old.Reason.Code == u.GetCode() && old.Reason.Message == u.GetMessage() {
			continue
		}
		if u.GetCode() == CodeDispatchFailed && old.Acknowledged {
			res.skip("node " + old.Node + " has accepted the order already")
			continue
		}
		w := *old
		if u.GetCode() == "" { // no code: the planner withdraws its reason
			w.Reason = t.reason(&w, t.nodeOf(&w))
			t.putWorkload(old, &w)
			continue
		}
		w.Reason = Reason{Code: u.GetCode(), Message: u.GetMessage(), At: t.r.info.Clock, Retryable: true}
		t.putWorkload(old, &w)
		t.event(Event{
			Type: EventWorkloadUnplaced, Workload: w.ID, Node: w.Node,
			Reason: u.GetCode(), Message: u.GetMessage(),
		})
	}
	return res
}
