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

// These values must be the same in clients and servers of this project.
const (
	// KeepaliveMinTime is the MinTime of a server's keepalive.EnforcementPolicy: the shortest interval at
	// which clients may ping. Clients ping every KeepaliveTime; gRPC allows no less than 10 s.
	KeepaliveMinTime = 5 * time.Second
	KeepaliveTime    = 10 * time.Second
	KeepaliveTimeout = 3 * time.Second
	// connectionAge is the upper limit of the gRPC setting MaxConnectionAge for servers with TLS. The function
	// ConnectionAge returns the value for one server.
	connectionAge = 30 * time.Minute
	// MaxMessage is the maximum size of a message from a client, in bytes.
	MaxMessage = 4 << 20
	// MaxAnswer is the maximum size of a message from a scheduler, in bytes. Legacy v1 clients request complete lists
	// instead of pages, and the lists of a large cluster are long.
	MaxAnswer = 64 << 20
	// DefaultCallTimeout is the deadline of a unary call without a deadline of its caller, and of the opening of a
	// stream.
	DefaultCallTimeout = 20 * time.Second
)

// ConnectionAge returns the MaxConnectionAge of a server with TLS, for certificates with this validity. It is so short
// that every connection is replaced by a connection with the renewed certificate well before the old certificate
// expires.
func ConnectionAge(life time.Duration) time.Duration {
	return max(time.Second, min(connectionAge, life/6))
}

const (
	// stagger is the time for which race waits for one candidate before it dials the next candidate in parallel (as in
	// RFC 8305).
	stagger = 250 * time.Millisecond
	// minPause is the pause after the first round of attempts in which no replica answered. It doubles with each
	// further round, up to maxPause.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// Options configures Dial. Set exactly one of TLS and Insecure, and at least one of Endpoints, Addrs and
// Discovery.
type Options struct {
	// Endpoints are schedulers that another Conn has found (Conn.Endpoints), in order of preference. If they
	// are set, Addrs and Discovery are ignored.
	Endpoints []Endpoint
	// Addrs are scheduler addresses, host[:port], in order of preference. If they are set, Discovery is
	// ignored (docs/RULES.md, Configuration).
	Addrs []string
	// Discovery is an address list or SRV name in the form of ParseTarget.
	Discovery string
	// TLS holds this program's certificate and the CA. Servers must be schedulers.
	TLS *pki.Files
	// Insecure makes connections without TLS.
	Insecure bool
	// Pinned makes the Conn try the addresses in their order and ignore which scheduler leads. It is for
	// callers that need a certain replica.
	Pinned bool
	// UserAgent is put before gRPC's own user agent, for instance "persysctl/1.2".
	UserAgent string
	// CacheFile, if set, is a file with the last valid SRV answer, from which a program can start while DNS
	// is down. Its folder must exist.
	CacheFile string
	// CallTimeout, if set, is used instead of DefaultCallTimeout.
	CallTimeout time.Duration
	// StallAfter is the time without any message from a replica after which that replica is probed; default
	// 1.5 s. ProbeTimeout is the time limit of the probe; default 2.5 s. Their sum is the time after which a
	// hanging replica is detected.
	StallAfter, ProbeTimeout time.Duration
	// ReadPatience is how long a read waits for its first replica before it tries another replica, even if the first
	// replica answers probes; default 8 s. A read may be repeated safely. Without this limit, a request or answer that
	// is lost inside a replica would cost the caller's whole deadline.
	ReadPatience time.Duration
	// UnreachableAfter is the time after which a call fails that has reached no replica, because every connection was
	// refused or failed its handshake. If it is 0, the call tries until its deadline; this is for programs such as
	// agents, which must survive an outage of the schedulers.
	UnreachableAfter time.Duration
	// Log gets log lines about background work; nil discards them.
	Log *slog.Logger
	// Extra are further options for every gRPC connection, for instance for metrics and traces.
	Extra []grpc.DialOption
}

// Conn is a connection to all schedulers. It implements grpc.ClientConnInterface, so generated clients accept
// it. It is safe for concurrent use.
//
// Conn chooses the replica for each call itself and does not use a gRPC balancer. Balancers are registered
// for the whole process, see neither trailers nor the caller's deadline, and cannot distinguish a hanging
// peer from a slow one.
type Conn struct {
	opt        Options
	log        *slog.Logger
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	resolver   *watcher

	mu      sync.Mutex
	closed  bool
	peers   []*peer            // configured or discovered schedulers, in order
	guest   *peer              // leader that an answer named, if it is not in peers
	all     map[*peer]struct{} // all peers, including removed peers with calls in progress
	leader  string             // address of the leader that the last answer named
	current *peer              // the peer that last answered a call
	known   chan struct{}      // channel that is closed once a scheduler address is known
	problem error              // error of the last lookup of addresses
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// Dial returns a Conn. It sends nothing before the first call, so it succeeds even if no scheduler runs.
// It returns an error only if the options are invalid. The caller must close the Conn; the background
// work of the Conn also ends with ctx.
func Dial(ctx context.Context, opt Options) (*Conn, error) {
	if opt.Insecure == (opt.TLS != nil) {
		return nil, errors.New("dial: set either TLS (PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY) or insecure, and not both")
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

// Learn adds the scheduler addresses that a scheduler's answer contains. The Conn tries them after the
// configured or discovered addresses, and stores them in Options.CacheFile. So a client finds the schedulers even if
// all of them have moved since the client was configured. Learn may be called for every answer.
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

// Close ends all calls and waits until the background work has ended.
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

// Busy reports whether a call is in progress on this Conn.
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

// Leader returns the gRPC address that the leader advertises, from the last answer; empty if unknown.
func (c *Conn) Leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

// Endpoints returns the schedulers that this Conn knows at present, in order of preference.
func (c *Conn) Endpoints() []Endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Endpoint
	for _, p := range c.peers {
		out = append(out, p.end)
	}
	return out
}

// Addrs returns the addresses of the schedulers in Endpoints.
func (c *Conn) Addrs() []string {
	var out []string
	for _, e := range c.Endpoints() {
		out = append(out, e.Addr)
	}
	return out
}

// connect returns a gRPC connection to one address, which is dialled at its first use.
func (c *Conn) connect(end Endpoint) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if c.opt.TLS != nil {
		creds = Credentials(c.opt.TLS, c.opt.TLS.ClientConfig(pki.Peer{Hosts: end.Names, Role: pki.RoleScheduler}))
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(c.opt.UserAgent),
		// Ignore the HTTP proxy settings in the environment.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// The Conn repeats calls itself, because gRPC's retries do not use another replica.
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

// adopt replaces the list of scheduler addresses by ends. A peer whose address is in both the old and the new list
// keeps its connection.
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

// add creates a peer for an address. The caller holds c.mu. An address that gRPC refuses is skipped: it came
// from DNS or from an answer, and the other addresses may be valid.
func (c *Conn) add(end Endpoint) *peer {
	cc, err := c.connect(end)
	if err != nil {
		c.log.Warn("a scheduler address cannot be used", "addr", end.Addr, "error", err)
		return nil
	}
	p := &peer{end: end, owner: c, cc: cc}
	c.all[p] = struct{}{}
	return p
}

// drop removes a peer, whose connection closes after its last call. The caller holds c.mu.
func (c *Conn) drop(p *peer) {
	if c.current == p {
		c.current = nil
	}
	p.closeWhenIdle()
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

// failed records that the connection to a peer failed, so that calls try this peer last for a while.
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

// late records that a peer did not answer a call before its deadline. Such a peer may answer probes but be cut off
// from the leader, so the next call must try another peer first.
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

// answered records that a peer answered, and which leader the trailer names. If err shows that the peer could not serve
// the call, the next call does not prefer this peer.
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

// credible reports whether hint, the leader's address in an answer of the replica at the address from, can be used.
// It cannot be used if it is malformed, or if it is a loopback address that another machine has sent.
func credible(hint, from string) bool {
	addr, err := parseAddr(hint, "")
	if err != nil || addr != hint || len(hint) > 300 {
		return false
	}
	loopback := func(addr string) (yes, unspecified bool) {
		host, _, _ := net.SplitHostPort(addr)
		ip := net.ParseIP(host)
		return Loopback(host), ip != nil && ip.IsUnspecified()
	}
	toLoop, unspecified := loopback(hint)
	fromLoop, _ := loopback(from)
	return !unspecified && (!toLoop || fromLoop)
}

// order returns the peers in the order in which to try them: the leader, the peer that answered last, then all further
// peers, and last the peers that failed lately. Peers in tried are left out.
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
		case c.opt.Pinned: // pinned: keep the order of the addresses
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

// pick returns the next peer to try that is not in tried; nil if all peers were tried. It waits until an address is
// known, and then until a candidate is connected or all candidates have failed.
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
			break // the remaining peers failed lately, so do not use them even if they are connected
		}
		if p.state() == connectivity.Ready {
			return p, nil
		}
		// Connect to the preferred peer in the background; until then another peer serves the calls.
		if i == 0 && better {
			p.conn().Connect()
		}
	}
	return race(ctx, candidates), nil
}

// race dials the candidates one after another. It dials the next candidate when the delay stagger has passed or the
// previous candidate has failed. It returns the candidate that connects first, or candidates[0] if none connects.
func race(ctx context.Context, candidates []*peer) *peer {
	if len(candidates) == 1 {
		return candidates[0] // return it anyway: the call itself waits for the connection
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

// ready starts to connect and waits for the result. It reports whether the connection succeeded.
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

// attempt describes one attempt of a call: whether a replica may have received it, and whether the state machine
// decided its answer.
type attempt struct {
	sent   bool // a replica may have received the call
	judged bool // the state machine has judged the request id of the call
}

// try calls do with one peer after another until ctx ends or Outcome says that the caller gets the answer. If a replica
// may have applied a mutation but its answer was lost, the error is UnknownOutcome.
func (c *Conn) try(ctx context.Context, method string, mutation bool, reply any, do func(*peer) (attempt, error)) error {
	var tried []*peer
	var last error
	var outcome Outcome
	reached := false
	pause, began := minPause, time.Now()
	for rounds := 1; ; {
		p, err := c.pick(ctx, tried)
		if err != nil {
			return c.giveUp(ctx, method, rounds, outcome.Unknown(), firstOf(last, err))
		}
		if p == nil {
			if limit := c.opt.UnreachableAfter; limit > 0 && !reached && time.Since(began) > limit {
				return c.giveUp(ctx, method, rounds, false, last)
			}
			// Half of the pause is random, so that many clients do not retry at the same moment.
			wait := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
				return c.giveUp(ctx, method, rounds, outcome.Unknown(), last)
			}
			tried, pause = tried[:0], min(2*pause, maxPause)
			rounds++
			continue
		}
		a, err := do(p)
		reached = reached || a.sent || judge(err) != broken
		if judge(err) == broken {
			c.failed(p)
		}
		answer := answerTo(err, reply, mutation, a.sent, a.judged, ctx.Err() != nil)
		switch outcome.After(answer, Once(method)) {
		case Return:
			if answer == TimeUp && (last != nil || !a.sent) {
				return c.giveUp(ctx, method, rounds, mutation && a.sent, firstOf(last, err))
			}
			return err
		case Doubt:
			return c.giveUp(ctx, method, rounds, true, firstOf(err, errDeclined))
		}
		last = err
		tried = append(tried, p)
		if ctx.Err() != nil {
			return c.giveUp(ctx, method, rounds, outcome.Unknown(), last)
		}
	}
}

// errDeclined is the cause in an UnknownOutcome error if the last answer had no error but contained a
// refusal.
var errDeclined = status.Error(codes.FailedPrecondition, "a later attempt was refused")

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// OutcomeText is a part of the message of an UnknownOutcome error. The error of the last attempt follows it.
const OutcomeText = "no other scheduler knows the outcome: "

func (c *Conn) giveUp(ctx context.Context, method string, rounds int, unknown bool, last error) error {
	text := status.Convert(last).Message()
	if unknown {
		return UnknownOutcome(fmt.Sprintf("%s: a scheduler got the request and then stopped answering, and %s%s", method, OutcomeText, text))
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return status.FromContextError(ctx.Err()).Err()
	}
	if Reason(last) != "" || status.Code(last) == codes.Canceled {
		return last
	}
	return status.Errorf(codes.Unavailable, "%s: no scheduler of [%s] answered in %d rounds: %s", method, strings.Join(c.Addrs(), " "), rounds, text)
}

// Invoke makes a unary call. If ctx has no deadline, Options.CallTimeout applies. A mutation without a
// request id gets one, which is the same for all its attempts.
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
	return c.try(ctx, method, mutation, reply, func(p *peer) (attempt, error) {
		l, err := p.begin(false)
		if err != nil {
			return attempt{}, c.gone(err)
		}
		alive := false
		defer func() { l.end(false, alive) }()
		limited := ctx
		// The call Recovery reads all of etcd and so takes long: do not limit its first attempt.
		if !mutation && first && method != clusterv1.Cluster_Recovery_FullMethodName {
			first = false
			var cancel context.CancelFunc
			limited, cancel = context.WithCancel(ctx)
			defer cancel()
			// Limit the attempt with a timer and not with a context deadline. gRPC would send the deadline to the
			// replica, and the replica's error DeadlineExceeded would look like its answer to the call.
			defer time.AfterFunc(c.opt.ReadPatience, cancel).Stop()
		}
		var trailer metadata.MD
		var to grpcpeer.Peer
		err = l.cc.Invoke(limited, method, args, reply, append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer), grpc.Peer(&to))...)
		err = c.explain(ctx, l, err)
		switch {
		case limited.Err() != nil && ctx.Err() == nil && status.Code(err) == codes.Canceled:
			c.log.Warn("a scheduler did not answer a read; another scheduler is called", "addr", p.end.Addr, "method", method, "after", c.opt.ReadPatience)
			p.suspect(l)
			err = status.Errorf(codes.Unavailable, "scheduler %s did not answer within %s", p.end.Addr, c.opt.ReadPatience)
		case judge(err) == broken:
		case status.Code(err) == codes.DeadlineExceeded && to.Addr != nil:
			// The deadline has passed, so the peer did not answer in time. This is so even if the error comes from the
			// peer: it has then only noticed the deadline before this client did.
			c.late(p)
			// Probe the peer now: a call with a short deadline ends before the timer that would start a probe.
			p.suspect(l)
		case ctx.Err() == nil || err == nil:
			alive = true
			c.answered(p, trailer, err)
		}
		return attempt{sent: to.Addr != nil, judged: Judged(trailer)}, err
	})
}

// gone returns the error of a call to a peer that was removed: Unavailable, so that another peer is tried, or another
// error if the whole Conn is closed.
func (c *Conn) gone(err error) error {
	if c.ctx.Err() != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the scheduler is no longer in the list")
}

// explain returns the error that the caller gets. If the connection was replaced during the call because its
// scheduler hangs, the error says so.
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

// NewStream opens a stream to one replica. If the opening fails, it is tried again. If an open stream breaks,
// it ends with Unavailable, and the caller may open it again.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	open, cancel := context.WithTimeout(ctx, c.opt.CallTimeout)
	defer cancel()
	var out *stream
	err := c.try(open, method, false, nil, func(p *peer) (attempt, error) {
		l, err := p.begin(true)
		if err != nil {
			return attempt{}, c.gone(err)
		}
		sctx, stop := context.WithCancel(ctx)
		// The timeout applies only to the opening of the stream.
		late := context.AfterFunc(open, stop)
		cs, err := l.cc.NewStream(sctx, desc, method, opts...)
		if !late() && err == nil {
			err = status.FromContextError(open.Err()).Err()
		}
		if err != nil {
			stop()
			l.end(true, false)
			return attempt{}, c.explain(ctx, l, err)
		}
		out = &stream{ClientStream: cs, lane: l, conn: c, desc: desc, caller: ctx}
		// Release the connection also if the caller ends its context without reading the stream to the end.
		unhook := context.AfterFunc(sctx, func() { out.once.Do(func() { l.end(true, false) }) })
		out.finish = func() {
			unhook()
			out.once.Do(func() { l.end(true, false) })
			stop()
		}
		return attempt{sent: true}, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// stream is a client stream that records for each received message that its peer is alive.
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
	// gRPC cancels the stream's own context when the stream ends. So only the caller's context shows whether
	// the caller has ended it.
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
