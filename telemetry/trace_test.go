package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without an endpoint for spans, no tracing options are added to calls.
func TestWithoutEndpointNothingIsTraced(t *testing.T) {
	off, err := StartTraces(t.Context(), TraceConfig{})
	if err != nil || off != nil || off.On() {
		t.Fatalf("StartTraces without an endpoint returned %v, error %v; want nil", off, err)
	}
	if n := len(off.ServerOptions()) + len(off.DialOptions()); n != 0 {
		t.Errorf("without an endpoint there are %d options for calls, want none", n)
	}
	next := http.NewServeMux()
	if off.Handler("api", next) != http.Handler(next) {
		t.Error("with traces off, Handler returned another handler than the given one")
	}
	if _, span := off.Tracer("x").Start(t.Context(), "y"); span.IsRecording() || span.SpanContext().IsValid() {
		t.Error("a span was recorded although traces are off")
	}
	if err := off.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEndpointsOfTracesAreChecked(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		ok       bool
	}{
		{"127.0.0.1:4318", true},
		{"collector:4318", true},
		{"http://collector:4318", true},
		{"https://collector/otlp/v1/traces", true},
		{"collector", false},
		{"ftp://collector:4318", false},
		{"http://", false},
	} {
		traces, err := StartTraces(t.Context(), TraceConfig{Endpoint: c.endpoint, Insecure: true})
		if (err == nil) != c.ok {
			t.Errorf("endpoint %q: StartTraces returned %v", c.endpoint, err)
		}
		if err != nil && !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT") {
			t.Errorf("with endpoint %q the error does not name the setting: %v", c.endpoint, err)
		}
		_ = traces.Close(t.Context())
	}
}

// A trace starts at an incoming request. A call that a background loop makes starts no trace.
func TestTracesStartAtRequests(t *testing.T) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	for _, c := range []struct {
		name   string
		kind   trace.SpanKind
		parent bool
		want   bool
	}{
		{"persys.control.v1.AgentControl/ApplyWorkload", trace.SpanKindServer, false, true},
		{"persys.control.v1.AgentControl/Heartbeat", trace.SpanKindServer, false, false},
		{"persys.control.v1.AgentControl/Heartbeat", trace.SpanKindServer, true, true},
		{"grpc.health.v1.Health/Check", trace.SpanKindServer, false, false},
		{"persys.agent.v1.AgentService/ApplyWorkload", trace.SpanKindClient, false, false},
		{"persys.agent.v1.AgentService/ApplyWorkload", trace.SpanKindClient, true, true},
		{"persysctl apply", trace.SpanKindInternal, false, true},
	} {
		memory := tracetest.NewInMemoryExporter()
		traces := newTraces(memory, resource.Empty())
		ctx := t.Context()
		if c.parent {
			ctx = trace.ContextWithSpanContext(ctx, parent)
		}
		_, span := traces.Tracer("test").Start(ctx, c.name, trace.WithSpanKind(c.kind))
		End(span, nil)
		if err := traces.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(memory.GetSpans()) == 1; got != c.want {
			t.Errorf("span %s of kind %s (has a parent: %v) was recorded: %v, want %v", c.name, c.kind, c.parent, got, c.want)
		}
		if err := traces.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Health checks and scrapes of metrics start no traces.
func TestHealthChecksAndScrapesStartNoTraces(t *testing.T) {
	memory := tracetest.NewInMemoryExporter()
	traces := newTraces(memory, resource.Empty())
	h := traces.Handler("api", http.NotFoundHandler())
	for _, path := range []string{"/metrics", "/health", "/ready", "/v1/workloads/health"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	if err := traces.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(memory.GetSpans()); n != 1 {
		t.Errorf("%d spans were recorded, want one", n)
	}
	if err := traces.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

type broken struct{}

func (broken) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("refused")
}
func (broken) Shutdown(context.Context) error { return nil }

// If the receiver of spans does not answer, one line is logged, and no error is returned.
func TestFailedExportsAreLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	c := &complaining{SpanExporter: broken{}, log: slog.New(slog.NewJSONHandler(&out, nil)), endpoint: "collector:4318"}
	for range 5 {
		if err := c.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 3)); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines were logged, want one: %s", n, out.String())
	}
	if !strings.Contains(out.String(), `"endpoint":"collector:4318"`) || !strings.Contains(out.String(), "refused") {
		t.Errorf("the log line lacks the endpoint or the error: %s", out.String())
	}
	if c.silent != 12 {
		t.Errorf("%d spans are reported as lost, want 12", c.silent)
	}
}
