package rpc

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Events implements the call of cluster.v1: it streams the events from this replica's change feed. If the reader is
// slower than the feed, it gets the stored events next. If some of these are no longer stored, the reader misses them
// and can see this from a gap in Seq. It gets no event twice.
func (s *Server) Events(req *clusterv1.EventsRequest, out clusterv1.Cluster_EventsServer) error {
	if req.GetTail() < 0 {
		return errorf(KindInvalid, "tail %d must be 0 or more", req.GetTail())
	}
	for _, word := range req.GetTypes() {
		if !slices.Contains(fsm.EventTypes(), word) {
			return errorf(KindInvalid, "types: there is no event %q; there are %s", clip(word, 64), strings.Join(fsm.EventTypes(), ", "))
		}
	}
	if err := cmp.Or(validFilter("node_id", req.GetNodeId()), validSubject("workload_id", req.GetWorkloadId()), validFilter("namespace", req.GetNamespace())); err != nil {
		return err
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

// soFar returns the lower of two numbers: the number of the last event that the client has (after), and the number of
// the newest event. The client has a higher number than the newest event if the state was restored onto new schedulers.
// The client also has a higher number if this replica is a follower that lags behind, so soFar reads the number from a
// confirmed leader.
func (s *Server) soFar(ctx context.Context, after uint64) (uint64, error) {
	if after <= s.store.View().Info().EventSeq {
		return after, nil
	}
	view, err := s.latest(ctx)
	if err != nil {
		return 0, err
	}
	return min(after, view.Info().EventSeq), nil
}

// pastEvents returns the stored events that match the request and are newer than after, oldest first. A
// positive tail limits the result to that many newest events.
func pastEvents(view fsm.View, req *clusterv1.EventsRequest, in access.Scope, after uint64, tail int) []*fsm.Event {
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

// eventView converts an event to the message of the API.
func eventView(e *fsm.Event) *clusterv1.Event {
	out := &clusterv1.Event{
		Seq: e.Seq, Index: e.Index, At: timestamppb.New(time.Unix(0, e.At)), Type: e.Type,
		WorkloadId: e.Workload, NodeId: e.Node, Reason: e.Reason, Message: e.Message, By: e.By,
		Namespace: e.In(),
	}
	if len(e.Details) > 0 {
		out.Details = make(map[string]string, len(e.Details))
		for i, d := range e.Details {
			// The detail "from" is the caller's address, and in an event about a change of status also the former
			// status. If an event has the detail twice, the first value is the caller's address.
			if d.Key == "from" && i+1 < len(e.Details) && e.Details[i+1].Key == "from" {
				d.Key = "caller"
			}
			out.Details[d.Key] = d.Value
		}
	}
	return out
}

func eventMatches(req *clusterv1.EventsRequest, in access.Scope, e *fsm.Event) bool {
	of := e.In()
	// A user who has rights only in some namespaces sees only events about these namespaces and the workloads in them.
	return (in.Everywhere() || of != "" && in.Has(of)) && (req.GetNamespace() == "" || req.GetNamespace() == of) &&
		(req.GetWorkloadId() == "" || req.GetWorkloadId() == e.Workload) &&
		(req.GetNodeId() == "" || req.GetNodeId() == e.Node) &&
		(len(req.GetTypes()) == 0 || slices.Contains(req.GetTypes(), e.Type))
}
