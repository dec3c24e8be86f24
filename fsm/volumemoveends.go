package fsm

import (
	"cmp"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// This file has the ends of moves of volumes: by a user, by the planner, and when nodes are lost or removed. volumemoves.go
// has the records and the other steps.

// Command returns the command with which a person ends a move. It names a node, because other workloads may have volumes of the
// same names on other nodes.
func (m *Move) Command(end string) string {
	node := m.From
	if m.Returnable() || m.Phase == MoveDone {
		node = m.To
	}
	return "persysctl volume move " + m.Volumes[0] + " --node " + node + " --" + end
}

// endMove ends the move of a volume at the request of a user.
func (t *Tx) endMove(b *commandv1.MoveVolume, in string) Result {
	m := MoveOf(t.state(), in, b.GetName(), b.GetFrom())
	if m == nil {
		return refuse(NotFound, "no move of volume %q in namespace %q from or to node %q is in progress", clip(b.GetName()), clip(in), clip(b.GetFrom()))
	}
	switch b.GetEnd() {
	case MoveCancel:
		return t.cancelMove(m)
	case MoveSettle:
		return t.settleMove(m)
	}
	return refuse(Invalid, "end: %q is none of cancel, settle", clip(b.GetEnd()))
}

// cancelMove ends a move so that the volumes are on From.
func (t *Tx) cancelMove(m *Move) Result {
	name := m.Volumes[0]
	w, _ := t.r.workloads.Get(m.Workload)
	switch {
	case m.Open(), m.Phase == MoveKept && (!t.onTarget(m) || m.onSource(w)):
		t.undo(m, "cancelled by "+t.by)
		return Result{}
	case m.Phase == MoveUndone, m.Phase == MoveDropping:
		return Result{Kind: AlreadyDone, Reason: "the move is undone already"}
	case m.Phase == MoveDone:
		return refuse(Conflict, "node %q deletes its copy already: move the volume back instead (persysctl volume move %s --node %s --to %s)", m.From, name, m.To, m.From)
	case w == nil || w.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q was deleted, so the volume cannot return to node %q with it", m.Workload, m.From)
	case w.Node != m.To && w.Node != "":
		return refuse(Conflict, "workload %q left node %q and is on node %q, so the volume cannot return to node %q with it: delete the copy of node %q (%s)", w.ID, m.To, w.Node, m.From, m.From, m.Command(MoveSettle))
	case w.Node != "" && !w.StoppedForMove():
		return refuse(Conflict, "workload %q runs on node %q and may write to the volume: stop it first (persysctl stop %s); what it has written since the move is given up", w.ID, m.To, w.ID)
	}
	if why := t.giveBack(m, w, false, "returned by "+t.by); why != "" {
		return refuse(Conflict, "volume %q cannot return to node %q: %s", clip(name), m.From, why)
	}
	return Result{}
}

// settleMove ends a move of which the copy that is not used is kept: that copy is deleted without further proof. A move that
// is kept, and whose volumes are on From, goes on to To.
func (t *Tx) settleMove(m *Move) Result {
	w, _ := t.r.workloads.Get(m.Workload)
	switch {
	case m.Open():
		return refuse(Conflict, "the volume is still being copied: wait, or cancel the move (%s)", m.Command(MoveCancel))
	case m.Phase == MoveUndone: // a person says that From need not confirm that it has its copy
		t.step(m, MoveDropping, "settled by "+t.by)
		return Result{}
	case m.Ends():
		return Result{Kind: AlreadyDone, Reason: "the copy that is not needed is being deleted already"}
	case m.Phase == MovePlaced, t.onTarget(m) && !m.onSource(w):
		t.step(m, MoveDone, "settled by "+t.by)
		return Result{}
	case w == nil || w.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q was deleted, and node %q has no volume any more that could be used: keep the copy of node %q (%s)", m.Workload, m.To, m.From, m.Command(MoveCancel))
	case !w.StoppedForMove():
		return refuse(Conflict, "workload %q is not stopped on node %q: stop it first (persysctl stop %s)", w.ID, m.From, w.ID)
	}
	if why := t.noPlaceOn(w, m.To); why != "" {
		return refuse(Conflict, "workload %q cannot run on node %q: %s", w.ID, m.To, why)
	}
	if why := t.switchOver(m, w); why != "" {
		return refuse(Conflict, "volume %q cannot go to node %q: %s", clip(m.Volumes[0]), m.To, why)
	}
	return Result{}
}

// onSource reports whether the workload of a move is on From.
func (m *Move) onSource(w *Workload) bool {
	return w != nil && w.Node == m.From && w.Desired != DesiredDeleted
}

// onTarget reports whether the volumes of a move are on To.
func (t *Tx) onTarget(m *Move) bool {
	v, ok := t.state().Volume(m.In(), m.Volumes[0], DriverLocal, m.To)
	return ok && v.Copy == m.ID
}

// unsuited returns why a node may not get a workload although resources for the workload are reserved on the node; "" if it
// may. The planner also checks labels, constraints and taints.
func (t *Tx) unsuited(w *Workload, node string) string {
	n, ok := t.r.nodes.Get(node)
	switch {
	case !ok:
		return "node " + node + " does not exist"
	case !n.Schedulable():
		return "node " + node + " is not schedulable: it is down, cordoned or draining"
	case !n.Runs(w.Demand.Type):
		return "node " + node + " does not run type " + w.Demand.Type
	}
	return cmp.Or(t.barred(w, n), t.outside(w, n), t.networkFault(w, n))
}

// noPlaceOn returns why a workload cannot run on a node; "" if it can.
func (t *Tx) noPlaceOn(w *Workload, node string) string {
	n, ok := t.r.nodes.Get(node)
	if !ok {
		return "the node does not exist"
	}
	gone := *w
	gone.Node, gone.Desired = "", DesiredRunning
	return t.unfitBut(&gone, n, node)
}

// undo ends an open move: the volumes stay on From. If the workload was stopped for the move, it is started again.
func (t *Tx) undo(m *Move, reason string) {
	m = t.abandon(m, reason)
	old, ok := t.r.workloads.Get(m.Workload)
	if !ok || old.Node != m.From || old.Desired == DesiredDeleted {
		return
	}
	w := *old
	if m.Resume && old.Desired == DesiredStopped {
		w.Desired = DesiredRunning
	}
	// The order is new also if the workload stays stopped: it says that the move was undone.
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	t.newOrder(&w)
	t.putWorkload(old, &w)
	if w.Desired == DesiredRunning {
		t.started(&w)
	}
}

// abandon ends an open move without a change of the workload. The records of the volumes say from now on that the
// copy of From may be used although From may have set it aside.
func (t *Tx) abandon(m *Move, reason string) *Move {
	m = t.step(m, MoveUndone, reason)
	for _, name := range m.Volumes {
		if v, ok := t.state().Volume(m.In(), name, DriverLocal, m.From); ok {
			next := *v
			next.Undone = m.ID
			t.storeVolume(v, &next)
		}
	}
	return m
}

// noEmptyVolumes makes sure that From makes no empty volumes for the workload of a move. The backup that was restored is older than
// the switch, but the volumes may be on To by now. With an undone move that is older than every later one, an order says: use
// the copy that this node has, unless the node has set it aside.
func (t *Tx) noEmptyVolumes(m *Move) {
	before := m.ID
	before.Sequence--
	for _, name := range m.Volumes {
		if v, ok := t.state().Volume(m.In(), name, DriverLocal, m.From); ok && v.Undone.Less(before) {
			next := *v
			next.Undone = before
			t.storeVolume(v, &next)
		}
	}
}

// awayFrom returns why From, which keeps the former copy of a move, cannot get the workload back now; "" if it can.
func (t *Tx) awayFrom(m *Move) string {
	if n, _ := t.r.nodes.Get(m.From); n == nil || !n.Up {
		return "node " + m.From + ", which keeps the former copy, is not up: start it, or give that copy up (" + m.Command(MoveSettle) + ")"
	}
	return ""
}

// giveBack returns the volumes and the workload from To to From, which still has its copy. Writes on To since the switch
// are given up; To keeps its copy as an unused volume. gone says that To runs no instance. It returns why the return is
// not possible.
func (t *Tx) giveBack(m *Move, old *Workload, gone bool, reason string) string {
	if why := t.awayFrom(m); why != "" {
		return why
	}
	if m.Phase == MoveKept { // nothing is reserved on From
		if why := t.noPlaceOn(old, m.From); why != "" {
			return why
		}
	}
	var volumes []*Volume
	for _, name := range m.Volumes {
		v, ok := t.state().Volume(m.In(), name, DriverLocal, m.To)
		there := &Volume{Name: name, Namespace: m.Namespace, Driver: DriverLocal, Node: m.From}
		if _, taken := t.r.volumes.Get(there.key()); !ok || taken || v.Copy != m.ID {
			return "the records of volume " + quoted(name) + " have changed"
		}
		volumes = append(volumes, v)
	}
	if old.Node == "" {
		gone = true // it was evicted from To; noPlaceOn has checked that an exclusive instance is not left there
	} else if old.Node != m.To {
		return "the workload left node " + m.To
	}
	if on := t.nodeOf(old); old.Demand.Exclusive && !gone && !on.Fenced && !old.StoppedForMove() {
		return "node " + m.To + " may still run the exclusive workload"
	}
	m = t.step(m, MoveUndone, reason)
	for _, v := range volumes {
		next := *v
		next.Node, next.Copy, next.Former, next.Undone = m.From, v.Former, Generation{}, m.ID
		t.storeVolume(v, &next)
	}
	t.rebind(m, old, m.From, gone, "returned with its volumes from node "+m.To)
	return ""
}

// returnsLost returns a workload that leaves a lost node to the node from which its volumes were moved. returned is false if
// the workload has no such move. why says why the workload must wait for its return: it must not start elsewhere with an
// empty volume while a node has a copy.
func (t *Tx) returnsLost(w *Workload, gone bool) (returned bool, why string) {
	m, ok := t.r.moves.Get(w.ID)
	if !ok || !m.Returnable() || w.Node != m.To || t.nodeOf(w).Up {
		return false, ""
	}
	why = t.giveBack(m, w, gone, "node "+m.To+" is lost")
	return why == "", why
}

// dropMovesOf ends the moves in which a node takes part that is removed. It is called before the node's workloads are
// released. If only the other node has a copy, the workload returns to that node. The record stays until that node has
// taken its copy back.
func (t *Tx) dropMovesOf(node string) {
	var all []*Move
	t.state().Moves(func(m *Move) bool {
		if m.From == node || m.To == node {
			all = append(all, m)
		}
		return true
	})
	reason := "node " + node + " was removed"
	for _, m := range all {
		w, ok := t.r.workloads.Get(m.Workload)
		switch {
		case m.Open():
			t.undo(m, reason)
		case m.Returnable() && m.To == node && ok && w.Desired != DesiredDeleted:
			t.giveBack(m, w, true, reason)
		}
		if m, ok := t.r.moves.Get(m.Workload); ok && (m.From == node || m.Phase != MoveUndone && m.Phase != MoveDropping) {
			t.putMove(m, nil)
		}
	}
}

// moveIn returns a move of volumes of a namespace; nil if there is none. Copies on nodes belong to the name of the namespace,
// so a later namespace of the same name could take them over.
func (t *Tx) moveIn(namespace string) (found *Move) {
	t.state().Moves(func(m *Move) bool {
		if m.In() == namespace {
			found = m
		}
		return found == nil
	})
	return found
}

func (t *Tx) movesIn(namespace string) (count int) {
	t.state().Moves(func(m *Move) bool {
		if m.In() == namespace {
			count++
		}
		return true
	})
	return count
}

// otherCopies is the end of the refusal to remove a node: other nodes keep copies of volumes to which workloads return.
func (t *Tx) otherCopies(node string) (text string) {
	t.state().Moves(func(m *Move) bool {
		if w, ok := t.r.workloads.Get(m.Workload); m.Returnable() && m.To == node && ok && w.Node == node {
			text += "; workload " + m.Workload + " then returns to node " + m.From + ", which keeps the former copy of its volumes"
		}
		return len(text) < maxMoveWhy
	})
	return text
}

// keptFor returns the ids of the workloads of whose volumes a node has a copy that may be the only one.
func (t *Tx) keptFor(node string) (ids []string) {
	t.state().Moves(func(m *Move) bool {
		if m.From == node && !m.Ends() || m.To == node && m.Phase == MoveKept {
			ids = append(ids, m.Workload)
		}
		return true
	})
	return ids
}

// returnsTo returns why the workloads of moves to a node cannot return when that node is removed; "" if they can.
func (t *Tx) returnsTo(node string) (why string) {
	t.state().Moves(func(m *Move) bool {
		if w, ok := t.r.workloads.Get(m.Workload); m.Returnable() && m.To == node && ok && w.Node == node {
			why = t.awayFrom(m)
		}
		return why == ""
	})
	return why
}
