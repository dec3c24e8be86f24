// Package hosts has the network of a host's address, and a set of known hosts. The API ports and the Raft port use both
// to limit the connections of strangers.
package hosts

import (
	"net/netip"
	"time"
)

// NetworkOf returns the /24 network of an IPv4 address, or the /64 network of an IPv6 address, so that the owner of a
// whole network gets the limits of a single caller. Any other text is returned unchanged.
func NetworkOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 24
	}
	p, err := a.WithZone("").Prefix(bits)
	if err != nil {
		return address
	}
	return p.String()
}

// KnownFor is the time for which a Known remembers a host.
const KnownFor = time.Hour

// Known is a set of hosts from which a caller has shown an accepted certificate less than KnownFor ago. It is not safe for
// concurrent use.
type Known struct {
	limit int
	seen  map[string]time.Time
}

// NewKnown returns an empty set that holds at most limit hosts.
func NewKnown(limit int) *Known { return &Known{limit: limit, seen: map[string]time.Time{}} }

// Has reports whether a host was added less than KnownFor before now.
func (k *Known) Has(host string, now time.Time) bool {
	at, ok := k.seen[host]
	return ok && now.Sub(at) < KnownFor
}

// Add adds a host, or renews its time. If the set is full, Add first removes the hosts that Has no longer reports. If
// the set is still full, a new host is not added.
func (k *Known) Add(host string, now time.Time) {
	if _, ok := k.seen[host]; !ok && len(k.seen) >= k.limit {
		for h := range k.seen {
			if !k.Has(h, now) {
				delete(k.seen, h)
			}
		}
		if len(k.seen) >= k.limit {
			return
		}
	}
	k.seen[host] = now
}

// Len returns the number of hosts in memory.
func (k *Known) Len() int { return len(k.seen) }
