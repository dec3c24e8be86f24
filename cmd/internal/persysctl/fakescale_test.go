package persysctl

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

func (f *fake) ScaleGroup(_ context.Context, req *clusterv1.ScaleGroupRequest) (*clusterv1.ScaleGroupResponse, error) {
	out := &clusterv1.ScaleGroupResponse{Index: 43, Unchanged: req.GetCount() == 3, WorkloadIds: fsm.MemberIDs(req.GetGroup(), max(1, int(req.GetCount())))}
	if req.GetGroup() == "nothing" {
		return nil, status.Error(codes.NotFound, `group "nothing" has no members: only a workload with `+"`count` can be scaled")
	}
	if req.GetCount() < 3 {
		out.RemovedWorkloadIds = []string{req.GetGroup() + "-2"}
	}
	return out, nil
}
