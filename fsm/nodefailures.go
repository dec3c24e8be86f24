package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/policy"
)

// A workload that its node cannot run, for a cause of that node, may be moved to another node. The planner decides
// whether to move the workload (sched/elsewhere.go). The record of the workload remembers the nodes that it left,
// so that it does not return to them soon, and so that the moves can be counted.

// NodeFailure says that a workload left a node because the node could not run it, for a cause of
// the node such as a full disk.
type NodeFailure struct {
	Node          string
	Code, Message string // as the agent reported them
	At            int64  // when the workload left the node, Unix nanoseconds
}

// Reschedule limits how often a workload is moved because its node cannot run it: at most Attempts times within
// Interval nanoseconds. For Interval, the workload also avoids the nodes that it left.
type Reschedule struct {
	Attempts int32
	Interval int64
}

// MaxNodeFailures is the largest number of nodes that a record remembers.
const MaxNodeFailures = bounds.MaxMoves

const maxFailureMessage = 256 // bytes

// The limit of moves off failing nodes if the specification has no reschedule.
const (
	DefaultMoves       = 3
	DefaultMovesWithin = 3600 * int64(1e9)
)

// MoveLimit returns how often a workload with this demand may be moved because its node cannot run it. A workload
// that can write to folders of its host is moved only if its specification has a limit: on another node it would
// start without its data.
func (d *Demand) MoveLimit() Reschedule {
	switch {
	case d.Reschedule != nil:
		return *d.Reschedule
	case slices.ContainsFunc(d.Asks, func(a policy.Ask) bool { return a.Rule == policy.RuleHostPath }):
		return Reschedule{0, DefaultMovesWithin}
	}
	return Reschedule{DefaultMoves, DefaultMovesWithin}
}

// FailsOnNode reports whether the node of w has reported that it cannot run w for a cause of the
// node, and that no instance of w runs on the node.
func (w *Workload) FailsOnNode() bool {
	return w.Desired == DesiredRunning && w.Node != "" && w.Acknowledged && w.Actual.Generation == w.Generation &&
		w.Actual.TryElsewhere && w.Actual.State != ActualRunning && !w.Retry.Terminal
}

// LeftSince returns the nodes that w has left after time at because they could not run it. The node
// that w left first comes first.
func (w *Workload) LeftSince(at int64) []NodeFailure {
	i := slices.IndexFunc(w.FailedOn, func(f NodeFailure) bool { return f.At > at })
	if i < 0 {
		return nil
	}
	return w.FailedOn[i:]
}

// noMove returns why w may not be moved at time at (Unix nanoseconds) off its node, which cannot run it;
// "" if it may.
func (w *Workload) noMove(at int64) string {
	switch limit := w.Demand.MoveLimit(); {
	case !w.FailsOnNode():
		return "node " + w.Node + " does not report any more that it cannot run workload " + quoted(w.ID)
	case w.Demand.Exclusive:
		return "workload " + quoted(w.ID) + " is exclusive and keeps its node"
	case w.IsMember():
		return "workload " + quoted(w.ID) + " is a member of a system workload and keeps its node"
	case len(w.LeftSince(at-limit.Interval)) >= int(limit.Attempts):
		return "workload " + quoted(w.ID) + " was moved as often as its limit allows"
	}
	return ""
}

// leftFailing returns the list w.FailedOn (the nodes that w left because they could not run it) with its present
// node added; at is the time of the move.
func (w *Workload) leftFailing(at int64) []NodeFailure {
	f := NodeFailure{w.Node, clipTo(w.Actual.Code, 64), clipTo(w.Actual.Message, maxFailureMessage), at}
	kept := w.FailedOn[max(0, len(w.FailedOn)+1-MaxNodeFailures):]
	return append(slices.Clone(kept), f)
}

func nodeFailureOf(m *commandv1.NodeFailure) NodeFailure {
	return NodeFailure{m.GetNode(), m.GetCode(), m.GetMessage(), m.GetAt()}
}

func nodeFailurePB(f NodeFailure) *commandv1.NodeFailure {
	return &commandv1.NodeFailure{Node: f.Node, Code: f.Code, Message: f.Message, At: f.At}
}

func rescheduleOf(m *commandv1.Reschedule) *Reschedule {
	if m == nil {
		return nil
	}
	return &Reschedule{m.GetAttempts(), m.GetInterval()}
}

func reschedulePB(r *Reschedule) *commandv1.Reschedule {
	if r == nil {
		return nil
	}
	return &commandv1.Reschedule{Attempts: r.Attempts, Interval: r.Interval}
}

func (r *Reschedule) equal(o *Reschedule) bool {
	if r == nil || o == nil {
		return r == o
	}
	return *r == *o
}

// reschedule encodes the optional limit of moves. The word "reschedule" before it marks the optional field.
func (e *encoder) reschedule(r *Reschedule) {
	if r != nil {
		e.str("reschedule")
		e.i64(int64(r.Attempts))
		e.i64(r.Interval)
	}
}

// failedOn encodes, for the digest, the nodes that a workload left because they could not run it. It adds no bytes
// for an empty list, so that other workloads keep the digest that earlier versions computed.
func (e *encoder) failedOn(list []NodeFailure) {
	if len(list) == 0 {
		return
	}
	e.str("failed on")
	e.u64(uint64(len(list)))
	for _, f := range list {
		e.str(f.Node)
		e.str(f.Code)
		e.str(f.Message)
		e.i64(f.At)
	}
}
