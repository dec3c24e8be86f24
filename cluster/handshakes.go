package cluster

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of the unfinished handshakes on the Raft port. Addresses of replicas are known by gossip, or by a handshake that
// succeeded within knownFor. Half of all places are for them alone.
const (
	handshakesMax        = 256
	handshakesStrangers  = handshakesMax / 2
	handshakesPerNetwork = 16
	knownFor             = time.Hour
	maxKnown             = 256
)

// handshakes counts the unfinished handshakes on the Raft port.
type handshakes struct {
	now func() time.Time

	mu        sync.Mutex
	all       int
	strangers int
	networks  map[netip.Prefix]int // of strangers
	known     map[netip.Addr]time.Time
}

func newHandshakes() *handshakes {
	return &handshakes{now: time.Now, networks: map[netip.Prefix]int{}, known: map[netip.Addr]time.Time{}}
}

// enter counts a connection from an address. replica says that gossip knows the address as that of a replica. The
// returned function must be called once, when the handshake has ended; it is nil if there is no room.
func (h *handshakes) enter(from netip.Addr, replica bool) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.known[from]
	if replica || ok && h.now().Sub(at) < knownFor {
		if h.all >= handshakesMax {
			return nil
		}
		h.all++
		return func() { h.leave(netip.Prefix{}) }
	}
	network := networkOf(from)
	if h.all >= handshakesMax || h.strangers >= handshakesStrangers || h.networks[network] >= handshakesPerNetwork {
		return nil
	}
	h.all++
	h.strangers++
	h.networks[network]++
	return func() { h.leave(network) }
}

func (h *handshakes) leave(stranger netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if !stranger.IsValid() {
		return
	}
	h.strangers--
	if h.networks[stranger]--; h.networks[stranger] == 0 {
		delete(h.networks, stranger)
	}
}

// succeeded records that a replica has completed a handshake from an address.
func (h *handshakes) succeeded(from netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if len(h.known) >= maxKnown {
		for a, at := range h.known {
			if now.Sub(at) >= knownFor {
				delete(h.known, a)
			}
		}
	}
	if _, ok := h.known[from]; ok || len(h.known) < maxKnown {
		h.known[from] = now
	}
}

// networkOf returns the network of an address: a /24 of IPv4, or a /64 of IPv6, which one person may have to themselves.
func networkOf(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 24
	}
	p, err := a.Prefix(bits)
	if err != nil { // an address that is not valid: all of these share one network
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return p
}

// addrOf returns the address of a connection's peer; the zero address if it has none.
func addrOf(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// hasReplica reports whether gossip knows a replica at an address.
func (p *port) hasReplica(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.seen {
		if ap, err := netip.ParseAddrPort(at); err == nil && ap.Addr().Unmap() == a {
			return true
		}
	}
	return false
}
