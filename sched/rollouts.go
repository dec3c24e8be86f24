package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
)

// rollOut proposes the next step of each update that runs or waits for its promotion. Its cost grows with the number
// of members of the groups that are being updated. Members that this step already moves are treated as unavailable.
func (p *planner) rollOut() {
	p.State.Rolling(func(r *rollout.Rollout) bool {
		d := r.Next(p.lookAt, p.Now)
		p.wake(d.WakeAt)
		if d.Idle() || d.Failure != "" && p.moves(r) {
			return true // judge a failed update by the present state, not by the moves of this step
		}
		p.rollouts = append(p.rollouts, &commandv1.Command{
			Head: p.sharedHead(),
			Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: &commandv1.AdvanceRollout{
				Group: r.Group, IfRollout: &commandv1.Generation{Incarnation: r.Incarnation, Sequence: r.Sequence},
				Settled: d.Settled, Take: d.Take, Complete: d.Complete, Failure: d.Failure, Revert: d.Revert, AwaitPromotion: d.Await,
			}},
		})
		return true
	})
}

// heldByRollout reports whether a workload must not leave a draining or tainted node yet, because the update
// of its group already has as many unavailable members as it permits.
func (p *planner) heldByRollout(w *fsm.Workload) bool {
	if w.Demand.Group == "" {
		return false
	}
	r, ok := p.State.Rollout(w.Demand.Group)
	return ok && r.Holds(p.lookAt, w.ID)
}

// lookAt returns the state of a member for a rollout. A member that this step moves is reported as
// unavailable.
func (p *planner) lookAt(id string) rollout.Seen {
	s := p.State.Seen(id)
	s.Available = s.Available && !p.done[id]
	return s
}

// moves reports whether this step already takes a member of the group of rollout r off its node.
func (p *planner) moves(r *rollout.Rollout) bool {
	for i := range r.Members {
		if p.done[r.Members[i].ID] {
			return true
		}
	}
	return false
}
