package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// Signatures, sizes and forwarding are tested on the whole program (cmd/internal/gatewayd). These
// tests reach the bounds that take too long there.

// deliver posts a signed delivery to a receiver whose run has not begun.
func deliver(rc *receiver, id string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/webhooks/github", strings.NewReader(`{"repository":{"full_name":"a/b"}}`))
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Github-Delivery": {id}, "X-Github-Event": {"push"},
		"X-Hub-Signature-256": {"sha256=34da1b88279fd22228ff0a565675024a77cf8e19f1bb1080fa32ca197d099f9a"}}
	w := httptest.NewRecorder()
	rc.ServeHTTP(w, r)
	return w
}

func TestDeliveriesAreRememberedForTheReplayTime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1", ReplayTTL: time.Minute}, slog.New(slog.DiscardHandler))
	rc.now = func() time.Time { return now }
	for _, c := range []struct {
		after time.Duration
		id    string
		code  int
	}{
		{0, "a", 200}, {59 * time.Second, "a", 409}, {time.Second, "a", 409}, {0, "b", 200},
		// The repeated delivery did not extend the time.
		{time.Second, "a", 200}, {0, "b", 409}, {59 * time.Second, "b", 409}, {time.Second, "b", 200},
	} {
		now = now.Add(c.after)
		if w := deliver(rc, c.id); w.Code != c.code {
			t.Errorf("delivery %s, %s later: %d %s, want %d", c.id, c.after, w.Code, w.Body, c.code)
		}
	}
	if n := len(rc.seen); n != 2 || len(rc.order) != n {
		t.Errorf("%d ids are remembered in %d places, want 2", n, len(rc.order))
	}
	for i := range deliveryIDs + 10 {
		rc.remember(fmt.Sprint("x", i))
	}
	if len(rc.seen) != deliveryIDs || len(rc.order) != deliveryIDs {
		t.Errorf("%d ids are remembered, want at most %d", len(rc.seen), deliveryIDs)
	}
	if rc.remember("x10") {
		t.Error("of too many the newest are forgotten, not the oldest")
	}
}

func TestSecretsIgnoreTheCaseOfRepositories(t *testing.T) {
	for _, c := range []struct {
		own  string
		code int
	}{{"hush", 200}, {"another", 401}} {
		rc := newReceiver(Webhook{Secret: "hush", Secrets: map[string]string{"A/B": c.own}, Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
		if w := deliver(rc, "d"); w.Code != c.code {
			t.Errorf("signed with hush, its own is %s: %d, want %d", c.own, w.Code, c.code)
		}
	}
}

func TestTwoSecretsOfOneRepositoryAreRefused(t *testing.T) {
	o := Options{Clusters: []Cluster{{ID: ""}}, Webhook: Webhook{Secrets: map[string]string{"a/b": "x", "A/B": "y", "a/c": "z"}}}
	if _, err := New(t.Context(), o); !strings.Contains(err.Error(), `"A/B" and "a/b" are one repository`) {
		t.Errorf("got %v", err)
	}
}

func TestAFullQueueAnswersWithRetryAfter(t *testing.T) {
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	for i := range deliveryQueue {
		if w := deliver(rc, fmt.Sprint("d", i)); w.Code != 200 {
			t.Fatalf("delivery %d: %d %s", i, w.Code, w.Body)
		}
	}
	for range 2 { // a refused delivery is not remembered
		if w := deliver(rc, "late"); w.Code != 503 || w.Header().Get("Retry-After") != "10" || !strings.Contains(w.Body.String(), "1024 deliveries are waiting") {
			t.Errorf("one more: %d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	<-rc.queue
	if w := deliver(rc, "late"); w.Code != 200 {
		t.Errorf("once there is room: %d %s", w.Code, w.Body)
	}
}

func TestDeliveriesAreRefusedAfterTheEnd(t *testing.T) {
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rc.run(ctx)
	for range 2 {
		if w := deliver(rc, "d"); w.Code != 503 || !strings.Contains(w.Body.String(), "about to end") {
			t.Errorf("at the end of the gateway: %d %s", w.Code, w.Body)
		}
	}
}

func TestABadPathIsAnError(t *testing.T) {
	for p, good := range map[string]bool{
		"": true, "/": true, "/hook": true, "/hooks/": true, "/caf%C3%A9/.well-known/a:b": true,
		"webhooks/github": false, "/{repo": false, "/{repo}": false, "/a b": false, "//a": false, "//": false, "/a//": false, "/a/../b": false, "/.": false, "/a?b": false,
	} {
		o := Options{Clusters: []Cluster{{ID: ""}}, Webhook: Webhook{Path: p}}
		if _, err := New(t.Context(), o); strings.Contains(err.Error(), fmt.Sprintf("webhook.public_path %q", p)) == good {
			t.Errorf("%q: got %v, want it good: %v", p, err, good)
		}
		if good { // ServeMux panics on a bad pattern
			http.NewServeMux().Handle("POST "+newReceiver(o.Webhook, nil).Path, http.NotFoundHandler())
		}
	}
}

func TestForwardingGivesUp(t *testing.T) {
	var log bytes.Buffer
	tries := make(chan time.Time, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tries <- time.Now()
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(srv.Close)
	client := srv.Client()
	t.Cleanup(client.CloseIdleConnections)
	rc := newReceiver(Webhook{Forward: srv.URL, Retries: 3, Backoff: 20 * time.Millisecond, Client: client}, slog.New(slog.NewTextHandler(&log, nil)))
	rc.remember("d1")
	rc.forward(t.Context(), delivery{id: "d1", event: "push"})
	if len(tries) != 4 {
		t.Fatalf("%d tries, want the first and 3 more", len(tries))
	}
	last, pause := <-tries, 20*time.Millisecond
	for i := range 3 {
		next := <-tries
		if next.Sub(last) < pause {
			t.Errorf("pause %d was %s, want %s at least: each is twice the one before", i+1, next.Sub(last), pause)
		}
		last, pause = next, 2*pause
	}
	if !strings.Contains(log.String(), "could not be forwarded") || !strings.Contains(log.String(), "delivery=d1") || !strings.Contains(log.String(), "tries=4") {
		t.Errorf("it is lost without a word: %s", log.String())
	}
	if !rc.remember("d1") {
		t.Error("what is lost cannot be delivered again")
	}

	// Closing the gateway ends the tries, too.
	ctx, cancel := context.WithCancel(t.Context())
	rc.Backoff = time.Hour
	done := make(chan struct{})
	go func() { rc.run(ctx); close(done) }()
	rc.queue <- delivery{id: "d2", event: "push"}
	testbed.Until(t, "the first try", func() bool { return len(tries) == 1 })
	cancel()
	<-done
}

func TestARedirectThatDropsTheBodyIsAnError(t *testing.T) {
	for code, there := range map[int]string{301: "", 302: "", 303: "", 307: "{}", 308: "{}"} {
		got := make(chan string, 1)
		mux := http.NewServeMux()
		mux.Handle("/old", http.RedirectHandler("/new", code))
		mux.HandleFunc("/new", func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- string(body)
		})
		srv := httptest.NewServer(mux)
		rc := newReceiver(Webhook{Forward: srv.URL + "/old"}, slog.New(slog.DiscardHandler))
		err := rc.post(t.Context(), delivery{id: "d", event: "push", body: []byte("{}")})
		if there == "" && (err == nil || !strings.Contains(err.Error(), fmt.Sprint(code)) || len(got) != 0) {
			t.Errorf("%d, which loses the body: %v, %d requests", code, err, len(got))
		}
		if there != "" && (err != nil || <-got != there) {
			t.Errorf("%d, which keeps the body: %v", code, err)
		}
		rc.Client.CloseIdleConnections()
		srv.Close()
	}
}
