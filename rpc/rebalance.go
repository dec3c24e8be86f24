package rpc

import (
	"context"

	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/sched"
)

// defaultMinGain is the smallest gain for which a workload is moved, in percent of a node's capacity, if the request
// sets no other. A smaller gain is not worth the short interruption of the workload.
const defaultMinGain = 10

// PreviewRebalance implements the call of cluster.v1.
func (s *Server) PreviewRebalance(ctx context.Context, req *clusterv1.PreviewRebalanceRequest) (*clusterv1.PreviewRebalanceResponse, error) {
	limits, err := balanceLimits(req.GetMaxMoves(), req.GetMinGainPercent())
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	// One search at a time: it costs much CPU in a large cluster.
	if err := s.balancing.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer s.balancing.Release(1)
	b := sched.Rebalance(r.View, limits, s.cfg.Tuning)
	out := &clusterv1.PreviewRebalanceResponse{
		Before: imbalanceView(b.Before), After: imbalanceView(b.After), Movable: uint32(b.Movable), Index: r.index,
	}
	for _, m := range b.Moves {
		out.Moves = append(out.Moves, &clusterv1.RebalanceMove{
			WorkloadId: m.Workload, FromNodeId: m.From, ToNodeId: m.To, GainPercent: percentOf(m.Gain), Reason: m.Reason,
		})
	}
	for _, c := range b.Unmovable {
		out.Immovable = append(out.Immovable, &clusterv1.ImmovableWorkloads{Reason: c.Reason, Workloads: uint32(c.Workloads)})
	}
	return out, nil
}

// balanceLimits returns the limits of a request.
func balanceLimits(moves, gain uint32) (l sched.BalanceLimits, err error) {
	switch {
	case moves > sched.MaxBalanceMoves:
		return l, errorf(KindInvalid, "max_moves: %d is not in 1..%d", moves, sched.MaxBalanceMoves)
	case gain > 100:
		return l, errorf(KindInvalid, "min_gain_percent: %d is not in 1..100", gain)
	}
	if moves == 0 {
		moves = sched.MaxBalanceMoves
	}
	if gain == 0 {
		gain = defaultMinGain
	}
	return sched.BalanceLimits{Moves: int(moves), MinGain: int64(gain) * sched.WholeNode / 100}, nil
}

func imbalanceView(i sched.Imbalance) *clusterv1.Imbalance {
	return &clusterv1.Imbalance{DeviationPercent: percentOf(i.Deviation), LowestPercent: percentOf(i.Low), HighestPercent: percentOf(i.High)}
}

// percentOf converts parts of a node into percent.
func percentOf(parts int64) float64 { return float64(parts) * 100 / sched.WholeNode }
