package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Webhook configures the receiver of repository webhooks (contract/gateway-rest.md,
// "public listener").
type Webhook struct {
	// Path on the public listener, default /webhooks/github.
	Path string
	// Secret is the key of signatures; Secrets overrides it by "owner/name", without regard
	// to case. A repository without a secret is refused.
	Secret  string
	Secrets map[string]string
	// ReplayTTL is how long a delivery id is remembered, default 5 min. The id of a delivery that
	// could not be forwarded is forgotten, so that it can be sent again.
	ReplayTTL time.Duration
	// Forward is the URL that accepted deliveries are posted to. Without it every
	// delivery is refused.
	Forward string
	// Retries is the number of tries after the first one to forward a delivery, default 5.
	// Backoff is the first pause between tries, default 1 s; it doubles.
	Retries int
	Backoff time.Duration
	// Client posts deliveries. The default has a timeout of 10 s and follows no redirect
	// that drops the body.
	Client *http.Client
}

// checkPath refuses a path that no request can have, and patterns of http.ServeMux. "" is valid.
func checkPath(p string) error {
	if under := strings.TrimSuffix(p, "/") + "/x"; strings.ContainsAny(p, " \t{}?#") || p != "" && path.Join("/", under) != under {
		return fmt.Errorf("webhook.public_path %q must begin with / and hold no blank, {, }, ? or #, and no segment that is empty, . or ..", p)
	}
	return nil
}

// checkSecrets refuses two secrets for one repository: names differ in case only.
func checkSecrets(secrets map[string]string) error {
	as := make(map[string]string, len(secrets))
	for _, repo := range slices.Sorted(maps.Keys(secrets)) {
		low := strings.ToLower(repo)
		if other, ok := as[low]; ok {
			return fmt.Errorf("webhook.repository_secrets: %q and %q are one repository", other, repo)
		}
		as[low] = repo
	}
	return nil
}

const (
	maxDelivery    = 1 << 20
	deliveryQueue  = 1024
	deliveryIDs    = 100_000 // ids remembered at most
	forwardWorkers = 2
)

type delivery struct {
	id, event string
	body      []byte
}

// receiver checks deliveries, refuses repeated ones and forwards the others.
type receiver struct {
	Webhook
	log   *slog.Logger
	queue chan delivery
	now   func() time.Time

	mu    sync.Mutex
	seen  map[string]time.Time
	order []string // ids of seen, oldest first
	over  bool     // run has ended
}

func newReceiver(w Webhook, log *slog.Logger) *receiver {
	w.Path = cmp.Or(w.Path, "/webhooks/github")
	w.ReplayTTL = cmp.Or(w.ReplayTTL, 5*time.Minute)
	w.Retries = cmp.Or(w.Retries, 5)
	w.Backoff = cmp.Or(w.Backoff, time.Second)
	if w.Client == nil {
		w.Client = &http.Client{Timeout: 10 * time.Second, CheckRedirect: asPost}
	}
	secrets := make(map[string]string, len(w.Secrets))
	for repo, secret := range w.Secrets {
		secrets[strings.ToLower(repo)] = secret
	}
	w.Secrets = secrets
	return &receiver{Webhook: w, log: log, queue: make(chan delivery, deliveryQueue), now: time.Now, seen: map[string]time.Time{}}
}

// asPost stops at a redirect that turns the POST into a GET (301, 302, 303): the GET would
// succeed without the delivery.
func asPost(r *http.Request, via []*http.Request) error {
	if r.Method != http.MethodPost || len(via) >= 10 {
		return http.ErrUseLastResponse
	}
	return nil
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rc.Forward == "" {
		refuse(w, http.StatusNotImplemented, "nobody takes webhooks here: set forgery.webhook_forward_url")
		return
	}
	d, code, err := rc.check(r)
	if err != nil {
		refuse(w, code, err.Error())
		return
	}
	if !rc.remember(d.id) {
		refuse(w, http.StatusConflict, fmt.Sprintf("delivery %q was received before", d.id))
		return
	}
	if err := rc.accept(d); err != nil {
		rc.forget(d.id) // so that the sender may try again
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "accepted"})
}

// accept queues a delivery. It fails when the queue is full or the gateway ends.
func (rc *receiver) accept(d delivery) error {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.over {
		return errors.New("the gateway is about to end")
	}
	select {
	case rc.queue <- d:
		return nil
	default:
		return fmt.Errorf("%d deliveries are waiting already", deliveryQueue)
	}
}

// check reads a delivery and verifies its signature. On error it returns the HTTP status.
func (rc *receiver) check(r *http.Request) (delivery, int, error) {
	d := delivery{id: r.Header.Get("X-GitHub-Delivery"), event: r.Header.Get("X-GitHub-Event")}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return d, http.StatusBadRequest, fmt.Errorf("the content type %q must be application/json", r.Header.Get("Content-Type"))
	}
	if d.id == "" || len(d.id) > 128 || d.event == "" || len(d.event) > 128 {
		return d, http.StatusBadRequest, errors.New("the headers X-GitHub-Event and X-GitHub-Delivery must be set, at most 128 bytes each")
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxDelivery))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return d, http.StatusRequestEntityTooLarge, fmt.Errorf("the delivery is over %d bytes", maxDelivery)
		}
		return d, http.StatusBadRequest, err
	}
	var payload struct {
		Repository struct {
			FullName string `json:"full_name"`
			Name     string `json:"name"`
			Owner    struct {
				Login string `json:"login"`
			} `json:"owner"`
		} `json:"repository"`
	}
	if err := json.Unmarshal(body, &payload); err != nil {
		return d, http.StatusBadRequest, fmt.Errorf("the payload is no JSON: %w", err)
	}
	repo := payload.Repository.FullName
	if repo == "" && payload.Repository.Owner.Login != "" && payload.Repository.Name != "" {
		repo = payload.Repository.Owner.Login + "/" + payload.Repository.Name
	}
	if repo == "" {
		return d, http.StatusBadRequest, errors.New("the payload names no repository (repository.full_name)")
	}
	secret, ok := rc.Secrets[strings.ToLower(repo)]
	if !ok {
		secret = rc.Secret
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write(body)
	want := "sha256=" + hex.EncodeToString(mac.Sum(nil))
	// The same answer for an unknown repository and a wrong signature: callers must not learn
	// which repositories are configured.
	if secret == "" || !hmac.Equal([]byte(want), []byte(r.Header.Get("X-Hub-Signature-256"))) {
		return d, http.StatusUnauthorized, errors.New("the signature X-Hub-Signature-256 is missing or wrong")
	}
	d.body = body
	return d, 0, nil
}

// remember records a delivery id, and reports whether it is new.
func (rc *receiver) remember(id string) bool {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	now := rc.now()
	oldest := func() {
		delete(rc.seen, rc.order[0])
		rc.order = rc.order[1:]
	}
	for len(rc.order) > 0 && now.Sub(rc.seen[rc.order[0]]) > rc.ReplayTTL {
		oldest()
	}
	if _, again := rc.seen[id]; again {
		return false
	}
	if len(rc.order) >= deliveryIDs {
		oldest()
	}
	rc.seen[id] = now
	rc.order = append(rc.order, id)
	return true
}

func (rc *receiver) forget(id string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	delete(rc.seen, id)
	for i := len(rc.order) - 1; i >= 0; i-- {
		if rc.order[i] == id {
			rc.order = append(rc.order[:i], rc.order[i+1:]...)
			return
		}
	}
}

// run forwards until ctx ends.
func (rc *receiver) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range forwardWorkers {
		wg.Go(func() {
			for {
				select {
				case d := <-rc.queue:
					rc.forward(ctx, d)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	<-ctx.Done()
	rc.mu.Lock()
	rc.over = true // the listener may still receive deliveries
	rc.mu.Unlock()
	wg.Wait()
	if n := len(rc.queue); n > 0 {
		rc.log.Error("webhook deliveries were accepted and not forwarded before the end", "deliveries", n)
	}
}

func (rc *receiver) forward(ctx context.Context, d delivery) {
	pause := rc.Backoff
	for try := 0; ; try++ {
		err := rc.post(ctx, d)
		if err == nil {
			return
		}
		if try >= rc.Retries || ctx.Err() != nil {
			rc.forget(d.id) // so that it may be sent again
			rc.log.Error("a webhook delivery could not be forwarded", "delivery", d.id, "event", d.event, "tries", try+1, "error", err)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause *= 2
	}
}

func (rc *receiver) post(ctx context.Context, d delivery) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rc.Forward, bytes.NewReader(d.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Delivery", d.id)
	req.Header.Set("X-GitHub-Event", d.event)
	resp, err := rc.Client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s answered %s", rc.Forward, resp.Status)
	}
	return nil
}
