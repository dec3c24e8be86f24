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

// The name and help text of the metric that is 1 while a replica waits for the repair of its damaged data, and
// otherwise 0.
const (
	repairWaiting     = "repair_waiting"
	repairWaitingHelp = "1 while this replica has damaged data and waits until a majority of the replicas is healthy without it."
)

// RepairsItself reports whether a replica with damaged data may move the data to another folder, without a command of
// a user, and join its cluster again.
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
		// Start again with an empty registry: the former registry contains the metrics of the DNS server that was
		// closed.
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
