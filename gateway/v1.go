package gateway

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/api/rest"
	clusterrest "github.com/persys/compute/api/rest/clusterv1"
	controlrest "github.com/persys/compute/api/rest/controlv1"
	"github.com/persys/compute/rpc/dial"
)

// refuseUnknownParameters makes strictQuery the parser of query parameters. The
// library has one parser per process, and its handlers read it without a lock, so it
// is set once, before the first handler is made.
var refuseUnknownParameters = sync.OnceFunc(func() { runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{})) })

// v1 serves the gRPC API by the generated handlers.
func (g *Gateway) v1() (http.Handler, error) {
	json := &runtime.JSONPb{
		MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
		UnmarshalOptions: protojson.UnmarshalOptions{}, // an unknown field is an error that names it
	}
	refuseUnknownParameters()
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, json),
		runtime.WithMarshalerOption(eventStream, &sse{JSONPb: json}),
		runtime.WithErrorHandler(handleError),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(func(_ context.Context, r *http.Request) metadata.MD { return metadataOf(r) }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithForwardResponseOption(trailers),
		runtime.WithDisablePathLengthFallback(),
	)
	if err := controlrest.RegisterAgentControlHandlerClient(g.ctx, mux, controlv1.NewAgentControlClient(routed{})); err != nil {
		return nil, err
	}
	if err := clusterrest.RegisterClusterHandlerClient(g.ctx, mux, clusterv1.NewClusterClient(routed{})); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rq := requestOf(r.Context()); r.Header.Get("X-Persys-Workload-Key") == "" {
			if id, ok := strings.CutPrefix(r.URL.Path, "/v1/workloads/"); ok {
				rq.key, _, _ = strings.Cut(id, "/")
			}
		}
		// known has read these parameters; the generated handlers would refuse them,
		// because no message has them.
		if q := r.URL.Query(); q.Has("cluster_id") || q.Has("access_token") {
			q.Del("cluster_id")
			q.Del("access_token")
			r.URL.RawQuery = q.Encode()
		}
		if !streams(r) {
			limit := g.opt.CallTimeout
			if slow(r) {
				limit = max(limit, slowLimit)
				_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the server's own is for shorter calls
			}
			ctx, cancel := context.WithTimeout(r.Context(), limit)
			defer cancel()
			mux.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		out, end := startStream(w, r)
		defer end()
		mux.ServeHTTP(out, r)
	}), nil
}

// slowLimit bounds the calls that slow reports. persysctl waits as long for a
// recovery.
const slowLimit = 15 * time.Minute

// slow reports whether a call may take minutes: it reads or writes a whole etcd, or
// stops a node's leftover instances, each with its grace period.
func slow(r *http.Request) bool {
	node, ofNode := strings.CutPrefix(r.URL.Path, "/v1/nodes/")
	return ofNode && strings.HasSuffix(node, "/gc") || strings.HasPrefix(r.URL.Path, "/v1/recovery")
}

// strictQuery refuses parameters that the request's message does not have, so that a
// misspelt filter does not list everything.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse implements runtime.QueryParameterParser.
func (q strictQuery) Parse(m proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	for key := range values {
		name, _, _ := strings.Cut(key, ".")
		name, _, _ = strings.Cut(name, "[")
		if fields.ByTextName(name) == nil && fields.ByJSONName(name) == nil {
			return fmt.Errorf("unknown parameter %q; /docs lists those of %s", key, m.ProtoReflect().Descriptor().Name())
		}
	}
	return q.DefaultQueryParser.Parse(m, values, filter)
}

// metadataOf is the call's metadata from an HTTP request: the request id.
func metadataOf(r *http.Request) metadata.MD {
	md := metadata.MD{}
	if id := r.Header.Get("Idempotency-Key"); id != "" {
		md.Set(dial.KeyRequestID, id)
	}
	return md
}

func outgoing(ctx context.Context, r *http.Request) context.Context {
	if md := metadataOf(r); len(md) > 0 {
		return metadata.NewOutgoingContext(ctx, md)
	}
	return ctx
}

// apply drops the call options from the signature of a client's method.
func apply[Req, Resp any](do func(context.Context, Req, ...grpc.CallOption) (Resp, error)) func(context.Context, Req) (Resp, error) {
	return func(ctx context.Context, req Req) (Resp, error) { return do(ctx, req) }
}

// openapiDocument is generated, in api/rest.
var openapiDocument = rest.OpenAPI

//go:embed docs.html
var docsPage []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapiDocument)
}

func serveDocs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(docsPage)
}
