package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// errNotAdmitted is wrapped by the refusal of a caller whose certificate comes from the cluster's CA, but for
// whom this replica's state has no admission (the record that the cluster has admitted an identity).
var errNotAdmitted = errors.New("the cluster has no record of admitting it")

// checkAdmitted refuses an identity with a certificate of the cluster's own CA if the state does not record
// that the cluster admitted the identity: the CA's signature alone gives no rights. Identities with
// certificates of other CAs, in files or from Vault, need no such record.
func (s *Server) checkAdmitted(v fsm.View, id pki.Identity) error {
	if !s.cfg.Enrol || id.IsAnonymous() {
		return nil
	}
	a, known := v.Admission(string(id.Role), id.ID)
	if known && !id.Mapped {
		_, gone := v.RevokedCertificate(id.Fingerprint)
		// A revoked identity is accepted only if it was admitted again after the revocation.
		if r, revoked := v.RevokedIdentity(string(id.Role), id.ID); !gone && !(revoked && a.IssuedAt <= r.At) {
			return nil
		}
	}
	why := errNotAdmitted
	if known {
		why = fmt.Errorf("%w since it was revoked", errNotAdmitted)
	}
	return errorf(KindUnauthenticated, "%s %q: %w: `%s` makes a token with which it can join", id.Role, id.ID, why, id.TokenCommand())
}

// checkCaller refuses a caller that the cluster has not admitted, and a call of a gateway for a user that
// the cluster has not admitted.
func (s *Server) checkCaller(v fsm.View, c caller) error {
	if err := s.checkAdmitted(v, c.id); err != nil {
		return err
	}
	if c.account.name != "" {
		return s.checkAccount(v, c.account)
	}
	if c.behalf.IsZero() {
		return nil
	}
	if c.console.id != "" {
		if _, err := s.consoleOf(v, c.console); err != nil {
			return err
		}
	}
	if err := s.checkAdmitted(v, c.behalf); err != nil {
		return fmt.Errorf("through %s %q: %w", c.id.Role, c.id.ID, err)
	}
	return nil
}

// speaksForOthers returns an error unless id belongs to a scheduler that the cluster has admitted. Only a
// scheduler may forward calls with the identity of the original caller.
func (s *Server) speaksForOthers(ctx context.Context, id pki.Identity) error {
	err := s.checkAdmitted(s.store.View(), id)
	if err == nil {
		return nil
	}
	if err := s.catchUp(ctx, err); err != nil {
		return err
	}
	return s.checkAdmitted(s.store.View(), id)
}
