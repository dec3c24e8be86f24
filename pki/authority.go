package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Validity of the CA certificates: the root's, and the issuing authority's.
const (
	RootLife      = 10 * 365 * 24 * time.Hour
	AuthorityLife = 2 * 365 * 24 * time.Hour
	// Backdate is how long before the time of issue the field NotBefore of a new certificate is set. So a certificate
	// is valid at once even if the issuer's clock is an hour ahead and another machine's clock is an hour behind.
	// IssuedAt adds Backdate to NotBefore to get the time of issue.
	Backdate = 2 * time.Hour
	// maxHosts is the maximum number of names in a certificate request.
	maxHosts = 64
)

// IssuedAt returns the time at which an Authority issued a certificate: NotBefore plus Backdate.
func IssuedAt(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(Backdate) }

// Life returns the validity of a certificate of an Authority, from its issue to NotAfter.
func Life(cert *x509.Certificate) time.Duration { return cert.NotAfter.Sub(IssuedAt(cert)) }

// RenewAt returns the time at which a certificate of an Authority should be renewed: after two thirds of its
// validity.
func RenewAt(cert *x509.Certificate) time.Time {
	return IssuedAt(cert).Add(Life(cert) * 2 / 3)
}

// Fingerprint returns the lower-case hex SHA-256 of a certificate.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// Root is the root CA of a cluster. It signs issuing authorities. Its key should be stored offline.
type Root struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// NewRoot makes a root CA with a new key for a cluster.
func NewRoot(cluster string, now time.Time) (*Root, error) {
	cert, key, err := signAuthority("Persys root CA "+cluster, cluster, nil, nil, now, RootLife)
	if err != nil {
		return nil, err
	}
	return &Root{cert, key}, nil
}

// Authority is the issuing CA of one cluster. It issues the certificates, and is itself signed by a Root.
type Authority struct {
	Cert, Root *x509.Certificate
	Cluster    string
	key        crypto.Signer
}

// NewAuthority makes an issuing authority for a cluster, with a new key and signed by r.
func (r *Root) NewAuthority(cluster string, now time.Time) (*Authority, error) {
	cert, key, err := signAuthority("Persys issuing CA "+cluster, cluster, r.Cert, r.key, now, AuthorityLife)
	if err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Root: r.Cert, Cluster: cluster, key: key}, nil
}

// signAuthority makes a CA certificate, signed by parent or, if parent is nil, by itself.
func signAuthority(name, cluster string, parent *x509.Certificate, by crypto.Signer, now time.Time, life time.Duration) (*x509.Certificate, crypto.Signer, error) {
	if !validName(cluster, "") {
		return nil, nil, fmt.Errorf("cluster %q does not match [A-Za-z0-9][A-Za-z0-9_.-]{0,127}", cluster)
	}
	if net.ParseIP(cluster) != nil || strings.HasSuffix(cluster, ".") || strings.Contains(cluster, "..") {
		return nil, nil, fmt.Errorf("cluster %q is an IP address or has an empty label; a CA certificate cannot be limited to such a name", cluster)
	}
	key, _, err := makeKey()
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: []string{cluster}},
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1,
		// The CA may only issue identities of its own cluster. The name constraints are not marked
		// critical, because a browser that does not support URI name constraints would otherwise refuse a
		// gateway's chain.
		PermittedURIDomains: []string{cluster},
	}
	if parent == nil {
		parent, by = tmpl, key
	} else {
		tmpl.MaxPathLen, tmpl.MaxPathLenZero = 0, true
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		if tmpl.NotAfter.After(parent.NotAfter) {
			tmpl.NotAfter = parent.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), by)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// ID returns the id of the authority, which is the fingerprint of its certificate.
func (a *Authority) ID() string { return Fingerprint(a.Cert.Raw) }

// Key returns the private key of the authority in PKCS #8.
func (a *Authority) Key() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(a.key) }

// ParseAuthority reads an authority from DER: its certificate, its root's certificate, and its key in PKCS #8.
// It returns an error if root has not signed cert, or if key is not the key of cert.
func ParseAuthority(cert, root, key []byte) (*Authority, error) {
	a := &Authority{}
	var err error
	if a.Cert, err = x509.ParseCertificate(cert); err != nil {
		return nil, fmt.Errorf("authority: cert: %w", err)
	}
	if a.Root, err = x509.ParseCertificate(root); err != nil {
		return nil, fmt.Errorf("authority: root: %w", err)
	}
	k, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("authority: key is not PKCS #8")
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, errors.New("authority: key cannot sign")
	}
	a.key = signer
	switch {
	case !a.Cert.IsCA || a.Cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("authority: cert is not the certificate of an authority")
	case !a.Root.IsCA || a.Root.CheckSignatureFrom(a.Root) != nil:
		return nil, errors.New("authority: root is not signed by itself")
	case a.Cert.CheckSignatureFrom(a.Root) != nil:
		return nil, errors.New("authority: root has not signed cert")
	case !sameKey(a.Cert, a.key):
		return nil, errors.New("authority: key does not belong to cert")
	case len(a.Cert.Subject.Organization) != 1 || !validName(a.Cert.Subject.Organization[0], ""):
		return nil, errors.New("authority: the organization in cert must be the name of one cluster, as in certificates of `persysctl ca init`")
	}
	a.Cluster = a.Cert.Subject.Organization[0]
	return a, nil
}

// serviceName returns the common name of a certificate for a role. Legacy v1 peers verify this name
// (contract/semantics.md, section 13).
func serviceName(r Role) string {
	switch r {
	case RoleScheduler:
		return "persys-scheduler"
	case RoleAgent:
		return "compute-agent"
	case RoleGateway:
		return "persys-gateway"
	}
	return "persysctl"
}

// NewRequest makes a key (PEM) and a certificate request for that key (DER). hosts are the DNS names and IP
// addresses to request.
func NewRequest(hosts []string) (keyPEM, csr []byte, err error) {
	key, keyPEM, err := makeKey()
	if err != nil {
		return nil, nil, err
	}
	csr, err = requestFor(key, hosts)
	return keyPEM, csr, err
}

func requestFor(key crypto.Signer, hosts []string) ([]byte, error) {
	t := &x509.CertificateRequest{}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return x509.CreateCertificateRequest(rand.Reader, t, key)
}

// Covers reports whether a certificate contains every one of the hosts.
func Covers(cert *x509.Certificate, hosts []string) bool {
	return !slices.ContainsFunc(hosts, func(h string) bool {
		if ip := net.ParseIP(h); ip != nil {
			return !slices.ContainsFunc(cert.IPAddresses, ip.Equal)
		}
		return !slices.Contains(cert.DNSNames, h)
	})
}

// KeyHash returns the SHA-256 of a certificate's public key.
func KeyHash(cert *x509.Certificate) []byte {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return sum[:]
}

// Issued is a certificate issued by an Authority.
type Issued struct {
	Cert    *x509.Certificate
	Chain   []byte // PEM: the certificate, then the authority's, then the root's
	KeyHash []byte // SHA-256 of the public key in the certificate
}

// Hosts selects which DNS names and IP addresses a certificate gets, in addition to localhost and the service name
// (the common name of its role, which legacy v1 peers verify). The zero value adds none.
type Hosts struct {
	// Requested adds the id of the identity, and the hosts that the certificate request lists.
	Requested bool
	// Given are additional hosts that the issuer adds, for example from a join token. They do not come from
	// the requester.
	Given []string
	// From is the IP address of the machine that sent the request. It is added to the certificate only if
	// the request lists it too.
	From string
}

// of returns the DNS names and the IP addresses, in canonical form, that a certificate gets. id is the id in its
// identity, and req the request for the certificate.
func (h Hosts) of(id string, req *x509.CertificateRequest) (names []string, addrs []net.IP) {
	if h.Requested {
		names, addrs = append(slices.Clone(req.DNSNames), id), slices.Clone(req.IPAddresses)
	}
	for _, host := range h.Given {
		if ip := net.ParseIP(host); ip != nil {
			addrs = append(addrs, ip)
		} else {
			names = append(names, host)
		}
	}
	if ip := net.ParseIP(h.From); ip != nil && slices.ContainsFunc(req.IPAddresses, ip.Equal) {
		addrs = append(addrs, ip)
	}
	return names, addrs
}

// ValidHost returns an error if a certificate for a role must not name the host, a DNS name or IP address. It
// refuses the service names of other roles, because legacy v1 peers check nothing but the service name.
func ValidHost(role Role, host string) error {
	if net.ParseIP(host) != nil {
		return nil
	}
	if !validName(host, "") {
		return fmt.Errorf("host %q is not a DNS name", host)
	}
	first, _, _ := strings.Cut(host, ".")
	if p, ok := LegacyMapping("").Names[first]; ok && p.Role != role {
		return fmt.Errorf("host %q is the service name of a %s, not of a %s", host, p.Role, role)
	}
	return nil
}

// Sign issues a certificate for the key in a certificate request, with the identity id and the selected
// hosts.
func (a *Authority) Sign(csr []byte, id Identity, hosts Hosts, now time.Time, life time.Duration) (*Issued, error) {
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := strongKey(req.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	id.Cluster = a.Cluster
	uri, err := id.URI()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: serviceName(id.Role)},
		URIs:        []*url.URL{uri},
		NotBefore:   now.Add(-Backdate),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if t.NotAfter.After(a.Cert.NotAfter) {
		t.NotAfter = a.Cert.NotAfter
	}
	if !t.NotAfter.After(now) {
		return nil, fmt.Errorf("the authority %s expired at %s: `persysctl ca rotate` makes a new one", a.ID()[:16], a.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if id.Role != RoleUser {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		if n := len(req.DNSNames) + len(req.IPAddresses); n > maxHosts {
			return nil, fmt.Errorf("certificate request: %d hosts, limit %d", n, maxHosts)
		}
		names, addrs := hosts.of(id.ID, req)
		if err := addHosts(t, id.Role, names, addrs); err != nil {
			return nil, fmt.Errorf("certificate request: %w", err)
		}
	}
	if t.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.Cert, req.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	out := &Issued{Cert: cert, KeyHash: KeyHash(cert)}
	for _, c := range []*x509.Certificate{cert, a.Cert, a.Root} {
		out.Chain = append(out.Chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out, nil
}

func addHosts(t *x509.Certificate, role Role, names []string, addrs []net.IP) error {
	for _, name := range append([]string{serviceName(role), "localhost"}, names...) {
		if err := ValidHost(role, name); err != nil {
			return err
		}
		if !slices.Contains(t.DNSNames, name) {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	for _, ip := range append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, addrs...) {
		if !slices.ContainsFunc(t.IPAddresses, ip.Equal) {
			t.IPAddresses = append(t.IPAddresses, ip)
		}
	}
	return nil
}

func strongKey(pub any) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize >= 256 {
			return nil
		}
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("key must be ECDSA P-256 or stronger, RSA of 2048 bits or more, or Ed25519")
}
