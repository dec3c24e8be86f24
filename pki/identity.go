package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
)

// Role is what a peer is, as far as permissions are concerned.
type Role string

// The roles that an identity can have. They are part of certificates, so they
// are only ever added to.
const (
	RoleScheduler Role = "scheduler"
	RoleAgent     Role = "agent"
	RoleGateway   Role = "gateway"
	RoleUser      Role = "user"
)

// Valid reports whether r is one of the declared roles.
func (r Role) Valid() bool {
	switch r {
	case RoleScheduler, RoleAgent, RoleGateway, RoleUser:
		return true
	}
	return false
}

// Names of the users that have a meaning of their own.
const (
	// AdminID is the user who may do everything.
	AdminID = "admin"
	// AnonymousID is whoever calls a program that runs with -insecure.
	AnonymousID = "anonymous"
)

// Identity says who a peer is. It is comparable; the zero value is nobody.
type Identity struct {
	// Cluster is the cluster the certificate was issued for; empty when the
	// identity was mapped from a certificate that names none.
	Cluster string
	Role    Role
	// ID is the node id of an agent, the server name of a scheduler or
	// gateway, the user name of a user. At most 128 bytes.
	ID string
	// Fingerprint is the lower-case hex SHA-256 of the certificate; empty for
	// the anonymous admin.
	Fingerprint string
	// CommonName is the subject's CN, for audit lines only.
	CommonName string
	// Mapped is true when the identity was derived from a service name (CN or
	// DNS SAN) and not stated by a persys:// URI. Such an agent certificate
	// does not prove a node id (contract/semantics.md, section 13); one whose
	// name a mapping ties to a node does, and is not Mapped.
	Mapped bool
}

// Anonymous is the identity of every caller under -insecure: an admin without
// a certificate (pki/DESIGN.md).
func Anonymous() Identity { return Identity{Role: RoleUser, ID: AnonymousID} }

// IsZero reports whether the identity is nobody.
func (i Identity) IsZero() bool { return i == Identity{} }

// IsAnonymous reports whether the caller showed no certificate.
func (i Identity) IsAnonymous() bool {
	return i.Role == RoleUser && i.ID == AnonymousID && i.Fingerprint == ""
}

// IsAdmin reports whether the caller may do everything: the admin user, or
// anybody under -insecure.
func (i Identity) IsAdmin() bool {
	return i.Role == RoleUser && (i.ID == AdminID || i.IsAnonymous())
}

// SpeaksFor reports whether the identity may act as the node. A stated agent
// identity, or one that the configuration ties to a node, speaks for that node
// only; another mapped one is not tied to a node, because existing certificates
// do not say which of their names is the node's.
func (i Identity) SpeaksFor(node string) bool {
	return i.Role == RoleAgent && (i.Mapped || i.ID == node)
}

// ErrNoIdentity is returned, wrapped, for a certificate that says nothing that
// this cluster understands.
var ErrNoIdentity = errors.New("certificate names no known identity")

const scheme = "persys"

// URI returns the URI subject alternative name of the identity,
// persys://<cluster>/<role>/<id>.
func (i Identity) URI() (*url.URL, error) {
	if err := i.check(false); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: scheme, Host: i.Cluster, Path: "/" + string(i.Role) + "/" + i.ID}, nil
}

// String is the text form that travels in metadata between replicas: the URI,
// followed by "?" and what an audit line needs. ParseIdentity reads it back.
// The output is printable ASCII.
func (i Identity) String() string {
	var b strings.Builder
	b.WriteString(scheme + "://" + i.Cluster + "/" + string(i.Role) + "/" + i.ID)
	sep := byte('?')
	add := func(k, v string) {
		if v != "" {
			b.WriteByte(sep)
			b.WriteString(k + "=" + url.QueryEscape(v))
			sep = '&'
		}
	}
	add("cn", i.CommonName)
	add("fp", i.Fingerprint)
	if i.Mapped {
		add("mapped", "1")
	}
	return b.String()
}

// ParseIdentity reads the text form of String. It accepts exactly what String
// writes: an unknown key, another order or another spelling is an error, so
// two replicas can never read one header differently.
func ParseIdentity(s string) (Identity, error) {
	const max = 2048
	if len(s) > max {
		return Identity{}, fmt.Errorf("identity: %d bytes, limit %d", len(s), max)
	}
	head, query, _ := strings.Cut(s, "?")
	i, err := parseURI(head, true)
	if err != nil {
		return Identity{}, err
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Identity{}, fmt.Errorf("identity %q: %w", s, err)
	}
	for k, v := range values {
		if len(v) != 1 {
			return Identity{}, fmt.Errorf("identity %q: %s is given %d times", s, k, len(v))
		}
		switch k {
		case "cn":
			i.CommonName = v[0]
		case "fp":
			if len(v[0]) != 2*sha256.Size || !isLowerHex(v[0]) {
				return Identity{}, fmt.Errorf("identity %q: fp is not a SHA-256 in lower-case hex", s)
			}
			i.Fingerprint = v[0]
		case "mapped":
			i.Mapped = v[0] == "1"
		default:
			return Identity{}, fmt.Errorf("identity %q: unknown key %q", s, k)
		}
	}
	if i.String() != s {
		return Identity{}, fmt.Errorf("identity %q: not in the form %q", s, i.String())
	}
	return i, nil
}

func parseURI(s string, emptyCluster bool) (Identity, error) {
	rest, ok := strings.CutPrefix(s, scheme+"://")
	if !ok {
		return Identity{}, fmt.Errorf("identity %q: does not start with %s://", s, scheme)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return Identity{}, fmt.Errorf("identity %q: want %s://<cluster>/<role>/<id>", s, scheme)
	}
	i := Identity{Cluster: parts[0], Role: Role(parts[1]), ID: parts[2]}
	if err := i.check(emptyCluster); err != nil {
		return Identity{}, err
	}
	return i, nil
}

func (i Identity) check(emptyCluster bool) error {
	if !i.Role.Valid() {
		return fmt.Errorf("identity: role %q is none of scheduler, agent, gateway, user", i.Role)
	}
	if (i.Cluster != "" || !emptyCluster) && !validName(i.Cluster, "") {
		return fmt.Errorf("identity: cluster %q does not match [A-Za-z0-9][A-Za-z0-9_.-]{0,127}", i.Cluster)
	}
	extra := ""
	if i.Role == RoleUser {
		extra = "@"
	}
	if !validName(i.ID, extra) {
		return fmt.Errorf("identity: %s id %q does not match [A-Za-z0-9][A-Za-z0-9_.%s-]{0,127}", i.Role, i.ID, extra)
	}
	return nil
}

// validName is the id rule of the project (RULES, Ids), plus extra bytes.
func validName(s, extra string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	for k := 0; k < len(s); k++ {
		c := s[k]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case k > 0 && (c == '_' || c == '.' || c == '-' || strings.IndexByte(extra, c) >= 0):
		default:
			return false
		}
	}
	return true
}

// Mapping turns certificates without a persys:// URI, as existing tools issue
// them, into identities.
type Mapping struct {
	// Cluster, when set, is the only cluster that a URI may name, and the
	// cluster of every mapped identity.
	Cluster string
	// Names maps a service name to what its holder is. A service name matches
	// the CN, a DNS SAN, or the first label of a DNS SAN.
	Names map[string]Principal
}

// Principal is what a service name stands for. An empty ID means: the CN of
// the certificate unless a DNS SAN says better (the node name of an agent).
type Principal struct {
	Role Role
	ID   string
}

// DefaultMapping knows the service names of legacy v1 peers
// (contract/semantics.md, section 13). A new value each time.
func DefaultMapping(cluster string) Mapping {
	return Mapping{Cluster: cluster, Names: map[string]Principal{
		"persys-scheduler": {Role: RoleScheduler},
		"persys_scheduler": {Role: RoleScheduler},
		"persys-gateway":   {Role: RoleGateway},
		"compute-agent":    {Role: RoleAgent},
		"persys-agent":     {Role: RoleAgent},
		"persysctl":        {Role: RoleUser, ID: AdminID},
		"persys-forgery":   {Role: RoleUser, ID: "persys-forgery"},
		"persys-services":  {Role: RoleUser, ID: "persys-services"},
	}}
}

// With adds what an operator says of certificates from elsewhere: names as in
// Names, each with "<role>" or "<role>/<id>". The id of an agent is its node, and
// then the certificate is good for no other node; that of a user is the user.
func (m Mapping) With(peers map[string]string) (Mapping, error) {
	out := Mapping{Cluster: m.Cluster, Names: maps.Clone(m.Names)}
	if out.Names == nil {
		out.Names = map[string]Principal{}
	}
	for name, text := range peers {
		role, id, named := strings.Cut(text, "/")
		p := Principal{Role: Role(role), ID: id}
		check := Identity{Role: p.Role, ID: id}
		if !named {
			check.ID = "x" // it comes from the certificate
		}
		if err := check.check(true); err != nil {
			return Mapping{}, fmt.Errorf("peer %q: %q is not <role> or <role>/<id>: %w", name, text, err)
		}
		if check.IsAnonymous() {
			return Mapping{}, fmt.Errorf("peer %q: user id %q is reserved", name, AnonymousID)
		}
		out.Names[name] = p
	}
	return out, nil
}

// FromCertificate says whose certificate it is: its persys:// URI decides, and
// without one the mapping does. The certificate's chain has to be verified
// already. Errors: a malformed or foreign URI, more than one URI, names that
// stand for different roles, or ErrNoIdentity.
func FromCertificate(cert *x509.Certificate, m Mapping) (Identity, error) {
	if cert == nil {
		return Identity{}, fmt.Errorf("%w: no certificate", ErrNoIdentity)
	}
	i, err := identify(cert, m)
	if err != nil {
		return Identity{}, fmt.Errorf("certificate with CN %q: %w", cert.Subject.CommonName, err)
	}
	sum := sha256.Sum256(cert.Raw)
	i.Fingerprint = hex.EncodeToString(sum[:])
	i.CommonName = cert.Subject.CommonName
	return i, nil
}

func identify(cert *x509.Certificate, m Mapping) (Identity, error) {
	var stated Identity
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		if !stated.IsZero() {
			return Identity{}, errors.New("holds more than one persys:// URI")
		}
		var err error
		if stated, err = parseURI(u.String(), false); err != nil {
			return Identity{}, err
		}
	}
	if !stated.IsZero() {
		if m.Cluster != "" && stated.Cluster != m.Cluster {
			return Identity{}, fmt.Errorf("is for cluster %q, this is cluster %q", stated.Cluster, m.Cluster)
		}
		if stated.Role == RoleUser && stated.ID == AnonymousID {
			return Identity{}, fmt.Errorf("user id %q is reserved", AnonymousID)
		}
		return stated, nil
	}

	p, service, err := m.match(cert)
	if err != nil {
		return Identity{}, err
	}
	i := Identity{Cluster: m.Cluster, Role: p.Role, ID: p.ID, Mapped: p.Role != RoleAgent || p.ID == ""}
	if i.ID == "" {
		i.ID = hostOf(cert, service)
	}
	if err := i.check(true); err != nil {
		return Identity{}, err
	}
	return i, nil
}

func (m Mapping) match(cert *x509.Certificate) (Principal, string, error) {
	if p, ok := m.Names[cert.Subject.CommonName]; ok {
		return p, cert.Subject.CommonName, nil
	}
	var found Principal
	var service string
	for _, name := range cert.DNSNames {
		p, ok := m.Names[name]
		if !ok {
			name, _, _ = strings.Cut(name, ".")
			p, ok = m.Names[name]
		}
		if !ok {
			continue
		}
		if service != "" && p != found {
			return Principal{}, "", fmt.Errorf("its DNS names stand for both %s (%s) and %s (%s)", service, found.Role, name, p.Role)
		}
		found, service = p, name
	}
	if service == "" {
		return Principal{}, "", ErrNoIdentity
	}
	return found, service, nil
}

// hostOf picks the most telling DNS name: existing issuers list the service
// name, localhost and qualified names first and the node id last.
func hostOf(cert *x509.Certificate, service string) string {
	best := ""
	for _, name := range cert.DNSNames {
		if name == service || name == "localhost" || strings.HasPrefix(name, service+".") {
			continue
		}
		if best == "" || !strings.Contains(name, ".") || strings.Contains(best, ".") {
			best = name
		}
	}
	if best == "" {
		return service
	}
	return best
}
