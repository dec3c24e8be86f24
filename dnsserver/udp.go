package dnsserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

// maxQuery is the longest query that is read over UDP: a header, a name and EDNS
// with room to spare. What is longer is cut, and so malformed.
const maxQuery = 1232

// maxFailures is how many failed receptions in a row mean that the socket is
// broken. A few are normal: they tell that a client refused an answer.
const maxFailures = 1000

// servePackets is the plain way to serve UDP: one packet at a time.
func (s *Server) servePackets(ctx context.Context, conn *net.UDPConn) error {
	var r reader
	in, control, out := make([]byte, maxQuery), make([]byte, controlSize), make([]byte, 0, 2*maxUDP)
	failures := 0
	for {
		n, cn, _, from, err := conn.ReadMsgUDPAddrPort(in, control)
		if err != nil {
			if failures++; errors.Is(err, net.ErrClosed) || failures > maxFailures {
				return err
			}
			continue
		}
		failures = 0
		began := time.Now()
		reply, foreign := s.respond(out[:0], in[:n], false, from.Addr().Unmap(), began, &r)
		replyControl(control[:cn])
		if foreign {
			s.forwardPacket(ctx, conn, in[:n], control[:cn], from)
			continue
		}
		if len(reply) == 0 {
			continue
		}
		if _, _, err := conn.WriteMsgUDPAddrPort(reply, control[:cn], from); errors.Is(err, net.ErrClosed) {
			return err
		}
		s.metrics.took(time.Since(began), 1)
	}
}

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
