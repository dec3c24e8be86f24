package replica

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/persys/compute/fsm"
)

// health is the answer of /health (contract/semantics.md section 14, with fields of our own).
type health struct {
	Status        string `json:"status"`
	Mode          string `json:"mode"`
	Reason        string `json:"reason"`
	ModeChangedAt string `json:"modeChangedAt"`
	Leader        string `json:"leader"`
	Role          string `json:"role"`
	Term          uint64 `json:"term"`
	Index         uint64 `json:"index"`

	Mirror mirrorHealth `json:"mirror"`
}

// mirrorHealth is the state of the mirror: off without a mirror, standby if another replica writes it, else
// a mirror.State.
type mirrorHealth struct {
	State  string  `json:"state"`
	Reason string  `json:"reason,omitempty"`
	Index  uint64  `json:"index,omitempty"`      // log index of the state that etcd holds
	Behind uint64  `json:"lagEntries,omitempty"` // log entries that etcd does not hold yet
	Lag    float64 `json:"lagSeconds"`           // seconds; age of the oldest change that etcd does not hold
}

func (r *Replica) mirrorHealth() mirrorHealth {
	switch {
	case r.mirror == nil:
		return mirrorHealth{State: "off"}
	case !r.mirror.Running():
		return mirrorHealth{State: "standby"}
	}
	s := r.mirror.Stats()
	return mirrorHealth{State: string(s.Health.State), Reason: s.Health.Reason, Index: s.Index, Behind: s.LagIndex, Lag: s.Lag.Seconds()}
}

// mux serves /health, /ready and /metrics over plain HTTP. They hold no secrets.
func (r *Replica) mux() http.Handler {
	r.metrics.register(r.registry, r)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		h, ok := r.health()
		writeHealth(w, h, ok)
	})
	// /ready?write is for load balancers of writes: ok if this replica leads or can forward to a leader.
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, req *http.Request) {
		h, ok := r.health()
		if req.URL.Query().Has("write") {
			ok = ok && h.Leader != "" && h.Mode == string(fsm.ModeNormal)
		}
		writeHealth(w, h, ok)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8, Timeout: 10 * time.Second}))
	if r.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func writeHealth(w http.ResponseWriter, h health, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// If the client has gone, there is no other way to report it.
	_ = json.NewEncoder(w).Encode(h)
}

// health is ok while this replica can answer reads, stale ones included. The mode is the worse of the
// replicated and the local one.
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
	// Err is set before the node has stopped completely, which may take a while.
	return h.judged(r.node.Err(), r.node.Restoring(), info.ClusterID)
}

// judged sets the status and the reason of a replica that cannot answer reads.
func (h health) judged(halted error, restoring bool, cluster string) (health, bool) {
	switch {
	case halted != nil:
		h.Status, h.Reason = "halted", halted.Error()
	case restoring:
		h.Status, h.Reason = "restoring", "the whole state is being replaced"
	case cluster == "":
		h.Status, h.Reason = "starting", "this replica has not joined or formed a cluster yet"
	}
	return h, h.Status == "ok"
}
