package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ErrRevoked is returned, wrapped, for a certificate that is no longer good.
var ErrRevoked = errors.New("certificate is revoked")

// Revoked is what a cluster has revoked. It is not changed once it is in use.
type Revoked struct {
	// Identities are refused that were issued until the time, by "<role>/<id>".
	Identities map[string]time.Time
	// Certificates are refused by fingerprint.
	Certificates map[string]bool
}

// Check refuses a revoked certificate. A certificate of another CA that maps to a
// revoked identity is refused as well when it is not younger.
func (r *Revoked) Check(cert *x509.Certificate, id Identity) error {
	if r == nil {
		return nil
	}
	if r.Certificates[id.Fingerprint] {
		return fmt.Errorf("%w: %s %q, fingerprint %s", ErrRevoked, id.Role, id.ID, id.Fingerprint)
	}
	at, ok := r.Identities[string(id.Role)+"/"+id.ID]
	issued := cert.NotBefore
	if !id.Mapped {
		issued = IssuedAt(cert)
	}
	// Certificates count in whole seconds, rounded down.
	if ok && !issued.After(at) {
		return fmt.Errorf("%w: %s %q, at %s; to let it join again: persysctl token create --role %s --name %s",
			ErrRevoked, id.Role, id.ID, at.UTC().Format(time.RFC3339), id.Role, id.ID)
	}
	return nil
}
