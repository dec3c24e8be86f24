package rpc

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// holder returns the node to which a workload is assigned, according to this replica's state. If the caller sends a log
// index, holder first waits until the state has reached it.
func (s *Server) holder(ctx context.Context, id string) (*fsm.Node, error) {
	view, w, err := s.present(ctx, id)
	if err != nil {
		return nil, err
	}
	return nodeOf(view, w)
}

// present returns the record of a workload, and the view of this replica's state from which the record was read.
func (s *Server) present(ctx context.Context, id string) (fsm.View, *fsm.Workload, error) {
	view, err := s.viewFor(ctx)
	if err != nil {
		return view, nil, err
	}
	w, err := s.visible(ctx, view, id)
	return view, w, err
}

func nodeOf(view fsm.View, w *fsm.Workload) (*fsm.Node, error) {
	if w.Node == "" {
		return nil, errorf(KindPrecondition, "workload %q is on no node (%s); `persysctl why %s` says why", w.ID, w.Status, w.ID)
	}
	n, ok := view.Node(w.Node)
	if !ok {
		return nil, errorf(KindNotFound, "node %q of workload %q is not registered", w.Node, w.ID)
	}
	return n, nil
}

// viewFor returns this replica's state, once it is as new as the caller asks for.
func (s *Server) viewFor(ctx context.Context) (fsm.View, error) {
	var c call
	if _, err := c.wish(ctx, nil); err != nil {
		return nil, err
	}
	limited, cancel := withDeadline(ctx)
	defer cancel()
	return s.store.At(limited, c.least)
}

// wholeLog is the time limit for reading a log without following it.
const wholeLog = 10 * time.Minute

// Logs implements the call of cluster.v1: it relays a workload's log from the agent. A finished job is on no node any
// more. Its log is then the end of its output, which is kept in the workload's record.
func (s *Server) Logs(req *clusterv1.LogsRequest, out clusterv1.Cluster_LogsServer) error {
	ctx := out.Context()
	view, w, err := s.present(ctx, req.GetWorkloadId())
	if err != nil {
		return err
	}
	if w.Node == "" && w.Finished() {
		return keptLog(w, req, out)
	}
	n, err := nodeOf(view, w)
	if err != nil {
		return err
	}
	entry, err := s.enterNode(n.ID)
	if err != nil {
		return err
	}
	defer entry.Leave()
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

// keptLog sends the end of the output that the record of a finished job keeps.
func keptLog(w *fsm.Workload, req *clusterv1.LogsRequest, out clusterv1.Cluster_LogsServer) error {
	x := w.Result.Exit
	if x == nil || x.Output == "" {
		return errorf(KindPrecondition, "job %q has ended, and its record has no output; `persysctl get %s` shows its result", w.ID, w.ID)
	}
	if from := req.GetSinceUnixSeconds(); x.EndedAt != 0 && from > x.EndedAt/int64(time.Second) {
		return nil
	}
	text := strings.TrimSuffix(x.Output, "\n")
	if n := req.GetTailLines(); n > 0 {
		lines := strings.Split(text, "\n")
		text = strings.Join(lines[len(lines)-int(min(n, int64(len(lines)))):], "\n")
	}
	return out.Send(&clusterv1.LogChunk{Data: []byte(text + "\n"), Stream: "stdout"})
}

// ListActions implements the call of cluster.v1: it returns the agent's task history of a workload.
func (s *Server) ListActions(ctx context.Context, req *clusterv1.ListActionsRequest) (*clusterv1.ListActionsResponse, error) {
	if n := req.GetLimit(); n < 0 {
		return nil, errorf(KindInvalid, "limit %d must be 0 or more; 0 means all", n)
	}
	n, err := s.holder(ctx, req.GetWorkloadId())
	if err != nil {
		return nil, err
	}
	entry, err := s.enterRead(ctx)
	if err != nil {
		return nil, err
	}
	defer entry.Leave()
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

// unix converts Unix seconds. Legacy v1 agents send a large negative number for a time that has not come yet;
// the result is then nil.
func unix(sec int64) *timestamppb.Timestamp {
	if sec <= 0 {
		return nil
	}
	return timestamppb.New(time.Unix(sec, 0))
}
