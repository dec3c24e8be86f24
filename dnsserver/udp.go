package dnsserver

import (
	"context"
	"net"
	"net/netip"
	"slices"
)

// maxQuery is the maximum size of a query over UDP, in bytes. Of a longer packet only these bytes are received, so it
// is answered as a malformed query.
const maxQuery = 1232

// maxFailures is the number of consecutive receive errors after which the server gives up a UDP socket as broken. A
// few errors are normal: the kernel reports in this way that a client's port is closed.
const maxFailures = 1000

// forwardPacket forwards the query msg to an upstream server in a separate goroutine. It copies msg and
// control, so the caller may reuse them.
func (s *Server) forwardPacket(ctx context.Context, conn *net.UDPConn, msg, control []byte, from netip.AddrPort) {
	msg, control = slices.Clone(msg), slices.Clone(control)
	if !s.forward.acquire() {
		conn.WriteMsgUDPAddrPort(serverFailure(msg), control, from) // an error is ignored: if the client gets no answer, it repeats the query
		return
	}
	s.wg.Go(func() {
		defer s.forward.release()
		conn.WriteMsgUDPAddrPort(s.foreign(ctx, msg, false), control, from)
	})
}
