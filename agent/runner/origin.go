package runner

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/persys/compute/telemetry"
)

// origins holds the tracing contexts of orders that are being carried out, so that the spans of their actions
// belong to the trace of the request. The traces are kept in memory only. A trace ends when its workload is in
// its desired state, or after a fixed number of actions, so that later restarts of the workload are not part of
// it.
type origins struct {
	mu sync.Mutex
	m  map[string]*origin
}

type origin struct {
	span trace.SpanContext
	left int // number of further actions that may belong to this trace
}

const (
	maxOrigins  = 1024
	originSteps = 16
)

// Ordered remembers the trace of ctx as the trace of the order for workload id. It must be called before the
// order is applied, because the first action may start before the order is answered.
func (r *Runner) Ordered(ctx context.Context, id string) {
	span := trace.SpanContextFromContext(ctx)
	o := &r.origins
	o.mu.Lock()
	defer o.mu.Unlock()
	if !span.IsSampled() || len(o.m) >= maxOrigins && o.m[id] == nil {
		delete(o.m, id)
		return
	}
	if o.m == nil {
		o.m = map[string]*origin{}
	}
	o.m[id] = &origin{span: span, left: originSteps}
}

// settled drops the trace of a workload that has reached its desired state.
func (o *origins) settled(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, id)
}

// span starts the tracing span of one action if the workload's order carried a trace.
func (r *Runner) span(ctx context.Context, id, do string) (context.Context, func(error)) {
	o := &r.origins
	o.mu.Lock()
	from := o.m[id]
	if from != nil {
		if from.left--; from.left <= 0 {
			delete(o.m, id)
		}
	}
	o.mu.Unlock()
	if from == nil {
		return ctx, func(error) {}
	}
	ctx, span := r.cfg.Tracer.Start(trace.ContextWithSpanContext(ctx, from.span), "converge "+do,
		trace.WithAttributes(attribute.String("workload", id), attribute.String("node", r.cfg.Core.Node)))
	return ctx, func(err error) { telemetry.End(span, err) }
}
