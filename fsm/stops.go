package fsm

import "fmt"

// A stop converges as a start does. That a node refused to stop
// a workload, or failed to, says nothing of what it runs: the workload is as it was
// known before, and the planner orders the stop again. It is never given up: what
// is not wanted and runs on is not settled by a verdict.

// afterRefusal is the state of a workload whose node refused the order to stop it.
func (w *Workload) afterRefusal() Actual {
	if w.Actual.State == ActualRunning {
		return ActualRunning
	}
	return ActualUnknown
}

// stopped reports whether the order to stop w is carried out, or there is nothing
// to stop: the row "Stopped" of the reconcile table (contract/semantics section 5).
func stopped(state Actual) bool {
	return state == ActualStopped || state == ActualMissing || state == ActualFailed
}

// Diverged reports whether a person who asks once more for what w is to be, running
// or stopped, is not to be told that it is done: it was given up, or its node
// accepted the order to stop it and has not said that it is stopped.
func (w *Workload) Diverged() bool {
	switch {
	case w.Node == "" || !w.Acknowledged:
		return false
	case w.Desired == DesiredRunning:
		return w.Retry.Terminal && w.Retry.StableSince == 0
	}
	return w.Desired == DesiredStopped && !(w.Actual.Generation == w.Generation && stopped(w.Actual.State))
}

// stopReason replaces the reason of a workload that is to be stopped and is not,
// for something went wrong; it is "" where that is not so.
func (t *Tx) stopReason(w *Workload, n *Node) Reason {
	if w.Desired != DesiredStopped || n == nil || !n.Up || !w.Acknowledged ||
		w.Actual.Generation != w.Generation || stopped(w.Actual.State) || w.Actual.Code == "" {
		return Reason{}
	}
	text := fmt.Sprintf("node %s has not stopped it", n.ID)
	if w.Actual.Message != "" {
		text += ": " + w.Actual.Message
	}
	return Reason{Code: w.Actual.Code, Message: text, At: t.r.info.Clock, Retryable: true}
}

// reason is reasonOf, and stopReason where there is one.
func (t *Tx) reason(w *Workload, n *Node) Reason {
	if r := t.stopReason(w, n); r.Code != "" {
		return r
	}
	return reasonOf(w, n, t.r.info.Clock)
}
