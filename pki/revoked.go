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

// Revoked holds the revocations of a cluster. It must not be changed after it was passed to Files.Revoke.
type Revoked struct {
	// Identities maps a revoked identity, "<role>/<id>", to the time of its revocation. Its certificates
	// that were issued at or before that time are refused.
	Identities map[string]time.Time
	// Certificates holds the fingerprints of single certificates that are revoked.
	Certificates map[string]bool
}

// Check returns an error for a revoked certificate. It also refuses a certificate of another CA that maps to
// a revoked identity, unless it was issued after the revocation.
func (r *Revoked) Check(cert *x509.Certificate, id Identity) error {
	return r.check(id, IssueTime(cert, id))
}

// IssueTime returns the time at which the certificate was issued, for comparison with a revocation of its
// identity.
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
	// Times in certificates are whole seconds, rounded down, so an equal time may be before the revocation.
	if ok && !issued.After(at) {
		return fmt.Errorf("%w: %s %q, at %s; to let it join again: %s", ErrRevoked, id.Role, id.ID, at.UTC().Format(time.RFC3339), id.TokenCommand())
	}
	return nil
}

// CheckRevoked returns an error if the identity is revoked. It is for a caller whose certificate this program has not
// seen, because the caller presented it to another program, such as a gateway. issued is the time at which that
// certificate was issued; the zero time is before every revocation.
func (f *Files) CheckRevoked(id Identity, issued time.Time) error {
	return f.revoked.Load().check(id, issued)
}

// AwaitRevoked waits until the identity is revoked, and returns the error of CheckRevoked. It returns nil if
// ctx ends first.
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
