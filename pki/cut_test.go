package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A connection must be closed when the certificate of its peer is revoked, and stay open when another certificate is
// revoked. After it is closed, Files must not keep a reference to it.
func TestCutRevoked(t *testing.T) {
	s := set(t, t.TempDir())
	f, peer := load(t, s.Leaf["scheduler/scheduler-1"].config()), load(t, s.Leaf["agent/node-a"].config())
	connect := func() (ours net.Conn, theirs *tls.Conn) {
		t.Helper()
		a, b := net.Pipe()
		deadline := time.Now().Add(10 * time.Second)
		if err := errors.Join(a.SetDeadline(deadline), b.SetDeadline(deadline)); err != nil {
			t.Fatal(err)
		}
		server := tls.Server(a, f.ServerConfig(ServerOptions{}))
		theirs = tls.Client(b, peer.ClientConfig(Peer{Hosts: []string{"127.0.0.1"}}))
		shaken := make(chan error, 1)
		go func() { shaken <- theirs.Handshake() }()
		if err := errors.Join(server.Handshake(), <-shaken); err != nil {
			t.Fatal(err)
		}
		ours = f.CutRevoked(server, a, server.ConnectionState())
		t.Cleanup(func() { ours.Close(); b.Close() })
		return ours, theirs
	}
	echo := func(ours net.Conn, theirs *tls.Conn) error {
		wrote := make(chan error, 1)
		go func() { _, err := theirs.Write([]byte("x")); wrote <- err }()
		_, err := io.ReadFull(ours, make([]byte, 1))
		return errors.Join(err, <-wrote)
	}
	ours, theirs := connect()
	f.Revoke(&Revoked{Identities: map[string]time.Time{"agent/node-b": time.Now().Add(time.Hour)}})
	if err := echo(ours, theirs); err != nil {
		t.Fatalf("the revocation of another peer must not close the connection, but the read returned %v", err)
	}
	waits := make(chan error, 1)
	go func() { _, err := ours.Read(make([]byte, 1)); waits <- err }()
	revoked := &Revoked{Identities: map[string]time.Time{"agent/node-a": time.Now().Add(time.Hour)}}
	f.Revoke(revoked)
	select {
	case err := <-waits:
		if err == nil {
			t.Error("no data may be read from a revoked peer, but some was")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the connection of a revoked peer must be closed, but stays open")
	}
	if err := echo(ours, theirs); err == nil {
		t.Error("no data of a revoked peer may be received, but some was")
	}
	// The certificate is revoked between the handshake and the call of CutRevoked. CutRevoked must then close the
	// connection at once.
	f.Revoke(nil)
	ours, theirs = connect()
	state := ours.(*cuttable).state
	f.Revoke(revoked)
	if late := f.CutRevoked(ours.(*cuttable).Conn, ours.(*cuttable).raw, state); echo(late, theirs) == nil {
		t.Error("CutRevoked must close the connection of a peer that was revoked before the call, but the connection is open")
	}
	f.Revoke(nil)
	ours, _ = connect()
	if len(f.open) != 1 {
		t.Errorf("Files holds %d connections, want only the open one", len(f.open))
	}
	ours.Close()
	if len(f.open) != 0 {
		t.Errorf("Files holds %d connections after all were closed, want none", len(f.open))
	}
}
