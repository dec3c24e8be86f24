package persysctl

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// loginWorld is a test fixture: an OIDC provider with a device flow, and a gateway that accepts the tokens of this
// provider.
type loginWorld struct {
	gateway, issuer *httptest.Server
	life            atomic.Int64 // life of the ID tokens in seconds
	polls           atomic.Int32
	denied          atomic.Bool
	renewed         atomic.Int32
	reused          atomic.Int32  // renewals with a refresh token that was used before
	tokens          atomic.Int32  // number of the refresh token that is valid; each can be used once
	seen            atomic.Value  // the last bearer token
	together        chan struct{} // if set, a renewal waits a short time for a second one
}

func newLoginWorld(t *testing.T) *loginWorld {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	w := &loginWorld{}
	w.life.Store(3600)
	answer := func(rw http.ResponseWriter, code int, v any) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(code)
		_ = json.NewEncoder(rw).Encode(v)
	}
	issuer := http.NewServeMux()
	issuer.HandleFunc("/.well-known/openid-configuration", func(rw http.ResponseWriter, _ *http.Request) {
		at := w.issuer.URL
		answer(rw, 200, map[string]any{
			"issuer": at, "jwks_uri": at + "/keys", "authorization_endpoint": at + "/a", "token_endpoint": at + "/token", "device_authorization_endpoint": at + "/device",
			"scopes_supported": []string{"openid", "offline_access"}, "id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	issuer.HandleFunc("/keys", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, 200, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k1", Algorithm: "RS256", Use: "sig"}}})
	})
	issuer.HandleFunc("/device", func(rw http.ResponseWriter, r *http.Request) {
		if r.FormValue("client_id") != "persys" || r.FormValue("scope") != "openid offline_access" {
			answer(rw, 400, map[string]any{"error": "invalid_client"})
			return
		}
		answer(rw, 200, map[string]any{"device_code": "dc", "user_code": "WDJB-MJHT", "verification_uri": "https://id.example/device", "expires_in": 60, "interval": 1})
	})
	issuer.HandleFunc("/token", func(rw http.ResponseWriter, r *http.Request) {
		refresh := r.FormValue("grant_type") == "refresh_token"
		if refresh && w.together != nil {
			select { // gives other processes time to send the same refresh token
			case w.together <- struct{}{}:
			case <-w.together:
			case <-time.After(300 * time.Millisecond):
			}
		}
		switch {
		case w.denied.Load():
			answer(rw, 400, map[string]any{"error": "access_denied"})
			return
		case refresh && !w.useRefreshToken(r.FormValue("refresh_token")):
			w.reused.Add(1)
			answer(rw, 400, map[string]any{"error": "invalid_grant"})
			return
		case !refresh && w.polls.Add(1) == 1:
			answer(rw, 400, map[string]any{"error": "authorization_pending"})
			return
		case refresh:
			w.renewed.Add(1)
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
		if err != nil {
			t.Error(err)
			return
		}
		now := time.Now()
		id, err := jwt.Signed(signer).Claims(map[string]any{"iss": w.issuer.URL, "aud": "persys", "sub": "ada", "iat": now.Unix(), "exp": now.Unix() + w.life.Load()}).Serialize()
		if err != nil {
			t.Error(err)
			return
		}
		answer(rw, 200, map[string]any{"access_token": "a", "token_type": "Bearer", "expires_in": 60, "refresh_token": fmt.Sprintf("refresh-%d", w.tokens.Load()), "id_token": id})
	})
	w.issuer = httptest.NewServer(issuer)
	gateway := http.NewServeMux()
	gateway.HandleFunc("GET /auth/oidc", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, 200, map[string]any{"issuer": w.issuer.URL, "client_id": "persys"})
	})
	gateway.HandleFunc("GET /v1/access", func(rw http.ResponseWriter, r *http.Request) {
		w.seen.Store(r.Header.Get("Authorization"))
		answer(rw, 200, map[string]any{"identity": "oidc:https://id.example#ada"})
	})
	w.gateway = httptest.NewServer(gateway)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		w.gateway.Close()
		w.issuer.Close()
	})
	return w
}

func (w *loginWorld) useRefreshToken(token string) bool {
	n := w.tokens.Load()
	return token == fmt.Sprintf("refresh-%d", n) && w.tokens.CompareAndSwap(n, n+1)
}

// TestLoginIsRenewedOnce: several commands run at the same time when a login must be renewed. Only one of them may
// renew it, because the OIDC provider accepts a refresh token once and would end the login at the second use.
func TestLoginIsRenewedOnce(t *testing.T) {
	w := newLoginWorld(t)
	home := t.TempDir()
	start := func(args ...string) (*session, int) {
		s := newSession(t)
		s.home = home
		return s, s.run(nil, append([]string{"--server", w.gateway.URL}, args...)...)
	}
	w.life.Store(10)
	if s, code := start("login"); code != 0 {
		t.Fatalf("the login ended with exit code %d: %s", code, s.stderr.String())
	}
	w.life.Store(3600)
	w.together = make(chan struct{})
	var commands sync.WaitGroup
	for range 8 {
		commands.Go(func() {
			if s, code := start("auth", "whoami"); code != 0 {
				t.Errorf("auth whoami ended with exit code %d: %s", code, s.stderr.String())
			}
		})
	}
	commands.Wait()
	if n, again := w.renewed.Load(), w.reused.Load(); n != 1 || again != 0 {
		t.Errorf("there were %d renewals, and %d attempts with a used refresh token; want 1 and 0", n, again)
	}
}

// TestLogin: later calls use the bearer token of a login by the device flow. Only the user can read the stored token;
// it is renewed before it expires, and deleted by a logout.
func TestLogin(t *testing.T) {
	w := newLoginWorld(t)
	home := t.TempDir()
	run := func(want int, args ...string) string {
		t.Helper()
		s := newSession(t)
		s.home = home
		if got := s.run(nil, append([]string{"--server", w.gateway.URL}, args...)...); got != want {
			t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, want, s.stdout.String(), s.stderr.String())
		}
		return s.stdout.String() + s.stderr.String()
	}
	if out := run(0, "login"); !strings.Contains(out, "https://id.example/device") || !strings.Contains(out, "WDJB-MJHT") || !strings.Contains(out, "logged in") {
		t.Errorf("login prints %s", out)
	}
	files, err := filepath.Glob(filepath.Join(home, ".config", "persys", "logins", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files of the login are %v, error %v", files, err)
	}
	if st, err := os.Stat(files[0]); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file of the login has the mode %v, error %v", st.Mode(), err)
	}
	run(0, "auth", "whoami")
	first, _ := w.seen.Load().(string)
	if !strings.HasPrefix(first, "Bearer ey") || w.renewed.Load() != 0 {
		t.Errorf("the first call after the login sent the token %q after %d renewals, want an ID token and no renewal", first, w.renewed.Load())
	}
	// A token that is about to end is renewed.
	w.life.Store(10)
	run(0, "login")
	w.life.Store(3600)
	run(0, "auth", "whoami")
	run(0, "auth", "whoami")
	if second := w.seen.Load(); second == first || w.renewed.Load() != 1 {
		t.Errorf("with a token that is about to end: the same token was sent again: %t; %d renewals, want 1", second == first, w.renewed.Load())
	}
	run(0, "--tls-cert", "me.pem", "--tls-key", "me-key.pem", "auth", "whoami")
	if token := w.seen.Load(); token != "" {
		t.Errorf("a call with --tls-cert sent the token of the login, %s", token)
	}
	if out := run(0, "logout"); !strings.Contains(out, "logged out") {
		t.Errorf("logout prints %s", out)
	}
	if left, _ := filepath.Glob(filepath.Join(home, ".config", "persys", "logins", "*")); len(left) != 0 {
		t.Errorf("after the logout these files are left: %v", left)
	}
	w.denied.Store(true)
	if out := run(exitFailed, "login"); !strings.Contains(out, "not confirmed") {
		t.Errorf("a denied login prints %s", out)
	}
	s := newSession(t)
	if got := s.run(nil, "--server", "127.0.0.1:1", "login"); got != exitUsage || !strings.Contains(s.stderr.String(), "only gateways") {
		t.Errorf("a login at a scheduler ended with exit %d and %s, want a usage error that says \"only gateways\"", got, s.stderr.String())
	}
}
