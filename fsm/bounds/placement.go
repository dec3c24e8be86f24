package bounds

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Limits of the placement rules of one workload.
const (
	MaxSpread     = 4    // spread rules
	MaxAffinities = 16   // affinity and anti-affinity rules together
	MaxTags       = 16   // tags of one workload
	MaxSkew       = 1000 // largest difference that a spread rule may allow
	MaxWeight     = 100  // highest weight of a preferred affinity
)

// Limits of the field reschedule of a specification, which limits how often the workload moves off nodes that
// cannot run it.
const (
	MaxMoves       = 10
	MinMovesWithin = 60         // seconds
	MaxMovesWithin = 30 * 86400 // seconds
)

// rescheduleFault describes the first invalid field of r, which limits how often a workload is moved off failing nodes;
// "" if all are valid.
func rescheduleFault(r *commandv1.Reschedule) string {
	switch within := r.GetInterval() / 1e9; {
	case r == nil:
	case r.GetAttempts() < 0 || r.GetAttempts() > MaxMoves:
		return fmt.Sprintf("demand.reschedule.attempts: %d is not in 0..%d", r.GetAttempts(), MaxMoves)
	case within < MinMovesWithin || within > MaxMovesWithin:
		return fmt.Sprintf("demand.reschedule.interval: %d s is not in %d..%d", within, MinMovesWithin, MaxMovesWithin)
	}
	return ""
}

// placementFault describes the first invalid placement rule of a demand (spread, affinity, tags, policy); "" if all are
// valid.
func placementFault(d *commandv1.Demand) string {
	p := d.GetPlacement()
	switch {
	case len(p.GetSpread()) > MaxSpread:
		return fmt.Sprintf("demand.placement.spread: has %d entries, at most %d", len(p.GetSpread()), MaxSpread)
	case len(p.GetAffinities()) > MaxAffinities:
		return fmt.Sprintf("demand.placement.affinities: has %d entries, at most %d", len(p.GetAffinities()), MaxAffinities)
	case len(d.GetTags()) > MaxTags:
		return fmt.Sprintf("demand.tags: has %d entries, at most %d", len(d.GetTags()), MaxTags)
	}
	switch p.GetPolicy() {
	case "", "spread", "binpack":
	default:
		return fmt.Sprintf("demand.placement.policy: %.64q is none of spread, binpack", p.GetPolicy())
	}
	for i, s := range p.GetSpread() {
		if s.GetMaxSkew() < 1 || s.GetMaxSkew() > MaxSkew {
			return fmt.Sprintf("demand.placement.spread[%d].max_skew: %d is not in 1..%d", i, s.GetMaxSkew(), MaxSkew)
		}
		if s.GetBy() == "" {
			return fmt.Sprintf("demand.placement.spread[%d].by: must not be empty", i)
		}
	}
	for i, a := range p.GetAffinities() {
		at := fmt.Sprintf("demand.placement.affinities[%d]", i)
		targets := 0
		for _, set := range []bool{a.GetNode().GetKey() != "", a.GetWorkload() != "", a.GetGroup() != "", a.GetTag().GetKey() != ""} {
			if set {
				targets++
			}
		}
		switch {
		case targets != 1:
			return fmt.Sprintf("%s: has %d targets, must have one of node, workload, group, tag", at, targets)
		case a.GetNode() != nil && !validOp(a.GetNode().GetOp()):
			return fmt.Sprintf("%s.node.op: %.64q is none of =, !=, in, not-in, exists, not-exists", at, a.GetNode().GetOp())
		case (a.GetNode() != nil) != (a.GetBy() == ""):
			return at + ".by: must be set for the targets workload, group and tag, and must be empty for the target node"
		case a.GetMust() != (a.GetWeight() == 0) || a.GetWeight() > MaxWeight:
			return fmt.Sprintf("%s.weight: %d is not 0 (must) or 1..%d (preferred)", at, a.GetWeight(), MaxWeight)
		}
	}
	return ""
}
