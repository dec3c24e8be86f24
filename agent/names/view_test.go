package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

func member(network uint32, namespace, name, group, address string, ports ...*agentv1.MemberPort) *agentv1.NetworkMember {
	return &agentv1.NetworkMember{Network: network, Namespace: namespace, Name: name, Group: group, Address: address, Ports: ports}
}

// sample returns the names of a group db and of one other workload. The group has three instances on network
// 1; one of them is not ready, and one is also on network 2. The other workload is in another namespace, on
// network 3.
func sample() *agentv1.NetworkNames {
	sql := &agentv1.MemberPort{Name: "sql", Protocol: "tcp", Port: 5432}
	return &agentv1.NetworkNames{
		Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1}, Index: 9, Digest: 7,
		Namespaces: []string{"default", "team"},
		Members: []*agentv1.NetworkMember{
			member(1, "default", "db-0", "db", "10.216.0.2", sql), member(1, "default", "db-1", "db", "10.216.0.66", sql),
			member(1, "default", "db-2", "db", "", sql), member(1, "default", "late", "", ""),
			member(2, "default", "db-0", "db", "10.216.16.2", sql), member(3, "team", "alien", "", "10.216.32.2"),
			member(4, "default", "web-0", "web", "10.216.48.2", sql), member(4, "default", "web-1", "web", "10.216.48.66"),
			member(4, "default", "one", "", ""), member(4, "default", "soon", "", "10.216.48.3"),
			member(5, "default", "web-1", "web", "10.216.64.2"), member(5, "default", "web-2", "", "10.216.64.3"),
		},
		Services: []*agentv1.NetworkService{
			{Network: 4, Namespace: "default", Name: "one", Address: "10.216.15.194"}, {Network: 4, Namespace: "default", Name: "soon", Address: "10.216.15.199"},
			{Network: 4, Namespace: "default", Name: "web", Address: "10.216.15.193"}, {Network: 5, Namespace: "default", Name: "web", Address: "10.216.31.193"},
		},
		Lost: []string{"10.216.48.64/26"},
	}
}

// TestAnswer checks the records and the response code that containers on different networks get for different
// questions.
func TestAnswer(t *testing.T) {
	v := newView(sample())
	const foreign, foreignHere = "foreign", "foreign, of a namespace"
	for _, c := range []struct {
		name     string
		kind     uint16
		networks []uint32
		want     []string // the data of the records, sorted
		rcode    int
		other    string // foreign, foreignHere, or "" if the resolver answers by itself
	}{
		{"db.", dns.TypeA, []uint32{1}, []string{"10.216.0.2", "10.216.0.66"}, 0, ""},
		{"DB.Default.", dns.TypeA, []uint32{1}, []string{"10.216.0.2", "10.216.0.66"}, 0, ""},
		{"tasks.db.", dns.TypeA, []uint32{1}, []string{"10.216.0.2", "10.216.0.66"}, 0, ""},
		{"tasks.db.default.", dns.TypeA, []uint32{1}, []string{"10.216.0.2", "10.216.0.66"}, 0, ""},
		{"db-1.", dns.TypeA, []uint32{1}, []string{"10.216.0.66"}, 0, ""},
		{"db.", dns.TypeA, []uint32{2}, []string{"10.216.16.2"}, 0, ""},
		{"db.", dns.TypeA, []uint32{1, 2}, []string{"10.216.0.2", "10.216.0.66", "10.216.16.2"}, 0, ""},
		{"db.", dns.TypeAAAA, []uint32{1}, nil, 0, ""},
		{"late.", dns.TypeA, []uint32{1}, nil, 0, ""},
		{"late.default.", dns.TypeA, []uint32{1}, nil, 0, ""},
		{"none.", dns.TypeA, []uint32{1}, nil, dns.RcodeNameError, ""},
		{"alien.", dns.TypeA, []uint32{1, 2}, nil, dns.RcodeNameError, ""},
		{"alien.team.", dns.TypeA, []uint32{1, 2}, nil, 0, foreignHere},
		{"alien.team.", dns.TypeA, []uint32{3}, []string{"10.216.32.2"}, 0, ""},
		{"db.", dns.TypeA, []uint32{3}, nil, dns.RcodeNameError, ""},
		{"db.default.", dns.TypeA, []uint32{3}, nil, 0, foreignHere},
		{"db.", dns.TypeA, nil, nil, dns.RcodeNameError, ""},
		{"example.org.", dns.TypeA, []uint32{1}, nil, 0, foreign},
		{".", dns.TypeNS, []uint32{1}, nil, 0, foreign},
		{"_sql._tcp.db.", dns.TypeSRV, []uint32{1}, []string{"1 1 5432 db-0.default.", "1 1 5432 db-1.default.", "extra db-0.default. 10.216.0.2", "extra db-1.default. 10.216.0.66"}, 0, ""},
		{"_sql._tcp.db.default.", dns.TypeSRV, []uint32{2}, []string{"1 1 5432 db-0.default.", "extra db-0.default. 10.216.16.2"}, 0, ""},
		{"_sql._tcp.db-0.", dns.TypeSRV, []uint32{1, 2}, []string{"1 1 5432 db-0.default.", "extra db-0.default. 10.216.0.2", "extra db-0.default. 10.216.16.2"}, 0, ""},
		{"_sql._udp.db.", dns.TypeSRV, []uint32{1}, nil, dns.RcodeNameError, ""},
		{"_sql._tcp.db.", dns.TypeA, []uint32{1}, nil, 0, ""},
		{"web.", dns.TypeA, []uint32{4}, []string{"10.216.15.193"}, 0, ""},
		{"web.default.", dns.TypeA, []uint32{4, 5}, []string{"10.216.15.193", "10.216.31.193"}, 0, ""},
		{"web.", dns.TypeAAAA, []uint32{4}, nil, 0, ""},
		{"tasks.web.", dns.TypeA, []uint32{4}, []string{"10.216.48.2", "10.216.48.66"}, 0, ""},
		{"web-0.", dns.TypeA, []uint32{4}, []string{"10.216.48.2"}, 0, ""},
		{"web.", dns.TypeA, []uint32{1}, nil, dns.RcodeNameError, ""},
		{"one.", dns.TypeA, []uint32{4}, []string{"10.216.15.194"}, 0, ""},
		{"soon.", dns.TypeA, []uint32{4}, []string{"10.216.48.3"}, 0, ""}, // containers cannot reach the service at its own address yet
		{"_sql._tcp.web.", dns.TypeSRV, []uint32{4}, []string{"1 1 5432 web-0.default.", "extra web-0.default. 10.216.48.2"}, 0, ""},
		{"193.15.216.10.in-addr.arpa.", dns.TypePTR, []uint32{4}, []string{"web.default."}, 0, ""},
		{"193.15.216.10.in-addr.arpa.", dns.TypePTR, []uint32{5}, nil, 0, foreign},
		{"2.0.216.10.in-addr.arpa.", dns.TypePTR, []uint32{1}, []string{"db-0.default."}, 0, ""},
		{"2.0.216.10.in-addr.arpa.", dns.TypePTR, []uint32{2}, nil, 0, foreign},
	} {
		got := v.answer(dns.Question{Name: c.name, Qtype: c.kind, Qclass: dns.ClassINET}, c.networks, func(a netip.Addr) bool { return a != netip.MustParseAddr("10.216.15.199") })
		var data []string
		for _, rr := range got.answer {
			if h := rr.Header(); h.Ttl > 2 || h.Name != c.name {
				t.Errorf("%s: the record %s in the answer must have the name of the question, and a TTL of at most 2 s", c.name, rr)
			}
			data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		for _, rr := range got.extra {
			data = append(data, "extra "+rr.Header().Name+" "+strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		slices.Sort(data)
		other := ""
		switch {
		case got.foreign && got.ours:
			other = foreignHere
		case got.foreign:
			other = foreign
		}
		if !slices.Equal(data, c.want) || got.rcode != c.rcode || other != c.other {
			t.Errorf("a query %s %s of a container on the networks %v has the records %q, the code %d and %q; want %q, code %d and %q", c.name, dns.TypeToString[c.kind], c.networks, data, got.rcode, other, c.want, c.rcode, c.other)
		}
	}
}

// TestServices: the machine gets each service, even one without instances, with its instances on the same network,
// sorted by address. It gets the ports in ingress mode sorted by port and protocol.
func TestServices(t *testing.T) {
	names := sample()
	names.Ingress = []*agentv1.NetworkIngress{
		{Network: 4, Port: 80, Protocol: "udp"}, {Network: 4, Port: 80, Protocol: "tcp", Endpoints: []string{"10.216.48.66:8080", "10.216.48.2:80"}},
		{Network: 4, Port: 22, Protocol: "tcp"}, {Network: 4, Port: 70000, Protocol: "tcp"},
	}
	view := services(names)
	ports := ""
	for _, p := range view.Ingress {
		ports += fmt.Sprint(" ", p.IngressPort, p.Endpoints)
	}
	view.Ingress = nil
	got := fmt.Sprint(view, ports)
	want := "{[{10.216.15.193 [10.216.48.2 10.216.48.66]} {10.216.15.194 []} {10.216.15.199 [10.216.48.3]} {10.216.31.193 [10.216.64.2]}] [10.216.48.64/26] []} 22/tcp [] 80/tcp [10.216.48.2:80 10.216.48.66:8080] 80/udp []"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestLookup: Lookup returns the addresses that a container on the networks gets for a name, or a text that
// says why there are none.
func TestLookup(t *testing.T) {
	r := New(&machine{}, "", nil)
	if list, problem := r.Lookup("db", []uint32{1}); len(list) != 0 || !strings.Contains(problem, "no names yet") {
		t.Errorf("before the first names have arrived, Lookup returned %v and the problem %q; want only a problem", list, problem)
	}
	r.view.Store(newView(sample()))
	for _, c := range []struct {
		name     string
		networks []uint32
		want     string
	}{
		{"db", []uint32{1}, "[10.216.0.2 10.216.0.66]"},
		{"web.default", []uint32{4}, "[10.216.15.193]"},
		{"late", []uint32{1}, "[] the name exists, but none of its instances is ready"},
		{"alien", []uint32{1}, "[] the name does not exist"},
		{"example.com", []uint32{1}, "[] no member of these networks has the name, so the resolvers of the machine are asked for it"},
	} {
		list, problem := r.Lookup(c.name, c.networks)
		if got := strings.TrimSpace(fmt.Sprintf("%v %s", list, problem)); got != c.want {
			t.Errorf("Lookup of %q returned %s, want %s", c.name, got, c.want)
		}
	}
}
