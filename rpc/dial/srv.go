package dial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	queryTimeout = 2 * time.Second
	// A lookup is repeated when the TTL of its answer has passed, but not earlier than minTTL and not later than
	// maxTTL.
	minTTL = time.Second
	maxTTL = 5 * time.Minute
	// resolvConf is the path of the file that names the system's DNS servers.
	resolvConf = "/etc/resolv.conf"
)

// errNoRecord is returned if the DNS servers answer but have no record for any of the names.
var errNoRecord = errors.New("no record")

// answer is the result of a lookup: the addresses in order of preference (RFC 2782).
type answer struct {
	endpoints []Endpoint
	ttl       time.Duration
	srv       bool // true if the addresses come from SRV records, false if from Target.Hosts
}

// lookup queries the SRV records of t, and the addresses of the hosts in them. If there are no SRV records,
// it queries the addresses of t.Hosts. hadSRV is true if an earlier lookup found SRV records; then missing SRV records
// are an error and t.Hosts is not used. lookup does not use net.Resolver, which hides the TTL.
func lookup(ctx context.Context, t Target, hadSRV bool) (answer, error) {
	servers, names, hosts, err := questions(t, resolvConf)
	if err != nil {
		return answer{}, err
	}
	var failed error
	for range max(len(t.DNS), 1) {
		a, err := lookupAt(ctx, t, hadSRV, servers, names, hosts)
		if err == nil || !errors.Is(err, errNoRecord) {
			return a, err
		}
		failed = err
		// The server that answered may be a new replica without data, so query the next server first.
		servers = append(servers[1:len(servers):len(servers)], servers[0])
	}
	return answer{}, failed
}

// lookupAt makes the queries of one lookup to the servers, in the given order.
func lookupAt(ctx context.Context, t Target, hadSRV bool, servers, names, hosts []string) (answer, error) {
	var failed error
	for _, name := range names {
		msg, err := ask(ctx, servers, name, dns.TypeSRV)
		if err != nil {
			failed = err
			continue
		}
		var records []*dns.SRV
		for _, rr := range msg.Answer {
			if srv, ok := rr.(*dns.SRV); ok && srv.Target != "." && srv.Port != 0 {
				records = append(records, srv)
			}
		}
		if len(records) == 0 {
			continue
		}
		return expand(ctx, servers, order(records, rand.IntN), msg.Extra), nil
	}
	if failed == nil || !hadSRV { // some servers do not support SRV records and answer with an error
		if a := byHost(ctx, servers, hosts); len(a.endpoints) > 0 {
			return a, nil
		}
	}
	if failed != nil {
		return answer{}, fmt.Errorf("SRV %s: %w", t.SRV, failed)
	}
	return answer{}, fmt.Errorf("SRV %s: %w at %s", t.SRV, errNoRecord, strings.Join(servers, ", "))
}

// questions returns the DNS servers to query, and the full names to query for SRV records and for addresses.
// system is the path of the file with the system's servers and search domains.
func questions(t Target, system string) (servers, names, hosts []string, err error) {
	conf := &dns.ClientConfig{Ndots: 1}
	servers = t.DNS
	if len(servers) == 0 {
		if conf, err = dns.ClientConfigFromFile(system); err != nil {
			return nil, nil, nil, fmt.Errorf("SRV %s: %w", t.SRV, err)
		}
		for _, s := range conf.Servers {
			servers = append(servers, net.JoinHostPort(s, conf.Port))
		}
		if len(servers) == 0 {
			return nil, nil, nil, fmt.Errorf("SRV %s: %s names no server", t.SRV, system)
		}
	}
	for _, h := range t.Hosts {
		hosts = append(hosts, conf.NameList(h)...)
	}
	prefixes := []string{""}
	if !strings.HasPrefix(t.SRV, "_") {
		service := "_" + cmp.Or(t.Service, DefaultService)
		prefixes = []string{service + "._tcp.", service + ".", ""}
	}
	for _, prefix := range prefixes {
		for _, n := range conf.NameList(t.SRV) {
			names = append(names, prefix+n)
		}
	}
	return servers, names, hosts, nil
}

// ask sends one query to the servers, one after another, until one answers. For a name that does not exist it
// returns no records and no error.
func ask(ctx context.Context, servers []string, name string, qtype uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), qtype)
	q.SetEdns0(1232, false)
	var failed error
	for _, server := range servers {
		msg, err := exchange(ctx, q, server)
		if err == nil && msg.Rcode != dns.RcodeSuccess && msg.Rcode != dns.RcodeNameError {
			err = fmt.Errorf("%s answers %s", server, dns.RcodeToString[msg.Rcode])
		}
		if err == nil {
			return msg, nil
		}
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

func exchange(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	for _, network := range []string{"udp", "tcp"} {
		client := &dns.Client{Net: network, Timeout: queryTimeout, UDPSize: 1232}
		msg, _, err := client.ExchangeContext(ctx, q, server)
		if err != nil {
			return nil, err
		}
		if !msg.Truncated || network == "tcp" {
			return msg, nil
		}
	}
	return nil, errors.New("unreachable code: every case of the loop returns")
}

// order sorts SRV records by priority. Records of equal priority get a random order according to their
// weights (RFC 2782).
func order(records []*dns.SRV, intn func(int) int) []*dns.SRV {
	rest := slices.Clone(records)
	// Sort by target first, so that the random order depends only on intn and not on the order of the answer. Records
	// with weight zero come first, which gives them a small chance (RFC 2782).
	slices.SortFunc(rest, func(a, b *dns.SRV) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(min(a.Weight, 1), min(b.Weight, 1)),
			cmp.Compare(a.Target, b.Target), cmp.Compare(a.Port, b.Port))
	})
	out := make([]*dns.SRV, 0, len(rest))
	for len(rest) > 0 {
		same, total := 0, 0
		for same < len(rest) && rest[same].Priority == rest[0].Priority {
			total += int(rest[same].Weight)
			same++
		}
		draw, i := intn(total+1), 0
		for ; i < same-1; i++ {
			if draw -= int(rest[i].Weight); draw <= 0 {
				break
			}
		}
		out = append(out, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	return out
}

// expand turns SRV records into addresses. It takes them from the additional section of the answer, or else
// queries the same servers. If the queries give no address for a host, it keeps the host name, which the system's
// resolver can look up.
func expand(ctx context.Context, servers []string, records []*dns.SRV, extra []dns.RR) answer {
	a := answer{ttl: maxTTL, srv: true}
	for _, srv := range records {
		a.lower(srv.Hdr.Ttl)
		host := strings.TrimSuffix(srv.Target, ".")
		port := strconv.Itoa(int(srv.Port))
		ips := a.addresses(extra, srv.Target)
		if len(ips) == 0 {
			ips = a.resolve(ctx, servers, srv.Target)
		}
		if len(ips) == 0 {
			a.endpoints = append(a.endpoints, Endpoint{Addr: net.JoinHostPort(host, port), Names: []string{host}})
		}
		if a.add(host, port, ips); len(a.endpoints) == maxAddresses {
			break
		}
	}
	return a
}

// byHost queries the addresses of the names one after another. It returns the addresses of the first name that has an
// address, with the default port.
func byHost(ctx context.Context, servers, names []string) answer {
	for _, name := range names {
		a := answer{ttl: maxTTL}
		a.add(strings.TrimSuffix(name, "."), DefaultPort, a.resolve(ctx, servers, name))
		if len(a.endpoints) > 0 {
			return a
		}
	}
	return answer{}
}

// add appends the addresses of a host, up to maxAddresses in total.
func (a *answer) add(host, port string, ips []string) {
	for _, ip := range ips {
		a.endpoints = append(a.endpoints, Endpoint{Addr: net.JoinHostPort(ip, port), Names: []string{host, ip}})
	}
	a.endpoints = a.endpoints[:min(len(a.endpoints), maxAddresses)]
}

// resolve queries the IPv4 addresses of a name, or the IPv6 addresses if it has no IPv4 address.
func (a *answer) resolve(ctx context.Context, servers []string, name string) (ips []string) {
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if len(ips) > 0 {
			break
		}
		if msg, err := ask(ctx, servers, name, qtype); err == nil {
			ips = a.addresses(msg.Answer, "")
		}
	}
	return ips
}

// addresses returns the addresses of name in the records of an answer. If name is empty, it returns the addresses of
// every record: after a CNAME, the address records have another name than the question.
func (a *answer) addresses(rrs []dns.RR, name string) []string {
	var ips []string
	for _, rr := range rrs {
		if name != "" && !strings.EqualFold(rr.Header().Name, name) {
			continue
		}
		switch rr := rr.(type) {
		case *dns.A:
			ips = append(ips, rr.A.String())
		case *dns.AAAA:
			ips = append(ips, rr.AAAA.String())
		default:
			continue
		}
		a.lower(rr.Header().Ttl)
	}
	return ips
}

func (a *answer) lower(ttl uint32) {
	a.ttl = max(minTTL, min(a.ttl, time.Duration(ttl)*time.Second))
}
