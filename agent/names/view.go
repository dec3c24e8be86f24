package names

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// ttl is how long clients may cache an answer, in seconds. It is short because an instance may move at any time.
const ttl = 1

// view holds the names of members. It is immutable.
type view struct {
	namespaces map[string]bool
	by         map[key][]*agentv1.NetworkMember // by namespace and by name of the workload or group
	at         map[netip.Addr][]*agentv1.NetworkMember
}

type key struct{ namespace, name string }

func newView(m *agentv1.NetworkNames) *view {
	v := &view{namespaces: map[string]bool{}, by: map[key][]*agentv1.NetworkMember{}, at: map[netip.Addr][]*agentv1.NetworkMember{}}
	for _, n := range m.GetNamespaces() {
		v.namespaces[n] = true
	}
	for _, x := range m.GetMembers() {
		v.by[key{x.GetNamespace(), x.GetName()}] = append(v.by[key{x.GetNamespace(), x.GetName()}], x)
		if g := x.GetGroup(); g != "" && g != x.GetName() {
			v.by[key{x.GetNamespace(), g}] = append(v.by[key{x.GetNamespace(), g}], x)
		}
		if a, err := netip.ParseAddr(x.GetAddress()); err == nil {
			v.at[a] = append(v.at[a], x)
		}
	}
	return v
}

// members returns the members with a name that share a network with the asker. namespace "" means any: all networks of
// a container belong to one namespace.
func (v *view) members(networks []uint32, name, namespace string) (out []*agentv1.NetworkMember) {
	in := []string{namespace}
	if namespace == "" {
		in = in[:0]
		for n := range v.namespaces {
			in = append(in, n)
		}
		slices.Sort(in)
	}
	for _, n := range in {
		for _, m := range v.by[key{n, name}] {
			if slices.Contains(networks, m.GetNetwork()) {
				out = append(out, m)
			}
		}
	}
	return out
}

// result says what to do with a question.
type result struct {
	answer, extra []dns.RR
	rcode         int
	// foreign means that the machine's resolvers have to answer. ours then says that the name ends with a namespace of
	// the cluster: if no resolver answers, the name does not exist.
	foreign, ours bool
}

// answer answers a question of a container on some networks. Names are
//
//	NAME, NAME.NAMESPACE                     the addresses of a workload, or of all instances of a group
//	tasks.NAME, tasks.NAME.NAMESPACE         the same
//	_PORT._PROTOCOL.NAME[.NAMESPACE]         SRV records; PORT is the name of a port or its number in the container
//	the reverse name of an address           the name of the instance
//
// A name with one label never goes to the machine's resolvers, and neither does that of a member which cannot be used now.
func (v *view) answer(q dns.Question, networks []uint32) result {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if a, ok := reverse(name); ok {
		return v.pointer(q, a, networks)
	}
	labels := strings.Split(name, ".")
	var service, protocol string
	if len(labels) > 2 && strings.HasPrefix(labels[0], "_") && strings.HasPrefix(labels[1], "_") {
		service, protocol, labels = labels[0][1:], labels[1][1:], labels[2:]
	}
	found := v.find(labels, networks)
	if len(found) == 0 && len(labels) > 1 && labels[0] == "tasks" {
		labels = labels[1:]
		found = v.find(labels, networks)
	}
	switch {
	case name == "":
		return result{foreign: true}
	case len(found) == 0 && len(labels) == 1:
		return result{rcode: dns.RcodeNameError}
	case len(found) == 0:
		return result{foreign: true, ours: v.namespaces[labels[len(labels)-1]]}
	case service != "":
		return services(q, found, service, protocol)
	}
	var out result
	if q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY {
		out.answer = addresses(q.Name, found)
	}
	return out
}

func (v *view) find(labels []string, networks []uint32) []*agentv1.NetworkMember {
	switch len(labels) {
	case 1:
		return v.members(networks, labels[0], "")
	case 2:
		return v.members(networks, labels[0], labels[1])
	}
	return nil
}

// addresses returns an A record for each different address.
func addresses(owner string, list []*agentv1.NetworkMember) (out []dns.RR) {
	var seen []string
	for _, m := range list {
		if a, err := netip.ParseAddr(m.GetAddress()); err == nil && !slices.Contains(seen, m.GetAddress()) {
			seen = append(seen, m.GetAddress())
			out = append(out, &dns.A{Hdr: header(owner, dns.TypeA), A: a.AsSlice()})
		}
	}
	return out
}

// services returns the SRV records of one port, with the addresses of the instances.
func services(q dns.Question, list []*agentv1.NetworkMember, service, protocol string) (out result) {
	known := false
	for _, m := range list {
		for _, p := range m.GetPorts() {
			if p.GetName() != service || p.GetProtocol() != protocol {
				continue
			}
			known = true
			if q.Qtype != dns.TypeSRV || m.GetAddress() == "" {
				continue
			}
			target := instance(m)
			same := func(rr dns.RR) bool { s := rr.(*dns.SRV); return s.Target == target && s.Port == uint16(p.GetPort()) }
			out.extra = append(out.extra, addresses(target, []*agentv1.NetworkMember{m})...)
			if slices.ContainsFunc(out.answer, same) {
				continue // the asker and the instance share another network too
			}
			out.answer = append(out.answer, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Priority: 1, Weight: 1, Port: uint16(p.GetPort()), Target: target})
		}
	}
	if !known {
		out.rcode = dns.RcodeNameError
	}
	return out
}

// pointer answers a reverse query. Addresses that are not of a member on the asker's networks are foreign.
func (v *view) pointer(q dns.Question, a netip.Addr, networks []uint32) result {
	for _, m := range v.at[a] {
		if slices.Contains(networks, m.GetNetwork()) {
			out := result{}
			if q.Qtype == dns.TypePTR {
				out.answer = []dns.RR{&dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: instance(m)}}
			}
			return out
		}
	}
	return result{foreign: true}
}

// instance returns the full name of one instance.
func instance(m *agentv1.NetworkMember) string { return m.GetName() + "." + m.GetNamespace() + "." }

func header(owner string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// reverse returns the IPv4 address of a name in in-addr.arpa.
func reverse(name string) (netip.Addr, bool) {
	digits, ok := strings.CutSuffix(name, ".in-addr.arpa")
	if !ok {
		return netip.Addr{}, false
	}
	parts := strings.Split(digits, ".")
	slices.Reverse(parts)
	a, err := netip.ParseAddr(strings.Join(parts, "."))
	return a, err == nil && a.Is4()
}
