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

// openDNS opens the sockets of the DNS server. If the DNS server is turned off, it does nothing.
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
		rate = -1 // 0 in the settings means no limit, which the DNS server writes as -1
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

// hints returns, for the DNS server, which schedulers are probably dead according to gossip and Raft. The
// list of schedulers itself comes only from the state.
func (r *Replica) hints() dnsserver.Hints { return hintsFrom(r.node.Status()) }

// hintsFrom derives the hints for DNS from the status of this replica. A replica that has no leader and hears at most
// half of the voters is most likely cut off itself. Its DNS server then leaves no replica out. It puts itself, and the
// replicas that it still hears, at the end of the answer, because they are cut off from the majority.
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

// newCoreDNSWatch returns the watch for the CoreDNS servers in the settings, or nil if there are none.
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

const maxEventMessage = 1024 // maximum length of an event's message in bytes

// truncate cuts s to at most limit bytes, so that the result is valid UTF-8.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}

// zones returns the configuration of the scheduler's DNS server.
func (c *Config) zones() dnsserver.Config {
	return dnsserver.Config{Domain: c.Domain, AgentsDomain: c.AgentsDomain, Shard: c.Shard}
}
