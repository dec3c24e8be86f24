package restconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

const eventStream = "text/event-stream"

// NewStream implements grpc.ClientConnInterface. It supports server streams (as server-sent events) and the
// sessions of Cluster.Exec.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if method == clusterv1.Cluster_Exec_FullMethodName {
		return c.session(ctx), nil
	}
	r, ok := c.routes[method]
	if !ok || desc.ClientStreams || r.method != http.MethodGet {
		return nil, noRoute(method)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &stream{conn: c, route: r, ctx: ctx, cancel: cancel}, nil
}

// stream is one request with a streamed response. The request is sent at the first RecvMsg, because the HTTP
// response begins only with the first event, which may come late.
type stream struct {
	conn   *Conn
	route  route
	ctx    context.Context
	cancel context.CancelFunc
	path   string

	body   io.ReadCloser
	lines  *bufio.Reader
	idle   *time.Timer // timer that ends a silent stream; it runs only while a line is read, because the caller may pause between lines
	silent atomic.Bool // whether the timer idle has fired; set before the request is cancelled
	err    error
}

func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }

func (s *stream) SendMsg(m any) error {
	in, ok := m.(proto.Message)
	if !ok {
		return status.Error(codes.Internal, "no protobuf message")
	}
	path, _, err := s.route.request(in)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	s.path = path
	return nil
}

func (s *stream) RecvMsg(m any) error {
	return receive(m, &s.err, s.recv, s.end)
}

// receive implements RecvMsg: it calls recv and stores its first error in last. That error ends the stream,
// and all later calls return it again.
func receive(m any, last *error, recv func(proto.Message) error, end func()) error {
	out, ok := m.(proto.Message)
	if !ok {
		return status.Error(codes.Internal, "no protobuf message")
	}
	if *last != nil {
		return *last
	}
	if *last = recv(out); *last != nil {
		end()
	}
	return *last
}

func (s *stream) end() {
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.body != nil {
		_ = s.body.Close() // an error of Close is ignored, because a read has already returned the reason
	}
	s.cancel()
}

func (s *stream) recv(out proto.Message) error {
	if s.body == nil {
		if err := s.open(); err != nil {
			return err
		}
	}
	for {
		name, data, err := s.event()
		switch {
		case err != nil:
			return err
		case name == "error":
			return fromEvent(data)
		case data == nil:
			continue
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, out); err != nil {
			return status.Errorf(codes.Internal, "%s sent data that is not an event of this API: %v", s.conn.base, err)
		}
		return nil
	}
}

func (s *stream) open() error {
	resp, err := s.conn.do(s.ctx, s.route.method, s.path, nil, "", eventStream)
	if err != nil {
		return failed(s.ctx, err, false)
	}
	if resp.StatusCode != http.StatusOK && !strings.HasPrefix(resp.Header.Get("Content-Type"), eventStream) {
		data, err := read(resp)
		if err != nil {
			return failed(s.ctx, err, false)
		}
		return s.conn.problem(resp.StatusCode, data, false)
	}
	s.body, s.lines = resp.Body, bufio.NewReaderSize(resp.Body, 64<<10)
	s.idle = time.AfterFunc(s.conn.silence, func() { s.silent.Store(true); s.cancel() })
	return nil
}

// event reads one server-sent event, up to the blank line that ends it. data is nil for an event without
// data.
func (s *stream) event() (name string, data []byte, err error) {
	var text bytes.Buffer
	has := false
	for {
		line, err := s.line()
		if err != nil {
			return "", nil, err
		}
		if len(line) == 0 {
			if !has {
				return name, nil, nil
			}
			return name, text.Bytes(), nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			if has {
				text.WriteByte('\n')
			}
			has = true
			text.Write(value)
		case "", "id", "retry":
		default:
			// The gateway can no longer send an HTTP error, because it has already sent status 200 with a comment. So
			// it writes the error as a line of the stream.
			return "", nil, s.conn.problem(http.StatusOK, line, false)
		}
		if text.Len() > maxAnswer {
			return "", nil, status.Errorf(codes.ResourceExhausted, "an event of the gateway is over %d MiB", maxAnswer>>20)
		}
	}
}

func (s *stream) line() ([]byte, error) {
	var whole []byte
	for {
		s.idle.Reset(s.conn.silence)
		part, err := s.lines.ReadSlice('\n')
		s.idle.Stop()
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(whole) <= maxAnswer:
			whole = append(whole, part...)
			continue
		case errors.Is(err, io.EOF) && len(part) == 0 && len(whole) == 0:
			return nil, io.EOF
		case err != nil && s.silent.Load():
			return nil, status.Errorf(codes.Unavailable, "connection error: the gateway sent nothing for %s", s.conn.silence)
		case err != nil:
			return nil, failed(s.ctx, err, false)
		}
		return bytes.TrimRight(append(whole, part...), "\r\n"), nil
	}
}
