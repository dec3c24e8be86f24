package testbed

import (
	"net"
	"testing"
)

// Port listens on the same free port of 127.0.0.1 over both TCP and UDP, as a DNS server does.
func Port(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 50 { // a port that is free for TCP may be taken for UDP, so try several
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if pc, err := net.ListenPacket("udp", l.Addr().String()); err == nil {
			return l, pc
		}
		l.Close()
	}
	t.Fatal("no loopback port is free for both TCP and UDP")
	return nil, nil
}
