package names

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// askLimit is how long one of the machine's resolvers may take, and allLimit how long all may take together. The
	// engine gives up after 4 s.
	askLimit, allLimit = 1500 * time.Millisecond, 3 * time.Second
	// maxServers is the number of resolvers of the machine that are asked, as in the C library.
	maxServers = 3
	// maxAsked is the number of queries that may wait for the machine's resolvers at the same time.
	maxAsked = 256
)

// upstream are the resolvers of the machine, as its file resolv.conf names them.
type upstream struct {
	path  string
	slots chan struct{}

	mu      sync.Mutex
	read    time.Time // modification time of the file that was read
	servers []string
}

func newUpstream(path string) *upstream {
	return &upstream{path: path, slots: make(chan struct{}, maxAsked)}
}

// current returns the machine's resolvers. It reads the file again if it has changed.
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

// ask returns the answer of the first resolver of the machine that answers; nil if none does.
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
