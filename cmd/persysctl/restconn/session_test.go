package restconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/testbed/wire"
)

// talk opens an Exec session over cn and reads the first answer.
func talk(t *testing.T, cn *Conn) (clusterv1.Cluster_ExecClient, *clusterv1.ExecResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	s, err := clusterv1.NewClusterClient(cn).Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"sh"}}}}); err != nil {
		return s, nil, err
	}
	m, err := s.Recv()
	return s, m, err
}

// accept upgrades an HTTP request to a websocket, reads the opening message of the session and sends each of
// texts.
func accept(t *testing.T, w http.ResponseWriter, r *http.Request, texts ...string) *websocket.Conn {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{execProtocol}})
	if err != nil {
		t.Error(err)
		return nil
	}
	if _, data, err := ws.Read(r.Context()); err != nil || !strings.Contains(string(data), `"open"`) {
		t.Errorf("the first message is %q, error %v; want an open message", data, err)
	}
	for _, text := range texts {
		if err := ws.Write(r.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Error(err)
		}
	}
	return ws
}

// A session over TLS sends the token and the cluster to the gateway, even if the gateway also supports
// HTTP/2.
func TestSessionSendsTokenAndCluster(t *testing.T) {
	var header http.Header
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		header.Set("Path", r.URL.Path)
		if ws := accept(t, w, r, `{"opened":{"node_id":"n"}}`, `{"exit":{"code":3}}`); ws != nil {
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	cn, err := New(Options{URL: srv.URL, Cluster: "east", UserAgent: "persysctl/test", TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, Token: func() (string, error) { return "a.b.c", nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cn.Close() })
	s, m, err := talk(t, cn)
	if err != nil || m.GetOpened().GetNodeId() != "n" {
		t.Fatalf("the session opened with %v, error %v", m, err)
	}
	if m, err = s.Recv(); err != nil || m.GetExit().GetCode() != 3 {
		t.Errorf("the session ended with %v, error %v; want exit code 3", m, err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end of the session, RecvMsg returned %v, want io.EOF", err)
	}
	for name, want := range map[string]string{"Authorization": "Bearer a.b.c", "X-Persys-Cluster-Id": "east", "User-Agent": "persysctl/test", "Path": "/v1/workloads/web/exec", "Origin": ""} {
		if got := header.Get(name); got != want {
			t.Errorf("header %s was %q, want %q", name, got, want)
		}
	}
	cn.opt.TLS, cn.opt.Token = nil, func() (string, error) { return "", errors.New("no such file") }
	if _, _, err := talk(t, cn); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("if the token cannot be read, the error is %v, want Unauthenticated", err)
	}
}

func TestRefusedSessionsKeepTheirError(t *testing.T) {
	for _, c := range []struct {
		name string
		h    http.HandlerFunc
		code codes.Code
		says string
	}{
		{"an unknown caller", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(401)
			_, _ = io.WriteString(w, `{"error":"no client certificate"}`)
		}, codes.Unauthenticated, "no client certificate"},
		{"the role is too low", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, `{"error":"this needs operator","code":"PERMISSION_DENIED"}`)
		}, codes.PermissionDenied, "this needs operator"},
		{"a server that is no gateway", http.NotFound, codes.Unimplemented, "has no /v1"},
		{"a redirect is not followed", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, codes.Unknown, "answered 302"},
		{"the end without an exit code", func(w http.ResponseWriter, r *http.Request) {
			_ = accept(t, w, r).Close(websocket.StatusNormalClosure, "")
		}, codes.Unknown, "EOF"},
		{"a gateway that breaks off", func(w http.ResponseWriter, r *http.Request) { _ = accept(t, w, r).CloseNow() }, codes.Unavailable, "connection error"},
		{"no message of this API", func(w http.ResponseWriter, r *http.Request) {
			_ = accept(t, w, r, `{"exit":[]}`).Close(websocket.StatusNormalClosure, "")
		}, codes.Internal, "not a message of this API"},
		{"an error of the session", func(w http.ResponseWriter, r *http.Request) {
			_ = accept(t, w, r, `{"error":{"code":"NOT_FOUND","message":"workload web"}}`).Close(websocket.StatusNormalClosure, "")
		}, codes.NotFound, "workload web"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := talk(t, conn(t, c.h)); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("opening the session returned %v, want %v with %q", err, c.code, c.says)
			}
		})
	}
}

// A session ends with an error if the gateway sends nothing for the time silence. Pings of the gateway keep a session
// without messages open.
func TestASilentSessionEnds(t *testing.T) {
	alive := conn(t, func(w http.ResponseWriter, r *http.Request) {
		ws := accept(t, w, r)
		ctx := ws.CloseRead(context.Background())
		for range 7 {
			if err := ws.Ping(ctx); err != nil {
				t.Errorf("a ping was not answered: %v", err)
			}
			time.Sleep(500 * time.Millisecond) // shorter than the time limit of three seconds for silence
		}
		_ = ws.Write(ctx, websocket.MessageText, []byte(`{"opened":{"node_id":"n"}}`))
		<-ctx.Done()
	})
	alive.silence = 3 * time.Second
	if _, m, err := talk(t, alive); err != nil || m.GetOpened() == nil {
		t.Errorf("the session ended although the gateway sends pings: %v", err)
	}

	dead := conn(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{execProtocol}})
			for err == nil {
				_, _, err = ws.Read(context.Background())
			}
			return
		}
		w.Header().Set("Content-Type", eventStream)
		_, _ = io.WriteString(w, ": \n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	dead.silence = 200 * time.Millisecond
	if _, _, err := talk(t, dead); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "sent nothing for 200ms") {
		t.Errorf("a session on which the gateway sends nothing ends with %v", err)
	}
	events, err := clusterv1.NewClusterClient(dead).Events(t.Context(), &clusterv1.EventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "sent nothing for 200ms") {
		t.Errorf("a stream on which the gateway sends nothing ends with %v", err)
	}
}

// If the command of a session reads no input, persysctl's answers to the pings of the gateway wait behind
// the blocked input. The session must survive this and continue when the command reads again.
func TestSessionOfABusyCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []byte
		gateway := func(w http.ResponseWriter, r *http.Request) {
			ws := accept(t, w, r, `{"opened":{"node_id":"n"}}`)
			for range 30 {
				ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
				<-ctx.Done()
				cancel()
				ctx, cancel = context.WithTimeout(r.Context(), time.Second)
				_ = ws.Ping(ctx) // this fake gateway does not read the answer to its ping
				cancel()
			}
			_, got, _ = ws.Read(r.Context())
			_ = ws.Write(r.Context(), websocket.MessageText, []byte(`{"exit":{"code":3}}`))
			_ = ws.Close(websocket.StatusNormalClosure, "")
		}
		cn, err := New(Options{URL: "http://gateway", Wrap: func(http.RoundTripper) http.RoundTripper {
			return wire.Transport(func(w http.ResponseWriter, r *http.Request) {
				go gateway(w, r.WithContext(t.Context())) // the request's own context would end with the handshake
				synctest.Wait()
			})
		}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := clusterv1.NewClusterClient(cn).Exec(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "web", Input: true}}}); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(); err != nil || m.GetOpened() == nil {
			t.Fatalf("the session opened with %v, error %v", m, err)
		}
		sent := make(chan error, 1)
		go func() {
			sent <- s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Input{Input: []byte("hello")}})
		}()
		if m, err := s.Recv(); err != nil || m.GetExit().GetCode() != 3 || !strings.Contains(string(got), "aGVsbG8=") {
			t.Errorf("the session ended with %v, %v, want exit code 3; the command read %q, want the input", m, err, got)
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("after the end of the session, RecvMsg returned %v, want io.EOF", err)
		}
		<-sent
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// If the caller of a stream pauses between two reads, the stream must not be ended because of this pause: only the
// time in which the gateway sends nothing may end it.
func TestStreamOfASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cn, err := New(Options{URL: "http://gateway", Wrap: func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				body, w := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = w.CloseWithError(r.Context().Err()) })
				go func() {
					_, _ = io.WriteString(w, "data: {\"seq\":\"1\"}\n\n")
					_, _ = io.WriteString(w, "data: {\"seq\":\"2\"}\n\n")
				}()
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {eventStream}}, Body: body}, nil
			})
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := clusterv1.NewClusterClient(cn).Events(ctx, &clusterv1.EventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for want := range uint64(2) {
			if e, err := s.Recv(); err != nil || e.GetSeq() != want+1 {
				t.Errorf("the stream returned %v, error %v, want event %d", e, err, want+1)
			}
			time.Sleep(10 * silence)
		}
	})
}
