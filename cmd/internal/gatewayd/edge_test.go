package gatewayd

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/testbed"
)

// TestDocumentsAreServed: the gateway serves the API description to callers without a certificate.
func TestDocumentsAreServed(t *testing.T) {
	w := startWorld(t, nil, "")
	c := w.as("")
	code, body, h := w.do(c, "GET", w.api+"/openapi.json", "")
	var doc struct {
		Swagger, OpenAPI string
		Paths            map[string]any
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if code != 200 || h.Get("Content-Type") != "application/json" || doc.Swagger+doc.OpenAPI == "" || doc.Paths["/v1/workloads"] == nil {
		t.Errorf("GET /openapi.json returned %d, %s, version %q, %d paths; want 200, application/json, a version and /v1/workloads", code, h.Get("Content-Type"), doc.Swagger+doc.OpenAPI, len(doc.Paths))
	}
	code, body, h = w.do(c, "GET", w.api+"/docs", "")
	if code != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || !strings.Contains(body, "openapi.json") {
		t.Errorf("/docs: %d, %s, %d bytes", code, h.Get("Content-Type"), len(body))
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
				t.Errorf("%s: %d, Retry-After %q, %s", name, code, h.Get("Retry-After"), body)
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
			t.Errorf("%s: the first connection: %v", name, err)
		}
		first.CloseIdleConnections()
		testbed.Until(t, name+": there is room again", func() bool { return get(second) == nil })
	}
}

// TestWriteTimeoutIsLongerThanAnyCall: a call that takes its whole deadline still gets its answer, or status
// 504, even if its request arrived slowly.
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
