package rpc

import (
	"cmp"
	"context"
	"slices"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/spec"
)

// maxApplies is the maximum number of requests in one answer: the number that an apply plans together.
const maxApplies = 256

// reapplies returns the requests that apply a workload, or the workloads of a group, again.
func (s *Server) reapplies(ctx context.Context, v fsm.View, id string) (out []*controlv1.ApplyWorkloadRequest, err error) {
	group := id
	if w, ok := v.Workload(id); ok {
		if err := s.within(ctx, w); err != nil {
			return nil, err
		}
		if of, ok := v.Workload(w.Owner); ok {
			w = of
		}
		if w.Demand.Group == "" || !fsm.MadeByCount(w.Demand.Group, w.ID) {
			r, err := reapplyOf(v, w)
			return []*controlv1.ApplyWorkloadRequest{r}, err
		}
		group = w.Demand.Group
	}
	in := s.scopeOf(ctx)
	add := func(r *controlv1.ApplyWorkloadRequest, fault error) {
		out, err = append(out, r), cmp.Or(err, fault)
	}
	members := fsm.Members(v, group)
	if len(members) > 0 && in.Has(members[0].In()) {
		first := members[0]
		add(spec.ReapplyGroup(group, members, putOf(v, first).spec, strategyOf(v, group, first.Update)))
	}
	if group != id {
		return out, err
	}
	v.Group(group, func(w *fsm.Workload) bool {
		if w.Owner == "" && in.Has(w.In()) && w.Desired != fsm.DesiredDeleted && !w.Demand.Surge && !fsm.MadeByCount(group, w.ID) {
			add(reapplyOf(v, w))
		}
		return len(out) <= maxApplies
	})
	switch {
	case err != nil:
	case len(out) == 0:
		err = errorf(KindNotFound, "workload %q not found, and no group has that name; `persysctl list` shows all", clip(id, 128))
	case len(out) > maxApplies:
		err = errorf(KindPrecondition, "group %q has more than %d workloads: get them one by one", group, maxApplies)
	}
	slices.SortFunc(out, func(a, b *controlv1.ApplyWorkloadRequest) int {
		return strings.Compare(a.GetWorkloadId(), b.GetWorkloadId())
	})
	return out, err
}

func reapplyOf(v fsm.View, w *fsm.Workload) (*controlv1.ApplyWorkloadRequest, error) {
	if w.Desired == fsm.DesiredDeleted {
		return nil, errorf(KindPrecondition, "workload %q is being deleted, so there is nothing to apply again", w.ID)
	}
	update := w.Update
	if w.IsSystem() {
		update = strategyOf(v, w.ID, update)
	}
	return spec.Reapply(w, putOf(v, w).spec, update)
}

// strategyOf returns the update strategy of a group or system workload: the strategy of its unfinished
// rollout, or else the parameter stored, which comes from the record of the workload. A record of an earlier
// version has no strategy; then strategyOf returns the strategy of the last rollout.
func strategyOf(v fsm.View, group string, stored rollout.Policy) rollout.Policy {
	if r, ok := v.Rollout(group); ok && (r.Phase != rollout.Completed || stored == (rollout.Policy{})) {
		return r.Policy
	}
	return stored
}

// storedSpec is a stored specification with sealed secrets.
type storedSpec struct {
	spec      []byte
	sealedFor string
	bundle    string // digest of the files beside a Compose file
}

// putOf returns the newest specification of a workload: the specification that an unfinished update will give
// it, or else its present specification.
func putOf(v fsm.View, w *fsm.Workload) storedSpec {
	if r, ok := v.Rollout(w.Demand.Group); ok {
		if put := r.Waiting(w.ID); put != nil {
			return storedSpec{put.GetSpec(), w.ID, put.GetBundle()}
		}
	}
	return storedSpec{w.Spec, w.SpecID(), w.Bundle}
}

// keepSecrets returns a request in which the marker *** is replaced by the secrets that are stored for the same fields of the
// workload, or of the first member of the group, and with the files of a stack whose Compose file is kept.
func (s *Server) keepSecrets(ctx context.Context, req *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadRequest, error) {
	if !spec.KeepsSecrets(req.GetSpec()) {
		return req, nil
	}
	v, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	id := strings.TrimSpace(req.GetWorkloadId())
	w, ok := v.Workload(id)
	if members := fsm.Members(v, id); !ok && len(members) > 0 {
		w, ok = members[0], true
	}
	if !ok || !s.scopeOf(ctx).Has(w.In()) {
		return spec.Keep(req, nil)
	}
	stored := putOf(v, w)
	plain, err := withKey(ctx, s, func() (*controlv1.WorkloadSpec, error) {
		return spec.Unseal(stored.sealedFor, stored.spec, sealer(s.cfg.Keys))
	})
	if err != nil {
		return nil, err
	}
	out, err := spec.Keep(req, plain)
	keepsFile := spec.KeepsComposeFile(req.GetSpec()) && len(req.GetFiles()) == 0
	if b, has := v.Bundle(stored.bundle); has && err == nil && keepsFile {
		out.Files, err = spec.OpenFiles(b, sealer(s.cfg.Keys))
	}
	return out, err
}
