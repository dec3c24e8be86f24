package fsm

import (
	"fmt"
	"slices"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// registerNode stores the facts that a node reports and marks it Up. If the node is Up and its facts are the
// same as before, nothing changes.
func (t *Tx) registerNode(b *commandv1.RegisterNode) Result {
	if wrong := bounds.OversizedNode(b); wrong != "" {
		return refuse(Invalid, "%s", wrong)
	}
	if fault := bounds.NodeFault(b); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	facts := factsOf(b)
	facts.normalise()
	clock := t.r.info.Clock
	old, ok := t.r.nodes.Get(b.GetId())
	var had []Taint
	if ok {
		had = old.Facts.Taints
	}
	facts.dateTaints(had, clock)
	if !ok {
		if PermissionOf(t.r.info.Mode, "register_node") != Allowed {
			return refuse(Frozen, "the control plane is in mode %s and registers no new node (%q)%s",
				t.r.info.Mode, b.GetId(), suffix(": ", t.r.info.ModeReason))
		}
		n := &Node{
			ID: b.GetId(), Facts: facts, Up: true, UpdatedBy: "register", UpdatedAt: clock,
			LastHeartbeat: clock, RegisteredAt: clock, CreateIndex: t.meta.Index,
		}
		t.putNode(nil, n)
		t.event(Event{Type: EventNodeRegistered, Node: n.ID, Message: n.Facts.Endpoint})
		return Result{}
	}
	if old.Up && old.Facts.InstanceID != "" && facts.InstanceID != "" && old.Facts.InstanceID != facts.InstanceID {
		return refuse(Conflict, "node %q is %s as instance %s; instance %s must use another id, or wait until that lease has ended",
			old.ID, old.Status(), old.Facts.InstanceID, facts.InstanceID)
	}
	if id := t.heldFor(old, &facts); id != "" {
		return refuse(Conflict, "node %q was instance %s, which may still run exclusive workload %q; %s",
			old.ID, old.Facts.InstanceID, id, replacementText(old, &facts, ""))
	}
	if bound := t.boundOn(old); len(bound) > 0 && otherMachine(&old.Facts, &facts) {
		return refuse(Conflict, "node %q was instance %s, which has the only copy of data of %s; %s",
			old.ID, old.Facts.InstanceID, boundText(old, bound), replacementText(old, &facts, " --discard-data"))
	}
	same := factsEqual(&old.Facts, &facts)
	if same && old.Up && len(old.Lacks) == 0 {
		return Result{Kind: AlreadyDone}
	}
	n := *old
	n.Facts = facts
	n.Up, n.Fenced, n.Lacks = true, false, nil
	n.Reason, n.UpdatedBy = "", "register"
	n.UpdatedAt, n.LastHeartbeat, n.RegisteredAt = clock, clock, clock
	t.putNode(old, &n)
	if !same {
		t.event(Event{Type: EventNodeRegistered, Node: n.ID, Message: n.Facts.Endpoint})
	}
	if !old.Up {
		if old.Fenced && !n.Draining {
			t.keepOn(n.ID)
		}
		t.event(Event{Type: EventNodeReady, Node: n.ID})
		t.rejudge(&n)
	}
	return Result{}
}

// lacks records that node n refused an order because n cannot run the workload type of w. The
// planner does not use n for this type until n registers again. lacks returns the changed node.
func (t *Tx) lacks(n *Node, w *Workload) *Node {
	kind := w.Demand.Type
	if w.Actual.Code != CodeRuntimeNotOffered || slices.Contains(n.Lacks, kind) {
		return n
	}
	next := *n
	next.Lacks = append(slices.Clone(n.Lacks), kind)
	slices.Sort(next.Lacks)
	t.putNode(n, &next)
	return &next
}

// heldFor protects exclusive workloads, of which two instances must never run. If facts come from another machine
// than that of node old, it returns the id of such a workload that may still run on old. That machine must not
// register under the id of the node: it would be given the workload, or would report that the workload does not run.
// heldFor returns "" if the facts may come from the same machine, or if the node runs no exclusive workload. An agent
// that lost its data directory still uses the same engine and finds the running workloads there.
func (t *Tx) heldFor(old *Node, facts *NodeFacts) (id string) {
	if old.Fenced || !otherMachine(&old.Facts, facts) {
		return ""
	}
	t.state().WorkloadsOn(old.ID, func(w *Workload) bool {
		if w.Demand.Exclusive {
			id = w.ID
		}
		return id == ""
	})
	if id != "" {
		return id
	}
	t.state().Residuals(old.ID, func(r *Residual) bool {
		if r.Demand.Exclusive {
			id = r.Workload
		}
		return id == ""
	})
	return id
}

// replacementText says why the facts of a registration may be those of another machine than that of node old, and what
// a person can do. While the engine of an agent does not answer, the agent may be on the same machine, where the
// workloads still run, so the text does not advise to fence the node. A legacy v1 agent never tells its engine.
// flags are appended to the command that fences the node.
func replacementText(old *Node, facts *NodeFacts, flags string) string {
	was, is := old.Facts.EngineID, facts.EngineID
	switch {
	case is == "" && facts.InstanceID != "":
		return fmt.Sprintf("this is %s, whose engine has not told its id, so it may be the same machine: "+
			"the agent can register when its engine answers; if it is another machine, give it another id", instanceText(facts))
	case was == "" || is == "":
		return fmt.Sprintf("this is %s, and it is not known whether both use the same engine: give it another id, or, once the former "+
			"machine is known to be off and this one runs no workload of the node: persysctl node fence %s%s", instanceText(facts), old.ID, flags)
	}
	return fmt.Sprintf("this is %s on another engine: give it another id, or, once the former machine is known to be off: persysctl node fence %s%s",
		instanceText(facts), old.ID, flags)
}

// otherMachine reports whether the new facts may come from another machine than the facts was. After an agent
// lost its data directory, its instance id is new but its engine id is the same.
func otherMachine(was, facts *NodeFacts) bool {
	return was.InstanceID != "" && was.InstanceID != facts.InstanceID && (was.EngineID == "" || was.EngineID != facts.EngineID)
}

func instanceText(f *NodeFacts) string {
	if f.InstanceID == "" {
		return "an agent that sends no instance id"
	}
	return "instance " + f.InstanceID
}

// setNodeStates stores which nodes the leader has found to have gone up or down. Items about unknown nodes
// are skipped.
func (t *Tx) setNodeStates(b *commandv1.SetNodeStates) Result {
	var res Result
	for _, s := range b.GetNodes() {
		old, ok := t.r.nodes.Get(s.GetId())
		if !ok {
			res.Skipped++
			continue
		}
		if old.Up == s.GetUp() {
			continue
		}
		if s.GetUp() && old.Fenced {
			res.skip(fmt.Sprintf("node %q is fenced: a heartbeat does not end the fence, a registration does", old.ID))
			continue
		}
		n := *old
		n.Up = s.GetUp()
		n.Reason, n.UpdatedBy = s.GetReason(), s.GetUpdatedBy()
		n.UpdatedAt = t.r.info.Clock
		n.LastHeartbeat = max(n.LastHeartbeat, s.GetLastHeartbeat())
		e := Event{Type: EventNodeLost, Node: n.ID, Message: s.GetReason()}
		if n.Up {
			n.Fenced = false
			e.Type = EventNodeReady
		}
		t.putNode(old, &n)
		alloc := t.state().Alloc(n.ID)
		e.Details = []Label{{"workloads", strconv.Itoa(alloc.Workloads)}}
		t.event(e)
		t.rejudge(&n)
	}
	return res
}

// rejudge recomputes the status and the reason of all workloads on a node after the node's state has changed.
func (t *Tx) rejudge(n *Node) {
	for _, old := range t.workloadsOn(n.ID) {
		w := *old
		w.Retry.nodeChanged(&w, n.Up, t.r.info.Clock)
		w.Reason = t.reason(&w, n)
		if w.Retry == old.Retry && statusOf(&w, n) == old.Status && w.Reason.Code == old.Reason.Code && w.Reason.Message == old.Reason.Message {
			continue
		}
		t.putWorkload(old, &w)
	}
}

// setNodeFlag changes a flag of a node: it calls the function set on a copy of the node, then
// stores the copy and event e. If has(node) returns true, the flag is set already, and
// setNodeFlag stores nothing.
func (t *Tx) setNodeFlag(id string, has func(*Node) bool, set func(*Node), e Event) Result {
	old, ok := t.r.nodes.Get(id)
	if !ok {
		return noNode(id)
	}
	if has(old) {
		return Result{Kind: AlreadyDone}
	}
	n := *old
	set(&n)
	n.UpdatedAt = t.r.info.Clock
	t.putNode(old, &n)
	e.Node = id
	t.event(e)
	return Result{}
}

func (t *Tx) cordonNode(b *commandv1.CordonNode) Result {
	e := Event{Type: EventNodeUncordoned}
	if b.GetOn() {
		e.Type = EventNodeCordoned
	}
	return t.setNodeFlag(b.GetId(),
		func(n *Node) bool { return n.Cordoned == b.GetOn() },
		func(n *Node) { n.Cordoned = b.GetOn() }, e)
}

// drainNode marks a node as draining, so that the planner moves its workloads. Only a command with on=false
// ends the drain; a heartbeat or a registration does not. A command for a node that is draining already may change
// the deadline of its jobs.
func (t *Tx) drainNode(b *commandv1.DrainNode) Result {
	if b.GetDeadlineSeconds() > bounds.MaxDrainDeadline {
		return refuse(Invalid, "deadline_seconds %d must be at most %d", b.GetDeadlineSeconds(), bounds.MaxDrainDeadline)
	}
	jobsUntil, e := int64(0), Event{Type: EventNodeDrainEnded}
	if b.GetOn() {
		e.Type = EventNodeDraining
		if old, ok := t.r.nodes.Get(b.GetId()); ok {
			jobsUntil = old.DrainedUntil(b.DeadlineSeconds, t.r.info.Clock)
		}
		if jobsUntil > 0 {
			e.Message = "running jobs may end there until " + clockText(jobsUntil)
		}
	}
	res := t.setNodeFlag(b.GetId(),
		func(n *Node) bool { return n.Draining == b.GetOn() && n.JobsUntil == jobsUntil },
		func(n *Node) { n.Draining, n.JobsUntil = b.GetOn(), jobsUntil }, e)
	n, ok := t.r.nodes.Get(b.GetId())
	switch {
	case !ok:
	case !b.GetOn():
		t.keepOn(n.ID)
	case b.GetDiscardData():
		if bound := t.boundOn(n); len(bound) > 0 {
			t.discardOn(n, bound, CodeDraining)
			return Result{}
		}
	}
	return res
}

// DrainedUntil returns the value of JobsUntil after a drain of n begins or changes: now, in Unix nanoseconds, plus the
// deadline in seconds. A drain without a deadline (nil) keeps the present value. A drain with the deadline 0 moves
// running jobs at once.
func (n *Node) DrainedUntil(deadline *uint32, now int64) int64 {
	switch {
	case deadline == nil:
		return n.JobsUntil
	case *deadline == 0:
		return 0
	}
	return now + int64(*deadline)*1e9
}

// fenceNode records the statement of an operator that a lost node no longer runs any workload.
func (t *Tx) fenceNode(b *commandv1.FenceNode) Result {
	old, ok := t.r.nodes.Get(b.GetId())
	switch {
	case !ok:
		return noNode(b.GetId())
	case old.Up:
		return refuse(Conflict, "node %q is %s: stop it first", old.ID, old.Status())
	}
	var bound []*Workload
	if b.GetDiscardData() {
		bound = t.boundOn(old)
	}
	if old.Fenced && len(bound) == 0 {
		return Result{Kind: AlreadyDone}
	}
	n := *old
	if !old.Fenced {
		n.Fenced = true
		n.UpdatedAt = t.r.info.Clock
		t.putNode(old, &n)
		t.event(Event{Type: EventNodeFenced, Node: n.ID})
		t.clearResiduals(n.ID)
	}
	t.discardOn(&n, bound, CodeNodeLost)
	t.rejudge(&n)
	return Result{}
}

// clearResiduals removes all residuals of a node (records that it may still run a workload that
// left it).
func (t *Tx) clearResiduals(node string) {
	for _, r := range t.residualsOn(node) {
		t.dropResidual(r)
		t.settle(r.Workload)
	}
}

// removeNode removes a node. Like a fence, it states that the node no longer runs any workload, so its
// workloads are placed again.
func (t *Tx) removeNode(b *commandv1.RemoveNode) Result {
	n, ok := t.r.nodes.Get(b.GetId())
	if !ok {
		return noNode(b.GetId())
	}
	alloc := t.state().Alloc(n.ID)
	if n.Up && alloc.Workloads+alloc.Residuals > 0 && !b.GetForce() {
		return refuse(Conflict, "node %q is %s and has %d workloads and %d residuals: drain or stop it first, or use force",
			n.ID, n.Status(), alloc.Workloads, alloc.Residuals)
	}
	if bound := t.boundOn(n); len(bound) > 0 && !b.GetDiscardData() {
		which, others := "only", t.otherCopies(n.ID)
		if others != "" {
			which = "newest"
		}
		return refuse(Conflict, "node %q has the %s copy of data of %s: to start them elsewhere without it, use --discard-data%s", n.ID, which, boundText(n, bound), others)
	}
	if kept := t.keptFor(n.ID); len(kept) > 0 && !b.GetDiscardData() {
		return refuse(Conflict, "volumes of %s move from node %q, which has a copy of their data that may be needed: wait until the moves have ended, or use --discard-data", DataText(kept), n.ID)
	}
	if why := t.returnsTo(n.ID); why != "" {
		return refuse(Conflict, "workloads must return from node %q with their volumes, but %s", n.ID, why)
	}
	t.dropMovesOf(n.ID)
	for _, old := range t.workloadsOn(n.ID) {
		w := *old
		left := w.DataOn(n)
		t.release(&w, true, CodeNodeRemoved)
		w.Reason = reasonOf(&w, nil, t.r.info.Clock)
		if w.Desired == DesiredRunning {
			w.Reason = Reason{Code: CodeNodeRemoved, Message: "node " + n.ID + " was removed", At: t.r.info.Clock}
		}
		t.putWorkload(old, &w)
		t.event(Event{Type: EventWorkloadEvicted, Workload: w.ID, Node: n.ID, Reason: CodeNodeRemoved, Message: suffix("it leaves ", leftText(n, left))})
	}
	t.clearResiduals(n.ID)
	t.dropAudit(n.ID)
	t.closeDrifts(n.ID)
	t.dropSlicesOf(n.ID)
	t.dropVolumesOf(n.ID)
	t.dropNode(n)
	t.event(Event{Type: EventNodeRemoved, Node: n.ID})
	return Result{}
}
