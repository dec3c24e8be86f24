package fsm

import "strconv"

// statusOrder lists all statuses; a status has its counter at its position in the list.
var statusOrder = [...]Status{
	StatusPending, StatusScheduled, StatusUpdating, StatusRunning, StatusStopped,
	StatusFailed, StatusUnknown, StatusRetryPending, StatusDeleting, StatusDeleted,
}

func statusIndex(s Status) int {
	for i := range statusOrder {
		if statusOrder[i] == s {
			return i
		}
	}
	return -1
}

// statusOf derives the status of a workload from its record and its node; the node is nil if the
// workload is unplaced. Several cases may match; the first one decides.
func statusOf(w *Workload, n *Node) Status {
	running := w.Actual.State == ActualRunning
	switch {
	case w.Desired == DesiredDeleted:
		return StatusDeleting
	case w.IsTemplate() && w.Desired == DesiredRunning:
		return StatusRunning // a template has no instance; Running means that runs are created from it
	case w.Finished():
		return statusOfJob(w.Result)
	case w.Node == "" && w.Desired == DesiredStopped:
		return StatusStopped
	case w.Node == "":
		return StatusPending
	case n == nil || !n.Up:
		return StatusUnknown
	case w.Retry.NextAt > 0:
		return StatusRetryPending
	case w.Retry.Terminal && w.Retry.StableSince == 0:
		return StatusFailed
	case w.SameInstance():
		return StatusRunning
	case !w.Acknowledged && running:
		return StatusUpdating
	case !w.Acknowledged:
		return StatusScheduled
	case w.Actual.Generation != w.Generation && running:
		// The node accepted the present order, but its last report is about the previous order.
		return StatusUpdating
	case w.Actual.Generation != w.Generation:
		return StatusPending
	}
	switch w.Actual.State {
	case ActualRunning:
		return StatusRunning
	case ActualStopped:
		return StatusStopped
	case ActualFailed:
		return StatusFailed
	case ActualUnknown:
		return StatusUnknown
	case ActualMissing:
		if w.Desired == DesiredStopped {
			return StatusStopped // a missing workload does not run, so the stop has succeeded
		}
	}
	return StatusPending // no state is reported yet, or the reported state is Pending or Missing
}

// reasonOf computes the reason of a workload from its record and its node, after a change that made the
// previous reason invalid. at is the clock of the state, Unix nanoseconds.
func reasonOf(w *Workload, n *Node, at int64) Reason {
	switch {
	case w.Desired == DesiredDeleted:
		return Reason{Code: CodeDeleting, Message: "waits until the nodes have removed the workload", At: at}
	case w.Finished():
		return reasonOfJob(w.Result)
	case w.Node == "":
		if w.Desired == DesiredStopped {
			return Reason{Code: CodeUserStop, Message: "stopped by request", At: at}
		}
		return Reason{}
	case n == nil:
		return Reason{}
	case !n.Up && w.BoundByData(n):
		return Reason{Code: CodeHoldsData, Message: w.AwaitsData(n), At: at}
	case !n.Up && keepsOnLostLease(w, n) && !n.Fenced:
		return Reason{
			Code: CodeAwaitFailover,
			Message: "node " + n.ID + " is lost and may still run this exclusive workload; once it is known to be off: persysctl node fence " +
				n.ID,
			At: at,
		}
	case !n.Up && w.Demand.Exclusive && !n.Fenced:
		return Reason{Code: CodeNodeLost, Message: "the lease of node " + n.ID + " ended; its fencer has stopped this within " +
			strconv.FormatUint(uint64(n.Facts.FenceBound), 10) + " s, and then it is placed anew", At: at}
	case !n.Up:
		return Reason{Code: CodeNodeLost, Message: "the lease of node " + n.ID + " ended", At: at}
	case w.Retry.Terminal && w.Retry.Verdict.Code != "":
		return Reason{Code: w.Retry.Verdict.Code, Message: w.Retry.Verdict.Message, At: at}
	case w.Actual.State == ActualFailed && w.Acknowledged && w.Actual.Generation == w.Generation:
		return Reason{Code: w.Actual.Code, Message: w.Actual.Message, At: at, Retryable: w.Actual.Retryable}
	case w.Actual.State == ActualMissing && w.Acknowledged && w.Actual.Generation == w.Generation:
		return Reason{Code: CodeMissing, Message: "node " + n.ID + " no longer has it", At: at, Retryable: true}
	case w.Retry.Terminal:
		return Reason{Code: CodeExhausted, Message: "no attempts are left", At: at}
	case w.working():
		return Reason{Code: CodeWorking, Message: w.Actual.Message, At: at}
	case w.Desired == DesiredStopped:
		return Reason{Code: CodeUserStop, Message: "stopped by request", At: at}
	case w.Acknowledged && w.Actual.Generation == w.Generation && w.Actual.State != ActualRunning && w.Actual.Code != "":
		return Reason{Code: w.Actual.Code, Message: w.Actual.Message, At: at, Retryable: w.Actual.Retryable}
	}
	return Reason{}
}
