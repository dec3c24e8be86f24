package dial

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

func TestCallsMoveToALiveReplica(t *testing.T) {
	s := []*server{start(t, nil), start(t, nil), start(t, nil)}
	c := dialTo(t, Options{Addrs: []string{s[0].addr, s[1].addr, s[2].addr}})
	for range 5 {
		mustCall(t, c, apply)
	}
	if s[0].calls.Load() != 5 {
		t.Fatalf("the first address got %d of 5 calls, want all", s[0].calls.Load())
	}
	for i := range 2 {
		s[i].grpc.Stop()
		begin := time.Now()
		mustCall(t, c, apply)
		gap := time.Since(begin)
		t.Logf("the longest gap after the loss of a replica is %v", gap)
		if gap > 2*time.Second {
			t.Errorf("calls failed for %v after the loss of a replica, want at most 2 s", gap)
		}
	}
	if s[2].calls.Load() != 1 {
		t.Errorf("the last replica got %d calls, want 1", s[2].calls.Load())
	}
	s[2].grpc.Stop()
	begin := time.Now()
	err := call(c, get, 700*time.Millisecond)
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), s[0].addr) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error must name the address and the cause, but is: %v", err)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("the call with a deadline of 0.7 s took %v, want at most 3 s", d)
	}
}

func TestReconnectsWhenTheReplicaReturns(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := dialTo(t, Options{Addrs: []string{addr}})
	done := make(chan error, 1)
	go func() { done <- call(c, apply, 10*time.Second) }()
	testbed.Until(t, "the first attempt of a call failed", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.peers[0].penalised(time.Now())
	})
	l, err = net.Listen("tcp", addr)
	testbed.Need(t, "the port that was free before", err)
	serve(t, l, nil)
	if err := <-done; err != nil {
		t.Errorf("a call that was made before the scheduler started must succeed, but returned %v", err)
	}
}

func TestLeaderHintsAreFollowed(t *testing.T) {
	t.Run("a leader in the list of addresses gets the calls", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.leader.Store(b.addr)
		b.leader.Store(b.addr)
		c := dialTo(t, Options{Addrs: []string{a.addr, b.addr}})
		mustCall(t, c, get)
		if c.Leader() != b.addr {
			t.Fatalf("the Conn knows leader %q, want %q", c.Leader(), b.addr)
		}
		testbed.Until(t, "the leader gets the calls", func() bool { mustCall(t, c, get); return b.calls.Load() > 0 })
		before := a.calls.Load()
		mustCall(t, c, get)
		if a.calls.Load() != before {
			t.Error("a follower still gets calls, want all calls at the leader")
		}
		b.grpc.Stop()
		a.leader.Store("")
		testbed.Until(t, "no answer names a leader that is dead", func() bool { mustCall(t, c, get); return c.Leader() == "" })
	})
	t.Run("a leader outside of the list of addresses gets the calls", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.leader.Store(b.addr)
		c := dialTo(t, Options{Addrs: []string{a.addr}})
		testbed.Until(t, "the leader gets the calls", func() bool { mustCall(t, c, get); return b.calls.Load() > 0 })
		a.leader.Store(a.addr)
		b.leader.Store(a.addr)
		mustCall(t, c, get)
		before := b.calls.Load()
		mustCall(t, c, get)
		if b.calls.Load() != before {
			t.Error("a former leader outside of the list must get no calls, but still does")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.guest != nil {
			t.Error("the Conn must drop the former leader, but still has it")
		}
	})
	t.Run("calls are not delayed by a leader's address at which nobody listens", func(t *testing.T) {
		a := start(t, nil)
		a.leader.Store(vacant(t))
		c := dialTo(t, Options{Addrs: []string{a.addr}})
		for range 20 {
			begin := time.Now()
			mustCall(t, c, get)
			if d := time.Since(begin); d > time.Second {
				t.Fatalf("a call took %v although the address of the named leader is one at which nobody listens, want at most 1 s", d)
			}
		}
	})
	t.Run("the leader's address is also taken from the trailer of an error", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.leader.Store(b.addr)
		a.on(func(context.Context) error { return status.Error(codes.NotFound, "x") })
		c := dialTo(t, Options{Addrs: []string{a.addr, b.addr}})
		wantCode(t, call(c, get, 5*time.Second), codes.NotFound)
		if c.Leader() != b.addr {
			t.Errorf("after an error that names the leader, the Conn knows leader %q, want %q", c.Leader(), b.addr)
		}
	})
}

func TestOnlyCredibleHintsAreFollowed(t *testing.T) {
	for _, tc := range []struct {
		hint, from string
		want       bool
	}{
		{"10.0.0.2:8085", "10.0.0.1:8085", true},
		{"sched-2.example.com:8085", "10.0.0.1:8085", true},
		{"127.0.0.1:8085", "10.0.0.1:8085", false},
		{"localhost:8085", "10.0.0.1:8085", false},
		{"127.0.0.1:9085", "localhost:8085", true},
		{"0.0.0.0:8085", "127.0.0.1:8085", false},
		{"[::]:8085", "127.0.0.1:8085", false},
		{":8085", "127.0.0.1:8085", false},
		{"host", "10.0.0.1:8085", false},
		{"unix:/x:1", "10.0.0.1:8085", false},
		{"", "10.0.0.1:8085", false},
	} {
		if got := credible(tc.hint, tc.from); got != tc.want {
			t.Errorf("credible returned the wrong result for leader address %q in an answer of the replica at %s: %v", tc.hint, tc.from, got)
		}
	}
}

// never is the handler of a fake replica that hangs: it returns only when the caller gives up.
func never(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func after(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return nil
	}
}

func TestAHangingReplicaLosesItsCalls(t *testing.T) {
	quick := Options{StallAfter: 100 * time.Millisecond, ProbeTimeout: 300 * time.Millisecond}
	t.Run("a unary call on a replica that hangs is moved to another replica", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		p := frozenProxy(t, a.addr)
		opt := quick
		opt.Addrs = []string{p.addr, b.addr}
		c := dialTo(t, opt)
		mustCall(t, c, apply)
		p.frozen.Store(true)
		begin := time.Now()
		mustCall(t, c, apply)
		t.Logf("the longest gap after a replica hung is %v", time.Since(begin))
		if b.calls.Load() != 1 {
			t.Errorf("the replica that does not hang got %d calls, want one", b.calls.Load())
		}
	})
	t.Run("calls with short deadlines detect a hanging replica", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		p := frozenProxy(t, a.addr)
		opt := quick
		opt.StallAfter = time.Hour
		opt.Addrs = []string{p.addr, b.addr}
		c := dialTo(t, opt)
		mustCall(t, c, apply)
		p.frozen.Store(true)
		wantCode(t, call(c, apply, 50*time.Millisecond), codes.DeadlineExceeded)
		testbed.Until(t, "the other replica is called", func() bool { return call(c, apply, 50*time.Millisecond) == nil })
	})
	t.Run("a replica that did not answer before a deadline is called last, even if it answers probes", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.leader.Store(a.addr)
		opt := quick
		opt.Addrs = []string{a.addr, b.addr}
		c := dialTo(t, opt)
		mustCall(t, c, apply)
		a.on(never) // behaves like a replica that is cut off and waits for a leader
		wantCode(t, call(c, apply, 50*time.Millisecond), codes.DeadlineExceeded)
		mustCall(t, c, apply)
		if a.calls.Load() != 2 || b.calls.Load() != 1 {
			t.Errorf("the first replica got %d calls and the second %d, want 2 and 1", a.calls.Load(), b.calls.Load())
		}
		// A replica that did not answer is tried last for minPenalty. After that time, calls still go to the second
		// replica, because the second replica answers.
		time.Sleep(minPenalty)
		mustCall(t, c, apply)
		if a.calls.Load() != 2 || b.calls.Load() != 2 {
			t.Errorf("the first replica got %d calls and the second %d, want 2 and 2", a.calls.Load(), b.calls.Load())
		}
	})
	t.Run("a slow replica is not replaced", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.on(after(800 * time.Millisecond))
		opt := quick
		opt.Addrs = []string{a.addr, b.addr}
		c := dialTo(t, opt)
		mustCall(t, c, apply)
		if a.calls.Load() != 1 || b.calls.Load() != 0 {
			t.Errorf("a slow call must not be repeated, but the replicas got %d and %d calls", a.calls.Load(), b.calls.Load())
		}
	})
	t.Run("a read without an answer is moved to another replica, even if the first answers probes", func(t *testing.T) {
		a, b := start(t, nil), start(t, nil)
		a.on(never)
		opt := quick
		opt.ReadPatience = 200 * time.Millisecond
		opt.Addrs = []string{a.addr, b.addr}
		c := dialTo(t, opt)
		if err := call(c, get, time.Minute); err != nil {
			t.Fatal(err)
		}
		if a.calls.Load() != 1 || b.calls.Load() != 1 {
			t.Errorf("the first replica got %d calls and the second %d, want one each", a.calls.Load(), b.calls.Load())
		}
		// The second replica is slow too. A read is repeated at only one other replica and then waits for that
		// replica; a mutation waits for its first replica.
		var asked atomic.Int64
		slow := func(ctx context.Context) error {
			if asked.Add(1) == 1 {
				return never(ctx)
			}
			return after(2 * opt.ReadPatience)(ctx)
		}
		a.on(slow)
		b.on(slow)
		if err := call(c, get, time.Minute); err != nil || asked.Load() != 2 {
			t.Errorf("a read returned error %v after %d attempts, want success after 2", err, asked.Load())
		}
		asked.Store(1)
		if err := call(c, apply, time.Minute); err != nil || asked.Load() != 2 {
			t.Errorf("a mutation returned error %v after %d attempts, want success after 1", err, asked.Load()-1)
		}
	})
	t.Run("the streams of a replica that hangs are ended", func(t *testing.T) {
		a := start(t, nil)
		p := frozenProxy(t, a.addr)
		opt := quick
		opt.Addrs = []string{p.addr}
		c := dialTo(t, opt)
		st := openStream(t, c)
		ping(t, st)
		p.frozen.Store(true)
		err := st.RecvMsg(new(healthpb.HealthCheckResponse))
		wantCode(t, err, codes.Unavailable)
	})
}

func TestOnlySafeCallsAreRepeated(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error // error in the first replica's answer
		second int64 // expected number of calls at the second replica
		want   codes.Code
	}{
		{"a call is repeated after Unavailable without a reason", status.Error(codes.Unavailable, "x"), 1, codes.OK},
		{"NO_LEADER is retried", Error(codes.Unavailable, ReasonNoLeader, "x"), 1, codes.OK},
		{"NOT_LEADER is retried", Error(codes.Unavailable, ReasonNotLeader, "x"), 1, codes.OK},
		{"Unavailable with any other Persys reason is returned to the caller", Error(codes.Unavailable, "FROZEN", "x"), 0, codes.Unavailable},
		{"a call with an unknown outcome is repeated under the same id", UnknownOutcome("x"), 1, codes.OK},
		{"a refusal is returned to the caller", status.Error(codes.FailedPrecondition, "x"), 0, codes.FailedPrecondition},
		{"the error ResourceExhausted of a busy replica is returned to the caller", status.Error(codes.ResourceExhausted, "x"), 0, codes.ResourceExhausted},
		{"DeadlineExceeded of a deadline inside the replica is returned to the caller", status.Error(codes.DeadlineExceeded, "x"), 0, codes.DeadlineExceeded},
		{"an internal error is returned to the caller", status.Error(codes.Internal, "x"), 0, codes.Internal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := start(t, nil), start(t, nil)
			a.on(func(context.Context) error { return tc.err })
			c := dialTo(t, Options{Addrs: []string{a.addr, b.addr}})
			wantCode(t, call(c, apply, 5*time.Second), tc.want)
			if b.calls.Load() != tc.second {
				t.Errorf("the second replica got %d calls, want %d", b.calls.Load(), tc.second)
			}
			ids := slices.Concat(a.seen(), b.seen())
			if len(ids) != 1+int(tc.second) || len(slices.Compact(ids)) != 1 {
				t.Errorf("the replicas received calls with the request ids %v, want %d attempts of one call, all with the same request id", ids, 1+tc.second)
			}
		})
	}
}

func TestNoLeaderIsWaitedFor(t *testing.T) {
	a := start(t, nil)
	var n atomic.Int64
	a.on(func(context.Context) error {
		if n.Add(1) < 4 {
			return Error(codes.Unavailable, ReasonNoLeader, "no leader")
		}
		return nil
	})
	c := dialTo(t, Options{Addrs: []string{a.addr}})
	mustCall(t, c, apply)
	a.on(func(context.Context) error { return Error(codes.Unavailable, ReasonNoLeader, "no leader") })
	err := call(c, apply, 300*time.Millisecond)
	if status.Code(err) != codes.Unavailable || Reason(err) != ReasonNoLeader {
		t.Errorf("a call without a leader returned %v, want the error of the replica", err)
	}
}

func TestALostAnswerIsAnUnknownOutcome(t *testing.T) {
	for _, tc := range []struct {
		method string
		want   bool
	}{{apply, true}, {get, false}, {why, false}} {
		t.Run(tc.method, func(t *testing.T) {
			a := start(t, nil)
			a.on(func(ctx context.Context) error {
				go a.grpc.Stop() // this replica dies while it handles the request
				<-ctx.Done()
				return nil
			})
			c := dialTo(t, Options{Addrs: []string{a.addr, vacant(t)}})
			err := call(c, tc.method, time.Second)
			if err == nil || IsUnknownOutcome(err) != tc.want {
				t.Errorf("a call whose replica died returned %v, want an unknown outcome: %v", err, tc.want)
			}
		})
	}
	c := dialTo(t, Options{Addrs: []string{vacant(t)}})
	if err := call(c, apply, 300*time.Millisecond); IsUnknownOutcome(err) || status.Code(err) != codes.Unavailable {
		t.Errorf("a call that reached no replica returned %v, want Unavailable and no unknown outcome", err)
	}
	if IsUnknownOutcome(nil) || IsUnknownOutcome(errors.New("x")) || !IsUnknownOutcome(errors.Join(UnknownOutcome("x"))) {
		t.Error("IsUnknownOutcome must return true only for errors that wrap UnknownOutcome, but it returned true for another error or false for such an error")
	}
}

// TestCallsWithoutReceiptsAreNotRepeated: the schedulers store no answer (receipt) for some mutations. Such a call
// must not be repeated at another replica, because it could then be applied twice.
func TestCallsWithoutReceiptsAreNotRepeated(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	a.on(func(ctx context.Context) error {
		go a.grpc.Stop()
		<-ctx.Done()
		return nil
	})
	c := dialTo(t, Options{Addrs: []string{vacant(t), a.addr, b.addr}})
	if err := call(c, removeReplica, 5*time.Second); !IsUnknownOutcome(err) || a.calls.Load() != 1 || b.calls.Load() != 0 {
		t.Errorf("the first replica got a call without a receipt %d times and the second replica %d times, want one call in all (error %v)", a.calls.Load(), b.calls.Load(), err)
	}
	// The first two addresses are unreachable, so these replicas have not received the request, and the call must be
	// tried at the third replica.
	mustCall(t, c, removeReplica)
}

func TestMetadataOfCalls(t *testing.T) {
	a := start(t, nil)
	c := dialTo(t, Options{Addrs: []string{a.addr}, CallTimeout: 7 * time.Second})
	req, rsp := &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}
	if err := c.Invoke(context.Background(), get, req, rsp); err != nil {
		t.Fatal(err)
	}
	if a.timeout <= 5*time.Second || a.timeout > 7*time.Second {
		t.Errorf("a call without a deadline got the deadline %v", a.timeout)
	}
	if ids := a.seen(); len(ids) != 0 {
		t.Errorf("a read must have no request id, but has the ids %v", ids)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), KeyRequestID, "mine")
	if err := c.Invoke(ctx, apply, req, rsp); err != nil {
		t.Fatal(err)
	}
	if ids := a.seen(); !slices.Equal(ids, []string{"mine"}) {
		t.Errorf("the attempts had the request ids %v, want the id that the caller has set", ids)
	}
}

func openStream(t testing.TB, c *Conn) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	st, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, watch)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func ping(t testing.TB, st grpc.ClientStream) {
	t.Helper()
	if err := st.SendMsg(&healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(new(healthpb.HealthCheckResponse)); err != nil {
		t.Fatal(err)
	}
}

func TestStreamsEndWithTheirReplica(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	c := dialTo(t, Options{Addrs: []string{vacant(t), a.addr, b.addr}, CallTimeout: 5 * time.Second})
	st := openStream(t, c)
	ping(t, st)
	a.grpc.Stop()
	wantCode(t, st.RecvMsg(new(healthpb.HealthCheckResponse)), codes.Unavailable)

	b.leader.Store(b.addr)
	st = openStream(t, c)
	ping(t, st)
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(new(healthpb.HealthCheckResponse)); err != io.EOF {
		t.Errorf("the stream ended with %v, want io.EOF", err)
	}
	if c.Leader() != b.addr {
		t.Errorf("the leader from a stream's trailer is %q, want %q", c.Leader(), b.addr)
	}
	testbed.Until(t, "the connection counts no stream any more", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for p := range c.all {
			p.mu.Lock()
			n := p.streams
			p.mu.Unlock()
			if n != 0 {
				return false
			}
		}
		return true
	})
}

func TestCloseEndsCalls(t *testing.T) {
	a := start(t, nil)
	a.on(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	c := dialTo(t, Options{Addrs: []string{a.addr}})
	done := make(chan error, 1)
	go func() { done <- call(c, apply, 20*time.Second) }()
	testbed.Until(t, "the call is in progress", func() bool { return a.calls.Load() == 1 })
	c.Close()
	if err := <-done; err == nil {
		t.Error("Close returned while a call was still running, want all calls ended")
	}
	wantCode(t, call(c, apply, time.Second), codes.Canceled)
	if err := c.Close(); err != nil {
		t.Errorf("the second Close returned %v, want success", err)
	}
}

func TestACancelledCallEnds(t *testing.T) {
	c := dialTo(t, Options{Addrs: []string{vacant(t)}})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	err := c.Invoke(ctx, get, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	wantCode(t, err, codes.Canceled)
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		opt  Options
		want string
	}{
		{"neither TLS nor insecure", Options{Addrs: []string{"a"}}, "PERSYS_TLS_CERT"},
		{"no address", Options{Insecure: true}, "no scheduler address"},
		{"a bad address", Options{Insecure: true, Addrs: []string{"a:b"}}, `port "b"`},
		{"a bad discovery", Options{Insecure: true, Discovery: "srv://"}, "DNS name"},
		{"an endpoint that is not an address", Options{Endpoints: []Endpoint{{Addr: "a", Names: []string{"a"}}}, Insecure: true}, `"a" must be host:port`},
		{"an endpoint without a name", Options{Endpoints: []Endpoint{{Addr: "a:1"}}, Insecure: true}, `"a:1" needs a name`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Dial(t.Context(), tc.opt); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Dial with these options returned %v, want an error that contains %q", err, tc.want)
			}
		})
	}
}

func TestConnectionsRequireCertificates(t *testing.T) {
	certs := func() map[string]*pki.Files {
		set, err := pki.DevCerts(filepath.Join(t.TempDir(), "c"), pki.DevOptions{Cluster: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*pki.Files{}
		for name, p := range set.Leaf {
			if out[name], err = pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key}); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	ours, theirs := certs(), certs()
	good := start(t, ours["scheduler/scheduler-1"])
	_, port, _ := net.SplitHostPort(good.addr)
	for _, tc := range []struct {
		name   string
		server string
		client *pki.Files
		want   string
	}{
		{"an agent reaches a scheduler by address", good.addr, ours["agent/node-a"], ""},
		{"the admin reaches a scheduler by name", "localhost:" + port, ours["user/admin"], ""},
		{"a client with a certificate of another CA is refused", good.addr, theirs["agent/node-a"], "is not valid for the CA"},
		{"an agent's certificate is refused where a scheduler is expected", start(t, ours["agent/node-b"]).addr, ours["agent/node-a"], "want role scheduler"},
		{"a server without TLS is refused", start(t, nil).addr, ours["agent/node-a"], "handshake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialTo(t, Options{Addrs: []string{tc.server}, TLS: tc.client})
			timeout := 10 * time.Second
			if tc.want != "" {
				timeout = 500 * time.Millisecond
			}
			err := call(c, apply, timeout)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the call returned %v, want Unavailable with the text %q", err, tc.want)
			}
		})
	}
}

func BenchmarkInvoke(b *testing.B) {
	a := start(b, nil)
	c := dialTo(b, Options{Addrs: []string{a.addr}})
	plain, err := c.connect(endpointOf(a.addr))
	if err != nil {
		b.Fatal(err)
	}
	defer plain.Close()
	for name, cc := range map[string]grpc.ClientConnInterface{"persys": c, "plain": plain} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				if err := cc.Invoke(ctx, apply, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{}); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
		})
	}
}

// large is a server whose answer is a list with one node of a given size.
type large struct {
	controlv1.UnimplementedAgentControlServer
	bytes int
}

func (l large) ListNodes(context.Context, *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	return &controlv1.ListNodesResponse{Nodes: []*controlv1.NodeView{{NodeId: strings.Repeat("n", l.bytes)}}}, nil
}

// TestLargeAnswersAreReceived: a client can receive the complete list of nodes of a large cluster in one
// answer.
func TestLargeAnswersAreReceived(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxSendMsgSize(MaxAnswer))
	controlv1.RegisterAgentControlServer(s, large{bytes: MaxAnswer - 1<<10})
	served := make(chan struct{})
	go func() { _ = s.Serve(l); close(served) }()
	t.Cleanup(func() { s.Stop(); <-served })
	const patience = 5 * time.Minute // needed with the race detector on a busy machine
	c := dialTo(t, Options{Addrs: []string{l.Addr().String()}, CallTimeout: patience, StallAfter: patience, ProbeTimeout: patience})
	if _, err := controlv1.NewAgentControlClient(c).ListNodes(t.Context(), &controlv1.ListNodesRequest{}); err != nil {
		t.Error(err)
	}
}
