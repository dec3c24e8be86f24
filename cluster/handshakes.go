package cluster

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/persys/compute/hosts"
)

// Limits of the number of unfinished handshakes on the Raft port. An address counts as that of a replica if gossip
// names it, or if a handshake from it succeeded within hosts.KnownFor; any other peer is a stranger. Strangers may
// have only half of all handshakes, so that the other half is left for replicas.
const (
	handshakesMax        = 256
	handshakesStrangers  = handshakesMax / 2
	handshakesPerNetwork = 16
	maxKnown             = 256
)

// handshakes counts the unfinished handshakes on the Raft port.
type handshakes struct {
	now func() time.Time

	mu        sync.Mutex
	all       int
	strangers int
	networks  map[string]int // number of handshakes of strangers by network, see hosts.NetworkOf
	known     *hosts.Known
}

func newHandshakes() *handshakes {
	return &handshakes{now: time.Now, networks: map[string]int{}, known: hosts.NewKnown(maxKnown)}
}

// enter counts a connection from an address. replica says that gossip knows the address as that of a replica. The
// returned function must be called once, when the handshake has ended. It is nil if a limit is reached, and the
// connection must then be closed.
func (h *handshakes) enter(from netip.Addr, replica bool) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if replica || h.known.Has(from.String(), h.now()) {
		if h.all >= handshakesMax {
			return nil
		}
		h.all++
		return func() { h.leave("") }
	}
	network := hosts.NetworkOf(from.String())
	if h.all >= handshakesMax || h.strangers >= handshakesStrangers || h.networks[network] >= handshakesPerNetwork {
		return nil
	}
	h.all++
	h.strangers++
	h.networks[network]++
	return func() { h.leave(network) }
}

// leave stops counting a connection. stranger is the network of a stranger; "" for a replica.
func (h *handshakes) leave(stranger string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if stranger == "" {
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
	h.known.Add(from.String(), h.now())
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
