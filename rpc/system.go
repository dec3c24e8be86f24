package rpc

import (
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// maxWaitingMembers is the maximum number of members of a system workload in one answer.
const maxWaitingMembers = 10

// systemMembers returns how many members of a system workload are ready or have failed, and which are not
// ready.
func (s *Server) systemMembers(v fsm.View, of *fsm.Workload) *controlv1.SystemMembers {
	out := &controlv1.SystemMembers{}
	var waiting []*controlv1.SystemMember
	sched.MemberNodes(v, of, s.cfg.Tuning, func(n *fsm.Node, w *fsm.Workload) {
		m, counts := systemMember(of, n, w)
		switch {
		case !counts:
			return
		case m == nil:
			out.Ready++
		case m.Failed:
			out.Failed++
			out.Waiting = append(out.Waiting, m)
		default:
			waiting = append(waiting, m)
		}
		out.Nodes++
	})
	out.Waiting = append(out.Waiting, waiting...)
	out.Waiting = out.Waiting[:min(len(out.Waiting), maxWaitingMembers)]
	return out
}

// systemMember returns why the member w of a system workload on node n is not ready; nil if it is ready. w is nil if
// the node has no member yet. counts is false if the member is not needed for the system workload to be ready, because
// its node is lost or a user has stopped the member.
func systemMember(of *fsm.Workload, n *fsm.Node, w *fsm.Workload) (m *controlv1.SystemMember, counts bool) {
	stopped := of.Desired != fsm.DesiredRunning
	switch {
	case !n.Up, w == nil && stopped, w != nil && w.Desired == fsm.DesiredStopped && !stopped:
		return nil, false
	case w == nil: // the reason of the system workload says why a quota refused the member
		return &controlv1.SystemMember{NodeId: n.ID, Status: string(fsm.StatusPending), ReasonCode: of.Reason.Code, ReasonMessage: of.Reason.Message}, true
	case memberReady(of, w):
		return nil, true
	}
	failed := w.Finished() || w.Status == fsm.StatusFailed && (w.Reason.Code == fsm.CodeExhausted || w.Reason.Code == fsm.CodePermanentFailure)
	return &controlv1.SystemMember{
		NodeId: n.ID, WorkloadId: w.ID, Status: string(w.Status), ReasonCode: w.Reason.Code, ReasonMessage: w.Reason.Message, Failed: failed,
	}, true
}

// memberReady reports whether a member has the specification of its system workload and is in the desired state:
// available, stopped because the system workload is stopped, or a job that has succeeded.
func memberReady(of, w *fsm.Workload) bool {
	switch {
	case w.Content != of.Content || w.Desired != of.Desired:
		return false
	case w.Desired == fsm.DesiredStopped:
		return w.Status == fsm.StatusStopped
	case w.Demand.Job != nil:
		return w.Finished() && w.Result.Succeeded
	}
	return w.Available()
}
