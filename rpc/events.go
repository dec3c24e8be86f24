package rpc

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Events implements cluster.v1 from this replica's change feed. A reader that is too slow for the
// feed continues with the stored events. It may miss events, which shows as a gap in Seq, but never
// gets one twice.
func (s *Server) Events(req *clusterv1.EventsRequest, out clusterv1.Cluster_EventsServer) error {
	if req.GetTail() < 0 {
		return errorf(KindInvalid, "tail %d must be 0 or more", req.GetTail())
	}
	ctx := out.Context()
	after, err := s.soFar(ctx, req.GetAfterSeq())
	if err != nil {
		return err
	}
	tail := int(req.GetTail())
	for {
		view := s.store.View()
		events := pastEvents(view, req, s.scopeOf(ctx), after, tail)
		tail = 0
		for _, e := range events {
			if err := out.Send(eventView(e)); err != nil {
				return err
			}
		}
		after = max(after, view.Info().EventSeq)
		if !req.GetFollow() {
			return nil
		}
		err := s.follow(ctx, view, func(_ fsm.View, changes []fsm.Change) error {
			in := s.scopeOf(ctx)
			for i := range changes {
				e := changes[i].NewEvent()
				if e == nil || e.Seq <= after {
					continue
				}
				after = e.Seq
				if !eventMatches(req, in, e) {
					continue
				}
				if err := out.Send(eventView(e)); err != nil {
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

// soFar returns after, or the number of the newest event if after is higher. A higher number stems
// from before a restore onto new schedulers. A follower may just be behind, so soFar compares with
// a confirmed leader's state.
func (s *Server) soFar(ctx context.Context, after uint64) (uint64, error) {
	if after <= s.store.View().Info().EventSeq {
		return after, nil
	}
	index, err := s.replica.Confirm(ctx)
	if err != nil {
		return 0, err
	}
	view, err := s.store.At(ctx, index)
	if err != nil {
		return 0, err
	}
	return min(after, view.Info().EventSeq), nil
}

// pastEvents returns the stored events that match, oldest first. A positive tail limits them to the
// newest.
func pastEvents(view fsm.View, req *clusterv1.EventsRequest, in namespaceScope, after uint64, tail int) []*fsm.Event {
	var events []*fsm.Event
	if tail > 0 {
		view.EventsBack(func(e *fsm.Event) bool {
			if e.Seq <= after {
				return false
			}
			if eventMatches(req, in, e) {
				events = append(events, e)
			}
			return len(events) < tail
		})
		slices.Reverse(events)
		return events
	}
	view.Events(after, func(e *fsm.Event) bool {
		if eventMatches(req, in, e) {
			events = append(events, e)
		}
		return true
	})
	return events
}

// eventView converts an event for the API.
func eventView(e *fsm.Event) *clusterv1.Event {
	out := &clusterv1.Event{
		Seq: e.Seq, Index: e.Index, At: timestamppb.New(time.Unix(0, e.At)), Type: e.Type,
		WorkloadId: e.Workload, NodeId: e.Node, Reason: e.Reason, Message: e.Message, By: e.By,
		Namespace: e.In(),
	}
	if len(e.Details) > 0 {
		out.Details = make(map[string]string, len(e.Details))
		for i, d := range e.Details {
			// A change of status has a detail "from" too; of two, the first is the caller's
			// address.
			if d.Key == "from" && i+1 < len(e.Details) && e.Details[i+1].Key == "from" {
				d.Key = "caller"
			}
			out.Details[d.Key] = d.Value
		}
	}
	return out
}

func eventMatches(req *clusterv1.EventsRequest, in namespaceScope, e *fsm.Event) bool {
	of := e.In()
	// Users who are confined to namespaces see only events about their namespaces and the workloads
	// in them.
	return (in.everywhere() || of != "" && in.has(of)) && (req.GetNamespace() == "" || req.GetNamespace() == of) &&
		(req.GetWorkloadId() == "" || req.GetWorkloadId() == e.Workload) &&
		(req.GetNodeId() == "" || req.GetNodeId() == e.Node) &&
		(len(req.GetTypes()) == 0 || slices.Contains(req.GetTypes(), e.Type))
}
