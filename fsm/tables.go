package fsm

import (
	"cmp"
	"slices"
	"strings"
)

// Only this file writes the tables of records. Each setter stores one record, updates the index entries that
// differ, and appends the Change to the changes of the transaction.

// putWorkload stores w and its index entries. old is the record that w replaces; it is nil for a new
// workload. putWorkload sets Status, UpdatedAt and ModifyIndex of w.
func (t *Tx) putWorkload(old, w *Workload) {
	var n *Node
	if w.Node != "" {
		n, _ = t.r.nodes.Get(w.Node)
		w.PreemptedBy = ""
	}
	if old != nil && (old.Node != w.Node || old.Content != w.Content) {
		w.Adopted = "" // an adopted revision is valid for one content on one node
	}
	w.Status = statusOf(w, n)
	w.UpdatedAt = t.r.info.Clock
	w.ModifyIndex = t.meta.Index
	own(t, &t.r.workloads, ownWorkloads).Set(w.ID, w)
	if n != nil && len(w.Demand.Networks) > 0 && (old == nil || old.Node != w.Node || old.Demand != w.Demand || old.Generation != w.Generation) {
		t.slicesFor(w, n)
	}
	t.referOf(old, w)
	t.reindex(old, w)
	if old == nil {
		t.dropTombstone(w.ID) // a new record replaces the tombstone: LeftOn compares reports with the generation of the record
	}
	t.changes = append(t.changes, Change{Table: TableWorkload, Key: w.ID, Old: old, New: w})
	if old != nil && old.Node != "" && (old.Node != w.Node || old.Demand != w.Demand) {
		t.emptied(old.Node, old.Demand.Networks)
	}
	t.followVolumes(old, w)
	t.followMove(old, w)
	t.serve(old, w)
	t.publish(old, w)
}

// dropWorkload removes the record of a workload for good and stores a tombstone, by which later
// reports about the workload are recognised.
func (t *Tx) dropWorkload(w *Workload) {
	own(t, &t.r.workloads, ownWorkloads).Delete(w.ID)
	t.reindex(w, nil)
	t.referOf(w, nil)
	t.emptied(w.Node, w.Demand.Networks)
	t.serve(w, nil)
	t.publish(w, nil)
	t.changes = append(t.changes, Change{Table: TableWorkload, Key: w.ID, Old: w})
	t.addTombstone(w)
	t.disband(w)
	t.followVolumes(w, nil)
	t.followMove(w, nil)
	t.event(Event{Type: EventWorkloadDeleted, Workload: w.ID, Node: w.Node, Namespace: w.Namespace})
}

// putNode stores n. What workloads and residuals (instances still to be removed) reserve is
// recorded under the engine and the storage pool of their node, so if one of these changed, putNode
// records it anew.
func (t *Tx) putNode(old, n *Node) {
	n.ModifyIndex = t.meta.Index
	n.merge()
	moved := old != nil && (old.Engine() != n.Engine() || old.pool("") != n.pool(""))
	if moved {
		t.claimsOf(old, -1)
	}
	own(t, &t.r.nodes, ownNodes).Set(n.ID, n)
	t.changes = append(t.changes, Change{Table: TableNode, Key: n.ID, Old: old, New: n})
	t.networkingChanged(old, n)
	t.ingressChanged(old, n)
	if moved {
		t.moveResiduals(n)
		t.claimsOf(n, +1)
	}
}

// moveResiduals sets the new engine of a node in its residuals (records of instances that it must
// remove). The caller removes the port claims of the residuals before, and adds them again
// afterwards.
func (t *Tx) moveResiduals(n *Node) {
	for _, old := range t.residualsOn(n.ID) {
		if old.Engine == n.Engine() {
			continue
		}
		r := *old
		r.Engine = n.Engine()
		own(t, &t.r.residuals, ownResiduals).Set(pair(r.Node, r.Workload), &r)
		t.changes = append(t.changes, Change{Table: TableResidual, Key: pair(r.Node, r.Workload), Old: old, New: &r})
	}
}

// dropNode removes the record of a node. No workload may be assigned to the node, and it may have
// no residual (instance to remove).
func (t *Tx) dropNode(n *Node) {
	own(t, &t.r.nodes, ownNodes).Delete(n.ID)
	t.changes = append(t.changes, Change{Table: TableNode, Key: n.ID, Old: n})
}

// putResidual stores a residual, the record of an instance that a node must remove. It replaces a
// residual of the same workload on the same node.
func (t *Tx) putResidual(r *Residual) {
	key := pair(r.Node, r.Workload)
	n, _ := t.r.nodes.Get(r.Node)
	old, ok := own(t, &t.r.residuals, ownResiduals).Set(key, r)
	if ok {
		t.claimResidual(old, n, -1)
	} else {
		own(t, &t.r.residualsOf, ownResidualsOf).Set(pair(r.Workload, r.Node), struct{}{})
	}
	t.claimResidual(r, n, +1)
	t.changes = append(t.changes, Change{Table: TableResidual, Key: key, Old: old, New: r})
	t.joined(r.Node, r.Demand.Networks)
}

// dropResidual removes a residual (the record of an instance that a node had to remove). The caller
// then calls settle, which removes the record of a deleted workload that has no residual left.
func (t *Tx) dropResidual(r *Residual) {
	key := pair(r.Node, r.Workload)
	n, _ := t.r.nodes.Get(r.Node)
	own(t, &t.r.residuals, ownResiduals).Delete(key)
	own(t, &t.r.residualsOf, ownResidualsOf).Delete(pair(r.Workload, r.Node))
	t.claimResidual(r, n, -1)
	t.changes = append(t.changes, Change{Table: TableResidual, Key: key, Old: r})
	t.emptied(r.Node, r.Demand.Networks)
	t.leaveResidual(r)
}

// settle removes the record of a deleted workload once no node may still run an instance of it (it
// has no residual).
func (t *Tx) settle(id string) {
	w, ok := t.r.workloads.Get(id)
	if ok && w.Desired == DesiredDeleted && !t.hasResidual(id) {
		t.dropWorkload(w)
	}
}

func (t *Tx) putReplicaRecord(r *Replica) {
	old, _ := own(t, &t.r.replicas, ownReplicas).Set(r.ID, r)
	t.changes = append(t.changes, Change{Table: TableReplica, Key: r.ID, Old: old, New: r})
}

func (t *Tx) dropReplica(r *Replica) {
	own(t, &t.r.replicas, ownReplicas).Delete(r.ID)
	t.changes = append(t.changes, Change{Table: TableReplica, Key: r.ID, Old: r})
}

// infoChanged appends a Change of Info if more than its index, term, clock and counters changed.
func (t *Tx) infoChanged(old Info) {
	now := t.r.info
	t.changes = append(t.changes, Change{Table: TableInfo, Old: &old, New: &now})
}

const (
	// MaxEvents is the number of events that are kept. The oldest are dropped.
	MaxEvents = 10_000
	// MaxEventMessage is the maximum size of the message of an event in bytes; longer messages are cut. With
	// MaxEvents it bounds the memory of all events.
	MaxEventMessage = 4 << 10
)

// event appends one event. It sets Seq, Index, At and By, and the namespace of an existing
// workload.
func (t *Tx) event(e Event) {
	if e.Workload != "" && e.Namespace == "" {
		if w, ok := t.r.workloads.Get(e.Workload); ok {
			e.Namespace = w.Namespace
		}
	}
	t.addEvent(e)
}

// eventOf appends one event about w, for a caller that has the stored record.
func (t *Tx) eventOf(w *Workload, e Event) {
	e.Workload, e.Namespace = w.ID, w.Namespace
	t.addEvent(e)
}

func (t *Tx) addEvent(e Event) {
	t.r.info.EventSeq++
	e.Seq, e.Index, e.At, e.By = t.r.info.EventSeq, t.meta.Index, t.r.info.Clock, t.by
	if len(e.Message) > MaxEventMessage {
		e.Message = strings.Clone(clipTo(e.Message, MaxEventMessage)) // copied, so that the memory of the uncut message can be freed
	}
	if t.caller != "" && t.via == "" && len(e.Details) == 0 {
		if t.origin == nil {
			t.origin = []Label{{"from", t.caller}}
		}
		e.Details = t.origin // several events may share this list, because an event never changes
	} else if t.caller != "" {
		e.detail("from", t.caller)
	}
	if t.via != "" {
		e.detail("via", t.via)
	}
	if t.owned&ownEvents == 0 {
		t.r.events = t.r.events.Copy()
		t.owned |= ownEvents
	}
	t.addAudit(&e)
	kept := t.r.events.Append(e)
	t.r.events.Drop(MaxEvents)
	t.changes = append(t.changes, Change{Table: TableEvent, New: kept})
}

// detail adds a label to the details of an event, which are sorted by key. It copies the list
// first, because other events may share the list.
func (e *Event) detail(key, value string) {
	i, _ := slices.BinarySearchFunc(e.Details, key, func(l Label, k string) int { return cmp.Compare(l.Key, k) })
	e.Details = slices.Insert(slices.Clone(e.Details), i, Label{key, value})
}

// state returns a read-only view of the state after the changes of the transaction so far.
func (t *Tx) state() State { return State{&t.r} }

func (t *Tx) hasResidual(workload string) bool {
	found := false
	t.state().ResidualsOf(workload, func(*Residual) bool { found = true; return false })
	return found
}

// residualsOn and workloadsOn return the instances that a node must remove, and the workloads assigned to it,
// as a list, because a tree must not change while it is scanned.
func (t *Tx) residualsOn(node string) (out []*Residual) {
	t.state().Residuals(node, func(r *Residual) bool { out = append(out, r); return true })
	return out
}

func (t *Tx) workloadsOn(node string) (out []*Workload) {
	t.state().WorkloadsOn(node, func(w *Workload) bool { out = append(out, w); return true })
	return out
}
