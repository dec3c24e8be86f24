package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// withoutRequestID removes the request id from the metadata of a stream. If all messages of a stream had the
// same id, every message after the first would be treated as a repetition.
func withoutRequestID(ctx context.Context) context.Context {
	if len(metadata.ValueFromIncomingContext(ctx, dial.KeyRequestID)) == 0 {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx) // md is a copy, so it may be changed
	md.Delete(dial.KeyRequestID)
	return metadata.NewIncomingContext(ctx, md)
}

// call handles a message of a stream like the unary call that it carries, with the same limits, rights and
// routing.
func (s *Server) call(ctx context.Context, full string, req any, h grpc.UnaryHandler) (any, error) {
	entry, err := s.enter(callOf(ctx).caller)
	if err != nil {
		return nil, edge("", err)
	}
	defer entry.Leave()
	resp, _, err := s.carry(withoutRequestID(ctx), callOf(ctx).caller, full, req, h)
	return resp, err
}

// ControlStream implements the call of control.v1. Each message of the stream carries a call. ControlStream handles the
// calls one after another, and answers each call with one message that has the same correlation id.
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
