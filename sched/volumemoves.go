package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Limits of the phases of a move of volumes, in nanoseconds (ADR 72).
const (
	moveCopyLimit  = 24 * 3600 * second // the first copy, while the workload runs
	moveStopLimit  = 600 * second       // the stop of the workload
	moveFinalLimit = 4 * 3600 * second  // the last copy, while the workload is stopped; it reads all of the data on both nodes
	moveLostLimit  = 600 * second       // a node that takes part is lost
	moveSettle     = 60 * second        // time for which the workload must have run healthy before the former copy is deleted
	moveDropLimit  = 24 * 3600 * second // how long a node has to delete a copy
)

// States of a node's report about a move.
const (
	MoveReportCopying = "copying"
	MoveReportCopied  = "copied"  // at least one pass is complete
	MoveReportReady   = "ready"   // the copy is complete and on disk
	MoveReportFailed  = "failed"  // the copy cannot be made
	MoveReportKept    = "kept"    // the node From keeps its copy, which it may have set aside
	MoveReportHeld    = "held"    // the node From has taken its copy back into use
	MoveReportDropped = "dropped" // the node has no copy that the move does not need any more
)

// MoveReport is what a node last reported about a move of volumes.
type MoveReport struct {
	Workload          string
	Move              fsm.Generation
	State, Message    string
	Total, Done, Sent int64 // bytes of the present pass
}

// moveVolumes takes moves of volumes to their next phase.
func (p *planner) moveVolumes() {
	p.State.Moves(func(m *fsm.Move) bool {
		phase, reason, wake, ok := p.nextPhase(m)
		p.wake(wake)
		if !ok || !p.spend() {
			return true
		}
		p.mark(m.Workload)
		p.moving = append(p.moving, &commandv1.MoveStep{Workload: m.Workload, Move: fsm.GenerationPB(m.ID), Phase: string(phase), Reason: reason})
		p.note("MoveVolume", m.Workload, m.To, string(phase)+" "+reason)
		return true
	})
}

// nextPhase decides to which phase a move goes now; ok is false if it stays. wake is the time at which the move must be
// looked at again even without a change; 0 = none.
//
// It is a pure function of the state and of the reports of the nodes. Nodes repeat their reports with each heartbeat,
// so a new leader decides the same.
func (p *planner) nextPhase(m *fsm.Move) (phase fsm.MovePhase, reason string, wake int64, ok bool) {
	w, known := p.State.Workload(m.Workload)
	from := p.reportOf(m.From, m)
	to := p.reportOf(m.To, m)
	late := func(limit int64) bool {
		at := m.PhaseSince + limit
		if at > p.Now {
			wake = earlier(wake, at)
			return false
		}
		return true
	}
	lost := func(node string, limit int64) bool {
		n, ok := p.State.Node(node)
		if ok && n.Up && !p.lost[node] {
			return false
		}
		if !ok || n.Fenced {
			return true
		}
		at := max(n.UpdatedAt, m.PhaseSince) + limit
		if at > p.Now {
			wake = earlier(wake, at)
			return false
		}
		return true
	}
	if m.Open() {
		switch {
		case to.State == MoveReportFailed:
			return fsm.MoveUndone, to.Message, 0, true
		case m.Phase == fsm.MoveFinal && to.State == MoveReportReady && !lost(m.To, 0) && known && w.StoppedForMove():
			if why := p.unsuited(w, m.To); why != "" {
				return fsm.MoveUndone, why, 0, true
			}
			return fsm.MovePlaced, "", 0, true // the copy is complete, so the switch needs nothing of the former node
		case lost(m.From, moveLostLimit):
			return fsm.MoveUndone, "node " + m.From + " is lost", 0, true
		case m.Phase == fsm.MoveCopying && lost(m.To, moveLostLimit), m.Phase != fsm.MoveCopying && lost(m.To, 0):
			return fsm.MoveUndone, "node " + m.To + " is lost", 0, true
		}
	}
	switch m.Phase {
	case fsm.MoveCopying:
		if to.State == MoveReportCopied {
			if why := p.unsuited(w, m.To); known && why != "" {
				return fsm.MoveUndone, why, 0, true
			}
			return fsm.MoveStopping, "", 0, true
		}
		if late(moveCopyLimit) {
			return fsm.MoveUndone, "the copy was not complete within a day", 0, true
		}
	case fsm.MoveStopping:
		if known && w.StoppedForMove() {
			return fsm.MoveFinal, "", 0, true
		}
		if late(moveStopLimit) {
			return fsm.MoveUndone, "node " + m.From + " did not stop the workload in time", 0, true
		}
	case fsm.MoveFinal:
		if late(moveFinalLimit) {
			return fsm.MoveUndone, "the changes since the first copy were not copied in time", 0, true
		}
	case fsm.MovePlaced:
		at, runs := p.settledAt(w, m)
		if !known || !runs {
			return "", "", wake, false
		}
		if at > p.Now {
			return "", "", earlier(wake, at), false
		}
		if p.Live.Heard(m.To) >= at {
			return fsm.MoveDone, "", 0, true
		}
	case fsm.MoveUndone:
		if from.State == MoveReportHeld && !lost(m.From, 0) {
			return fsm.MoveDropping, "", 0, true
		}
	case fsm.MoveDone:
		return p.cleaned(m, m.From, from, late)
	case fsm.MoveDropping:
		return p.cleaned(m, m.To, to, late)
	}
	return "", "", wake, false
}

// unsuited returns why a node may not get the workload of a move any more: it was cordoned, drained or tainted, or its labels have
// changed since the move began. It returns "" if the node may get it. Resources are reserved on the node already.
func (p *planner) unsuited(w *fsm.Workload, node NodeID) string {
	x := p.c.nodes
	s, ok := x.slotOf[node]
	if w == nil || !ok {
		return ""
	}
	if !x.recs[s].Schedulable() {
		return "node " + node + " is not schedulable: it is down, cordoned or draining"
	}
	if r := x.static(x.pooled[w.In()], w.Demand, s); r.filter != passes {
		return x.sentence(p.State, w.Demand, s, r)
	}
	return ""
}

// cleaned removes the record of a move once its node has deleted the copy that is not needed, or has not done so in a day.
func (p *planner) cleaned(m *fsm.Move, node string, said MoveReport, late func(int64) bool) (fsm.MovePhase, string, int64, bool) {
	if _, ok := p.State.Node(node); !ok || said.State == MoveReportDropped {
		return "", "", 0, true
	}
	if late(moveDropLimit) {
		return "", "node " + node + " did not confirm that it has deleted its copy of volume " + fsm.DataText(m.Volumes), 0, true
	}
	return "", "", m.PhaseSince + moveDropLimit, false
}

// settledAt returns when the workload of a move has run healthy on the new node for long enough. runs is false if it does
// not run healthy now, or if the node is not up. The former copy is deleted only if that node has also sent a heartbeat after
// that time: a node that died a moment ago is still up in the state, and its disk may be lost.
func (p *planner) settledAt(w *fsm.Workload, m *fsm.Move) (at int64, runs bool) {
	n, ok := p.State.Node(m.To)
	if w == nil || !ok || !n.Up || p.lost[m.To] || w.Node != m.To || m.RunsSince == 0 || !w.RunsWell() {
		return 0, false
	}
	return max(m.RunsSince, n.UpdatedAt) + moveSettle, true
}

// canReturn reports whether the workload of a move, whose node is lost, can return to the node that keeps the former copy.
func (p *planner) canReturn(m *fsm.Move) bool {
	n, ok := p.State.Node(m.From)
	return ok && n.Up && !p.lost[m.From] && p.reportOf(m.From, m).State == MoveReportKept
}

// reportOf returns the last report of a node about a move; zero if there is none, or if it is about another move.
func (p *planner) reportOf(node string, m *fsm.Move) MoveReport {
	r, ok := p.Live.MoveReport(node, m.Workload)
	if !ok || r.Move != m.ID {
		return MoveReport{}
	}
	return r
}

// WhyNot returns why the planner would not choose a node for a workload; "" if it could.
func WhyNot(v fsm.View, w *fsm.Workload, node NodeID, t Tuning) string {
	for _, x := range Explain(v, w, t).Nodes {
		if x.Node == node && !x.Fits {
			return x.Reason
		}
	}
	return ""
}
