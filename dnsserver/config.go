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

// maxDomain leaves room for the longest names below a domain: service, protocol,
// id, shard and "workloads" (RFC 1035 allows 255 bytes in all).
const maxDomain = 96

// TTLs say how long resolvers may keep answers; whole seconds, from 1 s to a
// day. A zero field takes its default.
type TTLs struct {
	Scheduler time.Duration // 5 s: agents look for another scheduler well within a lease
	Agent     time.Duration // 30 s
	Workload  time.Duration // 5 s
	Zone      time.Duration // 60 s: SOA and NS
	Negative  time.Duration // 5 s: "no such name" and "no such record" (RFC 2308)
	Short     time.Duration // 1 s: while hints say that the picture may be old
}

// Config says what the zones are. The zero Config takes every default.
type Config struct {
	Domain       string // DOMAIN, persys.local
	AgentsDomain string // AGENTS_DISCOVERY_DOMAIN, agents.persys.cloud
	Shard        string // SCHEDULER_SHARD_KEY, default
	TTLs         TTLs
}

// Hints is what a replica suspects and the state does not say. Replicas are named
// by their Raft server ids. Hints only take schedulers away, put them behind
// others and shorten TTLs; they never add one, and if they would leave none, all
// stay.
type Hints struct {
	Dead        []string // gossip lost them: not in any answer
	Suspect     []string // answer, but are better not asked first
	Leader      string   // gets the better priority; "" = not known
	Partitioned bool     // this replica hears of no leader: every TTL becomes Short
}

// Equal reports whether both say the same, in whatever order.
func (h Hints) Equal(o Hints) bool {
	same := func(a, b []string) bool {
		a, b = slices.Clone(a), slices.Clone(b)
		slices.Sort(a)
		slices.Sort(b)
		return slices.Equal(a, b)
	}
	return h.Leader == o.Leader && h.Partitioned == o.Partitioned && same(h.Dead, o.Dead) && same(h.Suspect, o.Suspect)
}

// seconds of a TTL.
type seconds struct{ scheduler, agent, workload, zone, negative, short uint32 }

// plan is a checked Config: the names that all others are made of.
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

// plan checks c and fills in defaults. The error names every bad field.
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
