package restconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMessagesBecomeRequests(t *testing.T) {
	table, err := routes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		ask                func() (string, []byte, error)
	}{
		{"GET", "/v1/workloads/web-1?level=READ_LEVEL_STALE", "", func() (string, []byte, error) {
			return table[controlv1.AgentControl_GetWorkload_FullMethodName].request(&controlv1.GetWorkloadRequest{WorkloadId: "web-1", Level: controlv1.ReadLevel_READ_LEVEL_STALE})
		}},
		{"GET", "/v1/events?follow=true&tail=5&types=NodeLost&types=a%26b", "", func() (string, []byte, error) {
			return table[clusterv1.Cluster_Events_FullMethodName].request(&clusterv1.EventsRequest{Follow: true, Tail: 5, Types: []string{"NodeLost", "a&b"}})
		}},
		{"POST", "/v1/nodes/a%2Fb/cordon", `{"node_id":"a/b","on":true}`, func() (string, []byte, error) {
			return table[clusterv1.Cluster_CordonNode_FullMethodName].request(&clusterv1.CordonNodeRequest{NodeId: "a/b", On: true})
		}},
		{"DELETE", "/v1/nodes/n?force=true", "", func() (string, []byte, error) {
			return table[clusterv1.Cluster_RemoveNode_FullMethodName].request(&clusterv1.RemoveNodeRequest{NodeId: "n", Force: true})
		}},
	} {
		path, body, err := c.ask()
		if got := strings.ReplaceAll(string(body), " ", ""); err != nil || path != c.path || got != c.body {
			t.Errorf("the request is %s %s, error %v; want %s %s", path, got, err, c.path, c.body)
		}
	}
	if _, _, err := table[controlv1.AgentControl_GetWorkload_FullMethodName].request(&controlv1.GetWorkloadRequest{}); err == nil {
		t.Error("a request without an id was built, and its path is that of the list of all objects")
	}
}

// conn returns a Conn to a test server with the handler h.
func conn(t *testing.T, h http.HandlerFunc) *Conn {
	t.Helper()
	s := httptest.NewServer(h)
	c, err := New(Options{URL: s.URL, CallTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); s.CloseClientConnections(); s.Close() })
	return c
}

func TestEventsOfAStream(t *testing.T) {
	const big = 200 << 10 // an event that is larger than the buffer of the stream's reader
	for _, c := range []struct {
		name, answer string
		status       int
		cut          bool
		seqs         []uint64
		err          error
		code         codes.Code
		says         string
	}{
		{name: "events, comments, several lines", answer: ": still here\n\nid: 1\ndata: {\"seq\":\"1\",\ndata: \"type\":\"Placed\"}\n\ndata:{\"seq\":\"2\"}\r\n\r\n", seqs: []uint64{1, 2}, err: io.EOF},
		{name: "an error event ends the stream", answer: "data: {\"seq\":\"1\"}\n\nevent: error\ndata: {\"code\":5,\"message\":\"gone\"}\n\n", seqs: []uint64{1}, code: codes.NotFound},
		{name: "an error before the first event is returned with its HTTP status", status: 404, answer: "event: error\ndata: {\"code\":5,\"message\":\"gone\"}\n\n", code: codes.NotFound},
		{name: "a long line", answer: "data: {\"seq\":\"3\",\"message\":\"" + strings.Repeat("x", big) + "\"}\n\n", seqs: []uint64{3}, err: io.EOF},
		{name: "a connection that breaks", answer: "data: {\"seq\":\"1\"}\n\n", cut: true, seqs: []uint64{1}, code: codes.Unavailable},
		{name: "an event of another API", answer: "data: {\"seq\":[]}\n\n", code: codes.Internal},
		{name: "an error behind a comment", answer: ": still here\n\n{\"error\":\"no leader\",\"code\":\"UNAVAILABLE\"}\n", code: codes.Unavailable, says: "no leader"},
		{name: "a line that does not belong to an event", answer: "id: 1\nretry: 5\ndata: {\"seq\":\"1\"}\n\nbad gateway\n", seqs: []uint64{1}, code: codes.Unknown, says: "bad gateway"},
		{name: "an incomplete event at the end is ignored", answer: "data: {\"seq\":\"1\"}\n", err: io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			cn := conn(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept") != eventStream {
					t.Errorf("the request accepts %q", r.Header.Get("Accept"))
				}
				w.Header().Set("Content-Type", eventStream)
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				_, _ = io.WriteString(w, c.answer)
				_ = http.NewResponseController(w).Flush()
				if c.cut {
					panic(http.ErrAbortHandler)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := clusterv1.NewClusterClient(cn).Events(ctx, &clusterv1.EventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var seqs []uint64
			for {
				var e *clusterv1.Event
				if e, err = s.Recv(); err != nil {
					break
				}
				seqs = append(seqs, e.GetSeq())
			}
			if len(seqs) != len(c.seqs) {
				t.Errorf("the stream returned the events %v, want %v", seqs, c.seqs)
			}
			if c.err != nil && !errors.Is(err, c.err) || c.err == nil && status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the stream ended with %v, want %v %v %s", err, c.err, c.code, c.says)
			}
			if _, again := s.Recv(); again == nil {
				t.Error("Recv returned a message after the end of the stream")
			}
		})
	}
}

func TestAnswersBecomeMessagesAndErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		code   codes.Code
		says   string
	}{
		{"an error of the gateway", 404, `{"error":"workload \"x\" not found","code":"NOT_FOUND"}`, codes.NotFound, "not found"},
		{"the code in the body takes precedence over the HTTP status", 409, `{"error":"busy","code":"ABORTED"}`, codes.Aborted, "busy"},
		{"an error without a code", 401, `{"error":"who are you"}`, codes.Unauthenticated, "who are you"},
		{"an answer of a proxy", 502, "<html>bad gateway", codes.Unavailable, "answered 502"},
		{"a redirect is not followed", 302, "", codes.Unknown, "answered 302"},
		{"an answer that is not JSON", 200, "<html>", codes.Internal, "not a Persys gateway"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cn := conn(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			_, err := controlv1.NewAgentControlClient(cn).GetWorkload(t.Context(), &controlv1.GetWorkloadRequest{WorkloadId: "x"})
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %v with %q", err, c.code, c.says)
			}
		})
	}
}

// TestLostAnswersAreRepeatedOnlyIfSafe: if the answers to a call are lost, the call is repeated only if
// repeating is safe, and ends with an error that says whether the change may have happened.
func TestLostAnswersAreRepeatedOnlyIfSafe(t *testing.T) {
	for _, c := range []struct {
		name    string
		call    func(grpc.ClientConnInterface) error
		asked   int64
		keyed   bool
		unknown bool
	}{
		{"a change is repeated with its idempotency key", func(cn grpc.ClientConnInterface) error {
			_, err := clusterv1.NewClusterClient(cn).CordonNode(t.Context(), &clusterv1.CordonNodeRequest{NodeId: "n"})
			return err
		}, 3, true, true},
		{"a change for which the scheduler stores no answer is not repeated", func(cn grpc.ClientConnInterface) error {
			_, err := clusterv1.NewClusterClient(cn).RemoveReplica(t.Context(), &clusterv1.RemoveReplicaRequest{Replica: "s1"})
			return err
		}, 1, false, true},
		{"a plan changes nothing", func(cn grpc.ClientConnInterface) error {
			_, err := clusterv1.NewClusterClient(cn).PlanWorkloads(t.Context(), &clusterv1.PlanWorkloadsRequest{})
			return err
		}, 3, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked, keyed atomic.Int64
			cn := conn(t, func(_ http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if r.Header.Get("Idempotency-Key") != "" {
					keyed.Add(1)
				}
				panic(http.ErrAbortHandler)
			})
			err := c.call(cn)
			if asked.Load() != c.asked || (keyed.Load() == c.asked) != c.keyed || err == nil || dial.IsUnknownOutcome(err) != c.unknown {
				t.Errorf("the gateway got %d requests, %d of them with an idempotency key, and the call returned %v; one of these is not as expected", asked.Load(), keyed.Load(), err)
			}
		})
	}
}

func TestInvalidGatewayAddressesAreRefused(t *testing.T) {
	for _, url := range []string{"", "gw:8551", "ftp://gw", "https://", "https://gw?x=1", "https://me@gw", "https://gw#x"} {
		if _, err := New(Options{URL: url}); err == nil {
			t.Errorf("the address %q was accepted", url)
		}
	}
}

// TestARejectedCertificateGivesItsReason: in TLS 1.3 a gateway checks the client's certificate after the client's side
// of the handshake has succeeded. For every size of request, the error must give the gateway's reason, and not only say
// that the connection was closed.
func TestARejectedCertificateGivesItsReason(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.EnableHTTP2 = h2
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
		s.StartTLS()
		t.Cleanup(s.Close)
		roots := x509.NewCertPool()
		roots.AddCert(s.Certificate())
		stranger := s.TLS.Certificates[0] // a certificate of a CA that the server does not trust
		for name, x := range map[string]struct {
			certs []tls.Certificate
			want  string
		}{
			"a call without a certificate":       {nil, "certificate required"},
			"a certificate of another authority": {[]tls.Certificate{stranger}, "certificate"},
		} {
			for range 20 {
				c, err := New(Options{URL: s.URL, CallTimeout: 5 * time.Second, TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: x.certs}})
				if err != nil {
					t.Fatal(err)
				}
				big := &controlv1.ApplyWorkloadRequest{WorkloadId: "web", Spec: &controlv1.WorkloadSpec{Workload: &controlv1.WorkloadSpec_Container{
					Container: &controlv1.ContainerSpec{Image: strings.Repeat("x", 1<<20)},
				}}}
				_, err = controlv1.NewAgentControlClient(c).ApplyWorkload(t.Context(), big)
				_ = c.Close()
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the gateway refuses our certificate: ") || !strings.Contains(err.Error(), x.want) {
					t.Fatalf("%s, HTTP/2 %v: %v", name, h2, err)
				}
			}
		}
	}
}
