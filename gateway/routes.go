package gateway

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/api/rest"
	"github.com/persys/compute/gateway/console"
)

// routes returns the handler of the API listener: the routes of the legacy contract
// (contract/gateway-rest.md), /v1 and the console.
func (g *Gateway) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	// Each route of the legacy contract exists twice: for the default cluster and for a cluster by id.
	both := func(method, path string, h func(http.ResponseWriter, *http.Request)) {
		wrapped := g.known(http.HandlerFunc(h))
		mux.Handle(method+" "+path, wrapped)
		mux.Handle(method+" /clusters/{cluster_id}"+path, wrapped)
	}
	both("POST", "/workloads/schedule", g.schedule)
	both("GET", "/workloads", g.listWorkloads)
	both("GET", "/workloads/{id}", g.getWorkload)
	both("DELETE", "/workloads/{id}", g.deleteWorkload)
	both("POST", "/workloads/{id}/retry", g.retryWorkload)
	both("GET", "/nodes", g.listNodes)
	both("GET", "/nodes/{id}", g.getNode)
	both("GET", "/cluster/metrics", g.summary)

	one := func(pattern string, h func(http.ResponseWriter, *http.Request)) {
		mux.Handle(pattern, g.known(http.HandlerFunc(h)))
	}
	one("GET /list", g.listWorkloads)
	one("GET /clusters", g.listClusters)
	mux.Handle("GET /clusters/{cluster_id}", g.authenticated(g.getCluster))

	for _, gone := range []struct{ pattern, what string }{
		{"/forgery/", "builds are done by the build service"},
		{"/clusters/{cluster_id}/forgery/", "builds are done by the build service"},
		{"/auth/", "sign in at the identity provider, and send its bearer token or a client certificate"},
		{"/github/", "repositories are managed at the forge"},
		{"/federation/", "clusters are not federated; name a cluster by its id"},
	} {
		mux.HandleFunc(gone.pattern, func(w http.ResponseWriter, r *http.Request) {
			refuse(w, http.StatusNotImplemented, fmt.Sprintf("%s is not served by this gateway: %s", r.URL.Path, gone.what))
		})
	}

	// The route needs no identity, because persysctl login calls it before it has a token.
	mux.HandleFunc("GET /auth/oidc", func(w http.ResponseWriter, _ *http.Request) {
		if g.opt.Tokens == nil {
			refuse(w, http.StatusNotFound, "this gateway refuses bearer tokens of users, because auth.oidc.issuer is not set")
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"issuer": g.opt.Tokens.opt.Issuer, "client_id": g.opt.Tokens.opt.Audience})
	})
	g.loginRoutes(mux)
	mux.HandleFunc("GET /health", g.health)
	mux.Handle("GET /metrics", g.scrape())
	v1, err := g.v1()
	if err != nil {
		return nil, err
	}
	mux.Handle("/v1/", g.known(v1))
	mux.Handle("/clusters/{cluster_id}/v1/", g.known(below(v1)))
	exec := g.sameOrigin(tokenOf(g.known(http.HandlerFunc(g.exec))))
	mux.Handle("GET /v1/workloads/{id}/exec", exec)
	mux.Handle("GET /clusters/{cluster_id}/v1/workloads/{id}/exec", exec)
	mux.HandleFunc("GET /openapi.json", serveJSON(rest.OpenAPI))
	mux.HandleFunc("GET /openapi3.json", serveJSON(rest.OpenAPI3))
	mux.HandleFunc("GET /docs", serveDocs)
	if g.opt.Schema != nil {
		mux.HandleFunc("GET /schema/workload.json", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/schema+json")
			_, _ = w.Write(g.opt.Schema)
		})
	}
	pages, err := console.Handler("/ui/")
	if err != nil {
		return nil, err
	}
	mux.Handle("GET /ui/", pages)
	mux.Handle("GET /{$}", http.RedirectHandler("/ui/", http.StatusFound))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		code := http.StatusNotFound
		if allow := methodsOf(mux, r); len(allow) > 0 {
			w.Header().Set("Allow", strings.Join(allow, ", "))
			code = http.StatusMethodNotAllowed
		}
		refuse(w, code, fmt.Sprintf("no route %s %s; /docs shows all of them", r.Method, r.URL.Path))
	})
	return g.outermost("api", g.origins(mux)), nil
}

// below removes /clusters/ID from the path.
func below(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/clusters/"+r.PathValue("cluster_id"), next).ServeHTTP(w, r)
	})
}

// authenticated identifies the caller. Unlike known, it does not select a cluster.
func (g *Gateway) authenticated(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := g.admit(w, r)
		if !ok {
			return
		}
		if who.unproven() {
			b, _ := g.cluster(r)
			if err := (&request{caller: who, backend: cmp.Or(b, g.first)}).confirm(r.Context()); err != nil {
				fail(w, err)
				return
			}
		}
		h(w, r)
	})
}

// call makes one gRPC call and writes its result or its error.
func call[Req, Resp proto.Message](g *Gateway, w http.ResponseWriter, r *http.Request, do func(context.Context, Req) (Resp, error), req Req) {
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.CallTimeout)
	defer cancel()
	ctx = outgoing(ctx, r)
	resp, err := do(ctx, req)
	if err != nil {
		fail(w, err)
		return
	}
	_ = etag(ctx, w, resp) // never fails
	writeProto(w, resp)
}

func (g *Gateway) schedule(w http.ResponseWriter, r *http.Request) {
	req := &controlv1.ApplyWorkloadRequest{}
	revision, ok := condition(w, r)
	if !ok || !readProto(w, r, req) {
		return
	}
	req.IfRevision = cmp.Or(revision, req.GetIfRevision())
	if rq := requestOf(r.Context()); r.Header.Get("X-Persys-Workload-Key") == "" && req.GetWorkloadId() != "" {
		rq.key = req.GetWorkloadId()
	}
	call(g, w, r, apply(g.control.ApplyWorkload), req)
}

func (g *Gateway) listWorkloads(w http.ResponseWriter, r *http.Request) {
	q, ok := parameters(w, r, "status", "node_id")
	if !ok {
		return
	}
	call(g, w, r, apply(g.control.ListWorkloads), &controlv1.ListWorkloadsRequest{Status: q.Get("status"), NodeId: q.Get("node_id")})
}

func (g *Gateway) getWorkload(w http.ResponseWriter, r *http.Request) {
	call(g, w, r, apply(g.control.GetWorkload), &controlv1.GetWorkloadRequest{WorkloadId: r.PathValue("id")})
}

func (g *Gateway) deleteWorkload(w http.ResponseWriter, r *http.Request) {
	if revision, ok := condition(w, r); ok {
		call(g, w, r, apply(g.control.DeleteWorkload), &controlv1.DeleteWorkloadRequest{WorkloadId: r.PathValue("id"), IfRevision: revision})
	}
}

func (g *Gateway) retryWorkload(w http.ResponseWriter, r *http.Request) {
	if revision, ok := condition(w, r); ok {
		call(g, w, r, apply(g.control.RetryWorkload), &controlv1.RetryWorkloadRequest{WorkloadId: r.PathValue("id"), IfRevision: revision})
	}
}

func (g *Gateway) listNodes(w http.ResponseWriter, r *http.Request) {
	q, ok := parameters(w, r, "status")
	if !ok {
		return
	}
	call(g, w, r, apply(g.control.ListNodes), &controlv1.ListNodesRequest{Status: q.Get("status")})
}

func (g *Gateway) getNode(w http.ResponseWriter, r *http.Request) {
	call(g, w, r, apply(g.control.GetNode), &controlv1.GetNodeRequest{NodeId: r.PathValue("id")})
}

func (g *Gateway) summary(w http.ResponseWriter, r *http.Request) {
	call(g, w, r, apply(g.control.GetClusterSummary), &controlv1.GetClusterSummaryRequest{})
}

func (g *Gateway) listClusters(w http.ResponseWriter, r *http.Request) {
	if rq := requestOf(r.Context()); rq.isAccount() { // the schedulers check the token of an account
		if err := rq.confirm(r.Context()); err != nil {
			fail(w, err)
			return
		}
	}
	all := []view{}
	for _, b := range g.backends {
		all = append(all, b.view())
	}
	writeJSON(w, http.StatusOK, map[string]any{"default_cluster_id": g.first.ID, "clusters": all})
}

func (g *Gateway) getCluster(w http.ResponseWriter, r *http.Request) {
	b := g.find(r.PathValue("cluster_id"))
	if b == nil {
		refuse(w, http.StatusNotFound, fmt.Sprintf("unknown cluster id %q; GET /clusters lists them", r.PathValue("cluster_id")))
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"default_cluster_id": g.first.ID, "cluster": b.view()})
}

func (g *Gateway) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"status": "healthy", "service": "persys-gateway",
		"prow_proxy_enabled": g.opt.ProxyEnabled, "prow_scheduler": g.opt.ProxyScheduler,
	})
}

// readProto reads the body of a request on a route of the legacy contract into m. If the body is invalid, it writes the
// error to w and returns false.
func readProto(w http.ResponseWriter, r *http.Request, m proto.Message) bool {
	data, ok := readBody(w, r)
	if !ok {
		return false
	}
	if len(bytes.TrimSpace(data)) == 0 {
		refuse(w, http.StatusBadRequest, "the body is empty; it must be the request as JSON")
		return false
	}
	if err := decode(data, m, true); err != nil {
		refuse(w, http.StatusBadRequest, "the body is not valid: "+err.Error())
		return false
	}
	return true
}
