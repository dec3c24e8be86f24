//go:build !linux || !(amd64 || arm64)

package dnsserver

import (
	"context"
	"net"
	"syscall"
)

const (
	sharesPort  = false
	controlSize = 0
)

func controlUDP(_, _ string, _ syscall.RawConn) error { return nil }

func prepareUDP(*net.UDPConn) error { return nil }

func replyControl([]byte) {}

func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	return s.servePackets(ctx, conn)
}
