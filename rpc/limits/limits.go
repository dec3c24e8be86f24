package limits

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/persys/compute/hosts"
)

// Limits are the limits of one server. 0 means no limit.
type Limits struct {
	// Calls is the maximum number of calls per second of one peer. In a burst, twice as many are allowed.
	Calls int
	// Concurrent is the maximum number of concurrent calls of one peer.
	Concurrent int
	// Streams is the maximum number of concurrent streams of one peer, which NewStreams counts.
	Streams int
	// Connections is the maximum number of connections in total, and PerHost the maximum from one host.
	Connections, PerHost int
	// PerNetwork is the maximum number of connections from one network (hosts.NetworkOf).
	PerNetwork int
	// Strangers is the maximum number of connections whose clients have not shown a certificate
	// (Identifying). StrangersPerNetwork is the maximum number of such connections from one network (hosts.NetworkOf). If a
	// new connection exceeds one of these limits, the oldest such connection is closed. A connection without a
	// certificate is closed after StrangerLife. 0 means no limit.
	Strangers, StrangersPerNetwork int
	StrangerLife                   time.Duration
}

// The reasons for which a limit refuses a call or a connection. They are values of a metric's label.
const (
	ReasonRate        = "rate"
	ReasonConcurrency = "concurrency"
	ReasonStreams     = "streams"
	ReasonConnections = "connections"
	ReasonHost        = "host"
	ReasonStrangers   = "strangers"
)

// Reasons lists the possible reasons for a refusal by a limit.
func Reasons() []string {
	return []string{ReasonRate, ReasonConcurrency, ReasonStreams, ReasonConnections, ReasonHost, ReasonStrangers}
}

// Errors of Peers.Enter.
var (
	ErrRate       = errors.New("too many calls a second from this peer")
	ErrConcurrent = errors.New("too many concurrent calls of this peer")
)

// Peer identifies a caller whose calls are counted: by a role and an id, or by a host.
type Peer struct{ Kind, Name string }

const (
	// If more than forgetAt peers are recorded, Peers forgets the peers that have made no call for forgetAfter. It
	// searches for them at most once per forgetEvery, because the search blocks all calls, and calls from very many
	// hosts must not cause a search for each host.
	forgetAt    = 4096
	forgetAfter = time.Minute
	forgetEvery = time.Second
	// If more than mostPeers peers are recorded, further peers share one entry, so that calls from very many
	// hosts cannot fill the memory.
	mostPeers = 16 * forgetAt
)

// Peers counts the calls of each peer and refuses calls over the limits. It is safe for concurrent use.
type Peers struct {
	limits  Limits
	refused func(reason string)
	now     func() time.Time

	mu     sync.RWMutex
	peers  map[Peer]*Entry
	forgot time.Time // time of the last search for idle peers
}

// Entry holds the counters of the calls of one peer.
type Entry struct {
	calls *rate.Limiter
	open  atomic.Int64
	seen  atomic.Int64 // time of the peer's last call in Unix nanoseconds
}

// NewPeers returns a Peers without any calls. refused is called for each refusal; it may be nil.
func NewPeers(l Limits, refused func(reason string)) *Peers {
	if refused == nil {
		refused = func(string) {}
	}
	return &Peers{limits: l, refused: refused, now: time.Now, peers: map[Peer]*Entry{}}
}

// NewStreams returns a Peers that counts streams, with the limit Streams. Streams do not count against the
// limits of NewPeers.
func NewStreams(l Limits, refused func(reason string)) *Peers {
	if refused == nil {
		refused = func(string) {}
	}
	return NewPeers(Limits{Calls: l.Calls, Concurrent: l.Streams}, func(reason string) {
		if reason == ReasonConcurrency {
			reason = ReasonStreams
		}
		refused(reason)
	})
}

// Enter admits a call, or returns ErrRate or ErrConcurrent. The caller of Enter must call Leave when the call
// has ended.
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
	if len(p.peers) >= mostPeers {
		who = Peer{Kind: "others"}
		if e = p.peers[who]; e != nil {
			return e
		}
	}
	e = &Entry{}
	if n := p.limits.Calls; n > 0 {
		e.calls = rate.NewLimiter(rate.Limit(n), 2*n)
	}
	p.peers[who] = e
	return e
}

// Listen limits the connections that l accepts. A connection over a limit is closed before the handshake.
func Listen(l net.Listener, limits Limits, refused func(reason string)) net.Listener {
	if limits.Connections <= 0 && limits.PerHost <= 0 && limits.PerNetwork <= 0 && limits.Strangers <= 0 {
		return l
	}
	if refused == nil {
		refused = func(string) {}
	}
	return &listener{Listener: l, limits: limits, refused: refused, hosts: map[string]int{}, networks: map[string]int{}, strangers: newStrangers(limits)}
}

type listener struct {
	net.Listener
	limits  Limits
	refused func(string)

	mu        sync.Mutex // guards the fields below
	all       int
	hosts     map[string]int
	networks  map[string]int
	strangers *strangers
}

// HostOf returns a network address without its port. If the address has no port, it returns the whole address; for nil
// it returns "".
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
		out := &conn{Conn: c, l: l, host: HostOf(c.RemoteAddr())}
		out.network = hosts.NetworkOf(out.host)
		oldest, reason := l.enter(out)
		if oldest != nil {
			l.refused(ReasonStrangers)
			_ = oldest.Close()
		}
		if reason != "" {
			l.refused(reason)
			_ = c.Close() // ignore the error: nothing was sent on this connection
			continue
		}
		return out, nil
	}
}

// enter counts connection c, or returns the reason why c is refused. oldest is another connection that must be closed
// because c exceeds the limit Strangers; nil if there is none.
func (l *listener) enter(c *conn) (oldest *conn, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.PerHost > 0 && l.hosts[c.host] >= l.limits.PerHost {
		return nil, ReasonHost
	}
	if l.limits.PerNetwork > 0 && l.networks[c.network] >= l.limits.PerNetwork {
		return nil, ReasonHost
	}
	if l.limits.Connections > 0 && l.all >= l.limits.Connections {
		return nil, ReasonConnections
	}
	if l.strangers.full(c) {
		return nil, ReasonStrangers
	}
	oldest = l.strangers.add(c)
	l.all++
	l.hosts[c.host]++
	l.networks[c.network]++
	return oldest, ""
}

func (l *listener) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers.remove(c)
	l.all--
	if l.hosts[c.host]--; l.hosts[c.host] == 0 {
		delete(l.hosts, c.host)
	}
	if l.networks[c.network]--; l.networks[c.network] == 0 {
		delete(l.networks, c.network)
	}
}

type conn struct {
	net.Conn
	l       *listener
	host    string
	network string // network of the host (hosts.NetworkOf)
	once    sync.Once
	// place is the connection's element in the list of strangers (connections whose clients have shown no
	// certificate), and end is the timer that closes the connection after StrangerLife. Once the client has shown a
	// certificate, place is nil and the timer is stopped.
	place *list.Element
	end   *time.Timer
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.l.leave(c) })
	return err
}

func (c *conn) identified() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.strangers.identify(c)
}
