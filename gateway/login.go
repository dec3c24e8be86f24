package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// People sign in to the console in one of two ways:
//   - With a one-time link (persysctl console). The session cookie holds the token of a session that is in the log.
//   - At the issuer of the bearer tokens, by the authorization code flow with PKCE (RFC 7636). The login cookie holds the
//     state and the verifier, and the session cookie holds the verified ID token.
//
// The gateway itself stores nothing, so any of several gateways may serve the callback and the session.

const (
	// Browsers accept a cookie with the prefix __Host- only over TLS and from this host itself, so another host of the
	// domain and plain HTTP cannot set such a cookie.
	loginCookie   = "__Host-persys-login"
	sessionCookie = "__Host-persys-session"
	// loginLife is the time that a person has to sign in at the issuer.
	loginLife = 10 * time.Minute
	// maxCookie is the largest size of a cookie, in bytes of name and value, that every browser stores.
	maxCookie = 4096
	// consolePage is the only page to which a login returns.
	consolePage = "/ui/"
)

// pendingLogin is the content of the login cookie.
type pendingLogin struct {
	State    string `json:"state"`    // the callback must have this state: it shows that this browser began the login
	Verifier string `json:"verifier"` // PKCE code verifier
	Nonce    string `json:"nonce"`    // the ID token must have this nonce
	Next     string `json:"next"`     // page of the console to return to
}

// canLogin reports whether people can sign in at an issuer. Under -insecure every caller is an admin.
func (g *Gateway) canLogin() bool { return g.opt.Tokens != nil && g.opt.TLS != nil }

// loginRoutes adds the routes of the login.
func (g *Gateway) loginRoutes(mux *http.ServeMux) {
	add := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer") // keeps the authorization code, which is in the callback's address, from other sites
			h(w, r)
		})
	}
	add("GET /auth/session", g.currentSession)
	if g.opt.TLS != nil {
		add("POST /auth/link", g.link)
		add("POST /auth/logout", g.logout)
	}
	if g.canLogin() {
		add("GET /auth/login", g.login)
		add("GET /auth/callback", g.callback)
	}
}

// login sends the browser to the issuer.
func (g *Gateway) login(w http.ResponseWriter, r *http.Request) {
	p := pendingLogin{State: rand.Text(), Verifier: oauth2.GenerateVerifier(), Nonce: rand.Text(), Next: cmp.Or(r.URL.Query().Get("next"), consolePage)}
	if !consoleAddress(p.Next) {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("next %.100q must be a page of the console: %s or %s#PAGE", p.Next, consolePage, consolePage))
		return
	}
	config, err := g.opt.Tokens.oauth(r)
	if err != nil {
		unknown(w, err)
		return
	}
	data, err := json.Marshal(p)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	value := base64.RawURLEncoding.EncodeToString(data)
	if len(loginCookie)+len(value) > maxCookie {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("next has %d bytes, which is too long for a cookie", len(p.Next)))
		return
	}
	// The mode is Lax, because the issuer, which is another site, redirects the browser to the callback, and browsers
	// send no Strict cookie with such a request.
	setCookie(w, loginCookie, value, http.SameSiteLaxMode, loginLife)
	http.Redirect(w, r, config.AuthCodeURL(p.State, oauth2.S256ChallengeOption(p.Verifier), oidc.Nonce(p.Nonce)), http.StatusFound)
}

// callback exchanges the issuer's code for an ID token and stores the token in the session cookie.
func (g *Gateway) callback(w http.ResponseWriter, r *http.Request) {
	setCookie(w, loginCookie, "", http.SameSiteLaxMode, -1) // a login has one attempt
	p, err := pendingOf(r)
	if err != nil {
		loginFailed(w, http.StatusBadRequest, err.Error())
		return
	}
	q := r.URL.Query()
	if fault := q.Get("error"); fault != "" {
		loginFailed(w, http.StatusForbidden, fmt.Sprintf("the issuer refused the login: %.100s %.300s", fault, q.Get("error_description")))
		return
	}
	token, expiry, err := g.opt.Tokens.exchange(r, q.Get("code"), p)
	switch {
	case errors.Is(err, errNoIssuer):
		loginFailed(w, http.StatusServiceUnavailable, err.Error())
		return
	case err != nil:
		g.opt.Log.Info("a login at the console failed", "err", err)
		loginFailed(w, http.StatusForbidden, err.Error())
		return
	}
	if n := len(sessionCookie) + len(token); n > maxCookie {
		loginFailed(w, http.StatusForbidden, fmt.Sprintf("the ID token needs a cookie of %d bytes, and browsers store %d; let the issuer put fewer groups and claims into it", n, maxCookie))
		return
	}
	setCookie(w, sessionCookie, token, http.SameSiteStrictMode, time.Until(expiry))
	w.Header().Set("Location", p.Next)
	w.WriteHeader(http.StatusSeeOther)
}

// pendingOf returns, from the login cookie of the browser, the login to which a callback of the issuer belongs.
func pendingOf(r *http.Request) (p pendingLogin, err error) {
	c, err := r.Cookie(loginCookie)
	if err != nil {
		return p, errors.New("this browser has not begun a login, or began it more than 10 minutes ago")
	}
	data, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || json.Unmarshal(data, &p) != nil || p.State == "" || p.Verifier == "" || p.Nonce == "" || !consoleAddress(p.Next) {
		return p, errors.New("the login cookie is not valid")
	}
	if subtle.ConstantTimeCompare([]byte(p.State), []byte(r.URL.Query().Get("state"))) == 0 {
		return p, errors.New("the parameter state of the callback belongs to another login than the last one that this browser began")
	}
	return p, nil
}

// link exchanges the one-time code of a link to the console for a session. The code is behind the # of the link's
// address, so browsers do not send it; the script of the console's page sends it to this route. So a program that only
// opens the link, for instance for a preview, does not use up the code.
func (g *Gateway) link(w http.ResponseWriter, r *http.Request) {
	data, ok := readBody(w, r)
	if !ok {
		return
	}
	in := &clusterv1.OpenConsoleRequest{}
	if err := decode(data, in, false); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = "" // RemoteAddr has another form only in tests
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.CallTimeout)
	defer cancel()
	var why error
	for _, b := range g.backends { // the code does not say which cluster it is for
		got, err := clusterv1.NewClusterClient(b.lead).OpenConsole(ctx, &clusterv1.OpenConsoleRequest{Code: in.GetCode(), From: from})
		if err == nil {
			setCookie(w, sessionCookie, got.GetToken(), http.SameSiteStrictMode, time.Until(got.GetSession().GetExpiresAt().AsTime()))
			writeJSON(w, http.StatusOK, map[string]string{"user": got.GetSession().GetUser(), "cluster": b.ID})
			return
		}
		if why == nil || status.Code(why) == codes.PermissionDenied || status.Code(why) == codes.Unimplemented {
			why = err
		}
	}
	fail(w, why)
}

// logout ends the session and deletes its cookie.
func (g *Gateway) logout(w http.ResponseWriter, r *http.Request) {
	token := g.sessionToken(r)
	if id, ok := dial.ConsoleOfToken(token); ok {
		ctx, cancel := context.WithTimeout(r.Context(), g.opt.CallTimeout)
		defer cancel()
		_, b, err := g.userOfConsole(ctx, token)
		if err == nil {
			_, err = clusterv1.NewClusterClient(b.lead).EndConsole(caller{console: token}.tell(ctx), &clusterv1.EndConsoleRequest{Id: id})
		}
		if c := status.Code(err); err != nil && c != codes.NotFound && c != codes.Unauthenticated {
			fail(w, err) // the cookie stays, so that the person can try again to end the session
			return
		}
	}
	setCookie(w, sessionCookie, "", http.SameSiteStrictMode, -1)
	w.WriteHeader(http.StatusNoContent)
}

// userOfConsole returns the user of a session of the console, and the session's cluster. If no cluster has the session,
// the error has the code Unauthenticated.
func (g *Gateway) userOfConsole(ctx context.Context, token string) (string, *backend, error) {
	missing := status.Error(codes.Unauthenticated, "the session of the console has ended: `persysctl console` makes a new one")
	for _, b := range g.backends {
		got, err := clusterv1.NewClusterClient(b.lead).GetAccess(caller{console: token}.tell(ctx), &clusterv1.GetAccessRequest{})
		if user := userOf(got.GetIdentity()); err == nil && user != "" {
			return user, b, nil
		}
		if c := status.Code(err); err != nil && c != codes.Unauthenticated && c != codes.Unimplemented {
			missing = err
		}
	}
	return "", nil, missing
}

// userOf returns the name of a user with a certificate, given the identity in an answer of a scheduler; "" for every
// other identity.
func userOf(identity string) string {
	id, err := pki.ParseIdentity(identity)
	if err != nil || id.Role != pki.RoleUser {
		return ""
	}
	return id.ID
}

// currentSession tells the console how people can sign in here, and who is signed in by the session cookie. The route is
// public: without a valid cookie the answer has no user.
func (g *Gateway) currentSession(w http.ResponseWriter, r *http.Request) {
	out := struct {
		Login bool   `json:"login"` // people can sign in at an issuer
		Link  bool   `json:"link"`  // people can sign in with a link of persysctl console
		User  string `json:"user,omitempty"`
	}{Login: g.canLogin(), Link: g.opt.TLS != nil}
	if token := g.sessionToken(r); token != "" {
		ctx, cancel := context.WithTimeout(r.Context(), issuerTimeout)
		defer cancel()
		var err error
		if dial.IsConsoleToken(token) {
			out.User, _, err = g.userOfConsole(ctx, token)
			if err != nil && status.Code(err) != codes.Unauthenticated { // the session may be valid, so the cookie stays
				fail(w, err)
				return
			}
		} else {
			var claims map[string]any
			_, claims, err = g.opt.Tokens.verify(ctx, token)
			if errors.Is(err, errNoIssuer) { // the issuer is unreachable: the token may be valid, so the cookie stays
				unknown(w, err)
				return
			}
			if err == nil {
				out.User = personOf(claims)
			}
		}
		if err != nil {
			setCookie(w, sessionCookie, "", http.SameSiteStrictMode, -1) // an invalid session would take precedence over a client certificate
		}
	}
	writeJSON(w, http.StatusOK, out)
}

// sessionToken returns the token in the session cookie: the token of a session of the console, or an ID token; "" if
// there is none. If no issuer is configured, an ID token in the cookie is ignored.
func (g *Gateway) sessionToken(r *http.Request) string {
	if g.opt.TLS == nil {
		return ""
	}
	c, err := r.Cookie(sessionCookie)
	if err != nil || !g.canLogin() && !dial.IsConsoleToken(c.Value) {
		return ""
	}
	return c.Value
}

// personOf returns the name of a token's user for people to read.
func personOf(claims map[string]any) string {
	for _, name := range []string{"preferred_username", "email", "name", "sub"} {
		if s, ok := claims[name].(string); ok && s != "" {
			return s
		}
	}
	return ""
}

// setCookie sets a cookie that scripts cannot read; a negative life deletes it.
func setCookie(w http.ResponseWriter, name, value string, site http.SameSite, life time.Duration) {
	age := max(1, int(life/time.Second))
	if life < 0 {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: site})
}

// consoleAddress reports whether next, the address to return to after a login, is a page of the console on this
// gateway and not of another site.
func consoleAddress(next string) bool {
	page, _, _ := strings.Cut(next, "#")
	return page == consolePage && !strings.ContainsFunc(next, func(c rune) bool { return c <= ' ' || c > '~' || c == '\\' })
}

// loginFailed answers a browser with a page that says why the login failed.
func loginFailed(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>Sign-in failed</title>
<h1>Sign-in failed</h1><p>%s.</p><p><a href="%s">Back to the console</a></p></html>
`, html.EscapeString(why), consolePage)
}

// oauth returns the configuration of the gateway as an OAuth client. The address of the callback contains the host
// name that the browser used for this request.
func (t *Tokens) oauth(r *http.Request) (*oauth2.Config, error) {
	p := t.provider.Load()
	if p == nil {
		return nil, errNoIssuer
	}
	back := url.URL{Scheme: "https", Host: r.Host, Path: "/auth/callback"}
	return &oauth2.Config{ClientID: t.opt.Audience, Endpoint: p.endpoint, Scopes: p.scopes, RedirectURL: back.String()}, nil
}

// exchange returns the verified ID token for an authorization code, and the time at which the token ends.
// Its errors contain no part of the code or of the token.
func (t *Tokens) exchange(r *http.Request, code string, p pendingLogin) (string, time.Time, error) {
	config, err := t.oauth(r)
	if err != nil {
		return "", time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), issuerTimeout)
	defer cancel()
	ctx = oidc.ClientContext(ctx, t.opt.Client)
	answer, err := config.Exchange(ctx, code, oauth2.VerifierOption(p.Verifier))
	var refusal *oauth2.RetrieveError
	switch {
	case errors.As(err, &refusal): // the text of a RetrieveError contains the whole body
		return "", time.Time{}, fmt.Errorf("the issuer refused the code: status %d %.100q", refusal.Response.StatusCode, refusal.ErrorCode)
	case err != nil:
		return "", time.Time{}, fmt.Errorf("the issuer did not exchange the code: %w", err)
	}
	token, _ := answer.Extra("id_token").(string)
	if token == "" {
		return "", time.Time{}, errors.New("the issuer gave no ID token")
	}
	id, _, err := t.verify(ctx, token)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("the issuer's ID token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(p.Nonce)) == 0 {
		return "", time.Time{}, errors.New("the issuer's ID token belongs to another login: its nonce differs")
	}
	return token, id.Expiry, nil
}
