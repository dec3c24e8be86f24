package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/persys/compute/agent/overlay"
	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/testbed"
)

const (
	vipServices  = 10_000
	vipInstances = 10
	vipPasses    = 7
	vipTime      = 400 * time.Millisecond // duration of one measurement
	vipShare     = 0.97                   // goal: smallest ratio of the requests a second with and without a service
	vipDelay     = 3 * time.Microsecond   // goal: largest delay that a service adds to a round trip, at the median
)

// give assigns addresses to the network interface with the given name and turns it on.
func give(name string, addresses ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// vipWorld is the network of the benchmark: a client, a node that balances its connections to services, and a
// machine with all instances of the services. Each is a network namespace.
type vipWorld struct {
	client, node, far *testbed.Namespace
	balancer          *overlay.Balancer
	direct, proxy     netip.AddrPort // an instance, and the proxy on the node
}

const vipPort = 8080

func newVIPWorld() (w *vipWorld, err error) {
	w = &vipWorld{}
	for _, s := range []**testbed.Namespace{&w.client, &w.node, &w.far} {
		if *s, err = testbed.NewNamespace(); err != nil {
			return w, err
		}
	}
	clientAt, gateway, nodeFar, farAt := netip.MustParsePrefix("10.216.0.2/26"), netip.MustParsePrefix("10.216.0.1/26"), netip.MustParsePrefix("10.99.0.1/24"), netip.MustParsePrefix("10.99.0.2/24")
	var instances []netip.Prefix
	for i := range vipInstances {
		instances = append(instances, netip.PrefixFrom(hostAddr(netip.MustParseAddr("10.217.0.0"), i), 32))
	}
	// The balancer accepts connections to services only from bridges with a certain name, so the interface
	// to the client has such a name.
	err = w.node.Do(func() error {
		near := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: plan.Bridge(1), TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(w.client.Handle)}
		far := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "far", TxQLen: -1}, PeerName: "eth0", PeerNamespace: netlink.NsFd(w.far.Handle)}
		return errors.Join(netlink.LinkAdd(near), netlink.LinkAdd(far), give("lo"), give(plan.Bridge(1), gateway), give("far", nodeFar),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.217.0.0/16")), Gw: farAt.Addr().AsSlice()}),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600))
	})
	if err != nil {
		return w, err
	}
	err = errors.Join(
		w.client.Do(func() error {
			return errors.Join(give("lo"), give("eth0", clientAt), netlink.RouteAdd(&netlink.Route{Gw: gateway.Addr().AsSlice()}))
		}),
		w.far.Do(func() error {
			return errors.Join(give("lo", instances...), give("eth0", farAt), netlink.RouteAdd(&netlink.Route{Gw: nodeFar.Addr().AsSlice()}))
		}))
	if err != nil {
		return w, err
	}
	w.direct, w.proxy = netip.AddrPortFrom(instances[0].Addr(), vipPort), netip.AddrPortFrom(gateway.Addr(), vipPort)
	if err := listenIn(w.far, func(c net.Conn) { _, _ = io.Copy(c, c) }); err != nil {
		return w, err
	}
	turn := 0
	err = listenIn(w.node, func(c net.Conn) { // connections come one at a time
		turn++
		to := netip.AddrPortFrom(instances[turn%vipInstances].Addr(), vipPort)
		var out net.Conn
		if err := w.node.Do(func() (err error) {
			out, err = net.Dial("tcp4", to.String())
			return err
		}); err != nil {
			return
		}
		defer out.Close()
		go func() {
			_, _ = io.Copy(c, out)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(out, c)
	})
	if err != nil {
		return w, err
	}
	return w, w.node.Do(func() (err error) {
		w.balancer, err = overlay.OpenBalancer()
		return err
	})
}

// listenIn listens on a TCP port in the network namespace n, and calls serve for each connection.
func listenIn(n *testbed.Namespace, serve func(net.Conn)) error {
	var l net.Listener
	if err := n.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprint(":", vipPort))
		return err
	}); err != nil {
		return err
	}
	go func() { // until the process ends
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return nil
}

// balance sets up a number of services on the node, which balances the connections to them. It returns the
// address of the last service.
func (w *vipWorld) balance(services int) (netip.AddrPort, error) {
	v, s := serviceWorld(services, vipInstances)
	// All services have the same instances.
	for i := range s.Services {
		s.Services[i].Endpoints = s.Services[0].Endpoints
	}
	w.balancer.Owner = plan.Owner("bench")
	err := w.node.Do(func() error { return w.balancer.Apply(plan.BalanceOf(v, s)) })
	return netip.AddrPortFrom(s.Services[services-1].Address, vipPort), err
}

// requests returns how many requests a second one client gets answered, each over a connection of its own.
func (w *vipWorld) requests(to netip.AddrPort) (perSecond float64, err error) {
	err = w.client.Do(func() error {
		n, began := 0, time.Now()
		for ; time.Since(began) < vipTime; n++ {
			c, err := net.Dial("tcp4", to.String())
			if err != nil {
				return err
			}
			if _, err := roundTrip(c); err != nil {
				return err
			}
			_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: ports would run out
			_ = c.Close()
		}
		perSecond = float64(n) / time.Since(began).Seconds()
		return nil
	})
	return perSecond, err
}

// delay returns the median time from a request to its answer, over one open connection to the given address.
func (w *vipWorld) delay(to netip.AddrPort) (d time.Duration, err error) {
	err = w.client.Do(func() error {
		c, err := net.Dial("tcp4", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		var all []time.Duration
		for began := time.Now(); time.Since(began) < vipTime; {
			one, err := roundTrip(c)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		d = median(all)
		return nil
	})
	return d, err
}

func roundTrip(c net.Conn) (time.Duration, error) {
	began := time.Now()
	if _, err := c.Write([]byte("x")); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return time.Since(began), err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// vip measures what the address of a service costs a client, with one service and with many. It compares
// connections over this address with connections directly to an instance and with connections through a proxy
// in user space. The three kinds of connections are measured in turns, so that other load of the machine
// affects all of them.
func vip(_ context.Context, _ *env) (r result, err error) {
	r = result{unit: "requests/s", goal: 2, goalIsRatio: true}
	w, err := newVIPWorld()
	defer func() {
		for _, s := range []*testbed.Namespace{w.client, w.node, w.far} {
			if s != nil {
				s.Close()
			}
		}
	}()
	if err != nil {
		return r, err
	}
	one, err := w.balance(1)
	if err != nil {
		return r, err
	}
	type way struct {
		to       netip.AddrPort
		services int
		rate     []float64
		delay    []time.Duration
	}
	ways := []*way{{to: w.direct}, {to: one, services: 1}, {services: vipServices}, {to: w.proxy}}
	for range vipPasses {
		for _, x := range ways {
			if x.services > 0 {
				if x.to, err = w.balance(x.services); err != nil {
					return r, err
				}
			}
			rate, err := w.requests(x.to)
			if err != nil {
				return r, err
			}
			d, err := w.delay(x.to)
			if err != nil {
				return r, err
			}
			x.rate, x.delay = append(x.rate, rate), append(x.delay, d)
		}
	}
	direct, single, many, proxy := ways[0], ways[1], ways[2], ways[3]
	r.ours, r.peer = median(many.rate), median(proxy.rate)
	least := min(median(single.rate), median(many.rate)) / median(direct.rate)
	more := max(median(single.delay), median(many.delay)) - median(direct.delay)
	r.missed = least < vipShare || more > vipDelay
	r.note = fmt.Sprintf("%.0f requests/s to an instance, %.0f with one service, %.0f with %d: %.2f, goal %.2f; a round trip takes %s, %s more with services, at most %s; through the proxy %s",
		median(direct.rate), median(single.rate), median(many.rate), vipServices, least, vipShare, median(direct.delay), more, vipDelay, median(proxy.delay))
	return r, nil
}
