package pki

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ErrRevoked is returned, wrapped, for a revoked certificate.
var ErrRevoked = errors.New("certificate is revoked")

// Revoked holds the revocations of a cluster. It must not be changed after Files.Revoke.
type Revoked struct {
	// Identities maps "<role>/<id>" to a time. Certificates issued until then are refused.
	Identities map[string]time.Time
	// Certificates holds the fingerprints of refused certificates.
	Certificates map[string]bool
}

// Check refuses a revoked certificate. It also refuses a certificate of another CA that maps to a
// revoked identity, unless it is younger than the revocation.
func (r *Revoked) Check(cert *x509.Certificate, id Identity) error {
	return r.check(id, IssueTime(cert, id))
}

// IssueTime returns the time of issue for comparison with a revocation of the identity.
func IssueTime(cert *x509.Certificate, id Identity) time.Time {
	if id.Mapped {
		return cert.NotBefore
	}
	return IssuedAt(cert)
}

func (r *Revoked) check(id Identity, issued time.Time) error {
	if r == nil {
		return nil
	}
	if r.Certificates[id.Fingerprint] {
		return fmt.Errorf("%w: %s %q, fingerprint %s", ErrRevoked, id.Role, id.ID, id.Fingerprint)
	}
	at, ok := r.Identities[string(id.Role)+"/"+id.ID]
	// Times in certificates are whole seconds, rounded down.
	if ok && !issued.After(at) {
		return fmt.Errorf("%w: %s %q, at %s; to let it join again: persysctl token create --role %s --name %s",
			ErrRevoked, id.Role, id.ID, at.UTC().Format(time.RFC3339), id.Role, id.ID)
	}
	return nil
}

// CheckRevoked refuses a revoked identity whose certificate was presented to another program.
// issued is when that certificate was issued; the zero time is before every revocation.
func (f *Files) CheckRevoked(id Identity, issued time.Time) error {
	return f.revoked.Load().check(id, issued)
}

// AwaitRevoked waits until CheckRevoked fails and returns its error. It returns nil if ctx ends
// first.
func (f *Files) AwaitRevoked(ctx context.Context, id Identity, issued time.Time) error {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if err := f.CheckRevoked(id, issued); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
