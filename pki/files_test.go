package pki

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// clock is a clock that a test can advance. The zero value shows the real time.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time           { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration)  { c.ahead.Add(int64(d)) }
func set(t testing.TB, dir string) DevSet { return setFor(t, dir, DevOptions{Cluster: "c1"}) }

func setFor(t testing.TB, dir string, opt DevOptions) DevSet {
	t.Helper()
	s, err := DevCerts(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p Paths) config() FilesConfig {
	return FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: LegacyMapping("c1")}
}

func load(t testing.TB, cfg FilesConfig) *Files {
	t.Helper()
	f, err := LoadFiles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// handshake connects client to server over loopback and returns the errors of both sides.
func handshake(t *testing.T, server, client *tls.Config) (seen tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		s := tls.Server(c, server)
		if err := s.HandshakeContext(ctx); err != nil {
			done <- err
			return
		}
		seen = s.ConnectionState()
		_, err = s.Write([]byte{1})
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, client)
	if clientErr = c.HandshakeContext(ctx); clientErr == nil {
		// In TLS 1.3 the client's handshake ends before the server has checked the client's certificate. So the client
		// learns of a refusal only at its first read.
		_, clientErr = c.Read(make([]byte, 1))
	}
	raw.Close()
	return seen, <-done, clientErr
}

func TestMutualTLS(t *testing.T) {
	leaf := set(t, t.TempDir()).Leaf
	other := set(t, t.TempDir()).Leaf
	here := []string{"127.0.0.1"}
	for _, tc := range []struct {
		name   string
		client Paths
		roles  []Role
		peer   Peer
		server string // text of the error that the server must return; "" = none
		err    string // text of the error that the client must return; "" = none
	}{
		{name: "an agent reaches a scheduler by address", client: leaf["agent/node-a"], peer: Peer{Hosts: here, Role: RoleScheduler}},
		{name: "a scheduler reaches a scheduler by name", client: leaf["scheduler/scheduler-2"], roles: []Role{RoleScheduler}, peer: Peer{Hosts: []string{"localhost"}}},
		{name: "one valid host of two is enough", client: leaf["user/admin"], peer: Peer{Hosts: []string{"x.example.com", "127.0.0.1"}}},
		{name: "a role that may not connect is refused", client: leaf["agent/node-a"], roles: []Role{RoleScheduler}, peer: Peer{Hosts: here},
			server: "role agent may not connect", err: "bad certificate"},
		{name: "a client of another CA is refused", client: Paths{CA: leaf["agent/node-a"].CA, Cert: other["agent/node-a"].Cert, Key: other["agent/node-a"].Key}, peer: Peer{Hosts: here},
			server: "unknown authority", err: "unknown certificate authority"},
		{name: "a server of another CA is refused", client: other["agent/node-a"], peer: Peer{Hosts: here},
			server: "bad certificate", err: "is not valid for the CA in"},
		{name: "a wrong host is refused", client: leaf["agent/node-a"], peer: Peer{Hosts: []string{"x.example.com"}},
			server: "bad certificate", err: "x.example.com"},
		{name: "a wrong role is refused", client: leaf["agent/node-a"], peer: Peer{Hosts: here, Role: RoleGateway},
			server: "bad certificate", err: "want role gateway"},
		{name: "a dial without a host is refused", client: leaf["agent/node-a"], server: "bad certificate", err: "no host name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := load(t, leaf["scheduler/scheduler-1"].config())
			client := load(t, tc.client.config())
			state, serr, cerr := handshake(t, server.ServerConfig(ServerOptions{Roles: tc.roles}), client.ClientConfig(tc.peer))
			match := func(side string, err error, want string) {
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("the handshake of the %s returned error %v, want an error that contains %q, or none if it is empty", side, err, want)
				}
			}
			match("server", serr, tc.server)
			match("client", cerr, tc.err)
			if serr == nil {
				if id, err := server.Identify(state); err != nil || id != client.Identity() {
					t.Errorf("the server identifies the client as %v (error %v), want %v", id, err, client.Identity())
				}
			}
		})
	}
}

func TestClientWithoutCertificateIsRefused(t *testing.T) {
	server := load(t, set(t, t.TempDir()).Leaf["scheduler/scheduler-1"].config())
	_, serr, _ := handshake(t, server.ServerConfig(ServerOptions{}), &tls.Config{InsecureSkipVerify: true})
	if serr == nil {
		t.Error("a client without a certificate must be refused, but was accepted")
	}
	_, serr, _ = handshake(t, server.ServerConfig(ServerOptions{}), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if serr == nil || !strings.Contains(serr.Error(), "version") {
		t.Errorf("a handshake with TLS 1.1 returned %v, want an error about the version", serr)
	}
}

func TestLoadFilesRefusesWrongFiles(t *testing.T) {
	dir := t.TempDir()
	leaf := set(t, dir).Leaf
	good, other := leaf["agent/node-a"], leaf["agent/node-b"]
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, pemMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		p    Paths
		want []string
	}{
		{"the path of the certificate is not set", Paths{CA: good.CA, Key: good.Key}, []string{"PERSYS_TLS_CERT is not set", "PERSYS_TLS_KEY", "-insecure"}},
		{"the CA file is missing", Paths{good.CA, dir + "/none", good.Key}, []string{dir + "/none", "set PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY", "-insecure"}},
		{"the CA file has no certificate", Paths{junk, good.Cert, good.Key}, []string{"PERSYS_TLS_CA=" + junk, "no PEM certificate"}},
		{"the CA file is a key file", Paths{good.Key, good.Cert, good.Key}, []string{"no PEM certificate"}},
		{"the certificate file has no certificate", Paths{good.CA, junk, good.Key}, []string{"PERSYS_TLS_CERT=" + junk}},
		{"the key file has the key of another certificate", Paths{good.CA, good.Cert, other.Key}, []string{other.Key, "does not match"}},
		{"the CA file is larger than the limit", Paths{big, good.Cert, good.Key}, []string{"PERSYS_TLS_CA=" + big, "limit 1048576"}},
		{"the path of the CA file is a folder", Paths{dir, good.Cert, good.Key}, []string{"PERSYS_TLS_CA=" + dir}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LoadFiles(tc.p.config())
			if err == nil {
				t.Fatal("LoadFiles must refuse the files, but accepted them")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("LoadFiles returned the error %v\nwant one that contains %q", err, want)
				}
			}
		})
	}
	cfg := good.config()
	cfg.Mapping = LegacyMapping("c2")
	if _, err := LoadFiles(cfg); err == nil || !strings.Contains(err.Error(), `cluster "c1"`) {
		t.Errorf("LoadFiles of a certificate of another cluster returned %v, want an error that names the cluster", err)
	}
}

func TestCredentialsAreReloaded(t *testing.T) {
	dir := t.TempDir()
	c := &clock{}
	leaf := set(t, dir).Leaf["agent/node-a"]
	cfg := leaf.config()
	cfg.Now = c.now
	f := load(t, cfg)
	before := f.Identity()
	stranger := load(t, set(t, t.TempDir()).Leaf["scheduler/scheduler-1"].config())
	try := func() error {
		_, _, err := handshake(t, stranger.ServerConfig(ServerOptions{}), f.ClientConfig(Peer{Hosts: []string{"127.0.0.1"}}))
		return err
	}
	if try() == nil {
		t.Fatal("before the reload a server with a certificate of another CA must be refused, but was accepted")
	}

	// Replace only the key file, as if the files were read in the middle of a renewal. The old key and certificate
	// must stay in use.
	oldKey, _ := os.ReadFile(leaf.Key)
	_, newKey, err := makeKey()
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, data []byte) {
		t.Helper()
		if err := WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(leaf.Key, newKey)
	if err := f.Status().Err; err != nil {
		t.Errorf("the files must not be read again within a second of the last check, but were: %v", err)
	}
	c.advance(2 * time.Second)
	st := f.Status()
	if st.Err == nil || !strings.Contains(st.Err.Error(), leaf.Key) || st.Identity != before {
		t.Errorf("with a certificate and key that do not match, the status is %+v, want an error that names the key file, and the former identity", st)
	}
	write(leaf.Key, oldKey)
	c.advance(2 * time.Second)
	if st := f.Status(); st.Err != nil || st.Identity != before {
		t.Errorf("with the former certificate and key restored, the status is %+v, want no error and the former identity", st)
	}

	// Remove the CA file. The key and certificate that were read before must stay in use.
	if err := os.Remove(leaf.CA); err != nil {
		t.Fatal(err)
	}
	c.advance(2 * time.Second)
	if st := f.Status(); st.Err == nil || !strings.Contains(st.Err.Error(), "PERSYS_TLS_CA") {
		t.Errorf("with a missing CA the status is %+v, want an error that names PERSYS_TLS_CA", st)
	}

	// Replace all three files. The tls.Configs that exist already must use the new certificate and the new CA.
	fresh := set(t, filepath.Dir(filepath.Dir(filepath.Dir(stranger.cfg.CA)))).Leaf["agent/node-a"]
	for from, to := range map[string]string{fresh.CA: leaf.CA, fresh.Cert: leaf.Cert, fresh.Key: leaf.Key} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(to, b)
	}
	c.advance(2 * time.Second)
	if err := try(); err != nil {
		t.Errorf("the handshake after the reload of all three files returned %v, want success", err)
	}
	if st := f.Status(); st.Err != nil || st.Identity.Fingerprint == before.Fingerprint {
		t.Errorf("the status after the reload is %+v, want the new identity without an error", st)
	}
}

func TestServerUsesReloadedCredentials(t *testing.T) {
	c := &clock{}
	a, b := set(t, t.TempDir()), set(t, t.TempDir())
	leaf := a.Leaf["scheduler/scheduler-1"]
	cfg := leaf.config()
	cfg.Now = c.now
	server := load(t, cfg).ServerConfig(ServerOptions{})
	client := load(t, b.Leaf["agent/node-a"].config()).ClientConfig(Peer{Hosts: []string{"127.0.0.1"}})
	if _, serr, _ := handshake(t, server, client); serr == nil {
		t.Fatal("before the reload a client with a certificate of another CA must be refused, but was accepted")
	}
	next := b.Leaf["scheduler/scheduler-1"]
	for from, to := range map[string]string{next.CA: leaf.CA, next.Cert: leaf.Cert, next.Key: leaf.Key} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(2 * time.Second)
	if _, serr, cerr := handshake(t, server, client); serr != nil || cerr != nil {
		t.Errorf("the handshake after the reload returned server error %v, client error %v, want success", serr, cerr)
	}
}

func TestWarningsOfCredentials(t *testing.T) {
	c := &clock{}
	leaf := setFor(t, t.TempDir(), DevOptions{Cluster: "c1", Life: time.Hour}).Leaf["agent/node-a"]
	cfg := leaf.config()
	cfg.Now = c.now
	f := load(t, cfg)
	if w := f.Status().Warnings; len(w) != 0 {
		t.Errorf("the status of new certificates must have no warnings, but has: %v", w)
	}
	c.advance(2 * time.Hour)
	if st := f.Status(); st.Err != nil || len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "expired at") {
		t.Errorf("the status of expired credentials is %+v, want one warning that names the expiry", st)
	}
	if _, err := LoadFiles(cfg); err != nil {
		t.Errorf("an expired certificate must not keep LoadFiles from succeeding, but did: %v", err)
	}
	if err := os.Chmod(leaf.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if w := load(t, leaf.config()).Status().Warnings; len(w) != 1 || !strings.Contains(w[0], "mode 0644") {
		t.Errorf("the warnings about a key file that everybody can read are %v, want one that names mode 0644", w)
	}
}

func TestIdentifyWithoutCertificate(t *testing.T) {
	f := load(t, set(t, t.TempDir()).Leaf["agent/node-a"].config())
	if _, err := f.Identify(tls.ConnectionState{}); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("Identify without a certificate returned %v, want ErrNoIdentity", err)
	}
}

// Await returns an error when the certificate expires or is revoked, and nil when its context ends.
func TestAwaitEndsAtRevocationAndExpiry(t *testing.T) {
	s := set(t, t.TempDir())
	var c clock
	cfg := s.Leaf["scheduler/scheduler-1"].config()
	cfg.Now = c.now
	f := load(t, cfg)
	peer := load(t, s.Leaf["user/admin"].config())
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{peer.Leaf()}}
	await := func(ctx context.Context) chan error {
		end := make(chan error, 1)
		go func() { end <- f.Await(ctx, state) }()
		return end
	}
	within := func(end chan error) error {
		select {
		case err := <-end:
			return err
		case <-time.After(5 * time.Second):
			t.Fatal("Await must return, but still waits")
			return nil
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := await(ctx)
	f.Revoke(&Revoked{Identities: map[string]time.Time{"user/somebody": time.Now()}})
	cancel()
	if err := within(end); err != nil {
		t.Errorf("Await returned %v after the revocation of another identity, want that it waits until ctx is cancelled and then returns nil", err)
	}
	end = await(t.Context())
	f.Revoke(&Revoked{Certificates: map[string]bool{Fingerprint(peer.Leaf().Raw): true}})
	if err := within(end); !errors.Is(err, ErrRevoked) {
		t.Errorf("Await after the revocation returned %v, want ErrRevoked", err)
	}
	f.Revoke(nil)
	// Set the clock to 200 ms before the certificate expires.
	c.advance(time.Until(peer.Leaf().NotAfter) - 200*time.Millisecond)
	if err := within(await(t.Context())); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("Await after the expiry returned %v, want that it expired", err)
	}
}

// leafOf issues a certificate with a common name and, for programs of this project, a persys:// URI.
func leafOf(t *testing.T, dir string, a *Authority, cn string, id *Identity) Paths {
	t.Helper()
	key, keyPEM, err := makeKey()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn}, DNSNames: []string{cn},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if id != nil {
		uri, err := id.URI()
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = []*url.URL{uri}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	k := IdentityStore{Dir: filepath.Join(dir, cn)}
	if err := k.Save(keyPEM, EncodeCerts(der, a.Cert.Raw), EncodeCerts(a.Root.Raw)); err != nil {
		t.Fatal(err)
	}
	return k.Paths()
}

// A client accepts a server certificate without an identity if its CA and host are valid. It refuses a
// certificate with the service name of a legacy v1 program of another role.
func TestServersWithoutIdentity(t *testing.T) {
	root, err := NewRoot("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := root.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	client := FilesConfig{}
	own := leafOf(t, dir, a, "client", nil)
	client.CA, client.Cert, client.Key = own.CA, own.Cert, own.Key
	for cn, ok := range map[string]bool{"persys-scheduler": true, "control.example.com": true, "compute-agent": false, "persysctl": false} {
		server := load(t, leafOf(t, dir, a, cn, nil).config()).ServerConfig(ServerOptions{})
		_, _, err := handshake(t, server, load(t, client).ClientConfig(Peer{Hosts: []string{"127.0.0.1"}, Role: RoleScheduler}))
		if (err == nil) != ok {
			t.Errorf("a client that expects a scheduler got error %[2]v from a server with the certificate name %[1]s, want an error only for names of other roles", cn, err)
		}
	}
}

// Programs of this project must use TLS 1.3. Peers with certificates of other CAs may use 1.2.
func TestOldTLSVersionsAreRefused(t *testing.T) {
	root, err := NewRoot("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := root.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	scheduler := leafOf(t, dir, a, "ours", &Identity{Cluster: "c1", Role: RoleScheduler, ID: "s1"})
	agent := leafOf(t, dir, a, "ours-too", &Identity{Cluster: "c1", Role: RoleAgent, ID: "n1"})
	old := leafOf(t, dir, a, "compute-agent", nil)
	oldServer := leafOf(t, dir, a, "persys-scheduler", nil)
	capped := func(c *tls.Config) *tls.Config {
		c.MaxVersion = tls.VersionTLS12
		if of := c.GetConfigForClient; of != nil {
			c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				inner, err := of(h)
				inner.MaxVersion = tls.VersionTLS12
				return inner, err
			}
		}
		return c
	}
	client := func(p Paths) *tls.Config {
		return load(t, p.config()).ClientConfig(Peer{Hosts: []string{"127.0.0.1"}})
	}
	server := func(p Paths, o ServerOptions) *tls.Config { return load(t, p.config()).ServerConfig(o) }
	for _, tc := range []struct {
		name           string
		server, client *tls.Config
		refused        string // text of the expected error on the side that refuses
	}{
		{"two programs of the cluster use TLS 1.3", server(scheduler, ServerOptions{}), client(agent), ""},
		{"an agent of the cluster that offers only TLS 1.2 is refused", server(scheduler, ServerOptions{}), capped(client(agent)), "TLS 1.3"},
		{"a client with a certificate of another CA may use TLS 1.2", server(oldServer, ServerOptions{}), capped(client(old)), ""},
		{"a server of the cluster that offers only TLS 1.2 is refused", capped(server(scheduler, ServerOptions{})), client(old), "TLS 1.3"},
		{"a port with OwnOnly refuses TLS 1.2", server(oldServer, ServerOptions{OwnOnly: true}), capped(client(old)), "protocol version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, serr, cerr := handshake(t, tc.server, tc.client)
			if tc.refused == "" && (serr != nil || cerr != nil) {
				t.Errorf("the handshake must succeed, but returned the server error %v and the client error %v", serr, cerr)
			}
			if tc.refused != "" && (cerr == nil || !strings.Contains(fmt.Sprint(serr, cerr), tc.refused)) {
				t.Errorf("the handshake returned the server error %v and the client error %v, want an error that contains %q", serr, cerr, tc.refused)
			}
		})
	}
}
