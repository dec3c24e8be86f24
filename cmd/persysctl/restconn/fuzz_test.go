package restconn

import (
	"bufio"
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// FuzzAnswer decodes arbitrary HTTP answers, because a proxy in front of a gateway may answer with anything.
func FuzzAnswer(f *testing.F) {
	f.Add(200, []byte(`{"workloads":[{"id":"x"}]}`))
	f.Add(503, []byte(`<html>busy</html>`))
	f.Add(409, []byte(`{"error":"no","code":"FAILED_PRECONDITION","reason":"X"}`))
	f.Add(400, []byte(`{"error":"no","code":"\"x"}`))
	f.Fuzz(func(t *testing.T, code int, data []byte) {
		c := &Conn{base: "http://gateway"}
		err := c.answer(code, data, &controlv1.ListWorkloadsResponse{}, true)
		if code != 200 && err == nil {
			t.Fatalf("an answer with status %d returned no error", code)
		}
		if fromEvent(data) == nil {
			t.Fatal("an error event yields no error")
		}
	})
}

// FuzzSession decodes arbitrary messages of a session's websocket.
func FuzzSession(f *testing.F) {
	f.Add([]byte(`{"exit":{"code":7}}`))
	f.Add([]byte(`{"error":{"code":"NOT_FOUND","reason":"X","message":"no"}}`))
	f.Add([]byte(`{"error":{"code":"OK"}}`))
	f.Add([]byte(`{"error":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &clusterv1.ExecResponse{}
		if err := (&Conn{}).said(data, m); err != nil && status.Code(err) == codes.OK {
			t.Fatalf("the error %v has the code OK", err)
		}
	})
}

// FuzzEvents checks that parsing arbitrary bytes as an event stream ends, and returns no more bytes than the
// input has.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: x\ndata: {}\n\ndata: a\ndata: b\r\n\n: beat\n\n"))
	f.Add([]byte("data\n\n\n\n:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &stream{conn: &Conn{base: "http://gateway"}, ctx: ctx, cancel: cancel, lines: bufio.NewReaderSize(bytes.NewReader(data), 16), idle: time.NewTimer(time.Hour)}
		defer s.end()
		for n := 0; ; n++ {
			_, out, err := s.event()
			if err != nil {
				return
			}
			if len(out) > len(data) || n > len(data) {
				t.Fatalf("the parser returned %d events, one of %d bytes, from an input of %d bytes", n, len(out), len(data))
			}
		}
	})
}
