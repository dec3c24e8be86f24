package agent

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/persys/compute/telemetry"
)

// origin is the traced order that a workload's next steps come from. It is kept in
// memory only, until the workload is as it was ordered, and for some steps at
// most: a workload that ends again and again is no longer that order's story.
type origin struct {
	span trace.SpanContext
	left int // steps that still belong to it
}

const (
	maxOrigins  = 1024
	originSteps = 16
)

// ordered remembers who ordered a workload. It is called before the order is
// taken: the first step may be quicker than the answer.
func (a *Agent) ordered(ctx context.Context, id string) {
	span := trace.SpanContextFromContext(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !span.IsSampled() || len(a.origins) >= maxOrigins && a.origins[id] == nil {
		delete(a.origins, id)
		return
	}
	a.origins[id] = &origin{span: span, left: originSteps}
}

// settled forgets who ordered a workload: it is as it was ordered.
func (a *Agent) settled(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.origins, id)
}

// step begins the span of one step towards an order, if that was traced.
func (a *Agent) step(ctx context.Context, id, do string) (context.Context, func(error)) {
	a.mu.Lock()
	o := a.origins[id]
	if o != nil {
		if o.left--; o.left <= 0 {
			delete(a.origins, id)
		}
	}
	a.mu.Unlock()
	if o == nil {
		return ctx, func(error) {}
	}
	ctx, span := a.cfg.Tracer.Start(trace.ContextWithSpanContext(ctx, o.span), "converge "+do,
		trace.WithAttributes(attribute.String("workload", id), attribute.String("node", a.cfg.NodeID)))
	return ctx, func(err error) { telemetry.End(span, err) }
}
