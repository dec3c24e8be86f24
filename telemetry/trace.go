package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
)

// TraceConfig configures the export of spans.
type TraceConfig struct {
	// Endpoint is the address of the OTLP/HTTP receiver: host:port, or a URL. If it is empty, no traces are
	// made.
	Endpoint string
	// Insecure selects plain HTTP if Endpoint has no scheme.
	Insecure bool
	// Service, Version and Instance identify the program in every span.
	Service, Version, Instance string
	// Log is where a warning is written, at most once a minute, while spans cannot be sent.
	Log *slog.Logger
}

// Traces makes spans, and passes their context to other processes as W3C trace context. A nil Traces records
// nothing and adds nothing to calls.
type Traces struct {
	provider *sdktrace.TracerProvider
	carrier  propagation.TextMapPropagator
}

const (
	// exportLimit is the time limit of one attempt to send spans. batchEvery is the longest time for which a span waits
	// so that several spans are sent together. queueLimit is the maximum number of spans that wait for the receiver;
	// further spans are dropped.
	exportLimit = 5 * time.Second
	batchEvery  = time.Second
	queueLimit  = 4096
	// complainEvery is the shortest time between two warnings that the receiver does not answer.
	complainEvery = time.Minute
)

// StartTraces prepares the sending of spans. It sends nothing yet, and does not fail if the receiver does not
// answer. If cfg has no endpoint, it returns nil.
func StartTraces(ctx context.Context, cfg TraceConfig) (*Traces, error) {
	if cfg.Endpoint == "" {
		return nil, nil
	}
	opts, err := cfg.exporter()
	if err != nil {
		return nil, err
	}
	out, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT %q: %w", cfg.Endpoint, err)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	who := resource.NewSchemaless(
		attribute.String("service.name", cfg.Service),
		attribute.String("service.version", cfg.Version),
		attribute.String("service.instance.id", cfg.Instance),
	)
	return newTraces(&complaining{SpanExporter: out, log: log, endpoint: cfg.Endpoint}, who), nil
}

func newTraces(out sdktrace.SpanExporter, who *resource.Resource) *Traces {
	return &Traces{
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithResource(who),
			sdktrace.WithSampler(sdktrace.ParentBased(roots{})),
			sdktrace.WithBatcher(out, sdktrace.WithBatchTimeout(batchEvery), sdktrace.WithExportTimeout(exportLimit), sdktrace.WithMaxQueueSize(queueLimit)),
		),
		carrier: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
}

func (c TraceConfig) exporter() ([]otlptracehttp.Option, error) {
	opts := []otlptracehttp.Option{otlptracehttp.WithTimeout(exportLimit), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false})}
	if !strings.Contains(c.Endpoint, "://") {
		if _, _, err := net.SplitHostPort(c.Endpoint); err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT %q must be host:port or a URL: %w", c.Endpoint, err)
		}
		opts = append(opts, otlptracehttp.WithEndpoint(c.Endpoint))
		if c.Insecure {
			opts = append(opts, otlptracehttp.WithInsecure())
		}
		return opts, nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT %q must be host:port or an http(s) URL", c.Endpoint)
	}
	if !strings.HasSuffix(u.Path, "/v1/traces") {
		u = u.JoinPath("v1", "traces")
	}
	return append(opts, otlptracehttp.WithEndpointURL(u.String())), nil
}

// roots decides which spans may begin a trace: the spans of incoming requests, but not the spans of calls that a
// background loop of the program makes. All other spans belong to the trace of their parent, also across processes.
type roots struct{}

// ShouldSample implements sdktrace.Sampler.
func (roots) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	d := sdktrace.RecordAndSample
	switch {
	case p.Kind == trace.SpanKindClient: // a loop of the program made the call, without a request of a user
		d = sdktrace.Drop
	case p.Kind == trace.SpanKindServer:
		for _, often := range [...]string{"/Heartbeat", "/RegisterNode", "grpc.health.v1.Health/", "grpc.reflection.", "/ClusterKey", "/Status"} {
			if strings.Contains(p.Name, often) {
				d = sdktrace.Drop
			}
		}
	}
	return sdktrace.SamplingResult{Decision: d, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
}

// Description implements sdktrace.Sampler.
func (roots) Description() string { return "requests from outside" }

// complaining is an exporter that logs its failures, at most once every complainEvery.
type complaining struct {
	sdktrace.SpanExporter
	log      *slog.Logger
	endpoint string

	mu     sync.Mutex
	told   time.Time
	silent int // number of spans that were lost since the last warning
}

// ExportSpans implements sdktrace.SpanExporter. It returns no error, because the OpenTelemetry library would
// pass the error to its global handler.
func (c *complaining) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent += len(spans)
	if now := time.Now(); now.Sub(c.told) >= complainEvery {
		c.log.Warn("traces are not delivered", "endpoint", c.endpoint, "spans_lost", c.silent, "err", err)
		c.told, c.silent = now, 0
	}
	return nil
}

// On reports whether traces are made.
func (t *Traces) On() bool { return t != nil }

// Tracer returns the OpenTelemetry tracer for spans of one part of the program; part is the tracer's name.
func (t *Traces) Tracer(part string) trace.Tracer {
	if t == nil {
		return noop.NewTracerProvider().Tracer(part)
	}
	return t.provider.Tracer("github.com/persys/compute/" + part)
}

func (t *Traces) grpc() []otelgrpc.Option {
	return []otelgrpc.Option{otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider())}
}

// ServerOptions returns the gRPC options that trace incoming calls; none if traces are off.
func (t *Traces) ServerOptions() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.grpc()...))}
}

// DialOptions returns the gRPC options that trace outgoing calls; none if traces are off.
func (t *Traces) DialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(t.grpc()...))}
}

// Handler returns a handler that traces the HTTP requests to next. If traces are off, it returns next.
func (t *Traces) Handler(name string, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return otelhttp.NewHandler(next, name, otelhttp.WithTracerProvider(t.provider), otelhttp.WithPropagators(t.carrier),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		// Exclude these requests here and not in the sampler, because the sampler decides before the span has its
		// route.
		otelhttp.WithFilter(func(r *http.Request) bool {
			return r.URL.Path != "/metrics" && r.URL.Path != "/health" && r.URL.Path != "/ready"
		}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			// Name the span after the route and not after the path, because callers choose the path.
			if r.Pattern != "" {
				return r.Pattern
			}
			return r.Method + " " + name
		}))
}

// Close sends the spans that still wait. It gives up when ctx ends.
func (t *Traces) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return errors.Join(t.provider.ForceFlush(ctx), t.provider.Shutdown(ctx))
}

// End ends a span and records whether its work failed.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
