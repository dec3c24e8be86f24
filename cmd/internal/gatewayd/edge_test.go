package gatewayd

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/testbed"
)

// TestDocumentsAreServed: the gateway serves the API description to callers without a certificate, as OpenAPI 2 and
// as OpenAPI 3, with the same calls in both.
func TestDocumentsAreServed(t *testing.T) {
	w := startWorld(t, nil, "")
	c := w.as("")
	var calls [2][]string
	for i, path := range []string{"/openapi.json", "/openapi3.json"} {
		code, body, h := w.do(c, "GET", w.api+path, "")
		var doc struct {
			Swagger, OpenAPI string
			Paths            map[string]map[string]struct{ OperationID string }
		}
		if err := json.Unmarshal([]byte(body), &doc); err != nil {
			t.Fatal(err)
		}
		want := []string{"2.0", "3.0.3"}[i]
		if code != 200 || h.Get("Content-Type") != "application/json" || doc.Swagger+doc.OpenAPI != want || doc.Paths["/v1/workloads"] == nil {
			t.Errorf("GET %s returned %d, %s, version %q, %d paths; want 200, application/json, version %s and /v1/workloads", path, code, h.Get("Content-Type"), doc.Swagger+doc.OpenAPI, len(doc.Paths), want)
		}
		for path, verbs := range doc.Paths {
			for verb, operation := range verbs {
				calls[i] = append(calls[i], verb+" "+path+" "+operation.OperationID)
			}
		}
		slices.Sort(calls[i])
	}
	if !slices.Equal(calls[0], calls[1]) {
		t.Errorf("openapi.json has the calls\n%q\nopenapi3.json has\n%q", calls[0], calls[1])
	}
	code, body, h := w.do(c, "GET", w.api+"/docs", "")
	if code != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || !strings.Contains(body, "openapi.json") {
		t.Errorf("GET /docs was answered %d, %s, %d bytes; want an HTML page that loads openapi.json", code, h.Get("Content-Type"), len(body))
	}
	if csp := h.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("/docs has Content-Security-Policy %q, want default-src 'none'", csp)
	}
}

// TestCallsAreLimited: on both listeners, a caller that exceeds the rate limit gets an answer with the time
// after which it may try again.
func TestCallsAreLimited(t *testing.T) {
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_LIMIT_CALLS": "1"}, "")
	c := w.as("")
	for name, url := range map[string]string{"api": w.api + "/health", "public": w.public + "/"} {
		ask := func() (int, string, http.Header) { return w.do(c, "GET", url, "") }
		testbed.Until(t, name+": the limit is reached", func() bool {
			code, body, h := ask()
			if code == 200 {
				return false
			}
			if code != http.StatusTooManyRequests || h.Get("Retry-After") != "1" || !strings.Contains(body, "too many calls a second") {
				t.Errorf("%s: a call over the limit was answered %d, Retry-After %q, %s", name, code, h.Get("Retry-After"), body)
			}
			return true
		})
		testbed.Until(t, name+": the same call a second later succeeds", func() bool { code, _, _ := ask(); return code == 200 })
	}
}

// TestConnectionsAreLimited: the gateway accepts at most the configured number of connections from one host
// on each listener. When one of the connections ends, the gateway accepts another one.
func TestConnectionsAreLimited(t *testing.T) {
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_LIMIT_CONNECTIONS_PER_HOST": "1"}, "")
	for name, url := range map[string]string{"api": w.api + "/health", "public": w.public + "/"} {
		get := func(c *http.Client) error {
			resp, err := c.Get(url)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
		first, second := w.as(""), w.as("")
		if err := get(first); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := get(second); err == nil {
			t.Errorf("%s: a second connection is served, although the limit is one", name)
		}
		if err := get(first); err != nil {
			t.Errorf("%s: the first connection was not served again: %v", name, err)
		}
		first.CloseIdleConnections()
		testbed.Until(t, name+": there is room again", func() bool { return get(second) == nil })
	}
}

// TestWriteTimeoutIsLongerThanAnyCall: the write timeout of the HTTP server must be longer than the longest time that
// a request may take to arrive plus the deadline of a call. So a slow call still gets its answer, or status 504.
func TestWriteTimeoutIsLongerThanAnyCall(t *testing.T) {
	for _, call := range []time.Duration{time.Second, 20 * time.Second, 10 * time.Minute} {
		if srv := server(http.NotFoundHandler(), call, slog.New(slog.DiscardHandler)); srv.WriteTimeout <= srv.ReadTimeout+call {
			t.Errorf("a call may take %s and sending its request %s, but the server closes the connection after %s", call, srv.ReadTimeout, srv.WriteTimeout)
		}
	}
}

// TestSettingsOfLegacyGatewaysAreAccepted: this gateway starts with the configuration of a legacy v1 gateway, including all
// settings that have no effect here.
func TestSettingsOfLegacyGatewaysAreAccepted(t *testing.T) {
	const text = `
app: {grpc_addr: ":8552", storage: {path: /tmp}, metadata: {name: gateway}, oauth_redirect_url: "https://x.example/callback"}
database: {mongo_uri: "mongodb://u:p@db.example:27017", name: persys, collections: {users: users, repos: repos}}
tls: {enabled: true}
scheduler: {health_path: /health, discovery_interval: 30s, repository_cluster_map: {some/repo: default}}
github: {webhook_url: "https://x.example/hook", auth: {client_id: a, client_secret: b}}
forgery: {grpc_addr: "forgery.example:9090", grpc_server_name: forgery}
log: {loki_endpoint: "http://loki.example:3100"}
`
	set := map[string]string{
		"PERSYS_GATEWAY_MONGO_URI": "mongodb://other.example", "PERSYS_GATEWAY_DB_NAME": "other", "PERSYS_GATEWAY_GITHUB_CLIENT_ID": "a",
		"PERSYS_GATEWAY_GITHUB_CLIENT_SECRET": "b", "PERSYS_GATEWAY_FORGERY_GRPC_ADDR": "x.example:1", "PERSYS_GATEWAY_FORGERY_GRPC_SERVER_NAME": "x",
	}
	// The file contains all gateway settings of the contract.
	var given map[string]map[string]any
	if err := yaml.Unmarshal([]byte(text), &given); err != nil {
		t.Fatal(err)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[ignored]()) {
		if key := f.Tag.Get("yaml"); key != "" {
			head, rest, _ := strings.Cut(key, ".")
			if _, ok := given[head][rest]; !ok {
				t.Errorf("the test does not set %s", key)
			}
		}
		if _, ok := set[f.Tag.Get("env")]; !ok && f.Tag.Get("env") != "" {
			t.Errorf("the test does not set %s", f.Tag.Get("env"))
		}
	}
	w := startWorld(t, set, text)
	if code, body, _ := w.do(w.as("user/admin"), "GET", w.api+"/nodes", ""); code != 200 {
		t.Errorf("with the settings of a legacy v1 gateway, the list of nodes was answered %d %s, want 200", code, body)
	}
}
