package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/testbed"
)

func TestEnterLimitsTheCallsOfAPeer(t *testing.T) {
	var said []string
	p := NewPeers(Limits{Calls: 5, Concurrent: 8}, func(r string) { said = append(said, r) })
	now := time.Unix(1000, 0)
	p.now = func() time.Time { return now }
	a, b := Peer{"user", "a"}, Peer{"user", "b"}
	var open []*Entry
	for i := range 8 {
		e, err := p.Enter(a)
		if err != nil {
			t.Fatalf("call %d of 8 concurrent calls returned %v, want success", i, err)
		}
		open = append(open, e)
	}
	if _, err := p.Enter(a); !errors.Is(err, ErrConcurrent) {
		t.Errorf("the ninth concurrent call returned %v, want ErrConcurrent", err)
	}
	open[0].Leave()
	if _, err := p.Enter(a); err != nil {
		t.Errorf("a call of peer a after another of its calls has ended returned %v, want success", err)
	}
	if _, err := p.Enter(a); !errors.Is(err, ErrRate) {
		t.Errorf("the eleventh call of peer a within a second returned %v, want ErrRate", err)
	}
	if _, err := p.Enter(b); err != nil {
		t.Errorf("a call of peer b returned %v, want success", err)
	}
	now = now.Add(time.Second)
	open[1].Leave()
	if _, err := p.Enter(a); err != nil {
		t.Errorf("a call of peer a one second later returned %v, want success", err)
	}
	if got := strings.Join(said, " "); got != "concurrency rate" {
		t.Errorf("the refusals had the reasons %s, want concurrency and rate", got)
	}
	// Peers that have made no call for a while must be forgotten, but not a peer with a call in progress.
	now = now.Add(2 * forgetAfter)
	for i := range forgetAt + 10 {
		if _, err := p.Enter(Peer{"host", fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
		p.peers[Peer{"host", fmt.Sprint(i)}].Leave()
	}
	if p.peers[a] == nil || p.peers[b] == nil || len(p.peers) > forgetAt+12 {
		t.Errorf("peer a is %v, peer b is %v, and there are %d peers in all; want both peers, and the idle peers forgotten", p.peers[a], p.peers[b], len(p.peers))
	}
	now = now.Add(2 * forgetAfter)
	if _, err := p.Enter(Peer{"host", "new"}); err != nil || len(p.peers) > 3 {
		t.Errorf("%d peers are remembered, error %v; want at most 3, because idle peers are forgotten", len(p.peers), err)
	}
	var none *Peers
	if e, err := none.Enter(a); e != nil || err != nil {
		t.Errorf("a call without limits returned %v and error %v, want nil for both", e, err)
	}
}

// TestIdlePeersAreLookedForSeldom: very many hosts make calls, so idle peers must be forgotten. The search for idle
// peers must run at most once per second, and not once for each new host.
func TestIdlePeersAreLookedForSeldom(t *testing.T) {
	p := NewPeers(Limits{Calls: 5}, nil)
	now := time.Unix(1000, 0)
	p.now = func() time.Time { return now }
	come := func(name string) {
		t.Helper()
		e, err := p.Enter(Peer{"host", name})
		if err != nil {
			t.Fatal(err)
		}
		e.Leave()
	}
	for i := range forgetAt {
		come(fmt.Sprint(i))
	}
	now = now.Add(forgetAfter)
	come("looks") // this call searches for idle peers, but no peer has been idle for longer than forgetAfter
	now = now.Add(forgetEvery / 2)
	come("does not")
	if n := len(p.peers); n != forgetAt+2 {
		t.Errorf("%d peers are remembered, because idle peers were searched twice within a second", n)
	}
	now = now.Add(forgetEvery / 2)
	come("looks again")
	if n := len(p.peers); n != 3 {
		t.Errorf("%d peers are remembered after the second search, want 3", n)
	}
}

// serve runs a gRPC server with the usual limits of this package and the options of the test.
func serve(t *testing.T, l Limits, opts ...grpc.ServerOption) (addr string, refused func(string) int) {
	t.Helper()
	var mu sync.Mutex
	said := map[string]int{}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(append(ServerOptions(), opts...)...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(Listen(lis, l, func(r string) { mu.Lock(); said[r]++; mu.Unlock() }))
	}()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String(), func(r string) int { mu.Lock(); defer mu.Unlock(); return said[r] }
}

func check(t *testing.T, addr string, md ...string) error {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), md...), 5*time.Second)
	defer cancel()
	_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// dialFrom connects to addr from a given local address.
func dialFrom(t *testing.T, from, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// closedWithin reports whether the other side closes the connection before the time d has passed.
func closedWithin(t *testing.T, c net.Conn, d time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestHostOfAddresses: the host of an address is its IP with the IPv6 zone. For a Unix socket it is the path,
// and without an address it is empty.
func TestHostOfAddresses(t *testing.T) {
	for _, tt := range []struct {
		at   net.Addr
		want string
	}{
		{nil, ""},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 8085}, "192.0.2.7"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 8085}, "2001:db8::7"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::7"), Zone: "eth0", Port: 8085}, "fe80::7%eth0"},
		{&net.UnixAddr{Name: "/run/x.sock", Net: "unix"}, "/run/x.sock"},
	} {
		if got := HostOf(tt.at); got != tt.want {
			t.Errorf("the host of address %v is %q, want %q", tt.at, got, tt.want)
		}
	}
}

func TestAFloodOfConnectionsIsClosed(t *testing.T) {
	addr, refused := serve(t, Limits{Connections: 1000, PerHost: 20})
	var flood []net.Conn
	for range 200 {
		flood = append(flood, dialFrom(t, "127.0.0.2", addr))
	}
	closed := 0
	for _, c := range flood[20:] {
		if closedWithin(t, c, 5*time.Second) {
			closed++
		}
	}
	if closed != 180 || refused(ReasonHost) != 180 {
		t.Errorf("%d of 200 connections of one host were closed and %d refusals were counted; want 180 of both", closed, refused(ReasonHost))
	}
	if err := check(t, addr); err != nil {
		t.Errorf("a client of another host must be served, but got: %v", err)
	}
	for _, c := range flood[:20] {
		_ = c.Close()
	}
	testbed.Until(t, "the host can connect again after its old connections were closed", func() bool {
		return !closedWithin(t, dialFrom(t, "127.0.0.2", addr), 50*time.Millisecond)
	})
}

func TestTheTotalOfConnectionsIsLimited(t *testing.T) {
	addr, refused := serve(t, Limits{Connections: 3})
	for i := range 3 {
		if closedWithin(t, dialFrom(t, fmt.Sprintf("127.0.0.%d", i+2), addr), 50*time.Millisecond) {
			t.Fatalf("connection %d below the limit must stay open, but was closed", i)
		}
	}
	if !closedWithin(t, dialFrom(t, "127.0.0.9", addr), 5*time.Second) || refused(ReasonConnections) != 1 {
		t.Errorf("the fourth connection must be closed and counted, but was not; %d refusals were counted", refused(ReasonConnections))
	}
}

// TestSlowHandshakesAreDisconnected: a client that sends nothing, or only one byte at a time, is disconnected
// after HandshakeLimit. Other clients are served meanwhile.
func TestSlowHandshakesAreDisconnected(t *testing.T) {
	addr, _ := serve(t, Limits{}, grpc.ConnectionTimeout(time.Second))
	silent, slow := dialFrom(t, "127.0.0.2", addr), dialFrom(t, "127.0.0.2", addr)
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(100 * time.Millisecond) // one byte in each interval: the handshake then takes longer than the allowed second
		defer pace.Stop()
		for _, b := range []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n") {
			if _, err := slow.Write([]byte{b}); err != nil {
				return
			}
			<-pace.C
		}
	})
	if err := check(t, addr); err != nil {
		t.Errorf("another client must be served, but got: %v", err)
	}
	for name, c := range map[string]net.Conn{"silent": silent, "slow": slow} {
		if !closedWithin(t, c, 5*time.Second) {
			t.Errorf("the %s client must be disconnected, but is still connected", name)
		}
	}
	wg.Wait()
}

func TestHeadersOverTheLimitAreRefused(t *testing.T) {
	addr, _ := serve(t, Limits{})
	if err := check(t, addr, "x", strings.Repeat("x", HeaderLimit)); err == nil {
		t.Errorf("the server must refuse headers of more than %d bytes, but accepted them", HeaderLimit)
	}
	if err := check(t, addr, "x", strings.Repeat("x", HeaderLimit/2)); err != nil {
		t.Errorf("the server must accept headers below the limit, but refused them: %v", err)
	}
}

func TestAPanicBecomesAnInternalError(t *testing.T) {
	var log strings.Builder
	err := Survive(slog.New(slog.NewTextHandler(&log, nil)), "/a/B", func() error { panic("a secret") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") || !strings.Contains(log.String(), "method=/a/B") {
		t.Errorf("a panic returned error %v and was logged as %s, want Internal without the text of the panic, and a log line with the method", err, log.String())
	}
}

func TestSlowCallsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		unary := Unary(slog.New(slog.NewTextHandler(&text, nil)))
		call := func(takes time.Duration) string {
			text.Reset()
			_, _ = unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/M"}, func(context.Context, any) (any, error) {
				time.Sleep(takes)
				return nil, errors.New("wait for index 7 (at 6): given up")
			})
			return text.String()
		}
		if got := call(slowCall); got != "" {
			t.Errorf("a call that took %s was logged as slow, want no log line: %s", slowCall, got)
		}
		got := call(slowCall + time.Second)
		for _, part := range []string{"level=WARN", "method=/s/M", "took=6s", "wait for index 7 (at 6)"} {
			if !strings.Contains(got, part) {
				t.Errorf("the log line of a slow call must contain %q, but is: %s", part, got)
			}
		}
	})
}

// TestANetworkDoesNotTakeAllConnections: many hosts of one /24 network leave room for hosts of other networks.
func TestANetworkDoesNotTakeAllConnections(t *testing.T) {
	addr, refused := serve(t, Limits{Connections: 100, PerHost: 2, PerNetwork: 5})
	for i := range 5 {
		if closedWithin(t, dialFrom(t, fmt.Sprintf("127.0.0.%d", i+2), addr), 50*time.Millisecond) {
			t.Fatalf("connection %d below the limit must stay open, but was closed", i)
		}
	}
	if !closedWithin(t, dialFrom(t, "127.0.0.9", addr), 5*time.Second) || refused(ReasonHost) != 1 {
		t.Errorf("the sixth connection of the network must be closed and counted; %d refusals were counted", refused(ReasonHost))
	}
	if closedWithin(t, dialFrom(t, "127.0.1.9", addr), 50*time.Millisecond) {
		t.Error("a connection of another network was closed")
	}
}
