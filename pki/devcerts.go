package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Names of the files that DevCerts writes for each identity.
const (
	devCA    = "ca.pem"
	devCAKey = "ca-key.pem"
	devCert  = "cert.pem"
	devKey   = "key.pem"
)

// DevOptions selects which certificates DevCerts makes.
type DevOptions struct {
	// Cluster is the name of the cluster in the URI of every certificate; default "dev".
	Cluster string
	// Schedulers, Agents, Gateways and Users are the ids for which certificates are made. If all four are
	// empty, the ids are: schedulers scheduler-1 to scheduler-3; agents node-a, node-b and the host name;
	// gateway gateway; user admin.
	Schedulers, Agents, Gateways, Users []string
	// Hosts are extra DNS names or IP addresses in every server certificate, in addition to
	// localhost, 127.0.0.1, ::1 and the host name.
	Hosts []string
	// Life is the validity of the certificates other than the CA; default 90 days. A certificate is renewed
	// when less than a third of it is left. The CA is valid for ten years.
	Life time.Duration
	// Now returns the present time; default time.Now.
	Now func() time.Time
}

// Paths are the paths of the three PEM files of one identity.
type Paths struct {
	CA, Cert, Key string
}

// DevSet lists the files that DevCerts wrote.
type DevSet struct {
	CA string
	// Leaf holds the files of each identity, by "<role>/<id>", for instance "agent/node-a".
	Leaf map[string]Paths
	// Issued lists those keys of Leaf, sorted, whose certificates this call issued or renewed.
	Issued []string
}

// DevCerts makes a CA and mutual-TLS certificates for development and tests. It writes <dir>/ca.pem,
// <dir>/ca-key.pem and, for each identity, <dir>/<role>/<id>/{ca,cert,key}.pem, so that one folder can be
// copied to one machine. Keys have mode 0600, folders 0700, certificates 0644. A further call keeps the CA
// and the certificates that are still valid.
//
// The CA's key is stored beside the certificates. In production use Vault or another CA.
func DevCerts(dir string, opt DevOptions) (DevSet, error) {
	set, err := devCerts(dir, opt)
	if err != nil {
		return DevSet{}, fmt.Errorf("dev-certs: %w", err)
	}
	return set, nil
}

func devCerts(dir string, opt DevOptions) (DevSet, error) {
	host, err := os.Hostname()
	if err != nil || !validName(host, "") {
		host = "localhost"
	}
	opt = opt.withDefaults(host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return DevSet{}, err
	}
	ca, err := loadOrMakeCA(dir, opt)
	if err != nil {
		return DevSet{}, err
	}
	set := DevSet{CA: filepath.Join(dir, devCA), Leaf: map[string]Paths{}}
	for _, kind := range []struct {
		role Role
		cn   string
		ids  []string
	}{
		{RoleScheduler, "persys-scheduler", opt.Schedulers},
		{RoleAgent, "compute-agent", opt.Agents},
		{RoleGateway, "persys-gateway", opt.Gateways},
		{RoleUser, "persysctl", opt.Users},
	} {
		for _, id := range kind.ids {
			who := Identity{Cluster: opt.Cluster, Role: kind.role, ID: id}
			want, err := leafTemplate(who, kind.cn, host, opt)
			if err != nil {
				return DevSet{}, err
			}
			name := string(kind.role) + "/" + id
			paths, issued, err := ca.leaf(filepath.Join(dir, string(kind.role), id), want, opt)
			if err != nil {
				return DevSet{}, fmt.Errorf("%s: %w", name, err)
			}
			set.Leaf[name] = paths
			if issued {
				set.Issued = append(set.Issued, name)
			}
		}
	}
	slices.Sort(set.Issued)
	return set, nil
}

func (o DevOptions) withDefaults(host string) DevOptions {
	if o.Cluster == "" {
		o.Cluster = "dev"
	}
	if o.Life <= 0 {
		o.Life = 90 * 24 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(o.Schedulers)+len(o.Agents)+len(o.Gateways)+len(o.Users) == 0 {
		o.Schedulers = []string{"scheduler-1", "scheduler-2", "scheduler-3"}
		o.Agents = []string{"node-a", "node-b"}
		if !slices.Contains(o.Agents, host) {
			o.Agents = append(o.Agents, host)
		}
		o.Gateways = []string{"gateway"}
		o.Users = []string{AdminID}
	}
	return o
}

type devAuthority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func loadOrMakeCA(dir string, opt DevOptions) (*devAuthority, error) {
	certPath, keyPath := filepath.Join(dir, devCA), filepath.Join(dir, devCAKey)
	cert, certPEM, err := readCert(certPath)
	switch {
	case err == nil:
		key, err := readKey(keyPath)
		if err != nil {
			return nil, err
		}
		if !sameKey(cert, key) {
			return nil, fmt.Errorf("%s does not belong to %s: remove both to start again", keyPath, certPath)
		}
		if opt.Now().Before(cert.NotAfter) && cert.IsCA {
			return &devAuthority{cert, key, certPEM}, nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	key, keyPEM, err := makeKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := opt.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Persys development CA " + opt.Cluster},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := WriteFile(keyPath, keyPEM, 0o600); err != nil {
		return nil, err
	}
	if err := WriteFile(certPath, certPEM, 0o644); err != nil {
		return nil, err
	}
	return &devAuthority{cert, key, certPEM}, nil
}

func leafTemplate(who Identity, cn, host string, opt DevOptions) (*x509.Certificate, error) {
	uri, err := who.URI()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: cn},
		URIs:        []*url.URL{uri},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if who.Role == RoleUser {
		return t, nil
	}
	t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	names := append([]string{cn, "localhost", host, "127.0.0.1", "::1"}, opt.Hosts...)
	for _, name := range append(names, who.ID) {
		if ip := net.ParseIP(name); ip != nil {
			if !slices.ContainsFunc(t.IPAddresses, ip.Equal) {
				t.IPAddresses = append(t.IPAddresses, ip)
			}
			continue
		}
		if !validName(name, "") {
			return nil, fmt.Errorf("host %q is neither an IP address nor a DNS name", name)
		}
		if !slices.Contains(t.DNSNames, name) {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	return t, nil
}

// leaf keeps the certificate in folder dir if it has the content of want and at least a third of its validity left.
// Otherwise it issues a new certificate and returns true.
func (a *devAuthority) leaf(dir string, want *x509.Certificate, opt DevOptions) (Paths, bool, error) {
	p := Paths{CA: filepath.Join(dir, devCA), Cert: filepath.Join(dir, devCert), Key: filepath.Join(dir, devKey)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, false, err
	}
	if a.fits(p, want, opt) {
		return p, false, os.Chmod(p.Key, 0o600)
	}
	key, keyPEM, err := makeKey()
	if err != nil {
		return p, false, err
	}
	if want.SerialNumber, err = newSerial(); err != nil {
		return p, false, err
	}
	want.NotBefore = opt.Now().Add(-time.Hour)
	want.NotAfter = opt.Now().Add(opt.Life)
	if want.NotAfter.After(a.cert.NotAfter) {
		want.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, want, a.cert, key.Public(), a.key)
	if err != nil {
		return p, false, err
	}
	// Some names can be written into a URI but not read back, so parse the new certificate.
	if _, err := x509.ParseCertificate(der); err != nil {
		return p, false, err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, f := range []struct {
		path string
		data []byte
		mode os.FileMode
	}{{p.Key, keyPEM, 0o600}, {p.Cert, certPEM, 0o644}, {p.CA, a.pem, 0o644}} {
		if err := WriteFile(f.path, f.data, f.mode); err != nil {
			return p, false, err
		}
	}
	return p, true, nil
}

// fits reports whether the stored certificate has the content of want and at least a third of its validity
// left.
func (a *devAuthority) fits(p Paths, want *x509.Certificate, opt DevOptions) bool {
	have, _, err := readCert(p.Cert)
	if err != nil {
		return false
	}
	key, err := readKey(p.Key)
	if err != nil || !sameKey(have, key) {
		return false
	}
	if ca, err := os.ReadFile(p.CA); err != nil || !bytes.Equal(ca, a.pem) {
		return false
	}
	life := have.NotAfter.Sub(have.NotBefore)
	return have.CheckSignatureFrom(a.cert) == nil &&
		have.NotAfter.Sub(opt.Now()) > life/3 &&
		have.Subject.CommonName == want.Subject.CommonName &&
		slices.Equal(have.DNSNames, want.DNSNames) &&
		slices.EqualFunc(have.IPAddresses, want.IPAddresses, net.IP.Equal) &&
		slices.EqualFunc(have.URIs, want.URIs, func(x, y *url.URL) bool { return x.String() == y.String() })
}

func makeKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

func readCert(path string) (*x509.Certificate, []byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
		return nil, nil, fmt.Errorf("%s: want exactly one PEM certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, data, nil
}

func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s: want a PEM private key (PKCS #8)", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: key can not sign", path)
	}
	return signer, nil
}

func sameKey(cert *x509.Certificate, key crypto.Signer) bool {
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(cert.PublicKey)
}
