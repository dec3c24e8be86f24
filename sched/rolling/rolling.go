// Package rolling is the planner's pass over the groups that are updated a few members
// at a time (ADR 25). It is pure, as package sched is, and costs the members of those
// groups that an update goes through at the moment.
package rolling

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
)

// Next proposes the next step of each update that goes on. leaving are the workloads that
// the same step does something else about: they count as missing. wake is told when to look
// again, at the latest.
func Next(v fsm.View, now int64, epoch fsm.Epoch, leaving map[string]bool, wake func(at int64)) (steps []fsm.Command) {
	v.Rolling(func(r *rollout.Rollout) bool {
		d := r.Next(look(v, leaving), now)
		wake(d.WakeAt)
		if d.Idle() || d.Failure != "" && touched(r, leaving) {
			return true // a failure is judged by how things are, not by how they will be
		}
		steps = append(steps, &commandv1.Command{
			Head: &commandv1.Head{Epoch: &commandv1.Epoch{Incarnation: epoch.Incarnation, Term: epoch.Term}, At: now, By: "leader"},
			Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: &commandv1.AdvanceRollout{
				Group: r.Group, IfRollout: &commandv1.Generation{Incarnation: r.Incarnation, Sequence: r.Sequence},
				Settled: d.Settled, Take: d.Take, Complete: d.Complete, Failure: d.Failure, Revert: d.Revert,
			}},
		})
		return true
	})
	return steps
}

// Holds reports whether a workload should not be taken off a draining node yet, because an
// update of its group has as many members missing as it may. It ends with the update, which
// ends, or pauses, in its own time.
func Holds(v fsm.View, w *fsm.Workload, leaving map[string]bool) bool {
	if w.Demand.Group == "" {
		return false
	}
	r, ok := v.Rollout(w.Demand.Group)
	return ok && r.Holds(look(v, leaving), w.ID)
}

func look(v fsm.View, leaving map[string]bool) rollout.Look {
	return func(id string) rollout.Seen {
		s := v.Seen(id)
		s.Available = s.Available && !leaving[id]
		return s
	}
}

func touched(r *rollout.Rollout, leaving map[string]bool) bool {
	for i := range r.Members {
		if leaving[r.Members[i].ID] {
			return true
		}
	}
	return false
}
