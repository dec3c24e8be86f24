package pki

import (
	"context"
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
	return r.check(id, IssueTime(cert, id))
}

// IssueTime is when a certificate was issued, as far as a revocation of its name is concerned.
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
	// Certificates count in whole seconds, rounded down.
	if ok && !issued.After(at) {
		return fmt.Errorf("%w: %s %q, at %s; to let it join again: persysctl token create --role %s --name %s",
			ErrRevoked, id.Role, id.ID, at.UTC().Format(time.RFC3339), id.Role, id.ID)
	}
	return nil
}

// CheckRevoked refuses an identity whose certificate was shown to somebody else, and was
// issued then; the zero time is before every revocation.
func (f *Files) CheckRevoked(id Identity, issued time.Time) error {
	return f.revoked.Load().check(id, issued)
}

// AwaitRevoked returns what CheckRevoked says as soon as it says something, or nil when ctx
// ends before that.
func (f *Files) AwaitRevoked(ctx context.Context, id Identity, issued time.Time) error {
	for {
		f.mu.Lock()
		news := f.news
		f.mu.Unlock()
		if err := f.CheckRevoked(id, issued); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
	}
}
