package sched

import (
	"fmt"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
)

// The leader moves workloads to even out the load of the nodes without a request by a person, if the cluster's
// RebalancePolicy says so (fsm.RebalancePolicy). The records of the workloads have the times of their moves, so the limits
// also hold under a new leader. See ADR 62.

// Rules of the leader's own rebalancing.
const (
	BalanceEvery    = 15 * time.Second // time between two searches
	balanceSearches = 20_000           // limit of evaluations of one search
	balanceMoveEnds = 600 * second     // a move that has not ended by then does not count as one of AtOnce any more
	balanceSettled  = 60 * second      // a workload that was placed less than this time ago is not moved
	balanceHour     = 3600 * second
)

// StandingMoves returns the moves that the leader makes now to even out the load, without a request
// by a person; it may be called once per BalanceEvery. stop is called between two evaluations of
// workloads and ends the search when it returns true.
func StandingMoves(v fsm.View, t Tuning, now int64, stop func() bool) []BalanceMove {
	l, waits := StandingBalance(v, now)
	if waits != "" {
		return nil
	}
	l.Stop = stop
	return Rebalance(v, l, t).Moves
}

// StandingBalance returns the limits of the leader's next search for moves. If the leader must not move anything now,
// waits says why; it is "off" if the policy allows no moves. now is Unix nanoseconds.
func StandingBalance(v fsm.View, now int64) (l BalanceLimits, waits string) {
	policy := v.Info().Rebalance
	if policy.PerHour == 0 {
		return l, "off"
	}
	if waits = unrest(v); waits != "" {
		return l, waits
	}
	moving, lastHour, unplaced := 0, 0, ""
	v.Workloads("", func(w *fsm.Workload) bool {
		ends := int64(0)
		if w.Moved != nil {
			if now < w.Moved.At+balanceHour {
				lastHour++
			}
			ends = w.Moved.At + balanceMoveEnds
		}
		switch {
		case now < ends && stillMoves(v, w):
			moving++
		case unplaced == "" && w.WantsPlace() && w.Demand.Job == nil:
			unplaced = w.ID
		}
		return true
	})
	switch {
	case unplaced != "":
		return l, fmt.Sprintf("waits until workload %s has a node", unplaced)
	case moving >= int(policy.AtOnce):
		return l, fmt.Sprintf("waits for the end of %d moves, the limit of the policy (at_once)", moving)
	case lastHour >= int(policy.PerHour):
		return l, fmt.Sprintf("waits, because %d workloads were moved within the last hour, the limit of the policy (per_hour)", lastHour)
	}
	return BalanceLimits{
		Moves: min(int(policy.AtOnce)-moving, int(policy.PerHour)-lastHour, fsm.MaxBalanceMoves), MinGain: int64(policy.MinGainPercent) * WholeNode / 100,
		OneOfGroup: true, Now: now, MinAge: balanceSettled, Evaluations: balanceSearches,
	}, ""
}

// stillMoves reports whether the last move of a workload has not ended.
func stillMoves(v fsm.View, w *fsm.Workload) bool {
	if w.Desired != fsm.DesiredRunning {
		return false
	}
	if w.Node == "" || !w.Available() {
		return true
	}
	left := false
	v.ResidualsOf(w.ID, func(r *fsm.Residual) bool {
		left = r.Node == w.Moved.From
		return !left
	})
	return left
}

// unrest returns why the leader must not move workloads to even out the load now, such as a running update
// or a draining node; "" if it may.
func unrest(v fsm.View) (why string) {
	if mode := v.Info().Mode; mode.Frozen() {
		return "waits for the end of mode " + string(mode)
	}
	v.Nodes("", func(n *fsm.Node) bool {
		switch {
		case n.Draining:
			why = "waits while node " + n.ID + " is draining"
		case !n.Up && !n.Fenced:
			why = "waits while node " + n.ID + " is lost; if it stays away: persysctl node remove " + n.ID
		}
		return why == ""
	})
	if why != "" {
		return why
	}
	v.Rolling(func(r *rollout.Rollout) bool {
		why = "waits for the end of the update of " + r.Group
		return false
	})
	return why
}
