package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/testbed/wire"
)

// execAt opens a websocket. header alternates names and values.
func execAt(ctx context.Context, url string, protocols []string, header ...string) (*websocket.Conn, *http.Response, error) {
	o := &websocket.DialOptions{Subprotocols: protocols, HTTPHeader: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		o.HTTPHeader.Set(header[i], header[i+1])
	}
	return websocket.Dial(ctx, url, o)
}

// hear reads from the websocket until the session ends, and returns the messages of the gateway.
func hear(ctx context.Context, t *testing.T, ws *websocket.Conn) (all []string) {
	t.Helper()
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
				t.Errorf("the session ended with %v", err)
			}
			return all
		}
		all = append(all, compact(string(data)))
	}
}

// TestExecRunsOverAWebsocket: a session runs over a websocket under the caller's identity, and ends when
// the caller leaves or the gateway closes.
func TestExecRunsOverAWebsocket(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	at := srv.URL + "/v1/workloads/web/exec"
	dial := func(url string, first ...string) *websocket.Conn {
		t.Helper()
		ws, resp, err := execAt(ctx, url, []string{execProtocol}, "Origin", srv.URL)
		if err != nil {
			t.Fatalf("%v (%v)", err, resp)
		}
		for _, m := range first {
			if err := ws.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
				t.Fatal(err)
			}
		}
		return ws
	}
	open := `{"open":{"command":["sh"],"tty":true,"input":true}}`
	want := []string{
		`{"opened":{"idle_seconds":"900","node_id":"node-a"}}`, `{"output":{"data":"c2ggaW4gd2Vi"}}`, // the base64 text means "sh in web"
		`{"output":{"data":"aGVsbG8="}}`, `{"exit":{"code":7}}`,
	}
	for _, url := range []string{at, srv.URL + "/clusters/main/v1/workloads/web/exec"} {
		got := hear(ctx, t, dial(url, open, `{"input":"aGVsbG8="}`, `{"end_input":true}`))
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("the session at %s said\n%s\nwant\n%s", url, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		<-s.ended
	}
	for _, c := range []struct{ fact, path, first, want string }{
		{"an unknown workload", "/v1/workloads/gone/exec", open, `{"error":{"code":"NOT_FOUND","message":"workload gone"}}`},
		{"a first message that is not open", "/v1/workloads/web/exec", `{"input":"aGVsbG8="}`, `{"error":{"code":"INVALID_ARGUMENT","message":"the first message must be open"}}`},
		{"a workload other than the one in the path", "/v1/workloads/web/exec", `{"open":{"workload_id":"db"}}`, `{"error":{"code":"INVALID_ARGUMENT","message":"workload_id: the message has \"db\", but the path has \"web\""}}`},
		{"an unknown field", "/v1/workloads/web/exec", `{"open":{"comand":["sh"]}}`, `unknown field`},
	} {
		if got := hear(ctx, t, dial(srv.URL+c.path, c.first)); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: the gateway sent %q, want one message with %s", c.fact, got, c.want)
		}
	}

	ws := dial(at, open)
	if _, _, err := ws.Read(ctx); err != nil {
		t.Fatal(err)
	}
	_ = ws.CloseNow()
	if got := <-s.ended; got != "web" {
		t.Errorf("the session that ended with its caller was one in workload %s, want web", got)
	}
	ws = dial(at, open)
	if _, _, err := ws.Read(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { g.Close(); close(done) }()
	<-s.ended
	<-done
	_ = ws.CloseNow()
}

// TestExecWaitsForASlowReader: a caller that reads output page by page receives nothing for a while, not even pings, and
// the session continues. The session ends only if the caller reads nothing for longer than the patience.
func TestExecWaitsForASlowReader(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	g.execPing, g.execPatience = 500*time.Millisecond, 30*time.Second
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	open := func() *websocket.Conn {
		t.Helper()
		ws, resp, err := execAt(ctx, srv.URL+"/v1/workloads/web/exec", []string{execProtocol})
		if err != nil {
			t.Fatalf("%v (%v)", err, resp)
		}
		if err := ws.Write(ctx, websocket.MessageText, []byte(`{"open":{"command":["sh"]}}`)); err != nil {
			t.Fatal(err)
		}
		return ws
	}
	ws := open()
	select {
	case <-s.ended:
		t.Error("the session of a slow reader was ended")
	case <-time.After(4 * g.execPing): // the caller answers no ping during this time
	}
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"end_input":true}`)); err != nil {
		t.Fatal(err)
	}
	if got := hear(ctx, t, ws); len(got) != 3 || got[2] != `{"exit":{"code":7}}` {
		t.Errorf("the slow reader read %q", got)
	}
	<-s.ended
	g.execPatience = 50 * time.Millisecond
	ws = open()
	<-s.ended
	_ = ws.CloseNow()
}

// wired gives s a websocket without buffers, on which a write waits until the other side reads, and returns the
// caller's side. The caller's side counts the pings in the variable asked and does not answer them.
func wired(t *testing.T, s *execSession, asked *atomic.Int32) *websocket.Conn {
	t.Helper()
	client := &http.Client{Transport: wire.Transport(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if s.ws, err = websocket.Accept(w, r, nil); err != nil {
			t.Error(err)
		}
	})}
	caller, _, err := websocket.Dial(t.Context(), "http://gateway", &websocket.DialOptions{
		HTTPClient: client, OnPingReceived: func(context.Context, []byte) bool { asked.Add(1); return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	return caller
}

// over is a fake stream to a scheduler, for a session whose command has ended.
type over struct{ clusterv1.Cluster_ExecClient }

func (over) Send(*clusterv1.ExecRequest) error { return io.EOF }

// TestExecEndsWhileInputIsSent: a command such as head ends while its caller still sends. The caller gets its output
// and exit code, and the input that arrives after its end must not cause an error.
func TestExecEndsWhileInputIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &execSession{stream: over{}, workload: "web"}
		caller := wired(t, s, new(atomic.Int32))
		ended := make(chan error, 1)
		go func() { ended <- s.upwards(t.Context()) }()
		for _, m := range []string{`{"open":{"input":true}}`, `{"input":"aGVsbG8="}`} {
			if err := caller.Write(t.Context(), websocket.MessageText, []byte(m)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(ended) != 0 {
			t.Error("the relay of the session ended while its caller was still sending")
		}
		_ = caller.CloseNow()
		_ = s.ws.CloseNow()
		if err := <-ended; err != nil {
			t.Errorf("the caller's connection failed: %v", err)
		}
	})
}

// command is a fake session stream: a Send waits until the test reads the message, as with a command that reads its
// input slowly.
type command struct {
	clusterv1.Cluster_ExecClient
	input chan *clusterv1.ExecRequest
}

func (c command) Send(m *clusterv1.ExecRequest) error { c.input <- m; return nil }

// TestExecWaitsForASlowCommand: a command that reads no input, and a caller that reads no output, delay pings and
// their answers. The session must continue while a message is being sent. When no message is being sent, a missing
// answer to a ping must end the session.
func TestExecWaitsForASlowCommand(t *testing.T) {
	for _, upwards := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cmd, asked := command{input: make(chan *clusterv1.ExecRequest)}, atomic.Int32{}
			s := &execSession{stream: cmd, workload: "web", ping: execPing, patience: execPatience}
			caller := wired(t, s, &asked)
			var tasks sync.WaitGroup
			tasks.Go(func() { _ = s.upwards(ctx) })
			long, goOn := 2*execPatience, func() { <-cmd.input; <-cmd.input }
			read := func() {
				for err := error(nil); err == nil; {
					_, _, err = caller.Read(ctx)
				}
			}
			if upwards {
				tasks.Go(read)
				for _, m := range []string{`{"open":{"input":true}}`, `{"input":"aGVsbG8="}`} {
					tasks.Go(func() { _ = caller.Write(ctx, websocket.MessageText, []byte(m)) })
					synctest.Wait()
				}
			} else {
				long, goOn = execPatience/2, func() { tasks.Go(read) }
				tasks.Go(func() { _ = s.write(ctx, s.patience, []byte("{}")) })
			}
			synctest.Wait()
			began, gone := time.Now(), make(chan time.Time, 1)
			tasks.Go(func() { s.alive(ctx); gone <- time.Now() })
			select {
			case <-gone:
				t.Fatalf("with messages waiting towards the scheduler (%v), the session ended after %s, want that it continues", upwards, time.Since(began))
			case <-time.After(long):
			}
			if n := time.Duration(asked.Load()); upwards && n < long/execPing-1 {
				t.Errorf("the caller got %d pings in %s", n, long)
			}
			began = time.Now()
			goOn()
			if took := (<-gone).Sub(began); took < execPatience-2*execPing || took > execPatience+2*execPing {
				t.Errorf("with messages waiting towards the scheduler (%v), the session of a silent caller was ended after %s, want about s.patience", upwards, took)
			}
			cancel()
			_ = caller.CloseNow()
			_ = s.ws.CloseNow()
			tasks.Wait()
		})
	}
}

// TestMessagesKeepASessionOpen: a caller that sends continuously answers no ping. Its session must continue, because
// its messages prove that it is alive.
func TestMessagesKeepASessionOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cmd, asked := command{input: make(chan *clusterv1.ExecRequest, 100)}, atomic.Int32{}
		s := &execSession{stream: cmd, workload: "web", ping: execPing, patience: execPatience}
		caller := wired(t, s, &asked)
		ctx := caller.CloseRead(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { _ = s.upwards(ctx) })
		gone := make(chan struct{})
		tasks.Go(func() { s.alive(ctx); close(gone) })
		message := `{"open":{"input":true}}`
		for sent := time.Duration(0); sent < 2*execPatience; sent += execPatience / 4 {
			if err := caller.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
				t.Fatalf("the gateway refused a message of a caller that had sent for %s: %v", sent, err)
			}
			message = `{"input":"aGVsbG8="}`
			select {
			case <-gone:
				t.Fatalf("the session of a caller that sends continuously ended after %s", sent)
			case <-time.After(execPatience / 4):
			}
		}
		<-gone // wait until the goroutine of the sending caller has ended
		_ = caller.CloseNow()
		_ = s.ws.CloseNow()
		tasks.Wait()
	})
}

// TestExecIsRefused: if the gateway refuses a session, it answers with an HTTP error and the reason, before the upgrade
// to a websocket.
func TestExecIsRefused(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol", execProtocol}
	for _, c := range []struct {
		fact   string
		host   string
		header []string
		status int
		want   string
	}{
		{"not a websocket", host, nil, 426, execProtocol},
		{"a page of another origin", host, append([]string{"Origin", "https://evil.example"}, upgrade...), 403, "evil.example"},
		{"a page without an origin", host, append([]string{"Origin", "null"}, upgrade...), 403, "null"},
		{"this host with another scheme", host, append([]string{"Origin", "https://" + host}, upgrade...), 403, "https://" + host},
		{"a host name of others that resolves to this gateway", "evil.example", append([]string{"Origin", "http://evil.example"}, upgrade...), 403, "without TLS"},
		{"a malformed token", host, []string{"Sec-WebSocket-Protocol", tokenProtocol + "a/b"}, 400, "base64url"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/workloads/web/exec", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		for i := 0; i+1 < len(c.header); i += 2 {
			req.Header.Set(c.header[i], c.header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var p problem
		if err := json.Unmarshal(body, &p); err != nil || resp.StatusCode != c.status || !strings.Contains(p.Error, c.want) {
			t.Errorf("%s: the answer is %d %s, want status %d with the error %q", c.fact, resp.StatusCode, body, c.status, c.want)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	viewer := withRequest(t.Context(), &request{caller: caller{name: "user vera", role: Viewer}, backend: g.first})
	w := httptest.NewRecorder()
	g.exec(w, httptest.NewRequestWithContext(viewer, http.MethodGet, "/v1/workloads/web/exec", nil))
	if w.Code != 403 || !strings.Contains(w.Body.String(), "user vera has the role viewer, this call needs operator") {
		t.Errorf("a session of a viewer was answered %d %s, want 403 with both roles", w.Code, w.Body)
	}
	var seen string
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Sec-WebSocket-Protocol", execProtocol+", "+tokenProtocol+"YS5iLmM")
	tokenOf(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Get("Authorization") })).ServeHTTP(httptest.NewRecorder(), r)
	if seen != "Bearer a.b.c" {
		t.Errorf("the handler sees the header Authorization: %q, want the token of the WebSocket subprotocol: Bearer a.b.c", seen)
	}
}
