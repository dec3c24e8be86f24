package persysctl

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// TestUnknownOutcomeOmitsTheCause: a change may or may not have been applied. The error message must say this, and
// must leave out the error of the last attempt, which is only about the connection.
func TestUnknownOutcomeOmitsTheCause(t *testing.T) {
	f := &failure{text: "a scheduler stopped answering, and " + dial.OutcomeText + "read tcp 10.0.0.1:1: reset"}
	unknownOutcome(f)
	if !strings.HasSuffix(f.text, "no other scheduler knows the outcome") {
		t.Errorf("the message is %q, want one without the cause", f.text)
	}
}

// settingsOf parses the flags and loads the settings.
func settingsOf(t *testing.T, s *session, args ...string) (settings, error) {
	t.Helper()
	c := &cli{world: s.world}
	root, err := c.root()
	if err != nil {
		t.Fatal(err)
	}
	if err := root.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	err = c.load()
	return c.settings, err
}

func TestSourcesOfSettings(t *testing.T) {
	const file = "grpc_endpoint: from-yaml:1\n"
	for _, c := range []struct {
		name string
		yaml string
		env  map[string]string
		args []string
		want string
	}{
		{"no setting", "", nil, nil, "127.0.0.1:8085"},
		{"the configuration file", file, nil, nil, "from-yaml:1"},
		{"X_FILE overrides the configuration file", file, map[string]string{"PERSYS_SCHEDULER_ADDR_FILE": "HOME/addr"}, nil, "from-file:1"},
		{"the environment overrides X_FILE", file, map[string]string{"PERSYS_SERVER": "from-env:1", "PERSYS_SCHEDULER_ADDR_FILE": "HOME/addr"}, nil, "from-env:1"},
		{"PERSYS_SCHEDULER_ADDR overrides PERSYS_SERVER", "", map[string]string{"PERSYS_SERVER": "b:1", "PERSYS_SCHEDULER_ADDR": "a:1"}, nil, "a:1"},
		{"the earlier name of the variable still works", "", map[string]string{"GRPC_ENDPOINT": "old:1"}, nil, "old:1"},
		{"a flag overrides all other sources", file, map[string]string{"PERSYS_SERVER": "from-env:1"}, []string{"-s", "from-flag:1"}, "from-flag:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(t)
			write(t, s.home, "addr", "from-file:1\n")
			if c.yaml != "" {
				write(t, s.home, ".persys/config.yaml", c.yaml)
			}
			for k, v := range c.env {
				s.env[k] = strings.ReplaceAll(v, "HOME", s.home)
			}
			got, err := settingsOf(t, s, c.args...)
			if err != nil || got.Server != c.want {
				t.Errorf("the server is %q, error %v; want %q", got.Server, err, c.want)
			}
		})
	}
}

// TestExistingConfigurationFile: persysctl accepts a configuration file with all documented keys of the
// legacy v1 CLI (contract/gateway-rest.md).
func TestExistingConfigurationFile(t *testing.T) {
	s := newSession(t)
	write(t, s.home, ".persys/config.yaml", `api_endpoint: http://localhost:8084
transport: grpc
grpc_endpoint: 10.0.0.1:8085
grpc_insecure: true
grpc_target: scheduler
rpc_timeout_seconds: 5
ca_cert_path: /a/ca.pem
cert_path: /a/cert.pem
key_path: /a/key.pem
vault_enabled: true
vault_addr: http://localhost:8200
vault_auth_method: token
vault_token: t
vault_approle_role_id: r
vault_approle_secret_id: s
vault_pki_mount: pki
vault_pki_role: persysctl
vault_cert_ttl: 24h
vault_service_name: persysctl
vault_service_domain: example
vault_retry_interval: 1m
cfssl_api_url: http://x
common_name: a
organization: b
private_key: c
`)
	got, err := settingsOf(t, s)
	if err != nil {
		t.Fatal(err)
	}
	want := settings{Server: "10.0.0.1:8085", Insecure: true, CA: "/a/ca.pem", Cert: "/a/cert.pem", Key: "/a/key.pem", RPCTimeout: 5, OTLPInsecure: true,
		APIEndpoint: "http://localhost:8084", Transport: "grpc", Other: got.Other}
	if got != want {
		t.Errorf("the settings are %+v, want %+v", got, want)
	}
	write(t, s.home, ".persys/config.yaml", "grpc_endpont: x\n")
	if _, err := settingsOf(t, s); err == nil || !strings.Contains(err.Error(), `did you mean "grpc_endpoint"`) {
		t.Errorf("an unknown key returned %v, want an error that suggests grpc_endpoint", err)
	}
}

func TestConfigurationFileThatIsAskedForMustExist(t *testing.T) {
	s := newSession(t)
	if code := s.run(nil, "list", "--config", "/nowhere.yaml"); code != exitUsage || !strings.Contains(s.stderr.String(), "/nowhere.yaml") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}

func TestACallWithoutCertificatesNamesTheSettings(t *testing.T) {
	s := newSession(t)
	code := s.run(nil, "list")
	for _, want := range []string{"PERSYS_TLS_CA", "--insecure"} {
		if code != exitUsage || !strings.Contains(s.stderr.String(), want) {
			t.Errorf("exit %d, stderr lacks %q: %s", code, want, s.stderr.String())
		}
	}
}

func TestCommandsUseCertificates(t *testing.T) {
	dir := t.TempDir()
	s := newSession(t)
	if code := s.run(nil, "dev-certs", dir); code != 0 || !strings.Contains(s.stdout.String(), "export PERSYS_TLS_CA=") {
		t.Fatalf("dev-certs: exit %d: %s", code, s.stderr.String())
	}
	load := func(who string) *pki.Files {
		p := filepath.Join(dir, who)
		files, err := pki.LoadFiles(pki.FilesConfig{CA: p + "/ca.pem", Cert: p + "/cert.pem", Key: p + "/key.pem"})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	f, plain := start(t, load("scheduler/scheduler-1")), start(t, nil)
	use := func(s *session, dir string) {
		s.env["PERSYS_TLS_CA"], s.env["PERSYS_TLS_CERT"], s.env["PERSYS_TLS_KEY"] = dir+"/ca.pem", dir+"/cert.pem", dir+"/key.pem"
	}
	t.Run("persysctl accepts the certificates that dev-certs makes", func(t *testing.T) {
		s := newSession(t)
		use(s, dir+"/user/admin")
		if code := run(t.Context(), s.world, []string{"-s", f.addr, "nodes"}); code != 0 {
			t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
		}
	})
	t.Run("files in the home folder are used", func(t *testing.T) {
		s := newSession(t)
		joined(t, s, dir)
		if code := run(t.Context(), s.world, []string{"-s", f.addr, "nodes"}); code != 0 {
			t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
		}
	})
	t.Run("the error says that the server's certificate is of another CA", func(t *testing.T) {
		s, other := newSession(t), t.TempDir()
		if _, err := pki.DevCerts(other, pki.DevOptions{}); err != nil {
			t.Fatal(err)
		}
		use(s, other+"/user/admin")
		code := run(t.Context(), s.world, []string{"-s", f.addr, "--rpc-timeout-seconds", "1", "nodes"})
		if code != exitUnavailable || !strings.Contains(s.stderr.String(), "no trusted connection") || !strings.Contains(s.stderr.String(), "--tls-ca") {
			t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
		}
	})
	t.Run("the error says that the client certificate is of another CA", func(t *testing.T) {
		other := t.TempDir()
		if _, err := pki.DevCerts(other, pki.DevOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 10 { // the connection may end in different ways, so try several times
			s := newSession(t)
			use(s, other+"/user/admin")
			s.env["PERSYS_TLS_CA"] = dir + "/user/admin/ca.pem"
			code := run(t.Context(), s.world, []string{"-s", f.addr, "--rpc-timeout-seconds", "1", "nodes"})
			if code != exitUnavailable || !strings.Contains(s.stderr.String(), f.addr+" refuses this certificate: ") || !strings.Contains(s.stderr.String(), "--tls-cert") {
				t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
			}
		}
	})
	t.Run("plain text to TLS is explained", func(t *testing.T) {
		s := newSession(t)
		code := run(t.Context(), s.world, []string{"-s", f.addr, "--insecure", "--rpc-timeout-seconds", "1", "nodes"})
		if code != exitUnavailable || !strings.Contains(s.stderr.String(), "wants TLS") {
			t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
		}
	})
	t.Run("TLS to plain text is explained", func(t *testing.T) {
		s := newSession(t)
		use(s, dir+"/user/admin")
		code := run(t.Context(), s.world, []string{"-s", plain.addr, "--rpc-timeout-seconds", "1", "nodes"})
		if code != exitUnavailable || !strings.Contains(s.stderr.String(), "plain text") || !strings.Contains(s.stderr.String(), "--insecure") {
			t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
		}
	})
}

// TestMutationsRepeatUnderOneRequestID: a change that finds no leader is repeated, and all attempts carry the
// same request id, a UUIDv7.
func TestMutationsRepeatUnderOneRequestID(t *testing.T) {
	noLeader := dial.Error(codes.Unavailable, dial.ReasonNoLeader, "there is no leader")
	for method, args := range map[string][]string{
		"ApplyWorkload": {"start", "old"}, "DeleteWorkload": {"delete", "old"}, "RetryWorkload": {"retry", "old"}, "CordonNode": {"cordon", "node-a"},
		"DrainNode": {"drain", "node-a"}, "ApplyRebalance": {"rebalance", "--apply"}, "SetRebalancePolicy": {"rebalance", "policy", "--off"}, "FenceNode": {"node", "fence", "node-a"}, "SetMode": {"mode", "set", "normal", "--reason", "x"},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			f.fail[method] = []error{noLeader, noLeader}
			if code := s.run(f, args...); code != 0 {
				t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
			}
			ids := map[string]bool{}
			for _, id := range f.requestIDs {
				ids[id] = true
				if u, err := uuid.Parse(id); err != nil || u.Version() != 7 {
					t.Errorf("request id %q is no UUIDv7", id)
				}
			}
			if len(f.requestIDs) != 3 || len(ids) != 1 {
				t.Errorf("the three attempts had the request ids %v, want one id three times", slices.Sorted(maps.Keys(ids)))
			}
		})
	}
}

func TestStaleAnswersAreMarked(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.stale = true
	if code := s.run(f, "list", "--stale"); code != 0 || s.stderr.String() != "stale, 3s old\n" {
		t.Errorf("exit %d, stderr %q, want one line with the note that the answer is stale", code, s.stderr.String())
	}
	if l := last[*controlv1.ListWorkloadsRequest](f).GetLevel(); l != controlv1.ReadLevel_READ_LEVEL_STALE {
		t.Errorf("the read levels requested are %v", l)
	}
	s = newSession(t)
	if s.run(f, "nodes"); !strings.Contains(s.stderr.String(), "stale, 3s old: there is no leader") {
		t.Errorf("stderr contains the note about a stale answer, but the caller did not allow stale answers: %q", s.stderr.String())
	}
}

func TestStatusWithACopy(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.status.Replicas[0].Copies = []string{"10.0.9.9:8086"}
	code := s.run(f, "status")
	golden(t, "status-copied", f, s, code, "status")
}

func TestStatusWithoutALeader(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.status.LeaderId, f.status.LeaderAddr, f.status.SelfId = "", "", "r1"
	f.status.Mode, f.status.ModeReason = "degraded", "no leader for 12 s"
	f.status.Replicas[1].Role, f.status.Replicas[1].Self = "voter", false
	code := s.run(f, "status")
	golden(t, "status-no-leader", f, s, code, "status")
	if code != exitUnavailable {
		t.Errorf("the exit code is %d, want 4", code)
	}
}

// TestStatusShowsTheLeadersAnswer: persysctl status shows the answer of the leader, because only the leader knows the
// indexes of the other replicas.
func TestStatusShowsTheLeadersAnswer(t *testing.T) {
	leader, follower, s := start(t, nil), start(t, nil), newSession(t)
	follower.status.SelfId, follower.leaderAt = "r1", leader.addr
	follower.status.Replicas[0].Self, follower.status.Replicas[1].Self = true, false
	if code := s.run(follower, "status"); code != 0 || !strings.Contains(s.stdout.String(), "41") {
		t.Errorf("exit %d, the output lacks the lag of 41 entries:\n%s%s", code, s.stdout.String(), s.stderr.String())
	}
}

func TestDangerousCommandsAskForConfirmation(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		person       bool
		args         []string
		code         int
	}{
		{"the user answers yes", "y\n", true, []string{"node", "fence", "node-b"}, exitOK},
		{"the user presses only Enter", "\n", true, []string{"node", "fence", "node-b"}, exitFailed},
		{"input has ended", "", true, []string{"node", "fence", "node-b"}, exitFailed},
		{"--yes skips the question", "", true, []string{"node", "fence", "node-b", "-y"}, exitOK},
		{"without a terminal there is no question", "", false, []string{"node", "fence", "node-b"}, exitOK},
		{"a plain delete does not ask", "", true, []string{"delete", "old"}, exitOK},
		{"a delete of data asks", "no\n", true, []string{"delete", "old", "web"}, exitFailed},
		{"a delete of data that the user wants", "yes\n", true, []string{"delete", "web"}, exitOK},
		{"--yes skips the question about data", "", true, []string{"delete", "web", "--yes"}, exitOK},
		{"without a terminal there is no question about data", "", false, []string{"delete", "web"}, exitOK},
		{"a forced delete asks", "no\n", true, []string{"delete", "old", "--force"}, exitFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			s.inTerm, s.errTerm = c.person, c.person
			s.in = strings.NewReader(c.answer)
			if code := s.run(f, c.args...); code != c.code {
				t.Errorf("the exit code is %d, want %d: %s", code, c.code, s.stderr.String())
			}
			if mutated := len(f.requestIDs) > 0; mutated != (c.code == exitOK) {
				t.Errorf("without a confirmation a change was sent: %v", mutated)
			}
		})
	}
}

// TestConfirmationBesideALog: if stderr is redirected to a file, persysctl asks on stdout whether to
// continue.
func TestConfirmationBesideALog(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	s.inTerm, s.outTerm, s.in = true, true, strings.NewReader("n\n")
	if code := s.run(f, "node", "fence", "node-b"); code != exitFailed || len(f.requestIDs) > 0 || !strings.Contains(s.stdout.String(), "Is node-b really off?") {
		t.Errorf("exit %d, %q", code, s.stdout.String())
	}
}

func TestCompletionSuggestsNames(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"workloads by prefix", []string{"get", "we"}, "web-0\tRunning on node-a\nweb-1\tRunning on rack-17-a-machine-with-a-very-long-name.dc1.example.internal\n:4\n"},
		{"a command with one argument offers no completion for a second one", []string{"get", "web-0", ""}, ":4\n"},
		{"completion leaves out ids that the command line already contains", []string{"delete", "web-0", "web"}, "web-1\tRunning on rack-17-a-machine-with-a-very-long-name.dc1.example.internal\n:4\n"},
		{"nodes", []string{"cordon", "node"}, "node-a\tReady\nnode-b\tNotReady\n:4\n"},
		{"a node as second argument", []string{"why-not", "db", "node-b"}, "node-b\tNotReady\n:4\n"},
		{"a node of a subcommand", []string{"node", "fence", "node-b"}, "node-b\tNotReady\n:4\n"},
		{"replicas", []string{"transfer-leadership", "scheduler-3"}, "scheduler-3\tvoter\n:4\n"},
		{"a flag's value", []string{"list", "--node", "node-a"}, "node-a\tReady\n:4\n"},
		{"values of --output", []string{"list", "-o", "j"}, "table\nwide\njson\nyaml\njsonpath=\n:4\n"},
		{"modes", []string{"mode", "set", "re"}, "recovery\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(t)
			args := append([]string{"__complete", "--insecure", "-s", f.addr}, c.args...)
			if code := run(t.Context(), s.world, args); code != 0 || !strings.HasPrefix(s.stdout.String(), c.want) {
				t.Errorf("the command ended with exit code %d and printed %q, want %q", code, s.stdout.String(), c.want)
			}
		})
	}
}

// TestCompletionAmongMany: completion finds the ids with the typed prefix even if they are not on the first
// page of the list.
func TestCompletionAmongMany(t *testing.T) {
	f := start(t, nil)
	f.workloads, f.nodes = nil, nil
	for i := range 10_000 {
		f.workloads = append(f.workloads, view(fmt.Sprintf("w-%04d", i), "Running", "n", ""))
	}
	for i := range 3_000 {
		f.nodes = append(f.nodes, &controlv1.NodeView{NodeId: fmt.Sprintf("n-%04d", i), Status: "Ready"})
	}
	for _, c := range []struct {
		args        []string
		n           int
		first, last string
	}{
		{[]string{"get", "w-99"}, 100, "w-9900", "w-9999"},
		{[]string{"get", "w-9999"}, 1, "w-9999", "w-9999"},
		{[]string{"get", "w-5"}, 1000, "w-5000", "w-5999"},
		{[]string{"get", ""}, 1000, "w-0000", "w-0999"},
		{[]string{"cordon", "n-299"}, 10, "n-2990", "n-2999"},
		{[]string{"get", "wé"}, 0, ":4", ":4"},
	} {
		s := newSession(t)
		code := run(t.Context(), s.world, append([]string{"__complete", "--insecure", "-s", f.addr}, c.args...))
		lines := strings.Split(strings.TrimSuffix(s.stdout.String(), "\n"), "\n")
		if code != 0 || len(lines) != c.n+1 || !strings.HasPrefix(lines[0], c.first) || !strings.HasPrefix(lines[max(0, c.n-1)], c.last) {
			t.Errorf("%v: exit code %d, %d lines from %q", c.args, code, len(lines), lines[0])
		}
	}
}

func TestCompletionIsSilentWithoutACluster(t *testing.T) {
	for _, args := range [][]string{{"--insecure", "-s", "127.0.0.1:1", "get", ""}, {"get", ""}} {
		s := newSession(t)
		code := run(t.Context(), s.world, append([]string{"__complete"}, args...))
		// cobra (the library that parses the command line) also prints the result of a completion as text to stderr,
		// which shells ignore. So stderr need not be empty.
		if code != 0 || s.stdout.String() != ":4\n" || strings.Contains(s.stderr.String(), "Error") {
			t.Errorf("exit %d, %q, %q", code, s.stdout.String(), s.stderr.String())
		}
	}
}

func TestCompletionScriptsArePrinted(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		s := newSession(t)
		if code := s.run(nil, "completion", shell); code != 0 || !strings.Contains(s.stdout.String(), "persysctl") {
			t.Errorf("%s: exit %d: %s", shell, code, s.stderr.String())
		}
	}
}

func TestVersionIsPrinted(t *testing.T) {
	s := newSession(t)
	if code := s.run(nil, "version"); code != 0 || !strings.HasPrefix(s.stdout.String(), "persysctl dev (") {
		t.Errorf("exit %d: %q", code, s.stdout.String())
	}
}

// TestTheReferenceIsComplete: the generated reference has commands, flags and help topics, and no empty
// table.
func TestTheReferenceIsComplete(t *testing.T) {
	s := newSession(t)
	if code := s.run(nil, "docs", filepath.Join(s.home, "out")); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	data, err := os.ReadFile(filepath.Join(s.home, "out", "persysctl.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## persysctl apply", "## persysctl node fence", "`--rpc-timeout-seconds`", "`-w`, `--watch`", "Exit codes"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the reference lacks %q", want)
		}
	}
	if m := regexp.MustCompile(`\n\|---\|---\|\n\n`).FindIndex(data); m != nil {
		t.Errorf("the reference has a table without rows: %s", data[max(0, m[0]-100):m[1]])
	}
	if strings.Contains(string(data), "persysctl workload") || strings.Contains(string(data), s.home) {
		t.Error("the reference contains a hidden command or a path of this machine")
	}
}
