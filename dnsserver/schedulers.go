package dnsserver

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/persys/compute/fsm"
)

// Priorities of schedulers in SRV records. Clients try the lowest value first (RFC 2782).
const (
	priorityLeader  = 10
	priorityOther   = 20
	prioritySuspect = 30
)

// scheduler holds the DNS data of a replica.
type scheduler struct {
	name     name // <replica>.persys-scheduler.<Domain>
	at       endpoint
	target   name // SRV target: name, or the host name that the replica announced
	priority uint16
	serves   bool // whether the replica serves DNS
}

// placeSchedulers makes the records of all schedulers again, which is cheap because there are only a few.
func (b *Builder) placeSchedulers() {
	list := schedulers(b.plan, b.view, b.hints)
	ttl := b.plan.ttl.scheduler
	if len(b.hints.Dead)+len(b.hints.Suspect) > 0 || b.hints.Partitioned {
		ttl = min(ttl, b.plan.ttl.short)
	}
	addrs := map[name][]netip.Addr{}
	all := []netip.Addr{}
	var names []name
	for _, s := range list {
		if s.at.host != "" {
			continue
		}
		if !slices.Contains(names, s.name) {
			names = append(names, s.name)
		}
		addrs[s.name] = appendOne(addrs[s.name], s.at.addr)
		all = appendOne(all, s.at.addr)
	}
	var glue []record
	b.servers = nil
	for _, n := range names {
		one := server{name: n}
		for _, a := range addrs[n] {
			one.glue = append(one.glue, address(n, a, ttl))
		}
		glue = append(glue, one.glue...)
		if slices.ContainsFunc(list, func(s scheduler) bool { return s.name == n && s.serves }) {
			b.servers = append(b.servers, one)
		}
	}
	if len(b.servers) == 0 { // no replica announced an IP address for its DNS server
		one := server{name: b.plan.schedulers}
		for _, a := range all {
			one.glue = append(one.glue, address(one.name, a, ttl))
		}
		b.servers = []server{one}
	}
	for _, n := range b.schedulerNames {
		if !slices.Contains(names, n) {
			b.set(n, nil, false)
		}
	}
	b.schedulerNames = names
	for _, n := range names {
		b.set(n, appendAddressSets(nil, n, ttl, false, addrs[n]), false)
	}
	b.set(b.plan.schedulers, appendAddressSets(nil, b.plan.schedulers, ttl, false, all), false)
	for _, owner := range [...]name{b.plan.service, b.plan.serviceTCP} {
		var srv []record
		for _, s := range list {
			if s.at.port != 0 {
				srv = append(srv, record{
					owner: owner, typ: dns.TypeSRV, ttl: ttl,
					priority: s.priority, weight: srvWeight, port: s.at.port, target: s.target,
				})
			}
		}
		var sets []rrset
		if len(srv) > 0 {
			sets = []rrset{pack(owner, dns.TypeSRV, false, srv, glue)}
		}
		b.set(owner, sets, false)
	}
}

// schedulers returns the replicas of v sorted by priority, without those that h reports as dead. If h reports
// all as dead, it returns all.
func schedulers(p *plan, v fsm.View, h Hints) []scheduler {
	var all, live []scheduler
	v.Replicas(func(r *fsm.Replica) bool {
		at := parseEndpoint(r.GRPCAddr)
		if !at.addr.IsValid() && at.host == "" {
			return true
		}
		s := scheduler{name: under(p.schedulers, replicaLabel(r)), at: at, priority: priorityOther, serves: r.DNSAddr != ""}
		if s.target = at.host; s.target == "" {
			s.target = s.name
		}
		switch {
		case slices.Contains(h.Suspect, r.ID):
			s.priority = prioritySuspect
		case r.ID == h.Leader:
			s.priority = priorityLeader
		}
		all = append(all, s)
		if !slices.Contains(h.Dead, r.ID) {
			live = append(live, s)
		}
		return true
	})
	if len(live) == 0 {
		live = all
	}
	slices.SortStableFunc(live, func(a, b scheduler) int { return int(a.priority) - int(b.priority) })
	return live
}

// replicaLabel returns the DNS label of a replica. It comes from the replica's name, which stays the same
// when the Raft id changes, or else from the id.
func replicaLabel(r *fsm.Replica) string {
	if r.Name == "" {
		return Label(r.ID)
	}
	return Label(r.Name)
}
