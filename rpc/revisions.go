package rpc

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// ListRevisions implements the call of cluster.v1. Secrets in the specifications are redacted, so a changed
// secret is shown as changed without its value.
func (s *Server) ListRevisions(ctx context.Context, req *clusterv1.ListRevisionsRequest) (*clusterv1.ListRevisionsResponse, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.visible(ctx, r, id); err != nil {
		return nil, err
	}
	list := r.Revisions(id)
	out := &clusterv1.ListRevisionsResponse{Index: r.index}
	for i := range list {
		v, err := revisionView(id, &list[i])
		if err != nil {
			return nil, err
		}
		v.Present = i == len(list)-1
		if i > 0 {
			v.Changes = between(&list[i-1], &list[i])
		}
		out.Revisions = append(out.Revisions, v)
	}
	slices.Reverse(out.Revisions)
	from, to := req.GetFrom(), req.GetTo()
	if from == 0 && to == 0 {
		return out, nil
	}
	if from == 0 && to > 1 {
		from = to - 1
	}
	a, err := numbered(id, "from", list, from)
	if err != nil {
		return nil, err
	}
	b, err := numbered(id, "to", list, to)
	if err != nil {
		return nil, err
	}
	out.Changes = between(a, b)
	return out, nil
}

// numbered returns the revision with this number. The error names field, the field of the request that contains the
// number.
func numbered(id, field string, list []fsm.Revision, number uint64) (*fsm.Revision, error) {
	for i := range list {
		if list[i].Number == number {
			return &list[i], nil
		}
	}
	return nil, errorf(KindNotFound, "%s: revision %d of workload %q is not stored; revisions %d to %d are stored (`persysctl history %s`)",
		field, number, id, list[0].Number, list[len(list)-1].Number, id)
}

func revisionView(id string, r *fsm.Revision) (*clusterv1.WorkloadRevision, error) {
	stored := &controlv1.WorkloadSpec{}
	if err := stored.UnmarshalVT(r.Spec); err != nil {
		return nil, errorf(KindInternal, "workload %q: revision %d: stored specification: %v", id, r.Number, err)
	}
	return &clusterv1.WorkloadRevision{
		Number: r.Number, RevisionId: r.ID(), CallerRevisionId: r.CallerRevision, AppliedAt: timestamppb.New(time.Unix(0, r.At)), By: r.By,
		Spec: spec.Redact(stored),
	}, nil
}

// between returns the fields in which two revisions differ, with redacted secrets.
func between(a, b *fsm.Revision) []*clusterv1.FieldChange {
	changes := specDiff(a.Spec, b.Spec)
	if len(changes) == 0 && a.Content != b.Content {
		changes = []spec.Difference{{Field: secretValue}}
	}
	out := make([]*clusterv1.FieldChange, 0, len(changes))
	for _, c := range changes {
		out = append(out, &clusterv1.FieldChange{Field: c.Field, Before: c.Before, After: c.After})
	}
	return out
}

// RollBack implements the call of cluster.v1 on the leader: it applies an earlier revision again. That
// revision is checked like any apply, because the rules may have changed since.
func (s *Server) RollBack(ctx context.Context, req *clusterv1.RollBackRequest) (*controlv1.ApplyWorkloadResponse, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return nil, errorf(KindInvalid, "workload_id must not be blank")
	}
	view, err := s.read(ctx) // only a leader that has confirmed its leadership knows the newest revision
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, id)
	if err != nil {
		return nil, err
	}
	if w.Desired == fsm.DesiredDeleted {
		return nil, errorf(KindPrecondition, "workload %q is being deleted: apply it again to keep it", id)
	}
	list := view.Revisions(id)
	number := req.GetNumber()
	if number == 0 {
		if len(list) < 2 {
			return nil, errorf(KindPrecondition, "workload %q has no earlier revision", id)
		}
		number = list[len(list)-2].Number
	}
	rev, err := numbered(id, "number", list, number)
	if err != nil {
		return nil, err
	}
	plain, err := withKey(ctx, s, func() (*controlv1.WorkloadSpec, error) { return spec.Unseal(w.SpecID(), rev.Spec, sealer(s.cfg.Keys)) })
	var files []byte
	if b, ok := view.Bundle(rev.Bundle); ok && err == nil {
		files, err = spec.OpenFiles(b, sealer(s.cfg.Keys))
		plain.GetCompose().Files, plain.GetCompose().Bundle = nil, ""
	}
	if err != nil {
		return nil, errorf(KindPrecondition, "revision %d cannot be applied again: %v", number, err)
	}
	plain.Autoscale = nil // the group keeps its present settings
	out := s.apply(ctx, []*controlv1.ApplyWorkloadRequest{{
		WorkloadId: id, Spec: plain, RevisionId: rev.CallerRevision, DesiredState: string(fsm.Wanted(view, w)), RequestId: req.GetRequestId(),
		Files:      files,
		IfRevision: req.GetIfRevision(),
	}}, nil, w.Demand.Autoscale)
	return out[0].resp, out[0].err
}
