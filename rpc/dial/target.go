package dial

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Default values for finding the schedulers.
const (
	DefaultPort    = "8085" // default gRPC port of schedulers
	DefaultService = "persys-scheduler"
)

// maxAddresses is the maximum number of addresses in a list or an SRV answer.
const maxAddresses = 64

// Target says where to find the schedulers: a fixed list of addresses, or an SRV name.
type Target struct {
	// Addrs are the addresses of schedulers, host:port, in order of preference.
	Addrs []string
	// SRV is the SRV name to query, without a trailing dot; empty if the target is a list.
	SRV string
	// DNS are the DNS servers for the SRV queries, host:port; empty for the servers of the system.
	DNS []string
	// Service is the service label before the SRV name, without the leading _; empty for DefaultService.
	Service string
	// Hosts are host names that are used if there are no SRV records. The schedulers are then at the addresses of the
	// first host that has an address, with DefaultPort.
	Hosts []string
}

// ParseTarget parses a list "host[:port],…" (default port 8085) or an SRV name
// "srv://name[?dns=host[:port],…][&service=…][&hosts=name,…]". The gRPC form "persys:///name[?…]" means the
// same as srv. An SRV name without a leading "_" is queried as _<service>._tcp.<name>, _<service>.<name> and
// <name>, until one has records.
func ParseTarget(s string) (Target, error) {
	rest, ok := strings.CutPrefix(s, "srv://")
	if !ok {
		rest, ok = strings.CutPrefix(s, Scheme+":///")
	}
	if !ok {
		addrs, err := parseAddrs(strings.Split(s, ","), DefaultPort)
		if err != nil {
			return Target{}, fmt.Errorf("scheduler address %q: %w", s, err)
		}
		return Target{Addrs: addrs}, nil
	}
	name, query, _ := strings.Cut(rest, "?")
	t := Target{SRV: strings.TrimSuffix(name, ".")}
	if !isName(t.SRV) {
		return Target{}, fmt.Errorf("scheduler discovery %q: %q is not a DNS name", s, name)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Target{}, fmt.Errorf("scheduler discovery %q: %w", s, err)
	}
	for k, v := range values {
		text := strings.Join(v, ",")
		switch k {
		case "dns":
			t.DNS, err = parseAddrs(strings.Split(text, ","), "53")
		case "service":
			t.Service = strings.TrimPrefix(text, "_")
			err = isNames(t.Service)
		case "hosts":
			t.Hosts = strings.Split(text, ",")
			err = isNames(t.Hosts...)
		default:
			return Target{}, fmt.Errorf("scheduler discovery %q: unknown option %q, known are dns, service and hosts", s, k)
		}
		if err != nil {
			return Target{}, fmt.Errorf("scheduler discovery %q: %s: %w", s, k, err)
		}
	}
	return t, nil
}

func isName(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsAny(s, "/:@, \t")
}

func isNames(list ...string) error {
	if len(list) > maxAddresses {
		return fmt.Errorf("%d names, limit %d", len(list), maxAddresses)
	}
	for _, s := range list {
		if !isName(s) {
			return fmt.Errorf("%q is not a DNS name", s)
		}
	}
	return nil
}

func parseAddrs(list []string, port string) ([]string, error) {
	var out []string
	for _, s := range list {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		addr, err := parseAddr(s, port)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no address given")
	}
	if len(out) > maxAddresses {
		return nil, fmt.Errorf("%d addresses, limit %d", len(out), maxAddresses)
	}
	return out, nil
}

func parseAddr(s, defaultPort string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		// s has no port: it is a name, an IPv4 address, or an IPv6 address with or without brackets.
		host, port = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", fmt.Errorf("%q is not host:port", s)
		}
	}
	if host == "" || strings.ContainsAny(host, "/?#@ \t[]") {
		return "", fmt.Errorf("%q: bad host %q", s, host)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q: port %q is not in 1..65535", s, port)
	}
	return net.JoinHostPort(host, port), nil
}

// Endpoint is the address of a scheduler and its names, one of which its certificate must contain.
type Endpoint struct {
	Addr  string   `json:"addr"` // address as host:port
	Names []string `json:"names"`
}

// Equal reports whether two endpoints have the same address and the same names.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Addr == o.Addr && slices.Equal(e.Names, o.Names)
}

func (e Endpoint) check() error {
	if addr, err := parseAddr(e.Addr, ""); err != nil || addr != e.Addr {
		return fmt.Errorf("endpoint %q must be host:port", e.Addr)
	}
	if len(e.Names) == 0 {
		return fmt.Errorf("endpoint %q needs a name that its certificate must contain", e.Addr)
	}
	return nil
}

func endpointOf(addr string) Endpoint {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return Endpoint{Addr: addr, Names: []string{host}}
}
