// Package wire is an HTTP transport for tests whose upgraded connections hold nothing back. It stands apart
// because net/http/httptest gives flags to every program that it is part of.
package wire

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
)

// Transport is that of an HTTP client whose requests a handler answers in place. A connection that the
// handler upgrades has no buffer: what one side writes waits until the other reads it. A bubble of
// testing/synctest may hold it.
type Transport func(http.ResponseWriter, *http.Request)

// RoundTrip implements http.RoundTripper.
func (serve Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	near, far := net.Pipe()
	w := hijacked{httptest.NewRecorder(), far}
	serve(w, r)
	resp := w.Result()
	resp.Body = near
	return resp, nil
}

type hijacked struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}
