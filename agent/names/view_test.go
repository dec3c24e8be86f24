package names

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

func member(network uint32, namespace, name, group, address string, ports ...*agentv1.MemberPort) *agentv1.NetworkMember {
	return &agentv1.NetworkMember{Network: network, Namespace: namespace, Name: name, Group: group, Address: address, Ports: ports}
}

// sample has a group db with three instances, of which one is not ready, on network 1; its first instance is also on
// network 2; and a workload of another namespace on network 3.
func sample() *agentv1.NetworkNames {
	sql := &agentv1.MemberPort{Name: "sql", Protocol: "tcp", Port: 5432}
	return &agentv1.NetworkNames{
		Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1}, Index: 9, Digest: 7,
		Namespaces: []string{"default", "team"},
		Members: []*agentv1.NetworkMember{
			member(1, "default", "db-0", "db", "10.216.0.2", sql), member(1, "default", "db-1", "db", "10.216.0.66", sql),
			member(1, "default", "db-2", "db", "", sql), member(1, "default", "late", "", ""),
			member(2, "default", "db-0", "db", "10.216.16.2", sql), member(3, "team", "alien", "", "10.216.32.2"),
		},
	}
}

// TestAnswer: which records and which code each question gets.
func TestAnswer(t *testing.T) {
	v := newView(sample())
	const foreign, foreignHere = "foreign", "foreign, of a namespace"
	for _, c := range []struct {
		name     string
		kind     uint16
		networks []uint32
		want     []string // the data of the records, sorted
		rcode    int
		other    string // foreign or foreignHere
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
		{"2.0.216.10.in-addr.arpa.", dns.TypePTR, []uint32{1}, []string{"db-0.default."}, 0, ""},
		{"2.0.216.10.in-addr.arpa.", dns.TypePTR, []uint32{2}, nil, 0, foreign},
	} {
		got := v.answer(dns.Question{Name: c.name, Qtype: c.kind, Qclass: dns.ClassINET}, c.networks)
		var data []string
		for _, rr := range got.answer {
			if h := rr.Header(); h.Ttl > 2 || h.Name != c.name {
				t.Errorf("%s: the record %s must have the name of the question, and a TTL of at most 2 s", c.name, rr)
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
			t.Errorf("%s %s of a container on %v: %q, code %d, %q; want %q, code %d, %q", c.name, dns.TypeToString[c.kind], c.networks, data, got.rcode, other, c.want, c.rcode, c.other)
		}
	}
}
