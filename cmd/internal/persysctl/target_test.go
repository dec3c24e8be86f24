package persysctl

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/gateway"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// behind starts a real gateway that uses the fake scheduler f, and returns the gateway's address.
func behind(t testing.TB, f *fake, timeout time.Duration) string {
	t.Helper()
	g, err := gateway.New(t.Context(), gateway.Options{
		Clusters:    []gateway.Cluster{{ID: "default", Schedulers: []gateway.Scheduler{{ID: "s1", Address: f.addr, Leader: true}}}},
		CallTimeout: timeout,
		Dial: func(ctx context.Context, o dial.Options) (*dial.Conn, error) {
			o.Insecure = true
			return dial.Dial(ctx, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	s := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		cancel()
		<-done
		g.Close()
	})
	return s.URL
}

// TestCommandsGiveTheSameResultThroughAGateway runs every command of TestOutputsAreGolden through a gateway. The output and the
// exit code must be the same as at a scheduler, except for the address and for sessions of the web console.
func TestCommandsGiveTheSameResultThroughAGateway(t *testing.T) {
	for _, c := range outputCases() {
		t.Run(c.name, func(t *testing.T) { // not parallel: the library of the gateway's generated handlers has a global setting
			f, direct := start(t, nil), newSession(t)
			want := direct.run(f, c.args...)
			g := start(t, nil)
			via := newSession(t)
			got := via.run(nil, append([]string{"-s", behind(t, g, 10*time.Second)}, c.args...)...)
			if c.name == "console-web" || c.name == "console-web-plain-text" { // only a scheduler makes sessions
				if got != 2 || !strings.Contains(via.stderr.String(), "is a gateway, and only a scheduler") {
					t.Errorf("exit code %d: %s", got, via.stderr.String())
				}
				return
			}
			if got != want || via.stdout.String() != direct.stdout.String() || via.stderr.String() != direct.stderr.String() {
				t.Errorf("the command must give the same result at a gateway and at a scheduler; gateway: exit code %d\n%s%s\nscheduler: exit code %d\n%s%s", got, via.stdout.String(), via.stderr.String(), want, direct.stdout.String(), direct.stderr.String())
			}
		})
	}
}

func TestStreamsThroughAGateway(t *testing.T) {
	f := start(t, nil)
	f.script = []scene{
		{changes: []*clusterv1.WorkloadChange{told(43, view("web", "Pending", "", "")), synced(44)}, err: status.Error(codes.Unavailable, "the replica stops")},
		{changes: []*clusterv1.WorkloadChange{told(46, view("web", "Running", "node-a", "")), synced(46)}},
	}
	s := newSession(t)
	s.in = strings.NewReader(webYAML)
	code := s.run(nil, "-s", behind(t, f, 10*time.Second), "apply", "-f", "-", "--wait")
	if code != 0 || !strings.Contains(s.stderr.String(), "Running on node-a") {
		t.Errorf("a command with --wait whose stream breaks ended with exit code %d, want 0 and Running on node-a\n%s%s", code, s.stdout.String(), s.stderr.String())
	}
}

// TestHelpNamesTheCommandsThatGatewaysRefuse: the help topic about gateways names exactly the commands that a
// gateway does not serve.
func TestHelpNamesTheCommandsThatGatewaysRefuse(t *testing.T) {
	f := start(t, nil)
	url := behind(t, f, 10*time.Second)
	file := filepath.Join(t.TempDir(), "state.backup")
	if err := os.WriteFile(file, backupBytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
	page := newSession(t)
	if code := page.run(nil, "help", "connection"); code != exitOK {
		t.Fatalf("the command ended with exit code %d: %s", code, page.stderr.String())
	}
	_, listed, ok := strings.Cut(page.stdout.String(), "does not serve them:\n\n")
	listed, _, end := strings.Cut(listed, "\n\n")
	if !ok || !end {
		t.Fatalf("the page lacks the list of commands:\n%s", page.stdout.String())
	}
	for name, args := range map[string][]string{
		"exec": {"exec", "web-0", "--", "say"}, "console": {"console", "web-0"},
		"backup create and restore":    {"backup", "restore", file, "--dry-run"},
		"recovery import of a FILE":    {"recovery", "import", file, "--dry-run"},
		"token":                        {"token", "list"},
		"identity":                     {"identity", "list"},
		"ca that ask the cluster":      {"ca", "list"},
		"backup create":                {"backup", "create", filepath.Join(t.TempDir(), "x.backup")},
		"mode set":                     {"mode", "set", "normal", "--reason", "x"},
		"replica remove":               {"replica", "remove", "r3", "--yes"},
		"recovery restore":             {"recovery", "restore", "--dry-run"},
		"recovery import without FILE": {"recovery", "import", "--dry-run"},
	} {
		s := newSession(t)
		code := s.run(nil, append([]string{"-s", url}, args...)...)
		if code == exitUsage {
			t.Errorf("%s: %s", name, s.stderr.String())
		}
		refused := strings.Contains(s.stderr.String(), "a gateway does not offer")
		if refused != strings.Contains(listed, name) {
			t.Errorf("%s: whether the gateway refuses the command is %t, but the help topic lists\n%s", name, refused, listed)
		}
	}
}

func TestRefusalsOfAGatewayAreExplained(t *testing.T) {
	f := start(t, nil)
	url := behind(t, f, 500*time.Millisecond)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for _, c := range []struct {
		name   string
		url    string
		env    map[string]string
		args   []string
		code   int
		stderr []string
	}{
		{"a call that the gateway does not offer: the error tells the user to call a scheduler", url, nil, []string{"token", "list"}, exitFailed, []string{"a gateway does not offer ListTokens", "hint: persysctl --server HOST:8085"}},
		{"a stream that the gateway does not offer: the error names the call that a gateway does not offer", url, nil, []string{"backup", "create", "x.backup"}, exitFailed, []string{"a gateway does not offer CreateBackup"}},
		{"a server that is no gateway listens", plain.URL, nil, []string{"list"}, exitFailed, []string{"has no /v1"}},
		{"no listener at the address", "http://127.0.0.1:1", nil, []string{"list"}, exitUnavailable, []string{"no gateway listens at http://127.0.0.1:1"}},
		{"the error says that nothing was changed if no gateway was reached", "http://127.0.0.1:1", nil, []string{"cordon", "node-a"}, exitUnavailable, []string{"no gateway listens"}},
		{"a token is not sent in plain text", "http://192.0.2.1:8551", map[string]string{"PERSYS_TOKEN": "secret"}, []string{"list"}, exitUsage, []string{"not sent in plain text"}},
		{"an unknown cluster", url, map[string]string{"PERSYS_GATEWAY_CLUSTER_ID": "mars"}, []string{"list"}, exitFailed, []string{`unknown cluster id "mars"`}},
		{"https without a certificate or token", "https://127.0.0.1:1", nil, []string{"list"}, exitUsage, []string{"PERSYS_TOKEN"}},
		{"no leader", url, map[string]string{"FAIL": "ListWorkloads"}, []string{"list"}, exitUnavailable, []string{"no leader", "hint: persysctl status"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(t)
			for k, v := range c.env {
				s.env[k] = v
			}
			if m := c.env["FAIL"]; m != "" {
				f.mu.Lock()
				for range 1000 {
					f.fail[m] = append(f.fail[m], dial.Error(codes.Unavailable, dial.ReasonNoLeader, "there is no leader"))
				}
				f.mu.Unlock()
			}
			code := s.run(nil, append([]string{"-s", c.url, "--rpc-timeout-seconds", "1"}, c.args...)...)
			if code != c.code {
				t.Errorf("the exit code is %d, want %d: %s", code, c.code, s.stderr.String())
			}
			for _, want := range c.stderr {
				if !strings.Contains(s.stderr.String(), want) {
					t.Errorf("stderr does not contain %q: %s", want, s.stderr.String())
				}
			}
			if strings.Contains(s.stderr.String(), "secret") {
				t.Errorf("the error contains the token: %s", s.stderr.String())
			}
		})
	}
}

// TestGatewayRepeatsUnderOneKey: a request without an answer is repeated under the same idempotency key. If no attempt
// gets an answer, the error says that the outcome is unknown.
func TestGatewayRepeatsUnderOneKey(t *testing.T) {
	var keys []string
	answer := 3
	h := http.NewServeMux()
	h.HandleFunc("/v1/nodes/", func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys)%4 != answer {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte("{}"))
	})
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	s := newSession(t)
	if code := s.run(nil, "-s", srv.URL, "cordon", "node-a"); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if len(keys) != 3 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] {
		t.Errorf("three attempts used the keys %q, want one key", keys)
	}
	answer = -1
	s = newSession(t)
	if code := s.run(nil, "-s", srv.URL, "cordon", "node-a"); code != exitUnknown || !strings.Contains(s.stderr.String(), "may or may not have happened") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}

func TestContextsAreStoredAndChosen(t *testing.T) {
	dir := t.TempDir()
	s := newSession(t)
	if code := s.run(nil, "dev-certs", dir); code != 0 {
		t.Fatal(s.stderr.String())
	}
	leaf := filepath.Join(dir, "user/admin")
	home := s.home
	run := func(want int, args ...string) string {
		t.Helper()
		s := newSession(t)
		s.home = home
		if code := s.run(nil, args...); code != want {
			t.Fatalf("persysctl %s: exit %d, want %d: %s%s", strings.Join(args, " "), code, want, s.stdout.String(), s.stderr.String())
		}
		return s.stdout.String() + s.stderr.String()
	}
	run(0, "context", "add", "home", "-s", "10.0.0.1,10.0.0.2", "--tls-ca", leaf+"/ca.pem", "--tls-cert", leaf+"/cert.pem", "--tls-key", leaf+"/key.pem")
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("very-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(0, "context", "add", "work", "-s", "https://gw.example:8551", "--token-file", token, "--cluster-id", "east")
	path := filepath.Join(home, ".config/persys/contexts.yaml")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file of contexts has the error %v and the mode %v, want 0600", err, st.Mode())
	}
	if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "very-secret") {
		t.Errorf("the file holds the token: %s", data)
	}
	for _, c := range []struct {
		name string
		code int
		args []string
		want []string
	}{
		{"the first stored context is the current one", 0, []string{"context", "list"}, []string{"* ", "home", "10.0.0.1,10.0.0.2", "gateway", "TLS, token"}},
		{"a name that exists is refused", exitFailed, []string{"context", "add", "home", "-s", "x", "--insecure"}, []string{`context "home" exists already`, "--replace"}},
		{"a context needs an address", exitUsage, []string{"context", "add", "x"}, []string{"address of the cluster is missing"}},
		{"an invalid name is refused", exitUsage, []string{"context", "add", "../x", "-s", "y"}, []string{"name: must be letters"}},
		{"a missing file is named", exitUsage, []string{"context", "add", "x", "-s", "y", "--tls-cert", "/nowhere.pem"}, []string{"--tls-cert: /nowhere.pem does not exist"}},
		{"a token file without a gateway is refused", exitUsage, []string{"context", "add", "x", "-s", "y", "--token-file", token}, []string{"--token-file is for a gateway"}},
		{"switching to an unknown context", exitNotFound, []string{"context", "use", "mars"}, []string{`context "mars" does not exist`, "persysctl context list"}},
		{"--context with an unknown name", exitUsage, []string{"list", "--context", "mars"}, []string{`--context: context "mars" does not exist`}},
		{"a context and an address together are an error, because both name a cluster", exitUsage, []string{"list", "--context", "work", "-s", "z"}, []string{"both name a cluster"}},
		{"context show names the cluster in use and the setting that selected it", 0, []string{"context", "show"}, []string{"10.0.0.1,10.0.0.2", "context home"}},
		{"another context for one command", 0, []string{"context", "show", "--context", "work"}, []string{"https://gw.example:8551", "east", "context work"}},
		{"context show names the flag that gave the address", 0, []string{"context", "show", "-s", "10.9.9.9"}, []string{"10.9.9.9", "--server"}},
		{"context list as JSON", 0, []string{"context", "list", "-o", "jsonpath={.current}"}, []string{"home\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := run(c.code, c.args...)
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("the output does not contain %q:\n%s", want, got)
				}
			}
			if strings.Contains(c.name, "the flag that gave the address") && strings.Contains(got, leaf) {
				t.Errorf("the certificate of a context is sent to another address:\n%s", got)
			}
		})
	}
	run(0, "context", "use", "work")
	if got := run(0, "context", "remove", "work"); !strings.Contains(got, "persysctl context use home") {
		t.Errorf("removing the current context prints %s, want a hint that names the command for another context", got)
	}
	if err := os.WriteFile(path, []byte("current: a\ncontexts: [{name: a, servr: x}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(exitUsage, "context", "list"); !strings.Contains(got, "servr") {
		t.Errorf("an unknown key in contexts.yaml prints %s", got)
	}
}

// TestContextIsUsed: a command must use the current context (stored connection to a cluster), unless an environment
// variable names another address.
func TestContextIsUsed(t *testing.T) {
	f, g := start(t, nil), start(t, nil)
	g.workloads = g.workloads[:1]
	s := newSession(t)
	if code := s.run(nil, "context", "add", "dev", "-s", f.addr, "--insecure"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	count := func(set func(*session), args ...string) int {
		t.Helper()
		s2 := newSession(t)
		s2.home = s.home
		set(s2)
		if code := s2.run(nil, append([]string{"list", "-o", `jsonpath={range .workloads[*]}{.workload_id}{"\n"}{end}`}, args...)...); code != 0 {
			t.Fatal(s2.stderr.String())
		}
		return strings.Count(s2.stdout.String(), "\n")
	}
	if n := count(func(*session) {}); n != 6 {
		t.Errorf("list shows %d workloads, want 6 of the context's cluster", n)
	}
	if n := count(func(s *session) { s.env["PERSYS_SCHEDULER_ADDR"], s.env["PERSYS_INSECURE"] = g.addr, "true" }); n != 1 {
		t.Errorf("list shows %d workloads, want 1 of the environment's cluster", n)
	}
	if n := count(func(s *session) { s.env["PERSYS_SCHEDULER_ADDR"], s.env["PERSYS_INSECURE"] = g.addr, "true" }, "--context", "dev"); n != 6 {
		t.Errorf("list shows %d workloads, want 6 of the flag's cluster", n)
	}
}

// TestAPublicGatewayNeedsAToken: a user with a certificate of a cluster calls a gateway whose certificate comes from a
// public CA. persysctl accepts the gateway only if the user has a token.
func TestAPublicGatewayNeedsAToken(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.DevCerts(dir, pki.DevOptions{}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // otherwise the server would log every refused handshake
	srv.StartTLS()
	t.Cleanup(srv.Close)
	public := x509.NewCertPool()
	public.AddCert(srv.Certificate())
	for token, want := range map[string]string{"secret": "is not a Persys gateway", "": "no trusted connection"} {
		s := newSession(t)
		joined(t, s, dir)
		s.env["PERSYS_TOKEN"] = token
		runWith(t.Context(), &cli{world: s.world, public: public}, []string{"-s", srv.URL, "list"})
		if got := s.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("with the token %q persysctl prints %s", token, got)
		}
	}
}

// TestSettingsOfTheLegacyCLIWork: the configuration file and the environment variables of the legacy v1 CLI
// still work. The legacy v1 CLI uses a gateway by default.
func TestSettingsOfTheLegacyCLIWork(t *testing.T) {
	for _, c := range []struct {
		name string
		yaml string
		env  map[string]string
		want string
	}{
		{"api_endpoint is the address of a gateway", "api_endpoint: http://gw:8551\n", nil, "http://gw:8551"},
		{"api_endpoint takes precedence over grpc_endpoint", "api_endpoint: http://gw:8551\ngrpc_endpoint: s:1\n", nil, "http://gw:8551"},
		{"transport grpc selects grpc_endpoint", "api_endpoint: http://gw:8551\ngrpc_endpoint: s:1\ntransport: grpc\n", nil, "s:1"},
		{"API_ENDPOINT", "", map[string]string{"API_ENDPOINT": "http://gw:2"}, "http://gw:2"},
		{"GRPC_ENDPOINT with TRANSPORT", "", map[string]string{"API_ENDPOINT": "http://gw:2", "GRPC_ENDPOINT": "s:2", "TRANSPORT": "grpc"}, "s:2"},
		{"API_ENDPOINT before GRPC_ENDPOINT", "", map[string]string{"API_ENDPOINT": "http://gw:2", "GRPC_ENDPOINT": "s:2"}, "http://gw:2"},
		{"PERSYS_SCHEDULER_ADDR takes precedence over both", "api_endpoint: http://gw:8551\n", map[string]string{"PERSYS_SCHEDULER_ADDR": "s:3"}, "s:3"},
		{"transport http without an address", "transport: http\n", nil, "error: transport http needs api_endpoint"},
		{"an api_endpoint that is not a URL", "api_endpoint: gw:8551\n", nil, "error: config.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(t)
			if c.yaml != "" {
				write(t, s.home, ".persys/config.yaml", c.yaml)
			}
			for k, v := range c.env {
				s.env[k] = v
			}
			got, err := settingsOf(t, s)
			if want, isErr := strings.CutPrefix(c.want, "error: "); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, want %q", err, want)
				}
				return
			}
			if err != nil || got.Server != c.want {
				t.Errorf("the server is %q, error %v; want %q", got.Server, err, c.want)
			}
		})
	}
}

func TestJSONPathSelectsFields(t *testing.T) {
	for _, c := range []struct {
		path, want string
		code       int
	}{
		{".workloads[0].workload_id", "batch\n", 0},
		{`{range .workloads[?(@.group=="web")]}{.workload_id}{" "}{end}`, "web-0 web-1 \n", 0},
		{"{.nothing}", "", 0},
		{"{.workloads[}", "", exitUsage},
		{"{.workloads[99].workload_id}", "", exitFailed},
	} {
		f, s := start(t, nil), newSession(t)
		if code := s.run(f, "list", "-o", "jsonpath="+c.path); code != c.code || s.stdout.String() != c.want {
			t.Errorf("%s: exit %d, %q, want %d, %q: %s", c.path, code, s.stdout.String(), c.code, c.want, s.stderr.String())
		}
	}
}

// Numbers that a jsonpath selects are printed as integers, because scripts compare and add them.
func TestNumbersOfAJSONPath(t *testing.T) {
	for path, want := range map[string]string{
		"{.events}": "1000000\n", "{.a[0]}": "2097152\n", "{.a[1]}": "0.5\n", "{.b[?(@.n > 3)].n}": "4\n", "{.c[?(@.n > 0.5)].n}": "0.7 4\n",
	} {
		var out strings.Builder
		c := &cli{output: outPath + path}
		c.out = &out
		if err := c.checkOutput(); err != nil {
			t.Fatal(err)
		}
		if err := c.emitData([]byte(`{"events": 1000000, "a": [2097152, 0.5], "b": [{"n": 2}, {"n": 4}], "c": [{"n": 0.7}, {"n": 4}, {"n": 0.2}]}`)); err != nil || out.String() != want {
			t.Errorf("the path %s selects %q, error %v; want %q", path, out.String(), err, want)
		}
	}
}
