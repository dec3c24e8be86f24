package dnsserver

import (
	"context"
	"net"
	"net/netip"
	"slices"
)

// maxQuery is the maximum size of a query over UDP, in bytes. A longer packet is cut and is
// therefore malformed.
const maxQuery = 1232

// maxFailures is the number of consecutive receive errors after which the socket counts as broken. A
// few errors are normal: they report that a client's port is closed.
const maxFailures = 1000

// forwardPacket forwards a query in a separate goroutine. It copies msg and control.
func (s *Server) forwardPacket(ctx context.Context, conn *net.UDPConn, msg, control []byte, from netip.AddrPort) {
	msg, control = slices.Clone(msg), slices.Clone(control)
	if !s.forward.acquire() {
		conn.WriteMsgUDPAddrPort(serverFailure(msg), control, from) // a client repeats the query if the answer is lost
		return
	}
	s.wg.Go(func() {
		defer s.forward.release()
		conn.WriteMsgUDPAddrPort(s.foreign(ctx, msg, false), control, from)
	})
}
