package agentd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
)

// TestTheFencerReportsToItsSupervisor: a fencer reports to systemd first that it is ready and then that it is
// alive, three times per WATCHDOG_USEC and not more often.
func TestTheFencerReportsToItsSupervisor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	env := func(more ...string) func(string) string {
		return func(name string) string {
			for _, kv := range append(more, "NOTIFY_SOCKET="+path) {
				if k, v, _ := strings.Cut(kv, "="); k == name {
					return v
				}
			}
			return ""
		}
	}
	hears := func(limit time.Duration) string {
		t.Helper()
		if err := l.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		raw := make([]byte, 100)
		n, err := l.Read(raw)
		if err != nil {
			return ""
		}
		return string(raw[:n])
	}
	beat, done, err := supervised(env("WATCHDOG_USEC=300000", "WATCHDOG_PID=7"), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	beat()
	if got := hears(time.Second); got != "READY=1\nWATCHDOG=1" {
		t.Errorf("the first message of the fencer to systemd is %q, want READY=1 and WATCHDOG=1", got)
	}
	beat()
	if got := hears(10 * time.Millisecond); got != "" {
		t.Errorf("a second message followed at once: %q", got)
	}
	for until := time.Now().Add(5 * time.Second); ; {
		beat()
		if got := hears(10 * time.Millisecond); got == "WATCHDOG=1" {
			break
		} else if got != "" || time.Now().After(until) {
			t.Fatalf("the next message of the fencer to systemd is %q, want WATCHDOG=1", got)
		}
	}
	// WATCHDOG_PID names another process, so this process reports only that it is ready.
	other, done2, err := supervised(env("WATCHDOG_USEC=3", "WATCHDOG_PID=8"), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer done2()
	other()
	other()
	if got := hears(time.Second); !strings.HasPrefix(got, "READY=1") {
		t.Errorf("the supervisor got the message %q, want READY=1", got)
	}
	if got := hears(10 * time.Millisecond); got != "" {
		t.Errorf("a fencer with the watchdog variables of another process sends %q, want no message after READY=1", got)
	}
	if beat, _, err := supervised(func(string) string { return "" }, 7); beat != nil || err != nil {
		t.Errorf("without a supervisor, supervised returned %v", err)
	}
	if _, _, err := supervised(env("WATCHDOG_USEC=often"), 7); err == nil || !strings.Contains(err.Error(), "WATCHDOG_USEC") {
		t.Errorf("with an invalid WATCHDOG_USEC, supervised returned %v, want an error that names it", err)
	}
}

func TestFencerOffEndsTheProgram(t *testing.T) {
	err := RunFencer(context.Background(), Config{Fencer: "off", Insecure: true}, "v", false, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if !errors.Is(err, ErrFencerOff) {
		t.Errorf("got %v", err)
	}
}

// A fencer reports which kinds of workloads it can stop, so that an agent does not accept exclusive workloads of other
// kinds.
func TestStopsListsTheKindsOfWorkloads(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []driver.Kind
	}{
		{Config{Docker: true, Compose: true, VM: true}, []driver.Kind{driver.Container, driver.Compose, driver.VM}},
		{Config{Docker: true}, []driver.Kind{driver.Container}},
		{Config{Compose: true, VM: true}, []driver.Kind{driver.VM}},
		{Config{Simulate: "/sim"}, []driver.Kind{driver.Container, driver.Compose, driver.VM}},
	} {
		if got := c.cfg.stops(); got == nil || !slices.Equal(got, c.want) {
			t.Errorf("with the settings %+v the fencer stops the kinds %v, want %v", c.cfg, got, c.want)
		}
	}
}
