//go:build !linux || !(amd64 || arm64)

package dnsserver

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

const (
	sharesPort  = false
	controlSize = 0
)

func controlUDP(_, _ string, _ syscall.RawConn) error { return nil }

func prepareUDP(*net.UDPConn) error { return nil }

func replyControl([]byte) {}

// serveUDP answers the queries that a socket receives, one packet at a time, until the socket is closed.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
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
		s.metrics.observe(time.Since(began), 1)
	}
}
