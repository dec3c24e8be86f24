package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzKeyFile: for any content of a key file, parse returns a key or an error, and the error never contains
// the key.
func FuzzKeyFile(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	wrap := Passphrase("correct horse battery")
	body, err := wrap.Wrap([]byte(key.Export()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(key.Export())
	f.Add(wrapPrefix + "scrypt." + body)
	f.Add(wrapPrefix + "scrypt." + body[:20])
	f.Add(wrapPrefix + "transit.vault:v1:x")
	f.Add("persys-key-1...")
	f.Fuzz(func(t *testing.T, text string) {
		file := KeyFile{Path: "x"}
		if strings.Count(text, "scrypt") == 1 && len(text) < 400 {
			file.Wrap = wrap
		}
		k, err := file.parse(text)
		if (k == nil) == (err == nil) {
			t.Fatalf("parse of a key file returned key %v and error %v, want either a key or an error", k, err)
		}
		if err != nil && len(text) > 20 && strings.Contains(err.Error(), text[20:]) && len(text[20:]) > 8 {
			t.Errorf("the error must not repeat the content of the file, but does: %v", err)
		}
	})
}

// FuzzSign passes random certificate requests to Sign. Requests come from anybody who can connect to the
// port.
func FuzzSign(f *testing.F) {
	root, err := NewRoot("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	a, err := root.NewAuthority("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	for _, hosts := range [][]string{nil, {"node-a", "10.0.0.1"}, {"persys-scheduler"}} {
		_, csr, err := NewRequest(hosts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(csr)
	}
	f.Fuzz(func(t *testing.T, csr []byte) {
		got, err := a.Sign(csr, Identity{Role: RoleAgent, ID: "node-a"}, Hosts{Requested: true}, time.Now(), time.Hour)
		if err != nil {
			return
		}
		id, err := FromCertificate(got.Cert, LegacyMapping("c1"))
		if err != nil || id.Role != RoleAgent || id.ID != "node-a" || got.Cert.IsCA || id.Mapped {
			t.Errorf("Sign issued %v for identity %v, error %v, want a certificate of agent node-a that is no CA", got.Cert.URIs, id, err)
		}
	})
}

// FuzzParseAuthority parses random authorities. Admins upload authorities, which the cluster then trusts.
func FuzzParseAuthority(f *testing.F) {
	root, err := NewRoot("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	a, err := root.NewAuthority("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	key, err := a.Key()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.Cert.Raw, root.Cert.Raw, key)
	f.Add(root.Cert.Raw, root.Cert.Raw, key)
	f.Fuzz(func(t *testing.T, cert, root, key []byte) {
		if a, err := ParseAuthority(cert, root, key); err == nil && (!a.Cert.IsCA || a.Cert.CheckSignatureFrom(a.Root) != nil) {
			t.Error("ParseAuthority must refuse an authority that its root has not signed, but accepted it")
		}
	})
}

// FuzzRoots parses random CA bundles. Bundles come from files and over the network.
func FuzzRoots(f *testing.F) {
	root, err := NewRoot("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(EncodeCerts(root.Cert.Raw))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
	f.Add([]byte("-----BEGIN"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if pool, err := parseRoots(data); err == nil && pool.Equal(x509.NewCertPool()) {
			t.Error("parseRoots must return a root or an error, but returned neither")
		}
	})
}

// FuzzRing opens random sealed gossip rings. A ring may come from a scheduler of any version.
func FuzzRing(f *testing.F) {
	f.Add([]byte(`{"keys":[{"id":"first"}],"seals":"first"}`))
	f.Add([]byte(`{"keys":[{"id":"0011223344556677","key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}],"seals":"0011223344556677"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		key, err := keyFrom(make([]byte, keySize))
		if err != nil {
			t.Fatal(err)
		}
		r, err := parseRing(raw)
		if err != nil {
			return
		}
		if seals, all := r.Raw(key); len(seals) != keySize || len(all) != len(r.Keys) {
			t.Errorf("the encrypting key of the opened ring has %d bytes, want %d; Raw returned %d keys, want %d", len(seals), keySize, len(all), len(r.Keys))
		}
	})
}

// FuzzMembership reads damaged membership files.
func FuzzMembership(f *testing.F) {
	k := IdentityStore{Dir: f.TempDir()}
	f.Add([]byte(`{"cluster":"c1","role":"agent","name":"n1","token":"t","schedulers":["10.0.0.1:8085"]}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"schedulers":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(k.Dir, membershipFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := k.Membership()
		if err != nil {
			return
		}
		if err := k.SaveMembership(m); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Membership(); err != nil {
			t.Fatalf("a membership that was stored after the damage must be readable, but Membership returned %v", err)
		}
	})
}

// FuzzPeers maps certificates with random names by random values of PERSYS_TLS_PEERS. A mapped identity must
// be valid.
func FuzzPeers(f *testing.F) {
	f.Add("compute-agent", "agent/n1", "compute-agent", "")
	f.Add("x", "user/admin", "x", "persys://c1/user/eve")
	f.Add("x", "user/anonymous", "y", "persys://c1/agent/")
	f.Add("", "/", "", "persys:opaque")
	f.Fuzz(func(t *testing.T, name, text, cn, uri string) {
		m, err := LegacyMapping("c1").With(map[string]string{name: text})
		if err != nil {
			return
		}
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: []string{name}}
		if u, err := url.Parse(uri); err == nil && uri != "" {
			cert.URIs = []*url.URL{u}
		}
		id, err := FromCertificate(cert, m)
		if err != nil {
			return
		}
		if err := id.check(true); err != nil || id.IsAnonymous() {
			t.Fatalf("a mapped identity must be valid, but %+v is not: %v", id, err)
		}
	})
}
