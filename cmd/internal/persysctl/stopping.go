package persysctl

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// shownStatus returns the status of a workload for people. If the workload must stop but still runs, the
// status is Stopping, even if the scheduler's record says otherwise.
func shownStatus(w *controlv1.WorkloadView) string {
	if w.GetStopping() != nil && w.GetDesiredState() == "Stopped" {
		return "Stopping"
	}
	return cmp.Or(w.GetStatus(), "Unknown")
}

// shownNode returns the node of a workload. A workload that is being deleted is assigned to no node; then it
// returns the nodes that still run it.
func shownNode(w *controlv1.WorkloadView) string {
	return cmp.Or(w.GetAssignedNodeId(), strings.Join(w.GetStopping().GetNodeIds(), ","))
}

// stoppingReason returns what delays the stop or the delete of a workload. It returns "" if the workload is
// not stopping, or if the reason in the workload's record says more, for example that the node does not
// answer.
func stoppingReason(w *controlv1.WorkloadView, since, now time.Time) string {
	if w.GetStopping() == nil {
		return ""
	}
	switch w.GetReason().GetCode() {
	case "", "Deleting", "UserStop", "Working":
		return stoppingText(w.GetStopping(), since, now)
	}
	return ""
}

// ordered returns the time at which the stop was ordered; the zero time if it is not known.
func ordered(s *controlv1.Stopping) time.Time {
	if s.GetSince() == nil {
		return time.Time{}
	}
	return s.GetSince().AsTime()
}

// stoppingText describes s, the progress of a stop. If since, the time of the order, is set, the text says
// how much longer the stop may take; otherwise how long it may take in total.
func stoppingText(s *controlv1.Stopping, since, now time.Time) string {
	grace := time.Duration(s.GetGraceSeconds()) * time.Second
	switch left := since.Add(grace).Sub(now); {
	case grace == 0:
		return "waits for the instance to end"
	case since.IsZero():
		return fmt.Sprintf("waits for the instance to end; it is killed after %s", screen.Span(grace))
	case left >= time.Second:
		return fmt.Sprintf("waits for the instance to end; it is killed in %s", screen.Span(left))
	}
	return "waits for the node to report the end of the instance"
}
