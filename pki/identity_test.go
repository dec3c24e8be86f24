package pki

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"
)

// issue returns a parsed self-signed certificate with the given names.
func issue(t testing.TB, cn string, dns []string, uris ...string) *x509.Certificate {
	t.Helper()
	key, _, err := makeKey()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, DNSNames: dns, NotAfter: time.Now().Add(time.Hour)}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestFromCertificate(t *testing.T) {
	for _, tc := range []struct {
		name, cn string
		dns      []string
		uris     []string
		want     Identity // Fingerprint and CommonName are checked apart
		err      string
	}{
		{name: "a URI states the identity", cn: "x", uris: []string{"persys://c1/agent/node-a"},
			want: Identity{Cluster: "c1", Role: RoleAgent, ID: "node-a"}},
		{name: "the URI wins over the CN", cn: "persys-scheduler", uris: []string{"persys://c1/user/eve"},
			want: Identity{Cluster: "c1", Role: RoleUser, ID: "eve"}},
		{name: "foreign URIs are ignored", cn: "x", uris: []string{"spiffe://td/x", "persys://c1/gateway/g"},
			want: Identity{Cluster: "c1", Role: RoleGateway, ID: "g"}},
		{name: "two URIs are refused", uris: []string{"persys://c1/agent/a", "persys://c1/agent/b"}, err: "more than one"},
		{name: "another cluster is refused", uris: []string{"persys://c2/agent/a"}, err: `cluster "c2"`},
		{name: "an unknown role is refused", uris: []string{"persys://c1/root/a"}, err: `role "root"`},
		{name: "a broken URI is not mapped by CN", cn: "persysctl", uris: []string{"persys://c1/agent"}, err: "want persys://"},
		{name: "the anonymous user can not be issued", uris: []string{"persys://c1/user/anonymous"}, err: "reserved"},
		{name: "CN of the scheduler", cn: "persys-scheduler",
			want: Identity{Cluster: "c1", Role: RoleScheduler, ID: "persys-scheduler", Mapped: true}},
		{name: "CN of the CLI is the admin", cn: "persysctl",
			want: Identity{Cluster: "c1", Role: RoleUser, ID: "admin", Mapped: true}},
		{name: "an agent's node id is the last short name", cn: "compute-agent",
			dns:  []string{"compute-agent", "localhost", "host.example.com", "compute-agent.persys.cloud", "node-7"},
			want: Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7", Mapped: true}},
		{name: "a DNS SAN maps when the CN does not", cn: "free", dns: []string{"localhost", "persys-gateway"},
			want: Identity{Cluster: "c1", Role: RoleGateway, ID: "persys-gateway", Mapped: true}},
		{name: "a qualified service name maps", cn: "free", dns: []string{"persys-gateway.persys.local"},
			want: Identity{Cluster: "c1", Role: RoleGateway, ID: "persys-gateway", Mapped: true}},
		{name: "names of two roles are refused", cn: "free", dns: []string{"persys-gateway", "compute-agent"}, err: "both"},
		{name: "an unknown certificate is nobody", cn: "www", dns: []string{"www.example.com"}, err: ErrNoIdentity.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cert := issue(t, tc.cn, tc.dns, tc.uris...)
			got, err := FromCertificate(cert, DefaultMapping("c1"))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %+v, %v; want an error with %q", got, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Fingerprint) != 64 || got.CommonName != tc.cn {
				t.Errorf("fingerprint %q, CN %q", got.Fingerprint, got.CommonName)
			}
			back, err := ParseIdentity(got.String())
			if err != nil || back != got {
				t.Errorf("%q reads back as %+v, %v", got, back, err)
			}
			got.Fingerprint, got.CommonName = "", ""
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
	if _, err := FromCertificate(nil, Mapping{}); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("no certificate: %v", err)
	}
}

func TestMappingWith(t *testing.T) {
	m, err := DefaultMapping("c1").With(map[string]string{
		"node7.example.com": "agent/node-7", "fleet": "agent", "ops@example.com": "user/ada", "compute-agent": "agent/only",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, cn string
		dns      []string
		want     Identity
		speaks   bool // for want.ID only
	}{
		{"a name tied to a node is that agent and no other", "node7.example.com", nil, Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7"}, true},
		{"the DNS name does as well", "x", []string{"node7.example.com"}, Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7"}, true},
		{"a name of a fleet is tied to no node", "fleet", []string{"fleet", "n2"}, Identity{Cluster: "c1", Role: RoleAgent, ID: "n2", Mapped: true}, false},
		{"a user by another CA", "ops@example.com", nil, Identity{Cluster: "c1", Role: RoleUser, ID: "ada", Mapped: true}, false},
		{"what is set goes before the default", "compute-agent", nil, Identity{Cluster: "c1", Role: RoleAgent, ID: "only"}, true},
		{"defaults stay", "persys-gateway", nil, Identity{Cluster: "c1", Role: RoleGateway, ID: "persys-gateway", Mapped: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := FromCertificate(issue(t, tc.cn, tc.dns), m)
			if err != nil {
				t.Fatal(err)
			}
			got.Fingerprint, got.CommonName = "", ""
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if got.Role == RoleAgent && got.SpeaksFor("another") == tc.speaks {
				t.Errorf("speaks for another node: %v", !tc.speaks)
			}
		})
	}
	if _, ok := DefaultMapping("").Names["fleet"]; ok {
		t.Error("With changes what it is called on")
	}
	for _, bad := range []string{"", "root", "agent/", "agent/-x", "user/anonymous", "agent/a/b"} {
		if _, err := DefaultMapping("").With(map[string]string{"n": bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestPermissionsOfIdentities(t *testing.T) {
	for _, tc := range []struct {
		name          string
		id            Identity
		admin, speaks bool
	}{
		{"anonymous is an admin", Anonymous(), true, false},
		{"an anonymous with a certificate is not", Identity{Role: RoleUser, ID: AnonymousID, Fingerprint: "x"}, false, false},
		{"the admin user is an admin", Identity{Role: RoleUser, ID: AdminID}, true, false},
		{"an agent called admin is not", Identity{Role: RoleAgent, ID: AdminID}, false, false},
		{"another user is not", Identity{Role: RoleUser, ID: "bob"}, false, false},
		{"an agent speaks for its node", Identity{Role: RoleAgent, ID: "n1"}, false, true},
		{"an agent does not speak for another", Identity{Role: RoleAgent, ID: "n2"}, false, false},
		{"a mapped agent is not tied to a node", Identity{Role: RoleAgent, ID: "n2", Mapped: true}, false, true},
		{"a mapped scheduler is no agent", Identity{Role: RoleScheduler, ID: "n1", Mapped: true}, false, false},
		{"nobody may nothing", Identity{}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.id.IsAdmin(); got != tc.admin {
				t.Errorf("admin = %v", got)
			}
			if got := tc.id.SpeaksFor("n1"); got != tc.speaks {
				t.Errorf("speaks for n1 = %v", got)
			}
		})
	}
}

func TestParseIdentityIsStrict(t *testing.T) {
	fp := strings.Repeat("0a", 32)
	for _, s := range []string{
		"", "persys://", "persys://c/agent", "persys://c/agent/", "persys://c/agent/a/b", "persys://c/agent/a?",
		"PERSYS://c/agent/a", " persys://c/agent/a", "persys://c/agent/a\n", "http://c/agent/a",
		"persys://c/admin/a", "persys://c/agent/-a", "persys://c/agent/a b", "persys://c/agent/a%20", "persys://c@d/agent/a",
		"persys://c/agent/a@b", "persys://c/agent/a?x=1", "persys://c/agent/a?cn=a&cn=b", "persys://c/agent/a?cn=",
		"persys://c/agent/a?fp=00", "persys://c/agent/a?mapped=0", "persys://c/agent/a?mapped=true",
		"persys://c/agent/a?fp=" + fp + "&cn=x", "persys://c/agent/a?fp=" + strings.ToUpper(fp), "persys://c/agent/a?cn=%zz",
		"persys://c/agent/" + strings.Repeat("a", 129), "persys://c/agent/a?cn=" + strings.Repeat("a", 3000),
	} {
		if got, err := ParseIdentity(s); err == nil {
			t.Errorf("%.80q is accepted as %+v", s, got)
		}
	}
	for _, s := range []string{
		"persys://c/agent/a", "persys:///user/anonymous", "persys://c/user/a@b.c", "persys://c/agent/a?cn=x+y%26&fp=" + fp + "&mapped=1",
	} {
		if _, err := ParseIdentity(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("persys://c/agent/a?cn=x+y%26&mapped=1")
	f.Add(Anonymous().String())
	f.Fuzz(func(t *testing.T, s string) {
		i, err := ParseIdentity(s)
		if err != nil {
			return
		}
		if i.String() != s || !i.Role.Valid() {
			t.Fatalf("%q parsed as %+v", s, i)
		}
		for _, c := range []byte(s) {
			if c < 0x20 || c > 0x7e {
				t.Fatalf("%q holds what no header may", s)
			}
		}
	})
}
