package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// Options configure a gateway.
type Options struct {
	// Clusters are the clusters to serve, in any order: at least one, with distinct ids.
	Clusters []Cluster
	// Default is the id of the cluster for requests that name no cluster. If it is "", the cluster with the lowest id
	// is used.
	Default string
	// Dial opens a connection to schedulers.
	Dial Dialer
	// TLS identifies callers by their certificates; nil means -insecure: every
	// caller is the anonymous admin.
	TLS *pki.Files
	// Tokens verifies bearer tokens; nil refuses them.
	Tokens *Tokens
	// Webhook configures the receiver of repository webhooks; its zero value refuses every delivery.
	Webhook Webhook
	// ProbeInterval is the time between health probes of the schedulers, default 15 s.
	ProbeInterval time.Duration
	// CallTimeout is the deadline of one call, default 20 s. Streams have no deadline. The calls for which slow returns
	// true have the deadline slowLimit.
	CallTimeout time.Duration
	// ProxyScheduler and ProxyEnabled have no effect except that /health shows them.
	ProxyScheduler string
	ProxyEnabled   bool
	// Limits are the limits on requests of one host.
	Limits limits.Limits
	// Schema is the JSON Schema of a specification file, served at
	// /schema/workload.json; nil serves none.
	Schema   []byte
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Gateway serves clusters over HTTP. Create it with New, serve its handlers, run
// Run, and Close it.
type Gateway struct {
	opt      Options
	backends []*backend // clusters in the order of their ids
	first    *backend   // cluster that serves requests that name no cluster
	hooks    *receiver
	accounts *accounts
	metrics  metrics
	hosts    *limits.Peers
	control  controlv1.AgentControlClient
	handler  http.Handler
	sessions sync.WaitGroup // counts the running exec sessions, whose connections the HTTP server no longer tracks
	ctx      context.Context
	cancel   context.CancelFunc

	execPing, execPatience time.Duration
}

// New prepares a gateway. Its errors are about the options. No scheduler is contacted before Run or the
// first request.
func New(ctx context.Context, opt Options) (*Gateway, error) {
	if len(opt.Clusters) == 0 {
		return nil, errors.New("no cluster is configured: set PERSYS_SCHEDULER_ADDR, PERSYS_SCHEDULER_DISCOVERY, scheduler.clusters or prow.discovery_domain")
	}
	if err := errors.Join(checkPath(opt.Webhook.Path), checkSecrets(opt.Webhook.Secrets)); err != nil {
		return nil, err
	}
	opt.ProbeInterval = cmp.Or(opt.ProbeInterval, 15*time.Second)
	opt.CallTimeout = cmp.Or(opt.CallTimeout, dial.DefaultCallTimeout)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Registry == nil {
		opt.Registry = prometheus.NewRegistry()
	}
	g := &Gateway{opt: opt, control: controlv1.NewAgentControlClient(routed{}), metrics: newMetrics(), hosts: limits.NewPeers(opt.Limits, nil), execPing: execPing, execPatience: execPatience}
	opt.Registry.MustRegister(g.metrics.Set)
	g.ctx, g.cancel = context.WithCancel(ctx)
	g.accounts = newAccounts(g.ctx)
	for _, c := range opt.Clusters {
		if err := g.add(c); err != nil {
			g.Close()
			return nil, err
		}
	}
	slices.SortFunc(g.backends, func(a, b *backend) int { return cmp.Compare(a.ID, b.ID) })
	g.first = g.find(opt.Default)
	if opt.Default != "" && g.first == nil {
		g.Close()
		return nil, fmt.Errorf("PERSYS_GATEWAY_DEFAULT_CLUSTER %q is none of the configured clusters", opt.Default)
	}
	if g.first == nil {
		g.first = g.backends[0]
	}
	g.hooks = newReceiver(opt.Webhook, opt.Log)
	mux, err := g.routes()
	if err != nil {
		g.Close()
		return nil, err
	}
	g.handler = mux
	return g, nil
}

func (g *Gateway) add(c Cluster) error {
	c.Strategy = cmp.Or(c.Strategy, LeaderOnly)
	switch {
	case c.ID == "" || strings.ContainsAny(c.ID, "/?# "):
		return fmt.Errorf("scheduler.clusters: id %q must not be empty or contain /, ?, # or a blank", c.ID)
	case g.find(c.ID) != nil:
		return fmt.Errorf("scheduler.clusters: id %q is used twice", c.ID)
	case c.Strategy != LeaderOnly && c.Strategy != Sticky && c.Strategy != Shard:
		return fmt.Errorf("cluster %q: routing_strategy %q must be leader-only, sticky or shard", c.ID, c.Strategy)
	}
	c.Name = cmp.Or(c.Name, c.ID)
	b, err := newBackend(g.ctx, c, g.opt.Dial, g.opt.Log)
	if err != nil {
		return err
	}
	g.backends = append(g.backends, b)
	return nil
}

// Close ends every call and waits for the goroutines.
func (g *Gateway) Close() {
	g.cancel()
	g.sessions.Wait()
	for _, b := range g.backends {
		b.close()
	}
}

// Run probes the schedulers and forwards webhook deliveries until ctx ends.
func (g *Gateway) Run(ctx context.Context) {
	done := make(chan struct{})
	for _, b := range g.backends {
		go func() { b.watch(ctx, g.opt.ProbeInterval); done <- struct{}{} }()
	}
	g.hooks.run(ctx)
	for range g.backends {
		<-done
	}
}

func (g *Gateway) find(id string) *backend {
	if i := slices.IndexFunc(g.backends, func(b *backend) bool { return b.ID == id }); i >= 0 {
		return g.backends[i]
	}
	return nil
}

// Handler returns the handler of the API listener.
func (g *Gateway) Handler() http.Handler { return g.handler }

// Public returns the handler of the public listener: a greeting, webhooks and metrics.
func (g *Gateway) Public() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "success", "message": "Persys gateway", "version": "1.0.0"})
	})
	mux.Handle("POST "+g.hooks.Path, g.hooks)
	mux.Handle("GET /metrics", g.scrape())
	return g.outermost("public", mux)
}

func (g *Gateway) scrape() http.Handler {
	return promhttp.HandlerFor(g.opt.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8, Timeout: 10 * time.Second})
}

// outermost wraps all routes of a listener: it sets the service header, limits
// the body, turns a panic into status 500 and counts requests.
func (g *Gateway) outermost(listener string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Service-Name", "persys-gateway")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		seen := &observed{ResponseWriter: w, status: http.StatusOK}
		start := time.Now()
		defer func() {
			// A handler may abort its response by a panic with http.ErrAbortHandler, which is no error.
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				g.opt.Log.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				if !seen.wrote {
					refuse(seen, http.StatusInternalServerError, "internal error; the gateway's log has its trace")
				}
			}
			g.metrics.observe(r, listener, seen, time.Since(start))
		}()
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		entry, err := g.hosts.Enter(limits.Peer{Kind: "host", Name: host})
		if err != nil {
			seen.Header().Set("Retry-After", "1")
			refuse(seen, http.StatusTooManyRequests, err.Error())
			return
		}
		defer entry.Leave()
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		next.ServeHTTP(seen, r)
	})
}

// observed records the status and the size of a response.
type observed struct {
	http.ResponseWriter
	status int
	wrote  bool
	bytes  int64 // size of the body in bytes
}

func (o *observed) WriteHeader(status int) {
	if !o.wrote {
		o.status, o.wrote = status, true
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *observed) Write(p []byte) (int, error) {
	o.wrote = true
	n, err := o.ResponseWriter.Write(p)
	o.bytes += int64(n)
	return n, err
}

// Flush implements http.Flusher, which streams need.
func (o *observed) Flush() {
	if f, ok := o.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// origins decides which web pages may use the API.
//
// With TLS, pages of any origin may read, as the legacy contract requires. To change something they need a bearer
// token: browsers send the client certificate with requests of every page, and the session cookie with requests of
// pages on other ports of the host, so otherwise a foreign page could act in its visitor's name.
//
// Under -insecure every caller is an admin, so foreign pages get nothing: neither
// across origins nor through a host name that resolves to loopback.
func (g *Gateway) origins(next http.Handler) http.Handler {
	own := http.NewCrossOriginProtection()
	if g.opt.TLS == nil {
		return own.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if (overLoopback(r) || fromBrowser(r)) && !ownName(r.Host) {
				refuse(w, http.StatusForbidden, namedHost(r.Host))
				return
			}
			next.ServeHTTP(w, r)
		}))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, X-Persys-Cluster-ID, X-Persys-Session, X-Persys-Workload-Key")
		h.Set("Access-Control-Expose-Headers", "ETag")
		h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE")
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if bearer(r) == "" && own.Check(r) != nil {
			refuse(w, http.StatusForbidden, fmt.Sprintf("a page of %s asked for a change; pages of other sites than https://%s may change something only with a bearer token", cmp.Or(r.Header.Get("Origin"), "another site"), r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownName reports whether the host name in a request proves that no foreign page made it by DNS rebinding (a foreign
// name that its owner lets resolve to this gateway). That is the case for an IP address and for localhost, which
// nobody can redirect, and for a request without a host, which no browser sends.
func ownName(host string) bool {
	host = hostOf(host)
	return host == "" || host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil
}

func namedHost(host string) string {
	return fmt.Sprintf("anybody could make the host name %q resolve to this gateway; without TLS, use localhost or an IP address instead", hostOf(host))
}

func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// fromBrowser reports whether a browser made the request. It checks several headers, because over plain HTTP browsers
// send no Sec-Fetch-Site to hosts other than loopback, and no Origin with a read.
func fromBrowser(r *http.Request) bool {
	h := r.Header
	return h.Get("Sec-Fetch-Site") != "" || h.Get("Origin") != "" || h.Get("Referer") != "" || strings.HasPrefix(h.Get("User-Agent"), "Mozilla/")
}

func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

// known determines the caller and the cluster of a request, and stores both in the context.
func (g *Gateway) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := g.admit(w, r)
		if !ok {
			return
		}
		if fault := textFault(r); fault != "" {
			refuse(w, http.StatusBadRequest, fault)
			return
		}
		if name := repeatedHeader(r.Header); name != "" {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("header %s is given twice; give it once", name))
			return
		}
		q, ok := parameters(w, r, "cluster_id", "access_token", "workload_id")
		if !ok {
			return
		}
		// The gateway refuses characters that gRPC metadata cannot carry. The schedulers check that the key is a UUID.
		if key := r.Header.Get("Idempotency-Key"); strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("Idempotency-Key %q must be a UUID of version 7", key))
			return
		}
		b, id := g.cluster(r)
		if b == nil {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("unknown cluster id %q; GET /clusters lists them", id))
			return
		}
		req := &request{caller: who, backend: b, session: session(r)}
		req.key = cmp.Or(r.Header.Get("X-Persys-Workload-Key"), r.PathValue("id"), q.Get("workload_id"), r.URL.Path)
		next.ServeHTTP(w, r.WithContext(withRequest(r.Context(), req)))
	})
}

// cluster returns the cluster that a request names; nil if there is none of this id.
func (g *Gateway) cluster(r *http.Request) (b *backend, id string) {
	if id = cmp.Or(r.PathValue("cluster_id"), r.Header.Get("X-Persys-Cluster-ID"), r.URL.Query().Get("cluster_id")); id == "" {
		return g.first, g.first.ID
	}
	return g.find(id), id
}

// admit identifies the caller of a request. If it cannot, it answers the request and returns false.
func (g *Gateway) admit(w http.ResponseWriter, r *http.Request) (caller, bool) {
	b, _ := g.cluster(r)
	if b == nil {
		b = g.first
	}
	who, err := g.identify(r, b)
	if err != nil {
		unknown(w, err)
		return who, false
	}
	if who.from, _, err = net.SplitHostPort(r.RemoteAddr); err != nil {
		who.from = "" // RemoteAddr has another form only in tests
	}
	return who, true
}

// session returns the key of sticky routing: the session header, the cookie, the token's hash or the host.
func session(r *http.Request) string {
	if s := r.Header.Get("X-Persys-Session"); s != "" {
		return s
	}
	if c, err := r.Cookie("persys_session"); err == nil && c.Value != "" {
		return c.Value
	}
	if a := r.Header.Get("Authorization"); a != "" {
		sum := sha256.Sum256([]byte(a))
		return hex.EncodeToString(sum[:])
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
