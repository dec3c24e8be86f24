package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/persys/compute/agent/workload"
)

// looseReversePath is the value of rp_filter with which the kernel accepts packets from the VXLAN device even
// if it would send the answers through another interface. The chain "source" of our nftables table checks the
// source addresses instead.
const looseReversePath = 2

// Result is what Plan returns.
type Result struct {
	// Ops are in the order in which they must be carried out. If one fails, the following ones are still
	// carried out.
	Ops []Op
	// Problems are the faults that no operation can repair, as text.
	Problems []string
	// Ready holds the sorted ids of the networks whose bridge, VXLAN device, and entries for other nodes
	// (peers) are already set up.
	Ready []uint32
}

// planner builds a Result.
type planner struct {
	Input
	out Result
	// broken holds the sorted ids of networks that no operation can repair; an operator must repair them.
	broken []uint32
}

// Plan compares the observed state of a machine with the schedulers' view of its networks, and returns the
// operations that make the machine match the view.
func Plan(in Input) Result {
	p := planner{Input: in}
	p.out.Problems = slices.Clone(in.View.Problems)
	if !p.ours() {
		return p.out
	}
	p.narrow()
	p.engine()
	table, bridges := p.table()
	wanted := len(p.View.Networks) > 0
	switch {
	case wanted && p.Seen.Underlay == nil:
		p.problem("no interface of this machine has the address %s, which this node registered: set PERSYS_AGENT_GRPC_ENDPOINT to an address of this machine", p.View.Address)
	case wanted:
		p.device()
	case p.Seen.Device != nil:
		p.do(DeleteDevice{})
	}
	// Rules in DOCKER-USER accept packets that our table has checked. Remove obsolete ones before our table
	// changes, and add new ones after that, so that no packet passes unchecked.
	accepts := p.userRules(bridges)
	p.userChain(accepts, false)
	switch {
	case table.same(p.Seen.Table):
	case table == nil:
		p.do(DropTable{})
	default:
		p.do(ReplaceTable{table})
	}
	p.userChain(accepts, true)
	p.ready()
	return p.out
}

func (p *planner) do(op Op) { p.out.Ops = append(p.out.Ops, op) }

func (p *planner) problem(format string, args ...any) {
	p.out.Problems = append(p.out.Problems, fmt.Sprintf(format, args...))
}

// ours reports whether the VXLAN device does not exist or belongs to this agent, so that the agent may change
// it. Another agent's device, table and rules are not touched.
func (p *planner) ours() bool {
	switch d := p.Seen.Device; {
	case p.Seen.Taken != "":
		p.problem("the interface %s is of the kind %s: remove or rename it", Device, p.Seen.Taken)
	case d != nil && d.Alias != "" && d.Alias != p.Alias:
		p.problem("the interface %s belongs to %q, and this agent is %q: only one agent of a machine can have networks; if the other agent is gone, run: ip link delete %s",
			Device, d.Alias, p.Alias, Device)
	case p.Seen.Table.ofAnother(p.Alias) != "":
		p.problem("the nftables table inet %s has the set %s, so it belongs to another agent; this agent has %s: only one agent of a machine can have networks; if the other agent is gone, run: nft delete table inet %s",
			TableName, p.Seen.Table.ofAnother(p.Alias), Owner(p.Alias), TableName)
	default:
		return true
	}
	return false
}

// narrow removes from the view the networks and peers (other nodes) that cannot work on this machine, and
// adds a problem for each. A network cannot work if its bridge still has containers of a deleted network
// with the same id. A peer cannot work if its address is IPv4 and that of this node is IPv6, or the
// reverse.
func (p *planner) narrow() {
	v := p.View
	v.Networks, v.Peers = nil, nil
	for _, n := range p.View.Networks {
		if have := p.network(n.ID); have != nil && have.Used && have.Network != n.Namespace+"/"+n.Name {
			p.problem("network %s/%s: containers on this node's bridge %s belong to the former network %s: remove them", n.Namespace, n.Name, Bridge(n.ID), have.Network)
			continue
		}
		v.Networks = append(v.Networks, n)
	}
	lost := map[string]bool{}
	for _, peer := range p.View.Peers {
		if peer.Address.Is4() != v.Address.Is4() {
			lost[peer.Node] = true
			p.problem("node %s has the address %s, this node %s: networks need addresses of the same family; set PERSYS_AGENT_GRPC_ENDPOINT of one of them", peer.Node, peer.Address, v.Address)
			continue
		}
		v.Peers = append(v.Peers, peer)
	}
	if len(lost) > 0 {
		for i := range v.Networks {
			v.Networks[i].Peers = slices.DeleteFunc(slices.Clone(v.Networks[i].Peers), func(s workload.NetworkSlice) bool { return lost[s.Node] })
		}
	}
	p.View = v
}

// engine plans the operations that make the container engine's networks equal the view.
func (p *planner) engine() {
	if !p.Seen.Answers {
		return
	}
	for _, n := range p.View.Networks {
		want := EngineNetwork{ID: n.ID, Network: n.Namespace + "/" + n.Name, CIDR: n.CIDR, Slice: n.Slice, MTU: n.MTU}
		have := p.network(n.ID)
		switch {
		case have == nil:
			p.do(CreateNetwork{want})
		case have.EngineNetwork == want && have.Link:
			if !have.Set {
				p.do(SetUpBridge{Bridge(n.ID)})
			}
		case have.Used && have.Slice != want.Slice:
			p.problem("network %s/%s: containers on this node still have addresses of the former slice %s, now it is %s: restart or remove them", n.Namespace, n.Name, have.Slice, want.Slice)
			p.broken = append(p.broken, n.ID)
		case have.Used && !have.Link:
			p.problem("network %s/%s: its bridge %s was deleted while containers use it: restart the container engine", n.Namespace, n.Name, Bridge(n.ID))
			p.broken = append(p.broken, n.ID)
		case have.Used: // only the MTU or the subnet in the containers differs; the network is replaced once no container uses it
		default:
			p.do(RemoveNetwork{n.ID})
			p.do(CreateNetwork{want})
		}
	}
	for _, have := range p.Seen.Engine {
		if !p.viewed(have.ID) && !have.Used {
			p.do(RemoveNetwork{have.ID})
		}
	}
}

// network returns a network of the engine, or nil.
func (p *planner) network(id uint32) *ObservedNetwork {
	for i := range p.Seen.Engine {
		if p.Seen.Engine[i].ID == id {
			return &p.Seen.Engine[i]
		}
	}
	return nil
}

// viewed reports whether the view, which the schedulers sent, contains a network.
func (p *planner) viewed(id uint32) bool {
	return slices.ContainsFunc(p.View.Networks, func(n workload.Network) bool { return n.ID == id })
}

// table returns the nftables table that the machine must have, and the sorted names of the bridges of the
// networks in the view. The table also contains bridges that left the view while containers are still connected
// to them, so that these containers stay isolated.
func (p *planner) table() (*Table, []string) {
	var bridges []string
	for _, n := range p.View.Networks {
		bridges = append(bridges, Bridge(n.ID))
	}
	slices.Sort(bridges)
	all := slices.Clone(bridges)
	if !p.Seen.Answers { // while the engine does not answer, the bridges with containers are not known, so keep all
		all = append(all, p.Seen.Table.set(bridgeSet)...)
	}
	for _, n := range p.Seen.Engine {
		if n.Used || !p.Seen.Answers {
			all = append(all, Bridge(n.ID))
		}
	}
	slices.Sort(all)
	return table(p.Alias, p.View, slices.Compact(all)), bridges
}

// userChain plans operations on Docker's chain DOCKER-USER: if add is true, the addition of missing rules, and
// otherwise the removal of obsolete ones.
func (p *planner) userChain(accepts []UserRule, add bool) {
	if !p.Seen.HasUserChain {
		return
	}
	from, to := p.Seen.UserChain, accepts
	if add {
		from, to = to, from
	}
	for _, r := range slices.Compact(slices.Clone(from)) {
		switch {
		case slices.Contains(to, r):
		case add:
			p.do(AcceptInto{r})
		default:
			p.do(DropAccept{r})
		}
	}
}

// userRules returns the rules that DOCKER-USER must have, sorted. Packets of clients of ports in ingress mode
// arrive at any interface of the machine, and leave it through the bridge of a local instance, or through the
// VXLAN device to an instance on another node (a peer). Answers from peers arrive at the VXLAN device.
func (p *planner) userRules(bridges []string) (out []UserRule) {
	ingress := false
	for _, b := range bridges {
		out = append(out, FromPeersTo(b))
	}
	for _, n := range p.View.Networks {
		if n.Ingress {
			ingress = true
			out = append(out, AllTo(Bridge(n.ID)))
		}
	}
	if ingress {
		out = append(out, AllTo(Device), AllFrom(Device))
	}
	slices.Sort(out)
	return out
}

// device plans the operations that create or change the VXLAN device and its entries for the peers.
func (p *planner) device() {
	v, under := p.View, p.Seen.Underlay
	want := VXLAN{Alias: p.Alias, VNI: v.VNI, Port: v.Port, Local: v.Address, Under: under.Index, MAC: MACOf(v.Address), MTU: under.MTU - Overhead(v.Address), Up: true}
	var forwards []Forward
	var neighbours []Neighbour
	var routes []Route
	have := p.Seen.Device
	if reason := differs(have, want); have == nil || reason != "" {
		p.do(CreateDevice{want, reason})
		have = nil
	} else {
		forwards, neighbours, routes = p.Seen.Forwards, p.Seen.Neighbours, p.Seen.Routes
		if have.MTU != want.MTU || !have.Up || have.Alias != want.Alias {
			p.do(AdjustDevice{want.MTU, want.Alias})
		}
	}
	if have == nil || p.Seen.ReversePath != looseReversePath {
		p.do(SetReversePath{looseReversePath})
	}
	f, n, r := p.entries()
	change(p, forwards, f, func(a, b Forward) bool { return a.MAC == b.MAC }, func(x Forward) Op { return PutForward{x} }, func(x Forward) Op { return DropForward{x} })
	change(p, neighbours, n, func(a, b Neighbour) bool { return a.Address == b.Address }, func(x Neighbour) Op { return PutNeighbour{x} }, func(x Neighbour) Op { return DropNeighbour{x.Address} })
	change(p, routes, r, func(a, b Route) bool { return a.Slice == b.Slice }, func(x Route) Op { return PutRoute{x} }, func(x Route) Op { return DropRoute{x.Slice} })
}

// differs returns the reason why an existing device must be replaced; "" if adjusting it is enough.
func differs(have *VXLAN, want VXLAN) string {
	if have == nil {
		return ""
	}
	for _, c := range []struct {
		what string
		is   bool
	}{
		{"vni", have.VNI != want.VNI}, {"port", have.Port != want.Port}, {"local address", have.Local != want.Local},
		{"interface", have.Under != want.Under}, {"mac", have.MAC != want.MAC}, {"learning", have.Learning},
	} {
		if c.is {
			return c.what + " differs"
		}
	}
	return ""
}

// entries returns the forwarding entries, neighbour entries and routes that the VXLAN device must have for the
// peers. Peers without an address are skipped.
func (p *planner) entries() (forwards []Forward, neighbours []Neighbour, routes []Route) {
	address := func(node string) (netip.Addr, bool) {
		for _, peer := range p.View.Peers {
			if peer.Node == node {
				return peer.Address, peer.Address != p.View.Address
			}
		}
		return netip.Addr{}, false
	}
	for _, n := range p.View.Networks {
		gateway := Gateway(n.Slice)
		if !slices.Contains(p.Seen.Addresses, gateway) {
			gateway = netip.Addr{} // no source address, because the engine has not made the bridge yet
		}
		for _, s := range n.Peers {
			peer, ok := address(s.Node)
			if !ok {
				p.problem("network %s/%s: the view has no address of node %s", n.Namespace, n.Name, s.Node)
				continue
			}
			mac := MACOf(peer)
			forwards = append(forwards, Forward{mac, peer})
			neighbours = append(neighbours, Neighbour{s.CIDR.Addr(), mac})
			routes = append(routes, Route{Slice: s.CIDR, Via: s.CIDR.Addr(), Source: gateway, MTU: n.MTU})
		}
		for _, s := range n.Services {
			routes = append(routes, Route{Slice: s, Source: gateway, MTU: n.MTU})
		}
	}
	SortForwards(forwards)
	SortNeighbours(neighbours)
	SortRoutes(routes)
	return slices.Compact(forwards), slices.Compact(neighbours), slices.Compact(routes)
}

// change plans the operations that turn the entries in have into those in want. One operation replaces
// entries with the same key.
func change[T comparable](p *planner, have, want []T, sameKey func(a, b T) bool, put, drop func(T) Op) {
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w T) bool { return sameKey(h, w) }) {
			p.do(drop(h))
		}
	}
	for _, w := range want {
		n, exact := 0, false
		for _, h := range have {
			if sameKey(h, w) {
				n, exact = n+1, exact || h == w
			}
		}
		if n > 1 { // several entries have the same key, for example two peers for one Ethernet address
			for _, h := range have {
				if sameKey(h, w) && h != w {
					p.do(drop(h))
				}
			}
		}
		if !exact || n > 1 {
			p.do(put(w))
		}
	}
}

// ready sets Result.Ready. A network is in the list as soon as its own bridge and entries are set up, even if
// other networks are not.
func (p *planner) ready() {
	missing := slices.Clone(p.broken)
	for _, op := range p.out.Ops {
		switch op := op.(type) {
		case CreateNetwork:
			missing = append(missing, op.ID)
		case RemoveNetwork:
		default:
			return
		}
	}
	if p.Seen.Underlay == nil || !p.Seen.Answers {
		return
	}
	for _, n := range p.View.Networks {
		if !slices.Contains(missing, n.ID) {
			p.out.Ready = append(p.out.Ready, n.ID)
		}
	}
	slices.Sort(p.out.Ready)
}

// SortForwards sorts forwarding entries as the fields of Observed require.
func SortForwards(list []Forward) {
	slices.SortFunc(list, func(a, b Forward) int { return cmp.Or(slices.Compare(a.MAC[:], b.MAC[:]), a.Peer.Compare(b.Peer)) })
}

// SortNeighbours sorts neighbour entries as the fields of Observed require.
func SortNeighbours(list []Neighbour) {
	slices.SortFunc(list, func(a, b Neighbour) int { return a.Address.Compare(b.Address) })
}

// SortRoutes sorts routes as the fields of Observed require.
func SortRoutes(list []Route) {
	slices.SortFunc(list, func(a, b Route) int {
		return cmp.Or(a.Slice.Addr().Compare(b.Slice.Addr()), a.Slice.Bits()-b.Slice.Bits())
	})
}
