package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// dialFrom connects to a TCP address from a local address.
func dialFrom(ctx context.Context, from, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: settle}
	return d.DialContext(ctx, "tcp", to)
}

// trustOf returns a client of the Trust API, without a certificate. It connects from the local address from
// to the scheduler at the address to.
func trustOf(t *testing.T, tok pki.JoinToken, from, to string) clusterv1.TrustClient {
	t.Helper()
	cc := got[*grpc.ClientConn](t)(grpc.NewClient("passthrough:///"+to, grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(credentials.NewTLS(tok.ClientConfig("127.0.0.1", time.Now))),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec())),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dialFrom(ctx, from, to) })))
	t.Cleanup(func() { _ = cc.Close() })
	return clusterv1.NewTrustClient(cc)
}

// newToken makes a join token for agents.
func newToken(t *testing.T, c *harness.Cluster) pki.JoinToken {
	t.Helper()
	return got[pki.JoinToken](t)(pki.ParseJoinToken(strings.Split(ctl(t, c, "token", "create", "--role", "agent"), "\n")[0]))
}

// peakMiB returns the largest memory that a process has used, in MiB.
func peakMiB(t *testing.T, pid int) int {
	t.Helper()
	for line := range strings.Lines(string(got[[]byte](t)(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))))) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return got[int](t)(strconv.Atoi(strings.Fields(v)[0])) / 1024
		}
	}
	t.Fatalf("/proc/%d/status has no VmHWM", pid)
	return 0
}

// leaderState returns the replicated state as the leader has it.
func leaderState(t *testing.T, c *harness.Cluster) fsm.State {
	t.Helper()
	return got[fsm.State](t)(stateOf(t.Context(), got[clusterv1.ClusterClient](t)(c.LeaderAdmin(t.Context()))))
}

// keptLease fails the test if the node lost its lease after the event with the sequence number after.
func keptLease(t *testing.T, s fsm.State, after uint64, node string) {
	t.Helper()
	s.Events(after, func(e *fsm.Event) bool {
		if e.Node == node && e.Type == fsm.EventNodeLost {
			t.Errorf("node %s lost its lease: %s", node, e.Message)
		}
		return true
	})
}

// TestFloodOfConnections: strangers open 10,000 connections to the leader, from 200 addresses in 20
// networks. The addresses belong to the loopback device in the network namespace of the test. A third of
// the connections sends nothing, a third sends the beginning of a TLS handshake, and a third completes the
// handshake without a certificate. Meanwhile the agent keeps its lease, the calls of an operator are
// answered, also over new connections, and a program joins from an address that the scheduler does not
// know.
func TestFloodOfConnections(t *testing.T) {
	const networks, hosts, each = 20, 10, 50
	const all, places = networks * hosts * each, 512
	var files syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if files.Cur < all+1000 {
		testbed.Need(t, "many open files", fmt.Errorf("this process may open %d files", files.Cur))
	}
	c := start(t, harness.Options{Binaries: shipped(t), Schedulers: 3, OwnCA: true}) // with the default leases: no node may lose its lease because of the load
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ada := person(t, c, "ada", "operator")
	target := c.Schedulers[got[int](t)(c.Leader(t.Context()))]
	tok := newToken(t, c)
	before := leaderState(t, c).Info().EventSeq
	memory := peakMiB(t, target.PID())
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	var opened, open, shaken atomic.Int64
	var flood sync.WaitGroup
	slots := make(chan struct{}, 128)
	attack := func(from string, kind int) {
		conn, err := dialFrom(ctx, from, target.GRPC)
		if err == nil {
			opened.Add(1)
			open.Add(1)
			defer open.Add(-1)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			switch kind {
			case 1:
				_, _ = conn.Write([]byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01}) // the error is ignored, because the scheduler may have closed the connection already
			case 2:
				secured := tls.Client(conn, tok.ClientConfig("127.0.0.1", time.Now))
				if secured.HandshakeContext(ctx) == nil {
					shaken.Add(1)
				}
				conn = secured
			}
		}
		<-slots
		if err != nil {
			t.Errorf("opening a connection from %s failed: %v", from, err)
			return
		}
		for err == nil { // read until the scheduler closes the connection
			_, err = conn.Read(make([]byte, 512))
		}
	}
	began := time.Now()
	var took time.Duration
	flood.Go(func() {
		for i := range all {
			host := i % (networks * hosts)
			slots <- struct{}{}
			flood.Go(func() { attack(fmt.Sprintf("127.1.%d.%d", host%networks, 1+host/networks), i%3) })
		}
		for range cap(slots) { // wait until every connection has been opened
			slots <- struct{}{}
		}
		took = time.Since(began)
	})
	defer flood.Wait()
	defer cancel()

	// Calls of the operator, over one connection and over new connections, until all connections of the
	// flood have been open for two lease times.
	held := got[*grpc.ClientConn](t)(c.Dial(target.GRPC, ada))
	defer held.Close()
	calls, longest := 0, time.Duration(0)
	var complete time.Time
	for complete.IsZero() || time.Since(complete) < 20*time.Second {
		if opened.Load() == all && complete.IsZero() {
			complete = time.Now()
		}
		if ctx.Err() != nil {
			t.Fatalf("only %d of %d connections could be opened", opened.Load(), all)
		}
		fresh := got[*grpc.ClientConn](t)(c.Dial(target.GRPC, ada))
		for _, cc := range []*grpc.ClientConn{held, fresh} {
			asked := time.Now()
			// A server that has reached its limit of connections may close the operator's new connection
			// before it has seen the certificate, in favour of a stranger's connection. The operator then
			// connects again, as every client of the schedulers does.
			call, done := context.WithTimeout(ctx, settle)
			_, err := controlv1.NewAgentControlClient(cc).ListWorkloads(call, &controlv1.ListWorkloadsRequest{}, grpc.WaitForReady(true))
			done()
			if err != nil {
				t.Errorf("with %d connections of strangers open, a call of the operator failed: %v", open.Load(), err)
			}
			calls, longest = calls+1, max(longest, time.Since(asked))
		}
		must(t, fresh.Close())
	}
	_, csr, err := pki.NewRequest(nil)
	must(t, err)
	must(t, testbed.Poll(ctx, settle, "a join from an unknown address", func(ctx context.Context) error {
		_, err := trustOf(t, tok, "127.9.9.9", target.GRPC).Enrol(ctx, &clusterv1.EnrolRequest{TokenId: tok.ID, Secret: tok.Secret, Name: "newcomer", Csr: csr})
		return err
	}))
	apply(t, c, "flooded", contentSpec("x"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "flooded", settle, running))
	if n := open.Load(); n > places {
		t.Errorf("%d connections of strangers are open, want at most %d", n, places)
	}
	refused := got[float64](t)(harness.Metric(ctx, target.HTTP, `persys_scheduler_refused_by_limit_total{reason="strangers"}`))
	if refused < all-places {
		t.Errorf("%.0f connections were refused, want at least %d", refused, all-places)
	}
	must(t, c.WaitNode(ctx, agent.NodeID, "Ready", settle))
	keptLease(t, leaderState(t, c), before, agent.NodeID)
	grown := peakMiB(t, target.PID()) - memory
	if grown > 256 {
		t.Errorf("the scheduler needed %d MiB more memory, want at most 256", grown)
	}
	measured(t, "%d connections from %d addresses within %s, %d with a TLS handshake: %.0f refused, %d open at the end; %d calls of an operator, the longest %s; %d MiB more memory",
		opened.Load(), networks*hosts, took.Round(100*time.Millisecond), shaken.Load(), refused, open.Load(), calls, longest.Round(time.Millisecond), grown)
}

// TestRefusedJoins runs refusedJoins with 20,000 requests to join without a valid token.
func TestRefusedJoins(t *testing.T) { refusedJoins(t, 20_000) }

// TestAMillionRefusedJoins runs refusedJoins with a million requests to join without a valid token.
func TestAMillionRefusedJoins(t *testing.T) { refusedJoins(t, 1_000_000) }

// refusedJoins sends n requests to join, from 30 networks, with tokens that do not exist or with a valid
// token whose secret is wrong. The first refusals of each network are recorded one by one; all further
// refusals are only counted. The state, the audit logs and the memory of the schedulers stay bounded, the
// agent keeps its lease, and an agent can still join with the valid token meanwhile.
func refusedJoins(t *testing.T, n int64) {
	// The callers share the CPUs with the schedulers that they attack. With four in each network they leave time
	// for heartbeats also on two CPUs on which other tests run.
	const networks, callers = 30, 4
	c := start(t, harness.Options{Binaries: shipped(t), Schedulers: 3, OwnCA: true}) // with the default leases: no node may lose its lease because of the load
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	tok := got[pki.JoinToken](t)(pki.ParseJoinToken(c.Token("agent"))) // the token with which the agents join
	_, csr, err := pki.NewRequest(nil)
	must(t, err)
	before := leaderState(t, c)
	size := func(s fsm.State) int64 {
		var out counter
		must(t, s.WriteSnapshot(&out))
		return int64(out)
	}
	memory := make([]int, len(c.Schedulers))
	for i, s := range c.Schedulers {
		memory[i] = peakMiB(t, s.PID())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()

	began := time.Now()
	var answered, lost atomic.Int64
	answers := map[codes.Code]int64{}
	var mu sync.Mutex
	var attack sync.WaitGroup
	for network := range networks {
		trust := trustOf(t, tok, fmt.Sprintf("127.2.%d.1", network), c.Schedulers[network%len(c.Schedulers)].GRPC)
		for caller := range callers {
			attack.Go(func() {
				mine := map[codes.Code]int64{}
				for i := caller; answered.Load() < n && ctx.Err() == nil; i++ {
					req := &clusterv1.EnrolRequest{TokenId: tok.ID, Secret: []byte("a guess"), Name: "guest", Csr: csr}
					if i%2 == 0 {
						req.TokenId = fmt.Sprintf("made-up-%d-%d", network, i)
					}
					call, done := context.WithTimeout(ctx, settle)
					_, err := trust.Enrol(call, req)
					done()
					code := status.Code(err)
					mine[code]++
					if code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled { // these errors are expected: the scheduler closes connections of strangers after 30 s
						lost.Add(1)
						continue
					}
					answered.Add(1)
				}
				mu.Lock()
				defer mu.Unlock()
				for code, k := range mine {
					answers[code] += k
				}
			})
		}
	}
	second := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	attack.Wait()
	took := time.Since(began)
	for code := range answers {
		switch code {
		case codes.NotFound, codes.PermissionDenied, codes.ResourceExhausted, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		default:
			t.Errorf("%d joins without a valid token were answered with the unexpected code %s", answers[code], code)
		}
	}
	if answered.Load() < n {
		t.Fatalf("only %d joins without a valid token were answered: %v", answered.Load(), answers)
	}

	// Every refusal has a record of its own or is part of a recorded number of refusals. Such a number is
	// recorded within a minute.
	judged := answers[codes.NotFound] + answers[codes.PermissionDenied]
	var single, numbers, counted int64
	var state fsm.State
	must(t, testbed.Poll(ctx, 90*time.Second, "the numbers of refusals to be recorded", func(ctx context.Context) error {
		admin, err := c.LeaderAdmin(ctx)
		if err != nil {
			return err
		}
		if state, err = stateOf(ctx, admin); err != nil {
			return err
		}
		single, numbers, counted = 0, 0, 0
		state.Audit(fsm.AuditRefusals, before.AuditLast(fsm.AuditRefusals), func(_ fsm.AuditHash, r *fsm.AuditRecord) bool {
			for _, d := range r.Event.Details {
				if d.Key == "more" {
					more, convErr := strconv.ParseInt(d.Value, 10, 64)
					err = errors.Join(err, convErr)
					numbers, counted = numbers+1, counted+more
					return true
				}
			}
			single++
			return true
		})
		if err == nil && single+counted < judged {
			err = fmt.Errorf("%d refusals were recorded one by one and %d as part of a number, want %d together", single, counted, judged)
		}
		return err
	}))
	// If leadership moves during a call, the replica repeats the call at the new leader, which counts the
	// refusal a second time. So allow a tenth more.
	if most := (judged + lost.Load()) * 11 / 10; single+counted > most {
		t.Errorf("%d refusals are on record, but only %d calls were made", single+counted, judged+lost.Load())
	}
	windows := int64(took/time.Minute) + 2
	if most := int64(len(c.Schedulers)) * (50 + 5*int64(took/time.Second+1)); single > most || numbers > networks*windows*int64(len(c.Schedulers)) {
		t.Errorf("%d refusals were recorded one by one, want at most %d; %d numbers of refusals, want at most %d", single, most, numbers, networks*windows*int64(len(c.Schedulers)))
	}
	state.Audit(fsm.AuditChanges, before.AuditLast(fsm.AuditChanges), func(_ fsm.AuditHash, r *fsm.AuditRecord) bool {
		if strings.Contains(r.Event.Message, "guest") {
			t.Errorf("a refused join is in the log of changes: %s", r.Event.Message)
		}
		return true
	})
	grown := size(state) - size(before)
	if limit := int64(64<<10) + 2*1024*(single+numbers); grown > limit {
		t.Errorf("the state grew by %d bytes, want at most %d", grown, limit)
	}
	more := 0
	for i, s := range c.Schedulers {
		more = max(more, peakMiB(t, s.PID())-memory[i])
	}
	if more > 256 {
		t.Errorf("a scheduler needed %d MiB more memory, want at most 256", more)
	}
	for _, a := range []*harness.Agent{agent, second} {
		must(t, c.WaitNode(ctx, a.NodeID, "Ready", settle))
		keptLease(t, state, before.Info().EventSeq, a.NodeID)
	}
	measured(t, "%d refused joins in %s (%.0f per second), %d of them over the rate: %d refusals recorded one by one, %d in %d numbers; the state grew by %d KiB, the memory of a scheduler by %d MiB",
		answered.Load(), took.Round(100*time.Millisecond), float64(answered.Load())/took.Seconds(), answers[codes.ResourceExhausted], single, counted, numbers, grown>>10, more)
}

// counter counts the bytes that are written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
