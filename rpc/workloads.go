package rpc

import (
	"cmp"
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// ListWorkloads implements the call of control.v1. The list is ordered by id; page_token is the last id of
// the previous page.
func (s *Server) ListWorkloads(ctx context.Context, req *controlv1.ListWorkloadsRequest) (*controlv1.ListWorkloadsResponse, error) {
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(validToken(req.GetPageToken()), knownWord("status", req.GetStatus(), fsm.Statuses()), knownWord("kind", req.GetKind(), spec.Kinds()),
		validFilter("node_id", req.GetNodeId()), validFilter("group", req.GetGroup()), validFilter("namespace", req.GetNamespace())); err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &controlv1.ListWorkloadsResponse{Index: r.index, Stale: r.stale, AgeMs: r.ageMS}
	word := strings.ToLower(req.GetSearch())
	in := s.scopeOf(ctx)
	if ns := req.GetNamespace(); ns != "" {
		if err := s.mayEnter(ctx, ns); err != nil {
			return nil, err
		}
	}
	add := func(w *fsm.Workload) bool {
		if w.ID <= req.GetPageToken() && req.GetPageToken() != "" ||
			req.GetNodeId() != "" && w.Node != req.GetNodeId() ||
			req.GetGroup() != "" && w.Demand.Group != req.GetGroup() ||
			req.GetNamespace() != "" && w.In() != req.GetNamespace() || !in.Has(w.In()) ||
			req.GetKind() != "" && !strings.EqualFold(req.GetKind(), spec.KindOf(w)) ||
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

// contains reports whether the id, group or image of a workload contains word, which must be in lower case.
func contains(w *controlv1.WorkloadView, word string) bool {
	for _, text := range [...]string{w.GetWorkloadId(), w.GetGroup(), w.GetImageOrSource()} {
		if strings.Contains(strings.ToLower(text), word) {
			return true
		}
	}
	return false
}

// GetWorkload implements the call of control.v1. Secrets in the specification are redacted.
func (s *Server) GetWorkload(ctx context.Context, req *controlv1.GetWorkloadRequest) (*controlv1.GetWorkloadResponse, error) {
	if strings.TrimSpace(req.GetWorkloadId()) == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetAsApplied() {
		list, err := s.reapplies(ctx, r, strings.TrimSpace(req.GetWorkloadId()))
		return &controlv1.GetWorkloadResponse{Applies: list, Index: r.index, Stale: r.stale, AgeMs: r.ageMS}, err
	}
	w, err := s.visible(ctx, r, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	out := s.workloadView(r, w, spec.Full)
	out.Etag, out.RevisionNumber = w.ETag(), w.Number()
	if w.IsSystem() {
		out.Members = s.systemMembers(r, w)
	}
	return &controlv1.GetWorkloadResponse{Workload: out, Index: r.index, Stale: r.stale, AgeMs: r.ageMS}, nil
}

// workloadView returns a workload for the API, with data that is not in its record: its resource usage, which
// only the leader knows, and the node on which a stopped workload may still run.
func (s *Server) workloadView(v fsm.View, w *fsm.Workload, detail spec.Detail) *controlv1.WorkloadView {
	out := spec.WorkloadView(w, detail)
	out.Autoscale, out.Stopping = s.autoscaleView(w, out.GetAutoscale()), stopping(v, w)
	if w.Desired == fsm.DesiredStopped && w.Node == "" {
		if left := leftOver(v, w.ID); left != "" {
			out.Reason, out.Message = &controlv1.ReasonDetail{Code: fsm.CodeAwaitStop, Message: left, LastTransition: out.GetReason().GetLastTransition()}, left
		}
	}
	if w.Node == "" || w.Status != fsm.StatusRunning && w.Status != fsm.StatusUpdating {
		return out
	}
	if u, ok := s.leader.WorkloadUsageOf(w.Node, w.ID); ok {
		out.Usage = &controlv1.WorkloadUsageSnapshot{
			WorkloadId: w.ID, Type: u.Type, Source: u.Source, CpuPercent: u.CPUPercent,
			MemoryBytes: u.Memory, MemoryLimitBytes: u.MemoryLimit, DiskBytes: u.Disk,
			DiskLimitBytes: u.DiskLimit, DiskCapped: u.DiskCapped,
			DiskReadBytes: u.DiskRead, DiskWriteBytes: u.DiskWrite, NetRxBytes: u.NetReceived, NetTxBytes: u.NetSent,
			CollectedAt: timestamppb.New(time.Unix(0, u.At)),
		}
	}
	return out
}

// leftOver returns a text that names the node on which a stopped workload may still run; "" if there is none.
// The workload was taken off that node because the node was lost or drained, and the node has not removed it
// yet.
func leftOver(v fsm.View, workload string) (text string) {
	v.ResidualsOf(workload, func(r *fsm.Residual) bool {
		n, ok := v.Node(r.Node)
		switch {
		case !ok || n.Fenced:
		case n.Up:
			text = "stopped by request; node " + n.ID + " has not removed it yet"
		default:
			text = "stopped by request, but node " + n.ID + " is lost and may still run it; it is removed once the node is back; " +
				"if the machine is off for certain: persysctl node fence " + n.ID
		}
		return !ok || n.Up || n.Fenced // a node that is up; keep looking, because a lost node takes precedence
	})
	return text
}
