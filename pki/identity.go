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

// Role is the kind of a peer: scheduler, agent, gateway or user. It decides the permissions of the peer.
type Role string

// The roles of an identity. Certificates contain these names, so existing names must not change.
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

// User ids with a special meaning.
const (
	// AdminID is the id of the first user of a new cluster, who is its admin. Package rpc decides what users
	// may do.
	AdminID = "admin"
	// AnonymousID is the user id of every caller of a program that runs with -insecure.
	AnonymousID = "anonymous"
)

// Identity says who a peer is, according to its certificate. It is comparable. The zero value identifies no
// peer.
type Identity struct {
	// Cluster is the cluster for which the certificate was issued. It is empty if the certificate names no
	// cluster and the mapping sets none.
	Cluster string
	Role    Role
	// ID is the id of an agent's node, the name of a scheduler or gateway, or the name of a user; at most
	// 128 bytes.
	ID string
	// Fingerprint is the lower-case hex SHA-256 of the certificate; empty for
	// the anonymous admin.
	Fingerprint string
	// CommonName is the CN of the certificate's subject. It is used only in audit events.
	CommonName string
	// Mapped is true if the identity was derived from a service name (CN or DNS SAN) and not from a persys:// URI.
	// Such a certificate of an agent does not prove a node id (contract/semantics.md, section 13). If the setting
	// PERSYS_TLS_PEERS assigns the name to one node, Mapped is false.
	Mapped bool
}

// Anonymous returns the identity that every caller has under -insecure: an admin without a certificate
// (pki/DESIGN.md).
func Anonymous() Identity { return Identity{Role: RoleUser, ID: AnonymousID} }

// IsZero reports whether the identity is the zero value.
func (i Identity) IsZero() bool { return i == Identity{} }

// IsAnonymous reports whether the identity is that of a caller under -insecure, without a certificate.
func (i Identity) IsAnonymous() bool {
	return i.Role == RoleUser && i.ID == AnonymousID && i.Fingerprint == ""
}

// SpeaksFor reports whether the identity may act as the node. An agent may act as the node whose id it has. An agent
// whose identity is Mapped may act as any node, because it is not known which of the names in a legacy v1 peer's
// certificate is the name of the node.
func (i Identity) SpeaksFor(node string) bool {
	return i.Role == RoleAgent && (i.Mapped || i.ID == node)
}

// TokenCommand returns the persysctl command that makes a join token for the identity. Error messages show
// it.
func (i Identity) TokenCommand() string {
	switch {
	// Only the first scheduler makes the user admin, so there are no tokens for it.
	case i.Role == RoleUser && i.ID == AdminID:
		return "persysctl token create --role user --name NAME --access admin"
	case i.Role == RoleUser:
		return "persysctl token create --role user --name " + i.ID + " --access ROLE"
	}
	return "persysctl token create --role " + string(i.Role) + " --name " + i.ID
}

// ErrNoIdentity is returned, wrapped, for a certificate without a known identity.
var ErrNoIdentity = errors.New("certificate names no known identity")

const scheme = "persys"

// URI returns the identity as a URI, persys://<cluster>/<role>/<id>, for the subject alternative name of a
// certificate.
func (i Identity) URI() (*url.URL, error) {
	if err := i.check(false); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: scheme, Host: i.Cluster, Path: "/" + string(i.Role) + "/" + i.ID}, nil
}

// String returns the text form in which replicas send an identity to each other: the URI, then "?" and the
// fields for audit events. ParseIdentity reads this form. It is printable ASCII.
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

// ParseIdentity reads the text form of String. An unknown key, another order or another spelling is an error,
// so that two replicas never interpret the same header differently.
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
				return Identity{}, fmt.Errorf("identity %q: the fingerprint fp must be a SHA-256 in lower-case hex", s)
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

// validName reports whether s follows the rule for ids (docs/RULES.md, Ids). The bytes in extra are also
// allowed, except at the beginning.
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

// Mapping gives identities to certificates of other CAs, which have no persys:// URI. The zero value gives
// none.
type Mapping struct {
	// Cluster, if set, is the only cluster that a persys:// URI may name. Mapped identities get this
	// cluster.
	Cluster string
	// Names maps names in certificates to principals. A name must equal the whole CN or a whole DNS SAN.
	Names map[string]Principal
}

// Principal is the role and id that Mapping gives to a certificate without a persys:// URI. If ID is empty, the id is
// taken from the certificate: a DNS SAN such as the node name of an agent, or else the service name.
type Principal struct {
	Role Role
	ID   string
}

// LegacyMapping returns a mapping for the service names of legacy v1 peers (contract/semantics.md, section
// 13).
func LegacyMapping(cluster string) Mapping {
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

// PeerMapping returns the mapping that the settings PERSYS_TLS_LEGACY_NAMES and PERSYS_TLS_PEERS describe.
func PeerMapping(legacyNames bool, peers map[string]string) (Mapping, error) {
	m := Mapping{}
	if legacyNames {
		m = LegacyMapping("")
	}
	m, err := m.With(peers)
	if err != nil {
		return m, fmt.Errorf("PERSYS_TLS_PEERS: %w", err)
	}
	return m, nil
}

// With returns m with an operator's mappings for certificates of other CAs added. A key of peers is a name as
// in Names, and its value is "<role>" or "<role>/<id>". The id of an agent is its node; the certificate can
// then act only as that node. The id of a user is the user name.
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
			check.ID = "x" // use any valid id for this check: the real id comes from the certificate
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

// FromCertificate returns the identity in the certificate's persys:// URI. A certificate without such a URI
// gets its identity from the mapping. The caller must have verified the chain. It is an error if the URI is
// malformed or of another cluster, if there is more than one URI, or if names map to different roles. A
// certificate without a known identity gives ErrNoIdentity.
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
			return Identity{}, errors.New("contains more than one persys:// URI")
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
			continue
		}
		if service != "" && p != found {
			return Principal{}, "", fmt.Errorf("its DNS names stand for two identities, both %s (%s) and %s (%s)", service, found.Role, name, p.Role)
		}
		found, service = p, name
	}
	if service == "" {
		return Principal{}, "", fmt.Errorf("%w: it has no persys:// URI, and neither PERSYS_TLS_PEERS nor PERSYS_TLS_LEGACY_NAMES gives one of its names a role", ErrNoIdentity)
	}
	return found, service, nil
}

// hostOf returns the DNS name in a legacy certificate that most likely is the node id: the last name without
// a dot, or else the last name, not counting localhost and the service names. Issuers of legacy v1 peers put
// the node id last.
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
