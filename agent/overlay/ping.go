package overlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

const (
	// pingWait is the time to wait for answers, and pings is the number of requests without an answer after
	// which a node is reported as unreachable.
	pingWait, pings = 350 * time.Millisecond, 3
	// smallPing is the size of a packet that is small enough for every path. pathStep is the precision with
	// which the largest possible size is determined. Both are in bytes.
	smallPing, pathStep = 84, 8
	// Headers of IPv4 and of ICMP, in bytes.
	ipHeader, icmpHeader = 20, 8
)

// ProbePeers sends echo requests to nodes through the tunnels of a network. For each node it returns whether answers
// came back, and the largest packet size. It takes at most 6 seconds. It must run in the network namespace of the
// container engine.
func (o *Overlay) ProbePeers(ctx context.Context, network uint32, nodes []string) ([]*agentv1.NetworkProbe, error) {
	v := o.current()
	if v == nil {
		return nil, fmt.Errorf("this node has no network yet")
	}
	i := slices.IndexFunc(v.Networks, func(n workload.Network) bool { return n.ID == network })
	if i < 0 {
		return nil, fmt.Errorf("this node does not have network %d yet; it has: %v", network, v.Problems)
	}
	n := v.Networks[i]
	inside, err := newPinger(plan.Gateway(n.Slice))
	if err != nil {
		return nil, fmt.Errorf("the bridge of network %s/%s is not set up: %w", n.Namespace, n.Name, err)
	}
	defer inside.close()
	var paths []*path
	for _, name := range nodes {
		p := &path{NetworkProbe: &agentv1.NetworkProbe{Node: name}}
		paths = append(paths, p)
		j := slices.IndexFunc(n.Peers, func(s workload.NetworkSlice) bool { return s.Node == name })
		k := slices.IndexFunc(v.Peers, func(s workload.NetworkPeer) bool { return s.Node == name })
		if j < 0 || k < 0 {
			p.Problem = "this node does not know the other one as a peer of the network yet"
			continue
		}
		p.inside, p.underlay = plan.Gateway(n.Peers[j].CIDR), v.Peers[k].Address
	}
	for range pings {
		inside.round(ctx, paths, func(p *path) (netip.Addr, int) { return p.inside, smallPing }, func(p *path, took time.Duration) {
			if us := max(1, uint32(took.Microseconds())); !p.Reached || us < p.LatencyMicroseconds {
				p.Reached, p.LatencyMicroseconds, p.Mtu, p.low, p.high = true, us, smallPing, smallPing, n.MTU
			}
		})
	}
	inside.largest(ctx, paths, n.MTU)
	outer(ctx, v, paths)
	out := make([]*agentv1.NetworkProbe, len(paths))
	for i, p := range paths {
		p.explain(v, n)
		out[i] = p.NetworkProbe
	}
	return out, ctx.Err()
}

// path is the connection to one node, with what the probe has found out about it.
type path struct {
	*agentv1.NetworkProbe
	inside, underlay netip.Addr // addresses of the node in the network and outside of it
	low, high        int        // search for the largest packet that comes back: low has come back, and no packet larger than high can
	answers          bool       // the node answers outside of the network
}

// explain sets the largest packet size of the path in the result, and a text about what is wrong with the path.
func (p *path) explain(v *workload.NetworkView, n workload.Network) {
	p.Mtu = uint32(p.low)
	switch {
	case p.Problem != "":
	case p.Reached && p.low < n.MTU:
		p.Problem = fmt.Sprintf("packets of more than %d bytes are lost, and the MTU of the network is %d: the way to %s must carry packets of %d bytes, or make the network again with --mtu %d",
			p.low, n.MTU, p.underlay, n.MTU+plan.Overhead(p.underlay), p.low)
	case p.Reached:
	case p.answers:
		p.Problem = fmt.Sprintf("%s answers, but no packet of the network comes back: open UDP port %d between %s and %s in both directions", p.underlay, v.Port, v.Address, p.underlay)
	default:
		p.Problem = fmt.Sprintf("neither the network nor %s itself answers: check that the machine is up, and that UDP port %d is open between %s and %s", p.underlay, v.Port, v.Address, p.underlay)
	}
}

// largest finds the largest packet that comes back on each path. It tries the MTU of the network first, which
// works on most paths.
func (g *pinger) largest(ctx context.Context, paths []*path, mtu int) {
	try := func(p *path) (netip.Addr, int) {
		switch {
		case !p.Reached || p.low == mtu:
			return netip.Addr{}, 0
		case p.high == mtu: // a packet of this size was not sent yet, or was lost once
			return p.inside, mtu
		case p.high-p.low < pathStep:
			return netip.Addr{}, 0
		}
		return p.inside, (p.low + p.high) / 2
	}
	for i := 0; i < 12 && ctx.Err() == nil; i++ {
		sizes := map[*path]int{}
		for _, p := range paths {
			if to, size := try(p); to.IsValid() {
				sizes[p] = size
			}
		}
		if len(sizes) == 0 {
			return
		}
		g.round(ctx, paths, try, func(p *path, _ time.Duration) {
			p.low = max(p.low, sizes[p])
			delete(sizes, p)
		})
		for p, size := range sizes {
			if size < mtu || i > 0 { // the full size gets a second try
				p.high = size - 1
			}
		}
	}
}

// outer sends echo requests to the underlay addresses of the nodes that did not answer through the tunnel. So
// it finds out whether the node or only the tunnel is unreachable.
func outer(ctx context.Context, v *workload.NetworkView, paths []*path) {
	if !slices.ContainsFunc(paths, func(p *path) bool { return !p.Reached && p.underlay.Is4() }) || !v.Address.Is4() {
		return
	}
	g, err := newPinger(v.Address)
	if err != nil {
		return // the report then says that the machine does not answer and must be checked
	}
	defer g.close()
	for range 2 {
		g.round(ctx, paths, func(p *path) (netip.Addr, int) {
			if p.Reached || p.answers {
				return netip.Addr{}, 0
			}
			return p.underlay, smallPing
		}, func(p *path, _ time.Duration) { p.answers = true })
	}
}

// pinger sends ICMP echo requests from one address. Its packets have the flag "don't fragment".
type pinger struct {
	conn *net.IPConn
	id   int // identifier and sequence number have 16 bits
	seq  int
}

func newPinger(from netip.Addr) (*pinger, error) {
	conn, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: from.AsSlice()})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var fault error
		err = raw.Control(func(fd uintptr) {
			fault = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		})
		if err == nil {
			err = fault
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &pinger{conn: conn, id: int(uint16(rand.Uint32()))}, nil //nolint:gosec // the id only tells the probes of two checks apart
}

func (g *pinger) close() { _ = g.conn.Close() }

// round sends one echo request on each path for which the function to returns an address, and calls answered for each
// path whose reply arrives within pingWait.
func (g *pinger) round(ctx context.Context, paths []*path, to func(*path) (netip.Addr, int), answered func(*path, time.Duration)) {
	g.seq = (g.seq + 1) & 0xffff
	sent := map[netip.Addr]time.Time{}
	of := map[netip.Addr]*path{}
	for _, p := range paths {
		at, size := to(p)
		if !at.IsValid() || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		packet, err := g.echo(size)
		if err == nil {
			_, err = g.conn.WriteToIP(packet, &net.IPAddr{IP: at.AsSlice()})
		}
		if err == nil { // an error means that the packet is too large for this machine, or that there is no route: it counts as lost
			sent[at], of[at] = began, p
		}
	}
	end := time.Now().Add(pingWait)
	if limit, ok := ctx.Deadline(); ok && limit.Before(end) {
		end = limit
	}
	_ = g.conn.SetReadDeadline(end)
	buf := make([]byte, 1<<16)
	for len(sent) > 0 {
		size, from, err := g.conn.ReadFromIP(buf)
		if err != nil {
			return
		}
		at := toAddr(from.IP)
		began, waiting := sent[at]
		if !waiting || !g.answers(buf[:size]) {
			continue
		}
		delete(sent, at)
		answered(of[at], time.Since(began))
	}
}

// echo returns an echo request that becomes an IP packet of size bytes.
func (g *pinger) echo(size int) ([]byte, error) {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: g.id, Seq: g.seq, Data: make([]byte, max(0, size-ipHeader-icmpHeader))}}
	return m.Marshal(nil)
}

// answers reports whether a received ICMP message is the reply to the last echo request.
func (g *pinger) answers(message []byte) bool {
	m, err := icmp.ParseMessage(ipv4.ICMPTypeEcho.Protocol(), message)
	if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
		return false
	}
	e, ok := m.Body.(*icmp.Echo)
	return ok && e.ID == g.id && e.Seq == g.seq
}
