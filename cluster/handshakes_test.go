package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/persys/compute/hosts"
)

// TestUnfinishedHandshakesOfStrangers: strangers may have at most half of the unfinished handshakes on the Raft port,
// so that replicas can still connect. Strangers of one network may have only a small part of that half.
func TestUnfinishedHandshakesOfStrangers(t *testing.T) {
	h, now := newHandshakes(), time.Unix(0, 0)
	h.now = func() time.Time { return now }
	enter := func(from string, replica bool) func() { return h.enter(netip.MustParseAddr(from), replica) }
	var leave []func()
	for i := range 200 {
		if l := enter(fmt.Sprintf("10.0.0.%d", i), false); l != nil {
			leave = append(leave, l)
		}
	}
	if len(leave) != handshakesPerNetwork {
		t.Errorf("%d unfinished handshakes of one /24 network were admitted, want %d", len(leave), handshakesPerNetwork)
	}
	for i := range 1000 {
		if l := enter(fmt.Sprintf("2001:db8:0:%x::%x", i, i), false); l != nil {
			leave = append(leave, l)
		}
	}
	if len(leave) != handshakesStrangers {
		t.Errorf("%d unfinished handshakes of strangers (addresses of no replica) were admitted, want %d", len(leave), handshakesStrangers)
	}
	if enter("192.0.2.1", false) != nil {
		t.Error("one more handshake of a stranger was admitted above the limit")
	}
	h.succeeded(netip.MustParseAddr("192.0.2.1"))
	for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
		if l := enter(from, from == "192.0.2.2"); l == nil {
			t.Errorf("a handshake of the replica at %s was refused", from)
		} else {
			l()
		}
	}
	now = now.Add(hosts.KnownFor)
	if enter("192.0.2.1", false) != nil {
		t.Error("an address whose last handshake was hosts.KnownFor ago still counts as that of a replica")
	}
	for _, l := range leave {
		l()
	}
	if h.all != 0 || h.strangers != 0 || len(h.networks) != 0 {
		t.Errorf("after all handshakes have ended, %d handshakes, %d of strangers and %d networks are still counted, want none", h.all, h.strangers, len(h.networks))
	}
}
