package rpc

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// TestWhoAmIShowsIdentityAndRights: every replica returns the identity and the roles of the caller, whether
// the call comes directly or through a gateway, and for certificates and tokens.
func TestWhoAmIShowsIdentityAndRights(t *testing.T) {
	g, as := spaces(t)
	viewer(g, "vera")
	for i, where := range []string{"leader", "follower"} {
		for name, x := range map[string]struct {
			cert     string
			md       []string
			who, via string
			want     string // expected answer: role, namespaces and number of permissions
		}{
			"the admin":           {"user/admin", nil, "persys://c1/user/admin", "", "admin in every namespace 13"},
			"a confined operator": {"user/ada", nil, "persys://c1/user/ada", "", "operator in a 5"},
			"a user with rights only in namespace a limits a call to namespace b": {"user/ada", []string{dial.KeyNamespaces, "b"}, "persys://c1/user/ada", "", "operator in no namespace 5"},
			"a user with a certificate through a gateway":                         {"gateway/g", []string{dial.KeyOnBehalf, "persys://c1/user/vera"}, "persys://c1/user/vera", "persys://c1/gateway/g", "viewer in every namespace 2"},
			"a user with a token and a role":                                      {"gateway/g", []string{dial.KeyUser, token1, dial.KeyAccess, "operator"}, token1, "persys://c1/gateway/g", "operator in every namespace 5"},
			"a user with a token whose role is limited to two namespaces":         {"gateway/g", []string{dial.KeyUser, token1, dial.KeyAccess, "viewer", dial.KeyNamespaces, "b,a"}, token1, "persys://c1/gateway/g", "viewer in a, b 2"},
			"a user with a token and without a role":                              {"gateway/g", []string{dial.KeyUser, token1, dial.KeyAccess, "none"}, token1, "persys://c1/gateway/g", ""},
			"a gateway that names no user":                                        {"gateway/g", nil, "persys://c1/gateway/g", "", ""},
			"a user of a gateway of an earlier version, which sends no role":      {"gateway/g", []string{dial.KeyUser, token1}, token1, "persys://c1/gateway/g", ""},
		} {
			r, err := clusterv1.NewClusterClient(as(i, x.cert)).GetAccess(with(t, x.md...), &clusterv1.GetAccessRequest{})
			ok(t, err)
			who, _, _ := strings.Cut(r.GetIdentity(), "?")
			via, _, _ := strings.Cut(r.GetVia(), "?")
			is(t, name+" at the "+where+": identity", who, x.who)
			is(t, name+" at the "+where+": via", via, x.via)
			got := ""
			for _, g := range r.GetGrants() {
				in := access.Only(g.GetNamespaces())
				if g.GetEverywhere() {
					in = access.Everywhere()
				}
				got += g.GetRole() + " in " + in.String() + " " + string(rune('0'+len(g.GetPermissions())/10)) + string(rune('0'+len(g.GetPermissions())%10))
			}
			is(t, name+" at the "+where+": roles", strings.ReplaceAll(got, " 0", " "), x.want)
		}
	}
	r, err := clusterv1.NewClusterClient(as(0, "gateway/g")).GetAccess(with(t, dial.KeyOnBehalf, "persys://c1/user/vera"), &clusterv1.GetAccessRequest{})
	ok(t, err)
	is(t, "expiry (Unix nanoseconds) of the certificate of admitted user vera, as GetAccess shows it", r.GetCertificateNotAfter().AsTime().UnixNano(), 2)
	for _, md := range [][]string{{dial.KeyUser, token1, dial.KeyAccess, "root"}, {dial.KeyUser, token1, dial.KeyAccess, "operator "}} {
		_, err := clusterv1.NewClusterClient(as(0, "gateway/g")).GetAccess(with(t, md...), &clusterv1.GetAccessRequest{})
		code(t, err, codes.InvalidArgument)
	}
	_, err = clusterv1.NewClusterClient(as(0, "agent/a")).GetAccess(ctxFor(t), &clusterv1.GetAccessRequest{})
	code(t, err, codes.PermissionDenied)
}

// TestTokensHaveTheRoleThatTheGatewayTells: a gateway sends the role of a user with a bearer token in the metadata
// KeyAccess. The schedulers must give the call the rights of that role, but never more rights than the gateway itself
// has.
func TestTokensHaveTheRoleThatTheGatewayTells(t *testing.T) {
	_, as := spaces(t)
	for i := range 2 {
		c := clusterv1.NewClusterClient(as(i, "gateway/g"))
		apply := func(id, ns string, md ...string) error {
			r, err := c.ApplyWorkloads(with(t, append(md, dial.KeyUser, token1)...), &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn(id, ns)}})
			if err == nil {
				err = inBand(r.GetResults()[0], nil)
			}
			return err
		}
		ok(t, apply("mine", "a", dial.KeyAccess, "operator", dial.KeyNamespaces, "a"))
		if err := apply("yours", "b", dial.KeyAccess, "operator", dial.KeyNamespaces, "a"); err == nil || !strings.Contains(err.Error(), "acts only in a") {
			t.Errorf("an apply to namespace b, in a call that the gateway limits to namespace a, returned %v, want an error that names namespace a", err)
		}
		code(t, apply("mine", "a", dial.KeyAccess, "viewer"), codes.PermissionDenied)
		code(t, apply("mine", "a", dial.KeyAccess, "none"), codes.PermissionDenied)
		put := func(md ...string) error {
			return second(c.PutNamespace(with(t, append(md, dial.KeyUser, token1)...), &clusterv1.PutNamespaceRequest{Name: "new"}))
		}
		code(t, put(dial.KeyAccess, "operator"), codes.PermissionDenied)
		ok(t, put(dial.KeyAccess, "admin"))
		_, err := clusterv1.NewTrustClient(as(i, "gateway/g")).ListTokens(with(t, dial.KeyUser, token1, dial.KeyAccess, "admin"), &clusterv1.ListTokensRequest{})
		code(t, err, codes.PermissionDenied) // skip methods of the trust service, which gateways may not call
	}
}

// TestCanIAnswersWithTheVerdict: users ask with CheckAccess (`persysctl auth can-i`) whether they may make a call or
// have a permission in a namespace. The answer must be right and give the reason.
func TestCanIAnswersWithTheVerdict(t *testing.T) {
	g, as := spaces(t)
	viewer(g, "vera")
	for _, x := range []struct {
		who, verb, namespace string
		want                 bool
		reason               string
	}{
		{"user/admin", "trust", "", true, "you have the permission trust in every namespace"},
		{"user/admin", "deploy", "*", true, "every namespace"},
		{"user/admin", "drain node", "", true, "nodes in every namespace"},
		{"user/admin", "cluster-key", "", false, "may not cluster key"},
		{"user/ada", "deploy", "a", true, "you have the permission deploy in a"},
		{"user/ada", "deploy", "b", false, "you have the permission deploy only in a"},
		{"user/ada", "deploy", "", false, "only in a"}, // an empty namespace in the question means the namespace default
		{"user/ada", "deploy", "*", false, "only in a"},
		{"user/ada", "apply workload", "a", true, "deploy in a"},
		{"user/ada", "apply-workload", "b", false, "only in a"},
		{"user/ada", "nodes", "a", false, "concerns the whole cluster"},
		{"user/ada", "drain node", "a", false, "has rights only in a and may not drain node"},
		{"user/ada", "list nodes", "b", true, "read in a"},
		{"user/ada", "trust", "", false, "none of your roles has the permission trust"},
		{"user/vera", "logs", "", true, "logs in every namespace"},
		{"user/vera", "exec", "", false, "none of your roles"},
		{"user/vera", "exec", "a", false, "none of your roles"},
	} {
		cert, md := x.who, []string(nil)
		if x.who == "user/vera" { // user vera needs no certificate here
			cert, md = "gateway/g", []string{dial.KeyOnBehalf, "persys://c1/user/vera"}
		}
		for i := range 2 {
			r, err := clusterv1.NewClusterClient(as(i, cert)).CheckAccess(with(t, md...), &clusterv1.CheckAccessRequest{Verb: x.verb, Namespace: x.namespace})
			ok(t, err)
			if r.GetAllowed() != x.want || !strings.Contains(r.GetReason(), x.reason) {
				t.Errorf("caller %s, verb %s, namespace %q: allowed %v, reason %q; want %v, %q", x.who, x.verb, x.namespace, r.GetAllowed(), r.GetReason(), x.want, x.reason)
			}
		}
	}
	_, err := clusterv1.NewClusterClient(as(0, "user/ada")).CheckAccess(ctxFor(t), &clusterv1.CheckAccessRequest{Verb: "fly"})
	code(t, err, codes.InvalidArgument)
	_, err = clusterv1.NewClusterClient(as(0, "gateway/g")).CheckAccess(ctxFor(t), &clusterv1.CheckAccessRequest{Verb: "read"})
	code(t, err, codes.InvalidArgument)
}

// TestPeoplesCertificatesAreShort: a person's certificate is valid for 24 hours by default, both the first certificate
// and a renewed one. The validity of programs' certificates does not change it; a setting of its own does.
func TestPeoplesCertificatesAreShort(t *testing.T) {
	for setting, want := range map[time.Duration]time.Duration{0: 24 * time.Hour, time.Hour: time.Hour} {
		w := newOwnCAWith(t, func(c *Config) { c.UserCertLife = setting })
		ada, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "user", Name: "ada", Access: "viewer"}), "ada")
		ok(t, err)
		is(t, "validity of a certificate after a join", pki.Life(ada.Leaf()), want)
		keyPEM, csr, err := pki.NewRequest(nil)
		ok(t, err)
		r, err := clusterv1.NewTrustClient(w.as(1, ada)).Renew(ctxFor(t), &clusterv1.RenewRequest{Csr: csr})
		ok(t, err)
		is(t, "validity of a certificate after a renewal", pki.Life(w.kept(keyPEM, r.GetChain(), r.GetRoots()).Leaf()), want)
		n1, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "n1")
		ok(t, err)
		is(t, "validity of an agent's certificate", pki.Life(n1.Leaf()), DefaultCertLife)
	}
}
