package replica

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/limits"
)

// health is the JSON answer of /health (contract/semantics.md section 14, with additional fields).
type health struct {
	Status        string `json:"status"`
	Mode          string `json:"mode"`
	Reason        string `json:"reason"`
	ModeChangedAt string `json:"modeChangedAt"`
	Leader        string `json:"leader"`
	Role          string `json:"role"`
	Term          uint64 `json:"term"`
	Index         uint64 `json:"index"`
	// Copies are the Raft addresses of processes that run on copies of this replica's data directory.
	Copies []string `json:"copies,omitempty"`

	Mirror mirrorHealth `json:"mirror"`
}

func httpServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
}

// serveHTTP serves HTTP until s is closed.
func (r *Replica) serveHTTP(s *http.Server) error {
	return s.Serve(limits.Listen(r.httpLis, limits.Limits{Connections: 1024, PerHost: 256}, r.metrics.limited))
}

// mirrorHealth is the state of the etcd mirror: "off" without a mirror, "standby" if another replica writes
// the mirror, otherwise a mirror.State.
type mirrorHealth struct {
	State  string  `json:"state"`
	Reason string  `json:"reason,omitempty"`
	Index  uint64  `json:"index,omitempty"`      // log index of the state that etcd holds
	Behind uint64  `json:"lagEntries,omitempty"` // number of log entries that etcd does not hold yet
	Lag    float64 `json:"lagSeconds"`           // age in seconds of the oldest change that etcd does not hold
}

func (r *Replica) mirrorHealth() mirrorHealth {
	m := r.activeMirror()
	switch {
	case m == nil:
		return mirrorHealth{State: "off"}
	case !m.Running():
		return mirrorHealth{State: "standby"}
	}
	s := m.Stats()
	return mirrorHealth{State: string(s.Health.State), Reason: s.Health.Reason, Index: s.Index, Behind: s.LagIndex, Lag: s.Lag.Seconds()}
}

// mux returns the handler of /health, /ready and /metrics. They are served over plain HTTP, because their
// answers contain no secrets.
func (r *Replica) mux() http.Handler {
	r.metrics.register(r.registry, r)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		h, ok := r.health()
		writeHealth(w, h, ok)
	})
	// /ready?write is for load balancers that only pass writes: the answer is 200 if this replica leads or
	// can forward to a leader.
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, req *http.Request) {
		h, ok := r.health()
		if req.URL.Query().Has("write") {
			ok = ok && h.Leader != "" && h.Mode == string(fsm.ModeNormal)
		}
		writeHealth(w, h, ok)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8, Timeout: 10 * time.Second}))
	return mux
}

func writeHealth(w http.ResponseWriter, h health, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// Ignore an error: it means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(h)
}

// health returns the answer of /health, and whether this replica is ready. It is ready if it takes part in the
// cluster, can answer reads (at least stale ones), and its log disk does not hang. The answer contains one mode: the
// replicated mode of the cluster or the local mode of this replica, whichever allows fewer changes.
func (r *Replica) health() (health, bool) {
	info := r.node.Store().View().Info()
	st := r.node.Status()
	now := r.standing()
	h := health{Status: "ok", Mode: string(now.mode), Reason: now.reason, Role: string(st.Role), Term: st.Term, Index: info.Index, Mirror: r.mirrorHealth()}
	if now.since.Unix() > 0 {
		h.ModeChangedAt = now.since.UTC().Format(time.RFC3339)
	}
	if l, ok := r.node.Leader(); ok {
		h.Leader = l.Name
	}
	// Use Err to find out whether the node has halted: Err is set at once, and the node's stop may take a while.
	stalled := ""
	if _, hangs := r.node.DiskPending(); hangs {
		_, stalled = r.node.LocalMode()
	}
	for _, p := range st.Peers {
		if p.Self {
			h.Copies = p.Copies
		}
	}
	return h.judged(r.node.Err(), r.node.Waiting(), stalled, r.node.Restoring(), info.ClusterID)
}

// judged returns h with its status and reason filled in, and whether the replica is ready. A replica cannot serve if
// it has halted (halted is the error), waits (waiting), its disk hangs (stalled), it is being restored, or clusterID
// is still empty.
func (h health) judged(halted error, waiting, stalled string, restoring bool, clusterID string) (health, bool) {
	switch {
	case errors.Is(halted, cluster.ErrCopied):
		h.Status, h.Reason = "copied", halted.Error()
	case halted != nil:
		h.Status, h.Reason = "halted", halted.Error()
	case waiting != "":
		h.Status, h.Reason = "waiting", waiting
	case stalled != "":
		h.Status, h.Reason = "stalled", stalled
	case restoring:
		h.Status, h.Reason = "restoring", "the whole state is being replaced"
	case clusterID == "":
		h.Status, h.Reason = "starting", "this replica has not joined or formed a cluster yet"
	}
	return h, h.Status == "ok"
}
