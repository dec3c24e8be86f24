package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// answering is a fake client of agents: the deliveries of orders return the errors errs, one after another.
type answering struct{ errs []error }

func (a *answering) Deliver(context.Context, fsm.Epoch, sched.Order) (sched.Ack, error) {
	err := a.errs[0]
	a.errs = a.errs[1:]
	return sched.Ack{Accepted: err == nil}, err
}

// A user's apply is traced. The orders that it causes must belong to its trace until an agent accepts an order. Each
// later order must begin a trace of its own with a link to the trace of the apply.
func TestOrdersFollowTheirApply(t *testing.T) {
	memory := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(memory))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	tr := &tracer{Tracer: provider.Tracer("test"), asked: map[string]*asker{}}
	agents := tracedAgents{&answering{errs: []error{errors.New("away"), nil, nil, nil}}, tr}
	put := []fsm.Command{{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
		Workloads: []*commandv1.WorkloadPut{{Id: "web"}}}}}}

	ctx, call := tr.Start(t.Context(), "call")
	_, done := tr.proposing(ctx, put)
	done([]fsm.Result{{Index: 7}}, nil)
	call.End()
	for range 3 { // the delivery of the first order fails, the agent accepts the second, and the third follows after the node has died
		_, _ = agents.Deliver(t.Context(), fsm.Epoch{}, sched.Order{Op: sched.OpApply, Workload: "web", Node: "a"})
	}
	_, _ = agents.Deliver(t.Context(), fsm.Epoch{}, sched.Order{Op: sched.OpApply, Workload: "another", Node: "a"})

	trace := call.SpanContext().TraceID()
	var got []string
	for _, s := range memory.GetSpans() {
		if s.Name != "order apply" {
			continue
		}
		linked := len(s.Links) == 1 && s.Links[0].SpanContext.TraceID() == trace
		got = append(got, fmt.Sprintf("same trace %v, linked %v", s.SpanContext.TraceID() == trace, linked))
	}
	want := []string{"same trace true, linked false", "same trace true, linked false", "same trace false, linked true"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the spans of the orders are %q, want %q", got, want)
	}
}

func TestAskersAreBounded(t *testing.T) {
	provider := sdktrace.NewTracerProvider()
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	tr := &tracer{Tracer: provider.Tracer("test"), asked: map[string]*asker{}}
	_, span := tr.Start(t.Context(), "call")
	for i := range maxAsked + 10 {
		tr.remember(fmt.Sprint("w", i), span.SpanContext())
	}
	if len(tr.asked) != maxAsked || len(tr.oldest) != maxAsked || tr.asked["w0"] != nil || tr.asked[fmt.Sprint("w", maxAsked+9)] == nil {
		t.Errorf("the tracer remembers %d workloads, and their order has %d entries; want the newest maxAsked workloads in both", len(tr.asked), len(tr.oldest))
	}
}

// A nil tracer, which means that traces are turned off, must do nothing.
func TestATracerThatIsOffDoesNothing(t *testing.T) {
	var off *tracer
	ctx, done := off.proposing(t.Context(), []fsm.Command{{}})
	done(nil, nil)
	if ctx != t.Context() {
		t.Error("a nil tracer must return the context unchanged, but returned another one")
	}
}
