package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

// TestRefusal: each way in which a connection fails has its own text. Only if no answer came may the fault be
// in the path between the machines.
func TestRefusal(t *testing.T) {
	to := netip.MustParseAddrPort("10.216.0.2:80")
	in := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, c := range []struct {
		err    error
		text   string
		silent bool
	}{
		{in(unix.ECONNREFUSED), "refused: nothing listens at port 80, or a firewall rejects it", false},
		{in(unix.EHOSTUNREACH), "not reachable: no route to host", true},
		{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, "no answer within 1s", true},
		{errors.New("other"), "other", false},
	} {
		if text, silent := refusal(c.err, to); text != c.text || silent != c.silent {
			t.Errorf("refusal of the error %v returned %q, silent %t; want %q, silent %t", c.err, text, silent, c.text, c.silent)
		}
	}
}

// TestTraceSource: connections of the machine to members of a network come from the address of its bridge in
// that network. Connections to other addresses come from the machine's own address.
func TestTraceSource(t *testing.T) {
	n := workload.Network{ID: 1, CIDR: netip.MustParsePrefix("10.216.0.0/20"), Slice: netip.MustParsePrefix("10.216.0.64/26")}
	d := tracer{view: &workload.NetworkView{Networks: []workload.Network{n}}}
	if got := fmt.Sprint(d.source(netip.MustParseAddr("10.216.0.2"))); got != plan.Gateway(n.Slice).String()+":0" {
		t.Errorf("a connection to a member of the network has the source %s, want the address of this machine's bridge", got)
	}
	if got := d.source(netip.MustParseAddr("10.0.0.2")); got != nil {
		t.Errorf("a connection to an address outside of the networks has the source %s, want none", got)
	}
	if d.pid = 1; d.source(netip.MustParseAddr("10.216.0.2")) != nil {
		t.Error("a connection from the namespace of a container has a source address set, want none")
	}
}

// TestTraceInside: connections are opened in the namespace of the container's process. If the process does not
// have the container's address, it is a process of something else, and Trace opens no connections in its
// namespace.
func TestTraceInside(t *testing.T) {
	if os.Geteuid() != 0 {
		testbed.Need(t, "network namespaces", errors.New("they need root"))
	}
	called := false
	f := func() error { called = true; return nil }
	if err := inside(os.Getpid(), []netip.Addr{netip.MustParseAddr("192.0.2.77")}, f); called || err == nil || !strings.Contains(err.Error(), "does not have the container's address 192.0.2.77") {
		t.Errorf("inside, for a process without the container's address, called f: %t, and returned %v; want no call and an error", called, err)
	}
	if err := inside(os.Getpid(), []netip.Addr{netip.MustParseAddr("127.0.0.1")}, f); !called || err != nil {
		t.Errorf("inside, for a process with the container's address, called f: %t, and returned %v; want a call and no error", called, err)
	}
}

// TestTraceLimit: Trace opens at most maxTraced connections, and returns how many it left out.
func TestTraceLimit(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	o := &Overlay{}
	out, left := o.Trace(t.Context(), make([]netip.AddrPort, 0), "", 0)
	if len(out) != 0 || left != 0 {
		t.Errorf("Trace without addresses returned %v and %d left out, want nothing", out, left)
	}
	var to []netip.AddrPort
	for range maxTraced + 3 {
		to = append(to, at)
	}
	out, left = o.Trace(t.Context(), to, "", 0)
	if len(out) != maxTraced || left != 3 || out[0].GetConnection().GetProblem() != "" || out[0].GetConnection().GetLatencyMicroseconds() == 0 {
		t.Errorf("Trace returned %d connections and %d left out, the first is %v; want maxTraced, 3, and a latency without a problem", len(out), left, out[0])
	}
}

// TestTraceOpensToMembersOnly: in a network, a trace opens connections to services, to the containers of this machine
// and to addresses that containers of other machines can have, and never to the bridge of a machine: its programs
// listen there, too.
func TestTraceOpensToMembersOnly(t *testing.T) {
	addr := netip.MustParseAddr
	o := &Overlay{view: &workload.NetworkView{Networks: []workload.Network{{
		ID: 1, CIDR: netip.MustParsePrefix("127.216.0.0/20"), Slice: netip.MustParsePrefix("127.216.0.0/26"),
		Peers: []workload.NetworkSlice{{Node: "b", CIDR: netip.MustParsePrefix("127.216.0.64/26")}},
	}}}}
	o.addresses.all = []workload.NetworkAddress{{Network: 1, Workload: "web", Address: addr("127.216.0.2")}, {Network: 1, Workload: "former", Address: addr("127.216.0.3"), FreedAt: time.Now()}}
	o.services.view.Services = []workload.NetworkService{{Address: addr("127.216.15.1")}}
	for text, tried := range map[string]bool{
		"127.216.0.2": true, "127.216.0.66": true, "127.216.15.1": true, "127.0.0.1": true,
		"127.216.0.0": false, "127.216.0.1": false, "127.216.0.3": false, "127.216.0.9": false, "127.216.0.63": false, "::ffff:127.216.0.1": false,
		"127.216.0.64": false, "127.216.0.65": false, "127.216.0.127": false, "127.216.1.2": false, "127.216.15.2": false,
	} {
		a := addr(text)
		d := tracer{ctx: t.Context(), view: o.view, services: o.services.view.Services, given: func(a netip.Addr) bool { return o.addresses.networksAt(a) != nil }}
		if got := d.mayOpen(a); got != tried {
			t.Errorf("Trace opened a connection to %s: %t, want %t", text, got, tried)
		}
	}
	// Trace does not connect to a program that listens at the address of the bridge.
	l, err := net.Listen("tcp4", "127.216.0.1:0")
	must(t, err)
	defer l.Close()
	out, _ := o.Trace(t.Context(), []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}, "", 0)
	if len(out) != 1 || out[0].GetConnection().GetProblem() != "not tried: the node knows no container and no service with this address" {
		t.Errorf("Trace to the address of a bridge returned %v, want a connection that was not tried", out)
	}
}
