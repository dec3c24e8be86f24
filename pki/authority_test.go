package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func authority(t testing.TB, cluster string, now time.Time) (*Root, *Authority) {
	t.Helper()
	r, err := NewRoot(cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.NewAuthority(cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	return r, a
}

func request(t testing.TB, hosts ...string) (keyPEM, csr []byte) {
	t.Helper()
	keyPEM, csr, err := NewRequest(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return keyPEM, csr
}

func TestSignIssuesCertificates(t *testing.T) {
	now := time.Now()
	root, a := authority(t, "c1", now)
	_, csr := request(t, "node-a.example.com", "10.0.0.7")
	agent := Identity{Role: RoleAgent, ID: "node-a"}
	got, err := a.Sign(csr, agent, Hosts{Requested: true}, now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id, err := FromCertificate(got.Cert, Mapping{Cluster: "c1"})
	if err != nil || id.Role != RoleAgent || id.ID != "node-a" || id.Mapped {
		t.Errorf("the issued certificate has the identity %+v (error %v), want agent node-a", id, err)
	}
	for _, host := range []string{"node-a", "node-a.example.com", "10.0.0.7", "compute-agent", "localhost", "127.0.0.1"} {
		if err := got.Cert.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root.Cert)
	between.AddCert(a.Cert)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := got.Cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(string(got.Chain), "BEGIN CERTIFICATE"); n != 3 {
		t.Errorf("the chain of the issued certificate has %d certificates, want 3", n)
	}
	if d := now.Sub(IssuedAt(got.Cert)); d < 0 || d > time.Second {
		t.Errorf("IssuedAt is %s before the time of issue, want at most 1 s", d)
	}
	if d := RenewAt(got.Cert).Sub(now); d < 15*time.Hour || d > 16*time.Hour+time.Second {
		t.Errorf("RenewAt is %s after the time of issue, want two thirds of 24 h", d)
	}

	t.Run("a user gets a certificate that is not valid for servers", func(t *testing.T) {
		got, err := a.Sign(csr, Identity{Role: RoleUser, ID: "ada"}, Hosts{Requested: true}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Cert.DNSNames)+len(got.Cert.IPAddresses) > 0 || len(got.Cert.ExtKeyUsage) != 1 {
			t.Errorf("the certificate of a user has the DNS names %v, the addresses %v and the key usages %v, want no hosts and one usage", got.Cert.DNSNames, got.Cert.IPAddresses, got.Cert.ExtKeyUsage)
		}
	})
	own := []string{"compute-agent", "localhost", "127.0.0.1", "::1"}
	for _, tc := range []struct {
		name  string
		hosts Hosts
		want  []string // expected hosts, without those that every certificate gets
	}{
		{"the hosts of the request are not added by default", Hosts{}, nil},
		{"the requester's address", Hosts{From: "10.0.0.7"}, []string{"10.0.0.7"}},
		{"the requester's address is not added if the request does not contain it", Hosts{From: "10.0.0.8"}, nil},
		{"the hosts of a join token are added", Hosts{Given: []string{"gw.example.com", "192.0.2.1"}, From: "fe80::1%eth0"}, []string{"gw.example.com", "192.0.2.1"}},
		{"all hosts of the request are added if the requester is trusted", Hosts{Requested: true, Given: []string{"b"}}, []string{"node-a", "node-a.example.com", "10.0.0.7", "b"}},
	} {
		t.Run("hosts: "+tc.name, func(t *testing.T) {
			got, err := a.Sign(csr, agent, tc.hosts, now, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			names := slices.Clone(got.Cert.DNSNames)
			for _, ip := range got.Cert.IPAddresses {
				names = append(names, ip.String())
			}
			want := slices.Concat(own, tc.want)
			slices.Sort(names)
			slices.Sort(want)
			if !slices.Equal(names, want) {
				t.Errorf("the certificate contains the hosts %q, want %q", names, want)
			}
		})
	}
	t.Run("a certificate does not last longer than its authority", func(t *testing.T) {
		got, err := a.Sign(csr, agent, Hosts{Requested: true}, now, 100*365*24*time.Hour)
		if err != nil || got.Cert.NotAfter.After(a.Cert.NotAfter) || a.Cert.NotAfter.After(root.Cert.NotAfter) {
			t.Errorf("Sign with a short-lived authority returned %v, want a certificate that ends no later than its authority", err)
		}
	})
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weakCSR, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	forged := append([]byte(nil), csr...)
	forged[len(forged)-1] ^= 1
	many := make([]string, maxHosts+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d", i)
	}
	_, manyCSR := request(t, many...)
	_, serviceCSR := request(t, "persys-scheduler.persys.local")
	_, starCSR := request(t, "*.example.com")
	for _, tc := range []struct {
		name string
		csr  []byte
		id   Identity
		now  time.Time
		want string
	}{
		{"an empty request", nil, agent, now, "certificate request"},
		{"a request with a wrong signature", forged, agent, now, "certificate request"},
		{"a request with a weak key", weakCSR, agent, now, "P-256"},
		{"a request with too many hosts", manyCSR, agent, now, "limit 64"},
		{"a request with the service name of another role", serviceCSR, agent, now, "service name of a scheduler"},
		{"a request with a wildcard as DNS name", starCSR, agent, now, "not a DNS name"},
		{"an unknown role", csr, Identity{Role: "root", ID: "x"}, now, "role"},
		{"an invalid id", csr, Identity{Role: RoleAgent, ID: "a/b"}, now, "id"},
		{"an expired authority", csr, agent, now.Add(AuthorityLife + time.Hour), "ca rotate"},
	} {
		t.Run(tc.name+" is refused", func(t *testing.T) {
			if _, err := a.Sign(tc.csr, tc.id, Hosts{Requested: true}, tc.now, time.Hour); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Sign returned error %v, want an error that contains %q", err, tc.want)
			}
		})
	}
}

// A certificate that an authority signs for another cluster is not valid, even if the verifier trusts
// the authority's root.
func TestAuthorityIsForOneCluster(t *testing.T) {
	root, a := authority(t, "c1", time.Now())
	roots := x509.NewCertPool()
	roots.AddCert(root.Cert)
	between := x509.NewCertPool()
	between.AddCert(a.Cert)
	for cluster, want := range map[string]string{"c1": "", "c2": "not permitted", "c1.example.com": "not permitted"} {
		p := leafOf(t, t.TempDir(), a, "x", &Identity{Cluster: cluster, Role: RoleScheduler, ID: "s1"})
		leaf, err := (IdentityStore{Dir: filepath.Dir(p.Cert)}).Leaf()
		if err != nil {
			t.Fatal(err)
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the verification of a certificate for cluster %s returned %v, want an error that contains %q, or none if it is empty", cluster, err, want)
		}
	}
	_, csr := request(t)
	got, err := a.Sign(csr, Identity{Role: RoleAgent, ID: "n1"}, Hosts{}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}); err == nil {
		t.Error("a certificate of the cluster must not be usable to sign code, but is")
	}
	for _, bad := range []string{"10.0.0.1", "c1.", "a..b"} {
		if _, err := NewRoot(bad, time.Now()); err == nil {
			t.Errorf("NewRoot must refuse cluster %q, to which a CA cannot be limited", bad)
		}
	}
	for _, good := range []string{"A_b-c.d", "persys-0a1b2c3d"} {
		root, a := authority(t, good, time.Now())
		got, err := a.Sign(csr, Identity{Role: RoleAgent, ID: "n1"}, Hosts{}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(root.Cert)
		between.AddCert(a.Cert)
		if _, err := got.Cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
			t.Errorf("the certificate for cluster %q must be valid, but the verification returned %v", good, err)
		}
	}
}

func TestAuthorityIsParsed(t *testing.T) {
	now := time.Now()
	root, a := authority(t, "c1", now)
	other, b := authority(t, "c2", now)
	key, err := a.Key()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseAuthority(a.Cert.Raw, root.Cert.Raw, key)
	if err != nil || got.ID() != a.ID() || got.Cluster != "c1" {
		t.Fatalf("ParseAuthority returned %+v, error %v, want the same authority", got, err)
	}
	foreignKey, err := b.Key()
	if err != nil {
		t.Fatal(err)
	}
	leaf := issue(t, "x", nil).Raw
	for _, tc := range []struct {
		name            string
		cert, root, key []byte
		want            string
	}{
		{"an authority with the certificate of another root", a.Cert.Raw, other.Cert.Raw, key, "root has not signed"},
		{"an authority with the key of another authority", a.Cert.Raw, root.Cert.Raw, foreignKey, "key does not belong"},
		{"a program's certificate in place of an authority", leaf, root.Cert.Raw, key, "not the certificate of an authority"},
		{"an authority's certificate in place of the root", a.Cert.Raw, a.Cert.Raw, key, "not signed by itself"},
		{"an authority without a key", a.Cert.Raw, root.Cert.Raw, nil, "PKCS #8"},
		{"an authority without a certificate", nil, root.Cert.Raw, key, "cert"},
	} {
		if _, err := ParseAuthority(tc.cert, tc.root, tc.key); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("case %s: ParseAuthority returned error %v, want an error that contains %q", tc.name, err, tc.want)
		}
	}
}

func TestCAFolder(t *testing.T) {
	now := time.Now()
	f := CAFolder{filepath.Join(t.TempDir(), "ca")}
	root, a := authority(t, "c1", now)
	if err := f.Create(root, &Authority{Cert: a.Cert, Root: a.Root, key: struct{ crypto.Signer }{}}); err == nil {
		t.Fatal("Create must fail if the key cannot be written, but succeeded")
	}
	if err := f.Create(root, a); err != nil {
		t.Fatalf("Create after a failed Create must succeed, but returned %v", err)
	}
	if err := f.Create(root, a); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create in a folder with a CA returned %v, want ErrExist", err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, caRootKey: 0o600, caIssuingKey: 0o600, caRoot: 0o644} {
		if st, err := os.Stat(filepath.Join(f.Dir, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("file %q of the CA folder has mode %v (error %v), want mode %o", name, st.Mode(), err, mode)
		}
	}
	r, err := f.Root()
	if err != nil {
		t.Fatal(err)
	}
	next, err := r.NewAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Replace(r, next); err != nil {
		t.Fatal(err)
	}
	got, err := f.Authority()
	if err != nil || got.ID() != next.ID() || !got.Root.Equal(root.Cert) {
		t.Errorf("Authority after Replace returned %v, want the new authority with the same root", err)
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "issuing-"+a.ID()[:16]+".pem")); err != nil {
		t.Error(err)
	}
	rootKey, err := os.ReadFile(f.RootKeyPath())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.RootKeyPath()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Root(); err == nil || !strings.Contains(err.Error(), "bring the root's key back") {
		t.Errorf("Root without its key returned %v, want the advice to bring the key back", err)
	}
	if _, err := f.Authority(); err != nil {
		t.Errorf("Authority must not need the root's key, but returned %v", err)
	}
	// Make a CA folder that still has the root's key, but has lost the issuing authority.
	kept := CAFolder{t.TempDir()}
	for name, data := range map[string][]byte{caRoot: EncodeCerts(root.Cert.Raw), caRootKey: rootKey} {
		if err := os.WriteFile(filepath.Join(kept.Dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r, err = kept.Root(); err != nil || r.Cluster() != "c1" {
		t.Fatalf("Root of a folder that holds only a root returned %v, want root c1", err)
	}
	if err := kept.Replace(r, next); err != nil {
		t.Errorf("Replace in a folder with only a root must succeed, but returned %v", err)
	}
	if got, err := kept.Authority(); err != nil || got.ID() != next.ID() {
		t.Errorf("Authority after Replace in a folder with only a root returned %v, want the new authority", err)
	}
	other, b := authority(t, "c1", now)
	if err := (CAFolder{t.TempDir()}).Replace(other, b); err == nil {
		t.Error("Replace must fail in an empty folder, but succeeded")
	}
	if err := f.Replace(other, b); err != nil {
		t.Errorf("Replace by a new root must succeed, but returned %v", err)
	}
	if got, err := f.Root(); err != nil || !got.Cert.Equal(other.Cert) {
		t.Errorf("Root after Replace by a new root returned %v, want the new root", err)
	}
}

// A change of roots is interrupted after it has written the first file, and is then repeated. The key of the old root
// must still be kept beside the new one.
func TestInterruptedChangeOfRootsKeepsTheKey(t *testing.T) {
	now := time.Now()
	f := CAFolder{t.TempDir()}
	root, a := authority(t, "c1", now)
	if err := f.Create(root, a); err != nil {
		t.Fatal(err)
	}
	former, err := os.ReadFile(f.RootKeyPath())
	if err != nil {
		t.Fatal(err)
	}
	other, b := authority(t, "c1", now)
	if err := f.Replace(other, &Authority{Cert: b.Cert, Root: b.Root, key: struct{ crypto.Signer }{}}); err == nil {
		t.Fatal("Replace must fail if the key cannot be written, but succeeded")
	}
	if err := f.Replace(other, b); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(filepath.Join(f.Dir, "root-key-"+a.ID()[:16]+".pem")); err != nil || !bytes.Equal(kept, former) {
		t.Errorf("Replace returned error %v, and whether it kept the key of the former root is %v; want that key beside the new one", err, bytes.Equal(kept, former))
	}
	if got, err := f.Root(); err != nil || !got.Cert.Equal(other.Cert) {
		t.Errorf("Root after the repeated Replace returned error %v, want the new root", err)
	}
}

// The file that marks an unfinished CA is removed if the CA is complete. If it stayed and the root
// certificate were missing later, Create would overwrite the CA.
func TestFileOfAnUnfinishedCAIsRemoved(t *testing.T) {
	now := time.Now()
	root, a := authority(t, "c1", now)
	for what, use := range map[string]func(CAFolder) error{
		"Create on a complete CA": func(f CAFolder) error {
			if err := f.Create(root, a); !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("Create in a folder with a CA returned %w, want ErrExist", err)
			}
			return nil
		},
		"replaced": func(f CAFolder) error { return f.Replace(root, a) },
	} {
		f := CAFolder{t.TempDir()}
		if err := f.Create(root, a); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(f.Dir, caUnfinished), nil, 0o600), use(f)); err != nil || f.has(caUnfinished) {
			t.Errorf("%s: Create returned error %v, and the file that marks an unfinished CA exists: %v; want neither", what, err, f.has(caUnfinished))
		}
	}
}

// An issuing authority with a damaged or missing file can be replaced by a new authority of the same root. The old
// authority's other files must be kept.
func TestDamagedCAFolder(t *testing.T) {
	now := time.Now()
	_, foreign := authority(t, "c1", now)
	foreignKey, err := x509.MarshalPKCS8PrivateKey(foreign.key)
	if err != nil {
		t.Fatal(err)
	}
	another := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: foreignKey})
	for what, damage := range map[string]func(dir string) error{
		"the certificate of the authority is missing":                       func(dir string) error { return os.Remove(filepath.Join(dir, caIssuing)) },
		"the key of the authority is missing":                               func(dir string) error { return os.Remove(filepath.Join(dir, caIssuingKey)) },
		"the key of another authority was written, but not its certificate": func(dir string) error { return os.WriteFile(filepath.Join(dir, caIssuingKey), another, 0o600) },
	} {
		f := CAFolder{filepath.Join(t.TempDir(), "ca")}
		root, a := authority(t, "c1", now)
		next, err := root.NewAuthority("c1", now)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Create(root, a), damage(f.Dir)); err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, name := range []string{caIssuing, caIssuingKey} {
			if data, err := os.ReadFile(filepath.Join(f.Dir, name)); err == nil {
				there[string(data)] = true
			}
		}
		other, b := authority(t, "c1", now)
		if err := f.Replace(other, b); err == nil {
			t.Errorf("%s: Replace must refuse another root, but accepted it", what)
		}
		if err := f.Replace(root, next); err != nil {
			t.Errorf("%s: Replace must succeed, but returned %v", what, err)
		}
		if got, err := f.Authority(); err != nil || got.ID() != next.ID() {
			t.Errorf("%s: Authority after Replace returned %v, want the new authority", what, err)
		}
		all, err := os.ReadDir(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			data, err := os.ReadFile(filepath.Join(f.Dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			delete(there, string(data))
		}
		if len(there) != 0 {
			t.Errorf("%s: the files of the former authority must be kept, but %d of them are lost", what, len(there))
		}
	}
}

// If the creation of a CA was interrupted, at whatever point, the next run completes the CA. It must not change keys
// that belong to another CA in the folder.
func TestUnfinishedCA(t *testing.T) {
	root, a := authority(t, "c1", time.Now())
	whole := CAFolder{t.TempDir()}
	if err := whole.Create(root, a); err != nil {
		t.Fatal(err)
	}
	order := []string{caRootKey, caIssuingKey, caIssuing}
	for n := range len(order) + 1 {
		for _, unfinished := range []bool{true, false} {
			f := CAFolder{t.TempDir()}
			for _, name := range order[:n] {
				if err := os.Link(filepath.Join(whole.Dir, name), filepath.Join(f.Dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if unfinished {
				if err := os.WriteFile(filepath.Join(f.Dir, caUnfinished), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			other, b := authority(t, "c1", time.Now())
			err := f.Create(other, b)
			if !unfinished && n > 0 {
				if !errors.Is(err, fs.ErrExist) {
					t.Errorf("with the keys %q of another CA in the folder Create returned %v, want an error and unchanged keys", order[:n], err)
				}
				continue
			}
			if got, aerr := f.Authority(); err != nil || aerr != nil || got.ID() != b.ID() || f.has(caUnfinished) {
				t.Errorf("after an interrupted creation that wrote only %q, Create returned error %v and Authority error %v; want the new CA", order[:n], err, aerr)
			}
		}
	}
}

func token(t testing.TB, root *Root, role Role) JoinToken {
	t.Helper()
	id, secret, err := fixed(t, 1).TokenSecret("a request")
	if err != nil {
		t.Fatal(err)
	}
	return JoinToken{ID: id, Secret: secret, Cluster: "c1", Role: role, Root: Fingerprint(root.Cert.Raw), Schedulers: []string{"127.0.0.1:8085"}, Expires: time.Unix(2e9, 0).UTC()}
}

func TestJoinTokenRoundTrip(t *testing.T) {
	root, _ := authority(t, "c1", time.Now())
	tok := token(t, root, RoleAgent)
	if again := token(t, root, RoleAgent); again.ID != tok.ID || string(again.Secret) != string(tok.Secret) {
		t.Error("TokenSecret must return the same token for the same request id, but returned two")
	}
	if id, secret, err := fixed(t, 1).TokenSecret("another request"); err != nil || id == tok.ID || string(secret) == string(tok.Secret) {
		t.Error("TokenSecret must return two tokens for two request ids, but returned the same one")
	}
	text, err := tok.Export()
	if err != nil || !IsJoinToken(text) || IsJoinToken("10.0.0.1:8088") {
		t.Fatalf("Export returned %q, error %v, want a text that IsJoinToken recognises", text, err)
	}
	got, err := ParseJoinToken(" " + text + "\n")
	if err != nil || fmt.Sprint(got) != fmt.Sprint(tok) || string(got.Secret) != string(tok.Secret) || got.Root != tok.Root {
		t.Errorf("ParseJoinToken returned %v, error %v, want the same token", got, err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(verb, tok); strings.Contains(s, string(tok.Secret)) || strings.Contains(s, fmt.Sprintf("%x", tok.Secret)) || strings.Contains(s, "ecret") {
			t.Errorf("a join token formatted with %s must not show its secret, but is %s", verb, s)
		}
	}
	bad := func(edit func(*JoinToken)) string {
		c := tok
		edit(&c)
		s, err := c.Export()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, s := range map[string]string{
		"nothing": "", "an address": "10.0.0.1:8088", "cut": text[:len(text)-1], "mistyped": strings.Replace(text, "e", "f", 1),
		"too long": text + strings.Repeat("x", tokenMax), "no secret": bad(func(t *JoinToken) { t.Secret = nil }),
		"no root": bad(func(t *JoinToken) { t.Root = "00" }), "another root": bad(func(t *JoinToken) { t.Roots = []string{"00"} }), "no schedulers": bad(func(t *JoinToken) { t.Schedulers = nil }),
		"another role": bad(func(t *JoinToken) { t.Role = "root" }),
	} {
		if _, err := ParseJoinToken(s); err == nil {
			t.Errorf("ParseJoinToken must refuse a token with a defect, but accepted: %s", name)
		}
	}
}

func FuzzParseJoinToken(f *testing.F) {
	root, _ := authority(f, "c1", time.Now())
	text, err := token(f, root, RoleAgent).Export()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(tokenPrefix + "e30." + checksum(tokenPrefix+"e30"))
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseJoinToken(s)
		if err == nil && (tok.ID == "" || !tok.Role.Valid() || len(tok.Secret) != secretBytes || len(tok.Root) != 64) {
			t.Fatalf("ParseJoinToken of %q must return an error or a complete token, but returned %v", s, tok)
		}
	})
}

// TestTokenPinsTheCluster: a join token contains the fingerprint of the cluster's root CA. A program that joins with
// the token must accept only a scheduler whose certificate was issued under this root.
func TestTokenPinsTheCluster(t *testing.T) {
	now := time.Now()
	root, a := authority(t, "c1", now)
	_, foreign := authority(t, "c1", now)
	pair := func(a *Authority, role Role, life time.Duration, hosts ...string) tls.Certificate {
		keyPEM, csr := request(t, hosts...)
		got, err := a.Sign(csr, Identity{Role: role, ID: "s1"}, Hosts{Requested: true}, now, life)
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(got.Chain, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	forged := pair(foreign, RoleScheduler, time.Hour, "10.0.0.1")
	// Make a forged chain: it ends with the root of the cluster, but this root has not signed the certificate before
	// it in the chain.
	forged.Certificate = append(forged.Certificate, root.Cert.Raw)
	for _, tc := range []struct {
		name string
		cert tls.Certificate
		host string
		at   time.Time
		want string
		more []string // fingerprints of further trusted roots in the token
	}{
		{"a scheduler of the cluster", pair(a, RoleScheduler, time.Hour, "10.0.0.1"), "10.0.0.1", now, "", nil},
		{"a scheduler under a further root of the cluster", pair(foreign, RoleScheduler, time.Hour, "10.0.0.1"), "10.0.0.1", now, "", []string{Fingerprint(foreign.Root.Raw)}},
		{"a scheduler of another CA", pair(foreign, RoleScheduler, time.Hour, "10.0.0.1"), "10.0.0.1", now, "not a scheduler of the cluster", nil},
		{"a foreign certificate that adds our root to its chain", forged, "10.0.0.1", now, "certificate signed by unknown authority", nil},
		{"an agent of the cluster", pair(a, RoleAgent, time.Hour, "10.0.0.1"), "10.0.0.1", now, "it is agent", nil},
		{"a scheduler at another host", pair(a, RoleScheduler, time.Hour, "10.0.0.1"), "10.0.0.2", now, "10.0.0.2", nil},
		{"an expired certificate", pair(a, RoleScheduler, time.Minute, "10.0.0.1"), "10.0.0.1", now.Add(time.Hour), "expired", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, server := net.Pipe()
			defer client.Close()
			defer server.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = tls.Server(server, &tls.Config{Certificates: []tls.Certificate{tc.cert}, NextProtos: []string{"h2"}}).Handshake()
			}()
			tok := token(t, root, RoleAgent)
			tok.Roots = tc.more
			cfg := tok.ClientConfig(tc.host, func() time.Time { return tc.at })
			err := tls.Client(client, cfg).Handshake()
			client.Close()
			<-done
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the handshake with the join token returned %v, want an error that contains %q, or none if it is empty", err, tc.want)
			}
		})
	}
}

func TestIdentityStoreRoundTrip(t *testing.T) {
	now := time.Now()
	root, a := authority(t, "c1", now)
	k := IdentityStore{filepath.Join(t.TempDir(), "tls")}
	if k.Exists() {
		t.Error("Exists of an IdentityStore in an empty folder must be false, but is true")
	}
	if m, err := k.Membership(); err != nil || m.Cluster != "" {
		t.Errorf("the membership of an empty folder is %+v, error %v, want an empty one", m, err)
	}
	save := func(id Identity) {
		t.Helper()
		keyPEM, csr := request(t, "10.0.0.1")
		got, err := a.Sign(csr, id, Hosts{Requested: true}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Save(keyPEM, got.Chain, EncodeCerts(root.Cert.Raw, root.Cert.Raw)); err != nil {
			t.Fatal(err)
		}
	}
	save(Identity{Role: RoleAgent, ID: "n1"})
	clock := now
	p := k.Paths()
	files, err := LoadFiles(FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Now: func() time.Time { return clock }})
	if err != nil || files.Identity().ID != "n1" {
		t.Fatalf("the stored identity is %+v, error %v, want node n1", files.Identity(), err)
	}
	save(Identity{Role: RoleAgent, ID: "n2"})
	clock = clock.Add(2 * checkEvery)
	if id := files.Identity(); id.ID != "n2" {
		t.Errorf("after a renewal the stored identity has the id %s, want n2", id)
	}
	if st, err := os.Stat(p.Key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %v, error %v, want 0600", st.Mode(), err)
	}
	if err := k.SaveRoots([]byte("nothing")); err == nil {
		t.Error("SaveRoots must refuse an empty list of roots, but accepted it")
	}
	want := Membership{Cluster: "c1", Role: RoleAgent, Name: "n2", Schedulers: []string{"10.0.0.1:8085"}}
	if err := k.SaveMembership(want); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Membership(); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the stored membership is %+v, error %v, want the saved one", got, err)
	}
}

// A join is interrupted and repeated with the same token. The repeated request must use the same private key, until
// the whole answer to a request is stored.
func TestInterruptedJoinKeepsItsKey(t *testing.T) {
	now := time.Now()
	_, a := authority(t, "c1", now)
	k := IdentityStore{t.TempDir()}
	inTheWay := filepath.Join(k.Dir, membershipFile)
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	var first []byte
	join := func() error {
		t.Helper()
		keyPEM, csr, err := k.Request(nil)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = keyPEM
		} else if !bytes.Equal(keyPEM, first) {
			t.Error("Request repeated after an interrupted join must use the same private key, but uses another")
		}
		got, err := a.Sign(csr, Identity{Role: RoleScheduler, ID: "s1"}, Hosts{Requested: true}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return k.SaveJoined(keyPEM, got.Chain, EncodeCerts(a.Root.Raw), Membership{Name: "s1", Token: "t"})
	}
	if err := join(); err == nil {
		t.Fatal("SaveJoined must fail if it cannot write the membership file, but succeeded")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := join(); err != nil {
		t.Fatal(err)
	}
	if m, err := k.Membership(); err != nil || m.Token != "t" || !k.Exists() {
		t.Errorf("the membership after the join is %+v, error %v, want token t, and a stored identity", m, err)
	}
	if next, _, err := k.Request(nil); err != nil || bytes.Equal(next, first) {
		t.Errorf("Request after a finished join must use a new key, but reused the old one, error %v", err)
	}
}

func TestIdentifyRefusesExpiredCertificates(t *testing.T) {
	now := time.Now()
	_, a := authority(t, "c1", now)
	k := IdentityStore{t.TempDir()}
	keyPEM, csr := request(t)
	own, err := a.Sign(csr, Identity{Role: RoleScheduler, ID: "s1"}, Hosts{Requested: true}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Save(keyPEM, own.Chain, EncodeCerts(a.Root.Raw)); err != nil {
		t.Fatal(err)
	}
	clock := now
	p := k.Paths()
	files, err := LoadFiles(FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Sign(csr, Identity{Role: RoleAgent, ID: "n1"}, Hosts{Requested: true}, now, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(got.Chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	check := func(name, want string) {
		t.Helper()
		_, err := files.Identify(state)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("if the peer's certificate is %s, Identify returned %v, want an error that contains %q, or none if it is empty", name, err, want)
		}
	}
	check("valid and not revoked", "")
	files.Revoke(&Revoked{Certificates: map[string]bool{Fingerprint(leaf.Raw): true}})
	check("revoked by fingerprint", "is revoked")
	files.Revoke(&Revoked{Identities: map[string]time.Time{"agent/n1": now.Add(time.Second)}})
	check("issued before the revocation of its identity", "persysctl token create --role agent --name n1")
	files.Revoke(&Revoked{Identities: map[string]time.Time{"agent/n1": now.Add(-time.Minute)}})
	check("issued after the revocation of its identity", "")
	files.Revoke(&Revoked{Identities: map[string]time.Time{"agent/n2": now.Add(time.Minute)}})
	check("not revoked, but that of another agent is", "")
	files.Revoke(nil)
	clock = now.Add(11 * time.Minute)
	check("expired on an open connection", "expired at")
}
