package persysctl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
)

// ca is the CA of a test cluster, with which a fake scheduler renews certificates.
type ca struct {
	t    *testing.T
	root *pki.Root
	auth *pki.Authority
}

func newCA(t *testing.T) *ca {
	t.Helper()
	root, err := pki.NewRoot("home", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := root.NewAuthority("home", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &ca{t, root, a}
}

// issue stores an identity in dir as `persysctl join` does. ago is how long ago the certificate was issued, and life
// is its validity.
func (a *ca) issue(dir string, id pki.Identity, ago, life time.Duration, schedulers ...string) *pki.Files {
	a.t.Helper()
	k := pki.IdentityStore{Dir: dir}
	keyPEM, csr, err := pki.NewRequest([]string{"127.0.0.1"})
	if err != nil {
		a.t.Fatal(err)
	}
	got, err := a.auth.Sign(csr, id, pki.Hosts{Requested: true}, time.Now().Add(-ago), life)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := k.SaveJoined(keyPEM, got.Chain, pki.EncodeCerts(a.root.Cert.Raw), pki.Membership{Cluster: "home", Role: id.Role, Name: id.ID, Schedulers: schedulers}); err != nil {
		a.t.Fatal(err)
	}
	p := k.Paths()
	f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key})
	if err != nil {
		a.t.Fatal(err)
	}
	return f
}

// renews makes a fake scheduler answer Renew with certificates that are valid for a day.
func (f *fake) renews(a *ca) {
	f.renew = func(csr []byte) (*clusterv1.RenewResponse, error) {
		got, err := a.auth.Sign(csr, pki.Identity{Role: pki.RoleUser, ID: "ada"}, pki.Hosts{Requested: true}, time.Now(), 24*time.Hour)
		if err != nil {
			return nil, err
		}
		return &clusterv1.RenewResponse{Chain: got.Chain, Roots: pki.EncodeCerts(a.root.Cert.Raw)}, nil
	}
}

func (t trustFake) Renew(_ context.Context, req *clusterv1.RenewRequest) (*clusterv1.RenewResponse, error) {
	if t.f.renew == nil {
		return nil, status.Error(codes.PermissionDenied, `user "ada" was revoked`)
	}
	return t.f.renew(req.GetCsr())
}

func (t trustFake) Bundle(context.Context, *clusterv1.BundleRequest) (*clusterv1.BundleResponse, error) {
	return &clusterv1.BundleResponse{}, nil
}

// TestIdentityIsRenewed: every command renews the user's certificate if a quarter of its lifetime is over, and prints
// nothing about the renewal. The test covers every folder in which persysctl looks for the certificate. In the second
// half of the lifetime a failed renewal is reported. The error for an expired certificate names the next command.
func TestIdentityIsRenewed(t *testing.T) {
	const day = 24 * time.Hour
	ada, own := pki.Identity{Role: pki.RoleUser, ID: "ada"}, filepath.Join(".persys", "identity")
	for name, x := range map[string]struct {
		ago     time.Duration
		folder  string // folder of the certificate, below the home folder; unless own is set, flags give its path
		looked  time.Duration
		refused bool
		renewed bool
		code    int
		says    string
	}{
		"young":                             {ago: 5 * time.Hour, folder: own},
		"a quarter of the lifetime is over": {ago: 7 * time.Hour, folder: own, renewed: true},
		"a quarter of the lifetime is over, in another folder":                    {ago: 7 * time.Hour, folder: "admin", renewed: true},
		"the last attempt was a moment ago":                                       {ago: 7 * time.Hour, folder: own, looked: time.Minute},
		"an attempt over an hour ago":                                             {ago: 7 * time.Hour, folder: own, looked: 2 * time.Hour, renewed: true},
		"in the second half of its life a certificate is renewed at each command": {ago: 13 * time.Hour, folder: own, looked: time.Minute, renewed: true},
		"in the first half of its life a refused renewal is not reported":         {ago: 7 * time.Hour, folder: own, refused: true},
		"a refusal is reported hours before the end":                              {ago: 20 * time.Hour, folder: own, refused: true, says: "ends in 3h"},
		"expired": {ago: 25 * time.Hour, folder: own, code: exitFailed, says: "persysctl token create --role user --name ada --access ROLE"},
		"the error about an expired certificate names the next command": {ago: 25 * time.Hour, folder: "admin", code: exitFailed, says: "persysctl join TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newCA(t), newSession(t)
			s.now = time.Now
			f := start(t, a.issue(t.TempDir(), pki.Identity{Role: pki.RoleScheduler, ID: "s1"}, 0, day))
			if !x.refused {
				f.renews(a)
			}
			k := pki.IdentityStore{Dir: filepath.Join(s.home, x.folder)}
			before := a.issue(k.Dir, ada, x.ago, day).Leaf()
			args := []string{"-s", f.addr, "nodes"}
			if x.folder != own {
				p := k.Paths()
				args = append(args, "--tls-ca", p.CA, "--tls-cert", p.Cert, "--tls-key", p.Key)
			}
			if stamp := filepath.Join(k.Dir, "looked"); x.looked > 0 {
				if err := os.WriteFile(stamp, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(stamp, time.Time{}, time.Now().Add(-x.looked)); err != nil {
					t.Fatal(err)
				}
			}
			if code := run(t.Context(), s.world, args); code != x.code {
				t.Errorf("the exit code is %d, want %d", code, x.code)
			}
			if said := s.stderr.String(); x.says == "" && said != "" || !strings.Contains(said, x.says) {
				t.Errorf("stderr is %q, want %q in it", said, x.says)
			}
			now, err := k.Leaf()
			if err != nil {
				t.Fatal(err)
			}
			if !now.Equal(before) != x.renewed {
				t.Errorf("whether the certificate was renewed is %t, want %t", !now.Equal(before), x.renewed)
			}
		})
	}
}

// TestIdentityIsRenewedBesideAGateway: a command that uses a gateway renews the user's certificate by a call
// to the schedulers of the cluster that issued it.
func TestIdentityIsRenewedBesideAGateway(t *testing.T) {
	a, s := newCA(t), newSession(t)
	s.now = time.Now
	f := start(t, a.issue(t.TempDir(), pki.Identity{Role: pki.RoleScheduler, ID: "s1"}, 0, time.Hour))
	f.renews(a)
	k := pki.IdentityStore{Dir: filepath.Join(s.home, ".persys", "identity")}
	before := a.issue(k.Dir, pki.Identity{Role: pki.RoleUser, ID: "ada"}, 7*time.Hour, 24*time.Hour, f.addr).Leaf()
	// No gateway answers at this address, so the command fails. The certificate must have been renewed all the same,
	// because that happens before the call to the gateway.
	if code := run(t.Context(), s.world, []string{"-s", "https://127.0.0.1:1", "--rpc-timeout-seconds", "1", "nodes"}); code != exitUnavailable {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if now, err := k.Leaf(); err != nil || now.Equal(before) {
		t.Errorf("the identity was not renewed: %v", err)
	}
}
