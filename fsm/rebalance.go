package fsm

import (
	"slices"

	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/policy"
)

// Immovable returns why a workload may not be moved only to balance the load of the nodes; "" if it may. The texts
// contain no figures, so that workloads with the same reason can be counted.
func Immovable(v View, w *Workload) string {
	n, placed := v.Node(w.Node)
	switch {
	case w.IsTemplate() || w.Demand.Job != nil:
		return "it is a job or a template"
	case w.IsMember():
		return "it is a member of a system workload, which belongs to its node"
	case w.Demand.Exclusive:
		return "it is exclusive"
	case !placed || w.Desired != DesiredRunning || w.Completed():
		return "it does not run"
	case !n.Schedulable():
		return "its node is not ready, is draining or is cordoned"
	case len(w.DataOn(n)) > 0:
		return "it has local data"
	case slices.ContainsFunc(w.Demand.Asks, func(a policy.Ask) bool { return a.Rule == policy.RuleHostPath }):
		return "it can write to folders of its host"
	case w.Demand.MoveLimit().Attempts == 0:
		return "its specification forbids moves (reschedule.attempts: 0)"
	case w.Adopted != "":
		return "its node was chosen by a legacy v1 scheduler"
	case !w.Acknowledged || !w.Available():
		return "it is being updated, or is not available"
	case w.Retry.FirstFailureAt != 0:
		return "it has failed and has not run long enough since"
	case w.Reason.Code != "":
		return "it waits or is held (see persysctl why)"
	}
	return ""
}

// GroupWaits returns why no member of a group may be moved now to balance the load; "" if one may, and for group "".
func GroupWaits(v View, group string) string {
	if group == "" {
		return ""
	}
	if r, ok := v.Rollout(group); ok && r.Phase != rollout.Completed {
		return "its group is being updated"
	}
	why := ""
	v.Group(group, func(m *Workload) bool {
		if m.Desired == DesiredDeleted || m.Desired == DesiredRunning && !m.Available() {
			why = "another member of its group is not available"
		}
		return why == ""
	})
	return why
}
