package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
)

// Values on which clients and servers have to agree.
const (
	// KeepaliveMinTime is the MinTime of a server's keepalive.EnforcementPolicy. Clients ping after
	// KeepaliveTime; gRPC allows no less than 10 s.
	KeepaliveMinTime = 5 * time.Second
	KeepaliveTime    = 10 * time.Second
	KeepaliveTimeout = 3 * time.Second
	// connectionAge is the upper bound of a server's MaxConnectionAge with TLS.
	connectionAge = 30 * time.Minute
	// MaxMessage is the largest message of a client in bytes.
	MaxMessage = 4 << 20
	// MaxAnswer is the largest message of a scheduler in bytes. Legacy v1 clients ask for complete
	// lists without pages, which are long in a large cluster.
	MaxAnswer = 64 << 20
	// DefaultCallTimeout is the deadline of a unary call without one, and of the opening of a
	// stream.
	DefaultCallTimeout = 20 * time.Second
)

// ConnectionAge returns a server's MaxConnectionAge with TLS for the given validity of
// certificates. It is so short that every connection uses a renewed certificate well before the old
// one expires.
func ConnectionAge(life time.Duration) time.Duration {
	return max(time.Second, min(connectionAge, life/6))
}

const (
	// After this time the next candidate is dialled in parallel (as in RFC 8305).
	stagger = 250 * time.Millisecond
	// Pauses between rounds in which no replica answered.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// Options configures Dial. Exactly one of TLS and Insecure, and at least one of Endpoints, Addrs
// and Discovery, must be set.
type Options struct {
	// Endpoints are taken from another Conn, in order of preference. If set, Addrs and Discovery
	// are ignored.
	Endpoints []Endpoint
	// Addrs are host[:port] in order of preference. If set, Discovery is ignored (RULES,
	// Configuration).
	Addrs []string
	// Discovery is a target for ParseTarget.
	Discovery string
	// TLS holds our certificate and the CA; servers must be schedulers.
	TLS *pki.Files
	// Insecure connects without TLS.
	Insecure bool
	// Pinned tries the addresses in the given order and ignores leader hints, for callers that want
	// a certain replica.
	Pinned bool
	// UserAgent is prepended to gRPC's own, for instance "persysctl/1.2".
	UserAgent string
	// CacheFile, if set, stores the last good SRV answer for a start without DNS. Its folder must
	// exist.
	CacheFile string
	// CallTimeout replaces DefaultCallTimeout.
	CallTimeout time.Duration
	// StallAfter is how long a call waits without any message before its replica is probed; default
	// 1.5 s. ProbeTimeout is the time limit of the probe; default 2.5 s. Their sum is the time to
	// detect a hanging replica.
	StallAfter, ProbeTimeout time.Duration
	// ReadPatience is how long a read waits for its first replica before it asks another one, even
	// if the first answers probes; default 8 s. A read may be repeated safely, and a request or
	// answer that was lost inside a replica would otherwise cost the caller's whole deadline.
	ReadPatience time.Duration
	// UnreachableAfter ends a call that has reached no replica for this time, because every
	// connection was refused or failed its handshake. 0 lets the call go on until its deadline, for
	// programs that should outlive an outage.
	UnreachableAfter time.Duration
	// Log gets background events; default: discarded.
	Log *slog.Logger
	// Extra are appended to the options of every connection (metrics, traces).
	Extra []grpc.DialOption
}

// Conn is a connection to all schedulers. It implements grpc.ClientConnInterface, so generated
// clients accept it. It is safe for concurrent use.
//
// It selects the replica itself instead of using a gRPC balancer. Balancers are registered
// process-wide, see neither trailers nor the caller's deadline, and cannot tell a hanging peer from
// a slow one.
type Conn struct {
	opt        Options
	log        *slog.Logger
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	resolver   *watcher

	mu      sync.Mutex
	closed  bool
	peers   []*peer            // as configured or discovered, in order
	guest   *peer              // the hinted leader if it is not among the peers
	all     map[*peer]struct{} // including retired peers with calls in progress
	leader  string             // address of the hinted leader
	current *peer              // the last peer that answered
	known   chan struct{}      // closed once an address is known
	problem error              // error of the last lookup
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// Dial prepares a connection. It sends nothing before the first call, so it succeeds while no
// scheduler runs; its errors are about the options. The caller closes the Conn; its background work
// also ends with ctx.
func Dial(ctx context.Context, opt Options) (*Conn, error) {
	if opt.Insecure == (opt.TLS != nil) {
		return nil, errors.New("dial: set TLS (PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY) or insecure, and not both")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	orElse(&opt.CallTimeout, DefaultCallTimeout)
	orElse(&opt.StallAfter, 1500*time.Millisecond)
	orElse(&opt.ProbeTimeout, 2500*time.Millisecond)
	orElse(&opt.ReadPatience, 8*time.Second)
	c := &Conn{opt: opt, log: opt.Log, known: make(chan struct{}), all: map[*peer]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	var err error
	if c.resolver, err = (builder{opt}).watch(c.ctx, configured(), taker{conn: c}); err != nil {
		c.cancel()
		return nil, err
	}
	return c, nil
}

// Learn adds the scheduler addresses from a scheduler's answer. They are tried after the configured
// or discovered ones and stored in Options.CacheFile. So a client finds the schedulers even if all
// of them have moved since it was configured. It may be called with every answer.
func (c *Conn) Learn(addrs []string) {
	c.mu.Lock()
	from := ""
	if c.current != nil {
		from = c.current.end.Addr
	}
	c.mu.Unlock()
	var good []string
	for _, a := range addrs {
		if from != "" && credible(a, from) {
			good = append(good, a)
		}
	}
	c.resolver.source.learn(good)
}

func orElse(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// Close ends all calls and waits for the background work.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	all := c.all
	c.all = map[*peer]struct{}{}
	c.mu.Unlock()
	c.cancel()
	for p := range all {
		p.close()
	}
	c.resolver.Close()
	c.background.Wait()
	return nil
}

// Busy reports whether a call is in progress.
func (c *Conn) Busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.all {
		if p.busy() {
			return true
		}
	}
	return false
}

// Leader returns the leader's advertised gRPC address from the last answer; empty if unknown.
func (c *Conn) Leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

// Endpoints returns the current schedulers in order.
func (c *Conn) Endpoints() []Endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Endpoint
	for _, p := range c.peers {
		out = append(out, p.end)
	}
	return out
}

// Addrs returns the addresses of Endpoints.
func (c *Conn) Addrs() []string {
	var out []string
	for _, e := range c.Endpoints() {
		out = append(out, e.Addr)
	}
	return out
}

// connect makes an idle connection to one address.
func (c *Conn) connect(end Endpoint) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if c.opt.TLS != nil {
		creds = Credentials(c.opt.TLS, c.opt.TLS.ClientConfig(pki.Peer{Hosts: end.Names, Role: pki.RoleScheduler}))
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(c.opt.UserAgent),
		// Ignore HTTP proxy settings.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// Conn retries itself, because gRPC's retries do not switch replicas.
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(time.Minute),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: KeepaliveTime, Timeout: KeepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()), grpc.MaxCallRecvMsgSize(MaxAnswer), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
	return grpc.NewClient("passthrough:///"+end.Addr, append(opts, c.opt.Extra...)...)
}

// adopt replaces the addresses. Remaining peers keep their connections.
func (c *Conn) adopt(ends []Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	old := slices.Clone(c.peers)
	if c.guest != nil {
		old = append(old, c.guest)
	}
	c.peers, c.guest = nil, nil
	for _, end := range ends {
		i := slices.IndexFunc(old, func(p *peer) bool { return p != nil && p.end.Equal(end) })
		if i >= 0 {
			c.peers = append(c.peers, old[i])
			old[i] = nil
		} else if p := c.add(end); p != nil {
			c.peers = append(c.peers, p)
		}
	}
	for _, p := range old {
		switch {
		case p == nil:
		case p.end.Addr == c.leader && c.find(p.end.Addr) == nil:
			c.guest = p
		default:
			c.drop(p)
		}
	}
	c.problem = nil
	if len(c.peers) > 0 {
		select {
		case <-c.known:
		default:
			close(c.known)
		}
	}
}

// add makes a peer; the caller holds c.mu. It skips an address that gRPC refuses, because the
// address came from DNS or a hint and others may be valid.
func (c *Conn) add(end Endpoint) *peer {
	cc, err := c.connect(end)
	if err != nil {
		c.log.Warn("scheduler address is not usable", "addr", end.Addr, "error", err)
		return nil
	}
	p := &peer{end: end, owner: c, cc: cc}
	c.all[p] = struct{}{}
	return p
}

// drop retires a peer; the caller holds c.mu.
func (c *Conn) drop(p *peer) {
	if c.current == p {
		c.current = nil
	}
	p.retire()
	for q := range c.all {
		if q.isClosed() {
			delete(c.all, q)
		}
	}
}

func (c *Conn) find(addr string) *peer {
	for _, p := range c.peers {
		if p.end.Addr == addr {
			return p
		}
	}
	return nil
}

func (c *Conn) lookupFailed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = err
}

// failed records that a peer's connection failed.
func (c *Conn) failed(p *peer) {
	p.penalise()
	c.mu.Lock()
	if c.current == p {
		c.current = nil
	}
	if c.leader == p.end.Addr {
		c.leader = ""
	}
	c.mu.Unlock()
	c.resolver.ResolveNow(resolver.ResolveNowOptions{})
}

// late records that a peer let a call's deadline pass. The peer may answer probes and still be cut
// off from the leader, so the next call asks another peer first.
func (c *Conn) late(p *peer) {
	p.penalise()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == p {
		c.current = nil
	}
	if c.leader == p.end.Addr {
		c.leader = ""
	}
}

// answered records that a peer answered and which leader it named. A peer that could not serve the
// call (err) is not preferred next time.
func (c *Conn) answered(p *peer, trailer metadata.MD, err error) {
	p.ok()
	c.mu.Lock()
	defer c.mu.Unlock()
	if judge(err) == surface {
		c.current = p
	} else if c.current == p {
		c.current = nil
	}
	named := trailer.Get(KeyLeader)
	if c.closed || c.opt.Pinned || len(named) != 1 || named[0] == c.leader || !credible(named[0], p.end.Addr) {
		return
	}
	c.leader = named[0]
	if c.guest != nil && c.guest.end.Addr != c.leader {
		c.drop(c.guest)
		c.guest = nil
	}
	if c.guest == nil && c.find(c.leader) == nil {
		c.guest = c.add(endpointOf(c.leader))
	}
}

// credible refuses unusable hints: no address, or a loopback address from a sender on another
// machine.
func credible(hint, from string) bool {
	addr, err := parseAddr(hint, "")
	if err != nil || addr != hint || len(hint) > 300 {
		return false
	}
	loopback := func(addr string) (yes, unspecified bool) {
		host, _, _ := net.SplitHostPort(addr)
		ip := net.ParseIP(host)
		return host == "localhost" || ip != nil && ip.IsLoopback(), ip != nil && ip.IsUnspecified()
	}
	toLoop, unspecified := loopback(hint)
	fromLoop, _ := loopback(from)
	return !unspecified && (!toLoop || fromLoop)
}

// order returns the peers to try: the leader, the last peer that answered, the others, and last
// those that just failed.
func (c *Conn) order(tried []*peer) []*peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	all := slices.Clone(c.peers)
	if c.guest != nil {
		all = append(all, c.guest)
	}
	all = slices.DeleteFunc(all, func(p *peer) bool { return slices.Contains(tried, p) })
	rank := make(map[*peer]int, len(all))
	for _, p := range all {
		r := 2
		switch {
		case c.opt.Pinned: // keep the given order
		case p.end.Addr == c.leader:
			r = 0
		case p == c.current:
			r = 1
		case p == c.guest:
			r = 3
		}
		if p.penalised(now) {
			r += 4
		}
		rank[p] = r
	}
	slices.SortStableFunc(all, func(a, b *peer) int { return rank[a] - rank[b] })
	return all
}

// pick returns a peer that was not tried in this round, nil if there is none left. It waits until
// an address is known and a candidate is connected, or all candidates have failed.
func (c *Conn) pick(ctx context.Context, tried []*peer) (*peer, error) {
	select {
	case <-c.known:
	default:
		select {
		case <-c.known:
		case <-c.ctx.Done():
			return nil, status.Error(codes.Canceled, "the connection to the schedulers is closed")
		case <-ctx.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return nil, status.Errorf(codes.Unavailable, "no scheduler address is known: %v", c.problem)
		}
	}
	candidates := c.order(tried)
	if len(candidates) == 0 {
		return nil, nil
	}
	now := time.Now()
	better := !candidates[0].penalised(now)
	for i, p := range candidates {
		if better && p.penalised(now) {
			break // it may be connected, but try another peer first
		}
		if p.state() == connectivity.Ready {
			return p, nil
		}
		// The preferred peer connects in the background while another one serves.
		if i == 0 && better {
			p.conn().Connect()
		}
	}
	return race(ctx, candidates), nil
}

// race connects to the candidates with a delay between them, or at once when the previous one
// fails. It returns the first connected candidate, or the first candidate if none connects.
func race(ctx context.Context, candidates []*peer) *peer {
	if len(candidates) == 1 {
		return candidates[0] // the call waits for the connection
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		p  *peer
		ok bool
	}
	results := make(chan result, len(candidates))
	timer := time.NewTimer(0)
	defer timer.Stop()
	started, finished := 0, 0
	for finished < len(candidates) {
		select {
		case <-timer.C:
			if started < len(candidates) {
				p := candidates[started]
				go func() { results <- result{p, ready(ctx, p.conn())} }()
				started++
				timer.Reset(stagger)
			}
		case r := <-results:
			if r.ok {
				return r.p
			}
			finished++
			timer.Reset(0)
		case <-ctx.Done():
			return candidates[0]
		}
	}
	return candidates[0]
}

// ready starts to connect and waits for success or failure.
func ready(ctx context.Context, cc *grpc.ClientConn) bool {
	cc.Connect()
	for {
		s := cc.GetState()
		switch s {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		}
		if !cc.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// try runs do on one peer after another until an answer is final or ctx ends. If a replica may have
// applied a mutation and then failed, and no other replica can tell or may be asked (Once), the
// error is UnknownOutcome.
func (c *Conn) try(ctx context.Context, method string, mutation bool, do func(*peer) (sent bool, err error)) error {
	var tried []*peer
	var last error
	unknown, reached := false, false
	pause, began := minPause, time.Now()
	for rounds := 1; ; {
		p, err := c.pick(ctx, tried)
		if err != nil {
			return c.giveUp(ctx, method, rounds, mutation && unknown, firstOf(last, err))
		}
		if p == nil {
			if limit := c.opt.UnreachableAfter; limit > 0 && !reached && time.Since(began) > limit {
				return c.giveUp(ctx, method, rounds, false, last)
			}
			// Half of the pause is random, so that clients do not retry in step.
			wait := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return c.giveUp(ctx, method, rounds, mutation && unknown, last)
			}
			tried, pause = tried[:0], min(2*pause, maxPause)
			rounds++
			continue
		}
		sent, err := do(p)
		if err == nil {
			return nil
		}
		reached = reached || sent || judge(err) != broken
		switch judge(err) {
		case surface:
			ours := status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Canceled
			if ctx.Err() != nil && ours && (last != nil || !sent) {
				return c.giveUp(ctx, method, rounds, mutation && (unknown || sent), firstOf(last, err))
			}
			return err
		case broken:
			unknown = unknown || sent
			c.failed(p)
		}
		last = err
		tried = append(tried, p)
		if ctx.Err() != nil || unknown && Once(method) {
			return c.giveUp(ctx, method, rounds, mutation && unknown, last)
		}
	}
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (c *Conn) giveUp(ctx context.Context, method string, rounds int, unknown bool, last error) error {
	text := status.Convert(last).Message()
	if unknown {
		return UnknownOutcome(fmt.Sprintf("%s: a scheduler fell silent after it got the request, and none could tell the outcome: %s", method, text))
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return status.FromContextError(ctx.Err()).Err()
	}
	if Reason(last) != "" || status.Code(last) == codes.Canceled {
		return last
	}
	return status.Errorf(codes.Unavailable, "%s: no scheduler of [%s] answered in %d rounds: %s", method, strings.Join(c.Addrs(), " "), rounds, text)
}

// Invoke makes a unary call. A call without a deadline gets Options.CallTimeout. A mutation without
// a request id gets one, which is the same for all attempts.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opt.CallTimeout)
		defer cancel()
	}
	mutation := !IsRead(method)
	if mutation {
		var err error
		if ctx, err = withRequestID(ctx); err != nil {
			return err
		}
	}
	first := true
	return c.try(ctx, method, mutation, func(p *peer) (bool, error) {
		l, err := p.begin(false)
		if err != nil {
			return false, c.gone(err)
		}
		alive := false
		defer func() { l.end(false, alive) }()
		limited := ctx
		// Reading all of etcd is slow.
		if !mutation && first && method != clusterv1.Cluster_Recovery_FullMethodName {
			first = false
			var cancel context.CancelFunc
			limited, cancel = context.WithCancel(ctx)
			defer cancel()
			// Not a deadline: gRPC would send it, and the replica's DeadlineExceeded would count as
			// an answer.
			defer time.AfterFunc(c.opt.ReadPatience, cancel).Stop()
		}
		var trailer metadata.MD
		var to grpcpeer.Peer
		err = l.cc.Invoke(limited, method, args, reply, append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer), grpc.Peer(&to))...)
		err = c.explain(ctx, l, err)
		switch {
		case limited.Err() != nil && ctx.Err() == nil && status.Code(err) == codes.Canceled:
			c.log.Warn("a read was not answered; another scheduler is asked", "addr", p.end.Addr, "method", method, "after", c.opt.ReadPatience)
			p.suspect(l)
			err = status.Errorf(codes.Unavailable, "scheduler %s did not answer within %s", p.end.Addr, c.opt.ReadPatience)
		case judge(err) == broken:
		case status.Code(err) == codes.DeadlineExceeded && to.Addr != nil:
			// The peer may notice the deadline first.
			c.late(p)
			// Calls with short deadlines end before the watch fires.
			p.suspect(l)
		case ctx.Err() == nil || err == nil:
			alive = true
			c.answered(p, trailer, err)
		}
		return to.Addr != nil, err
	})
}

// gone reports a retired peer as unreachable, unless the whole Conn is closed.
func (c *Conn) gone(err error) error {
	if c.ctx.Err() != nil {
		return err
	}
	return status.Error(codes.Unavailable, "scheduler is no longer listed")
}

// explain returns the caller's error for a call whose connection was replaced.
func (c *Conn) explain(ctx context.Context, l lane, err error) error {
	if status.Code(err) == codes.Canceled && ctx.Err() == nil && c.ctx.Err() == nil && l.cut() {
		return status.Errorf(codes.Unavailable, "scheduler %s stopped answering", l.p.end.Addr)
	}
	return err
}

func withRequestID(ctx context.Context) (context.Context, error) {
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get(KeyRequestID)) > 0 {
		return ctx, nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("request id: %w", err)
	}
	return metadata.AppendToOutgoingContext(ctx, KeyRequestID, id.String()), nil
}

// NewStream opens a stream on one replica. Opening is retried. An open stream that breaks ends with
// Unavailable, and the caller may open it again.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	open, cancel := context.WithTimeout(ctx, c.opt.CallTimeout)
	defer cancel()
	var out *stream
	err := c.try(open, method, false, func(p *peer) (bool, error) {
		l, err := p.begin(true)
		if err != nil {
			return false, c.gone(err)
		}
		sctx, stop := context.WithCancel(ctx)
		// The timeout applies to the opening only.
		late := context.AfterFunc(open, stop)
		cs, err := l.cc.NewStream(sctx, desc, method, opts...)
		if !late() && err == nil {
			err = status.FromContextError(open.Err()).Err()
		}
		if err != nil {
			stop()
			l.end(true, false)
			return false, c.explain(ctx, l, err)
		}
		out = &stream{ClientStream: cs, lane: l, conn: c, desc: desc, caller: ctx}
		// Callers may end a stream by its context without reading on.
		unhook := context.AfterFunc(sctx, func() { out.once.Do(func() { l.end(true, false) }) })
		out.finish = func() {
			unhook()
			out.once.Do(func() { l.end(true, false) })
			stop()
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// stream is a client stream that reports received messages to its peer.
type stream struct {
	grpc.ClientStream
	lane   lane
	conn   *Conn
	desc   *grpc.StreamDesc
	caller context.Context
	once   sync.Once
	finish func()
}

func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.lane.p.touch()
		if !s.desc.ServerStreams {
			s.conn.answered(s.lane.p, s.Trailer(), nil)
			s.finish()
		}
		return nil
	}
	// gRPC cancels the stream's context with the stream, so only the caller's context shows whether
	// the caller ended it.
	ours := s.caller.Err() != nil
	err = s.conn.explain(s.caller, s.lane, err)
	s.finish()
	switch {
	case errors.Is(err, io.EOF):
		s.conn.answered(s.lane.p, s.Trailer(), nil)
	case judge(err) == broken:
		s.conn.failed(s.lane.p)
	case !ours:
		s.conn.answered(s.lane.p, s.Trailer(), err)
	}
	return err
}
