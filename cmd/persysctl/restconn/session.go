package restconn

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// execProtocol is the subprotocol of the websocket that carries Cluster.Exec (see gateway, exec.go). The
// rules in rest.yaml cannot describe a websocket.
const execProtocol = "persys.exec.v1"

var execRoute = route{method: http.MethodGet, path: "/v1/workloads/{workload_id}/exec"}

// session is the bidirectional stream of Cluster.Exec over one websocket, with messages as JSON. It dials at the first
// SendMsg, because that message names the workload. RecvMsg must not be called before the first SendMsg.
type session struct {
	conn    *Conn
	ctx     context.Context
	cancel  context.CancelFunc
	ws      *websocket.Conn
	idle    *time.Timer // timer that runs while RecvMsg waits, and ends a silent session
	silent  atomic.Bool // whether the timer idle has ended the session
	writing atomic.Bool // whether a write is blocked, for example because the command reads no input
	err     error       // last error, which RecvMsg returns
}

func (c *Conn) session(ctx context.Context) *session {
	s := &session{conn: c}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

func (s *session) Header() (metadata.MD, error) { return nil, nil }
func (s *session) Trailer() metadata.MD         { return nil }
func (s *session) Context() context.Context     { return s.ctx }

// CloseSend does nothing: a websocket cannot close one direction, so a separate message carries the end of
// the input.
func (s *session) CloseSend() error { return nil }

func (s *session) SendMsg(m any) error {
	in, ok := m.(proto.Message)
	if !ok {
		return status.Error(codes.Internal, "no protobuf message")
	}
	if s.ws == nil {
		if err := s.dial(in); err != nil {
			s.cancel()
			return err
		}
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(in)
	if err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	s.writing.Store(true)
	defer s.writing.Store(false)
	if s.ws.Write(s.ctx, websocket.MessageText, data) != nil {
		return io.EOF // RecvMsg will return the reason
	}
	return nil
}

func (s *session) dial(first proto.Message) error {
	open, ok := first.(*clusterv1.ExecRequest)
	if !ok || open.GetOpen() == nil {
		return status.Error(codes.InvalidArgument, "the first message must be open")
	}
	path, _, err := execRoute.request(open.GetOpen())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	header, err := s.conn.header()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.conn.opt.CallTimeout) // this deadline covers only the handshake
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, s.conn.base+path, &websocket.DialOptions{
		HTTPClient: s.conn.http, HTTPHeader: header, Subprotocols: []string{execProtocol},
		OnPingReceived: func(context.Context, []byte) bool {
			s.idle.Reset(s.conn.silence)
			return !s.writing.Load() // the websocket library ends the session if it cannot write a pong for 5 s
		},
	})
	switch {
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		data, err := read(resp) // the websocket library keeps at most 1 KiB of the error's text
		if err != nil {
			return failed(ctx, err, false)
		}
		return s.conn.problem(resp.StatusCode, data, false)
	case err != nil:
		return failed(ctx, err, false)
	}
	ws.SetReadLimit(maxAnswer)
	s.ws = ws
	s.idle = time.AfterFunc(s.conn.silence, func() { s.silent.Store(true); s.cancel() })
	s.idle.Stop()
	context.AfterFunc(s.ctx, func() { _ = ws.CloseNow() }) // CloseNow fails only if the websocket is already closed
	return nil
}

func (s *session) RecvMsg(m any) error {
	if s.ws == nil {
		return status.Error(codes.Internal, "nothing was sent")
	}
	return receive(m, &s.err, s.recv, s.cancel)
}

func (s *session) recv(out proto.Message) error {
	s.idle.Reset(s.conn.silence)
	_, data, err := s.ws.Read(s.ctx)
	s.idle.Stop()
	switch {
	case err == nil:
		return s.conn.said(data, out)
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
		return io.EOF
	case s.silent.Load():
		return status.Errorf(codes.Unavailable, "connection error: the gateway sent nothing for %s", s.conn.silence)
	}
	return failed(s.ctx, err, false)
}

// said decodes one websocket message of a session into out. If the message is the gateway's error message, it returns
// that error.
func (c *Conn) said(data []byte, out proto.Message) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, out); err != nil {
		return status.Errorf(codes.Internal, "%s sent data that is not a message of this API: %v", c.base, err)
	}
	if proto.Size(out) > 0 {
		return nil
	}
	var end struct {
		Error *struct{ Code, Reason, Message string }
	}
	if err := json.Unmarshal(data, &end); err == nil && end.Error != nil {
		return named(codes.Unknown, end.Error.Code, end.Error.Reason, end.Error.Message)
	}
	return nil // a newer gateway may send messages that this version does not know
}
