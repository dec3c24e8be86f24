package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	kernelnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { testbed.Exit(m.Run()) }

// namespaces skips the test if this process may not make network namespaces.
func namespaces(t *testing.T) {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("the test needs root")
	}
	testbed.Need(t, "a network namespace", err)
}

// slice returns the nth slice of a network's subnet. Each node gives its containers the addresses in one slice.
func slice(network uint32, n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 216, byte(16 * network), byte(64 * n)}), 26)
}

// viewOf returns the view that the schedulers would send to node me. networks maps the id of each network to
// the nodes that are in it. The nth node gets the nth slice (part of the network's addresses).
func viewOf(me *node, nodes []*node, networks map[uint32][]*node) workload.NetworkView {
	v := workload.NetworkView{Cluster: "c1", Index: 1, Port: 4790, VNI: 7001, Address: me.address}
	peers := map[*node]bool{}
	for id := uint32(1); id < 10; id++ {
		n := workload.Network{ID: id, Namespace: "default", Name: fmt.Sprint("net", id), MTU: 1450, CIDR: netip.PrefixFrom(slice(id, 0).Addr(), 20)}
		for i, member := range networks[id] {
			if member == me {
				n.Slice = slice(id, i)
				continue
			}
			n.Peers = append(n.Peers, workload.NetworkSlice{Node: member.name, CIDR: slice(id, i)})
		}
		if !n.Slice.IsValid() {
			continue
		}
		for _, p := range networks[id] {
			peers[p] = p != me
		}
		v.Networks = append(v.Networks, n)
	}
	for _, p := range nodes {
		if peers[p] {
			v.Peers = append(v.Peers, workload.NetworkPeer{Node: p.name, Address: p.address})
		}
	}
	return v
}

// TestWhoReachesWhom: containers of one network reach each other across nodes, with their own addresses.
// Other machines and containers cannot reach them. When a container connects to another machine, that
// machine sees the address of the container's node.
func TestWhoReachesWhom(t *testing.T) {
	namespaces(t)
	net := fabric(t)
	a, b, c, stranger := newNode(t, net, "a", 11), newNode(t, net, "b", 12), newNode(t, net, "c", 13), newNode(t, net, "stranger", 14)
	nodes := []*node{a, b, c, stranger}
	networks := map[uint32][]*node{1: {a, b}, 2: {a, c}}
	for _, n := range nodes[:3] {
		n.Start(t, viewOf(n, nodes, networks))
	}
	// The machine stranger is not in the cluster. It knows the VXLAN network identifier and the nodes' addresses,
	// and sends packets of network 1 with source addresses that belong to containers of node b.
	claims := map[uint32][]*node{1: {a, stranger}}
	stranger.Start(t, viewOf(stranger, nodes, claims))

	a1, b1, a2, c2 := newContainer(t, a, "a1", 1), newContainer(t, b, "b1", 1), newContainer(t, a, "a2", 2), newContainer(t, c, "c2", 2)
	s1 := newContainer(t, stranger, "s1", 1)
	net.serve(t)
	a.serve(t)
	outside := netip.MustParseAddr("10.99.0.1")
	net.do(t, func() error { // routes to the containers, as an attacker on the nodes' network would set them
		return netlink.RouteAdd(&netlink.Route{Dst: toNet(slice(1, 0)), Gw: a.address.AsSlice()})
	})
	for _, x := range []struct {
		name string
		from *space
		to   netip.Addr
		want string // the source that the server sees; "" if the connection must fail
	}{
		{"a container reaches a member of its network on another node", b1.space, a1.address, b1.address.String()},
		{"the same two containers reach each other in the other direction", a1.space, b1.address, a1.address.String()},
		{"a container of the second network reaches a member on another node", c2.space, a2.address, c2.address.String()},
		{"a node reaches its own container", a.space, a1.address, slice(1, 0).Addr().Next().String()},
		{"a node reaches the container of another node", b.space, a1.address, slice(1, 1).Addr().Next().String()},
		{"a container reaches a machine outside, with the address of its node", a1.space, outside, a.address.String()},
		{"a container of another network on the same node is refused", a2.space, a1.address, ""},
		{"a container of another network on another node is refused", c2.space, a1.address, ""},
		{"a machine outside is refused", net, a1.address, ""},
		{"a machine that is not in the cluster is refused, also if it uses VXLAN", s1.space, a1.address, ""},
		{"a container does not reach the bridge address of another node", b1.space, slice(1, 0).Addr().Next(), ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.want == "" {
				if from, err := x.from.ask(x.to); err == nil {
					t.Errorf("a connection to %s must fail, but it succeeded with the source address %s", x.to, from)
				}
				return
			}
			var from string
			testbed.Within(t, 10*time.Second, "connection to "+x.to.String(), func() error {
				var err error
				from, err = x.from.ask(x.to)
				return err
			})
			if from != x.want {
				t.Errorf("the container that was asked saw the source address %s, want %s", from, x.want)
			}
		})
	}
	// Replies to the stranger would go to node b, so a TCP connection would fail in any case. So check with
	// UDP datagrams that no packet of the stranger arrives.
	heard := a1.listen(t)
	b1.send(t, a1.address)
	if from := heard(testbed.Patience); from != b1.address {
		t.Errorf("the datagram of container \"b1\" arrived with the source address %q, want the address of b1", from)
	}
	s1.send(t, a1.address)
	if from := heard(700 * time.Millisecond); from.IsValid() {
		t.Errorf("a datagram of the machine \"stranger\", which is not in the cluster, arrived with the source address %s", from)
	}
	// A machine on the nodes' network takes the address of a container on another node. Its packets must be
	// dropped even if the kernel does not check source addresses on eth0 and the engine's firewall accepts
	// packets from eth0, as Docker from version 28 on does.
	a.do(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.InsertRule(&nftables.Rule{Table: userTable, Chain: userChain, Exprs: expressions(plan.Rule{Verdict: plan.Accept}, nil)})
		return errors.Join(c.Flush(), os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0o644), os.WriteFile("/proc/sys/net/ipv4/conf/eth0/rp_filter", []byte("0"), 0o644))
	})
	net.do(t, func() error { return address("br0", b1.address.String()+"/32") })
	net.sendFrom(t, b1.address, a1.address)
	if from := heard(700 * time.Millisecond); from.IsValid() {
		t.Errorf("a datagram of a machine with a forged source address %s arrived", from)
	}
	// A container takes the address of a container of another network. Its packets must be dropped.
	a2.do(t, func() error { return address("eth0", b1.address.String()+"/32") })
	a2.sendFrom(t, b1.address, a1.address)
	if from := heard(700 * time.Millisecond); from.IsValid() {
		t.Errorf("a datagram of a container of network 2 with the forged source address %s arrived in network 1", from)
	}
}

// TestTwoNetworks: a container on two networks reaches the members of both networks on another node, each
// with its address on that network, and they reach the container.
func TestTwoNetworks(t *testing.T) {
	namespaces(t)
	net := fabric(t)
	a, b := newNode(t, net, "a", 11), newNode(t, net, "b", 12)
	nodes := []*node{a, b}
	for _, n := range nodes {
		n.Start(t, viewOf(n, nodes, map[uint32][]*node{1: {a, b}, 2: {a, b}}))
	}
	both := onNetworks(t, a, "both", 1, 2)
	for i, other := range []*container{newContainer(t, b, "b1", 1), newContainer(t, b, "b2", 2)} {
		for _, c := range []struct {
			name     string
			from, to *container
		}{{"from both", both[i], other}, {"to both", other, both[i]}} {
			testbed.Within(t, 10*time.Second, fmt.Sprintf("network %d: %s", i+1, c.name), func() error {
				seen, err := c.from.ask(c.to.address)
				if err == nil && seen != c.from.address.String() {
					err = fmt.Errorf("the server saw the source address %s, want %s", seen, c.from.address)
				}
				return err
			})
		}
	}
}

// fakeNames is a resolver that can listen on network 1 only.
type fakeNames struct {
	mu   sync.Mutex
	last []workload.NetworkBridge
}

func (f *fakeNames) Listen(bridges []workload.NetworkBridge) (works []uint32, problems []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = bridges
	return []uint32{1}, []string{"names on network 2: the port is taken"}
}

// TestResolver: the resolver gets the addresses of the bridges, and containers get the resolver's address
// on the networks on which it listens. The resolver learns the networks of a container from the container's
// address.
func TestResolver(t *testing.T) {
	namespaces(t)
	a := newNode(t, fabric(t), "a", 11)
	names := &fakeNames{}
	a.names = names
	a.Start(t, viewOf(a, []*node{a}, map[uint32][]*node{1: {a}, 2: {a}}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	places, err := a.overlay.Join(ctx, "both", []uint32{1, 2})
	must(t, err)
	if places[0].Resolver != plan.Gateway(slice(1, 0)) || places[1].Resolver.IsValid() {
		t.Errorf("the resolvers of the container on networks 1 and 2 are %s and %s, want an address for network 1 and none for network 2, because the resolver cannot listen there", places[0].Resolver, places[1].Resolver)
	}
	names.mu.Lock()
	if len(names.last) != 2 || names.last[0] != (workload.NetworkBridge{Network: 1, Address: plan.Gateway(slice(1, 0)), Slice: slice(1, 0)}) {
		t.Errorf("the resolver got the bridges %v, want those of networks 1 and 2", names.last)
	}
	names.mu.Unlock()
	if p := a.overlay.Problems(); len(p) != 1 || !strings.Contains(p[0], "the port is taken") {
		t.Errorf("the overlay reports the problems %q, want only the error of the resolver for network 2", p)
	}
	for _, c := range []struct {
		at   netip.Addr
		want string
	}{
		{places[0].Address, "[1 2]"}, {places[1].Address, "[1 2]"},
		{slice(2, 0).Addr().Next().Next().Next(), "[2]"}, // an address that no workload has, in the slice of network 2
		{netip.MustParseAddr("10.99.0.11"), "[]"},
	} {
		if got := fmt.Sprint(a.overlay.NetworksAt(c.at)); got != c.want {
			t.Errorf("NetworksAt says that the container with address %s is on the networks %s, want %s", c.at, got, c.want)
		}
	}
	must(t, a.overlay.Leave("both"))
	if got := fmt.Sprint(a.overlay.NetworksAt(places[1].Address)); got != "[2]" {
		t.Errorf("after the container has left, NetworksAt says that its address is on the networks %s, want [2], whose slice contains the address", got)
	}
}

// TestForeignChangesAreRepaired: the test changes the networks of a machine as another program could. After
// each change the agent repairs them, and containers reach each other again. A restart of the agent changes
// nothing on a machine that is set up.
func TestForeignChangesAreRepaired(t *testing.T) {
	namespaces(t)
	net := fabric(t)
	a, b := newNode(t, net, "a", 11), newNode(t, net, "b", 12)
	nodes := []*node{a, b}
	networks := map[uint32][]*node{1: {a, b}}
	a.compare = time.Hour
	for _, n := range nodes {
		n.Start(t, viewOf(n, nodes, networks))
	}
	a1, b1 := newContainer(t, a, "a1", 1), newContainer(t, b, "b1", 1)
	reach := func(t *testing.T, within time.Duration) {
		t.Helper()
		testbed.Within(t, within, "b1 reaches a1", func() error {
			from, err := b1.ask(a1.address)
			if err == nil && from != b1.address.String() {
				err = fmt.Errorf("the server saw the source address %s", from)
			}
			return err
		})
	}
	reach(t, 10*time.Second)
	device := func() *netlink.Vxlan {
		var x *netlink.Vxlan
		a.do(t, func() error {
			link, err := netlink.LinkByName(plan.Device)
			if err == nil {
				x = link.(*netlink.Vxlan)
			}
			return err
		})
		return x
	}
	onDevice := func(f func(index int) error) func() error {
		return func() error {
			link, err := netlink.LinkByName(plan.Device)
			if err != nil {
				return err
			}
			return f(link.Attrs().Index)
		}
	}
	ready := func(t *testing.T) {
		t.Helper()
		testbed.Until(t, "the first compare", func() bool {
			a.overlay.mu.Lock()
			defer a.overlay.mu.Unlock()
			return len(a.overlay.ready) > 0
		})
	}
	hasTable := func() error {
		return a.Do(func() error {
			r, err := openRules()
			if err != nil {
				return err
			}
			defer r.Close()
			table, err := r.Table()
			if err == nil && table == nil {
				err = errors.New("no table")
			}
			return err
		})
	}
	for _, c := range []struct {
		name   string
		damage func() error
		// announced: the kernel announces the change, so it is repaired before the next full comparison
		announced bool
	}{
		{"nft flush ruleset", func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.FlushRuleset()
			return errors.Join(c.Flush(), firewall())
		}, true},
		{"device deleted", func() error {
			link, err := netlink.LinkByName(plan.Device)
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}, true},
		{"device down", func() error {
			link, err := netlink.LinkByName(plan.Device)
			if err != nil {
				return err
			}
			return netlink.LinkSetDown(link)
		}, true},
		{"routes flushed", func() error { return netlink.RouteDel(&netlink.Route{Dst: toNet(slice(1, 1))}) }, true},
		{"forwarding entry removed", onDevice(func(index int) error {
			return netlink.NeighDel(forward(index, plan.Forward{MAC: plan.MACOf(b.address), Peer: b.address}))
		}), false},
		{"neighbour replaced", onDevice(func(index int) error {
			return netlink.NeighSet(neighbour(index, plan.Neighbour{Address: slice(1, 1).Addr(), MAC: plan.MAC{2, 1}}))
		}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.announced && a.compare == time.Hour {
				a.stop()
				a.compare = 2 * time.Second
				a.Start(t, viewOf(a, nodes, networks))
				ready(t)
			}
			before := a.counts.repairs.Load()
			a.do(t, c.damage)
			const limit = 20 * time.Second
			reach(t, limit)
			testbed.Within(t, limit, "our table", hasTable)
			testbed.Until(t, "the metrics count the repair", func() bool { return a.counts.repairs.Load() > before })
		})
	}
	if !strings.Contains(a.log.String(), "another program changed the networks between nodes; repaired") {
		t.Errorf("the log does not say that the agent repaired changes of another program:\n%s", a.log)
	}

	t.Run("the VXLAN device belongs to another agent", func(t *testing.T) {
		rename := func(alias string) {
			a.do(t, func() error {
				link, err := netlink.LinkByName(plan.Device)
				if err != nil {
					return err
				}
				return netlink.LinkSetAlias(link, alias)
			})
		}
		own := device().Alias
		rename("persys c1 other")
		testbed.Until(t, "the metrics report one problem", func() bool { return a.counts.problems.Load() == 1 })
		if p := a.overlay.Problems(); len(p) != 1 || !strings.Contains(p[0], `the interface pvx0 belongs to "persys c1 other"`) {
			t.Errorf("problems: %q", p)
		}
		rename(own)
		testbed.Until(t, "the metrics report no problem any more", func() bool { return a.counts.problems.Load() == 0 })
		reach(t, 10*time.Second)
	})

	t.Run("restart", func(t *testing.T) {
		before := device().Index
		a.stop()
		reach(t, time.Second) // traffic continues although no agent runs on node a
		n := len(a.log.String())
		a.Start(t, viewOf(a, nodes, networks))
		ready(t)
		if said := a.log.String()[n:]; strings.Contains(said, "operations") {
			t.Errorf("the machine was set up, but the log of the restarted agent shows changes:\n%s", said)
		}
		if device().Index != before {
			t.Error("the restarted agent replaced the VXLAN device")
		}
	})

	t.Run("iptables shows the rules in DOCKER-USER with all their conditions", func(t *testing.T) {
		path := testbed.Program(t, "iptables")
		var out []byte
		a.do(t, func() (err error) {
			out, err = exec.Command(path, "-S", plan.UserChain).CombinedOutput()
			return err
		})
		if !strings.Contains(string(out), "-A DOCKER-USER -i pvx0 -o ps1 ") || !strings.Contains(string(out), "-j ACCEPT") {
			t.Errorf("iptables shows the following, want an ACCEPT rule from pvx0 to ps1:\n%s", out)
		}
	})

	t.Run("peer gone", func(t *testing.T) {
		v := viewOf(a, nodes, map[uint32][]*node{1: {a}})
		a.overlay.Set(v)
		testbed.Within(t, 10*time.Second, "the route to the peer that left the view is gone", func() error {
			return a.Do(onDevice(func(index int) error {
				routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
				if err == nil && len(routes) > 0 {
					err = fmt.Errorf("routes: %v", routes)
				}
				return err
			}))
		})
	})

	t.Run("no network", func(t *testing.T) {
		a.overlay.Set(workload.NetworkView{Cluster: "c1", Index: 3, Address: a.address})
		testbed.Within(t, 10*time.Second, "the overlay has removed everything that it made", func() error {
			return a.Do(func() error {
				k, err := openKernel()
				if err != nil {
					return err
				}
				defer k.Close()
				seen, err := k.Observe(a.address)
				bridge, err2 := k.HasLink(plan.Bridge(1))
				if err := errors.Join(err, err2); err != nil {
					return err
				}
				if seen.Device != nil || seen.Table != nil || len(seen.UserChain) > 0 || bridge {
					return fmt.Errorf("the overlay left the device %v, the table %v, the rules %v, the bridge %v", seen.Device, seen.Table, seen.UserChain, bridge)
				}
				return nil
			})
		})
	})
}

// TestMonitors: the test changes interfaces, routes and nftables rules, and the monitor of each kind must
// report the change.
func TestMonitors(t *testing.T) {
	namespaces(t)
	s := newSpace(t)
	var monitors []monitor
	s.do(t, func() (err error) {
		monitors, err = openMonitors(func(int) bool { return false })
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	var heard []chan struct{}
	for _, m := range monitors {
		c := make(chan struct{}, 1)
		heard = append(heard, c)
		wait.Go(func() {
			if err := m.watch(ctx, func() { signal(c) }); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range []struct {
		name    string
		monitor int
		change  func() error
	}{
		{"a table", 0, firewall},
		{"a new bridge of ours", 1, func() error { return bridge("ps7", 1500, "10.216.0.1/26") }},
		{"a route", 1, func() error {
			return netlink.RouteDel(&netlink.Route{Dst: toNet(netip.MustParsePrefix("10.216.0.0/26")), Scope: netlink.SCOPE_LINK})
		}},
	} {
		drain(heard[c.monitor])
		s.do(t, c.change)
		select {
		case <-heard[c.monitor]:
		case <-time.After(testbed.Patience):
			t.Errorf("%s: the monitor did not announce the change", c.name)
		}
	}
}

// brokenSocket is a socket that fails when the first message is read.
type brokenSocket struct{ closed atomic.Int32 }

func (s *brokenSocket) Receive() ([]kernelnetlink.Message, error) { return nil, unix.EBADF }
func (s *brokenSocket) Close() error                              { s.closed.Add(1); return nil }

// TestBrokenMonitorsAreClosed: the agent replaces failed monitors by new ones, so the failed ones must be
// closed.
func TestBrokenMonitorsAreClosed(t *testing.T) {
	s := &brokenSocket{}
	if err := (monitor{conn: s}).watch(t.Context(), func() {}); !errors.Is(err, unix.EBADF) {
		t.Errorf("watch returned the error %v, want the error of the broken socket", err)
	}
	if n := s.closed.Load(); n != 1 {
		t.Errorf("the broken socket was closed %d times, want once", n)
	}
}

// TestManyPeers sets up a network with 700 other nodes. Its nftables table does not fit into one message to the
// kernel.
func TestManyPeers(t *testing.T) {
	namespaces(t)
	a := newNode(t, fabric(t), "a", 11)
	v := viewOf(a, nil, map[uint32][]*node{1: {a}})
	for i := range 700 {
		name := fmt.Sprintf("n%04d", i)
		v.Peers = append(v.Peers, workload.NetworkPeer{Node: name, Address: netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)})})
		v.Networks[0].Peers = append(v.Networks[0].Peers, workload.NetworkSlice{Node: name, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 217, byte(i >> 4), byte(i << 4)}), 28)})
	}
	began := time.Now()
	a.Start(t, v)
	_, err := a.overlay.Join(t.Context(), "x", []uint32{1})
	if err != nil {
		t.Fatalf("%v\n%s", err, a.log)
	}
	t.Logf("700 peers in %s", time.Since(began).Round(time.Millisecond))
}

// TestProbe checks the MTU and the problems that Probe reports for different addresses of this machine.
func TestProbe(t *testing.T) {
	namespaces(t)
	a := newNode(t, fabric(t), "a", 11)
	a.do(t, func() error {
		return errors.Join(bridge("docker0", 1500, "172.17.0.1/16"), bridge("ps7", 1450, "10.216.0.1/20"))
	})
	for _, c := range []struct {
		address string
		mtu     int
		problem string
	}{
		{"10.99.0.11", 1450, ""},
		{"10.99.0.77", 0, "no interface of this machine has the address 10.99.0.77"},
		{"127.0.0.1", 0, "which other machines cannot reach"},
		{"172.17.0.1", 0, "the address of the bridge docker0 inside this machine"},
		{"10.216.0.1", 0, "the address of the bridge ps7 inside this machine"},
	} {
		a.do(t, func() error {
			mtu, problem := Probe(t.Context(), netip.MustParseAddr(c.address))
			if mtu != c.mtu || !strings.Contains(problem, c.problem) || c.problem == "" && problem != "" {
				t.Errorf("Probe of %s returned MTU %d and problem %q", c.address, mtu, problem)
			}
			return nil
		})
	}
	a.do(t, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Type() == "vxlan" {
				t.Errorf("left: %s", l.Attrs().Name)
			}
		}
		return err
	})
}
