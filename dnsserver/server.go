package dnsserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/fsm/store"
)

// Options configure a Server. The zero Options select all defaults.
type Options struct {
	Addr     string   // setting SCHEDULER_DNS_ADDR, default ":8053"; address for UDP and TCP
	Upstream []string // setting SCHEDULER_DNS_UPSTREAM: "host[:port]" of the servers for names outside the zones, tried in order; empty means that such names are refused
	Sockets  int      // number of UDP sockets that share Addr, on systems that support it; 0 means one per CPU

	// Rate is the number of queries per second that a client (IPv4 address or IPv6 /64) may send. Burst is
	// the number of queries that it may send at once after a pause. UDP and TCP are limited separately. 0 =
	// 5,000 and twice the rate; a negative Rate disables the limit. Loopback addresses are never limited.
	Rate, Burst int

	Registerer prometheus.Registerer // nil means that the metrics are not registered
	Log        *slog.Logger          // nil means slog.Default
}

const (
	defaultRate = 5000
	maxSockets  = 64
	// hintsEvery is the interval at which the Hints are read. Changed hints must affect answers within a
	// second.
	hintsEvery = 200 * time.Millisecond
)

// Server is a DNS server. New opens its sockets, and Run answers queries.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	limit   *limiter
	// limitTCP limits queries over TCP, separately from limit. So a client whose UDP rate is used up, perhaps
	// by packets with forged addresses, can still retry over TCP, where addresses cannot be forged.
	limitTCP *limiter
	forward  *forwarder // nil means that names outside the zones are refused
	zone     atomic.Pointer[Zone]
	wg       sync.WaitGroup // counts running forwards and open TCP connections

	udp []*net.UDPConn
	tcp net.Listener
}

// New checks cfg and opt and opens the server's sockets. An error names the invalid setting. Run or Close
// closes the sockets.
func New(cfg Config, opt Options) (*Server, error) {
	if _, err := cfg.plan(); err != nil {
		return nil, err
	}
	if opt.Addr == "" {
		opt.Addr = DefaultAddr
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.Sockets == 0 {
		opt.Sockets = runtime.GOMAXPROCS(0)
	}
	switch {
	case opt.Rate == 0:
		opt.Rate = defaultRate
	case opt.Rate < 0:
		opt.Rate = 0
	}
	if opt.Burst == 0 {
		opt.Burst = 2 * opt.Rate
	}
	switch {
	case opt.Burst < 0:
		return nil, fmt.Errorf("Burst: %d is negative", opt.Burst)
	case opt.Sockets < 0 || opt.Sockets > maxSockets:
		return nil, fmt.Errorf("Sockets: %d is not from 0 to %d", opt.Sockets, maxSockets)
	}
	fwd, err := newForwarder(opt.Upstream)
	if err != nil {
		return nil, err
	}
	m := newMetrics()
	if opt.Registerer != nil {
		if err := opt.Registerer.Register(m.Set); err != nil {
			return nil, err
		}
	}
	s := &Server{cfg: cfg, log: opt.Log, metrics: m, limit: newLimiter(opt.Rate, opt.Burst), limitTCP: newLimiter(opt.Rate, opt.Burst), forward: fwd}
	if err := s.listen(opt.Addr, opt.Sockets); err != nil {
		s.Close()
		return nil, fmt.Errorf("SCHEDULER_DNS_ADDR: %w", err)
	}
	return s, nil
}

// portTries is the maximum number of times that listen looks for a port that is free for both UDP and TCP.
const portTries = 16

func (s *Server) listen(addr string, sockets int) (err error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	for range portTries {
		if err = s.listenOnce(addr, sockets); err == nil || port != "0" {
			return err
		}
		s.Close()
		s.udp, s.tcp = nil, nil
	}
	return err
}

func (s *Server) listenOnce(addr string, sockets int) error {
	lc := net.ListenConfig{Control: controlUDP}
	for i := range sockets {
		if i > 0 && !sharesPort {
			break
		}
		pc, err := lc.ListenPacket(context.Background(), "udp", addr)
		if err != nil {
			return err
		}
		conn := pc.(*net.UDPConn)
		s.udp = append(s.udp, conn)
		addr = conn.LocalAddr().String()
		if err := prepareUDP(conn); err != nil {
			return err
		}
	}
	var err error
	s.tcp, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	return err
}

// Addr returns the address on which the server listens, over UDP and TCP.
func (s *Server) Addr() netip.AddrPort {
	return s.udp[0].LocalAddr().(*net.UDPAddr).AddrPort()
}

// Close closes the sockets, which makes Run return. It may be called on a server that never ran.
func (s *Server) Close() error {
	var errs []error
	for _, c := range s.udp {
		errs = append(errs, ignoreClosed(c.Close()))
	}
	if s.tcp != nil {
		errs = append(errs, ignoreClosed(s.tcp.Close()))
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Zone returns the zone from which the server answers, or nil before Run.
func (s *Server) Zone() *Zone { return s.zone.Load() }

// Run answers queries from the state of st and follows its changes until ctx ends. It then closes the sockets
// and waits for its goroutines. hints is called five times a second; it may be nil. It returns nil after ctx
// has ended, or the error of a socket.
func (s *Server) Run(ctx context.Context, st *store.Store, hints func() Hints) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.Close()
	if hints == nil {
		hints = func() Hints { return Hints{} }
	}
	view := st.View()
	b, err := NewBuilder(s.cfg, view, hints())
	if err != nil {
		return err
	}
	s.publish(b)

	var loops sync.WaitGroup
	serve := func(loop func(context.Context) error) {
		loops.Go(func() {
			if err := loop(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	for _, conn := range s.udp {
		serve(func(ctx context.Context) error { return s.serveUDP(ctx, conn) })
	}
	serve(s.serveTCP)
	loops.Go(func() { s.follow(ctx, st, b, view.Info().Index, hints) })

	<-ctx.Done()
	closed := s.Close()
	loops.Wait()
	s.wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("serve DNS: %w", err)
	}
	return closed
}

func (s *Server) publish(b *Builder) {
	z := b.Zone()
	s.zone.Store(z)
	s.metrics.zone(z)
}

// follow keeps the zone up to date with the change feed of st until ctx ends. If the change feed ends, follow
// returns and the server keeps the last zone.
func (s *Server) follow(ctx context.Context, st *store.Store, b *Builder, index uint64, hints func() Hints) {
	for ctx.Err() == nil {
		cur, err := st.Changes(index)
		if err == nil {
			err = s.followCursor(ctx, cur, b, hints)
			cur.Close()
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, store.ErrCompacted):
			v := st.View()
			index = v.Info().Index
			b.Rebuild(v)
			s.metrics.rebuilds.Inc()
			s.publish(b)
			s.log.Info("DNS zones are built from scratch, because the change feed no longer has all changes since the last zone", "index", index)
		default:
			s.log.Warn("DNS answers no longer change, because the change feed has ended", "index", b.view.Info().Index, "error", err)
			return
		}
	}
}

// followCursor applies the changes that one cursor of the change feed returns, and returns the error that
// ended the cursor.
func (s *Server) followCursor(ctx context.Context, cur *store.Cursor, b *Builder, hints func() Hints) error {
	asked := time.Now()
	for {
		wait, cancel := context.WithDeadline(ctx, asked.Add(hintsEvery))
		batch, err := cur.Next(wait)
		cancel()
		if err != nil && (!errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil) {
			return err
		}
		changed := err == nil
		if changed {
			b.Update(batch.View, batch.Changes)
		}
		if now := time.Now(); now.Sub(asked) >= hintsEvery {
			asked = now
			if h := hints(); !h.Equal(b.hints) {
				s.log.Info("the hints about schedulers changed; DNS answers follow the new hints", "dead", h.Dead, "suspect", h.Suspect, "leader", h.Leader, "partitioned", h.Partitioned)
				b.SetHints(h)
				changed = true
			}
		}
		if changed {
			s.publish(b)
		}
	}
}

// respond appends the answer to one message. If the query must be forwarded, foreign is true and respond
// appends nothing.
func (s *Server) respond(dst, msg []byte, tcp bool, client netip.Addr, now time.Time, r *reader) (out []byte, foreign bool) {
	limit := s.limit
	if tcp {
		limit = s.limitTCP
	}
	if v := limit.take(client, now); v != pass {
		s.metrics.limited.Inc()
		if v == slip && !tcp {
			return r.slipped(dst, msg), false
		}
		return dst, false
	}
	start := len(dst)
	dst, o := s.zone.Load().answer(dst, msg, Ask{TCP: tcp, Turn: rand.Uint32(), Recursive: s.forward != nil}, r)
	if len(dst) == start {
		s.metrics.dropped.Inc()
		return dst, false
	}
	if o.Foreign && s.forward != nil {
		return dst[:start], true
	}
	s.metrics.answered(o)
	return dst, false
}

// slipped is called for a query over the client's rate limit. It appends an empty answer with the TC bit, which makes
// the client retry over TCP.
func (r *reader) slipped(dst, msg []byte) []byte {
	if _, ok := r.q.read(msg); !ok || r.q.end == 0 {
		return dst
	}
	start := len(dst)
	return r.q.finish(r.q.begin(dst, msg), start, bitTC, 0, 0, 0, 0)
}

// upstreams checks "host[:port]" addresses. The default port is 53.
func upstreams(list []string) ([]string, error) {
	var out []string
	for _, s := range list {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = s, "53"
			_, aerr := netip.ParseAddr(s)
			if _, nerr := parseName(s); aerr != nil && (nerr != nil || strings.Contains(s, ":")) {
				return nil, fmt.Errorf("SCHEDULER_DNS_UPSTREAM: %q is not host[:port]", s)
			}
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return nil, fmt.Errorf("SCHEDULER_DNS_UPSTREAM: %q is not host[:port] with a port from 1 to 65535", s)
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	return out, nil
}
