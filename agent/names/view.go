package names

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// ttl is how long clients may cache an answer, in seconds. It is short because an instance may move at any time.
const ttl = 1

// view holds the names of the members of networks, as the schedulers sent them, prepared for look-ups. It never
// changes.
type view struct {
	namespaces map[string]bool
	by         map[key][]*agentv1.NetworkMember // by namespace and by name of the workload or group
	at         map[netip.Addr][]*agentv1.NetworkMember
	services   map[key][]service
	serviceAt  map[netip.Addr]service
}

// service is a service that has its own address in a network, to which connections are balanced over its
// instances.
type service struct {
	*agentv1.NetworkService
	address netip.Addr
}

type key struct{ namespace, name string }

func newView(m *agentv1.NetworkNames) *view {
	v := &view{namespaces: map[string]bool{}, by: map[key][]*agentv1.NetworkMember{}, at: map[netip.Addr][]*agentv1.NetworkMember{},
		services: map[key][]service{}, serviceAt: map[netip.Addr]service{}}
	for _, s := range m.GetServices() {
		if a, err := netip.ParseAddr(s.GetAddress()); err == nil {
			v.services[key{s.GetNamespace(), s.GetName()}] = append(v.services[key{s.GetNamespace(), s.GetName()}], service{s, a})
			v.serviceAt[a] = service{s, a}
		}
	}
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

// members returns those members of the given networks that have a name. The networks are those of the container
// that sent the query. If namespace is "", the namespace is not compared; all networks of one container belong
// to the same namespace anyway.
func (v *view) members(networks []uint32, name, namespace string) (out []*agentv1.NetworkMember) {
	for _, n := range v.in(namespace) {
		for _, m := range v.by[key{n, name}] {
			if slices.Contains(networks, m.GetNetwork()) {
				out = append(out, m)
			}
		}
	}
	return out
}

// in returns the namespaces in which to look for a name: the given namespace, or all namespaces if it is "".
func (v *view) in(namespace string) []string {
	if namespace != "" {
		return []string{namespace}
	}
	return slices.Sorted(maps.Keys(v.namespaces))
}

// result is the answer to a DNS question, or says that the machine's own resolvers must answer it.
type result struct {
	answer, extra []dns.RR
	rcode         int
	// foreign is set if the machine's own resolvers must answer the question. ours is set if the name ends
	// with a namespace of the cluster: if no resolver of the machine answers, the client is told that the name
	// does not exist.
	foreign, ours bool
}

// answer answers a question of a container that is on the given networks. The following names exist:
//
//	NAME, NAME.NAMESPACE                     the addresses of a service, one for each network of the asking container;
//	                                         if the service has none, those of the workload or of the group's instances
//	tasks.NAME, tasks.NAME.NAMESPACE         the addresses of a workload, or of all instances of a group
//	_PORT._PROTOCOL.NAME[.NAMESPACE]         SRV records; PORT is the name of a port or its number in the container
//	the reverse name of an address           the name of the instance or of the service
//
// Queries for a name with one label are never forwarded to the machine's resolvers, and neither are queries for
// a member that is not ready. The function serves reports whether containers can already reach a service at its
// own address. Until they can, the name of the service resolves to the addresses of its instances.
func (v *view) answer(q dns.Question, networks []uint32, serves func(netip.Addr) bool) result {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if a, ok := reverse(name); ok {
		return v.pointer(q, a, networks)
	}
	labels := strings.Split(name, ".")
	var service, protocol string
	if len(labels) > 2 && strings.HasPrefix(labels[0], "_") && strings.HasPrefix(labels[1], "_") {
		service, protocol, labels = labels[0][1:], labels[1][1:], labels[2:]
	}
	if list := v.addressesOf(labels, networks, serves); len(list) > 0 && service == "" {
		var out result
		if q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY {
			for _, a := range list {
				out.answer = append(out.answer, &dns.A{Hdr: header(q.Name, dns.TypeA), A: a.AsSlice()})
			}
		}
		return out
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
		return records(q, found, service, protocol)
	}
	var out result
	if q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY {
		out.answer = addresses(q.Name, found)
	}
	return out
}

// Lookup returns the addresses to which a name resolves for a container on the given networks. If there are
// none, it returns the reason as a text.
func (r *Resolver) Lookup(name string, networks []uint32) (out []netip.Addr, problem string) {
	v := r.view.Load()
	if v == nil {
		return nil, "the node has no names yet, because no scheduler has sent it any"
	}
	got := v.answer(dns.Question{Name: dns.Fqdn(name), Qtype: dns.TypeA, Qclass: dns.ClassINET}, networks, r.machine.Serves)
	for _, rr := range got.answer {
		if a, ok := rr.(*dns.A); ok {
			if at, ok := netip.AddrFromSlice(a.A.To4()); ok {
				out = append(out, at)
			}
		}
	}
	switch {
	case len(out) > 0:
		return out, ""
	case got.rcode == dns.RcodeNameError:
		return nil, "the name does not exist"
	case got.foreign:
		return nil, "no member of these networks has the name, so the resolvers of the machine are asked for it"
	}
	return nil, "the name exists, but none of its instances is ready"
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

// addressesOf returns the addresses that the service of this name has on the networks of the asking
// container.
func (v *view) addressesOf(labels []string, networks []uint32, serves func(netip.Addr) bool) (out []netip.Addr) {
	namespace := ""
	switch len(labels) {
	case 1:
	case 2:
		namespace = labels[1]
	default:
		return nil
	}
	for _, n := range v.in(namespace) {
		for _, s := range v.services[key{n, labels[0]}] {
			if slices.Contains(networks, s.GetNetwork()) && serves(s.address) {
				out = append(out, s.address)
			}
		}
	}
	return out
}

// services returns the services and their instances, from which the machine makes its rules for load balancing.
// The instances of a service are the members of its group, or its single workload.
func services(m *agentv1.NetworkNames) (out workload.ServiceView) {
	type of struct {
		network         uint32
		namespace, name string
	}
	endpoints := map[of][]netip.Addr{}
	for _, x := range m.GetMembers() {
		if a, err := netip.ParseAddr(x.GetAddress()); err == nil {
			at := of{x.GetNetwork(), x.GetNamespace(), cmp.Or(x.GetGroup(), x.GetName())}
			endpoints[at] = append(endpoints[at], a)
		}
	}
	for _, s := range m.GetServices() {
		if a, err := netip.ParseAddr(s.GetAddress()); err == nil {
			list := endpoints[of{s.GetNetwork(), s.GetNamespace(), s.GetName()}]
			slices.SortFunc(list, netip.Addr.Compare)
			out.Services = append(out.Services, workload.NetworkService{Address: a, Endpoints: slices.Compact(list)})
		}
	}
	slices.SortFunc(out.Services, func(a, b workload.NetworkService) int { return a.Address.Compare(b.Address) })
	for _, x := range m.GetIngress() {
		if x.GetPort() < 1 || x.GetPort() > 65535 {
			continue
		}
		p := workload.NetworkIngress{IngressPort: workload.IngressPort{Port: uint16(x.GetPort()), UDP: x.GetProtocol() == "udp"}}
		for _, text := range x.GetEndpoints() {
			if a, err := netip.ParseAddrPort(text); err == nil {
				p.Endpoints = append(p.Endpoints, a)
			}
		}
		slices.SortFunc(p.Endpoints, netip.AddrPort.Compare)
		p.Endpoints = slices.Compact(p.Endpoints)
		out.Ingress = append(out.Ingress, p)
	}
	slices.SortFunc(out.Ingress, func(a, b workload.NetworkIngress) int { return a.Compare(b.IngressPort) })
	out.Ingress = slices.CompactFunc(out.Ingress, func(a, b workload.NetworkIngress) bool { return a.IngressPort == b.IngressPort })
	for _, text := range m.GetLost() {
		if p, err := netip.ParsePrefix(text); err == nil {
			out.Lost = append(out.Lost, p)
		}
	}
	return out
}

// addresses returns one A record for each different address of the members.
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

// records returns the SRV records of one port of the members, and the A records of these members.
func records(q dns.Question, list []*agentv1.NetworkMember, service, protocol string) (out result) {
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
				continue // the container and the instance share a second network, so the instance is listed twice
			}
			out.answer = append(out.answer, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Priority: 1, Weight: 1, Port: uint16(p.GetPort()), Target: target})
		}
	}
	if !known {
		out.rcode = dns.RcodeNameError
	}
	return out
}

// pointer answers a reverse query. If no member on the given networks has the address, the machine's
// resolvers must answer (result.foreign).
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
	if s, ok := v.serviceAt[a]; ok && slices.Contains(networks, s.GetNetwork()) {
		out := result{}
		if q.Qtype == dns.TypePTR {
			out.answer = []dns.RR{&dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: s.GetName() + "." + s.GetNamespace() + "."}}
		}
		return out
	}
	return result{foreign: true}
}

// instance returns the full DNS name of one instance: NAME.NAMESPACE with a final dot.
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
