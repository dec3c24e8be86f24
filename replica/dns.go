package replica

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/cluster"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/replica/coredns"
)

// openDNS opens the sockets of the DNS server, unless DNS is off.
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
		rate = -1 // no limit
	}
	var err error
	r.dns, err = dnsserver.New(
		r.cfg.zones(),
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

// hints are the suspicions of gossip and Raft. Which schedulers exist comes from the state alone.
func (r *Replica) hints() dnsserver.Hints { return hintsFrom(r.node.Status()) }

// hintsFrom derives hints for DNS from the status of this replica. A replica without a leader that hears at
// most half of the voters is most likely cut off itself. Then it does not report the others as dead, and
// lists itself and the replicas that it still hears last.
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

// newCoreDNSWatch returns nil if no CoreDNS server is to be watched.
func newCoreDNSWatch(r *Replica) *coredns.Watch {
	if len(r.cfg.CoreDNS) == 0 || r.cfg.Shadow {
		return nil
	}
	zones := r.cfg.zones()
	view := func() fsm.View { return r.node.Store().View() }
	return &coredns.Watch{
		Servers: r.cfg.CoreDNS, View: view, Log: r.log,
		Probe: func(ctx context.Context, server string) error { return zones.Probe(ctx, server, view()) },
		Record: func(ctx context.Context, eventType, server, reason string) error {
			return r.commit(ctx, &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
				Type: eventType, Message: truncate(server+": "+reason, maxEventMessage), Details: []*commandv1.Label{{Key: "server", Value: server}},
			}}})
		},
	}
}

const maxEventMessage = 1024 // bytes

// truncate cuts s to at most limit bytes of valid UTF-8.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}

// zones are the domains that this cluster's DNS serves.
func (c *Config) zones() dnsserver.Config {
	return dnsserver.Config{Domain: c.Domain, AgentsDomain: c.AgentsDomain, Shard: c.Shard}
}
