package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestConditionsOverREST calls a real gateway and real schedulers. A change whose If-Match header has an
// outdated ETag must be refused with status 412. A request that repeats an idempotency key must not be
// applied again.
func TestConditionsOverREST(t *testing.T) {
	c := sharedCluster(t)
	base := "http://" + gatewayOf(t, c)
	type answer struct {
		code       int
		body, etag string
	}
	do := func(method, path, body string, headers ...string) answer {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		must(t, err)
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		must(t, err)
		return answer{resp.StatusCode, string(data), resp.Header.Get("ETag")}
	}
	expect := func(what string, a answer, code int, words ...string) answer {
		t.Helper()
		if a.code != code {
			t.Errorf("%s: the answer is %d %s, want status %d", what, a.code, a.body, code)
		}
		for _, w := range words {
			if !strings.Contains(a.body, w) {
				t.Errorf("%s: %s does not say %q", what, a.body, w)
			}
		}
		return a
	}
	web := func(id, image string) string {
		return fmt.Sprintf(`{"workload_id":%q,"desired_state":"stopped","spec":{"type":"container","container":{"image":%q},"resources":{"cpu_millicores":10,"memory_mb":16}}}`, id, image)
	}
	first := expect("create", do("POST", "/v1/workloads", web("web", "web:1"), "If-None-Match", "*"), 200)
	expect("create again", do("POST", "/v1/workloads", web("web", "web:1"), "If-None-Match", "*"), 412, "exists already")
	if seen := do("GET", "/v1/workloads/web", ""); seen.etag == "" || seen.etag != first.etag {
		t.Errorf("the ETag of a GET is %q, that of the apply before is %q; want the same", seen.etag, first.etag)
	}
	second := expect("change", do("POST", "/v1/workloads", web("web", "web:2"), "If-Match", first.etag), 200)
	expect("change of the former revision", do("POST", "/v1/workloads", web("web", "web:3"), "If-Match", first.etag), 412, "is at revision 2", "persysctl history web", "OTHER_REVISION")
	expect("delete of the former revision", do("DELETE", "/v1/workloads/web", "", "If-Match", first.etag), 412)
	expect("delete of the former revision over the route of the legacy contract", do("DELETE", "/workloads/web", "", "If-Match", first.etag), 412)
	expect("retry of the former revision", do("POST", "/v1/workloads/web/retry", "", "If-Match", first.etag), 412)
	expect("roll back of the former revision", do("POST", "/v1/workloads/web/rollback", "", "If-Match", first.etag), 412)
	expect("two etags", do("DELETE", "/v1/workloads/web", "", "If-Match", first.etag+", "+second.etag), 400, "one ETag")
	expect("a call without a condition", do("POST", "/v1/mode", `{"mode":"normal"}`, "If-Match", first.etag), 400, "takes no condition")
	if older := expect("the first file again", do("POST", "/v1/workloads", web("web", "web:1")), 200, `"takes_back":[`, "container.image", "web:2"); older.etag == second.etag {
		t.Error("the apply of an older file changed the workload but not its ETag")
	}

	key := uuid.Must(uuid.NewV7()).String()
	keyed := func(method, path, body string) answer {
		t.Helper()
		return do(method, path, body, "Idempotency-Key", key)
	}
	expect("an apply with a key", keyed("POST", "/v1/workloads", web("api", "api:1")), 200)
	expect("the same request and key again", keyed("POST", "/v1/workloads", web("api", "api:1")), 200)
	for _, x := range []struct{ what, method, path, body string }{
		{"another body", "POST", "/v1/workloads", web("api", "api:2")},
		{"another method", "DELETE", "/v1/workloads/api", ""},
		{"another path", "POST", "/v1/workloads/api/retry", ""},
		{"another query", "DELETE", "/v1/workloads/api?force=true", ""},
		{"a list", "POST", "/v1/apply", `{"file":"id: api\ncontainer: {image: \"api:2\"}\n"}`},
	} {
		expect(x.what, keyed(x.method, x.path, x.body), 422, "OTHER_REQUEST", "id of its own")
	}
	expect("the stored workload", do("GET", "/v1/workloads/api", ""), 200, `"image":"api:1"`, `"revision_number":"1"`)
}
