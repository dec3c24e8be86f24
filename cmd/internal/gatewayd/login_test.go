package gatewayd

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/persys/compute/pki"
)

// grants are the login page and the authorization codes of a fake issuer. Every visitor of the login page is logged in
// as the user ada.
type grants struct {
	mu   sync.Mutex
	open map[string]url.Values // requests to the login page, by authorization code, until the code is exchanged
	sign func(change func(map[string]any)) string
	// change modifies the claims of the tokens that the issuer signs from now on.
	change func(map[string]any)
}

func (c *grants) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != "persys" || q.Get("code_challenge_method") != "S256" || q.Get("state") == "" || q.Get("nonce") == "" {
		http.Error(w, "no login with PKCE: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	code := rand.Text()
	c.mu.Lock()
	c.open[code] = q
	c.mu.Unlock()
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
}

func (c *grants) exchange(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	q, ok := c.open[r.FormValue("code")]
	delete(c.open, r.FormValue("code"))
	change := c.change
	c.mu.Unlock()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	w.Header().Set("Content-Type", "application/json")
	if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") || r.FormValue("redirect_uri") != q.Get("redirect_uri") {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant"}`))
		return
	}
	token := c.sign(func(m map[string]any) {
		m["nonce"], m["preferred_username"] = q.Get("nonce"), "ada.l"
		if change != nil {
			change(m)
		}
	})
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "opaque", "token_type": "Bearer", "expires_in": 3600, "id_token": token})
}

func (c *grants) set(change func(map[string]any)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change = change
}

// visitor is a browser: a client with cookies that follows no redirect by itself.
type visitor struct {
	*world
	c *http.Client
}

func (w *world) visitor(who string) *visitor {
	w.t.Helper()
	c := w.as(who)
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	c.Jar, c.CheckRedirect = jar, func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &visitor{w, c}
}

// at opens an address and returns the status, the body and the address of the redirect.
func (v *visitor) at(address string) (int, string, string) {
	v.t.Helper()
	code, body, h := v.do(v.c, "GET", address, "")
	return code, body, h.Get("Location")
}

// begin sends the visitor to the issuer's login page. It returns the address of the gateway to which the issuer
// then redirects (the callback), and does not open it.
func (v *visitor) begin(next string) string {
	v.t.Helper()
	code, body, login := v.at(v.api + "/auth/login?next=" + url.QueryEscape(next))
	if code != 302 {
		v.t.Fatalf("the login was answered %d %s, want a redirect", code, body)
	}
	code, body, back := v.at(login)
	if code != 302 || !strings.HasPrefix(back, v.api+"/auth/callback?") {
		v.t.Fatalf("the issuer answered %d %s with a redirect to %q, want the gateway's callback", code, body, back)
	}
	return back
}

func (v *visitor) signIn() {
	v.t.Helper()
	if code, body, to := v.at(v.begin("/ui/#/nodes")); code != 303 || to != "/ui/#/nodes" {
		v.t.Fatalf("the callback was answered %d %s with a redirect to %q, want the page at which the login began", code, body, to)
	}
}

// user returns the user name that the gateway reports for the visitor's session; "" if there is no session.
func (v *visitor) user() string {
	v.t.Helper()
	code, body, _ := v.at(v.api + "/auth/session")
	var s struct {
		Login, Link bool
		User        string
	}
	if err := json.Unmarshal([]byte(body), &s); code != 200 || err != nil || !s.Login && !s.Link {
		v.t.Fatalf("GET /auth/session was answered %d %s (%v), want a session", code, body, err)
	}
	return s.User
}

func (v *visitor) reads(want int, says string) {
	v.t.Helper()
	if code, body, _ := v.at(v.api + "/nodes"); code != want || !strings.Contains(body, says) {
		v.t.Errorf("GET /nodes was answered %d %s, want %d %q", code, body, want, says)
	}
}

// cookie returns a cookie as the browser stores it, or nil if the browser has no such cookie. Go's cookie jar
// does not keep the attributes of cookies; TestLoginAtTheConsole checks them in the answers.
func (v *visitor) cookie(name string) *http.Cookie {
	v.t.Helper()
	u, err := url.Parse(v.api)
	if err != nil {
		v.t.Fatal(err)
	}
	for _, c := range v.c.Jar.Cookies(u) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// plant sets a cookie of the visitor.
func (v *visitor) plant(name, value string) {
	v.t.Helper()
	u, err := url.Parse(v.api)
	if err != nil {
		v.t.Fatal(err)
	}
	v.c.Jar.SetCookies(u, []*http.Cookie{{Name: name, Value: value, Path: "/", Secure: true}})
}

const loginCookie, sessionCookie = "__Host-persys-login", "__Host-persys-session"

func startLoginWorld(t *testing.T) (*world, *issuer) {
	t.Helper()
	return startLoginWorldOf(t, startFake)
}

func startLoginWorldOf(t *testing.T, schedulers func(*testing.T, pki.DevSet) string) (*world, *issuer) {
	t.Helper()
	i := newIssuer(t)
	w := startWorldOf(t, map[string]string{"PERSYS_GATEWAY_OIDC_ISSUER": i.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "ops=admin"}, "", schedulers)
	return w, i
}

// TestLoginAtTheConsole: a person signs in through the browser, has the same identity as with the bearer token, and
// signs out.
func TestLoginAtTheConsole(t *testing.T) {
	w, i := startLoginWorld(t)
	v := w.visitor("")
	v.reads(401, "no client certificate and no bearer token")
	if got := v.user(); got != "" {
		t.Errorf("before the login the gateway shows the user %q, want none", got)
	}
	_, _, h := w.do(v.c, "GET", w.api+"/auth/login", "")
	if c := h.Get("Set-Cookie"); !strings.HasPrefix(c, loginCookie+"=") || !strings.HasSuffix(c, "; Path=/; Max-Age=600; HttpOnly; Secure; SameSite=Lax") {
		t.Errorf("the login cookie has wrong attributes: %s", c)
	}
	_, _, h = w.do(v.c, "GET", v.begin("/ui/"), "")
	if c := h.Values("Set-Cookie"); len(c) != 2 || !strings.HasPrefix(c[0], loginCookie+"=; Path=/; Max-Age=0;") ||
		!strings.HasPrefix(c[1], sessionCookie+"=ey") || !strings.Contains(c[1], "; Path=/; Max-Age=3") || !strings.HasSuffix(c[1], "; HttpOnly; Secure; SameSite=Strict") {
		t.Errorf("the callback sets the cookies %q; want the login cookie deleted and a session cookie set", c)
	}
	if got := v.user(); got != "ada.l" {
		t.Errorf("the user of the session is %q, want ada.l", got)
	}
	v.reads(200, "oidc:"+i.url+"#ada")
	// The browser has both the certificate of olga and the session of another user. The gateway must treat it as the
	// user of the session.
	both := w.visitor("user/olga")
	both.reads(200, "/user/olga")
	both.signIn()
	both.reads(200, "oidc:"+i.url+"#ada")

	own := []string{"Origin", w.api, "Sec-Fetch-Site", "same-origin"}
	mode := func(headers ...string) (int, string) {
		code, body, _ := w.do(v.c, "POST", w.api+"/v1/mode", `{"mode":"normal","reason":"x"}`, headers...)
		return code, body
	}
	if code, body := mode(own...); code != 200 {
		t.Errorf("a change requested by the console's own page was answered %d %s, want 200", code, body)
	}
	for _, other := range [][]string{
		{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"},
		{"Origin", "https://evil.example"},
		{"Origin", "https://127.0.0.1:1", "Sec-Fetch-Site", "same-site"}, // a page of another program on the gateway's host
	} {
		if code, body := mode(other...); code != 403 || !strings.Contains(body, "asked for a change") {
			t.Errorf("a change requested by a page of %s was answered %d %s, want 403", other[1], code, body)
		}
		if code, body, _ := w.do(v.c, "POST", w.api+"/auth/logout", "", other...); code != 403 {
			t.Errorf("a logout requested by a page of %s was answered %d %s, want 403", other[1], code, body)
		}
		if code, body, _ := w.do(v.c, "GET", w.api+"/v1/workloads/web/exec", "", append([]string{"Connection", "Upgrade", "Upgrade", "websocket"}, other[:2]...)...); code != 403 {
			t.Errorf("exec requested by a page of %s was answered %d %s, want 403", other[1], code, body)
		}
	}
	v.reads(200, "#ada")
	if code, body, _ := w.do(v.c, "GET", w.api+"/auth/logout", ""); code != 501 {
		t.Errorf("a logout by GET was answered %d %s, want 501", code, body)
	}
	if code, body, _ := w.do(v.c, "POST", w.api+"/auth/logout", "", own...); code != 204 || v.cookie(sessionCookie) != nil {
		t.Errorf("the logout was answered %d %s, want 204 and no session cookie", code, body)
	}
	v.reads(401, "no client certificate and no bearer token")
}

// TestLoginsThatFail: every invalid login, for example with a wrong state or an expired code, is refused and gives no
// session.
func TestLoginsThatFail(t *testing.T) {
	w, i := startLoginWorld(t)
	edit := func(v *visitor, field, value string) {
		data, err := base64.RawURLEncoding.DecodeString(v.cookie(loginCookie).Value)
		var m map[string]string
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		m[field] = value
		data, err = json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		v.plant(loginCookie, base64.RawURLEncoding.EncodeToString(data))
	}
	claim := func(name string, value any) func(map[string]any) {
		return func(m map[string]any) { m[name] = value }
	}
	for _, x := range []struct {
		fact   string
		claims func(map[string]any)
		back   func(v *visitor, back string) string // address of the callback that is opened
		want   int
		says   string
	}{
		{"a wrong state", nil, func(_ *visitor, back string) string { return strings.Replace(back, "state=", "state=x", 1) }, 400, "the parameter state of the callback"},
		{"no state", nil, func(v *visitor, back string) string {
			code := strings.TrimPrefix(back, v.api+"/auth/callback?code=")
			code, _, _ = strings.Cut(code, "&")
			return v.api + "/auth/callback?code=" + code
		}, 400, "the parameter state of the callback"},
		{"the callback of another browser", nil, func(*visitor, string) string { return w.visitor("").begin("/ui/") }, 400, "the parameter state of the callback"},
		{"a callback without a login", nil, func(v *visitor, back string) string { v.plant(loginCookie, ""); return back }, 400, "login cookie is not valid"},
		{"a login cookie that is no JSON", nil, func(v *visitor, back string) string { v.plant(loginCookie, "e30x"); return back }, 400, "login cookie is not valid"},
		{"a wrong verifier", nil, func(v *visitor, back string) string {
			edit(v, "verifier", strings.Repeat("x", 43))
			return back
		}, 403, "refused the code: status 400 &#34;invalid_grant&#34;"},
		{"a page of another site in the login cookie", nil, func(v *visitor, back string) string { edit(v, "next", "https://evil.example"); return back }, 400, "login cookie is not valid"},
		{"a wrong code", nil, func(_ *visitor, back string) string { return strings.Replace(back, "code=", "code=x", 1) }, 403, "refused the code"},
		{"the error of an issuer, with a tag", nil, func(v *visitor, back string) string {
			u, _ := url.Parse(back)
			return v.api + "/auth/callback?error=access_denied&error_description=" + url.QueryEscape("<script>no</script>") + "&state=" + u.Query().Get("state")
		}, 403, "access_denied &lt;script&gt;no"},
		{"an ID token of another login", claim("nonce", "x"), nil, 403, "its nonce differs"},
		{"an ID token for another audience", claim("aud", "x"), nil, 403, "audience"},
		{"an ID token of another issuer", claim("iss", "https://else.example"), nil, 403, "different provider"},
		{"an expired ID token", claim("exp", time.Now().Add(-time.Minute).Unix()), nil, 403, "expired"},
		{"an ID token that no cookie can hold", claim("groups", strings.Repeat("g", 4096)), nil, 403, "browsers store 4096"},
	} {
		t.Run(x.fact, func(t *testing.T) {
			i.set(x.claims)
			defer i.set(nil)
			v := w.visitor("")
			back := v.begin("/ui/")
			if x.back != nil {
				back = x.back(v, back)
			}
			code, body, to := v.at(back)
			if code != x.want || !strings.Contains(body, x.says) || to != "" {
				t.Errorf("the callback was answered %d %s with a redirect to %q; want %d %q and no redirect", code, body, to, x.want, x.says)
			}
			if v.cookie(sessionCookie) != nil || v.cookie(loginCookie) != nil {
				t.Error("after the failed login a cookie is left")
			}
			v.reads(401, "")
		})
	}
	t.Run("a replayed code", func(t *testing.T) {
		v := w.visitor("")
		back := v.begin("/ui/")
		login := v.cookie(loginCookie).Value
		if code, body, _ := v.at(back); code != 303 {
			t.Fatalf("%d %s", code, body)
		}
		for _, x := range []struct {
			fact, cookie string
			want         int
		}{{"without the login cookie", "", 400}, {"with the login cookie", login, 403}} {
			again := w.visitor("")
			if x.cookie != "" {
				again.plant(loginCookie, x.cookie)
			}
			if code, body, _ := again.at(back); code != x.want || again.cookie(sessionCookie) != nil {
				t.Errorf("%s: the replayed code was answered %d %s", x.fact, code, body)
			}
		}
	})
}

// TestLoginReturnsToTheConsoleOnly: the parameter next of the login cannot redirect to a page of another site.
func TestLoginReturnsToTheConsoleOnly(t *testing.T) {
	w, _ := startLoginWorld(t)
	v := w.visitor("")
	for _, next := range []string{
		"https://evil.example/", "//evil.example/", `/\evil.example/`, `\\evil.example`, "/ui/../..//evil.example", "/ui//evil.example", "javascript:alert(1)",
		"/ui/\r\nSet-Cookie: a=b", "/ui/#\r\nX: y", "/ui", "ui/", "/auth/logout", "/ui/?x", " /ui/", "/ui/#" + strings.Repeat("x", 4096),
	} {
		if code, body, to := v.at(v.api + "/auth/login?next=" + url.QueryEscape(next)); code != 400 || to != "" {
			t.Errorf("the login with next=%.60q was answered %d %s with a redirect to %q, want 400", next, code, body, to)
		}
	}
	for next, want := range map[string]string{"": "/ui/", "/ui/": "/ui/", "/ui/#/workloads/web?tab=logs": "/ui/#/workloads/web?tab=logs"} {
		if code, body, to := v.at(v.begin(next)); code != 303 || to != want {
			t.Errorf("the login with next=%q was answered %d %s with a redirect to %q", next, code, body, to)
		}
	}
}

// TestSessionsEnd: when the ID token in the session cookie expires, the session must end. A cookie whose value is not
// a token of the issuer must give no session.
func TestSessionsEnd(t *testing.T) {
	w, i := startLoginWorld(t)
	other := newIssuer(t)
	for _, x := range []struct{ fact, token, says string }{
		{"an expired session", i.token(t, nil, jose.RS256, func(m map[string]any) { m["exp"] = time.Now().Add(-time.Minute).Unix() }), "sign in again"},
		{"a token of another issuer", other.token(t, nil, jose.RS256, nil), "sign in again"},
		{"the token of an account", "persys~bot~secret", "sign in again"},
		{"a cookie that is not a token", "x", "sign in again"},
	} {
		v := w.visitor("user/olga")
		v.plant(sessionCookie, x.token)
		v.reads(401, x.says)
		// The console requests /auth/session, which deletes the invalid cookie. After that, the caller is the user of
		// the certificate.
		if got := v.user(); got != "" || v.cookie(sessionCookie) != nil {
			t.Errorf("%s: the user is %q and the cookie %v, want neither", x.fact, got, v.cookie(sessionCookie))
		}
		v.reads(200, "/user/olga")
	}
	// A gateway without a configured OIDC issuer must ignore an ID token in the session cookie.
	v := startWorld(t, nil, "").visitor("user/olga")
	v.plant(sessionCookie, "x")
	v.reads(200, "/user/olga")
	if code, body, _ := v.at(v.api + "/auth/session"); code != 200 || body != "{\"login\":false,\"link\":true}\n" {
		t.Errorf("without an issuer, GET /auth/session was answered %d %s, want a login by link only", code, body)
	}
}

// TestASessionOutlivesAnOutageOfTheIssuer: the gateway cannot fetch the keys with which the OIDC issuer signs tokens.
// Meanwhile it must refuse tokens with status 503 and must not delete the console's session cookie, because the token
// in it may be valid.
func TestASessionOutlivesAnOutageOfTheIssuer(t *testing.T) {
	w, i := startLoginWorld(t)
	i.lost.Store(true)
	token := i.token(t, nil, jose.RS256, nil)
	if code, body, h := w.do(w.as(""), "GET", w.api+"/nodes", "", "Authorization", "Bearer "+token); code != 503 || h.Get("Retry-After") == "" {
		t.Errorf("while the issuer's keys cannot be fetched, a call with a token was answered %d %s, want 503", code, body)
	}
	v := w.visitor("user/olga")
	v.plant(sessionCookie, token)
	v.reads(503, "issuer has not answered")
	if code, body, _ := v.at(v.api + "/auth/session"); code != 503 || v.cookie(sessionCookie) == nil {
		t.Errorf("/auth/session was answered %d %s with cookie %v; want 503 and that the cookie stays", code, body, v.cookie(sessionCookie))
	}
	i.lost.Store(false)
	if got := v.user(); got != "ada" {
		t.Errorf("user %q after the outage, want ada", got)
	}
}
