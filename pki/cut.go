package pki

import (
	"crypto/tls"
	"errors"
	"net"
)

// Revoke sets what is refused from now on, and cuts the connections of CutRevoked
// whose peers are among it.
func (f *Files) Revoke(r *Revoked) {
	f.mu.Lock()
	f.revoked.Store(r)
	close(f.news)
	f.news = make(chan struct{})
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

// CutRevoked returns a connection, whose handshake is done, as one that ends as soon
// as the certificate at its other end is revoked: a handshake judges once, and a
// connection may be open for days. raw is what conn encrypts for. The caller has to
// close what it gets. A certificate that is over ends no connection: a cluster whose
// certificates all ran out goes on, and says so.
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

// isRevoked says nothing of certificates without an identity.
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
