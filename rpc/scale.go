package rpc

import (
	"context"
	"slices"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// ScaleGroup implements the call of cluster.v1 on the leader: it changes the number of members of a group.
func (s *Server) ScaleGroup(ctx context.Context, req *clusterv1.ScaleGroupRequest) (*clusterv1.ScaleGroupResponse, error) {
	group := strings.TrimSpace(req.GetGroup())
	if group == "" {
		return nil, errorf(KindInvalid, "group must not be blank")
	}
	if req.GetCount() > spec.MaxCount {
		return nil, errorf(KindInvalid, "count: %d is not in 0..%d", req.GetCount(), spec.MaxCount)
	}
	view, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.scaling(ctx, view, group, int(req.GetCount()))
	if err != nil {
		return nil, err
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_ScaleGroup{ScaleGroup: c}})
	if err != nil {
		return nil, err
	}
	out := &clusterv1.ScaleGroupResponse{Index: r.Index, Unchanged: r.Kind == fsm.AlreadyDone}
	for _, it := range r.Items {
		if it.Deleted {
			out.RemovedWorkloadIds = append(out.RemovedWorkloadIds, it.ID)
		} else {
			out.WorkloadIds = append(out.WorkloadIds, it.ID)
		}
	}
	return out, nil
}

// scaling makes the command that sets the number of members of a group to count. The command contains the
// specifications of the members that do not exist in view yet. Whether the change is allowed, for example by the
// quota, is checked by the state machine.
func (s *Server) scaling(ctx context.Context, view fsm.View, group string, count int) (*commandv1.ScaleGroup, error) {
	c := &commandv1.ScaleGroup{Group: group, Count: uint32(count)}
	have := fsm.Members(view, group)
	if len(have) == 0 {
		return c, nil
	}
	first := have[0]
	if err := s.within(ctx, first); err != nil {
		return nil, err
	}
	c.Content = first.Content
	size := 0
	for _, id := range fsm.MemberIDs(group, count) {
		if slices.ContainsFunc(have, func(w *fsm.Workload) bool { return w.ID == id }) {
			continue
		}
		p, err := withKey(ctx, s, func() (*commandv1.WorkloadPut, error) {
			return spec.MemberLike(first, id, view.Info().ClusterID, sealer(s.cfg.Keys))
		})
		if err != nil {
			return nil, errorf(KindPrecondition, "the specification of %s cannot be copied: %w", first.ID, err)
		}
		c.Members = append(c.Members, p)
		if size += p.SizeVT(); size > spec.MaxCommand {
			return nil, errorf(KindInvalid, "count: %d new members make a command of more than %d bytes: scale in several steps", len(c.GetMembers()), spec.MaxCommand)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// suggestedScale makes the command of a suggestion to scale. If the suggestion is invalid, it returns the reason in
// mistake.
func (s *Server) suggestedScale(ctx context.Context, group, request string, sug *controlv1.AutomationSuggestion) (cmd fsm.Command, mistake string, err error) {
	view, err := s.latest(ctx)
	if err != nil {
		return nil, "", err
	}
	now := fsm.Count(fsm.Members(view, group))
	count := int(sug.GetDesiredReplicas())
	switch {
	case count == 0 && sug.GetReplicaDelta() == 0:
		return nil, "neither desired_replicas nor replica_delta is set", nil
	case count == 0:
		count = now + int(sug.GetReplicaDelta())
	}
	if count < 1 || count > spec.MaxCount {
		return nil, "a suggestion may scale to 1 to 1000 members: persysctl scale " + group + "=0 stops all of them", nil
	}
	c, err := s.scaling(ctx, view, group, count)
	if err != nil {
		return nil, "", err
	}
	c.Suggested, c.From = true, new(uint32(now))
	c.Reason = clip(strings.TrimSpace("suggested by "+sug.GetPolicyName()+": "+sug.GetReason()), 200)
	cmd = &commandv1.Command{Body: &commandv1.Command_ScaleGroup{ScaleGroup: c}}
	cmd.Head, err = s.head(ctx, request, "")
	return cmd, "", err
}
