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

// tracer continues the trace of an API call in the orders to agents that the call causes. gRPC cannot do this, because
// the planner sends the orders later, outside of the call. For each recent workload, the leader remembers in memory
// the last traced call that changed the workload. The first order that the agent accepts belongs to the trace of that
// call. A later order, for instance after a node failure, begins a new trace with a link to that call. A new leader
// does not know the calls of the former leader, so its orders for these calls are not traced.
type tracer struct {
	trace.Tracer

	mu     sync.Mutex
	asked  map[string]*asker
	oldest []string // request ids, in the order in which they first occurred
}

type asker struct {
	span trace.SpanContext
	told bool // true once an agent has accepted an order that follows from this request
}

// maxAsked is the maximum number of workloads whose last traced call is remembered.
const maxAsked = 4096

// newTracer returns a tracer, or nil if traces are turned off.
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

// proposing starts a span for a proposal, if the call that caused the proposal is traced. done ends the span.
func (t *tracer) proposing(ctx context.Context, cmds []fsm.Command) (_ context.Context, done func([]fsm.Result, error)) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, func([]fsm.Result, error) {}
	}
	ctx, span := t.Start(ctx, "raft propose", trace.WithAttributes(attribute.Int("commands", len(cmds))))
	for _, c := range cmds {
		// Record the call before the commit: after the commit, the planner may send the order before
		// this goroutine runs again.
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

// changes returns the ids of the workloads whose desired state a command changes.
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

// tracedAgents wraps a leader.Agents, so that each order has a span.
type tracedAgents struct {
	leader.Agents
	t *tracer
}

// Deliver implements leader.Agents: it delivers an order within a span.
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
