// Package wire has an HTTP transport for tests. Its upgraded connections, such as websockets, have no buffer.
// It is a separate package because net/http/httptest adds flags to every program that imports it.
package wire

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
)

// Transport is an http.RoundTripper that calls a handler directly. A connection that the handler upgrades
// has no buffer: a write waits until the other side reads. It works inside testing/synctest.
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
