package setup

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// A status message to systemd has one line. A program that systemd did not start sends none.
func TestStatusOfTheUnit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	Status("nobody hears this")
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	Status("nor this")
	t.Setenv("NOTIFY_SOCKET", path)
	Status("joining:\n10.0.0.1:8085 does not answer")
	raw := make([]byte, 200)
	n, err := l.Read(raw)
	if got, want := string(raw[:n]), "STATUS=joining: 10.0.0.1:8085 does not answer"; err != nil || got != want {
		t.Errorf("systemd got the message %q, error %v; want %q", got, err, want)
	}
}
