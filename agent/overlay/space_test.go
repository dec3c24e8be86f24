package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

// space is a network namespace.
type space struct{ *testbed.Namespace }

// newSpace makes a network namespace that exists until the test ends.
func newSpace(t *testing.T) *space {
	t.Helper()
	n, err := testbed.NewNamespace()
	must(t, err)
	t.Cleanup(n.Close)
	s := &space{n}
	s.do(t, func() error { return up("lo") })
	return s
}

// do runs f in the namespace.
func (s *space) do(t testing.TB, f func() error) {
	t.Helper()
	must(t, s.Do(f))
}

// run runs f on a new thread, which is in the network namespace s.
func (s *space) run(wait *sync.WaitGroup, f func()) {
	wait.Add(1)
	go func() {
		defer wait.Done()
		runtime.LockOSThread()
		if err := netns.Set(s.Handle); err != nil {
			panic(err)
		}
		f()
	}()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// address adds an address to an interface in the namespace of the calling thread, and brings the interface
// up.
func address(name, text string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// cable connects a bridge in one network namespace to a new interface eth0 in another namespace, like a cable
// between machines. text is the address and prefix length of eth0.
func cable(t testing.TB, from *space, bridge string, to *space, text string) {
	t.Helper()
	cableTo(t, from, bridge, to, "eth0", text)
}

func cableTo(t testing.TB, from *space, bridge string, to *space, name, text string) {
	t.Helper()
	from.do(t, func() error {
		br, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		end := fmt.Sprintf("v%d%s", int(to.Handle), name)
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: end, TxQLen: -1, MTU: br.Attrs().MTU}, PeerName: name, PeerNamespace: netlink.NsFd(to.Handle)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(veth, br), netlink.LinkSetUp(veth))
	})
	to.do(t, func() error { return address(name, text) })
}

func bridge(name string, mtu int, text string) error {
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1, MTU: mtu}})
	return errors.Join(err, address(name, text))
}

// fabric makes the network namespace whose bridge connects the nodes, as a switch does. Its own address is
// 10.99.0.1.
func fabric(t *testing.T) *space {
	s := newSpace(t)
	s.do(t, func() error { return bridge("br0", 1500, "10.99.0.1/24") })
	return s
}

// node is a machine with an overlay. Its fake engine creates bridges and a firewall, but no containers.
type node struct {
	*space
	name    string
	address netip.Addr
	store   memory
	log     *lines
	counts  counts
	compare time.Duration                   // time between two full comparisons
	forbids func(workload.IngressPort) bool // see Config
	names   Names

	stop    func()
	overlay *Overlay
}

func newNode(t *testing.T, net *space, name string, last int) *node {
	n := &node{space: newSpace(t), name: name, address: netip.AddrFrom4([4]byte{10, 99, 0, byte(last)}), stop: func() {}, log: &lines{}}
	cable(t, net, "br0", n.space, n.address.String()+"/24")
	n.do(t, func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), firewall())
	})
	t.Cleanup(func() { n.stop() })
	return n
}

// firewall creates the chains of a Docker engine before version 28. They accept packets from a bridge, and
// answers. Other packets are dropped unless DOCKER-USER accepts them.
func firewall() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	drop := nftables.ChainPolicyDrop
	table := c.AddTable(userTable)
	c.AddChain(userChain)
	forward := c.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	rule := func(r plan.Rule, jump string) {
		exprs := expressions(r, nil)
		if jump != "" {
			exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictJump, Chain: jump})
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: exprs})
	}
	rule(plan.Rule{}, plan.UserChain)
	rule(plan.Rule{Matches: []plan.Match{{Kind: plan.Established}}, Verdict: plan.Accept}, "")
	rule(plan.Rule{Matches: []plan.Match{{Kind: plan.InInterface, Not: true, Name: plan.Device}, {Kind: plan.InInterface, Not: true, Name: "eth0"}}, Verdict: plan.Accept}, "")
	return c.Flush()
}

// Start runs an overlay until Stop or the end of the test.
func (n *node) Start(t *testing.T, v workload.NetworkView) {
	t.Helper()
	o, err := New(Config{Node: n.name, Store: &n.store, Names: n.names, Forbids: n.forbids, Metrics: &n.counts, Logger: slog.New(slog.NewTextHandler(n.log, nil))})
	must(t, err)
	o.compare = cmp.Or(n.compare, 2*time.Second)
	o.engine = func(string) (engine, error) { return &fakeEngine{space: n.space}, nil }
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	n.run(&wait, func() { o.Run(ctx) })
	n.overlay, n.stop = o, func() {
		cancel()
		wait.Wait()
	}
	o.Set(v)
}

// counts is a fake Metrics. It counts repairs and holds the last number of problems.
type counts struct{ repairs, problems atomic.Int64 }

func (c *counts) NetworkRepaired()      { c.repairs.Add(1) }
func (c *counts) NetworkProblems(n int) { c.problems.Store(int64(n)) }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// memory is a store of addresses.
type memory struct {
	mu  sync.Mutex
	all []workload.NetworkAddress
}

func (m *memory) Addresses() ([]workload.NetworkAddress, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all), nil
}

func (m *memory) PutAddress(r workload.NetworkAddress) error {
	_ = m.DropAddress(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, r)
	return nil
}

func (m *memory) DropAddress(r workload.NetworkAddress) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = slices.DeleteFunc(m.all, func(x workload.NetworkAddress) bool { return sameAddress(x, r) })
	return nil
}

// fakeEngine is a fake container engine that only creates bridges. A bridge that has an alias represents one of
// the engine's networks.
type fakeEngine struct{ space *space }

// The methods run on the thread of Overlay.Run, which is in the network namespace of the node.

func (e *fakeEngine) Networks(context.Context) (out []plan.ObservedNetwork, _ []workload.NetworkAddress, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range links {
		var n plan.ObservedNetwork
		var slice, cidr string
		if _, err := fmt.Sscanf(l.Attrs().Alias, "%d %s %s %s", &n.ID, &n.Network, &slice, &cidr); err == nil && l.Type() == "bridge" {
			n.Slice, n.CIDR, n.MTU = netip.MustParsePrefix(slice), netip.MustParsePrefix(cidr), l.Attrs().MTU
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b plan.ObservedNetwork) int { return int(a.ID) - int(b.ID) })
	return out, nil, nil
}

func (e *fakeEngine) Create(_ context.Context, n plan.EngineNetwork) error {
	name := plan.Bridge(n.ID)
	if err := bridge(name, n.MTU, netip.PrefixFrom(plan.Gateway(n.Slice), n.CIDR.Bits()).String()); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(link, fmt.Sprintf("%d %s %s %s", n.ID, n.Network, n.Slice, n.CIDR))
}

func (e *fakeEngine) Remove(_ context.Context, id uint32) error {
	link, err := netlink.LinkByName(plan.Bridge(id))
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// container is a network namespace that is connected to a bridge of a node, as a container is. It answers on
// TCP port 80 with the address of the caller.
type container struct {
	*space
	address netip.Addr
}

// newContainer connects a container to a network. As with the real engine, the container's subnet is the
// whole network.
func newContainer(t *testing.T, n *node, id string, network uint32) *container {
	t.Helper()
	return onNetworks(t, n, id, network)[0]
}

// onNetworks connects one container to several networks. It returns one *container for each network, with the address that
// the container has in that network. The default route of the container goes through the first network.
func onNetworks(t *testing.T, n *node, id string, networks ...uint32) []*container {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	places, err := n.overlay.Join(ctx, workload.ID(id), networks)
	if err != nil {
		t.Fatalf("%v\n%s", err, n.log)
	}
	in := newSpace(t)
	var out []*container
	for i, p := range places {
		cableTo(t, n.space, plan.Bridge(networks[i]), in, fmt.Sprint("eth", i), p.Address.String()+"/20")
		out = append(out, &container{in, p.Address})
	}
	c := out[0]
	c.do(t, func() error {
		slice, err := c.address.Prefix(26)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: plan.Gateway(slice).AsSlice()})
	})
	c.serve(t)
	return out
}

// serve answers each TCP connection to port 80 with the address of the caller.
func (s *space) serve(t *testing.T) {
	var l net.Listener
	s.do(t, func() (err error) {
		l, err = net.Listen("tcp4", ":80")
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			_, _ = io.WriteString(conn, from)
			_ = conn.Close()
		}
	}()
}

// ask connects to an address and returns the caller's address as the server sees it.
func (s *space) ask(to netip.Addr) (from string, err error) {
	return s.askAt(netip.AddrPortFrom(to, 80))
}

func (s *space) askAt(to netip.AddrPort) (from string, err error) {
	err = s.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), 700*time.Millisecond)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		raw, err := io.ReadAll(conn)
		from = string(raw)
		return err
	})
	return from, err
}

// listen receives datagrams in a container. The returned function waits at most the limit for the next
// datagram and returns its source address, or the zero address if none arrives.
func (c *container) listen(t *testing.T) func(limit time.Duration) netip.Addr {
	t.Helper()
	var l *net.UDPConn
	c.do(t, func() (err error) {
		l, err = net.ListenUDP("udp4", &net.UDPAddr{IP: c.address.AsSlice(), Port: datagrams})
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	return func(limit time.Duration) netip.Addr {
		_ = l.SetReadDeadline(time.Now().Add(limit))
		_, from, err := l.ReadFromUDPAddrPort(make([]byte, 16))
		if err != nil {
			return netip.Addr{}
		}
		return from.Addr()
	}
}

const datagrams = 9000

// send sends a datagram from a container.
func (c *container) send(t *testing.T, to netip.Addr) { c.sendFrom(t, c.address, to) }

// sendFrom sends a datagram from the namespace s, with the source address from.
func (s *space) sendFrom(t *testing.T, from, to netip.Addr) {
	t.Helper()
	s.do(t, func() error {
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: from.AsSlice()}, &net.UDPAddr{IP: to.AsSlice(), Port: datagrams})
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte("x"))
		return errors.Join(err, conn.Close())
	})
}
