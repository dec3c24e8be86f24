package limits

import (
	"container/list"
	"context"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/persys/compute/hosts"
)

// If a client showed a certificate less than hosts.KnownFor ago, the limits on strangers (connections without a client
// certificate) do not apply to further connections from its host. At most maxKnown such hosts are remembered.
const maxKnown = 8192

// strangers are the open connections whose clients have not shown a certificate, oldest first. The listener's
// mutex protects them.
type strangers struct {
	limits   Limits
	now      func() time.Time
	order    *list.List     // connections (*conn) in a list, the oldest first
	networks map[string]int // number of connections of each network, see hosts.NetworkOf
	known    *hosts.Known
}

func newStrangers(l Limits) *strangers {
	return &strangers{limits: l, now: time.Now, order: list.New(), networks: map[string]int{}, known: hosts.NewKnown(maxKnown)}
}

// full reports whether the network of a connection has the maximum number of strangers (connections without a client
// certificate).
func (s *strangers) full(c *conn) bool {
	if s.limits.Strangers <= 0 || s.known.Has(c.host, s.now()) {
		return false
	}
	return s.limits.StrangersPerNetwork > 0 && s.networks[c.network] >= s.limits.StrangersPerNetwork
}

// add adds a connection to the strangers (connections without a client certificate). If this exceeds a limit, it
// returns the oldest of them, which must then be closed; otherwise nil.
func (s *strangers) add(c *conn) (oldest *conn) {
	if s.limits.Strangers <= 0 || s.known.Has(c.host, s.now()) {
		return nil
	}
	if s.order.Len() >= s.limits.Strangers {
		oldest = s.order.Front().Value.(*conn)
		s.remove(oldest)
	}
	s.networks[c.network]++
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
	if s.networks[c.network]--; s.networks[c.network] == 0 {
		delete(s.networks, c.network)
	}
}

// identify removes a connection from the list of strangers because its client has shown a certificate. It remembers
// the client's host, whose further connections are then not limited as strangers.
func (s *strangers) identify(c *conn) {
	s.remove(c)
	s.known.Add(c.host, s.now())
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
