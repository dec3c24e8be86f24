package dnsserver

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults (docs/contract/env.md).
const (
	DefaultAddr         = ":8053"
	DefaultDomain       = "persys.local"
	DefaultAgentsDomain = "agents.persys.cloud"
	DefaultShard        = "default"
)

// maxDomain leaves space for the longest names below a domain: service, protocol, id, shard and
// "workloads". RFC 1035 allows 255 bytes in total.
const maxDomain = 96

// TTLs are the times for which resolvers may cache answers, in whole seconds from 1 s to 24 h. A
// zero field takes its default.
type TTLs struct {
	Scheduler time.Duration // 5 s: agents find another scheduler well before their lease ends
	Agent     time.Duration // 30 s
	Workload  time.Duration // 5 s
	Zone      time.Duration // 60 s: SOA and NS
	Negative  time.Duration // 5 s: "no such name" and "no such record" (RFC 2308)
	Short     time.Duration // 1 s: used while a scheduler is dead or suspect, or the replica is partitioned
}

// Config names the zones. The zero Config takes every default.
type Config struct {
	Domain       string // DOMAIN, persys.local
	AgentsDomain string // AGENTS_DISCOVERY_DOMAIN, agents.persys.cloud
	Shard        string // SCHEDULER_SHARD_KEY, default
	TTLs         TTLs
}

// Hints are observations of the replica that are not in the state. They name replicas by their Raft
// server ids. Hints can only remove schedulers, lower their priority and shorten TTLs; they never
// add a scheduler. If they would remove every scheduler, none is removed.
type Hints struct {
	Dead        []string // lost by gossip: in no answer
	Suspect     []string // in the answers, with the lowest priority
	Leader      string   // gets the highest priority; "" = unknown
	Partitioned bool     // this replica has no leader: every TTL is at most Short
}

// Equal reports whether h and o are the same; the order of their lists does not matter.
func (h Hints) Equal(o Hints) bool {
	same := func(a, b []string) bool {
		a, b = slices.Clone(a), slices.Clone(b)
		slices.Sort(a)
		slices.Sort(b)
		return slices.Equal(a, b)
	}
	return h.Leader == o.Leader && h.Partitioned == o.Partitioned && same(h.Dead, o.Dead) && same(h.Suspect, o.Suspect)
}

// seconds holds the TTLs in seconds.
type seconds struct{ scheduler, agent, workload, zone, negative, short uint32 }

// plan is a checked Config with the names that all other names are built from.
type plan struct {
	domain, agentsDomain name
	apexes               []name // the two domains, or one if they are the same; longest first
	schedulers           name   // persys-scheduler.D
	service              name   // _persys-scheduler.D
	serviceTCP           name   // _persys-scheduler._tcp.D
	agents               name   // S.AD
	workloads            name   // S.workloads.D
	hostmaster           name
	shard                string
	ttl                  seconds
}

// plan checks c and fills in defaults. The error names every invalid field.
func (c Config) plan() (*plan, error) {
	p := &plan{}
	var errs []error
	domain := func(field, value, def string) name {
		if value == "" {
			value = def
		}
		n, err := parseName(value)
		if err == nil && len(n) > maxDomain {
			err = fmt.Errorf("%q takes %d bytes, limit %d", value, len(n), maxDomain)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
		return n
	}
	ttl := func(field string, d, def time.Duration) uint32 {
		if d == 0 {
			d = def
		}
		if d < time.Second || d > 24*time.Hour || d%time.Second != 0 {
			errs = append(errs, fmt.Errorf("TTLs.%s: %v is not in whole seconds from 1s to 24h", field, d))
		}
		return uint32(d / time.Second)
	}
	p.domain = domain("DOMAIN", c.Domain, DefaultDomain)
	p.agentsDomain = domain("AGENTS_DISCOVERY_DOMAIN", c.AgentsDomain, DefaultAgentsDomain)
	p.shard = Label(c.Shard)
	if c.Shard == "" {
		p.shard = DefaultShard
	}
	t := c.TTLs
	p.ttl = seconds{
		scheduler: ttl("Scheduler", t.Scheduler, 5*time.Second),
		agent:     ttl("Agent", t.Agent, 30*time.Second),
		workload:  ttl("Workload", t.Workload, 5*time.Second),
		zone:      ttl("Zone", t.Zone, time.Minute),
		negative:  ttl("Negative", t.Negative, 5*time.Second),
		short:     ttl("Short", t.Short, time.Second),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.apexes = []name{p.domain, p.agentsDomain}
	if p.domain == p.agentsDomain {
		p.apexes = p.apexes[:1]
	}
	slices.SortFunc(p.apexes, func(a, b name) int { return len(b) - len(a) })
	p.schedulers = under(p.domain, "persys-scheduler")
	p.service = under(p.domain, "_persys-scheduler")
	p.serviceTCP = under(p.domain, "_persys-scheduler", "_tcp")
	p.agents = under(p.agentsDomain, p.shard)
	p.workloads = under(p.domain, p.shard, "workloads")
	if p.agents == p.workloads || p.agents == p.schedulers {
		return nil, fmt.Errorf("AGENTS_DISCOVERY_DOMAIN %s with SCHEDULER_SHARD_KEY %s: %s is taken by other names", p.agentsDomain, p.shard, p.agents)
	}
	p.hostmaster = under(p.domain, "hostmaster")
	return p, nil
}
