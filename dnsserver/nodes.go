package dnsserver

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// node is a registered node as DNS shows it, up or not: its name says where it
// is, not how it is.
type node struct {
	id    string
	label string
	at    endpoint
}

// placeNode looks at one node again. It reports whether it is reached elsewhere
// than before.
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

// replaceNode puts n, or nothing, in the place of the node of that id.
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

// nodeName is <node>.S.AD.
func (p *plan) nodeName(label string) name { return under(p.agents, label) }

// target is the name that SRV records give for the node, "" if it is nowhere.
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

// renderReverses makes the PTR records of the addresses where something changed.
func (b *Builder) renderReverses() {
	for a := range b.dirtyAddrs {
		b.renderReverse(a)
	}
	clear(b.dirtyAddrs)
}

// renderReverse makes the PTR records of one address. Behind one address there may be thousands of
// nodes, simulated or behind a translator; it shows at most the first maxPerAnswer.
func (b *Builder) renderReverse(a netip.Addr) {
	owner := reverseName(a)
	var ptr []record
	labels := map[string]struct{}{} // ids may share one
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
