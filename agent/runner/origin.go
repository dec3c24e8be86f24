package runner

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/persys/compute/telemetry"
)

// origins are the traced orders whose acts are under way. They are kept in memory only, until the workload
// is as it was ordered, and for some acts at most: a workload that ends again and again is not part of that
// order's trace for ever.
type origins struct {
	mu sync.Mutex
	m  map[string]*origin
}

type origin struct {
	span trace.SpanContext
	left int // acts that still belong to it
}

const (
	maxOrigins  = 1024
	originSteps = 16
)

// Ordered remembers the trace of an order. Call it before the order is given: the first act may be quicker
// than the answer.
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

// settled forgets the order of a workload that is as it was ordered.
func (o *origins) settled(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, id)
}

// span begins the span of one act for an order, if the order was traced.
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
