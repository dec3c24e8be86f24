package persysctl

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
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

// got returns the answer of GetWorkload about w. If the request asks for files (AsApplied), the answer has two files, as
// for a group with two workloads.
func (f *fake) got(req *controlv1.GetWorkloadRequest, w *controlv1.WorkloadView) *controlv1.GetWorkloadResponse {
	if !req.GetAsApplied() {
		return &controlv1.GetWorkloadResponse{Workload: w, Index: 42, Stale: f.stale, AgeMs: f.age()}
	}
	return &controlv1.GetWorkloadResponse{Index: 42, Applies: []*controlv1.ApplyWorkloadRequest{
		{WorkloadId: w.GetWorkloadId(), RevisionId: w.GetCallerRevisionId(), Spec: w.GetSpec()},
		{WorkloadId: "other", DesiredState: "stopped", Spec: w.GetSpec()},
	}}
}
