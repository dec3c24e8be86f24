package gateway

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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

// Signatures, sizes and forwarding are tested with the whole program (cmd/internal/gatewayd). The tests in this file
// check time limits and queue limits, which would take too long with the whole program.

// deliver posts a signed delivery whose body contains its id. The receiver may not be running yet.
func deliver(rc *receiver, id string) *httptest.ResponseRecorder { return deliverAs(rc, id, id, "a/b") }

// deliverAs posts a signed delivery of repository repo with id in its header and text in its body.
func deliverAs(rc *receiver, id, text, repo string) *httptest.ResponseRecorder {
	body := fmt.Sprintf(`{"repository":{"full_name":%q},"text":%q}`, repo, text)
	mac := hmac.New(sha256.New, []byte("hush"))
	_, _ = mac.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/webhooks/github", strings.NewReader(body))
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Github-Delivery": {id}, "X-Github-Event": {"push"},
		"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}
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
		// Delivery b was refused as a repetition. This must not extend the time for which b is remembered.
		{time.Second, "a", 200}, {0, "b", 409}, {59 * time.Second, "b", 409}, {time.Second, "b", 200},
	} {
		now = now.Add(c.after)
		if w := deliver(rc, c.id); w.Code != c.code {
			t.Errorf("delivery %s, %s later: %d %s, want %d", c.id, c.after, w.Code, w.Body, c.code)
		}
	}
	if n := len(rc.seen); n != 4 || len(rc.order) != n {
		t.Errorf("the map holds %d keys and the list that orders them holds %d, want 4 in each", n, len(rc.order))
	}
	numbered := func(i int) delivery { return delivery{id: fmt.Sprint("x", i), body: []byte(fmt.Sprint(i))} }
	for i := range deliveryKeys/2 + 10 {
		rc.remember(numbered(i))
	}
	if len(rc.seen) != deliveryKeys || len(rc.order) != deliveryKeys {
		t.Errorf("%d keys are remembered, want at most %d", len(rc.seen), deliveryKeys)
	}
	if rc.remember(numbered(10)) {
		t.Error("the newest keys were forgotten instead of the oldest")
	}
}

// TestACapturedDeliveryIsRefusedUnderAnotherID: the receiver refuses a body that it has already accepted under another
// id, because the signature covers only the body and an attacker may repeat a captured delivery.
func TestACapturedDeliveryIsRefusedUnderAnotherID(t *testing.T) {
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		name, id, text, repo string
		code                 int
	}{
		{"the first delivery", "a", "push", "a/b", 200},
		{"the same body under another id", "b", "push", "a/b", 409},
		{"another body under the same id", "a", "other", "a/b", 409},
		{"the same text of another repository", "c", "push", "a/c", 200},
		{"the id of a refused delivery is not remembered", "b", "third", "a/b", 200},
	} {
		if w := deliverAs(rc, c.id, c.text, c.repo); w.Code != c.code {
			t.Errorf("%s: the answer is %d %s, want status %d", c.name, w.Code, w.Body, c.code)
		}
	}
	rc.forget(delivery{id: "a", repo: "A/B", body: []byte(`{"repository":{"full_name":"a/b"},"text":"push"}`)})
	if w := deliver(rc, "push"); w.Code != 200 {
		t.Errorf("a forgotten delivery was answered %d %s, want 200", w.Code, w.Body)
	}
}

func TestSecretsIgnoreTheCaseOfRepositories(t *testing.T) {
	for _, c := range []struct {
		own  string
		code int
	}{{"hush", 200}, {"another", 401}} {
		rc := newReceiver(Webhook{Secret: "hush", Secrets: map[string]string{"A/B": c.own}, Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
		if w := deliver(rc, "d"); w.Code != c.code {
			t.Errorf("signed with the secret hush instead of its own %s: %d, want %d", c.own, w.Code, c.code)
		}
	}
}

func TestTwoSecretsOfOneRepositoryAreRefused(t *testing.T) {
	o := Options{Clusters: []Cluster{{ID: ""}}, Webhook: Webhook{Secrets: map[string]string{"a/b": "x", "A/B": "y", "a/c": "z"}}}
	if _, err := New(t.Context(), o); !strings.Contains(err.Error(), `"A/B" and "a/b" are one repository`) {
		t.Errorf("two secrets for one repository gave the error %v, want one that names both keys", err)
	}
}

func TestAFullQueueAnswersWithRetryAfter(t *testing.T) {
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	for i := range deliveryQueue {
		if w := deliver(rc, fmt.Sprint("d", i)); w.Code != 200 {
			t.Fatalf("delivery %d was answered %d %s, want 200", i, w.Code, w.Body)
		}
	}
	for range 2 { // a refused delivery is not remembered
		if w := deliver(rc, "late"); w.Code != 503 || w.Header().Get("Retry-After") != "10" || !strings.Contains(w.Body.String(), "1024 deliveries are waiting") {
			t.Errorf("a delivery to a full queue was answered %d %v %s, want 503", w.Code, w.Header(), w.Body)
		}
	}
	<-rc.queue
	if w := deliver(rc, "late"); w.Code != 200 {
		t.Errorf("a delivery to a queue with room again was answered %d %s, want 200", w.Code, w.Body)
	}
}

func TestDeliveriesAreRefusedAfterTheEnd(t *testing.T) {
	rc := newReceiver(Webhook{Secret: "hush", Forward: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rc.run(ctx)
	for range 2 {
		if w := deliver(rc, "d"); w.Code != 503 || !strings.Contains(w.Body.String(), "shutting down") {
			t.Errorf("a delivery to a gateway that is closing was answered %d %s, want 503", w.Code, w.Body)
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
			t.Errorf("path %q: got %v, want it accepted: %v", p, err, good)
		}
		if good { // ServeMux panics on a bad pattern
			http.NewServeMux().Handle("POST "+newReceiver(o.Webhook, nil).Path, http.NotFoundHandler())
		}
	}
}

func TestForwardingEndsAfterItsRetries(t *testing.T) {
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
	rc.remember(delivery{id: "d1"})
	rc.forward(t.Context(), delivery{id: "d1", event: "push"})
	if len(tries) != 4 {
		t.Fatalf("the delivery was tried %d times, want 4: the first attempt and 3 retries", len(tries))
	}
	last, pause := <-tries, 20*time.Millisecond
	for i := range 3 {
		next := <-tries
		if next.Sub(last) < pause {
			t.Errorf("pause %d was %s, want at least %s: each pause is twice the previous one", i+1, next.Sub(last), pause)
		}
		last, pause = next, 2*pause
	}
	if !strings.Contains(log.String(), "could not be forwarded") || !strings.Contains(log.String(), "delivery=d1") || !strings.Contains(log.String(), "tries=4") {
		t.Errorf("the log does not name the lost delivery: %s", log.String())
	}
	if !rc.remember(delivery{id: "d1"}) {
		t.Error("a lost delivery must be accepted again")
	}

	// When the gateway is closed, it must stop trying to forward deliveries.
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
			t.Errorf("redirect %d, which drops the body, returned %v and %d deliveries arrived; want an error and none", code, err, len(got))
		}
		if there != "" && (err != nil || <-got != there) {
			t.Errorf("redirect %d, which keeps the body, returned %v, or the delivery did not arrive", code, err)
		}
		rc.Client.CloseIdleConnections()
		srv.Close()
	}
}
