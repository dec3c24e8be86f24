package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// TestAReplayAfterARestartIsRefused: a gateway that starts again within the replay time refuses a delivery that the
// former process forwarded. It accepts one that the former process accepted but did not forward, and one that is older
// than the replay time.
func TestAReplayAfterARestartIsRefused(t *testing.T) {
	var got, failing atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failing.Load() > 0 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		got.Add(1)
	}))
	t.Cleanup(srv.Close)
	client := srv.Client()
	t.Cleanup(client.CloseIdleConnections)
	file := filepath.Join(t.TempDir(), "deliveries")
	start := func() (*receiver, func()) {
		rc := newReceiver(Webhook{Secret: "hush", Forward: srv.URL, File: file, ReplayTTL: time.Hour, Retries: 1, Backoff: time.Millisecond, Client: client}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { rc.run(ctx); close(done) }()
		return rc, func() { cancel(); <-done }
	}
	rc, stop := start()
	if w := deliverAs(rc, "a", "push", "a/b"); w.Code != 200 {
		t.Fatalf("the first delivery was answered %d %s", w.Code, w.Body)
	}
	testbed.Until(t, "the delivery is forwarded", func() bool { return got.Load() == 1 })
	failing.Store(1)
	if w := deliverAs(rc, "lost", "lost", "a/b"); w.Code != 200 {
		t.Fatalf("the delivery that gets lost was answered %d %s", w.Code, w.Body)
	}
	stop()
	failing.Store(0)

	// A crash left a line incomplete, and the file has deliveries of a former hour.
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	old := delivery{id: "old", repo: "a/b", body: []byte("x")}.keys()
	text := deliveryLine{time.Now().Add(-61 * time.Minute), old[0]}.String() + string(kept) + "18000000"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a replay that was refused is still refused after another restart
		rc, stop = start()
		for _, c := range []struct {
			name, id, text string
			code           int
		}{
			{"the delivery again", "a", "push", 409},
			{"its body under another id", "b", "push", 409},
			{"another body under its id", "a", "other", 409},
		} {
			if w := deliverAs(rc, c.id, c.text, "a/b"); w.Code != c.code {
				t.Errorf("after a restart, %s was answered %d %s, want %d", c.name, w.Code, w.Body, c.code)
			}
		}
		stop()
	}
	rc, stop = start()
	for _, id := range []string{"lost", "old"} {
		if w := deliverAs(rc, id, id, "a/b"); w.Code != 200 {
			t.Errorf("after a restart, the delivery %s was answered %d %s, want 200", id, w.Code, w.Body)
		}
	}
	testbed.Until(t, "both are forwarded", func() bool { return got.Load() == 3 })
	stop()
}

// TestTheFileOfDeliveriesIsBounded: expired lines leave the file, and a file that cannot be read or written does not stop
// the gateway.
func TestTheFileOfDeliveriesIsBounded(t *testing.T) {
	f := &deliveryFile{path: filepath.Join(t.TempDir(), "deliveries"), ttl: time.Minute}
	at := time.Unix(1_800_000_000, 0)
	for i := range rewriteAfter {
		keys := delivery{id: fmt.Sprint(i)}.keys()
		if err := f.add(keys[:1], at, at); err != nil {
			t.Fatal(err)
		}
	}
	keys := delivery{id: "last"}.keys()
	later := at.Add(2 * time.Minute)
	if err := f.add(keys[:], later, later); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(f.path)
	if n := strings.Count(string(text), "\n"); err != nil || n != 2 {
		t.Errorf("the file has %d lines (%v), want the 2 that have not expired", n, err)
	}
	var log strings.Builder
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1", File: t.TempDir()}, slog.New(slog.NewTextHandler(&log, nil)))
	if w := deliver(rc, "d"); w.Code != 200 || !strings.Contains(log.String(), "can be repeated") {
		t.Errorf("with a folder in place of the file, a delivery was answered %d and the log says %q, want 200 and a warning", w.Code, log.String())
	}
}

// TestADamagedFileOfDeliveries: a very long line hides no other line, and a time in the future counts as now.
func TestADamagedFileOfDeliveries(t *testing.T) {
	f := &deliveryFile{path: filepath.Join(t.TempDir(), "deliveries"), ttl: time.Hour}
	now := time.Unix(1_800_000_000, 0)
	key := delivery{id: "a"}.keys()[0]
	text := strings.Repeat("x", 100_000) + "\n" + deliveryLine{now.Add(48 * time.Hour), key}.String()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := f.load(now)
	if err != nil || len(got) != 1 || got[0].key != key || !got[0].at.Equal(now) {
		t.Errorf("the damaged file gives %v (%v), want the one readable line with the time of now", got, err)
	}
}
