package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// holder returns the node that a workload is assigned to in this replica's state. The state
// reflects at least the index that the caller sends.
func (s *Server) holder(ctx context.Context, id string) (*fsm.Node, error) {
	var c call
	if _, err := c.wish(ctx, nil); err != nil {
		return nil, err
	}
	limited, cancel := withDeadline(ctx)
	defer cancel()
	view, err := s.store.At(limited, c.least)
	if err != nil {
		return nil, err
	}
	w, err := s.visible(ctx, view, id)
	if err != nil {
		return nil, err
	}
	if w.Node == "" {
		return nil, errorf(KindPrecondition, "workload %q is on no node (%s); `persysctl why %s` says why", id, w.Status, id)
	}
	n, ok := view.Node(w.Node)
	if !ok {
		return nil, errorf(KindNotFound, "node %q of workload %q is not registered", w.Node, id)
	}
	return n, nil
}

// wholeLog is the longest time for reading a log that is not followed.
const wholeLog = 10 * time.Minute

// Logs implements cluster.v1 by relaying the agent's stream.
func (s *Server) Logs(req *clusterv1.LogsRequest, out clusterv1.Cluster_LogsServer) error {
	ctx := out.Context()
	n, err := s.holder(ctx, req.GetWorkloadId())
	if err != nil {
		return err
	}
	if !req.GetFollow() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wholeLog)
		defer cancel()
	}
	in, err := s.agents.logs(ctx, n, &agentv1.LogsRequest{
		Id: req.GetWorkloadId(), Follow: req.GetFollow(), TailLines: max(0, req.GetTailLines()),
		Timestamps: req.GetTimestamps(), SinceUnixSeconds: req.GetSinceUnixSeconds(), Service: req.GetService(),
	})
	if err != nil {
		return agentError(n.ID, err)
	}
	for {
		c, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if status.Code(err) == codes.Unimplemented {
			return errorf(KindPrecondition, "the agent of node %s (version %s) cannot stream logs", n.ID, n.Facts.AgentVersion)
		}
		if err != nil {
			return agentError(n.ID, err)
		}
		if err := out.Send(&clusterv1.LogChunk{Data: c.GetData(), Stream: c.GetStream(), AtUnixNanos: c.GetAtUnixNanos()}); err != nil {
			return err
		}
	}
}

// ListActions implements cluster.v1.
func (s *Server) ListActions(ctx context.Context, req *clusterv1.ListActionsRequest) (*clusterv1.ListActionsResponse, error) {
	n, err := s.holder(ctx, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	acts, err := s.agents.actions(ctx, n, req.GetWorkloadId(), req.GetLimit())
	if err != nil {
		return nil, agentError(n.ID, err)
	}
	out := &clusterv1.ListActionsResponse{NodeId: n.ID}
	for _, a := range acts {
		out.Actions = append(out.Actions, &clusterv1.Action{
			TaskId: a.GetTaskId(), WorkloadId: a.GetWorkloadId(), ActionType: a.GetActionType(),
			Status: a.GetStatus(), Error: a.GetError(),
			CreatedAt: unix(a.GetCreatedAt()), StartedAt: unix(a.GetStartedAt()), EndedAt: unix(a.GetEndedAt()),
		})
	}
	return out, nil
}

// unix converts Unix seconds. Legacy v1 agents send large negative numbers for "not yet".
func unix(sec int64) *timestamppb.Timestamp {
	if sec <= 0 {
		return nil
	}
	return timestamppb.New(time.Unix(sec, 0))
}
