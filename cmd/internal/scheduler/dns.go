package scheduler

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/dnsserver"
)

// openDNS opens the sockets of the embedded DNS server, unless it is off.
func (r *Replica) openDNS() error {
	if r.cfg.Shadow {
		r.log.Warn("SCHEDULER_SHADOW is true: this scheduler applies workloads, and answers and publishes no DNS")
		return nil
	}
	if r.cfg.DNSAddr == "none" {
		return nil
	}
	upstream := slices.DeleteFunc(slices.Clone(r.cfg.DNSUpstream), func(s string) bool { return strings.TrimSpace(s) == "" })
	rate := r.cfg.DNSRate
	if rate == 0 {
		rate = -1 // nobody is limited
	}
	var err error
	r.dns, err = dnsserver.New(
		dnsserver.Config{Domain: r.cfg.Domain, AgentsDomain: r.cfg.AgentsDomain, Shard: r.cfg.Shard},
		dnsserver.Options{Addr: r.cfg.DNSAddr, Upstream: upstream, Rate: rate, Registerer: r.registry, Log: r.log})
	if err != nil {
		return fmt.Errorf("SCHEDULER_DNS_ADDR %q: %w", r.cfg.DNSAddr, err)
	}
	return nil
}

func (r *Replica) dnsAdvertise() string {
	if r.dns == nil {
		return ""
	}
	return r.cfg.advertise(net.UDPAddrFromAddrPort(r.dns.Addr()))
}

// hints is what gossip and Raft suspect; the state alone says which schedulers there are.
func (r *Replica) hints() dnsserver.Hints { return hintsFrom(r.node.Status()) }

// hintsFrom reads a replica's picture of the cluster. A replica that hears of no
// leader and answers for less than half of the voters is most likely the one that
// is cut off: it does not take the others for dead, and names itself, and whoever
// is cut off with it, last.
func hintsFrom(st cluster.Status) dnsserver.Hints {
	h := dnsserver.Hints{Leader: st.Leader.ID, Partitioned: st.Leader.ID == ""}
	voters, heard := 0, 0
	for _, p := range st.Peers {
		if p.Role != cluster.RoleVoter && p.Role != cluster.RoleLeader {
			continue
		}
		voters++
		if p.Health == "alive" {
			heard++
		}
	}
	cutOff := h.Partitioned && 2*heard <= voters
	for _, p := range st.Peers {
		switch {
		case cutOff && p.Health == "alive":
			h.Suspect = append(h.Suspect, p.ID)
		case cutOff, p.Self:
		case p.Health == "dead":
			h.Dead = append(h.Dead, p.ID)
		case p.Health != "alive", p.Role == cluster.RoleAbsent:
			h.Suspect = append(h.Suspect, p.ID)
		}
	}
	return h
}
