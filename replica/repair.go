package replica

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/telemetry"
)

// The metric that is 1 on a replica that waits for the repair of its data, and 0 on every other replica.
const (
	repairWaiting     = "repair_waiting"
	repairWaitingHelp = "1 while this replica has damaged data and waits until a majority of the replicas is healthy without it."
)

// RepairsItself reports whether a replica may move damaged data aside by itself and join its cluster anew.
func (c *Config) RepairsItself() bool { return c.Repair != "off" }

// repair moves damaged data aside and opens the node again. While it waits for the other replicas, this
// process serves only /health, /ready and /metrics. The gRPC port stays closed, so that callers use another
// replica at once.
func (r *Replica) repair(ctx context.Context, damage error) error {
	nc, err := r.nodeConfig()
	if err != nil {
		return err
	}
	if err := r.grpcLis.Close(); err != nil {
		return err
	}
	if r.dns != nil {
		if err := r.dns.Close(); err != nil {
			return err
		}
		// The former registry contains the metrics of the former DNS server.
		r.dns, r.registry = nil, prometheus.NewRegistry()
	}
	var why atomic.Pointer[string]
	say := func(text string) { why.Store(&text) }
	say("looking for the other replicas")
	srv := httpServer(repairMux(damage, &why))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = r.serveHTTP(srv) // this goroutine ends when srv is closed
	}()
	err = cluster.Repair(ctx, nc, damage, func(err error) { say(err.Error()) })
	_ = srv.Close()
	<-served
	if err != nil {
		return err
	}
	if err := r.listen(); err != nil {
		return err
	}
	return r.openNode(ctx)
}

// repairMux returns the HTTP handler of a replica that waits for the repair of its data.
func repairMux(damage error, why *atomic.Pointer[string]) http.Handler {
	set := telemetry.NewSet(metricsPrefix)
	waiting := set.ReadGauge(repairWaiting, repairWaitingHelp)
	set.Read(func(emit telemetry.Emit) { emit(waiting, 1) })
	registry := prometheus.NewRegistry()
	registry.MustRegister(set)
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		writeHealth(w, health{
			Status: "damaged", Mode: string(fsm.ModeDegraded), Role: string(cluster.RoleAbsent), Mirror: mirrorHealth{State: "off"},
			Reason: fmt.Sprintf("%s; the repair waits: %s", damage, *why.Load()),
		}, false)
	}
	mux.HandleFunc("GET /health", answer)
	mux.HandleFunc("GET /ready", answer)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8, Timeout: 10 * time.Second}))
	return mux
}
