package gateway

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	clusterrest "github.com/persys/compute/api/rest/clusterv1"
	controlrest "github.com/persys/compute/api/rest/controlv1"
	"github.com/persys/compute/rpc/dial"
)

// refuseUnknownParameters makes strictQuery the parser of query parameters. The library has one parser per
// process, and its handlers read it without a lock. So it is set once, before the first handler is created.
var refuseUnknownParameters = sync.OnceFunc(func() { runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{})) })

// v1 serves the gRPC API through the generated handlers.
func (g *Gateway) v1() (http.Handler, error) {
	encode := &runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true}}
	refuseUnknownParameters()
	routes, err := restRoutes()
	if err != nil {
		return nil, err
	}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, strictJSON{encode}),
		runtime.WithMarshalerOption(eventStream, &sse{JSONPb: encode}),
		runtime.WithErrorHandler(handleError),
		runtime.WithRoutingErrorHandler(handleRouting),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(func(_ context.Context, r *http.Request) metadata.MD { return metadataOf(r) }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithForwardResponseOption(trailers),
		runtime.WithForwardResponseOption(etag),
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
		// Remove these two parameters: the handler known has already read them, and the generated handlers would refuse
		// them, because no message has such a field.
		if q := r.URL.Query(); q.Has("cluster_id") || q.Has("access_token") {
			q.Del("cluster_id")
			q.Del("access_token")
			r.URL.RawQuery = q.Encode()
		}
		if !routes.admit(w, r) {
			return
		}
		if !streams(r) {
			limit := g.opt.CallTimeout
			if slow(r) {
				limit = max(limit, slowLimit)
				_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // a slow call takes longer than the server's write deadline allows
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

// etag copies the etag in an answer about one workload to the HTTP header ETag.
func etag(_ context.Context, w http.ResponseWriter, m proto.Message) error {
	var tag string
	switch m := m.(type) {
	case *controlv1.GetWorkloadResponse:
		tag = m.GetWorkload().GetEtag()
	case *controlv1.ApplyWorkloadResponse:
		tag = m.GetEtag()
	}
	if tag != "" {
		w.Header().Set("ETag", `"`+tag+`"`)
	}
	return nil
}

// condition returns the value of if_revision for a change: the etag in If-Match, which a GET or an apply has returned,
// or for If-None-Match: * the value that means that the workload must not exist. It returns "" for reads and without
// these headers. If a header is invalid, it writes an error to w and returns false.
func condition(w http.ResponseWriter, r *http.Request) (revision string, ok bool) {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	if len(match)+len(none) == 0 || r.Method == http.MethodGet {
		return "", true
	}
	if len(match) == 0 && len(none) == 1 && strings.TrimSpace(none[0]) == "*" {
		return "0", true
	}
	if len(none) == 0 && len(match) == 1 {
		tag, opened := strings.CutPrefix(strings.TrimSpace(match[0]), `"`)
		tag, closed := strings.CutSuffix(tag, `"`)
		if opened && closed && tag != "" && !strings.ContainsAny(tag, `", `) {
			return tag, true
		}
	}
	refuse(w, http.StatusBadRequest, fmt.Sprintf(`the condition (If-Match %q, If-None-Match %q) must be If-Match with one ETag as GET gave it, in quotes, or If-None-Match: *`, match, none))
	return "", false
}

// slowLimit is the deadline of the calls for which slow returns true. persysctl waits equally long for a recovery.
const slowLimit = 15 * time.Minute

// slow reports whether a call may take minutes: it reads or writes all keys of an etcd, or stops the leftover instances
// of a node, each with its grace period.
func slow(r *http.Request) bool {
	node, ofNode := strings.CutPrefix(r.URL.Path, "/v1/nodes/")
	return ofNode && strings.HasSuffix(node, "/gc") || strings.HasPrefix(r.URL.Path, "/v1/recovery")
}

// handleRouting answers a request that matches no route.
func handleRouting(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	text := fmt.Sprintf("no route %s %s; /docs shows all of them", r.Method, r.URL.Path)
	if code == http.StatusBadRequest {
		text = fmt.Sprintf("the path %q is not valid", r.URL.EscapedPath())
	}
	refuse(w, code, text)
}

// maxWord is the largest length of a path and of a parameter in bytes. The API's ids and names are much shorter.
const maxWord = 4 << 10

// textFault names the part of a request's URL that no message of the API can carry, because it is not UTF-8,
// contains a control character or is longer than maxWord; "" if there is none. The query parameter
// access_token may be longer.
func textFault(r *http.Request) string {
	odd := func(s string) bool { return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) }
	if len(r.URL.Path) > maxWord {
		return fmt.Sprintf("the path %.40q… has %d bytes, at most %d", r.URL.Path, len(r.URL.Path), maxWord)
	}
	if odd(r.URL.Path) {
		return fmt.Sprintf("the path %q must be UTF-8 without control characters", r.URL.EscapedPath())
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "the query is not valid: " + err.Error()
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		for _, value := range append(values[key], key) {
			if len(value) > maxWord && key != "access_token" {
				return fmt.Sprintf("parameter %.40q has %d bytes, at most %d", key, len(value), maxWord)
			}
		}
		if odd(key) || slices.ContainsFunc(values[key], odd) {
			return fmt.Sprintf("parameter %q must be UTF-8 without control characters (got %q)", key, values[key])
		}
	}
	return ""
}

// metadataOf returns the metadata of a call from an HTTP request: the request id.
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

// apply converts a method of a gRPC client to a function without call options, as the function call takes it.
func apply[Req, Resp any](do func(context.Context, Req, ...grpc.CallOption) (Resp, error)) func(context.Context, Req) (Resp, error) {
	return func(ctx context.Context, req Req) (Resp, error) { return do(ctx, req) }
}

//go:embed docs.html
var docsPage []byte

func serveJSON(document []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document)
	}
}

func serveDocs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(docsPage)
}
