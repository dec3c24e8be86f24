package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// maxVNI is the largest network identifier of VXLAN, which has 24 bits.
const maxVNI = 1<<24 - 1

// NetworkView converts and checks the networks that a scheduler wants on this node.
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
	if out.Address, err = netip.ParseAddr(m.GetAddress()); err != nil || out.Address.IsUnspecified() {
		return fail("address", "%q is not the address of a host", m.GetAddress())
	}
	switch {
	case m.GetPort() < 1 || m.GetPort() > 65535:
		return fail("port", "%d is not in 1..65535", m.GetPort())
	case out.VNI < 1 || out.VNI > maxVNI:
		return fail("vni", "%d is not in 1..%d", out.VNI, maxVNI)
	}
	nodes := map[string]bool{}
	for i, p := range m.GetPeers() {
		a, err := netip.ParseAddr(p.GetAddress())
		if err != nil || a.IsUnspecified() || a == out.Address || p.GetNode() == "" || nodes[p.GetNode()] {
			return fail(fmt.Sprintf("peers[%d]", i), "node %q at %q must be there once, with the address of another host", p.GetNode(), p.GetAddress())
		}
		nodes[p.GetNode()] = true
		out.Peers = append(out.Peers, workload.NetworkPeer{Node: p.GetNode(), Address: a})
	}
	ids := map[uint32]bool{}
	for i, n := range m.GetNetworks() {
		at := fmt.Sprintf("networks[%d]", i)
		cidr, err := prefix(n.GetCidr())
		if err != nil {
			return fail(at+".cidr", "%w", err)
		}
		if cidr.Contains(out.Address) || slices.ContainsFunc(out.Peers, func(p workload.NetworkPeer) bool { return cidr.Contains(p.Address) }) {
			return fail(at+".cidr", "%s contains the address of a node", cidr)
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
		w := workload.Network{ID: n.GetId(), Namespace: n.GetNamespace(), Name: n.GetName(), CIDR: cidr, MTU: int(n.GetMtu())}
		if w.ID == 0 || ids[w.ID] || w.MTU < 576 || w.MTU > 65535 {
			return fail(at, "network %d with an MTU of %d must be there once, with an MTU of 576 to 65535", w.ID, w.MTU)
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
			if !nodes[s.GetNode()] {
				return fail(fmt.Sprintf("%s.peers[%d]", at, j), "node %q is not among the peers", s.GetNode())
			}
			for _, o := range taken {
				if o.Overlaps(p) {
					return fail(fmt.Sprintf("%s.peers[%d]", at, j), "slice %s overlaps %s", p, o)
				}
			}
			taken = append(taken, p)
			w.Peers = append(w.Peers, workload.NetworkSlice{Node: s.GetNode(), CIDR: p})
		}
		out.Networks = append(out.Networks, w)
	}
	return out, nil
}

// prefix parses an IPv4 prefix without host bits.
func prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 prefix without host bits", text)
	}
	return p, nil
}
