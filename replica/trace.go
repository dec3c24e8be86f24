package replica

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/leader"
	"github.com/persys/compute/telemetry"
)

// tracer carries a trace from the commit of a change to the orders that follow from it, where no call
// connects them. It remembers, in the leader's memory, the last traced caller of each recent workload. The
// first order that the agent accepts belongs to the caller's trace. A later order, after a node failure or
// a retry, is a trace of its own with a link to it. A new leader remembers nothing: its orders are not
// traced.
type tracer struct {
	trace.Tracer

	mu     sync.Mutex
	asked  map[string]*asker
	oldest []string // ids in the order of their first request
}

type asker struct {
	span trace.SpanContext
	told bool // an agent has accepted an order
}

// maxAsked bounds the remembered workloads.
const maxAsked = 4096

// newTracer returns nil if traces are off.
func newTracer(t *telemetry.Traces) *tracer {
	if !t.On() {
		return nil
	}
	return &tracer{Tracer: t.Tracer("scheduler"), asked: map[string]*asker{}}
}

func (t *tracer) remember(id string, span trace.SpanContext) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked[id] == nil {
		if len(t.oldest) >= maxAsked {
			delete(t.asked, t.oldest[0])
			t.oldest = t.oldest[1:]
		}
		t.oldest = append(t.oldest, id)
	}
	t.asked[id] = &asker{span: span}
}

// proposing starts the span of a proposal if the caller's call is traced. done ends it.
func (t *tracer) proposing(ctx context.Context, cmds []fsm.Command) (_ context.Context, done func([]fsm.Result, error)) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, func([]fsm.Result, error) {}
	}
	ctx, span := t.Start(ctx, "raft propose", trace.WithAttributes(attribute.Int("commands", len(cmds))))
	for _, c := range cmds {
		// Before the commit: the planner may be faster than this goroutine.
		for _, id := range changes(c) {
			t.remember(id, span.SpanContext())
		}
	}
	return ctx, func(results []fsm.Result, err error) {
		if len(results) > 0 {
			span.SetAttributes(attribute.Int64("index", int64(results[0].Index)))
		}
		telemetry.End(span, err)
	}
}

// changes returns the workloads whose desired state a command changes.
func changes(c fsm.Command) []string {
	var ids []string
	for _, w := range c.GetPutWorkloads().GetWorkloads() {
		ids = append(ids, w.GetId())
	}
	for _, id := range [...]string{c.GetSetDesired().GetId(), c.GetDeleteWorkload().GetId(), c.GetRetryWorkload().GetId()} {
		if id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// tracedAgents adds spans to a leader.Agents.
type tracedAgents struct {
	leader.Agents
	t *tracer
}

// Deliver implements leader.Agents.
func (a tracedAgents) Deliver(ctx context.Context, epoch fsm.Epoch, o sched.Order) (sched.Ack, error) {
	a.t.mu.Lock()
	from, told := trace.SpanContext{}, false
	if who := a.t.asked[o.Workload]; who != nil {
		from, told = who.span, who.told
	}
	a.t.mu.Unlock()
	if !from.IsValid() {
		return a.Agents.Deliver(ctx, epoch, o)
	}
	name := "order apply"
	if o.Op == sched.OpDelete {
		name = "order delete"
	}
	opts := []trace.SpanStartOption{trace.WithAttributes(attribute.String("workload", o.Workload), attribute.String("node", o.Node),
		attribute.String("generation", o.Generation.String()), attribute.String("epoch", epoch.String()))}
	if told {
		opts = append(opts, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
	} else {
		ctx = trace.ContextWithSpanContext(ctx, from)
	}
	ctx, span := a.t.Start(ctx, name, opts...)
	ack, err := a.Agents.Deliver(ctx, epoch, o)
	if err == nil && (ack.Accepted || ack.Gone) {
		a.t.mu.Lock()
		if who := a.t.asked[o.Workload]; who != nil && who.span.Equal(from) {
			who.told = true
		}
		a.t.mu.Unlock()
	}
	span.SetAttributes(attribute.Bool("accepted", ack.Accepted), attribute.Bool("fenced", ack.Fenced), attribute.Bool("refused", ack.Refused))
	telemetry.End(span, err)
	return ack, err
}
