package gatewayd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// TestAccountsThroughTheGateway: a caller with the token of an account or of a group has the roles of that account or
// group at the gateway too, in the namespaces of these roles only. With a wrong token every call is refused, even the
// list of clusters.
func TestAccountsThroughTheGateway(t *testing.T) {
	users, ci := newIssuer(t), newIssuer(t)
	w := startWorldOf(t, map[string]string{
		"PERSYS_GATEWAY_OIDC_ISSUER": users.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "watchers=viewer", "PERSYS_GATEWAY_OIDC_NAMESPACES": "*=all",
	}, "", startScheduler)
	admin, nobody := w.as("user/admin"), w.as("")
	must := func(method, path, body string) string {
		t.Helper()
		code, answer, _ := w.do(admin, method, w.api+path, body)
		if code != 200 {
			t.Fatalf("%s %s was answered %d %s", method, path, code, answer)
		}
		return answer
	}
	for _, ns := range []string{"shop", "bank"} {
		must("PUT", "/v1/namespaces/"+ns, `{}`)
	}
	must("PUT", "/v1/roles/ci", `{"permissions":["deploy","read"]}`)
	must("POST", "/v1/bindings", `{"role":"ci","kind":"group","name":"team shop","namespaces":["shop"]}`)
	created := tokenIn(t, must("PUT", "/v1/accounts/bot", `{"role":"ci","namespaces":["shop"]}`))
	must("PUT", "/v1/accounts/builds", fmt.Sprintf(`{"role":"ci","namespaces":["shop"],"issuer":%q,"audience":"persys-ci","claims":{"repository":"shop/web","ref_protected":"true"}}`, ci.url))
	must("PUT", "/v1/accounts/old", `{"role":"ci","namespaces":["shop"]}`)
	rotated := tokenIn(t, must("POST", "/v1/accounts/old/rotate", `{}`))

	build := func(change func(map[string]any)) string {
		return ci.token(t, nil, jose.RS256, func(m map[string]any) {
			m["aud"], m["sub"], m["repository"], m["ref_protected"] = "persys-ci", "repo:shop/web:ref:refs/heads/main", "shop/web", true
			delete(m, "groups")
			if change != nil {
				change(m)
			}
		})
	}
	// persysctl login asks the gateway for its issuer before it has a token, so this route must work without a token.
	if code, answer, _ := w.do(nobody, "GET", w.api+"/auth/oidc", ""); code != 200 || !strings.Contains(answer, users.url) || !strings.Contains(answer, "persys") {
		t.Errorf("the question for the issuer was answered %d %s", code, answer)
	}
	n := 0
	for _, x := range []struct {
		name, token      string
		shop, bank, list int // expected status of an apply in each of the two namespaces, and of the list of clusters
		says             string
	}{
		{"an account", created, 200, 403, 200, "acts only in shop"},
		{"a rotated token", rotated, 200, 403, 200, ""},
		{"a wrong token", created + "x", 401, 401, 401, "account rotate"},
		{"an account that does not exist", "persys~nobody~secret", 401, 401, 401, "nobody"},
		{"a token that has only its prefix", "persys~", 401, 401, 401, "bearer token"},
		{"the job of a CI system", build(nil), 200, 403, 200, "acts only in shop"},
		{"the job of another repository", build(func(m map[string]any) { m["repository"] = "evil/web" }), 401, 401, 401, "claims of no account"},
		{"the job of an unprotected branch", build(func(m map[string]any) { m["ref_protected"] = false }), 401, 401, 401, "claims of no account"},
		{"a job without the claim", build(func(m map[string]any) { delete(m, "repository") }), 401, 401, 401, "claims of no account"},
		{"a job for another audience", build(func(m map[string]any) { m["aud"] = "persys" }), 401, 401, 401, "audience"},
		{"an expired job", build(func(m map[string]any) { m["exp"] = time.Now().Add(-time.Minute).Unix() }), 401, 401, 401, "expired"},
		{"a job that names the CI system and is signed by another issuer", users.token(t, nil, jose.RS256, func(m map[string]any) {
			m["iss"], m["aud"], m["repository"], m["ref_protected"] = ci.url, "persys-ci", "shop/web", true
		}), 401, 401, 401, "the bearer token"},
		{"a person with a bound group", users.token(t, nil, jose.RS256, func(m map[string]any) { m["groups"] = []string{"team shop"} }), 200, 403, 200, "acts only in shop"},
		{"a viewer with a bound group", users.token(t, nil, jose.RS256, func(m map[string]any) { m["groups"] = []string{"watchers", "team shop"} }), 200, 403, 200, "acts only in shop"},
		{"a person without a role", users.token(t, nil, jose.RS256, func(m map[string]any) { m["groups"] = []string{"others"} }), 403, 403, 200, "has the role nobody"},
	} {
		t.Run(x.name, func(t *testing.T) {
			auth := []string{"Authorization", "Bearer " + x.token}
			said := ""
			for ns, want := range map[string]int{"shop": x.shop, "bank": x.bank} {
				n++
				body := fmt.Sprintf(`{"workloads":[{"workload_id":"w%d","spec":{"type":"container","namespace":%q,"container":{"image":"nginx:1"}}}]}`, n, ns)
				code, answer, _ := w.do(nobody, "POST", w.api+"/v1/apply", body, auth...)
				if code == 200 && strings.Contains(answer, "acts only in") {
					code = 403 // the answer has status 200 and a refusal for its only workload; count it as 403
				}
				if code != want {
					t.Errorf("an apply in namespace %s was answered %d %s, want %d", ns, code, answer, want)
				}
				said += answer
			}
			if code, answer, _ := w.do(nobody, "GET", w.api+"/clusters", "", auth...); code != x.list {
				t.Errorf("GET /clusters was answered %d %s, want %d", code, answer, x.list)
			}
			if code, answer, _ := w.do(nobody, "POST", w.api+"/v1/mode", `{"mode":"normal","reason":"x"}`, auth...); code != 403 && code != 401 {
				t.Errorf("a change of the mode was answered %d %s, want a refusal", code, answer)
			}
			if !strings.Contains(said, x.says) {
				t.Errorf("the answers are %s, want %q in them", said, x.says)
			}
		})
	}
	if code, answer, _ := w.do(nobody, "GET", w.api+"/nodes", "", "Authorization", "Bearer "+tokenIn(t, must("PUT", "/v1/accounts/late", `{}`))); code != 403 || !strings.Contains(answer, "no role") {
		t.Errorf("a call of an account without a role was answered %d %s, want 403", code, answer)
	}
	// A legacy v1 scheduler would not check the permissions of an account. So the gateway must refuse calls of
	// accounts to a cluster of such schedulers.
	legacy := startWorld(t, nil, "")
	for _, token := range []string{created, build(nil)} {
		if code, answer, _ := legacy.do(legacy.as(""), "GET", legacy.api+"/nodes", "", "Authorization", "Bearer "+token); code == 200 {
			t.Errorf("a call of an account at a legacy v1 scheduler was answered %d %s, want a refusal", code, answer)
		}
	}
}

// tokenIn returns the token that an answer contains.
func tokenIn(t *testing.T, answer string) string {
	t.Helper()
	var a struct{ Token string }
	if err := json.Unmarshal([]byte(answer), &a); err != nil || a.Token == "" {
		t.Fatalf("no token in %s: %v", answer, err)
	}
	return a.Token
}
