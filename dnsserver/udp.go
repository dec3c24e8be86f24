package dnsserver

import (
	"context"
	"net"
	"net/netip"
	"slices"
)

// maxQuery is the longest query that is read over UDP: a header, a name and EDNS
// with room to spare. What is longer is cut, and so malformed.
const maxQuery = 1232

// maxFailures is how many failed receptions in a row mean that the socket is
// broken. A few are normal: they tell that a client refused an answer.
const maxFailures = 1000

// forwardPacket has a query answered elsewhere while others are served. It keeps
// nothing of its arguments.
func (s *Server) forwardPacket(ctx context.Context, conn *net.UDPConn, msg, control []byte, from netip.AddrPort) {
	msg, control = slices.Clone(msg), slices.Clone(control)
	if !s.forward.acquire() {
		conn.WriteMsgUDPAddrPort(serverFailure(msg), control, from) // a lost answer is asked for again
		return
	}
	s.wg.Go(func() {
		defer s.forward.release()
		conn.WriteMsgUDPAddrPort(s.foreign(ctx, msg, false), control, from)
	})
}
