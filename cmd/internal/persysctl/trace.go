package persysctl

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/persys/compute/telemetry"
)

// traced is the trace span of this run. The zero value records no trace.
type traced struct {
	traces *telemetry.Traces
	span   trace.Span
}

// startTrace begins the trace span of this run, which is the parent of the spans of all calls. If no
// endpoint for traces is configured, there is no trace, and startTrace returns no options.
func (c *cli) startTrace(ctx context.Context, log *slog.Logger) ([]grpc.DialOption, error) {
	traces, err := telemetry.StartTraces(ctx, telemetry.TraceConfig{
		Endpoint: c.settings.OTLPEndpoint, Insecure: c.settings.OTLPInsecure, Service: "persysctl", Version: c.version, Log: log,
	})
	if err != nil || traces == nil {
		return nil, err
	}
	_, span := traces.Tracer("persysctl").Start(ctx, c.command)
	c.trace = traced{traces, span}
	within := func(ctx context.Context) context.Context { return trace.ContextWithSpan(ctx, span) }
	return append(traces.DialOptions(),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return call(within(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(within(ctx), desc, cc, method, opts...)
		})), nil
}

// endTrace ends the trace span of this run and sends it. It takes at most a second.
func (c *cli) endTrace() {
	if c.trace.traces == nil {
		return
	}
	c.trace.span.End()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.trace.traces.Close(ctx) // Close logs its error
	c.trace = traced{}
}
