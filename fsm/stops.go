package fsm

import "fmt"

// A stop is retried until it succeeds. It is never given up, because a workload that should not run must not
// go on running. If a node refuses or fails to stop a workload, it is unknown whether the workload runs. The
// workload keeps its last known state and the planner orders the stop again.

// afterRefusal returns the actual state that w gets when its node has refused to stop it.
func (w *Workload) afterRefusal() Actual {
	if w.Actual.State == ActualRunning {
		return ActualRunning
	}
	return ActualUnknown
}

// stopped reports whether the actual state means that a stop has succeeded, according to the row
// "Stopped" of the reconcile table (contract/semantics section 5).
func stopped(state Actual) bool {
	return state == ActualStopped || state == ActualMissing || state == ActualFailed
}

// Diverged reports whether the workload differs from its desired state although no further order is due.
// Either it was given up, or its node accepted the order to stop it and has not reported it as stopped. A
// user's request for the same desired state then issues a new order.
func (w *Workload) Diverged() bool {
	switch {
	case w.Node == "" || !w.Acknowledged:
		return false
	case w.Desired == DesiredRunning:
		return w.Retry.Terminal && w.Retry.StableSince == 0
	}
	return w.Desired == DesiredStopped && !(w.Actual.Generation == w.Generation && stopped(w.Actual.State))
}

// stopReason returns the reason of a workload whose stop failed; the zero Reason for other workloads.
func (t *Tx) stopReason(w *Workload, n *Node) Reason {
	if w.Desired != DesiredStopped || n == nil || !n.Up || !w.Acknowledged ||
		w.Actual.Generation != w.Generation || stopped(w.Actual.State) || w.Actual.Code == "" || w.working() {
		return Reason{}
	}
	text := fmt.Sprintf("node %s has not stopped it", n.ID)
	if w.Actual.Message != "" {
		text += ": " + w.Actual.Message
	}
	return Reason{Code: w.Actual.Code, Message: text, At: t.r.info.Clock, Retryable: true}
}

// reason returns the reason of a workload: stopReason if its stop failed, otherwise reasonOf.
func (t *Tx) reason(w *Workload, n *Node) Reason {
	if r := t.stopReason(w, n); r.Code != "" {
		return r
	}
	r := reasonOf(w, n, t.r.info.Clock)
	if m, ok := t.r.moves.Get(w.ID); ok && m.Stops() && r.Code == CodeUserStop {
		r.Code, r.Message = CodeMoving, m.stopText()
	}
	return r
}
