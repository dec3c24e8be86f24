package dnsserver

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults of Config (docs/contract/env.md).
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
	Scheduler time.Duration // TTL of scheduler records; default 5 s, so that agents find another scheduler well before their lease ends
	Agent     time.Duration // default 30 s
	Workload  time.Duration // default 5 s
	Zone      time.Duration // TTL of the SOA and NS records of the zones; default 60 s
	Negative  time.Duration // how long resolvers may cache that a name or record does not exist (RFC 2308); default 5 s
	Short     time.Duration // default 1 s; maximum of all TTLs while a scheduler is dead or suspect, or this replica is partitioned
}

// Config names the zones. The zero Config selects all defaults.
type Config struct {
	Domain       string // setting DOMAIN, default persys.local
	AgentsDomain string // setting AGENTS_DISCOVERY_DOMAIN, default agents.persys.cloud
	Shard        string // setting SCHEDULER_SHARD_KEY, default "default"
	TTLs         TTLs
}

// Hints are observations of this replica about the schedulers that the replicated state does not contain.
// They name replicas by their Raft server ids. Hints can only remove schedulers, lower their priority and
// shorten TTLs; they never add a scheduler. If they would remove every scheduler, none is removed.
type Hints struct {
	Dead        []string // replicas that gossip reports as lost; they are left out of all answers
	Suspect     []string // replicas that stay in the answers, with the lowest priority
	Leader      string   // replica that gets the highest priority; "" means unknown
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

// seconds holds the fields of TTLs in seconds.
type seconds struct{ scheduler, agent, workload, zone, negative, short uint32 }

// plan is made from a valid Config. It contains the domain names to which labels are added to make the names of
// schedulers, nodes and workloads.
type plan struct {
	domain, agentsDomain name
	apexes               []name // the two domains, the longer one first; only one entry if they are equal
	schedulers           name   // persys-scheduler.<Domain>
	service              name   // _persys-scheduler.<Domain>
	serviceTCP           name   // _persys-scheduler._tcp.<Domain>
	agents               name   // <Shard>.<AgentsDomain>
	workloads            name   // <Shard>.workloads.<Domain>
	hostmaster           name
	shard                string
	ttl                  seconds
}

// plan checks c, fills in its defaults and returns the resulting plan. The error names every invalid field.
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
		return nil, fmt.Errorf("AGENTS_DISCOVERY_DOMAIN %s with SCHEDULER_SHARD_KEY %s: the zone has other names below %s", p.agentsDomain, p.shard, p.agents)
	}
	p.hostmaster = under(p.domain, "hostmaster")
	return p, nil
}
