package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

const (
	// traceWait is how long a connection may take to open before it is reported as unanswered.
	traceWait = time.Second
	// maxTraced is the maximum number of connections of one Trace.
	maxTraced = 32
)

// Trace opens a TCP connection to each address. If an address is that of a service, it also opens one to each
// instance of the service. The connections come from this machine or, if pid is not 0, from the network
// namespace of that process, which must be the container of the workload id. An address in a network that cannot
// be that of a service or container gets no connection. Trace takes little longer than a second. left is the number of connections that were left out because there were more than maxTraced.
func (o *Overlay) Trace(ctx context.Context, to []netip.AddrPort, id string, pid int) (out []*agentv1.TracedAddress, left int) {
	d := tracer{ctx: ctx, view: o.current(), pid: pid, given: func(a netip.Addr) bool { return o.addresses.networksAt(a) != nil }}
	if pid != 0 {
		d.own = o.addresses.used(id)
	}
	o.mu.Lock()
	d.services = o.services.view.Services
	o.mu.Unlock()
	services := d.services
	for _, at := range to {
		x := &agentv1.TracedAddress{}
		out = append(out, x)
		i := slices.IndexFunc(services, func(s workload.NetworkService) bool { return s.Address == at.Addr() })
		if i < 0 {
			x.Connection = d.open(at)
			continue
		}
		x.Service = true
		if !o.Serves(at.Addr()) {
			x.Connection = &agentv1.TracedConnection{Address: at.String(), Problem: "this node does not balance the address yet: try again in some seconds; persysctl node inspect shows problems of its networks"}
		} else {
			x.Connection = d.open(at)
		}
		for _, a := range services[i].Endpoints {
			x.Instances = append(x.Instances, d.open(netip.AddrPortFrom(a, at.Port())))
		}
		x.Instances = slices.DeleteFunc(x.Instances, func(c *agentv1.TracedConnection) bool { return c == nil })
	}
	d.pending.Wait()
	return slices.DeleteFunc(out, func(x *agentv1.TracedAddress) bool { return x.Connection == nil }), d.left
}

// tracer opens the connections of one call of Trace, and collects their results.
type tracer struct {
	ctx      context.Context
	view     *workload.NetworkView // may be nil
	services []workload.NetworkService
	given    func(netip.Addr) bool // reports whether a container of this machine has the address
	pid      int                   // process in whose network namespace connections are opened; 0: that of the agent
	own      []netip.Addr          // addresses that the network namespace of the process pid must have
	opened   int
	left     int
	pending  sync.WaitGroup
}

// open begins to open a connection in the background. It returns nil if the trace has maxTraced connections
// already.
func (d *tracer) open(to netip.AddrPort) *agentv1.TracedConnection {
	if d.opened++; d.opened > maxTraced {
		d.left++
		return nil
	}
	out := &agentv1.TracedConnection{Address: to.String()}
	if !d.mayOpen(to.Addr()) {
		out.Problem = "not tried: the node knows no container and no service with this address"
		return out
	}
	d.pending.Go(func() {
		began := time.Now()
		var took time.Duration
		var err error
		dial := func() error {
			dialer := net.Dialer{Timeout: traceWait, LocalAddr: d.source(to.Addr())}
			began = time.Now()
			conn, err := dialer.DialContext(d.ctx, "tcp4", to.String())
			if took = time.Since(began); err == nil {
				err = conn.Close()
			}
			return err
		}
		if d.pid == 0 {
			err = dial()
		} else {
			err = inside(d.pid, d.own, dial)
		}
		if err == nil {
			out.LatencyMicroseconds = max(1, uint32(took.Microseconds()))
			return
		}
		out.Problem, out.Silent = refusal(err, to)
	})
	return out
}

// mayOpen reports whether a connection may be opened to an address. In a network, only services and
// containers may be asked: the programs of a machine also listen at the address of its bridge, and an agent
// must not help to find out at which ports. Of containers on other nodes, the agent knows only the slices
// that contain their addresses. Addresses outside of the networks are those of nodes, for published ports.
func (d *tracer) mayOpen(a netip.Addr) bool {
	a = a.Unmap()
	if d.view == nil || slices.ContainsFunc(d.services, func(s workload.NetworkService) bool { return s.Address == a }) {
		return true
	}
	i := slices.IndexFunc(d.view.Networks, func(n workload.Network) bool { return n.CIDR.Contains(a) })
	if i < 0 {
		return true
	}
	n := d.view.Networks[i]
	if n.Slice.Contains(a) {
		return a != plan.Gateway(n.Slice) && d.given(a)
	}
	return slices.ContainsFunc(n.Peers, func(p workload.NetworkSlice) bool {
		return p.CIDR.Contains(a) && a != p.CIDR.Addr() && a != plan.Gateway(p.CIDR) && p.CIDR.Contains(a.Next())
	})
}

// source returns the source address of connections from this machine: for an address in a network, the address
// of this machine's bridge in that network, and nil for other addresses.
func (d *tracer) source(to netip.Addr) net.Addr {
	if d.pid != 0 || d.view == nil {
		return nil
	}
	for _, n := range d.view.Networks {
		if n.CIDR.Contains(to) {
			return &net.TCPAddr{IP: plan.Gateway(n.Slice).AsSlice()}
		}
	}
	return nil
}

// refusal returns a text that says why a connection was not opened. silent is true if no answer came.
func refusal(err error, to netip.AddrPort) (problem string, silent bool) {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Sprintf("refused: nothing listens at port %d, or a firewall rejects it", to.Port()), false
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return "not reachable: " + rootOf(err).Error(), true
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %s", traceWait), true
	}
	return err.Error(), false
}

// rootOf returns the innermost error. The outer errors only add the addresses of the connection.
func rootOf(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// inside calls f on a thread in the network namespace of a process. It returns an error if the namespace lacks
// the addresses in own: the process may have ended, and another process may have got its number.
func inside(pid int, own []netip.Addr, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends together with the goroutine
		done <- enter(pid, own, f)
	}()
	return <-done
}

func enter(pid int, own []netip.Addr, f func() error) error {
	const advice = "trace from the node of the container instead (--from NODE)"
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return fmt.Errorf("cannot enter the container's network namespace: %w: %s", err, advice)
	}
	err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("cannot enter the container's network namespace: %w: %s", err, advice)
	}
	have, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range own {
		if !slices.ContainsFunc(have, func(x net.Addr) bool { p, err := netip.ParsePrefix(x.String()); return err == nil && p.Addr() == a }) {
			return fmt.Errorf("process %d, which the engine names, does not have the container's address %s: %s", pid, a, advice)
		}
	}
	return f()
}
