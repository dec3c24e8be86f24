package limits

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits of one server. 0 means no limit.
type Limits struct {
	// Calls of one peer per second; the burst is twice as high.
	Calls int
	// Concurrent is the most concurrent calls of one peer, streams included.
	Concurrent int
	// Connections in total and from one host.
	Connections, PerHost int
}

// Reasons for a refusal, used in metrics.
const (
	ReasonRate        = "rate"
	ReasonConcurrency = "concurrency"
	ReasonConnections = "connections"
	ReasonHost        = "host"
)

// Errors of Enter.
var (
	ErrRate       = errors.New("too many calls a second from this peer")
	ErrConcurrent = errors.New("too many concurrent calls of this peer")
)

// Peer identifies a caller: a role and an id, or a host.
type Peer struct{ Kind, Name string }

const (
	// If more than forgetAt peers are recorded, those without a call for forgetAfter are dropped.
	// That search runs every forgetEvery at most, because it blocks all calls and a flood of hosts
	// must not trigger it for each of them.
	forgetAt    = 4096
	forgetAfter = time.Minute
	forgetEvery = time.Second
)

// Peers counts the calls of each peer. It is safe for concurrent use.
type Peers struct {
	limits  Limits
	refused func(reason string)
	now     func() time.Time

	mu     sync.RWMutex
	peers  map[Peer]*Entry
	forgot time.Time // time of the last search for idle peers
}

// Entry holds the counters of one peer.
type Entry struct {
	calls *rate.Limiter
	open  atomic.Int64
	seen  atomic.Int64 // Unix nanoseconds
}

// NewPeers returns empty counters. refused is called for each refusal; it may be nil.
func NewPeers(l Limits, refused func(reason string)) *Peers {
	if refused == nil {
		refused = func(string) {}
	}
	return &Peers{limits: l, refused: refused, now: time.Now, peers: map[Peer]*Entry{}}
}

// Enter admits a call or returns ErrRate or ErrConcurrent. The caller calls Leave when the call has
// ended.
func (p *Peers) Enter(who Peer) (*Entry, error) {
	if p == nil || p.limits.Calls <= 0 && p.limits.Concurrent <= 0 {
		return nil, nil
	}
	e := p.entry(who)
	now := p.now()
	e.seen.Store(now.UnixNano())
	if e.calls != nil && !e.calls.AllowN(now, 1) {
		p.refused(ReasonRate)
		return nil, ErrRate
	}
	if n := e.open.Add(1); p.limits.Concurrent > 0 && n > int64(p.limits.Concurrent) {
		e.open.Add(-1)
		p.refused(ReasonConcurrency)
		return nil, ErrConcurrent
	}
	return e, nil
}

// Leave records the end of a call that Enter admitted.
func (e *Entry) Leave() {
	if e != nil {
		e.open.Add(-1)
	}
}

func (p *Peers) entry(who Peer) *Entry {
	p.mu.RLock()
	e := p.peers[who]
	p.mu.RUnlock()
	if e != nil {
		return e
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e = p.peers[who]; e != nil {
		return e
	}
	if now := p.now(); len(p.peers) >= forgetAt && now.Sub(p.forgot) >= forgetEvery {
		p.forgot = now
		old := now.Add(-forgetAfter).UnixNano()
		for k, e := range p.peers {
			if e.open.Load() == 0 && e.seen.Load() < old {
				delete(p.peers, k)
			}
		}
	}
	e = &Entry{}
	if n := p.limits.Calls; n > 0 {
		e.calls = rate.NewLimiter(rate.Limit(n), 2*n)
	}
	p.peers[who] = e
	return e
}

// Listen bounds the connections that l accepts. A connection beyond the bound is closed before the
// handshake.
func Listen(l net.Listener, limits Limits, refused func(reason string)) net.Listener {
	if limits.Connections <= 0 && limits.PerHost <= 0 {
		return l
	}
	if refused == nil {
		refused = func(string) {}
	}
	return &listener{Listener: l, limits: limits, refused: refused, hosts: map[string]int{}}
}

type listener struct {
	net.Listener
	limits  Limits
	refused func(string)

	mu    sync.Mutex
	all   int
	hosts map[string]int
}

// HostOf returns an address without its port. It returns the whole address if there is no port, and
// "" for nil.
func HostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	if t, ok := a.(*net.TCPAddr); ok && t.Zone == "" {
		return t.IP.String()
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := HostOf(c.RemoteAddr())
		if reason := l.enter(host); reason != "" {
			l.refused(reason)
			_ = c.Close() // nothing was exchanged
			continue
		}
		return &conn{Conn: c, left: sync.OnceFunc(func() { l.leave(host) })}, nil
	}
}

func (l *listener) enter(host string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.PerHost > 0 && l.hosts[host] >= l.limits.PerHost {
		return ReasonHost
	}
	if l.limits.Connections > 0 && l.all >= l.limits.Connections {
		return ReasonConnections
	}
	l.all++
	l.hosts[host]++
	return ""
}

func (l *listener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

type conn struct {
	net.Conn
	left func()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.left()
	return err
}
