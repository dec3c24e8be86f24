package rpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// maxPage bounds a page that was asked for; legacy v1 clients ask for none and
// get everything.
const maxPage = 10_000

func pageSize(n int32) (int, error) {
	if n < 0 || n > maxPage {
		return 0, errorf(KindInvalid, "page_size %d must be 0 to %d", n, maxPage)
	}
	return int(n), nil
}

// ListNodes implements control.v1; ordered by id. page_token is the last id of
// the page before.
func (s *Server) ListNodes(ctx context.Context, req *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &controlv1.ListNodesResponse{Index: r.index, Stale: r.stale, AgeMs: r.ageMS}
	r.Nodes(req.GetPageToken(), func(n *fsm.Node) bool {
		if req.GetStatus() != "" && !strings.EqualFold(req.GetStatus(), string(n.Status())) {
			return true
		}
		if size > 0 && len(out.Nodes) == size {
			out.NextPageToken = out.Nodes[size-1].GetNodeId()
			return false
		}
		out.Nodes = append(out.Nodes, s.nodeView(r, n))
		return true
	})
	return out, nil
}

// GetNode implements control.v1.
func (s *Server) GetNode(ctx context.Context, req *controlv1.GetNodeRequest) (*controlv1.GetNodeResponse, error) {
	if strings.TrimSpace(req.GetNodeId()) == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	n, ok := r.Node(req.GetNodeId())
	if !ok {
		return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", req.GetNodeId())
	}
	return &controlv1.GetNodeResponse{Node: s.nodeView(r, n), Index: r.index, Stale: r.stale, AgeMs: r.ageMS}, nil
}

// nodeView adds to a node what only the leader knows: lease and last heartbeat.
func (s *Server) nodeView(v fsm.View, n *fsm.Node) *controlv1.NodeView {
	out := spec.NodeView(n, v.Alloc(n.ID))
	if used, ok := s.leader.UsageOf(n.ID); ok && n.Up {
		out.Usage = &controlv1.NodeUsage{
			CpuAllocatedMillicores: out.GetReservedCpuMillicores(), CpuUsedMillicores: used.CPU,
			MemoryAllocatedMb: out.GetReservedMemoryMb(), MemoryUsedMb: used.Memory, DiskUsedGb: used.Disk,
			NetRxBytes: used.NetReceived, NetTxBytes: used.NetSent,
		}
		held := s.leader.PoolsUsedOf(n.ID)
		for _, p := range out.GetStoragePools() {
			out.Usage.DiskAllocatedGb += p.GetReservedGb()
			p.UsedGb = held[p.GetName()]
		}
	}
	if expires, heard, ok := s.leader.LeaseOf(n.ID); ok {
		out.LeaseExpiresAt = timestamppb.New(time.Unix(0, expires))
		if heard > 0 {
			out.LastHeartbeat = timestamppb.New(time.Unix(0, heard))
		}
	}
	return out
}

// ListWorkloads implements control.v1; ordered by id. page_token is the last id
// of the page before.
func (s *Server) ListWorkloads(ctx context.Context, req *controlv1.ListWorkloadsRequest) (*controlv1.ListWorkloadsResponse, error) {
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &controlv1.ListWorkloadsResponse{Index: r.index, Stale: r.stale, AgeMs: r.ageMS}
	word := strings.ToLower(req.GetSearch())
	in := s.scopeOf(ctx)
	if ns := req.GetNamespace(); !in.Has(ns) && ns != "" {
		return nil, errorf(KindPermission, "%s acts only in %s, not in namespace %q", callOf(ctx).who(), in, clip(ns, 128))
	}
	add := func(w *fsm.Workload) bool {
		if w.ID <= req.GetPageToken() && req.GetPageToken() != "" ||
			req.GetNodeId() != "" && w.Node != req.GetNodeId() ||
			req.GetGroup() != "" && w.Demand.Group != req.GetGroup() ||
			req.GetNamespace() != "" && w.In() != req.GetNamespace() || !in.Has(w.In()) ||
			req.GetStatus() != "" && !strings.EqualFold(req.GetStatus(), string(w.Status)) {
			return true
		}
		one := s.workloadView(r, w, spec.Brief)
		if word != "" && !contains(one, word) {
			return true
		}
		if size > 0 && len(out.Workloads) == size {
			out.NextPageToken = out.Workloads[size-1].GetWorkloadId()
			return false
		}
		out.Workloads = append(out.Workloads, one)
		return true
	}
	switch {
	case req.GetNodeId() != "":
		r.WorkloadsOn(req.GetNodeId(), add)
	case req.GetGroup() != "":
		r.Group(req.GetGroup(), add)
	default:
		r.Workloads(req.GetPageToken(), add)
	}
	return out, nil
}

// contains looks for a lower-case word where people look for one.
func contains(w *controlv1.WorkloadView, word string) bool {
	for _, text := range [...]string{w.GetWorkloadId(), w.GetGroup(), w.GetImageOrSource()} {
		if strings.Contains(strings.ToLower(text), word) {
			return true
		}
	}
	return false
}

// GetWorkload implements control.v1; the view carries the spec, redacted.
func (s *Server) GetWorkload(ctx context.Context, req *controlv1.GetWorkloadRequest) (*controlv1.GetWorkloadResponse, error) {
	if strings.TrimSpace(req.GetWorkloadId()) == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, r, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	return &controlv1.GetWorkloadResponse{Workload: s.workloadView(r, w, spec.Full), Index: r.index, Stale: r.stale, AgeMs: r.ageMS}, nil
}

// GetClusterSummary implements control.v1.
func (s *Server) GetClusterSummary(ctx context.Context, req *controlv1.GetClusterSummaryRequest) (*controlv1.GetClusterSummaryResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	count := func(of ...fsm.Status) (n int32) {
		for _, st := range of {
			n += int32(r.StatusCount(st))
		}
		return n
	}
	out := &controlv1.GetClusterSummaryResponse{
		TotalNodes:            int32(r.NodeCount()),
		TotalWorkloads:        int32(r.WorkloadCount()),
		RunningWorkloads:      count(fsm.StatusRunning),
		PendingWorkloads:      count(fsm.StatusPending, fsm.StatusUnknown, fsm.StatusUpdating),
		FailedWorkloads:       count(fsm.StatusFailed),
		DeletedWorkloads:      count(fsm.StatusDeleting, fsm.StatusDeleted),
		ScheduledWorkloads:    count(fsm.StatusScheduled),
		RetryPendingWorkloads: count(fsm.StatusRetryPending),
		StoppedWorkloads:      count(fsm.StatusStopped),
		GeneratedAt:           timestamppb.New(s.now()),
		Index:                 r.index,
		Mode:                  string(r.Info().Mode),
		Stale:                 r.stale,
		AgeMs:                 r.ageMS,
	}
	r.Nodes("", func(n *fsm.Node) bool {
		if n.Status() == fsm.NodeReady {
			out.ReadyNodes++
		}
		used := r.Alloc(n.ID)
		out.TotalCpuMillicores += n.Facts.CPU
		out.ReservedCpuMillicores += used.CPU
		out.TotalMemoryMb += n.Facts.Memory
		out.ReservedMemoryMb += used.Memory
		for _, p := range n.Facts.Pools {
			out.TotalDiskGb += p.Total
		}
		for _, p := range used.Disk {
			out.ReservedDiskGb += p.GB
		}
		if u, ok := s.leader.UsageOf(n.ID); ok && n.Up && u.CPU+u.Memory+u.Disk > 0 { // an older agent sends zeros
			out.UsedCpuMillicores += u.CPU
			out.UsedMemoryMb += u.Memory
			out.UsedDiskGb += u.Disk
			out.MeasuredNodes++
		}
		return true
	})
	out.NotReadyNodes = out.TotalNodes - out.ReadyNodes
	if to, ok := s.replica.Leader(); ok {
		if out.LeaderId = to.Name; to.Name == "" {
			out.LeaderId = to.ID
		}
	}
	return out, nil
}
