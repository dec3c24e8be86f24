package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	tokenPrefix = "persys-join-1."
	// tokenMax is the maximum length of a token in bytes.
	tokenMax    = 4096
	secretBytes = 32
)

// JoinToken allows its holder to get a certificate of the cluster. It contains the fingerprint of the
// cluster's root, by which the holder recognises the cluster. When it is printed, the secret is hidden.
type JoinToken struct {
	ID      string `json:"id"`
	Secret  []byte `json:"secret"`
	Cluster string `json:"cluster"`
	Role    Role   `json:"role"`
	// Name is the only name for which the token is valid. If it is empty, the token is valid for any name
	// that is not in use.
	Name string `json:"name,omitempty"`
	// Access is the role that a user gets: viewer, operator or admin.
	Access string `json:"access,omitempty"`
	// Root is the fingerprint of the cluster's root certificate.
	Root string `json:"root"`
	// Roots are the fingerprints of further trusted roots. While the cluster changes its root, schedulers
	// may have certificates of the old or the new one.
	Roots []string `json:"roots,omitempty"`
	// Schedulers are the gRPC addresses of schedulers that the joining program can call, host:port.
	Schedulers []string  `json:"schedulers"`
	Expires    time.Time `json:"expires"`
}

// SecretHash returns the hash of the secret. The cluster stores the hash and not the secret.
func (t JoinToken) SecretHash() []byte {
	sum := sha256.Sum256(t.Secret)
	return sum[:]
}

// String describes the token without its secret.
func (t JoinToken) String() string {
	return fmt.Sprintf("join token %s (%s of cluster %s)", t.ID, t.Role, t.Cluster)
}

// GoString returns the same as String, so that %#v does not show the secret.
func (t JoinToken) GoString() string { return t.String() }

// Export returns the token as one line of text, which the joining program gets.
func (t JoinToken) Export() (string, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return "", err
	}
	body := tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
	return body + "." + checksum(body), nil
}

// IsJoinToken reports whether s begins like a join token. It distinguishes a token from an address in settings that
// accept both.
func IsJoinToken(s string) bool { return strings.HasPrefix(strings.TrimSpace(s), tokenPrefix) }

// ParseJoinToken reads the text that Export wrote. Errors never contain the secret.
func ParseJoinToken(s string) (JoinToken, error) {
	var t JoinToken
	s = strings.TrimSpace(s)
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok || len(s) > tokenMax {
		return t, fmt.Errorf("join token: want one line of at most %d bytes that begins with %s", tokenMax, tokenPrefix)
	}
	enc, sum, ok := strings.Cut(rest, ".")
	if !ok || checksum(tokenPrefix+enc) != sum {
		return t, errors.New("join token: checksum does not match: the text was cut or mistyped")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(enc)
	if err != nil {
		return t, errors.New("join token: bad base64")
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return JoinToken{}, errors.New("join token: its content is not that of a join token")
	}
	switch {
	case t.ID == "" || len(t.Secret) != secretBytes || !t.Role.Valid() || !validName(t.Cluster, ""):
		return JoinToken{}, errors.New("join token: id, secret, role or cluster is missing or wrong")
	case slices.ContainsFunc(append([]string{t.Root}, t.Roots...), func(r string) bool { return len(r) != 2*sha256.Size || !isLowerHex(r) }):
		return JoinToken{}, errors.New("join token: root is not a SHA-256 in lower-case hex")
	case len(t.Schedulers) == 0 || len(t.Schedulers) > 64:
		return JoinToken{}, fmt.Errorf("join token: names %d schedulers, want 1 to 64", len(t.Schedulers))
	}
	return t, nil
}

// ErrForeign is returned if the server is not a scheduler of the cluster that issued the token.
var ErrForeign = errors.New("the server is not a scheduler of the cluster that issued the join token")

// ClientConfig returns the TLS configuration for the call Enrol, which is the only call without a client
// certificate. The server must be a scheduler of the cluster whose root is in the token.
func (t JoinToken) ClientConfig(host string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		NextProtos: []string{"h2"},
		// Only the root's fingerprint is known before the handshake, so VerifyConnection makes the whole
		// check.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return t.verify(state, host, now())
		},
	}
}

func (t JoinToken) verify(state tls.ConnectionState, host string, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	pinned := false
	for _, c := range state.PeerCertificates {
		if print := Fingerprint(c.Raw); print == t.Root || slices.Contains(t.Roots, print) {
			roots.AddCert(c)
			pinned = true
			continue
		}
		between.AddCert(c)
	}
	if !pinned {
		return fmt.Errorf("%w: its certificate was not issued by the CA %s…", ErrForeign, t.Root[:16])
	}
	leaf := state.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return err
	}
	id, err := FromCertificate(leaf, Mapping{Cluster: t.Cluster})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if id.Role != RoleScheduler {
		return fmt.Errorf("%w: it is %s %q", ErrForeign, id.Role, id.ID)
	}
	return nil
}
