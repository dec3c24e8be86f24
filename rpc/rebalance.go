package rpc

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// defaultMinGain is the smallest gain for which a workload is moved, in percent of a node's capacity, if the request
// sets no other. A smaller gain is not worth the short interruption of the workload.
const defaultMinGain = 10

// PreviewRebalance implements the call of cluster.v1: it returns the moves of workloads between nodes that would even
// out the load, and changes nothing.
func (s *Server) PreviewRebalance(ctx context.Context, req *clusterv1.PreviewRebalanceRequest) (*clusterv1.PreviewRebalanceResponse, error) {
	limits, err := balanceLimits(req.GetMaxMoves(), req.GetMinGainPercent(), sched.MaxBalanceMoves)
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	// Allow only one search for moves at a time, because a search needs much CPU time in a large cluster.
	if err := s.balancing.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer s.balancing.Release(1)
	limits.Stop = func() bool { return ctx.Err() != nil }
	b := sched.Rebalance(r.View, limits, s.cfg.Tuning)
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	out := &clusterv1.PreviewRebalanceResponse{
		Before: imbalanceView(b.Before), After: imbalanceView(b.After), Movable: uint32(b.Movable), Index: r.index,
	}
	out.Standing = standing(r.View)
	for _, m := range b.Moves {
		out.Moves = append(out.Moves, moveView(m))
	}
	for _, c := range b.Unmovable {
		out.Immovable = append(out.Immovable, &clusterv1.ImmovableWorkloads{Reason: c.Reason, Workloads: uint32(c.Workloads)})
	}
	return out, nil
}

// ApplyRebalance implements the call of cluster.v1 on the leader: it moves workloads between nodes to even out the
// load.
func (s *Server) ApplyRebalance(ctx context.Context, req *clusterv1.ApplyRebalanceRequest) (*clusterv1.ApplyRebalanceResponse, error) {
	limits, err := balanceLimits(req.GetMaxMoves(), req.GetMinGainPercent(), fsm.MaxBalanceMoves)
	if err != nil {
		return nil, err
	}
	if err := s.balancing.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer s.balancing.Release(1)
	view, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	limits.OneOfGroup, limits.Stop = true, func() bool { return ctx.Err() != nil }
	b := sched.Rebalance(view, limits, s.cfg.Tuning)
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	// Propose the command even if there are no moves: if this is a repetition of a request, its receipt (stored
	// answer) contains the moves of the first attempt.
	r, err := s.mutate(ctx, req.GetRequestId(), sched.MoveCommand(b.Moves))
	if err != nil {
		return nil, err
	}
	if view, err = s.store.At(ctx, r.Index); err != nil {
		return nil, err
	}
	out := &clusterv1.ApplyRebalanceResponse{Index: r.Index}
	for _, it := range r.Items {
		m := &clusterv1.RebalanceMove{WorkloadId: it.ID}
		if i := slices.IndexFunc(b.Moves, func(m sched.BalanceMove) bool { return m.Workload == it.ID }); i >= 0 && !r.Duplicate {
			m = moveView(b.Moves[i])
		}
		if it.Kind != fsm.OK {
			m.Reason = it.Reason
			out.Dropped = append(out.Dropped, m)
			continue
		}
		if w, ok := view.Workload(it.ID); ok && w.Moved != nil {
			m.FromNodeId, m.ToNodeId, m.GainPercent = w.Moved.From, w.Moved.To, percentOf(w.Moved.Gain)
		}
		out.Moves = append(out.Moves, m)
	}
	return out, nil
}

// standing returns "on" if the leader may now move workloads by itself to even out the load of the nodes, and otherwise
// the reason why it may not.
func standing(v fsm.View) string {
	_, waits := sched.StandingBalance(v, max(time.Now().UnixNano(), v.Info().Clock))
	return cmp.Or(waits, "on")
}

// GetRebalancePolicy implements the call of cluster.v1.
func (s *Server) GetRebalancePolicy(ctx context.Context, _ *clusterv1.GetRebalancePolicyRequest) (*clusterv1.GetRebalancePolicyResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return &clusterv1.GetRebalancePolicyResponse{Policy: rebalancePolicyView(r.Info().Rebalance), Standing: standing(r.View), Index: r.index}, nil
}

// SetRebalancePolicy implements the call of cluster.v1 on the leader.
func (s *Server) SetRebalancePolicy(ctx context.Context, req *clusterv1.SetRebalancePolicyRequest) (*clusterv1.SetRebalancePolicyResponse, error) {
	p := fsm.RebalancePolicy{PerHour: req.GetPolicy().GetPerHour(), AtOnce: req.GetPolicy().GetAtOnce(), MinGainPercent: req.GetPolicy().GetMinGainPercent()}
	if p.PerHour > 0 {
		p.AtOnce, p.MinGainPercent = cmp.Or(p.AtOnce, 1), cmp.Or(p.MinGainPercent, defaultMinGain)
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_SetRebalancePolicy{
		SetRebalancePolicy: &commandv1.SetRebalancePolicy{Policy: p.PB()},
	}})
	if err != nil {
		return nil, err
	}
	v, err := s.store.At(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	return &clusterv1.SetRebalancePolicyResponse{Policy: rebalancePolicyView(v.Info().Rebalance), Index: r.Index, Unchanged: r.Kind == fsm.AlreadyDone}, nil
}

func rebalancePolicyView(p fsm.RebalancePolicy) *clusterv1.RebalancePolicy {
	return &clusterv1.RebalancePolicy{PerHour: p.PerHour, AtOnce: p.AtOnce, MinGainPercent: p.MinGainPercent}
}

func moveView(m sched.BalanceMove) *clusterv1.RebalanceMove {
	return &clusterv1.RebalanceMove{WorkloadId: m.Workload, FromNodeId: m.From, ToNodeId: m.To, GainPercent: percentOf(m.Gain), Reason: m.Reason}
}

// balanceLimits returns the limits of a request. It refuses a max_moves above the parameter most.
func balanceLimits(moves, gain uint32, most int) (l sched.BalanceLimits, err error) {
	switch {
	case int64(moves) > int64(most):
		return l, errorf(KindInvalid, "max_moves: %d is not in 1..%d", moves, most)
	case gain > 100:
		return l, errorf(KindInvalid, "min_gain_percent: %d is not in 1..100", gain)
	}
	if moves == 0 {
		moves = uint32(most)
	}
	if gain == 0 {
		gain = defaultMinGain
	}
	return sched.BalanceLimits{Moves: int(moves), MinGain: int64(gain) * sched.WholeNode / 100, Now: time.Now().UnixNano()}, nil
}

func imbalanceView(i sched.Imbalance) *clusterv1.Imbalance {
	return &clusterv1.Imbalance{DeviationPercent: percentOf(i.Deviation), LowestPercent: percentOf(i.Low), HighestPercent: percentOf(i.High)}
}

// percentOf converts a part of a node's capacity, in the unit of sched.WholeNode, to percent.
func percentOf(parts int64) float64 { return float64(parts) * 100 / sched.WholeNode }
