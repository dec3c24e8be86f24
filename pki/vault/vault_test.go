package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault/vaulttest"
	"github.com/persys/compute/testbed"
)

func server(t *testing.T) *vaulttest.Server {
	t.Helper()
	s, err := vaulttest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func paths(dir string) pki.Paths {
	return pki.Paths{CA: filepath.Join(dir, "certs", "ca.pem"), Cert: filepath.Join(dir, "certs", "cert.pem"), Key: filepath.Join(dir, "certs", "key.pem")}
}

func config(s *vaulttest.Server, dir string) Config {
	return Config{
		Access: Access{Addr: s.URL, Auth: "approle", RoleID: vaulttest.RoleID, SecretID: vaulttest.SecretID},
		Mount:  "pki", Role: "compute-agent", TTL: time.Hour, Retry: 20 * time.Millisecond, Service: "compute-agent", Domain: "example.com",
		Hosts: []string{"node-7", "192.0.2.7"}, Bind: "0.0.0.0", Files: paths(dir),
	}
}

func source(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func leafAt(t *testing.T, p pki.Paths) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// The request to Vault has the form that the contract describes, and the issued certificate works for mutual
// TLS.
func TestIssuedCertificateWorks(t *testing.T) {
	for _, auth := range []string{"token", "approle"} {
		t.Run(auth, func(t *testing.T) {
			v := server(t)
			cfg := config(v, t.TempDir())
			cfg.Auth, cfg.Token = auth, vaulttest.Token
			if err := source(t, cfg).Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			asked := v.Issued()
			if len(asked) != 1 {
				t.Fatalf("Vault issued %d certificates, want 1", len(asked))
			}
			host, err := os.Hostname()
			if err != nil {
				t.Fatal(err)
			}
			short, _, _ := strings.Cut(host, ".")
			for key, want := range map[string][]string{
				"common_name": {"compute-agent"}, "ttl": {"1h0m0s"},
				"alt_names": {"compute-agent", "localhost", "compute-agent.example.com", host, short + ".example.com", "node-7"},
				"ip_sans":   {"127.0.0.1", "::1", "192.0.2.7"},
			} {
				have := strings.Split(fmt.Sprint(asked[0][key]), ",")
				for _, w := range want {
					if !slices.Contains(have, w) {
						t.Errorf("the field %s of the request to Vault is %v, want one that contains %s", key, have, w)
					}
				}
			}
			for path, mode := range map[string]os.FileMode{cfg.Files.Key: 0o600, cfg.Files.Cert: 0o644, cfg.Files.CA: 0o644, filepath.Dir(cfg.Files.Key): 0o700 | os.ModeDir} {
				if st, err := os.Stat(path); err != nil || st.Mode() != mode {
					t.Errorf("file %s has mode %v, want %v (error %v)", path, st.Mode(), mode, err)
				}
			}
			files, err := pki.LoadFiles(pki.FilesConfig{CA: cfg.Files.CA, Cert: cfg.Files.Cert, Key: cfg.Files.Key, Mapping: pki.LegacyMapping("")})
			if err != nil {
				t.Fatal(err)
			}
			if id := files.Identity(); id.Role != pki.RoleAgent || id.ID != "node-7" {
				t.Errorf("the certificate from Vault has the identity %v, want agent node-7", id)
			}
			if err := handshake(files); err != nil {
				t.Errorf("mutual TLS with the certificate from Vault must succeed, but returned %v", err)
			}
		})
	}
}

func handshake(f *pki.Files) error {
	l, err := tls.Listen("tcp", "127.0.0.1:0", f.ServerConfig(pki.ServerOptions{}))
	if err != nil {
		return err
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write([]byte{1})
			err = errors.Join(err, c.Close())
		}
		ended <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), f.ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}}))
	if err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return errors.Join(err, c.Close(), <-ended)
}

func TestStartFindsACertificate(t *testing.T) {
	issue := func(t *testing.T, cfg Config) {
		t.Helper()
		if err := source(t, cfg).Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a valid certificate of this program is kept", func(t *testing.T) {
		v := server(t)
		cfg := config(v, t.TempDir())
		issue(t, cfg)
		if err := source(t, cfg).Start(t.Context()); err != nil || len(v.Issued()) != 1 {
			t.Errorf("a second Start returned %v and Vault issued %d certificates in all, want success and one certificate", err, len(v.Issued()))
		}
	})
	t.Run("a certificate of another program is replaced", func(t *testing.T) {
		v := server(t)
		cfg := config(v, t.TempDir())
		other := cfg
		other.Service, other.Domain, other.Hosts = "other", "", nil
		issue(t, other)
		cfg.Service = "mine"
		if err := source(t, cfg).Start(t.Context()); err != nil || leafAt(t, cfg.Files).Subject.CommonName != "mine" {
			t.Errorf("Start returned %v, the stored certificate is for %s, want one for the service mine", err, leafAt(t, cfg.Files).Subject.CommonName)
		}
	})
	t.Run("Start fails if Vault is unreachable and no certificate is stored", func(t *testing.T) {
		v := server(t)
		v.Seal(true)
		err := source(t, config(v, t.TempDir())).Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), "Vault is sealed") || !strings.Contains(err.Error(), "cert.pem") {
			t.Errorf("Start returned %v, want an error that names the sealed Vault and the missing file", err)
		}
	})
	t.Run("an expired certificate is used until Vault is reachable again", func(t *testing.T) {
		v := server(t)
		cfg := config(v, t.TempDir())
		cfg.TTL = time.Second
		issue(t, cfg)
		old := leafAt(t, cfg.Files)
		cfg.Now = func() time.Time { return time.Now().Add(2 * time.Second) }
		cfg.TTL = time.Hour
		v.Seal(true)
		s := source(t, cfg)
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, s)
		v.Seal(false)
		renewed(t, cfg.Files, old)
	})
	t.Run("Start fails with wrong credentials", func(t *testing.T) {
		v := server(t)
		for _, tc := range []struct {
			set  func(*Config)
			want string
		}{
			{func(c *Config) { c.SecretID = "guessed" }, "APPROLE_ROLE_ID: it answered 400: invalid role or secret ID"},
			{func(c *Config) { c.Auth, c.Token = "token", "guessed" }, "PERSYS_VAULT_TOKEN: it answered 403: permission denied"},
			{func(c *Config) { c.Mount = "none" }, "none/issue/compute-agent: it answered 404"},
		} {
			cfg := config(v, t.TempDir())
			tc.set(&cfg)
			err := source(t, cfg).Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "guessed") {
				t.Errorf("Start with wrong credentials returned %v, want an error that contains %q and not the credentials", err, tc.want)
			}
		}
	})
}

// run calls Run of a source until the test ends.
func run(t *testing.T, s *Source) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
}

// renewed waits until the files hold a certificate other than old.
func renewed(t *testing.T, p pki.Paths, old *x509.Certificate) {
	t.Helper()
	testbed.Until(t, "another certificate", func() bool {
		// While the key and certificate files are being replaced, they do not match for a moment; then try
		// again.
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		return err == nil && !pair.Leaf.Equal(old)
	})
}

// A running program gets a new certificate before the old one expires, although Vault is
// unreachable for a while.
func TestRunRenewsInTime(t *testing.T) {
	v := server(t)
	cfg := config(v, t.TempDir())
	cfg.TTL = 2 * time.Second
	s := source(t, cfg)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := leafAt(t, cfg.Files)
	v.Seal(true)
	run(t, s)
	testbed.Until(t, "Vault has refused several requests of the program", func() bool { return v.Refused() >= 3 })
	v.Seal(false)
	renewed(t, cfg.Files, first)
}

// A certificate that cannot be written to its file is kept in memory, so Vault does not issue another one for
// each attempt.
func TestACertificateThatCannotBeWrittenIsIssuedOnce(t *testing.T) {
	v := server(t)
	cfg := config(v, t.TempDir())
	s := source(t, cfg)
	inTheWay := filepath.Join(cfg.Files.Cert, "in", "the", "way")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if s.Renew(t.Context()) == nil {
			t.Fatal("Renew must fail where the file is a folder, but succeeded")
		}
	}
	if err := os.RemoveAll(cfg.Files.Cert); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	leafAt(t, cfg.Files)
	if n := len(v.Issued()); n != 1 {
		t.Errorf("Vault issued %d certificates, want 1", n)
	}
	if err := s.Renew(t.Context()); err != nil || len(v.Issued()) != 2 {
		t.Errorf("Renew returned %v; Vault issued %d certificates, want a second certificate after the first was written", err, len(v.Issued()))
	}
}

func TestRenewAtLeavesTime(t *testing.T) {
	from := time.Unix(1_000_000, 0)
	for life, want := range map[time.Duration]time.Duration{
		24 * time.Hour:    24 * time.Hour * 8 / 10,
		150 * time.Second: 120 * time.Second,
		100 * time.Second: 70 * time.Second, // a certificate valid for 100 s is renewed 30 s before its end
		40 * time.Second:  20 * time.Second, // a certificate valid for 40 s is renewed not before half of that time
	} {
		if got := RenewAt(&x509.Certificate{NotBefore: from, NotAfter: from.Add(life)}).Sub(from); got != want {
			t.Errorf("a certificate valid for %s is renewed after %s, want %s", life, got, want)
		}
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		a    Access
		want string
	}{
		{Access{Addr: "vault:8200", Auth: "token", Token: "x"}, "PERSYS_VAULT_ADDR"},
		{Access{Addr: "http://vault:8200", Auth: "token"}, "PERSYS_VAULT_TOKEN"},
		{Access{Addr: "http://vault:8200", Auth: "approle", RoleID: "x"}, "PERSYS_VAULT_APPROLE_SECRET_ID"},
		{Access{Addr: "http://vault:8200", Auth: "approle", Settings: "PERSYS_GATEWAY_VAULT_"}, "PERSYS_GATEWAY_VAULT_ROLE_ID or PERSYS_GATEWAY_VAULT_SECRET_ID"},
		{Access{Addr: "http://vault:8200", Auth: "ldap", Settings: "PERSYS_GATEWAY_VAULT_"}, "PERSYS_GATEWAY_VAULT_AUTH_METHOD"},
	} {
		if err := tc.a.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Check of the access settings returned %v, want an error that names %s", err, tc.want)
		}
	}
}

// A key file that was encrypted with Vault's transit engine cannot be read without Vault.
func TestTransitWrapsTheKey(t *testing.T) {
	v := server(t)
	tr := Transit{Access: config(v, "").Access, Mount: "transit", Key: "persys"}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
	f := pki.KeyFile{Path: filepath.Join(t.TempDir(), "cluster.key"), Wrap: tr}
	key, _, err := f.LoadOrCreate()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.Path)
	if err != nil || !strings.HasPrefix(string(raw), "persys-wrapped-key-1.transit.vault:v1:") || strings.Contains(string(raw), strings.Split(key.Export(), ".")[2]) {
		t.Errorf("the key file contains %q (error %v), want only a key that is wrapped by transit", raw, err)
	}
	if again, err := f.Load(); err != nil || again.ID() != key.ID() {
		t.Errorf("Load returned key %v, error %v, want the same key", again, err)
	}
	if _, err := pki.LoadKey(f.Path); err == nil || !strings.Contains(err.Error(), "encrypted by transit") {
		t.Errorf("LoadKey of a wrapped key without Vault returned %v, want an error that says that the key is encrypted by transit", err)
	}
	v.Seal(true)
	if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("Load with a sealed Vault returned %v, want an error that says Vault is sealed", err)
	}
}
