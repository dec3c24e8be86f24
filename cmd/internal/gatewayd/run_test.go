package gatewayd

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/config"
	"github.com/persys/compute/gateway"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// fakeScheduler answers read and delete calls. It accepts only callers with the certificate of a gateway.
type fakeScheduler struct {
	controlv1.UnimplementedAgentControlServer
	clusterv1.UnimplementedClusterServer
}

func (fakeScheduler) Status(context.Context, *clusterv1.StatusRequest) (*clusterv1.StatusResponse, error) {
	return &clusterv1.StatusResponse{SelfId: "s1", LeaderId: "s1", Mode: "normal"}, nil
}

// ListNodes returns one node. Its labels contain the metadata in which the gateway has sent the caller's identity, so
// that tests can check it.
func (fakeScheduler) ListNodes(ctx context.Context, _ *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	said := map[string]string{}
	for _, k := range []string{dial.KeyOnBehalf, dial.KeyIssued, dial.KeyUser, dial.KeyFrom, dial.KeyNamespaces} {
		if v := md.Get(k); len(v) > 0 {
			said[k] = strings.Join(v, ";")
		}
	}
	return &controlv1.ListNodesResponse{Nodes: []*controlv1.NodeView{{NodeId: "node-a", Labels: said}}}, nil
}

func (fakeScheduler) DeleteWorkload(context.Context, *controlv1.DeleteWorkloadRequest) (*controlv1.DeleteWorkloadResponse, error) {
	return &controlv1.DeleteWorkloadResponse{Success: true}, nil
}

// SetMode refuses callers who are not admins, as a real scheduler does. The caller is the user that the gateway names
// in the call.
func (fakeScheduler) SetMode(ctx context.Context, _ *clusterv1.SetModeRequest) (*clusterv1.SetModeResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, identity := range md.Get(dial.KeyOnBehalf) {
		if user, _, _ := strings.Cut(identity, "?"); !strings.HasSuffix(user, "/user/admin") {
			return nil, status.Errorf(codes.PermissionDenied, "user %s is no admin", user)
		}
	}
	return &clusterv1.SetModeResponse{Mode: "normal"}, nil
}

// world is a test fixture: a gateway and a scheduler, both with certificates.
type world struct {
	scheduler string // address of the scheduler
	t         *testing.T
	api       string
	public    string
	certs     pki.DevSet
	roots     *x509.CertPool
	forward   *hooks
}

func startWorld(t *testing.T, set map[string]string, yaml string) *world {
	t.Helper()
	return startWorldOf(t, set, yaml, startFake)
}

// startFake starts a fakeScheduler that lets a gateway make every call.
func startFake(t *testing.T, certs pki.DevSet) (addr string) {
	t.Helper()
	return startFakeAt(t, certs, "127.0.0.1")
}

func startFakeAt(t *testing.T, certs pki.DevSet, host string) (addr string) {
	t.Helper()
	leaf := certs.Leaf["scheduler/s1"]
	files, err := pki.LoadFiles(pki.FilesConfig{CA: leaf.CA, Cert: leaf.Cert, Key: leaf.Key})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(files.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}, Roles: []pki.Role{pki.RoleGateway}}))))
	controlv1.RegisterAgentControlServer(srv, fakeScheduler{})
	clusterv1.RegisterClusterServer(srv, fakeScheduler{})
	served := make(chan struct{})
	go func() { _ = srv.Serve(l); close(served) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	return l.Addr().String()
}

// startWorldOf is like startWorld, with the schedulers that the function schedulers starts.
func startWorldOf(t *testing.T, set map[string]string, yaml string, schedulers func(*testing.T, pki.DevSet) string) *world {
	t.Helper()
	certs, err := pki.DevCerts(t.TempDir(), pki.DevOptions{
		Schedulers: []string{"s1"}, Gateways: []string{"gateway"}, Users: []string{"admin", "olga", "boss", "carl", "vera"}, Agents: []string{"node-a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, certs: certs, roots: x509.NewCertPool(), forward: newHooks(t)}
	ca, err := os.ReadFile(certs.Leaf["user/admin"].CA)
	if err != nil {
		t.Fatal(err)
	}
	w.roots.AppendCertsFromPEM(ca)
	addr := schedulers(t, certs)
	w.scheduler = addr

	own := certs.Leaf["gateway/gateway"]
	env := map[string]string{
		"PERSYS_GATEWAY_HTTP_ADDR": "127.0.0.1:0", "PERSYS_GATEWAY_PUBLIC_ADDR": "127.0.0.1:0", "PERSYS_SCHEDULER_ADDR": addr,
		"PERSYS_TLS_CERT": own.Cert, "PERSYS_TLS_KEY": own.Key, "PERSYS_TLS_CA": own.CA, "PERSYS_GATEWAY_CLUSTER_CONFIG": "/nowhere.yaml",
		"PERSYS_GATEWAY_WEBHOOK_FORWARD_URL": w.forward.url, "PERSYS_GATEWAY_STATE_DIR": t.TempDir(),
	}
	for k, v := range set {
		env[k] = v
	}
	var cfg Config
	loader, err := config.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	from := config.Sources{Environ: func(k string) (string, bool) { v, ok := env[k]; return v, ok }, YAML: []byte(yaml), YAMLName: "config.yaml"}
	if err := loader.Load(from); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
	})
	w.api, w.public = "https://"+s.Addr(), "https://"+s.PublicAddr()
	if set["PERSYS_GATEWAY_PUBLIC_TLS"] == "false" {
		w.public = "http://" + s.PublicAddr()
	}
	return w
}

// as returns an HTTP client with the certificate of who, or without a certificate if who is "".
func (w *world) as(who string) *http.Client {
	w.t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: w.roots}
	if who != "" {
		leaf := w.certs.Leaf[who]
		pair, err := tls.LoadX509KeyPair(leaf.Cert, leaf.Key)
		if err != nil {
			w.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func (w *world) do(c *http.Client, method, url, body string, headers ...string) (int, string, http.Header) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

// issuer is an OpenID Connect provider with real signatures.
type issuer struct {
	grants
	url  string
	key  *rsa.PrivateKey
	away atomic.Bool
	lost atomic.Bool // while lost is true, the signing keys cannot be fetched
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.open, i.sign = map[string]url.Values{}, func(change func(map[string]any)) string { return i.token(t, nil, jose.RS256, change) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /a", i.authorize)
	mux.HandleFunc("POST /t", i.exchange)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if i.away.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "authorization_endpoint": i.url + "/a", "token_endpoint": i.url + "/t",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		if i.lost.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k1", Algorithm: "RS256", Use: "sig"}}})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	i.url = s.URL
	return i
}

// token signs claims with key, or with the issuer's own key if key is nil.
func (i *issuer) token(t *testing.T, key any, alg jose.SignatureAlgorithm, change func(map[string]any)) string {
	t.Helper()
	if key == nil {
		key = i.key
	}
	claims := map[string]any{"iss": i.url, "aud": "persys", "sub": "ada", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "groups": []string{"ops"}}
	if change != nil {
		change(claims)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAnUnreachableIssuerRefusesOnlyTokens: while the token issuer does not answer, only callers with tokens are
// refused. The gateway must start without the issuer, because the issuer may be a workload that is deployed through
// this gateway.
func TestAnUnreachableIssuerRefusesOnlyTokens(t *testing.T) {
	i := newIssuer(t)
	i.away.Store(true)
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_OIDC_ISSUER": i.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "ops=admin"}, "")
	token := []string{"Authorization", "Bearer " + i.token(t, nil, jose.RS256, nil)}
	if code, body, h := w.do(w.as(""), "GET", w.api+"/nodes", "", token...); code != 503 || h.Get("Retry-After") == "" || !strings.Contains(body, "issuer has not answered") {
		t.Errorf("while the issuer does not answer, a call with a token returned %d %s, want 503", code, body)
	}
	if code, body, _ := w.do(w.as("user/olga"), "GET", w.api+"/nodes", ""); code != 200 {
		t.Errorf("while the issuer does not answer, a call with a certificate returned %d %s, want 200", code, body)
	}
	i.away.Store(false)
	testbed.Until(t, "the token is accepted", func() bool {
		code, _, _ := w.do(w.as(""), "GET", w.api+"/nodes", "", token...)
		return code == 200
	})
}

// TestAWrongIssuerIsASettingsError: if the configured issuer has a wrong name or address, the start of the
// gateway fails with an error that names the setting, and is not tried again.
func TestAWrongIssuerIsASettingsError(t *testing.T) {
	i := newIssuer(t)
	for _, issuer := range []string{i.url + "/", "idp.example.com", "ftp://idp.example.com", "http://idp.example.com", "http://localhost.example.com", "http://10.0.0.1"} {
		_, err := gateway.NewTokens(t.Context(), gateway.TokenOptions{Issuer: issuer, Audience: "persys", Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("auth.oidc.issuer %q", issuer)) {
			t.Errorf("%s: %v", issuer, err)
		}
	}
}

func TestBearerTokensGiveRoles(t *testing.T) {
	i := newIssuer(t)
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_OIDC_ISSUER": i.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "watchers=viewer,ops=operator,chiefs=admin",
		"PERSYS_GATEWAY_OIDC_NAMESPACES": "team-a=a,team-b=b+c,everywhere=all"}, "")
	c := w.as("")
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	in := func(groups ...string) func(map[string]any) { return func(m map[string]any) { m["groups"] = groups } }
	const rs = jose.RS256
	for _, x := range []struct {
		name               string
		token              string
		read, delete, mode int
		says               string
	}{
		{"an operator of all namespaces", i.token(t, nil, rs, in("ops", "everywhere")), 200, 200, 403, "needs admin"},
		{"an operator in the namespace of one team and in all namespaces", i.token(t, nil, rs, in("ops", "team-a", "everywhere")), 200, 200, 403, "needs admin"},
		{"an operator of no namespace", i.token(t, nil, rs, in("ops")), 403, 403, 403, "whom auth.oidc.namespaces gives no namespace"},
		{"an operator who claims the group *", i.token(t, nil, rs, in("ops", "*")), 403, 403, 403, "has the role nobody"},
		{"a viewer", i.token(t, nil, rs, in("watchers", "everywhere")), 200, 403, 403, "has the role viewer"},
		{"an admin", i.token(t, nil, rs, in("watchers", "chiefs")), 200, 200, 200, ""},
		{"an operator of two teams", i.token(t, nil, rs, in("ops", "team-b", "team-a")), 200, 200, 403, `"persys-namespaces":"a,b,c"`},
		{"a viewer of one namespace", i.token(t, nil, rs, in("watchers", "team-a")), 200, 403, 403, `"persys-namespaces":"a"`},
		{"an admin acts in all namespaces, although the setting lists one namespace for the admin's group", i.token(t, nil, rs, in("chiefs", "team-a")), 200, 200, 200, `"persys-from":"127.0.0.1","persys-user":"oidc:` + i.url + `#ada"`},
		{"a team without a role", i.token(t, nil, rs, in("team-a")), 403, 403, 403, "has the role nobody"},
		{"a single group as a string", i.token(t, nil, rs, func(m map[string]any) { m["groups"] = "chiefs" }), 200, 200, 200, ""},
		{"a token without a role", i.token(t, nil, rs, in("others")), 403, 403, 403, "has the role nobody"},
		{"a token for another audience", i.token(t, nil, rs, func(m map[string]any) { m["aud"] = "else" }), 401, 401, 401, "audience"},
		{"a token of another issuer", i.token(t, nil, rs, func(m map[string]any) { m["iss"] = "https://else.example" }), 401, 401, 401, "different provider"},
		{"an expired token", i.token(t, nil, rs, func(m map[string]any) { m["exp"] = time.Now().Add(-time.Minute).Unix() }), 401, 401, 401, "expired"},
		{"a token signed with another key", i.token(t, other, rs, nil), 401, 401, 401, "the bearer token"},
		{"a token that uses the public key as a shared secret", i.token(t, []byte(strings.Repeat("k", 32)), jose.HS256, nil), 401, 401, 401, "the bearer token"},
		{"neither a token nor a certificate", "", 401, 401, 401, "no client certificate and no bearer token"},
		{"a token that is not a JWT", "a.b.c", 401, 401, 401, "the bearer token"},
	} {
		t.Run(x.name, func(t *testing.T) {
			auth := []string{"Authorization", "Bearer " + x.token}
			if x.token == "" {
				auth = nil
			}
			said := ""
			for _, call := range []struct {
				method, path, body string
				want               int
			}{{"GET", "/nodes", "", x.read}, {"DELETE", "/workloads/web", "", x.delete}, {"POST", "/v1/mode", `{"mode":"normal","reason":"x"}`, x.mode}} {
				code, body, h := w.do(c, call.method, w.api+call.path, call.body, auth...)
				if code != call.want {
					t.Errorf("%s %s was answered %d %s, want %d", call.method, call.path, code, body, call.want)
				}
				if code == 401 && h.Get("WWW-Authenticate") == "" {
					t.Errorf("an answer with status 401 has no header WWW-Authenticate")
				}
				said += body
			}
			// protojson adds a space after commas in some builds, so remove it.
			if !strings.Contains(strings.ReplaceAll(said, `", "`, `","`), x.says) {
				t.Errorf("the answers are %s, want %q in them", said, x.says)
			}
		})
	}
}

func TestCertificatesGiveRoles(t *testing.T) {
	w := startWorld(t, nil, "")
	for _, x := range []struct {
		who                string
		read, delete, mode int
	}{
		{"user/admin", 200, 200, 200}, {"user/olga", 200, 200, 403}, {"agent/node-a", 403, 403, 403}, {"", 401, 401, 401},
	} {
		c := w.as(x.who)
		for _, call := range []struct {
			method, path, body string
			want               int
		}{{"GET", "/nodes", "", x.read}, {"DELETE", "/workloads/web", "", x.delete}, {"POST", "/v1/mode", `{"mode":"normal","reason":"x"}`, x.mode}} {
			if code, body, _ := w.do(c, call.method, w.api+call.path, call.body); code != call.want {
				t.Errorf("with the certificate of %q, %s %s was answered %d %s, want %d", x.who, call.method, call.path, code, body, call.want)
			}
		}
	}
	// The identity that the gateway sends with a call must be the one that a scheduler would read from the caller's
	// certificate.
	leaf := w.certs.Leaf["user/olga"]
	olga, err := pki.LoadFiles(pki.FilesConfig{CA: leaf.CA, Cert: leaf.Cert, Key: leaf.Key})
	if err != nil {
		t.Fatal(err)
	}
	issued := fmt.Sprintf(`"persys-issued":"%d"`, pki.IssueTime(olga.Leaf(), olga.Identity()).UnixNano())
	if _, body, _ := w.do(w.as("user/olga"), "GET", w.api+"/nodes", ""); !strings.Contains(body, issued) || !strings.Contains(body, `"persys-from":"127.0.0.1"`) ||
		!strings.Contains(body, "/user/olga") || strings.Contains(body, "persys-user") {
		t.Errorf("the gateway reported to the scheduler the identity %s, want %s", body, issued)
	}
	// Without a configured issuer the gateway accepts no token.
	if code, body, _ := w.do(w.as(""), "GET", w.api+"/nodes", "", "Authorization", "Bearer x.y.z"); code != 401 || !strings.Contains(body, "auth.oidc.issuer is not set") {
		t.Errorf("a bearer token without a configured issuer was answered %d %s, want 401", code, body)
	}
	// The TLS listener refuses plain HTTP on the API port.
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Get(strings.Replace(w.api, "https:", "http:", 1) + "/nodes")
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP on the TLS port was answered %d, want 400", resp.StatusCode)
		}
	}
	// The TLS listener refuses an old TLS version.
	old := w.as("user/admin")
	old.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS10
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if resp, err := old.Get(w.api + "/nodes"); err == nil {
		resp.Body.Close()
		t.Error("a connection with TLS 1.1 was accepted")
	}
	// A certificate of another CA is refused in the handshake.
	foreign, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Users: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	mine := w.certs
	w.certs = foreign
	stranger := w.as("user/admin")
	w.certs = mine
	if resp, err := stranger.Get(w.api + "/nodes"); err == nil {
		resp.Body.Close()
		t.Error("a certificate of another CA was accepted")
	}
}

// If a page of another site posts a form, the browser sends the user's certificate with the form without
// asking the user. So the gateway must refuse such a form. A request with a bearer token
// is not refused for this reason, because a page of another site does not know the token.
func TestFormsOfOtherSites(t *testing.T) {
	i := newIssuer(t)
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_OIDC_ISSUER": i.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "ops=admin"}, "")
	own := []string{"Origin", w.api, "Sec-Fetch-Site", "same-origin"}
	foreign := []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}
	form := append([]string{"Content-Type", "text/plain"}, foreign...)
	token := []string{"Authorization", "Bearer " + i.token(t, nil, jose.RS256, nil)}
	for _, x := range []struct {
		fact, who, method, path string
		headers                 []string
		want                    int
	}{
		{"a posted form", "user/admin", "POST", "/v1/mode", form, 403},
		{"a form on the contract's route", "user/admin", "POST", "/workloads/web/retry", form, 403},
		{"a form post of an older browser", "user/admin", "POST", "/v1/mode", form[:4], 403},
		{"a read call from another site, whose answer the page cannot see", "user/admin", "GET", "/nodes", form, 200},
		{"a request of the console", "user/admin", "POST", "/v1/mode", own, 200},
		{"JSON of another site", "user/admin", "POST", "/v1/mode", append([]string{"Content-Type", "application/json"}, foreign...), 403},
		{"JSON of another site with a token", "", "POST", "/v1/mode", slices.Concat(token, []string{"Content-Type", "application/json"}, foreign), 200},
		{"a form of another site with a token", "", "POST", "/v1/mode", slices.Concat(token, form), 415},
	} {
		if code, body, _ := w.do(w.as(x.who), x.method, w.api+x.path, `{"mode":"normal","reason":"=x"}`, x.headers...); code != x.want || code == 403 && !strings.Contains(body, "https://evil.example asked for a change") {
			t.Errorf("%s: the answer is %d %s, want %d", x.fact, code, body, x.want)
		}
	}
}

func TestClientCertificateRequired(t *testing.T) {
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_REQUIRE_CLIENT_CERT": "true"}, "")
	if code, body, _ := w.do(w.as("user/olga"), "GET", w.api+"/nodes", ""); code != 200 {
		t.Errorf("a call with a certificate was answered %d %s, want 200", code, body)
	}
	if resp, err := w.as("").Get(w.api + "/health"); err == nil {
		resp.Body.Close()
		t.Errorf("a client without a certificate got the answer %d, want an ended handshake", resp.StatusCode)
	}
}

// The certificate of a scheduler may contain the name in the SRV record but not the address. With every routing
// strategy, the gateway must connect to and probe such a scheduler under the name in the SRV record.
func TestSchedulersDiscoveredByName(t *testing.T) {
	for _, strategy := range []string{gateway.LeaderOnly, gateway.Sticky, gateway.Shard} {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w := startWorldOf(t, map[string]string{"PERSYS_GATEWAY_PROBE_INTERVAL": "100ms"},
			"scheduler: {clusters: [{id: main, routing_strategy: "+strategy+", discovery: \"srv://x.test?dns="+pc.LocalAddr().String()+"\"}]}",
			func(t *testing.T, certs pki.DevSet) string {
				_, port, _ := net.SplitHostPort(startFakeAt(t, certs, "127.0.0.2"))
				serveDNS(t, pc, "_persys-scheduler._tcp.x.test. 60 IN SRV 0 0 "+port+" localhost.", "localhost. 60 IN A 127.0.0.2")
				return ""
			})
		c := w.as("user/admin")
		testbed.Until(t, strategy+": it is healthy", func() bool {
			_, body, _ := w.do(c, "GET", w.api+"/clusters", "")
			return strings.Contains(body, `"healthy_schedulers":1`)
		})
		if code, body, _ := w.do(c, "GET", w.api+"/nodes", ""); code != 200 {
			t.Errorf("with the routing strategy %s a read was answered %d %s", strategy, code, body)
		}
	}
}

// serveDNS answers every question with an SRV record and its address.
func serveDNS(t *testing.T, pc net.PacketConn, srv, addr string) {
	t.Helper()
	var records []dns.RR
	for _, text := range []string{srv, addr} {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, rr)
	}
	up, down := make(chan struct{}), make(chan struct{})
	s := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(up) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer, m.Extra = records[:1], records[1:]
		_ = w.WriteMsg(m) // an error is ignored: a client that misses the answer asks again
	})}
	go func() { _ = s.ActivateAndServe(); close(down) }()
	<-up
	t.Cleanup(func() { _ = s.Shutdown(); <-down })
}

// TestRoutesOfOtherServicesAnswer501: routes that belong to other services answer 501 with a message, for every caller and
// method.
func TestRoutesOfOtherServicesAnswer501(t *testing.T) {
	w := startWorld(t, nil, "")
	for _, c := range []*http.Client{w.as("user/admin"), w.as("")} {
		for _, path := range []string{
			"/federation/clusters", "/federation/", "/forgery/projects/upsert", "/forgery/builds/trigger", "/forgery/webhooks/test", "/forgery/pipeline/status?limit=5",
			"/clusters/main/forgery/projects/upsert", "/auth/login", "/auth/cli", "/auth/", "/github/list/repos", "/github/set/webhook/x", "/github/set/accessToken/y",
		} {
			for _, method := range []string{"GET", "POST"} {
				code, body, _ := w.do(c, method, w.api+path, "{}", "Content-Type", "application/json")
				if code != http.StatusNotImplemented || !strings.Contains(body, "is not served by this gateway: ") {
					t.Errorf("%s %s was answered %d %s, want 501 with a message", method, path, code, body)
				}
			}
		}
	}
}

func TestSchemaIsServed(t *testing.T) {
	w := startWorld(t, nil, "")
	code, body, h := w.do(w.as(""), "GET", w.api+"/schema/workload.json", "")
	if code != 200 || h.Get("Content-Type") != "application/schema+json" || !json.Valid([]byte(body)) || !strings.Contains(body, `"additionalProperties": false`) {
		t.Errorf("the schema was answered %d %v %.200s, want 200 with a JSON schema", code, h, body)
	}
}

// hooks is the server to which the gateway forwards webhook deliveries.
type hooks struct {
	url  string
	mu   sync.Mutex
	got  []string
	fail int
}

func newHooks(t *testing.T) *hooks {
	h := &hooks{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.fail > 0 {
			h.fail--
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		h.got = append(h.got, r.Header.Get("X-GitHub-Event")+" "+r.Header.Get("X-GitHub-Delivery")+" "+string(body))
	}))
	t.Cleanup(s.Close)
	h.url = s.URL
	return h
}

func (h *hooks) has(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.got {
		if strings.Contains(g, text) {
			return true
		}
	}
	return false
}

func sign(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func TestWebhooksAreVerifiedAndForwarded(t *testing.T) {
	w := startWorld(t, map[string]string{"PERSYS_GATEWAY_GITHUB_WEBHOOK_SECRET": "default-secret"}, `
webhook:
  repository_secrets: {own/repo: own-secret}
  replay_ttl: 1s
  forward_base_backoff: 20ms
`)
	c := w.as("")
	post := func(id, body, signature string, more ...string) (int, string) {
		headers := append([]string{"Content-Type", "application/json", "X-GitHub-Event", "push", "X-GitHub-Delivery", id, "X-Hub-Signature-256", signature}, more...)
		code, text, _ := w.do(c, "POST", w.public+"/webhooks/github", body, headers...)
		return code, text
	}
	const any, own = `{"repository":{"full_name":"some/repo"},"n":1}`, `{"repository":{"name":"repo","owner":{"login":"own"}},"n":2}`
	const next, last = `{"repository":{"full_name":"some/repo"},"n":3}`, `{"repository":{"full_name":"some/repo"},"n":4}`
	big := `{"repository":{"full_name":"some/repo"},"x":"` + strings.Repeat("x", 2<<20) + `"}`
	for _, x := range []struct {
		name     string
		id, body string
		sig      string
		more     []string
		code     int
		says     string
	}{
		{"signed with the default secret", "d1", any, sign("default-secret", any), nil, 200, "accepted"},
		{"the same delivery again", "d1", any, sign("default-secret", any), nil, 409, "received before"},
		{"signed with the repository's own secret", "d2", own, sign("own-secret", own), nil, 200, "accepted"},
		{"a repository with its own secret does not accept the default secret", "d3", own, sign("default-secret", own), nil, 401, "missing or wrong"},
		{"the same body under another id", "d13", any, sign("default-secret", any), nil, 409, "with the same body"},
		{"a signature made with a wrong secret", "d4", next, sign("guess", next), nil, 401, "missing or wrong"},
		{"a signature of another body", "d5", any, sign("default-secret", any+" "), nil, 401, "missing or wrong"},
		{"no signature", "d6", any, "", nil, 401, "missing or wrong"},
		{"a signature of the older kind, SHA-1", "d7", any, strings.Replace(sign("default-secret", any), "sha256=", "sha1=", 1), nil, 401, "missing or wrong"},
		{"a delivery without an id", "", any, sign("default-secret", any), nil, 400, "X-GitHub-Delivery"},
		{"an id that is too long", strings.Repeat("i", 129), any, sign("default-secret", any), nil, 400, "at most 128"},
		{"no JSON", "d8", "x", sign("default-secret", "x"), nil, 400, "no JSON"},
		{"a body without a repository", "d9", "{}", sign("default-secret", "{}"), nil, 400, "names no repository"},
		{"another content type", "d10", any, sign("default-secret", any), []string{"Content-Type", "text/plain"}, 400, "must be application/json"},
		{"a body over the size limit", "d11", big, sign("default-secret", big), nil, 413, "over 1048576 bytes"},
		{"a delivery that was refused is accepted when it is sent again", "d4", next, sign("default-secret", next), nil, 200, "accepted"},
	} {
		if code, text := post(x.id, x.body, x.sig, x.more...); code != x.code || !strings.Contains(text, x.says) {
			t.Errorf("%s: the delivery was answered %d %s, want %d with %q", x.name, code, text, x.code, x.says)
		}
	}
	testbed.Until(t, "both deliveries are forwarded unchanged", func() bool { return w.forward.has("push d1 "+any) && w.forward.has("push d2 "+own) })
	if w.forward.has("d3") || w.forward.has("d5") {
		t.Error("a refused delivery was forwarded")
	}
	// The receiver of webhooks fails three times. The gateway retries the delivery, and the receiver gets it exactly
	// once.
	w.forward.mu.Lock()
	w.forward.fail = 3
	w.forward.mu.Unlock()
	if code, text := post("d12", last, sign("default-secret", last)); code != 200 {
		t.Errorf("a webhook delivery whose forwarding failed three times was answered %d %s, want 200", code, text)
	}
	testbed.Until(t, "the delivery arrives in the end", func() bool { return w.forward.has("push d12 ") })
	// The gateway refuses a delivery with the id of an earlier one, until it forgets this id after the
	// replay time.
	testbed.Until(t, "the id of an old delivery is accepted again", func() bool { code, _ := post("d2", own, sign("own-secret", own)); return code == 200 })
	// The API listener accepts no webhooks.
	if code, _, _ := w.do(w.as("user/admin"), "POST", w.api+"/webhooks/github", any); code != 404 {
		t.Errorf("a webhook delivery to the API listener was answered %d", code)
	}
}

// TestWebhooksAreRememberedInTheStateFolder: a gateway that starts again with the same state folder refuses a delivery that
// it forwarded before.
func TestWebhooksAreRememberedInTheStateFolder(t *testing.T) {
	const body = `{"repository":{"full_name":"some/repo"}}`
	headers := []string{"Content-Type", "application/json", "X-GitHub-Event", "push", "X-GitHub-Delivery", "d", "X-Hub-Signature-256", sign("s", body)}
	set := map[string]string{"PERSYS_GATEWAY_GITHUB_WEBHOOK_SECRET": "s", "PERSYS_GATEWAY_STATE_DIR": filepath.Join(t.TempDir(), "gateway")}
	for start, want := range []int{200, 409} {
		w := startWorld(t, set, "")
		if code, text, _ := w.do(w.as(""), "POST", w.public+"/webhooks/github", body, headers...); code != want {
			t.Errorf("after start %d, the delivery was answered %d %s, want %d", start, code, text, want)
		}
		if want == 200 {
			testbed.Until(t, "the delivery is stored", func() bool {
				info, err := os.Stat(filepath.Join(set["PERSYS_GATEWAY_STATE_DIR"], "deliveries"))
				return err == nil && info.Size() > 0
			})
		}
	}
}

func TestWebhooksWithoutSecretOrReceiver(t *testing.T) {
	w := startWorld(t, nil, "")
	c := w.as("")
	body := `{"repository":{"full_name":"some/repo"}}`
	headers := []string{"Content-Type", "application/json", "X-GitHub-Event", "push", "X-GitHub-Delivery", "d", "X-Hub-Signature-256", sign("", body)}
	if code, text, _ := w.do(c, "POST", w.public+"/webhooks/github", body, headers...); code != 401 {
		t.Errorf("with no secret configured, a signature made with the empty secret was answered %d %s, want 401", code, text)
	}
	none := startWorld(t, map[string]string{"PERSYS_GATEWAY_WEBHOOK_FORWARD_URL": "", "PERSYS_GATEWAY_GITHUB_WEBHOOK_SECRET": "s"}, "")
	if code, text, _ := none.do(none.as(""), "POST", none.public+"/webhooks/github", body, headers...); code != 501 || !strings.Contains(text, "does not forward webhooks") {
		t.Errorf("a webhook delivery without a configured receiver was answered %d %s, want 501", code, text)
	}
}

func TestPublicTLSIsAutomaticOutsideLoopback(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want bool
	}{
		{Config{PublicTLS: "auto", PublicAddr: ":8585"}, false},
		{Config{PublicTLS: "auto", PublicAddr: "10.0.0.1:443"}, true},
		{Config{PublicTLS: "auto", PublicAddr: "127.0.0.1:9000", Insecure: true}, false},
		{Config{PublicTLS: "true", PublicAddr: ":8585"}, true},
		{Config{PublicTLS: "false", PublicAddr: ":443"}, false},
	} {
		if got := c.cfg.publicTLS(); got != c.want {
			t.Errorf("with public_tls %s on address %s and insecure %t, the public listener uses TLS: %t", c.cfg.PublicTLS, c.cfg.PublicAddr, c.cfg.Insecure, got)
		}
	}
	for _, tls := range []string{"true", "false"} {
		w := startWorld(t, map[string]string{"PERSYS_GATEWAY_PUBLIC_TLS": tls}, "")
		if code, body, _ := w.do(w.as(""), "GET", w.public+"/", ""); code != 200 {
			t.Errorf("with PERSYS_GATEWAY_PUBLIC_TLS=%s the public listener answered %d %s, want 200", tls, code, body)
		}
	}
}
