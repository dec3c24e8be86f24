package dnsserver

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// node holds the DNS data of a registered node, whether the node is up or down.
type node struct {
	id    string
	label string
	at    endpoint
}

// placeNode reads a node from the state again and updates its records. It reports whether the node was added,
// removed or moved to another endpoint.
func (b *Builder) placeNode(id string) bool {
	old := b.nodes[id]
	var fresh *node
	if n, ok := b.view.Node(id); ok {
		fresh = &node{id: id, label: Label(id), at: parseEndpoint(n.Facts.Endpoint)}
	}
	switch {
	case old == nil && fresh == nil, old != nil && fresh != nil && *old == *fresh:
		return false
	}
	label := Label(id)
	if old != nil {
		delete(b.nodes, id)
		replaceNode(b.labels, label, id, nil)
		if a := old.at.addr; a.IsValid() {
			replaceNode(b.reverse, a, id, nil)
			b.dirtyAddrs[a] = struct{}{}
		}
	}
	if fresh != nil {
		b.nodes[id] = fresh
		replaceNode(b.labels, label, id, fresh)
		if a := fresh.at.addr; a.IsValid() {
			replaceNode(b.reverse, a, id, fresh)
			b.dirtyAddrs[a] = struct{}{}
		}
	}
	b.renderNode(label)
	return true
}

// replaceNode replaces the node with this id in the list m[k] by n. If n is nil, it removes the node from the list.
func replaceNode[K comparable](m map[K][]*node, k K, id string, n *node) {
	list := m[k]
	i, there := slices.BinarySearchFunc(list, id, func(o *node, id string) int { return strings.Compare(o.id, id) })
	switch {
	case there && n != nil:
		list[i] = n
	case there:
		list = slices.Delete(list, i, i+1)
	case n != nil:
		list = slices.Insert(list, i, n)
	}
	if len(list) == 0 {
		delete(m, k)
		return
	}
	m[k] = list
}

// nodeName returns <node>.<Shard>.<AgentsDomain>.
func (p *plan) nodeName(label string) name { return under(p.agents, label) }

// target returns the name to which SRV records for this node point, or "" if the node has neither an address nor a
// host name.
func (n *node) target(p *plan) name {
	if n.at.addr.IsValid() {
		return p.nodeName(n.label)
	}
	return n.at.host
}

func (b *Builder) renderNode(label string) {
	ttl := b.plan.ttl.agent
	owner := b.plan.nodeName(label)
	service := under(owner, "_persys-agent", "_tcp")
	var addrs []netip.Addr
	var srv, glue []record
	for _, n := range b.labels[label] {
		if a := n.at.addr; a.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
			glue = append(glue, address(owner, a, ttl))
		}
		if t := n.target(b.plan); t != "" && n.at.port != 0 {
			r := record{owner: service, typ: dns.TypeSRV, ttl: ttl, weight: srvWeight, port: n.at.port, target: t}
			if !slices.Contains(srv, r) {
				srv = append(srv, r)
			}
		}
	}
	b.set(owner, appendAddressSets(nil, owner, ttl, false, addrs), false)
	var sets []rrset
	if len(srv) > 0 {
		sets = []rrset{pack(service, dns.TypeSRV, false, srv, glue)}
	}
	b.set(service, sets, false)
}

// renderReverses makes the PTR records of all addresses in b.dirtyAddrs.
func (b *Builder) renderReverses() {
	for a := range b.dirtyAddrs {
		b.renderReverse(a)
	}
	clear(b.dirtyAddrs)
}

// renderReverse makes the PTR records of one address. Thousands of nodes may have the same address, if they
// are simulated or behind NAT; only the first maxPerAnswer are listed.
func (b *Builder) renderReverse(a netip.Addr) {
	owner := reverseName(a)
	var ptr []record
	labels := map[string]struct{}{} // labels already listed: two different ids may have the same label
	for _, n := range b.reverse[a] {
		if labels[n.label] = struct{}{}; len(labels) > len(ptr) {
			ptr = append(ptr, record{owner: owner, typ: dns.TypePTR, ttl: b.plan.ttl.agent, target: b.plan.nodeName(n.label)})
		}
		if len(ptr) == maxPerAnswer {
			break
		}
	}
	var sets []rrset
	if len(ptr) > 0 {
		sets = []rrset{pack(owner, dns.TypePTR, false, ptr, nil)}
	}
	b.set(owner, sets, true)
}
