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
	// Secret is the key of the signatures. Secrets overrides it by "owner/name", regardless of case.
	// Deliveries of a repository without a secret are refused.
	Secret  string
	Secrets map[string]string
	// ReplayTTL is the time for which a delivery is remembered, by its id and by its repository and body;
	// default 5 min. A delivery that could not be forwarded is forgotten, so that it can be sent again.
	ReplayTTL time.Duration
	// File keeps the deliveries that were forwarded within ReplayTTL, so that they are also refused after a restart of the
	// gateway; "" = they are remembered in memory only.
	File string
	// Forward is the URL to which accepted deliveries are posted. If it is "", every delivery is refused.
	Forward string
	// Retries is the number of further attempts to forward a delivery after the first attempt, default 5. Backoff is
	// the pause before the second attempt, default 1 s; it doubles with each attempt.
	Retries int
	Backoff time.Duration
	// Client posts deliveries. The default has a timeout of 10 s and follows no redirect
	// that drops the body.
	Client *http.Client
}

// checkPath returns an error for a path that no request can have, and for a path that http.ServeMux would read as a
// pattern. It accepts "", which selects the default path.
func checkPath(p string) error {
	if under := strings.TrimSuffix(p, "/") + "/x"; strings.ContainsAny(p, " \t{}?#") || p != "" && path.Join("/", under) != under {
		return fmt.Errorf("webhook.public_path %q must begin with / and hold no blank, {, }, ? or #, and no segment that is empty, . or ..", p)
	}
	return nil
}

// checkSecrets returns an error if two keys of secrets differ only in case, because they name the same repository.
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
	deliveryKeys   = 200_000 // maximum number of remembered keys, two for each delivery
	forwardWorkers = 2
)

type delivery struct {
	id, event string
	repo      string
	body      []byte
}

// receiver checks webhook deliveries, refuses repeated deliveries and forwards all others.
type receiver struct {
	Webhook
	log   *slog.Logger
	queue chan delivery
	now   func() time.Time

	file  deliveryFile
	mu    sync.Mutex
	seen  map[deliveryKey]time.Time // time at which the delivery was accepted
	order []deliveryKey             // keys of the map seen, oldest first
	over  bool                      // run has ended: no further delivery is accepted
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
	rc := &receiver{Webhook: w, log: log, queue: make(chan delivery, deliveryQueue), now: time.Now, seen: map[deliveryKey]time.Time{}}
	rc.file = deliveryFile{path: w.File, ttl: w.ReplayTTL}
	rc.recall()
	return rc
}

// asPost refuses to follow a redirect that turns the POST into a GET (301, 302, 303), because the GET would
// succeed without sending the delivery.
func asPost(r *http.Request, via []*http.Request) error {
	if r.Method != http.MethodPost || len(via) >= 10 {
		return http.ErrUseLastResponse
	}
	return nil
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rc.Forward == "" {
		refuse(w, http.StatusNotImplemented, "this gateway does not forward webhooks: set forgery.webhook_forward_url")
		return
	}
	d, code, err := rc.check(r)
	if err != nil {
		refuse(w, code, err.Error())
		return
	}
	if !rc.remember(d) {
		refuse(w, http.StatusConflict, fmt.Sprintf("delivery %q, or one with the same body, was received before", d.id))
		return
	}
	if err := rc.accept(d); err != nil {
		rc.forget(d) // forget the delivery, so that the sender may try again
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "accepted"})
}

// accept queues a delivery. It fails if the queue is full or the gateway is closing.
func (rc *receiver) accept(d delivery) error {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.over {
		return errors.New("the gateway is shutting down")
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
	// The answer is the same for an unknown repository and a wrong signature, so that callers do not learn
	// which repositories are configured.
	if secret == "" || !hmac.Equal([]byte(want), []byte(r.Header.Get("X-Hub-Signature-256"))) {
		return d, http.StatusUnauthorized, errors.New("the signature X-Hub-Signature-256 is missing or wrong")
	}
	d.body, d.repo = body, repo
	return d, 0, nil
}

// run forwards deliveries until ctx ends.
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
	rc.over = true // accept refuses the deliveries that the listener still receives
	rc.mu.Unlock()
	wg.Wait()
	if n := len(rc.queue); n > 0 {
		rc.log.Error("webhook deliveries were accepted, but not forwarded before this gateway stopped", "deliveries", n)
	}
}

func (rc *receiver) forward(ctx context.Context, d delivery) {
	pause := rc.Backoff
	for try := 0; ; try++ {
		err := rc.post(ctx, d)
		if err == nil {
			rc.forwarded(d)
			return
		}
		if try >= rc.Retries || ctx.Err() != nil {
			rc.forget(d) // forget the delivery, so that the sender may try again
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
