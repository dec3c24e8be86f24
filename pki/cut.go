package pki

import (
	"crypto/tls"
	"errors"
	"net"
)

// Revoke replaces the revocations, and closes the connections made by CutRevoked whose peers are revoked.
func (f *Files) Revoke(r *Revoked) {
	f.mu.Lock()
	f.revoked.Store(r)
	close(f.changed)
	f.changed = make(chan struct{})
	var cut []*cuttable
	for c := range f.open {
		if f.isRevoked(c.state) {
			cut = append(cut, c)
			delete(f.open, c)
		}
	}
	f.mu.Unlock()
	for _, c := range cut {
		c.raw.Close()
	}
}

// CutRevoked returns a wrapper of a connection after its handshake. The connection is closed as soon as the peer's
// certificate is revoked. A handshake checks the certificate only once, but a connection may be open for days. conn is
// the TLS connection over raw. The returned connection must be closed after use. The expiry of a certificate does not
// close the connection, so that a cluster whose certificates have all expired keeps running and can report this.
func (f *Files) CutRevoked(conn, raw net.Conn, state tls.ConnectionState) net.Conn {
	c := &cuttable{Conn: conn, f: f, raw: raw, state: state}
	f.mu.Lock()
	late := f.isRevoked(state)
	if !late {
		f.open[c] = struct{}{}
	}
	f.mu.Unlock()
	if late {
		raw.Close()
	}
	return c
}

// isRevoked reports whether the peer's certificate is revoked. It returns false if the certificate gives no identity,
// because revocations name identities.
func (f *Files) isRevoked(state tls.ConnectionState) bool {
	if len(state.PeerCertificates) == 0 {
		return false
	}
	leaf := state.PeerCertificates[0]
	id, err := FromCertificate(leaf, f.cfg.Mapping)
	return err == nil && errors.Is(f.revoked.Load().Check(leaf, id), ErrRevoked)
}

type cuttable struct {
	net.Conn
	f     *Files
	raw   net.Conn
	state tls.ConnectionState
}

func (c *cuttable) Close() error {
	c.f.mu.Lock()
	delete(c.f.open, c)
	c.f.mu.Unlock()
	return c.Conn.Close()
}
