package limits

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// If a client showed a certificate less than knownFor ago, the limits on strangers (connections without a client
	// certificate) do not apply to further connections from its host. At most maxKnown such hosts are remembered.
	knownFor = time.Hour
	maxKnown = 8192
)

// strangers are the open connections whose clients have not shown a certificate, oldest first. The listener's
// mutex protects them.
type strangers struct {
	limits   Limits
	now      func() time.Time
	order    *list.List     // connections (*conn) in a list, the oldest first
	networks map[string]int // number of connections of each network, see NetworkOf
	known    map[string]time.Time
}

func newStrangers(l Limits) *strangers {
	return &strangers{limits: l, now: time.Now, order: list.New(), networks: map[string]int{}, known: map[string]time.Time{}}
}

// full reports whether the network of a host has the maximum number of strangers (connections without a client
// certificate).
func (s *strangers) full(host string) bool {
	if s.limits.Strangers <= 0 || s.isKnown(host) {
		return false
	}
	return s.limits.StrangersPerNetwork > 0 && s.networks[NetworkOf(host)] >= s.limits.StrangersPerNetwork
}

func (s *strangers) isKnown(host string) bool {
	at, ok := s.known[host]
	return ok && s.now().Sub(at) < knownFor
}

// add adds a connection to the strangers (connections without a client certificate). If this exceeds a limit, it
// returns the oldest of them, which must then be closed; otherwise nil.
func (s *strangers) add(c *conn) (oldest *conn) {
	if s.limits.Strangers <= 0 || s.isKnown(c.host) {
		return nil
	}
	if s.order.Len() >= s.limits.Strangers {
		oldest = s.order.Front().Value.(*conn)
		s.remove(oldest)
	}
	s.networks[NetworkOf(c.host)]++
	c.place = s.order.PushBack(c)
	c.end = time.AfterFunc(s.limits.StrangerLife, func() { _ = c.Close() })
	return oldest
}

// remove removes a closed connection from the list of strangers (connections without a client certificate), if it is
// in the list.
func (s *strangers) remove(c *conn) {
	if c.place == nil {
		return
	}
	c.end.Stop()
	s.order.Remove(c.place)
	c.place = nil
	network := NetworkOf(c.host)
	if s.networks[network]--; s.networks[network] == 0 {
		delete(s.networks, network)
	}
}

// identify removes a connection from the list of strangers because its client has shown a certificate. It remembers
// the client's host, whose further connections are then not limited as strangers.
func (s *strangers) identify(c *conn) {
	s.remove(c)
	if _, ok := s.known[c.host]; !ok && len(s.known) >= maxKnown {
		for host, at := range s.known {
			if s.now().Sub(at) >= knownFor {
				delete(s.known, host)
			}
		}
		if len(s.known) >= maxKnown {
			return
		}
	}
	s.known[c.host] = s.now()
}

// Identifying wraps the TLS credentials of a server. If a client shows a certificate that the credentials
// accept, its connection no longer counts against Limits.Strangers of the listener.
func Identifying(c credentials.TransportCredentials) credentials.TransportCredentials {
	return identifying{c}
}

type identifying struct {
	credentials.TransportCredentials
}

func (i identifying) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := i.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*conn); ok && err == nil {
		if tls, ok := info.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
			c.identified()
		}
	}
	return out, info, err
}

func (i identifying) Clone() credentials.TransportCredentials {
	return identifying{i.TransportCredentials.Clone()}
}

func (i identifying) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("limits: Identifying wraps the credentials of a server")
}

// NetworkOf returns the /24 network of an IPv4 address, or the /64 network of an IPv6 address, so that the owner of a
// whole network gets the limits of a single caller. Any other text is returned unchanged.
func NetworkOf(from string) string {
	a, err := netip.ParseAddr(from)
	if err != nil {
		return from
	}
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 24
	}
	p, err := a.WithZone("").Prefix(bits)
	if err != nil {
		return from
	}
	return p.String()
}
