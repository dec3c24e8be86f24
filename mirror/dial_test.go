package mirror

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/persys/compute/mirror/mirrortest"
	"github.com/persys/compute/testbed"
)

// The mirror works with an etcd role whose permissions cover only its prefix. With a wrong password the
// mirror reports the state Unreachable, with the failed authentication as the reason.
func TestMirrorWithCredentials(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	ctx, cancel := context.WithTimeout(t.Context(), testbed.Patience)
	defer cancel()
	admin := e.admin()
	if err := mirrortest.Protect(ctx, admin, "east"); err != nil {
		t.Fatal(err)
	}
	o := quick
	o.Prefix = "east"
	o.CompactEvery = 50 * time.Millisecond
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))

	wrong, err := Dial(Endpoint{Addresses: []string{e.url}, Username: "persys", Password: "guess"})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	r := c.start(wrong, o)
	r.awaitReason(Unreachable, "authentication failed")
	r.stop()

	right, err := Dial(Endpoint{Addresses: []string{e.url}, Username: "persys", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer right.Close()
	r = c.start(right, o)
	e.client = right // the test reads etcd as the user of the mirror
	r.awaitEqual(e)
	r.awaitState(Healthy)
	c.do(put("web-2"))
	r.awaitEqual(e)
}

// startSecuredEtcd starts an etcd that requires client certificates, and connects to it.
func startSecuredEtcd(t *testing.T) *etcd {
	dir := t.TempDir()
	pool, pair := certificates(t, dir)
	e := &etcd{t: t, binary: currentEtcd(t), dir: filepath.Join(dir, "data"), peer: "http://" + freeAddress(t), url: "https://" + freeAddress(t), args: []string{
		"--cert-file=" + filepath.Join(dir, "cert.pem"), "--key-file=" + filepath.Join(dir, "key.pem"),
		"--trusted-ca-file=" + filepath.Join(dir, "cert.pem"), "--client-cert-auth",
	}, tls: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}
	e.start()
	t.Cleanup(e.kill)
	e.client = e.dial()
	return e
}

// The mirror works with a server that requires client certificates, and fails if it has no certificate.
func TestTLSWithClientCertificates(t *testing.T) {
	e := startSecuredEtcd(t)
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	r.awaitState(Healthy)
	r.stop()

	plain, err := Dial(Endpoint{Addresses: []string{e.url}, TLS: &tls.Config{RootCAs: e.tls.RootCAs, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	r = c.start(plain, quick)
	r.awaitState(Unreachable)
}

// The mirror logs in again when authentication is enabled while it is connected. Without a
// login, etcd takes the common name of the client certificate as the user.
func TestAuthEnabledWhileConnected(t *testing.T) {
	e := startSecuredEtcd(t)
	admin := e.admin()
	ctx := t.Context()
	_, err := admin.UserAdd(ctx, "persys", "secret")
	if err != nil {
		t.Fatal(err)
	}
	client, err := Dial(Endpoint{Addresses: []string{e.url}, TLS: e.tls, Username: "persys", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	r := c.start(client, quick)
	r.awaitState(Healthy)
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(ctx, "root", "root"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "persys", "root"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	c.do(put("web-2"))
	e.client = client
	r.awaitEqual(e)
	r.awaitState(Healthy)
}

// certificates writes a self-signed certificate and its key. The certificate is also the CA.
func certificates(t *testing.T, dir string) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "persys-scheduler"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	for name, b := range map[string][]byte{"cert.pem": certPEM, "key.pem": keyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pool, pair
}

func TestDialRefusesIncompleteEndpoints(t *testing.T) {
	for name, e := range map[string]Endpoint{
		"no address":                  {},
		"a user name and no password": {Addresses: []string{"127.0.0.1:1"}, Username: "persys"},
		"a password and no user name": {Addresses: []string{"127.0.0.1:1"}, Password: "secret"},
	} {
		if _, err := Dial(e); err == nil {
			t.Errorf("Dial with %s returned no error", name)
		}
	}
}

// Dial succeeds without a server. The first call returns the connection error.
func TestDialNeedsNoServer(t *testing.T) {
	c, err := Dial(Endpoint{Addresses: []string{freeAddress(t)}, Username: "persys", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "/"); err == nil {
		t.Error("a call without an etcd server succeeded, want an error")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Txn(ctx).Commit(); err == nil {
		t.Error("a call on a closed client succeeded, want an error")
	}
}

// Close must close the connection even if a call opens it at the same time.
func TestCallDuringCloseLeavesNoConnection(t *testing.T) {
	c, err := Dial(Endpoint{Addresses: []string{freeAddress(t)}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.close()
	if _, err := c.client(t.Context()); err == nil {
		t.Error("a call on a closed client succeeded, want an error")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if s := made.ActiveConnection().GetState(); s != connectivity.Shutdown {
		t.Errorf("after Close the connection is in state %s, want shut down", s)
	}
}
