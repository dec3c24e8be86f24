package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// withoutRequestID drops the request id of the stream's own metadata: one id for
// all messages would make every one after the first a repetition of it.
func withoutRequestID(ctx context.Context) context.Context {
	if len(metadata.ValueFromIncomingContext(ctx, dial.KeyRequestID)) == 0 {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx) // a copy
	md.Delete(dial.KeyRequestID)
	return metadata.NewIncomingContext(ctx, md)
}

// call makes a unary call on behalf of a message of a stream: the same limits, the
// same table, the same routing, the same handlers.
func (s *Server) call(ctx context.Context, full string, req any, h grpc.UnaryHandler) (any, error) {
	entry, err := s.enter(callOf(ctx).caller)
	if err != nil {
		return nil, edge("", err)
	}
	defer entry.Leave()
	resp, _, err := s.carry(withoutRequestID(ctx), callOf(ctx).caller, full, req, h)
	return resp, err
}

// ControlStream implements control.v1: each message is carried out as the call it
// stands for, one after another, and answered in order by one message with the
// same correlation id.
func (s *Server) ControlStream(stream controlv1.AgentControl_ControlStreamServer) error {
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out, err := s.control(stream.Context(), msg)
		if err != nil {
			st := status.Convert(err)
			out = &controlv1.ControlMessage{Message: &controlv1.ControlMessage_Error{
				Error: &controlv1.StreamError{Code: int32(st.Code()), Message: st.Message()},
			}}
		}
		out.CorrelationId = msg.GetCorrelationId()
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (s *Server) control(ctx context.Context, msg *controlv1.ControlMessage) (*controlv1.ControlMessage, error) {
	switch m := msg.GetMessage().(type) {
	case *controlv1.ControlMessage_Register:
		r, err := s.call(ctx, controlv1.AgentControl_RegisterNode_FullMethodName, m.Register, func(ctx context.Context, _ any) (any, error) {
			return s.RegisterNode(ctx, m.Register)
		})
		if err != nil {
			return nil, err
		}
		return &controlv1.ControlMessage{Message: &controlv1.ControlMessage_RegisterResult{RegisterResult: r.(*controlv1.RegisterNodeResponse)}}, nil
	case *controlv1.ControlMessage_Heartbeat:
		r, err := s.call(ctx, controlv1.AgentControl_Heartbeat_FullMethodName, m.Heartbeat, func(ctx context.Context, _ any) (any, error) {
			return s.Heartbeat(ctx, m.Heartbeat)
		})
		if err != nil {
			return nil, err
		}
		return &controlv1.ControlMessage{Message: &controlv1.ControlMessage_HeartbeatResult{HeartbeatResult: r.(*controlv1.HeartbeatResponse)}}, nil
	case *controlv1.ControlMessage_Apply:
		r, err := s.call(ctx, controlv1.AgentControl_ApplyWorkload_FullMethodName, m.Apply, func(ctx context.Context, _ any) (any, error) {
			return s.ApplyWorkload(ctx, m.Apply)
		})
		if err != nil {
			return nil, err
		}
		return &controlv1.ControlMessage{Message: &controlv1.ControlMessage_ApplyResult{ApplyResult: r.(*controlv1.ApplyWorkloadResponse)}}, nil
	case *controlv1.ControlMessage_Delete:
		r, err := s.call(ctx, controlv1.AgentControl_DeleteWorkload_FullMethodName, m.Delete, func(ctx context.Context, _ any) (any, error) {
			return s.DeleteWorkload(ctx, m.Delete)
		})
		if err != nil {
			return nil, err
		}
		return &controlv1.ControlMessage{Message: &controlv1.ControlMessage_DeleteResult{DeleteResult: r.(*controlv1.DeleteWorkloadResponse)}}, nil
	}
	return nil, edge("control stream", errorf(KindInvalid, "message must be register, heartbeat, apply or delete"))
}

// maxBatch is how many applies of a stream, or of one call, are committed
// together.
const maxBatch = 1024

// ApplyWorkloads implements cluster.v1: many applies in one call, each judged
// alone, committed together. Requests without an id of their own get one derived
// from the call's, so that repeating the call repeats nothing.
func (s *Server) ApplyWorkloads(ctx context.Context, req *clusterv1.ApplyWorkloadsRequest) (*clusterv1.ApplyWorkloadsResponse, error) {
	workloads, err := requested(req.GetWorkloads(), req.GetFile(), req.GetName(), maxBatch)
	if err != nil {
		return nil, err
	}
	req.Workloads, req.File = workloads, ""
	derived, err := deriveRequestIDs(req)
	if err != nil {
		return nil, err
	}
	outs := s.apply(ctx, req.GetWorkloads(), derived)
	resp := &clusterv1.ApplyWorkloadsResponse{Results: make([]*controlv1.ApplyWorkloadResponse, len(outs))}
	for i, o := range outs {
		switch edgeKind(o.err) {
		case KindInvalid, KindTooOld:
			o = refused(controlv1.FailureReason_INVALID_SPEC, o.err.Error())
		case KindPermission, KindPrecondition:
			o = refused(controlv1.FailureReason_RUNTIME_ERROR, o.err.Error())
		default:
			if o.err != nil {
				return nil, o.err // the log took nothing, or an unknown part
			}
		}
		resp.Results[i] = o.resp
		resp.Index = max(resp.Index, o.resp.GetIndex())
	}
	return resp, nil
}

// ApplyStream implements cluster.v1. Whatever has arrived by the time the last
// batch was answered makes the next one, so order is kept and callers that send
// ahead are coalesced.
func (s *Server) ApplyStream(stream clusterv1.Cluster_ApplyStreamServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	in := make(chan *clusterv1.ApplyStreamRequest, maxBatch)
	failed := make(chan error, 1)
	go func() {
		defer close(in)
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case in <- m:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	for m := range in {
		batch := []*clusterv1.ApplyStreamRequest{m}
		size := proto.Size(m)
	more:
		for len(batch) < 256 && size < maxStreamBatch {
			select {
			case m, ok := <-in:
				if !ok {
					break more
				}
				batch = append(batch, m)
				size += proto.Size(m)
			default:
				break more
			}
		}
		if err := s.applyStreamBatch(ctx, stream, batch); err != nil {
			return err
		}
	}
	if err := <-failed; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// maxStreamBatch is when a batch of a stream is large enough, in bytes.
const maxStreamBatch = 2 << 20

func (s *Server) applyStreamBatch(ctx context.Context, stream clusterv1.Cluster_ApplyStreamServer, batch []*clusterv1.ApplyStreamRequest) error {
	req := &clusterv1.ApplyWorkloadsRequest{Workloads: make([]*controlv1.ApplyWorkloadRequest, len(batch))}
	for i, m := range batch {
		req.Workloads[i] = m.GetApply()
		if req.Workloads[i] == nil {
			req.Workloads[i] = &controlv1.ApplyWorkloadRequest{}
		}
	}
	r, err := s.call(ctx, clusterv1.Cluster_ApplyWorkloads_FullMethodName, req, func(ctx context.Context, _ any) (any, error) {
		return s.ApplyWorkloads(ctx, req)
	})
	for i, m := range batch {
		out := &clusterv1.ApplyStreamResponse{CorrelationId: m.GetCorrelationId()}
		if err != nil {
			st := status.Convert(err)
			out.ErrorCode, out.ErrorMessage = int32(st.Code()), st.Message()
		} else {
			out.Result = r.(*clusterv1.ApplyWorkloadsResponse).GetResults()[i]
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}
