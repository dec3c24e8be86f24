package replica

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProfilesAreOnAUnixSocket: profiles are served on a socket that only the scheduler's user may open.
func TestProfilesAreOnAUnixSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, profilesSocket)
	if err := os.WriteFile(path, nil, 0o600); err != nil { // a file at the socket's path, as a killed process leaves behind
		t.Fatal(err)
	}
	l, err := listenProfiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := profileServer()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Errorf("the file at the socket's path is %v (error %v), want a socket with mode 0600", info, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	resp, err := client.Get("http://localhost/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), "goroutine profile") {
		t.Errorf("the answer on the socket is %.100q (error %v), want a goroutine profile", body, err)
	}
}
