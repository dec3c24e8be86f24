package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/api/rest"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

func ask(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// compact removes spaces outside of strings, which protojson varies at random.
func compact(s string) string {
	var v any
	if json.Unmarshal([]byte(s), &v) != nil {
		return s
	}
	out, err := json.Marshal(v)
	if err != nil {
		return s
	}
	return string(out)
}

// TestRoutesAnswerAsTheContractSays lists the routes, statuses and bodies of contract/gateway-rest.md, as legacy v1 CLIs use them,
// and the routes of /v1.
func TestRoutesAnswerAsTheContractSays(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	apply := `{"workload_id":"web","revisionId":"r1","desired_state":"Running","nobody_knows":1,
		"spec":{"type":"container","resources":{"cpu_millicores":"250","memory_mb":256},"container":{"image":"nginx","ports":[{"host_port":8080,"container_port":80}]}}}`
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/workloads/schedule", apply, 200, `{"success":true}`},
		{"POST", "/clusters/main/workloads/schedule", apply, 200, `{"success":true}`},
		{"POST", "/workloads/schedule", `{"workload_id":"frozen"}`, 200, `{"error_message":"the mode is degraded"}`},
		{"POST", "/workloads/schedule", `{}`, 400, `{"code":"INVALID_ARGUMENT","error":"workload_id must be set"}`},
		{"POST", "/workloads/schedule", ``, 400, `{"error":"the body is empty; it must be the request as JSON"}`},
		{"POST", "/workloads/schedule", `{`, 400, ""},
		{"POST", "/workloads/schedule", `{"workload_id":"` + strings.Repeat("x", MaxBody) + `"}`, 413, `{"error":"the body is over 4194304 bytes"}`},
		{"GET", "/workloads", "", 200, `{}`},
		{"GET", "/list", "", 200, `{}`},
		{"GET", "/workloads?status=Running&node_id=n1", "", 200, `{"workloads":[{"assigned_node_id":"n1","status":"Running","workload_id":"w"}]}`},
		{"GET", "/workloads/web", "", 200, `{"workload":{"status":"Running","workload_id":"web"}}`},
		{"GET", "/workloads/gone", "", 404, `{"code":"NOT_FOUND","error":"workload \"gone\" not found"}`},
		{"GET", "/workloads/late", "", 504, `{"code":"DEADLINE_EXCEEDED","error":"too late"}`},
		{"GET", "/workloads/noleader", "", 503, `{"code":"UNAVAILABLE","error":"no agent","reason":"NO_AGENT"}`},
		{"DELETE", "/workloads/web", "", 200, `{"success":true}`},
		{"POST", "/workloads/web/retry", "", 200, `{"accepted":true}`},
		{"GET", "/nodes?status=Ready", "", 200, `{"nodes":[{"node_id":"node-a","status":"Ready"}]}`},
		{"GET", "/nodes/n7", "", 200, `{"node":{"node_id":"n7"}}`},
		{"GET", "/cluster/metrics", "", 200, `{"total_nodes":3}`},
		{"GET", "/clusters/main/cluster/metrics", "", 200, `{"total_nodes":3}`},
		{"GET", "/clusters/other/nodes", "", 400, `{"error":"unknown cluster id \"other\"; GET /clusters lists them"}`},
		{"GET", "/nodes?cluster_id=other", "", 400, `{"error":"unknown cluster id \"other\"; GET /clusters lists them"}`},
		{"GET", "/clusters/other", "", 404, `{"error":"unknown cluster id \"other\"; GET /clusters lists them"}`},
		{"GET", "/health", "", 200, `{"prow_proxy_enabled":false,"prow_scheduler":"","service":"persys-gateway","status":"healthy"}`},
		{"POST", "/forgery/projects/upsert", "{}", 501, ""},
		{"GET", "/clusters/main/forgery/pipeline/status", "", 501, ""},
		{"GET", "/auth/login", "", 501, ""},
		{"GET", "/github/list/repos", "", 501, ""},
		{"GET", "/nothing", "", 404, `{"error":"no route GET /nothing; /docs shows all of them"}`},

		{"GET", "/v1/workloads/web", "", 200, `{"workload":{"status":"Running","workload_id":"web"}}`},
		{"GET", "/v1/workloads/gone", "", 404, `{"code":"NOT_FOUND","error":"workload \"gone\" not found"}`},
		{"GET", "/v1/workloads?status=Running", "", 200, `{"workloads":[{"status":"Running","workload_id":"w"}]}`},
		{"GET", "/v1/workloads?cluster_id=main&status=Running", "", 200, `{"workloads":[{"status":"Running","workload_id":"w"}]}`},
		{"GET", "/v1/workloads?statsu=Running", "", 400, `{"code":"INVALID_ARGUMENT","error":"unknown parameter \"statsu\"; /docs lists those of ListWorkloadsRequest"}`},
		{"GET", "/v1/nodes?status=Ready&status=Draining", "", 400, `{"code":"INVALID_ARGUMENT","error":"parameter \"status\" is given twice (\"status\" and \"status\"); give it once"}`},
		{"GET", "/v1/nodes?page_token=%c3%28", "", 400, `{"error":"parameter \"page_token\" must be UTF-8 without control characters (got [\"\\xc3(\"])"}`},
		{"GET", "/v1/workloads/a%00b", "", 400, `{"error":"the path \"/v1/workloads/a%00b\" must be UTF-8 without control characters"}`},
		{"PATCH", "/v1/workloads/web", "{}", 405, `{"error":"no route PATCH /v1/workloads/web; /docs shows all of them"}`},
		{"POST", "/v1/workloads", `{"workload_id":"web"}`, 200, `{"success":true}`},
		{"GET", "/v1/workloads/web?workload_id=api", "", 400, `{"code":"INVALID_ARGUMENT","error":"parameter \"workload_id\" is part of the path; leave it out"}`},
		{"GET", "/workloads?status=Running&status=Failed", "", 400, `{"error":"parameter \"status\" is given twice; give it once"}`},
		{"GET", "/v1/nodes?cluster_id=main&cluster_id=other", "", 400, `{"error":"parameter \"cluster_id\" is given twice; give it once"}`},
		{"POST", "/v1/mode?mode=normal", `{}`, 400, `{"error":"parameter \"mode\": POST /v1/mode takes its fields in the body"}`},
		{"DELETE", "/v1/workloads/web", `{"force":true}`, 400, `{"error":"DELETE /v1/workloads/web takes no body; give its fields as parameters, see /docs"}`},
		{"DELETE", "/v1/workloads/web", ` {} `, 200, `{"success":true}`},
		{"POST", "/v1/nodes/n1/cordon", `{"node_id":"n2"}`, 400, `{"code":"INVALID_ARGUMENT","error":"node_id: the body has \"n2\", but the path has \"n1\""}`},
		{"POST", "/v1/nodes/n1/cordon", `{"node_id":"n1"}`, 501, ""}, // the replica answers that it does not implement the method
		{"PATCH", "/workloads/web", "{}", 405, ""},
		{"DELETE", "/v1/workloads/web?force=true", "", 200, `{"success":true}`},
		{"GET", "/clusters/main/v1/summary", "", 200, `{"total_nodes":3}`},
		{"POST", "/v1/mode", `{"mode":"normal"}`, 200, `{"mode":"normal"}`},
		{"POST", "/v1/nodes/n1/cordon", `{"on":true}`, 501, ""}, // the replica answers that it does not implement the method
	} {
		w := ask(g.Handler(), c.method, c.path, c.body)
		name := c.method + " " + c.path
		if len(name) > 80 {
			name = name[:80]
		}
		if w.Code != c.status {
			t.Errorf("%s: status %d %s, want %d", name, w.Code, w.Body, c.status)
		}
		if got := compact(w.Body.String()); c.want != "" && got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		if w.Code >= 400 && !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%s: %d without an error text: %s", name, w.Code, w.Body)
		}
		if w.Header().Get("X-Service-Name") != "persys-gateway" {
			t.Errorf("%s: no service header", name)
		}
	}
	if got := s.apply.GetSpec(); s.apply.GetWorkloadId() != "web" {
		t.Errorf("the replica got the apply %v", got)
	}
	w := ask(g.Handler(), "GET", "/v1/nodes", "", "Idempotency-Key", "0190c1d2-0000-7000-8000-000000000000")
	if h := w.Header(); h.Get("X-Persys-Stale") != "true" || h.Get("X-Persys-Age-Ms") != "42" {
		t.Errorf("the headers do not say that the answer is stale and how old it is: %v", h)
	}
	s.mu.Lock()
	if got := s.last.Get("persys-request-id"); !slices.Equal(got, []string{"0190c1d2-0000-7000-8000-000000000000"}) {
		t.Errorf("the replica got the idempotency key %q, want the key of the request", got)
	}
	s.mu.Unlock()
	for _, key := range []string{"schlüssel", "a\tb", "\xff"} { // these keys are valid in an HTTP header, but not in gRPC metadata
		if w := ask(g.Handler(), "POST", "/v1/workloads/web/retry", `{}`, "Idempotency-Key", key); w.Code != 400 || !strings.Contains(w.Body.String(), "must be a UUID of version 7") {
			t.Errorf("a request with Idempotency-Key %q was answered %d %s, want 400", key, w.Code, w.Body)
		}
	}
	if w := ask(g.Public(), "GET", "/", ""); w.Code != 200 || compact(w.Body.String()) != `{"message":"Persys gateway","status":"success","version":"1.0.0"}` {
		t.Errorf("/ on the public listener was answered %d %s, want a greeting", w.Code, w.Body)
	}
	scraped := ask(g.Public(), "GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`persys_gateway_requests_total{code="404",handler="root",host="api",method="GET",url="/"}`,
		`persys_gateway_requests_total{code="200",handler="root",host="public",method="GET",url="/{$}"}`,
		`persys_gateway_request_duration_seconds_count{code="404",method="GET",url="/"}`,
		`persys_gateway_request_size_bytes_sum`,
		`persys_gateway_response_size_bytes_count`,
	} {
		if !strings.Contains(scraped, want) {
			t.Errorf("metrics lack %s:\n%s", want, scraped)
		}
	}
}

// TestMalformedBodiesAreRefused: the routes of /v1 and of the legacy contract refuse the same malformed JSON, and the
// message names the error.
func TestMalformedBodiesAreRefused(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	for name, c := range map[string]struct{ body, want, legacy string }{
		"two values":                          {`{"workload_id":"web"}` + "\n" + ` {"workload_id":"api"}`, "line 2:2: there is more behind the JSON value", "same"},
		"text after the value":                {`{"workload_id":"web"} rubbish`, "line 1:23: there is more", "same"},
		"a field twice":                       {`{"workload_id":"web","workload_id":"api"}`, `duplicate field \"workload_id\"`, "same"},
		"a field twice, in both forms":        {`{"workload_id":"web","workloadId":"api"}`, `duplicate field \"workloadId\"`, "same"},
		"a field twice, deep inside":          {`{"workload_id":"web","spec":{"container":{"image":"a","image":"b"}}}`, `duplicate field \"image\"`, "same"},
		"a key of a map twice":                {`{"workload_id":"web","spec":{"metadata":{"a":"b","a":"c"}}}`, `duplicate map key \"a\"`, "same"},
		"two fields of a oneof":               {`{"workload_id":"web","spec":{"container":{"image":"a"},"compose":{}}}`, "oneof", "same"},
		"half a surrogate":                    {`{"workload_id":"\ud83d"}`, `line 1:17: \\ud83d is half of a surrogate pair`, "same"},
		"half a surrogate in a map":           {"\n" + `{"workload_id":"web","spec":{"metadata":{"\\\u00e9\udc00":""}}}`, `line 2:51: \\udc00 is half`, "same"},
		"two first halves of surrogates":      {`{"workload_id":"\ud83d\ud83d\ude00"}`, `line 1:17: \\ud83d is half`, "same"},
		"too many levels":                     {`{"workload_id":"web","spec":` + strings.Repeat(`{"spec":`, 20000), "depth", "same"},
		"too many levels in an unknown field": {`{"workload_id":"web","x":` + strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200) + `}`, `unknown field \"x\"`, "nested deeper than 100"},
		"the end is missing":                  {`{"workload_id":"web","spec":{`, "ends in the middle", "same"},
		"not JSON":                            {`workload_id: web`, "line 1:1: invalid character 'w'", "same"},
		"a list":                              {`[]`, "unexpected token [", "same"},
		"null":                                {`null`, "unexpected token null", "same"},
		"a byte order mark":                   {"\ufeff" + `{"workload_id":"web"}`, "byte order mark", "same"},
		"Latin-1":                             {`{"workload_id":"caf` + "\xe9" + `"}`, "not UTF-8", "same"},
		"a number as text":                    {`{"workload_id":"web","spec":{"count":"three"}}`, "three", "same"},
		"a number that is too large":          {`{"workload_id":"web","spec":{"count":2147483648}}`, "2147483648", "same"},
		"both halves of a surrogate":          {`{"workload_id":"web","spec":{"metadata":{"\ud83d\ude00\\ud83d":""}}}`, "", ""},
		"an unknown field":                    {`{"workload_idd":"web","workload_id":"web"}`, `unknown field \"workload_idd\"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.legacy == "same" {
				c.legacy = c.want
			}
			for path, want := range map[string]string{"/v1/workloads": c.want, "/workloads/schedule": c.legacy} {
				w := ask(g.Handler(), "POST", path, c.body)
				if status := map[bool]int{true: 400, false: 200}[want != ""]; w.Code != status || !strings.Contains(w.Body.String(), want) {
					t.Errorf("a malformed body to %s was answered %d %.300s, want %d with %q", path, w.Code, w.Body, status, want)
				}
			}
		})
	}
	if s.apply != nil && s.apply.GetWorkloadId() != "web" {
		t.Errorf("a malformed body was applied: %v", s.apply)
	}
	for path, allow := range map[string]string{
		"/v1/workloads/web": "DELETE, GET", "/v1/workloads": "GET, POST", "/v1/namespaces/x": "DELETE, PUT", "/clusters/main/v1/mode": "POST",
		"/workloads/web": "DELETE, GET", "/clusters/main/workloads/web/retry": "POST", "/health": "GET",
	} {
		w := ask(g.Handler(), "PATCH", path, "{}")
		if w.Code != 405 || w.Header().Get("Allow") != allow {
			t.Errorf("PATCH %s: %d, Allow %q, want 405 with %q", path, w.Code, w.Header().Get("Allow"), allow)
		}
	}
}

// TestEveryCallHasARoute: each gRPC method has a route, or is listed with the reason why it has none.
func TestEveryCallHasARoute(t *testing.T) {
	without := map[string]string{
		"persys.control.v1.AgentControl.RegisterNode":      "agents speak gRPC",
		"persys.control.v1.AgentControl.Heartbeat":         "agents speak gRPC",
		"persys.control.v1.AgentControl.WatchNetworkNames": "agents speak gRPC",
		"persys.control.v1.AgentControl.ControlStream":     "a stream in both directions that only agents and gateways use",
		"persys.cluster.v1.Cluster.ApplyStream":            "stream in both directions; /v1/apply takes many workloads at once",
		"persys.cluster.v1.Cluster.Exec":                   "stream in both directions; the websocket /v1/workloads/{workload_id}/exec carries it",
		"persys.cluster.v1.Cluster.RecordSession":          "between schedulers only",
		"persys.cluster.v1.Cluster.ClusterKey":             "between schedulers only",
		"persys.cluster.v1.Cluster.ProbeMirror":            "between schedulers only",
		"persys.cluster.v1.Cluster.GetReadIndex":           "between schedulers only",
		"persys.cluster.v1.Cluster.CreateBackup":           "megabytes of checksummed binary; persysctl backup create",
		"persys.cluster.v1.Cluster.RestoreBackup":          "stream to the scheduler, only for admins; persysctl backup restore",
	}
	for _, m := range []string{"Enrol", "Renew", "Bundle", "CreateToken", "ListTokens", "DeleteToken", "ListIdentities", "Revoke", "ListAuthorities", "PutAuthority", "DropAuthority", "RotateGossip", "RotateClusterKey", "ClusterKeyStatus"} {
		without["persys.cluster.v1.Trust."+m] = "secrets and certificates are sent only between a program and the schedulers, not through a gateway; persysctl token, identity, ca"
	}
	without["persys.cluster.v1.Cluster.LinkConsole"] = "schedulers refuse it from gateways, which could name any user; persysctl console"
	without["persys.cluster.v1.Cluster.MoveVolume"] = "only persysctl starts and ends moves so far (persysctl volume move); GET /v1/volumes shows them"
	without["persys.cluster.v1.Cluster.OpenConsole"] = "POST /auth/link of the console"
	without["persys.cluster.v1.Cluster.ShowSecret"] = "values of secrets are sent only directly by schedulers; persysctl secret get NAME --show"
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(rest.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, verbs := range doc.Paths {
		for _, op := range verbs {
			have[op.OperationID] = true
		}
	}
	for _, file := range []protoreflect.FileDescriptor{controlv1.File_api_control_v1_control_proto, clusterv1.File_api_cluster_v1_cluster_proto} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				name := string(m.FullName())
				routed := have[string(s.Name())+"_"+string(m.Name())]
				if _, ok := without[name]; ok == routed {
					t.Errorf("method %s: has a route: %v, is in the list of methods without a route: %v; add it to api/rest/rest.yaml, or to this list with the reason", name, routed, ok)
				}
				full := "/" + string(s.FullName()) + "/" + string(m.Name())
				reads := strings.HasPrefix(string(m.Name()), "Get") || strings.HasPrefix(string(m.Name()), "List")
				rights := m.Name() == "ListBindings" || m.Name() == "ListAccounts" // these two reads need the right to change roles
				if least, ok := needs[full]; reads && routed && !rights && (!ok || least > Viewer) {
					t.Errorf("method %s only reads, but needs role %s, which is more than viewer", full, least)
				}
			}
		}
	}
}

func TestEventsAreStreamed(t *testing.T) {
	s := startReplica(t, "s1", nil)
	g := newGateway(t, nil, clusterOf("main", "", s))
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(srv.Close) // cleanups run in reverse order, so the server is closed after the response bodies
	get := func(path string, headers ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	text := func(resp *http.Response) string {
		t.Helper()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	resp := get("/v1/events", "Accept", "text/event-stream")
	got := text(resp)
	if resp.Header.Get("Content-Type") != "text/event-stream" || strings.Count(got, "data: {") != 3 || !strings.HasPrefix(got, "id: 1\ndata: {") || !strings.HasSuffix(got, "}\n\n") {
		t.Errorf("the stream of three events has headers %v and body\n%q", resp.Header, got)
	}
	// A client reconnects and sends the id of the last event that it has received. The stream must continue after that
	// event.
	if got := text(get("/v1/events", "Accept", "text/event-stream", "Last-Event-ID", "7")); !strings.HasPrefix(got, "id: 8\n") {
		t.Errorf("after Last-Event-ID 7 the stream begins with %q, want event 8", got)
	}
	if got := text(get("/v1/events?node_id=broken", "Accept", "text/event-stream")); !strings.Contains(got, "event: error\ndata: {") || !strings.Contains(got, "compacted") {
		t.Errorf("a stream that fails ends with %q, want an error event", got)
	}
	if resp := get("/v1/events?workload_id=gone", "Accept", "text/event-stream"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a stream that cannot be opened was answered %s, want 404", resp.Status)
	}
	// Without the header Accept: text/event-stream, the response must be one JSON object per line.
	if got := text(get("/v1/events")); strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, `{"result":{`) {
		t.Errorf("without Accept: text/event-stream the events are %q, want one JSON object on each line", got)
	}
	// The client must get each event at once, while the stream is still open.
	live := bufio.NewReader(get("/v1/events?follow=true", "Accept", "text/event-stream").Body)
	for _, want := range []string{"id: 1\n", "data: {"} {
		if line, err := live.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("the first line of the open stream is %q (%v), want %q", line, err, want)
		}
	}
}

// TestEventsThatCannotBeOpened: on a stream that takes long to open, the gateway sends comments, and with the first
// comment status 200. If the call fails afterwards, the stream must end with an error event, because an empty stream
// would look complete.
func TestEventsThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody := func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		g := newGateway(t, func(o *Options) {
			o.CallTimeout = heartbeat + time.Second
			o.Dial = func(ctx context.Context, o dial.Options) (*dial.Conn, error) {
				o.Insecure, o.CallTimeout, o.Extra = true, heartbeat+time.Second, []grpc.DialOption{grpc.WithContextDialer(nobody)}
				return dial.Dial(ctx, o)
			}
		}, Cluster{ID: "main", Schedulers: []Scheduler{{ID: "s1", Address: "192.0.2.1:8085"}}})
		w := ask(g.Handler(), "GET", "/v1/events", "", "Accept", eventStream)
		if got := w.Body.String(); w.Code != 200 || !strings.HasPrefix(got, ": still here\n\nevent: error\ndata: {") || !strings.HasSuffix(got, "}\n\n") || !strings.Contains(got, "192.0.2.1") {
			t.Errorf("a stream whose call failed was answered %d %q, want status 200 with an error event", w.Code, got)
		}
	})
}

func TestCallsAreRoutedToReplicas(t *testing.T) {
	a, b, c := startReplica(t, "s1", nil), startReplica(t, "s2", nil), startReplica(t, "s3", nil)
	all := []*replicaServer{a, b, c}
	for _, s := range all {
		s.leader.Store("s2")
	}
	g := newGateway(t, nil, clusterOf("one", Sticky, all...), clusterOf("two", Shard, all...))
	who := func() []int { return []int{a.count(), b.count(), c.count()} }
	testbed.Until(t, "all replicas are healthy, and s2 leads", func() bool {
		v := g.find("one").view()
		return v.Healthy == 3 && v.Members[1].IsLeader && !v.Members[0].IsLeader
	})
	before := who()
	for range 5 {
		ask(g.Handler(), "GET", "/nodes", "", "X-Persys-Session", "x")
	}
	after := who()
	moved := 0
	for i := range after {
		if after[i]-before[i] == 5 {
			moved++
		} else if after[i] != before[i] {
			t.Errorf("calls of one session went to several replicas: calls per replica %v, then %v; want one replica", before, after)
		}
	}
	if moved != 1 {
		t.Errorf("the replicas had %v calls, and after the calls of one session %v, want the calls of a session at one replica", before, after)
	}
	seen := map[int]bool{}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		before := who()
		ask(g.Handler(), "GET", "/clusters/two/workloads/"+id, "")
		ask(g.Handler(), "GET", "/clusters/two/v1/workloads/"+id, "")
		for i, n := range who() {
			if n-before[i] == 2 {
				seen[i] = true
			} else if n != before[i] {
				t.Errorf("calls about workload %s went to several replicas: calls per replica %v, then %v; want one replica", id, before, who())
			}
		}
	}
	if len(seen) < 2 {
		t.Errorf("calls about seven workloads all went to the same replica")
	}
	// When the replica that a client's session was bound to is down, another replica must answer the client's
	// requests.
	a.grpc.Stop()
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if w := ask(g.Handler(), "GET", "/clusters/two/workloads/"+id, ""); w.Code != 200 {
			t.Errorf("with one replica down the gateway answers %d %s, want 200", w.Code, w.Body)
		}
	}
	testbed.Until(t, "s1 is shown as unhealthy", func() bool { return g.find("one").view().Healthy == 2 })
	w := ask(g.Handler(), "GET", "/clusters", "")
	var got struct {
		Default  string `json:"default_cluster_id"`
		Clusters []view `json:"clusters"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Default != "one" || len(got.Clusters) != 2 || got.Clusters[0].Total != 3 || got.Clusters[0].Healthy != 2 ||
		got.Clusters[0].Strategy != Sticky || got.Clusters[1].ID != "two" || got.Clusters[1].Name != "the two" || got.Clusters[0].Members[0].Address != a.addr {
		t.Errorf("/clusters shows %s", w.Body)
	}
}

// TestAStreamContinuesWhenSchedulersChange: the discovery finds another set of schedulers while a client reads a
// stream. The stream must stay open.
func TestAStreamContinuesWhenSchedulersChange(t *testing.T) {
	r := startReplica(t, "s1", nil)
	connect := func() *dial.Conn {
		c, err := dial.Dial(t.Context(), dial.Options{Addrs: []string{r.addr}, Insecure: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	used, unused := connect(), connect()
	stream, err := clusterv1.NewClusterClient(used).Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(m *clusterv1.ExecRequest) {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "web"}}})
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	b := &backend{ctx: t.Context()}
	retired := make(chan struct{})
	go func() {
		defer close(retired)
		b.closeReplaced([]*dial.Conn{unused, used}, time.Millisecond)
	}()
	closed := func(c *dial.Conn) bool {
		_, err := clusterv1.NewClusterClient(c).Status(t.Context(), &clusterv1.StatusRequest{})
		return status.Code(err) == codes.Canceled
	}
	testbed.Until(t, "the unused connection is closed", func() bool { return closed(unused) })
	send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_EndInput{EndInput: true}})
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("the open stream ended when the set of schedulers changed: %v", err)
		}
		if exit := m.GetExit(); exit != nil {
			break
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	<-retired
	if !closed(used) {
		t.Error("the connection is still open after its last call")
	}
}

// TestSeveralGatewaysInOneProcess: four gateways in one process answer requests at the same time. Each must refuse an
// unknown query parameter and name it. The gateways share the only parser of query parameters that the library has per
// process, so the race detector finds unprotected access to the parser in this test.
func TestSeveralGatewaysInOneProcess(t *testing.T) {
	s := startReplica(t, "s1", nil)
	var all sync.WaitGroup
	for range 4 {
		g := newGateway(t, nil, clusterOf("main", "", s))
		all.Go(func() {
			for range 20 {
				if w := ask(g.Handler(), "GET", "/v1/workloads?staus=Running", ""); w.Code != 400 || !strings.Contains(w.Body.String(), "staus") {
					t.Errorf("a request with an unknown parameter was answered %d %s, want 400 with its name", w.Code, w.Body)
				}
			}
		})
	}
	all.Wait()
}

// TestCallsCarryTheCallersIdentity: a call carries the identity from the caller's certificate or token, and
// the namespaces that restrict the caller.
func TestCallsCarryTheCallersIdentity(t *testing.T) {
	for name, x := range map[string]struct {
		c    caller
		want map[string]string
	}{
		"a caller without an identity": {caller{name: "x", role: Operator, from: "10.0.0.1"}, nil},
		"a certificate": {
			caller{name: "ada", role: Operator, identity: "persys://c1/user/ada", issued: time.Unix(1, 2), from: "10.0.0.1"},
			map[string]string{dial.KeyOnBehalf: "persys://c1/user/ada", dial.KeyIssued: "1000000002", dial.KeyFrom: "10.0.0.1"},
		},
		"a token with several groups": {
			caller{name: "user 1", role: Operator, user: "oidc:https://idp#1", namespaces: []string{"a", "b"}, from: "10.0.0.1"},
			map[string]string{dial.KeyUser: "oidc:https://idp#1", dial.KeyAccess: "operator", dial.KeyNamespaces: "a,b", dial.KeyFrom: "10.0.0.1"},
		},
		"a token without a role": {
			caller{name: "user 1", user: "oidc:https://idp#1", from: "10.0.0.1"},
			map[string]string{dial.KeyUser: "oidc:https://idp#1", dial.KeyAccess: "none", dial.KeyFrom: "10.0.0.1"},
		},
	} {
		md, _ := metadata.FromOutgoingContext(x.c.tell(t.Context()))
		if len(md) != len(x.want) {
			t.Errorf("%s: the metadata of the call is %v, want %v", name, md, x.want)
		}
		for k, v := range x.want {
			if got := strings.Join(md.Get(k), ";"); got != v {
				t.Errorf("%s: metadata %s is %q, want %q", name, k, got, v)
			}
		}
	}
}

// TestTheUserOfATokenIsPrintable: the gateway sends the user of a bearer token to the schedulers as text. This text
// must be printable ASCII, whatever the token contains, and must not look like the identity in a certificate.
func TestTheUserOfATokenIsPrintable(t *testing.T) {
	for _, x := range [][3]string{
		{"https://idp.example.com/realms/x", "ada", "oidc:https://idp.example.com/realms/x#ada"},
		{"https://idp.example.com", "auth0|5 é#\n", "oidc:https://idp.example.com#auth0%7C5%20%C3%A9%23%0A"},
		{"https://idp.example.com", "", ""},
	} {
		if got := tokenUser(x[0], x[1]); got != x[2] {
			t.Errorf("subject %s of issuer %s gives user %q, want %q", x[1], x[0], got, x[2])
		}
	}
}

func TestAPanicFailsOnlyItsRequest(t *testing.T) {
	g := newGateway(t, nil, clusterOf("main", "", startReplica(t, "s1", nil)))
	h := g.outermost("api", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }))
	if w := ask(h, "GET", "/", ""); w.Code != 500 || !strings.Contains(w.Body.String(), "internal error") {
		t.Errorf("a request whose handler panicked was answered %d %s, want 500", w.Code, w.Body)
	}
}

// TestPagesOfOtherSitesAreRefused: without TLS every caller is an admin. So the gateway must refuse requests that a
// browser sends for pages of other sites.
func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	g := newGateway(t, nil, clusterOf("main", "", startReplica(t, "s1", nil)))
	for _, c := range []struct {
		name, method, host string
		headers            []string
		status             int
	}{
		{"a call of a CLI", "POST", "gateway.example:8551", nil, 200},
		{"a call of our own page", "POST", "127.0.0.1:8551", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8551"}, 200},
		{"a call of another site's page", "POST", "127.0.0.1:8551", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 403},
		{"a host name of others that resolves to this gateway", "GET", "evil.example:8551", []string{"Sec-Fetch-Site", "same-origin"}, 403},
		{"a form from a page of that name, without Fetch Metadata", "POST", "evil.example:8551", []string{"Origin", "http://evil.example:8551"}, 403},
		{"a read from a page of that name", "GET", "evil.example:8551", []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}, 403},
		{"a read from a page of that name, with a referrer", "GET", "evil.example:8551", []string{"Referer", "http://evil.example:8551/"}, 403},
	} {
		path := "/workloads/web/retry"
		if c.method == "GET" {
			path = "/nodes"
		}
		w := ask(hosted(g.Handler(), c.host), c.method, path, "", c.headers...)
		if w.Code != c.status {
			t.Errorf("%s: the answer is %d %s, want status %d", c.name, w.Code, w.Body, c.status)
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: any origin may read the answer", c.name)
		}
	}
	// A request arrives over the loopback interface without Origin and Sec-Fetch-Site, which browsers omit from some
	// requests. It must be accepted or refused by its host name alone.
	srv := httptest.NewServer(g.Handler())
	defer srv.Close()
	defer srv.Client().CloseIdleConnections()
	for host, want := range map[string]int{"evil.example:8551": 403, "localhost:8551": 200} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/nodes", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("a request with host name %s over loopback was answered %s, want %d", host, resp.Status, want)
		}
	}
}

// TestPagesOfOtherOrigins: with TLS, CORS allows pages of every origin to use each method of the routes of
// /v1. A browser asks for this with a preflight request before it sends a request.
func TestPagesOfOtherOrigins(t *testing.T) {
	g := newGateway(t, func(o *Options) { o.TLS = &pki.Files{} }, clusterOf("main", "", startReplica(t, "s1", nil)))
	w := ask(g.Handler(), "OPTIONS", "/v1/namespaces/shop", "", "Origin", "https://elsewhere.example", "Access-Control-Request-Method", "PUT")
	if w.Code != http.StatusNoContent || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("the preflight was answered %d with headers %v", w.Code, w.Header())
	}
	allowed := strings.Split(w.Header().Get("Access-Control-Allow-Methods"), ", ")
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(rest.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	for path, verbs := range doc.Paths {
		for verb := range verbs {
			if !slices.Contains(allowed, strings.ToUpper(verb)) {
				t.Errorf("%s %s: not among the methods %q that other origins may use", strings.ToUpper(verb), path, allowed)
			}
		}
	}
}

func hosted(h http.Handler, host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = host
		h.ServeHTTP(w, r)
	})
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		opt  Options
		want string
	}{
		{Options{}, "no cluster is configured"},
		{Options{Clusters: []Cluster{{ID: ""}}}, "must not be empty or contain"},
		{Options{Clusters: []Cluster{{ID: "a", Strategy: "best"}}}, `routing_strategy "best" must be`},
	} {
		if _, err := New(t.Context(), c.opt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New returned %v, want an error with %q", err, c.want)
		}
	}
}

// TestLogPathsAreStreams: the gateway treats only the routes of logs as streams, which have no deadline. For a
// workload or node with the id "logs", the path also ends in "logs", but the call is no stream.
func TestLogPathsAreStreams(t *testing.T) {
	for path, want := range map[string]bool{"/v1/workloads/web/logs": true, "/v1/workloads/logs/logs": true, "/v1/workloads/logs": false, "/v1/nodes/logs": false} {
		if got := streams(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("GET %s counts as a stream: %v, want %v", path, got, want)
		}
	}
}
