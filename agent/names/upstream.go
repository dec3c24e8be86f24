package names

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// askLimit is the time limit for the answer of one of the machine's resolvers, and allLimit that for all
	// of them together. allLimit is below 4 s, after which the DNS proxy of the container engine gives up.
	askLimit, allLimit = 1500 * time.Millisecond, 3 * time.Second
	// maxServers is the maximum number of entries of resolv.conf that are used, as in the C
	// library.
	maxServers = 3
	// maxAsked is the number of queries that may wait for the machine's resolvers at the same time.
	maxAsked = 256
)

// upstream holds the machine's own resolvers, as listed in its resolv.conf.
type upstream struct {
	path  string
	slots chan struct{}

	mu      sync.Mutex
	read    time.Time // modification time of resolv.conf when it was last read
	servers []string
}

func newUpstream(path string) *upstream {
	return &upstream{path: path, slots: make(chan struct{}, maxAsked)}
}

// current returns the machine's resolvers. It reads resolv.conf again if the file has changed.
func (u *upstream) current() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	info, err := os.Stat(u.path)
	if err != nil || info.ModTime().Equal(u.read) {
		return u.servers
	}
	c, err := dns.ClientConfigFromFile(u.path)
	if err != nil {
		return u.servers
	}
	u.read, u.servers = info.ModTime(), nil
	for _, s := range c.Servers[:min(len(c.Servers), maxServers)] {
		u.servers = append(u.servers, net.JoinHostPort(s, c.Port))
	}
	return u.servers
}

// ask forwards a query to the machine's resolvers in turn and returns the first answer; nil if none answers.
func (u *upstream) ask(q *dns.Msg, tcp bool) *dns.Msg {
	select {
	case u.slots <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-u.slots }()
	c := &dns.Client{Timeout: askLimit, UDPSize: maxUDP}
	if tcp {
		c.Net = "tcp"
	}
	sent := q.Copy()
	sent.Id = dns.Id()
	began := time.Now()
	for _, s := range u.current() {
		if c.Timeout = min(askLimit, allLimit-time.Since(began)); c.Timeout <= 0 {
			return nil
		}
		if reply, _, err := c.Exchange(sent, s); err == nil {
			reply.Id = q.Id
			return reply
		}
	}
	return nil
}
