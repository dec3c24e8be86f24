package rpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/spec"
)

// rolling adds the id of the unfinished rollout (rolling update) to the answer to an apply, if the specification has
// an update policy.
func (s *Server) rolling(req *controlv1.ApplyWorkloadRequest, resp *controlv1.ApplyWorkloadResponse) {
	if resp == nil || !resp.GetSuccess() || req.GetSpec().GetUpdate() == nil {
		return
	}
	if r, ok := s.store.View().Rollout(strings.TrimSpace(req.GetWorkloadId())); ok && r.Phase != rollout.Completed {
		resp.Rollout = wire.Control(fsm.RolloutID(r))
	}
}

// GetRollout implements the call of cluster.v1: it returns the last rollout (rolling update) of a group.
func (s *Server) GetRollout(ctx context.Context, req *clusterv1.GetRolloutRequest) (*clusterv1.GetRolloutResponse, error) {
	group := strings.TrimSpace(req.GetGroup())
	if group == "" {
		return nil, errorf(KindInvalid, "group must not be blank")
	}
	v, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	r, ok := v.Rollout(group)
	if !ok {
		return nil, errorf(KindNotFound, "group %q has no rollout: set `update` in a specification with a count to update member by member", group)
	}
	out := &clusterv1.GetRolloutResponse{
		Group: group, Id: wire.Control(fsm.RolloutID(r)), Phase: string(r.Phase), Reason: r.Reason,
		Update:    spec.UpdateStrategy(r.Policy),
		Reverting: r.Reverting, CanUndo: fsm.UndoFault(v, r) == "", By: r.By, Index: v.index, StartedAt: timestamppb.New(time.Unix(0, r.StartedAt)),
	}
	if r.EndedAt != 0 {
		out.EndedAt = timestamppb.New(time.Unix(0, r.EndedAt))
	}
	if d := r.Next(v.Seen, v.Info().Clock); r.Active() && d.Waits != "" {
		out.Reason = strings.TrimPrefix(out.Reason+"; waits for "+d.Waits, "; ")
	}
	for i := range r.Members {
		m := &r.Members[i]
		x := &clusterv1.RolloutMember{WorkloadId: m.ID, State: m.State(v.Seen(m.ID)), Surge: m.Surge, Canary: m.Canary}
		if w, ok := v.Workload(m.ID); ok {
			if err := s.within(ctx, w); err != nil {
				return nil, err
			}
			x.Status, x.NodeId, x.RevisionId, x.Reason = string(w.Status), w.Node, w.Revision(), w.Reason.Message
			if w.Actual.Health != "" && w.Status == fsm.StatusRunning {
				x.Status += " (" + w.Actual.Health + ")"
			}
		}
		out.Members = append(out.Members, x)
	}
	return out, nil
}

// SetRollout implements the call of cluster.v1 on the leader: it pauses, continues, promotes or reverts a rollout.
func (s *Server) SetRollout(ctx context.Context, req *clusterv1.SetRolloutRequest) (*clusterv1.SetRolloutResponse, error) {
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_SetRollout{
		SetRollout: &commandv1.SetRollout{Group: strings.TrimSpace(req.GetGroup()), Action: req.GetAction()},
	}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.SetRolloutResponse{Index: r.Index, Unchanged: r.Kind == fsm.AlreadyDone}, nil
}
