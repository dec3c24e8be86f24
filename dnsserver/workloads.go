package dnsserver

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/persys/compute/fsm"
)

// instance holds the DNS data of a running workload.
type instance struct {
	id     string
	labels []string     // DNS labels of the workload and of its group
	addrs  []netip.Addr // addresses of the workload, or of its node if the workload has none
	ports  []published
	target name // SRV target: the DNS name of its node
	node   netip.Addr
}

// published is a port that the node forwards to an instance.
type published struct {
	service string // first label of the SRV record's name: _<container port> or _<port name>
	proto   string // second label of the SRV record's name: _tcp, _udp or _sctp
	port    uint16 // host port on the node
}

// service is a DNS name shared by instances: the name of a workload or of a group.
type service struct {
	members []*instance // instances with this name, sorted by workload id
	ports   []port      // ports that have records in the zone
}

type port struct{ service, proto string }

// serving reports whether the zone contains records for w: w is running and, if it has health checks,
// passes them. A template, such as a cron or a system workload, has no instance of its own and no records.
func serving(w *fsm.Workload) bool {
	return !w.IsTemplate() && w.Status == fsm.StatusRunning && (w.Actual.Health == "" || w.Actual.Health == fsm.Healthy)
}

// placeInstance reads a workload from the state again, and updates the services to which it belongs.
func (b *Builder) placeInstance(id string) {
	old := b.instances[id]
	var fresh *instance
	if w, ok := b.view.Workload(id); ok && serving(w) {
		fresh = b.instanceOf(w)
	}
	switch {
	case old == nil && fresh == nil, old != nil && fresh != nil && old.equal(fresh):
		return
	}
	if old != nil {
		delete(b.instances, id)
		for _, l := range old.labels {
			s := b.services[l]
			if i, ok := s.find(id); ok {
				s.members = slices.Delete(s.members, i, i+1)
			}
			b.dirty[l] = struct{}{}
		}
	}
	if fresh != nil {
		b.instances[id] = fresh
		for _, l := range fresh.labels {
			s := b.services[l]
			if s == nil {
				s = &service{}
				b.services[l] = s
			}
			i, _ := s.find(id)
			s.members = slices.Insert(s.members, i, fresh)
			b.dirty[l] = struct{}{}
		}
	}
}

func (s *service) find(id string) (int, bool) {
	return slices.BinarySearchFunc(s.members, id, func(m *instance, id string) int { return strings.Compare(m.id, id) })
}

func (b *Builder) instanceOf(w *fsm.Workload) *instance {
	in := &instance{id: w.ID, labels: []string{Label(w.ID)}}
	if g := w.Demand.Group; g != "" {
		if l := Label(g); l != in.labels[0] {
			in.labels = append(in.labels, l)
		}
	}
	for _, s := range w.Actual.Addresses {
		if a, err := netip.ParseAddr(s); err == nil {
			in.addrs = appendOne(in.addrs, usable(a))
		}
	}
	n := b.nodes[w.Node]
	if n == nil {
		return in
	}
	in.target, in.node = n.target(b.plan), n.at.addr
	if len(in.addrs) == 0 {
		in.addrs = appendOne(in.addrs, in.node)
	}
	if in.target == "" {
		return in
	}
	for _, p := range w.Actual.Ports {
		proto := strings.ToLower(p.Protocol)
		if proto == "" {
			proto = "tcp"
		}
		if p.HostPort == 0 || !isLabel(proto) || len(proto) > 8 || p.Loopback() {
			continue
		}
		services := []string{strconv.Itoa(int(p.ContainerPort))}
		for _, n := range w.Demand.PortNames {
			if n.Names(p) && isLabel(n.Name) {
				services = append(services, n.Name)
			}
		}
		for _, s := range services {
			if x := (published{"_" + s, "_" + proto, p.HostPort}); !slices.Contains(in.ports, x) {
				in.ports = append(in.ports, x)
			}
		}
	}
	return in
}

func (in *instance) equal(o *instance) bool {
	return in.target == o.target && in.node == o.node && slices.Equal(in.labels, o.labels) &&
		slices.Equal(in.addrs, o.addrs) && slices.Equal(in.ports, o.ports)
}

// renderServices makes the records of every service whose members changed.
func (b *Builder) renderServices() {
	for l := range b.dirty {
		b.renderService(l)
	}
	clear(b.dirty)
}

// renderService makes the records of one service. The records contain at most the first maxPerAnswer
// instances, because more would not fit into one answer.
func (b *Builder) renderService(label string) {
	s := b.services[label]
	owner := under(b.plan.workloads, label)
	ttl := b.plan.ttl.workload
	members := s.members[:min(len(s.members), maxPerAnswer)]
	var addrs []netip.Addr
	var ports []port
	seen := map[netip.Addr]struct{}{}
	for _, m := range members {
		for _, a := range m.addrs {
			if _, ok := seen[a]; !ok {
				seen[a] = struct{}{}
				addrs = append(addrs, a)
			}
		}
		for _, p := range m.ports {
			if x := (port{p.service, p.proto}); !slices.Contains(ports, x) {
				ports = append(ports, x)
			}
		}
	}
	b.set(owner, appendAddressSets(nil, owner, ttl, true, addrs), false)
	for _, p := range s.ports {
		if !slices.Contains(ports, p) {
			b.set(under(owner, p.service, p.proto), nil, false)
		}
	}
	for _, p := range ports {
		n := under(owner, p.service, p.proto)
		b.set(n, []rrset{b.packService(n, p, members)}, false)
	}
	if s.ports = ports; len(s.members) == 0 {
		delete(b.services, label)
	}
}

// packService returns the set of SRV records for one published port of a service. The addresses of the nodes
// are additional records.
func (b *Builder) packService(owner name, p port, members []*instance) rrset {
	var srv, glue []record
	targets := map[name]struct{}{}
	seen := map[record]struct{}{}
	for _, m := range members {
		for _, x := range m.ports {
			r := record{owner: owner, typ: dns.TypeSRV, ttl: b.plan.ttl.workload, weight: srvWeight, port: x.port, target: m.target}
			if x.service != p.service || x.proto != p.proto || !absent(seen, r) {
				continue
			}
			srv = append(srv, r)
			if m.node.IsValid() && absent(targets, m.target) {
				glue = append(glue, address(m.target, m.node, b.plan.ttl.agent))
			}
		}
	}
	return pack(owner, dns.TypeSRV, true, srv, glue)
}

// absent adds k to the set m. It returns true if k was not in m before.
func absent[K comparable](m map[K]struct{}, k K) bool {
	if _, ok := m[k]; ok {
		return false
	}
	m[k] = struct{}{}
	return true
}
