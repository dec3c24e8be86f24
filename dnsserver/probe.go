package dnsserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/persys/compute/fsm"
)

// Probe queries another DNS server ("host:port") over UDP for the SRV records of the schedulers. It returns
// an error if the server does not answer within ctx, answers with an error, or names none of the replicas in
// v. The answer may otherwise differ from the zone of this package: CoreDNS reads its records from etcd, and
// they are made without Hints.
func (c Config) Probe(ctx context.Context, server string, v fsm.View) error {
	p, err := c.plan()
	if err != nil {
		return err
	}
	q := new(dns.Msg).SetQuestion(p.serviceTCP.String(), dns.TypeSRV)
	q.SetEdns0(maxUDP, false)
	m, _, err := new(dns.Client).ExchangeContext(ctx, q, server)
	switch {
	case err != nil:
		return fmt.Errorf("it does not answer: %w", err)
	case m.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("it answers %s for %s", dns.RcodeToString[m.Rcode], p.serviceTCP)
	}
	var named []string
	for _, rr := range m.Answer {
		srv, ok := rr.(*dns.SRV)
		if !ok {
			continue
		}
		at := []string{strings.TrimSuffix(strings.ToLower(srv.Target), ".")}
		for _, extra := range m.Extra {
			if !strings.EqualFold(extra.Header().Name, srv.Target) {
				continue
			}
			switch a := extra.(type) {
			case *dns.A:
				at = append(at, a.A.String())
			case *dns.AAAA:
				at = append(at, a.AAAA.String())
			}
		}
		for _, host := range at {
			named = append(named, fmt.Sprintf("%s:%d", host, srv.Port))
		}
	}
	if len(named) == 0 {
		return fmt.Errorf("it knows no scheduler at %s", p.serviceTCP)
	}
	ours, known := false, false
	v.Replicas(func(r *fsm.Replica) bool {
		e := parseEndpoint(r.GRPCAddr)
		host := strings.TrimSuffix(e.host.String(), ".")
		if e.host == "" {
			host = e.addr.String()
		}
		if e.port == 0 || e.host == "" && e.addr == (netip.Addr{}) {
			return true
		}
		known = true
		ours = slices.Contains(named, fmt.Sprintf("%s:%d", host, e.port))
		return !ours
	})
	if known && !ours {
		return fmt.Errorf("the DNS server at %s lists only schedulers of another cluster: %s; clusters that share a CoreDNS need different DOMAINs or addresses", p.serviceTCP, strings.Join(named, ", "))
	}
	return nil
}
