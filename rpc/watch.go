package rpc

import (
	"context"
	"errors"
	"slices"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/spec"
)

// follow calls fn for each batch of changes after view, until fn returns an error or ctx ends. If it returns
// store.ErrCompacted, some changes are no longer available; the caller must then take a new view and call
// follow again.
func (s *Server) follow(ctx context.Context, view fsm.View, fn func(fsm.View, []fsm.Change) error) error {
	cur, err := s.store.Changes(view.Info().Index)
	if err != nil {
		return err
	}
	defer cur.Close()
	for {
		b, err := cur.Next(ctx)
		if err != nil {
			return err
		}
		if err := fn(b.View, b.Changes); err != nil {
			return err
		}
	}
}

// WatchWorkloads implements the call of cluster.v1: it sends the present workloads, and then each change.
func (s *Server) WatchWorkloads(req *clusterv1.WatchWorkloadsRequest, out clusterv1.Cluster_WatchWorkloadsServer) error {
	ctx := out.Context()
	match := func(w *fsm.Workload) bool {
		if req.GetNamespace() != "" && w.In() != req.GetNamespace() || !s.scopeOf(ctx).Has(w.In()) {
			return false
		}
		if req.GetGroup() != "" && w.Demand.Group != req.GetGroup() {
			return false
		}
		return len(req.GetWorkloadIds()) == 0 || slices.Contains(req.GetWorkloadIds(), w.ID)
	}
	sent := map[string]bool{}
	for {
		view, err := s.store.At(ctx, req.GetMinIndex())
		if err != nil {
			return err
		}
		if err := s.snapshot(view, req, match, sent, out); err != nil {
			return err
		}
		err = s.follow(ctx, view, func(v fsm.View, changes []fsm.Change) error {
			for i := range changes {
				if err := sendChange(v, &changes[i], v.Info().Index, match, sent, out); err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, store.ErrCompacted) {
			return err
		}
	}
}

// snapshot sends the workloads that match now. Changes may have been missed, so it then sends a deletion for
// each workload in sent (the workloads that the caller knows) that no longer matches. Last it sends the message
// synced.
func (s *Server) snapshot(view fsm.View, req *clusterv1.WatchWorkloadsRequest, match func(*fsm.Workload) bool, sent map[string]bool, out clusterv1.Cluster_WatchWorkloadsServer) error {
	index := view.Info().Index
	seen := map[string]bool{}
	var err error
	send := func(w *fsm.Workload) bool {
		if !match(w) {
			return true
		}
		seen[w.ID], sent[w.ID] = true, true
		shown := spec.WorkloadView(w, spec.Brief)
		shown.Stopping = stopping(view, w)
		err = out.Send(&clusterv1.WorkloadChange{Index: index, Workload: shown})
		return err == nil
	}
	switch {
	case len(req.GetWorkloadIds()) > 0:
		for _, id := range req.GetWorkloadIds() {
			if w, ok := view.Workload(id); ok && !send(w) {
				break
			}
		}
	case req.GetGroup() != "":
		view.Group(req.GetGroup(), send)
	default:
		view.Workloads("", send)
	}
	if err != nil {
		return err
	}
	for id := range sent {
		if seen[id] {
			continue
		}
		delete(sent, id)
		gone := fsm.Bare(id)
		gone.Status = fsm.StatusDeleted
		if err := out.Send(&clusterv1.WorkloadChange{Index: index, Workload: spec.WorkloadView(gone, spec.Brief), Deleted: true}); err != nil {
			return err
		}
	}
	return out.Send(&clusterv1.WorkloadChange{Index: index, Synced: true})
}

func sendChange(view fsm.View, c *fsm.Change, index uint64, match func(*fsm.Workload) bool, sent map[string]bool, out clusterv1.Cluster_WatchWorkloadsServer) error {
	if c.Table != fsm.TableWorkload {
		return nil
	}
	if w := c.NewWorkload(); w != nil && match(w) {
		sent[w.ID] = true
		shown := spec.WorkloadView(w, spec.Brief)
		shown.Stopping = stopping(view, w)
		return out.Send(&clusterv1.WorkloadChange{Index: index, Workload: shown})
	}
	// The change is a deletion of the workload, or the workload no longer matches the caller's filter. Report it as
	// deleted.
	w := c.OldWorkload()
	if w == nil || !match(w) {
		return nil
	}
	delete(sent, w.ID)
	shown := spec.WorkloadView(w, spec.Brief)
	shown.Status = string(fsm.StatusDeleted)
	return out.Send(&clusterv1.WorkloadChange{Index: index, Workload: shown, Deleted: true})
}
