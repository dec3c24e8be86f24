package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// serviceBits is the prefix length of each block of a network's addresses that is reserved for services. The
// nftables rules of package overlay rely on this length.
const serviceBits = 26

// maxVNI is the largest network identifier of VXLAN, which has 24 bits.
const maxVNI = 1<<24 - 1

// NetworkView converts and checks the description of this node's networks that a scheduler sent. It leaves out
// networks and peers (other nodes) that cannot work because of the addresses of nodes (for example a node
// address within the subnet of a network), and names them in Problems. The other networks still work.
func NetworkView(m *agentv1.NetworkView) (workload.NetworkView, error) {
	fail := func(field, format string, args ...any) (workload.NetworkView, error) {
		return workload.NetworkView{}, fmt.Errorf("networks."+field+": "+format, args...)
	}
	out := workload.NetworkView{Cluster: m.GetEpoch().GetClusterId(), Index: m.GetIndex(), Port: uint16(m.GetPort()), VNI: m.GetVni()}
	switch {
	case out.Cluster == "" || m.GetEpoch().GetIncarnation() == 0:
		return fail("epoch", "the cluster or the incarnation is missing")
	case out.Index == 0:
		return fail("index", "is missing")
	}
	if len(m.GetNetworks()) == 0 {
		return out, nil // the node has to remove all networks
	}
	var err error
	if out.Address, err = hostAddr(m.GetAddress()); err != nil {
		return fail("address", "%w", err)
	}
	problem := func(format string, args ...any) { out.Problems = append(out.Problems, fmt.Sprintf(format, args...)) }
	switch {
	case m.GetPort() < 1 || m.GetPort() > 65535:
		return fail("port", "%d is not in 1..65535", m.GetPort())
	case out.VNI < 1 || out.VNI > maxVNI:
		return fail("vni", "%d is not in 1..%d", out.VNI, maxVNI)
	}
	nodes := map[string]bool{} // for each node name: whether the node can be a peer
	for i, p := range m.GetPeers() {
		at := fmt.Sprintf("peers[%d]", i)
		a, err := hostAddr(p.GetAddress())
		if _, twice := nodes[p.GetNode()]; p.GetNode() == "" || twice {
			return fail(at, "node %q must be listed exactly once, with a name", p.GetNode())
		}
		nodes[p.GetNode()] = false
		around := slices.IndexFunc(m.GetNetworks(), func(n *agentv1.Network) bool {
			cidr, err := prefix(n.GetCidr())
			return err == nil && cidr.Contains(a)
		})
		switch {
		case err != nil:
			problem("node %s is left out of the networks: %v: set its PERSYS_AGENT_GRPC_ENDPOINT", p.GetNode(), err)
		case a == out.Address:
			problem("node %s is left out of the networks: it registered with %s, which is the address of this node: set its PERSYS_AGENT_GRPC_ENDPOINT", p.GetNode(), a)
		case around >= 0:
			n := m.GetNetworks()[around]
			problem("node %s is left out of the networks: its address %s is in the subnet %s of network %s/%s: make that network with another subnet (persysctl network create)",
				p.GetNode(), a, n.GetCidr(), n.GetNamespace(), n.GetName())
		default:
			nodes[p.GetNode()] = true
			out.Peers = append(out.Peers, workload.NetworkPeer{Node: p.GetNode(), Address: a})
		}
	}
	ids := map[uint32]bool{}
	for i, n := range m.GetNetworks() {
		at := fmt.Sprintf("networks[%d]", i)
		cidr, err := prefix(n.GetCidr())
		if err != nil {
			return fail(at+".cidr", "%w", err)
		}
		for _, o := range out.Networks {
			if o.CIDR.Overlaps(cidr) {
				return fail(at+".cidr", "%s overlaps %s of network %s", cidr, o.CIDR, o.Name)
			}
		}
		within := func(field, text string) (netip.Prefix, error) {
			p, err := prefix(text)
			if err == nil && (p.Bits() < cidr.Bits() || !cidr.Contains(p.Addr())) {
				err = fmt.Errorf("%s is not within %s", p, cidr)
			}
			if err != nil {
				err = fmt.Errorf("networks.%s.%s: %w", at, field, err)
			}
			return p, err
		}
		w := workload.Network{ID: n.GetId(), Namespace: n.GetNamespace(), Name: n.GetName(), CIDR: cidr, MTU: int(n.GetMtu()), Ingress: n.GetIngress()}
		if w.ID == 0 || ids[w.ID] || w.MTU < 576 || w.MTU > 65535 {
			return fail(at, "network %d with an MTU of %d: each network must be listed once, with an MTU of 576 to 65535", w.ID, w.MTU)
		}
		ids[w.ID] = true
		if w.Slice, err = within("slice", n.GetSlice()); err != nil {
			return workload.NetworkView{}, err
		}
		taken := []netip.Prefix{w.Slice}
		for j, s := range n.GetPeers() {
			p, err := within(fmt.Sprintf("peers[%d].cidr", j), s.GetCidr())
			if err != nil {
				return workload.NetworkView{}, err
			}
			works, known := nodes[s.GetNode()]
			if !known {
				return fail(fmt.Sprintf("%s.peers[%d]", at, j), "node %q is not among the peers", s.GetNode())
			}
			for _, o := range taken {
				if o.Overlaps(p) {
					return fail(fmt.Sprintf("%s.peers[%d]", at, j), "slice %s overlaps %s", p, o)
				}
			}
			taken = append(taken, p)
			if !works {
				continue
			}
			w.Peers = append(w.Peers, workload.NetworkSlice{Node: s.GetNode(), CIDR: p})
		}
		for j, text := range n.GetServices() {
			p, err := within(fmt.Sprintf("services[%d]", j), text)
			if err != nil {
				return workload.NetworkView{}, err
			}
			for _, o := range taken {
				if o.Overlaps(p) {
					return fail(fmt.Sprintf("%s.services[%d]", at, j), "%s overlaps %s", p, o)
				}
			}
			if p.Bits() != serviceBits {
				return fail(fmt.Sprintf("%s.services[%d]", at, j), "%s is not a /%d", p, serviceBits)
			}
			taken = append(taken, p)
			w.Services = append(w.Services, p)
		}
		out.Networks = append(out.Networks, w)
	}
	out.Networks = slices.DeleteFunc(out.Networks, func(n workload.Network) bool {
		around := n.CIDR.Contains(out.Address)
		if around {
			problem("network %s/%s is left out on this node: its subnet %s contains %s, the address of this node: make it with another subnet (persysctl network create)", n.Namespace, n.Name, n.CIDR, out.Address)
		}
		return around
	})
	return out, nil
}

// hostAddr parses the address of a node. IPv4 addresses in IPv6 form become IPv4 addresses.
func hostAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if a = a.Unmap().WithZone(""); err != nil || a.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("%q is not the address of a host", text)
	}
	return a, nil
}

// prefix parses an IPv4 prefix without host bits.
func prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 prefix without host bits", text)
	}
	return p, nil
}
