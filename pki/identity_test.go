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

// issue returns a parsed self-signed certificate with these names.
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
		want     Identity // expected identity without Fingerprint and CommonName, which are checked separately
		err      string
	}{
		{name: "a persys:// URI determines the identity", cn: "x", uris: []string{"persys://c1/agent/node-a"},
			want: Identity{Cluster: "c1", Role: RoleAgent, ID: "node-a"}},
		{name: "a persys:// URI takes precedence over the CN", cn: "persys-scheduler", uris: []string{"persys://c1/user/eve"},
			want: Identity{Cluster: "c1", Role: RoleUser, ID: "eve"}},
		{name: "URIs with another scheme are ignored", cn: "x", uris: []string{"spiffe://td/x", "persys://c1/gateway/g"},
			want: Identity{Cluster: "c1", Role: RoleGateway, ID: "g"}},
		{name: "a certificate with two persys:// URIs is refused", uris: []string{"persys://c1/agent/a", "persys://c1/agent/b"}, err: "more than one"},
		{name: "a URI of another cluster is refused", uris: []string{"persys://c2/agent/a"}, err: `cluster "c2"`},
		{name: "a URI with an unknown role is refused", uris: []string{"persys://c1/root/a"}, err: `role "root"`},
		{name: "a certificate with an invalid URI is not mapped by its CN", cn: "persysctl", uris: []string{"persys://c1/agent"}, err: "want persys://"},
		{name: "a certificate for the anonymous user is refused", uris: []string{"persys://c1/user/anonymous"}, err: "reserved"},
		{name: "the CN persys-scheduler maps to the role scheduler", cn: "persys-scheduler",
			want: Identity{Cluster: "c1", Role: RoleScheduler, ID: "persys-scheduler", Mapped: true}},
		{name: "the CN of the CLI maps to the user admin", cn: "persysctl",
			want: Identity{Cluster: "c1", Role: RoleUser, ID: "admin", Mapped: true}},
		{name: "the node id of an agent is the last DNS name without a dot", cn: "compute-agent",
			dns:  []string{"compute-agent", "localhost", "host.example.com", "compute-agent.persys.cloud", "node-7"},
			want: Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7", Mapped: true}},
		{name: "a DNS name is mapped if the CN is not", cn: "free", dns: []string{"localhost", "persys-gateway"},
			want: Identity{Cluster: "c1", Role: RoleGateway, ID: "persys-gateway", Mapped: true}},
		{name: "a name is mapped only if it matches as a whole", cn: "persysctl.example.com", dns: []string{"persysctl.example.com", "persys-gateway.persys.local"}, err: ErrNoIdentity.Error()},
		{name: "names of two roles are refused", cn: "free", dns: []string{"persys-gateway", "compute-agent"}, err: "both"},
		{name: "a certificate with unknown names has no identity", cn: "www", dns: []string{"www.example.com"}, err: ErrNoIdentity.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cert := issue(t, tc.cn, tc.dns, tc.uris...)
			got, err := FromCertificate(cert, LegacyMapping("c1"))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("FromCertificate returned %+v and error %v, want an error that contains %q", got, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Fingerprint) != 64 || got.CommonName != tc.cn {
				t.Errorf("the identity has fingerprint %q and CN %q, want the certificate's SHA-256 and the CN of the case", got.Fingerprint, got.CommonName)
			}
			back, err := ParseIdentity(got.String())
			if err != nil || back != got {
				t.Errorf("ParseIdentity of %q returned %+v, error %v, want the same identity", got, back, err)
			}
			got.Fingerprint, got.CommonName = "", ""
			if got != tc.want {
				t.Errorf("FromCertificate returned %+v, want %+v", got, tc.want)
			}
		})
	}
	if _, err := FromCertificate(nil, Mapping{}); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("FromCertificate without a certificate returned %v, want ErrNoIdentity", err)
	}
}

// A certificate of another CA has an identity only if a setting maps one of its names.
func TestPeerMapping(t *testing.T) {
	for _, tc := range []struct {
		name   string
		legacy bool
		peers  map[string]string
		cn     string
		want   Role // expected role; empty if no identity is expected
	}{
		{"without settings no name in a certificate gives an identity", false, nil, "persysctl", ""},
		{"a setting for another name gives the certificate no identity", false, map[string]string{"ops": "user/ada"}, "persys-scheduler", ""},
		{"a configured name gives the configured identity", false, map[string]string{"ops": "user/ada"}, "ops", RoleUser},
		{"with legacy names, a service name gives its role", true, nil, "persys-scheduler", RoleScheduler},
		{"with legacy names, a configured name gives the configured identity too", true, map[string]string{"ops": "user/ada"}, "ops", RoleUser},
	} {
		m, err := PeerMapping(tc.legacy, tc.peers)
		if err != nil {
			t.Fatal(err)
		}
		got, err := FromCertificate(issue(t, tc.cn, []string{tc.cn}), m)
		if got.Role != tc.want || errors.Is(err, ErrNoIdentity) != (tc.want == "") {
			t.Errorf("%s: the identity is %+v, error %v, want the role of the case", tc.name, got, err)
		}
	}
	if _, err := PeerMapping(false, map[string]string{"n": "root"}); err == nil || !strings.Contains(err.Error(), "PERSYS_TLS_PEERS") {
		t.Errorf("PeerMapping with a wrong role returned %v, want an error that names PERSYS_TLS_PEERS", err)
	}
}

func TestMappingWithOtherCAs(t *testing.T) {
	m, err := LegacyMapping("c1").With(map[string]string{
		"node7.example.com": "agent/node-7", "fleet": "agent", "ops@example.com": "user/ada", "compute-agent": "agent/only",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, cn string
		dns      []string
		want     Identity
		speaks   bool // whether the identity may speak only for node want.ID
	}{
		{"a name that is assigned to a node can act as that node only", "node7.example.com", nil, Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7"}, true},
		{"a DNS name that is assigned to a node can act as that node", "x", []string{"node7.example.com"}, Identity{Cluster: "c1", Role: RoleAgent, ID: "node-7"}, true},
		{"a name without a node can act as any node", "fleet", []string{"fleet", "n2"}, Identity{Cluster: "c1", Role: RoleAgent, ID: "n2", Mapped: true}, false},
		{"a user with a certificate of another CA has an identity", "ops@example.com", nil, Identity{Cluster: "c1", Role: RoleUser, ID: "ada", Mapped: true}, false},
		{"a mapping of a legacy name replaces the default", "compute-agent", nil, Identity{Cluster: "c1", Role: RoleAgent, ID: "only"}, true},
		{"legacy names without a mapping of their own keep the default", "persys-gateway", nil, Identity{Cluster: "c1", Role: RoleGateway, ID: "persys-gateway", Mapped: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := FromCertificate(issue(t, tc.cn, tc.dns), m)
			if err != nil {
				t.Fatal(err)
			}
			got.Fingerprint, got.CommonName = "", ""
			if got != tc.want {
				t.Errorf("the mapped identity is %+v, want %+v", got, tc.want)
			}
			if got.Role == RoleAgent && got.SpeaksFor("another") == tc.speaks {
				t.Errorf("SpeaksFor of another node than the identity's returned %v, want true only if the identity is not bound to one node", !tc.speaks)
			}
		})
	}
	if _, ok := LegacyMapping("").Names["fleet"]; ok {
		t.Error("With must not change its receiver, but did")
	}
	for _, bad := range []string{"", "root", "agent/", "agent/-x", "user/anonymous", "agent/a/b"} {
		if _, err := LegacyMapping("").With(map[string]string{"n": bad}); err == nil {
			t.Errorf("With must refuse the mapping %q, but accepted it", bad)
		}
	}
}

func TestPermissionsOfIdentities(t *testing.T) {
	for _, tc := range []struct {
		name              string
		id                Identity
		anonymous, speaks bool
	}{
		{"a caller without a certificate", Anonymous(), true, false},
		{"a user named anonymous with a certificate", Identity{Role: RoleUser, ID: AnonymousID, Fingerprint: "x"}, false, false},
		{"a user with a certificate", Identity{Role: RoleUser, ID: "bob"}, false, false},
		{"an agent speaks for its node", Identity{Role: RoleAgent, ID: "n1"}, false, true},
		{"an agent does not speak for another node", Identity{Role: RoleAgent, ID: "n2"}, false, false},
		{"an agent whose identity is mapped may speak for any node", Identity{Role: RoleAgent, ID: "n2", Mapped: true}, false, true},
		{"a scheduler whose identity is mapped speaks for no node", Identity{Role: RoleScheduler, ID: "n1", Mapped: true}, false, false},
		{"an empty identity may do nothing", Identity{}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.id.IsAnonymous(); got != tc.anonymous {
				t.Errorf("IsAnonymous of this identity returned %v, want %v", got, tc.anonymous)
			}
			if got := tc.id.SpeaksFor("n1"); got != tc.speaks {
				t.Errorf("SpeaksFor of node n1 returned %v, want %v", got, tc.speaks)
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
			t.Errorf("ParseIdentity must refuse %.80q, but returned %+v", s, got)
		}
	}
	for _, s := range []string{
		"persys://c/agent/a", "persys:///user/anonymous", "persys://c/user/a@b.c", "persys://c/agent/a?cn=x+y%26&fp=" + fp + "&mapped=1",
	} {
		if _, err := ParseIdentity(s); err != nil {
			t.Errorf("ParseIdentity refused %q: %v", s, err)
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
			t.Fatalf("ParseIdentity of %q returned %+v, whose text form is another; want the same text", s, i)
		}
		for _, c := range []byte(s) {
			if c < 0x20 || c > 0x7e {
				t.Fatalf("the text form of an identity must be printable ASCII, but is %q", s)
			}
		}
	})
}
