package persysctl

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func (f *fake) GetRollout(_ context.Context, req *clusterv1.GetRolloutRequest) (*clusterv1.GetRolloutResponse, error) {
	if req.GetGroup() == "nothing" {
		return nil, status.Errorf(codes.NotFound, "get rollout: group %q has not been updated member by member: that takes `update` in a specification with a count", req.GetGroup())
	}
	out := &clusterv1.GetRolloutResponse{
		Group: req.GetGroup(), Id: &controlv1.Generation{Incarnation: 1, Sequence: 9}, Phase: "Running", Reason: "waits for web-1 to be healthy for 10 s",
		Update: &controlv1.UpdateStrategy{MaxParallel: 1, MinHealthyTimeSeconds: 10, HealthyDeadlineSeconds: 300}, CanUndo: true,
		StartedAt: before(time.Minute), By: "persys:///user/olga", Index: 42, Members: []*clusterv1.RolloutMember{
			{WorkloadId: "web-0", State: "Updated", Status: "Running (healthy)", NodeId: "node-a", RevisionId: "c1-2222222222222222"},
			{WorkloadId: "web-1", State: "Updating", Status: "Running (starting)", NodeId: "node-b", RevisionId: "c1-2222222222222222"},
			{WorkloadId: "web-2", State: "Waiting", Status: "Running (healthy)", NodeId: "node-c", RevisionId: "c1-1111111111111111"},
		},
	}
	f.mu.Lock()
	f.rolls++
	looks := f.rolls
	f.mu.Unlock()
	switch {
	case req.GetGroup() == "stuck":
		out.Phase, out.Reason = "Paused", "stuck-1 was given up: RetriesExhausted"
	case req.GetGroup() == "fresh":
		out.Phase, out.Reason = "AwaitPromotion", "waits for its promotion: persysctl rollout promote fresh, or abort"
		out.Update.Order, out.Update.Canary = "start-first", 1
		for i, m := range out.GetMembers() {
			m.WorkloadId, m.State, m.Status = fmt.Sprint("fresh-", i), "Waiting", "Running (healthy)"
		}
		out.Members = append(out.Members, &clusterv1.RolloutMember{
			WorkloadId: "fresh-3", State: "Updated", Status: "Running (healthy)", NodeId: "node-a", RevisionId: "c1-2222222222222222", Surge: true, Canary: true,
		})
	case req.GetGroup() == "back":
		out.Id.Sequence, out.Reverting, out.Reason = 10, true, "back-1 was not healthy for 10 s within 300 s"
	case looks > 3 && req.GetGroup() == "web":
		out.Phase, out.Reason = "Completed", ""
		for _, m := range out.GetMembers() {
			m.State = "Updated"
		}
	}
	return out, nil
}

func (f *fake) SetRollout(_ context.Context, req *clusterv1.SetRolloutRequest) (*clusterv1.SetRolloutResponse, error) {
	return &clusterv1.SetRolloutResponse{Index: 43, Unchanged: req.GetAction() == "pause"}, nil
}
