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

// Role is the kind of a peer, which decides its permissions.
type Role string

// The roles of an identity. Certificates contain them, so existing ones must not change.
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

// Users with a special meaning.
const (
	// AdminID is the user who may do everything.
	AdminID = "admin"
	// AnonymousID is every caller of a program that runs with -insecure.
	AnonymousID = "anonymous"
)

// Identity identifies a peer. It is comparable; the zero value is nobody.
type Identity struct {
	// Cluster is the cluster for which the certificate was issued. It is empty if the identity was
	// mapped from a certificate without a cluster.
	Cluster string
	Role    Role
	// ID is the node id of an agent, the name of a scheduler or gateway, or the name of a user. At
	// most 128 bytes.
	ID string
	// Fingerprint is the lower-case hex SHA-256 of the certificate; empty for
	// the anonymous admin.
	Fingerprint string
	// CommonName is the subject's CN, for audit events only.
	CommonName string
	// Mapped is true if the identity was derived from a service name (CN or DNS SAN) and not from a
	// persys:// URI. Such a certificate of an agent does not prove a node id
	// (contract/semantics.md, section 13), unless a mapping ties its name to a node; then Mapped is
	// false.
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

// SpeaksFor reports whether the identity may act as the node. An agent speaks for the node of its
// id. A mapped agent may speak for any node, because certificates of legacy v1 peers do not say
// which of their names is the node's.
func (i Identity) SpeaksFor(node string) bool {
	return i.Role == RoleAgent && (i.Mapped || i.ID == node)
}

// ErrNoIdentity is returned, wrapped, for a certificate without a known identity.
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

// String returns the text form for metadata between replicas: the URI, then "?" and the fields for
// audit events. ParseIdentity reads it. It is printable ASCII.
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

// ParseIdentity reads the text form of String. Any other key, order or spelling is an error, so
// that two replicas never read the same header differently.
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

// Mapping maps certificates without a persys:// URI, as other CAs issue them, to identities.
type Mapping struct {
	// Cluster, if set, is the only cluster that a URI may name, and the cluster of every mapped
	// identity.
	Cluster string
	// Names maps service names to principals. A service name matches the CN, a DNS SAN, or the
	// first label of a DNS SAN.
	Names map[string]Principal
}

// Principal is a role and id. An empty ID stands for a name in the certificate: a DNS SAN such as
// the node name of an agent, else the service name.
type Principal struct {
	Role Role
	ID   string
}

// DefaultMapping returns a new mapping with the service names of legacy v1 peers
// (contract/semantics.md, section 13).
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

// With adds an operator's mappings for certificates of other CAs: service names as in Names, each
// with "<role>" or "<role>/<id>". The id of an agent is its node, and the certificate is then valid
// for that node only. The id of a user is the user name.
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
			check.ID = "x" // the certificate provides the id
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

// FromCertificate returns the identity of a certificate: that of its persys:// URI, or without one
// that of the mapping. The chain must have been verified. Errors: a malformed or foreign URI, more
// than one URI, names that map to different roles, or ErrNoIdentity.
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

// hostOf returns the most specific DNS name. Issuers of legacy v1 peers list the service name,
// localhost and qualified names first and the node id last.
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
