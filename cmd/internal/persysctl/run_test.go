package persysctl

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/child"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) {
	child.Serve(stack.Task)
	goleak.VerifyTestMain(m)
}

var update = flag.Bool("update", false, "write the golden files")

// session is one run of persysctl against a fake scheduler.
type session struct {
	world
	stdout, stderr testbed.Output
	env            map[string]string
	ctx            context.Context
}

func newSession(t testing.TB) *session {
	s := &session{env: map[string]string{}, ctx: t.Context()}
	s.world = world{
		name: Name, version: "dev",
		in: strings.NewReader(""), out: &s.stdout, err: &s.stderr, home: t.TempDir(), zone: time.UTC, readFile: os.ReadFile,
		environ: func(k string) (string, bool) { v, ok := s.env[k]; return v, ok },
		shell: func() (out []string) {
			for k, v := range s.env {
				out = append(out, k+"="+v)
			}
			return out
		},
		now: func() time.Time { return epoch }, looks: looks{output: 500 * time.Millisecond, member: 2 * time.Second},
	}
	return s
}

// terminal makes persysctl see a terminal of width columns and height rows.
func (s *session) terminal(width, height int) *session {
	s.outTerm, s.errTerm, s.width, s.height = true, true, width, height
	return s
}

func (s *session) run(f *fake, args ...string) int {
	if f != nil {
		args = append([]string{"--insecure", "-s", f.addr}, args...)
	}
	return run(s.ctx, s.world, args)
}

// golden runs persysctl with args, and compares the output and the exit code with a golden file and with
// code.
func golden(t *testing.T, name string, f *fake, s *session, code int, args ...string) {
	t.Helper()
	out := strings.NewReplacer(f.addr, "SERVER", s.home, "HOME")
	got := fmt.Sprintf("$ persysctl %s\n%s--- stderr\n%s--- exit %d\n", strings.Join(args, " "), out.Replace(s.stdout.String()), out.Replace(s.stderr.String()), code)
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run the test with -update to write the golden file", err)
	}
	if got != string(want) {
		t.Errorf("the output differs from the golden file; run the test with -update to accept it\n--- got\n%s\n--- want\n%s", got, want)
	}
}

// outputCases returns the commands whose output is compared with testdata/NAME.golden.
func outputCases() []outputCase {
	return []outputCase{
		{"list", []string{"list"}},
		{"list-node", []string{"ls", "--node", "node-a", "--status", "failed"}},
		{"list-nothing-matches", []string{"list", "--group", "none"}},
		{"list-bad-status", []string{"list", "--status", "Runing"}},
		{"list-json", []string{"list", "--group", "web", "-o", "json"}},
		{"list-yaml", []string{"list", "--group", "web", "-o", "yaml"}},
		{"list-json-empty", []string{"list", "--group", "none", "-o", "json"}},
		{"list-wide", []string{"list", "-o", "wide"}},
		{"get", []string{"get", "web-0"}},
		{"get-retry", []string{"get", "batch"}},
		{"get-yaml", []string{"get", "web-0", "-o", "yaml"}},
		{"get-missing", []string{"get", "nothing"}},
		{"get-group", []string{"get", "web"}},
		{"workload-get", []string{"workload", "get", "--id", "web-1"}},
		{"history", []string{"history", "web-0"}},
		{"history-json", []string{"history", "web-0", "-o", "json"}},
		{"history-missing", []string{"history", "nothing"}},
		{"diff", []string{"diff", "web-0"}},
		{"diff-of-two", []string{"diff", "web-0", "--revision", "1..3"}},
		{"diff-bad-numbers", []string{"diff", "web-0", "--revision", "one..2"}},
		{"diff-not-kept", []string{"diff", "web-0", "--revision", "1..9"}},
		{"rollback", []string{"rollback", "web-0", "--to", "1"}},
		{"rollback-unchanged", []string{"rollback", "web-0", "--to", "3"}},
		{"rollback-refused", []string{"rollback", "web-1"}},
		{"rollout-status", []string{"rollout", "status", "web"}},
		{"rollout-status-json", []string{"rollout", "status", "web", "-o", "json"}},
		{"rollout-status-wait", []string{"rollout", "status", "web", "--wait"}},
		{"rollout-status-stuck", []string{"rollout", "status", "stuck", "--wait"}},
		{"rollout-status-late", []string{"rollout", "status", "slow", "--wait", "--timeout", "20ms"}},
		{"rollout-status-canary", []string{"rollout", "status", "fresh"}},
		{"rollout-status-canary-wait", []string{"rollout", "status", "fresh", "--wait"}},
		{"rollout-missing", []string{"rollout", "status", "nothing"}},
		{"scale", []string{"scale", "web=5", "api=0"}},
		{"scale-down", []string{"scale", "web=2"}},
		{"scale-unchanged", []string{"scale", "web=3"}},
		{"scale-json", []string{"scale", "web=2", "-o", "json"}},
		{"scale-bad-count", []string{"scale", "web=many"}},
		{"scale-missing", []string{"scale", "nothing=2"}},
		{"rollout-pause", []string{"rollout", "pause", "web"}},
		{"rollout-resume", []string{"rollout", "resume", "web"}},
		{"rollout-promote", []string{"rollout", "promote", "web"}},
		{"rollout-abort", []string{"rollout", "abort", "web"}},
		{"rollout-undo", []string{"rollout", "undo", "web", "-o", "json"}},
		{"nodes", []string{"nodes"}},
		{"nodes-wide", []string{"nodes", "-o", "wide"}},
		{"top-nodes", []string{"top", "nodes"}},
		{"top-nodes-wide", []string{"top", "nodes", "--sort", "memory", "-o", "wide"}},
		{"top-workloads", []string{"top", "workloads"}},
		{"top-workloads-wide", []string{"top", "workloads", "--sort", "network", "-o", "wide"}},
		{"top-workloads-yaml", []string{"top", "workloads", "--limit", "1", "-o", "yaml"}},
		{"top-workloads-none", []string{"top", "workloads", "--node", "node-b"}},
		{"top-bad-order", []string{"top", "nodes", "--sort", "age"}},
		{"top-what", []string{"top", "pods"}},
		{"node", []string{"node", "node-a"}},
		{"node-get", []string{"node", "get", "node-b"}},
		{"node-missing", []string{"node", "node-x"}},
		{"node-fence", []string{"node", "fence", "node-b"}},
		{"node-remove", []string{"node", "remove", "node-b"}},
		{"node-remove-force", []string{"node", "remove", "node-b", "--force"}},
		{"node-label", []string{"node", "label", "node-a", "zone=b", "disk-"}},
		{"node-label-remove", []string{"node", "label", "node-a", "zone-", "disk-"}},
		{"node-label-missing", []string{"node", "label", "node-x", "zone=b"}},
		{"node-label-bad", []string{"node", "label", "node-a", "zone"}},
		{"node-label-twice", []string{"node", "label", "node-a", "zone=b", "zone-"}},
		{"node-taint", []string{"node", "taint", "node-a", "gpu=a:NoSchedule", "repair:noexecute:60", "old-"}},
		{"node-taint-remove", []string{"node", "taint", "node-a", "old-"}},
		{"node-taint-bad", []string{"node", "taint", "node-a", "gpu=a"}},
		{"cordon", []string{"cordon", "node-a", "node-x"}},
		{"uncordon", []string{"uncordon", "node-a"}},
		{"drain-preview", []string{"drain", "node-a", "--preview"}},
		{"drain-undo", []string{"drain", "node-a", "--undo"}},
		{"drain", []string{"drain", "node-a"}},
		{"drain-deadline", []string{"drain", "node-a", "--deadline", "90m"}}, {"drain-deadline-bad", []string{"drain", "node-a", "--deadline", "1500ms"}},
		{"drain-deadline-undo", []string{"drain", "node-a", "--undo", "--deadline", "1h"}},
		{"rebalance-preview", []string{"rebalance", "--preview"}},
		{"rebalance-preview-json", []string{"rebalance", "--preview", "--max-moves", "1", "-o", "json"}},
		{"rebalance-no-moves", []string{"rebalance", "--min-gain", "60%"}},
		{"rebalance-apply", []string{"rebalance", "--apply"}},
		{"rebalance-apply-json", []string{"rebalance", "--apply", "--max-moves", "2", "-o", "json"}},
		{"rebalance-apply-no-moves", []string{"rebalance", "--apply", "--min-gain", "60%"}},
		{"rebalance-wait-without-apply", []string{"rebalance", "--wait"}},
		{"rebalance-too-many", []string{"rebalance", "--max-moves", "1001"}},
		{"rebalance-policy", []string{"rebalance", "policy"}},
		{"rebalance-policy-set", []string{"rebalance", "policy", "--per-hour", "20", "--at-once", "2"}},
		{"rebalance-policy-off", []string{"rebalance", "policy", "--off", "-o", "json"}},
		{"rebalance-policy-zero", []string{"rebalance", "policy", "--per-hour", "0"}},
		{"rebalance-policy-off-half", []string{"rebalance", "policy", "--off", "--at-once", "2"}},
		{"rebalance-policy-half", []string{"rebalance", "policy", "--at-once", "2"}},
		{"rebalance-bad-gain", []string{"rebalance", "--min-gain", "101"}},
		{"drift-list", []string{"drift", "list"}},
		{"drift-list-wide", []string{"drift", "ls", "-o", "wide"}},
		{"drift-list-json", []string{"drift", "list", "--node", "node-b", "-o", "json"}},
		{"drift-none", []string{"drift", "list", "--workload", "nothing"}},
		{"drift-adopt", []string{"drift", "adopt", "node-a", "web"}},
		{"drift-adopt-unknown", []string{"drift", "adopt", "node-a", "ghost"}},
		{"drift-delete", []string{"drift", "delete", "node-a", "ghost", "--yes"}},
		{"drift-delete-missing", []string{"drift", "delete", "node-a", "--yes"}},
		{"volume-list", []string{"volume", "list"}},
		{"volume-list-wide", []string{"volume", "ls", "--ask-nodes", "-o", "wide"}},
		{"volume-list-none", []string{"volume", "list", "--node", "node-b", "--ask-nodes"}},
		{"volume-inspect", []string{"volume", "inspect", "kept"}},
		{"volume-inspect-none", []string{"volume", "inspect", "none"}},
		{"volume-create", []string{"volume", "create", "db", "--size", "20Gi"}},
		{"volume-create-size", []string{"volume", "create", "db", "--size", "much"}},
		{"volume-delete", []string{"volume", "rm", "kept", "--node", "node-a", "--yes"}},
		{"volume-delete-which", []string{"volume", "rm", "kept", "--yes"}},
		{"volume-delete-used", []string{"volume", "rm", "data", "--yes"}},
		{"namespace-list", []string{"namespace", "list"}},
		{"namespace-list-json", []string{"ns", "ls", "-o", "json"}},
		{"namespace-show", []string{"namespace", "show", "shop"}},
		{"namespace-show-default", []string{"namespace", "show", "default"}},
		{"namespace-show-missing", []string{"namespace", "show", "none"}},
		{"namespace-set", []string{"namespace", "set", "site", "--cpu", "500m", "--memory", "2Gi"}},
		{"namespace-set-over", []string{"namespace", "set", "shop", "--cpu", "1", "--release", "ada"}},
		{"namespace-set-bad-memory", []string{"namespace", "set", "shop", "--memory", "2"}},
		{"namespace-set-remove", []string{"namespace", "set", "shop", "--remove-user", "bob"}},
		{"namespace-delete", []string{"namespace", "delete", "site"}},
		{"role-list", []string{"role", "list"}},
		{"role-put", []string{"role", "put", "deployer", "--permission", "read,logs,deploy"}},
		{"role-put-builtin", []string{"role", "put", "viewer", "--permission", "read"}},
		{"role-put-nothing", []string{"role", "put", "deployer"}},
		{"role-delete-bound", []string{"role", "rm", "deployer"}},
		{"role-bindings", []string{"role", "bindings"}},
		{"role-bind", []string{"role", "bind", "operator", "--user", "ada", "--namespace", "shop,bank"}},
		{"role-bind-nowhere", []string{"role", "bind", "operator", "--user", "ada"}},
		{"role-bind-nobody", []string{"role", "bind", "operator", "--namespace", "shop"}},
		{"role-bind-more-than-own", []string{"role", "bind", "admin", "--user", "eve", "--namespace", "*"}},
		{"role-unbind", []string{"role", "unbind", "operator", "--group", "developers"}},
		{"network-list", []string{"network", "list"}},
		{"network-inspect", []string{"network", "inspect", "back"}},
		{"network-inspect-missing", []string{"network", "inspect", "none"}},
		{"network-check", []string{"network", "check"}},
		{"network-check-problem", []string{"network", "check", "shut"}},
		{"network-check-json", []string{"network", "check", "back", "-o", "json"}},
		{"network-create", []string{"network", "create", "front", "--subnet", "10.50.0.0/20"}},
		{"network-create-bad-subnet", []string{"network", "create", "front", "--subnet", "10.50.0.1/20"}},
		{"network-rm", []string{"network", "rm", "front"}},
		{"network-rm-used", []string{"network", "rm", "back"}},
		{"trace", []string{"trace", "api:8080", "--from", "web-0"}},
		{"trace-problem", []string{"trace", "shut:8080"}},
		{"trace-json", []string{"trace", "shut:8080", "-o", "json"}},
		{"trace-no-port", []string{"trace", "api"}},
		{"session-list", []string{"session", "list"}},
		{"session-end", []string{"session", "end", "5f0c2d7e91a4b833"}},
		{"session-end-user", []string{"session", "end", "--user", "ada"}},
		{"session-end-nothing", []string{"session", "end"}},
		{"console-web", []string{"console", "--gateway", "https://gateway.example.com:8551", "--ttl", "8h"}},
		{"console-web-plain-text", []string{"console", "--gateway", "http://gateway.example.com:8551"}},
		{"console-web-too-long", []string{"console", "--ttl", "48h"}},
		{"console-web-service", []string{"console", "--service", "web"}},
		{"account-list", []string{"account", "list"}},
		{"account-create", []string{"account", "create", "ci", "--role", "operator", "--namespace", "shop", "--ttl", "8h"}},
		{"account-create-issuer", []string{"account", "create", "ci", "--issuer", "https://ci.example", "--audience", "persys", "--claim", "repository=shop/web"}},
		{"account-create-too-long", []string{"account", "create", "ci", "--ttl", "1000h"}},
		{"account-create-nowhere", []string{"account", "create", "ci", "--role", "operator"}},
		{"policy-list", []string{"policy", "list"}},
		{"policy-show", []string{"policy", "show", "baseline"}},
		{"policy-show-missing", []string{"policy", "show", "none"}},
		{"policy-bind", []string{"policy", "bind", "restricted", "--namespace", "shop"}},
		{"policy-bind-nodes", []string{"policy", "bind", "restricted", "--node-label", "zone=dmz"}},
		{"policy-bind-remove", []string{"policy", "bind", "--remove", "--namespace", "shop"}},
		{"policy-bind-nothing", []string{"policy", "bind", "restricted"}},
		{"policy-bind-no-name", []string{"policy", "bind", "--namespace", "shop"}},
		{"policy-set-no-file", []string{"policy", "set", "own"}},
		{"policy-test-no-file", []string{"policy", "test", "own"}},
		{"policy-delete", []string{"policy", "delete", "own"}},
		{"policy-delete-builtin", []string{"policy", "delete", "baseline"}},
		{"namespace-delete-used", []string{"namespace", "delete", "shop"}},
		{"gc-dry-run", []string{"node", "gc", "node-a", "--dry-run"}},
		{"gc", []string{"node", "gc", "node-a"}},
		{"gc-runtime-down", []string{"node", "gc", "node-b"}},
		{"gc-json", []string{"node", "gc", "node-a", "-o", "json"}},
		{"gc-failed", []string{"node", "gc", "rack-17"}},
		{"summary", []string{"summary"}},
		{"status", []string{"status"}},
		{"status-wide", []string{"status", "-o", "wide"}},
		{"status-json", []string{"status", "-o", "json"}},
		{"events", []string{"events"}},
		{"events-wide", []string{"events", "-o", "wide"}},
		{"events-json", []string{"events", "--workload", "web-0", "-o", "json"}},
		{"events-yaml", []string{"events", "--type", "NodeLost", "-o", "yaml"}},
		{"events-none", []string{"events", "--workload", "x"}},
		{"why", []string{"why", "db"}},
		{"why-timed-out", []string{"why", "batch"}},
		{"why-missing", []string{"why", "web"}},
		{"why-not", []string{"why-not", "db", "node-a"}},
		{"why-not-feasible", []string{"why-not", "db", "rack-17-a-machine-with-a-very-long-name.dc1.example.internal"}},
		{"why-not-missing-node", []string{"why-not", "db", "node-x"}},
		{"actions", []string{"actions", "web-0"}},
		{"logs", []string{"logs", "web-0", "--tail", "5"}},
		{"logs-nowhere", []string{"logs", "db"}},
		{"delete", []string{"delete", "web", "nothing", "old"}},
		{"delete-json", []string{"delete", "old", "-o", "json"}},
		{"retry", []string{"retry", "batch"}},
		{"retry-healthy", []string{"retry", "web-0"}},
		{"restart", []string{"restart", "web-0", "nothing"}},
		{"start", []string{"start", "old"}},
		{"stop-missing", []string{"stop", "nothing"}},
		{"transfer", []string{"transfer-leadership", "scheduler-3"}},
		{"replica-remove", []string{"replica", "remove", "scheduler-3"}},
		{"replica-leave", []string{"replica", "leave", "scheduler-3"}},
		{"mode-set", []string{"mode", "set", "normal", "--reason", "the mirror is back"}},
		{"mode-set-without-reason", []string{"mode", "set", "normal"}},
	}
}

type outputCase struct {
	name string
	args []string
}

func TestOutputsAreGolden(t *testing.T) {
	for _, c := range outputCases() {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			code := s.run(f, c.args...)
			golden(t, c.name, f, s, code, c.args...)
			if strings.Contains(s.stdout.String()+s.stderr.String(), "\x1b") {
				t.Error("the output to a pipe contains escape sequences")
			}
			if !strings.Contains(c.name, "wide") && !strings.Contains(c.name, "json") && !strings.Contains(c.name, "yaml") {
				for _, line := range strings.Split(s.stdout.String(), "\n") {
					if n := utf8.RuneCountInString(line); n > 100 {
						t.Errorf("a line has %d columns, more than 100: %s", n, line)
					}
				}
			}
		})
	}
}

func TestEmptyListsNameTheNextCommand(t *testing.T) {
	f := start(t, nil)
	f.nodes, f.workloads, f.events = nil, nil, nil
	for name, want := range map[string]string{"list": "persysctl apply -f FILE", "nodes": "start an agent", "events": "persysctl events -w"} {
		s := newSession(t)
		if code := s.run(f, name); code != 0 || !strings.Contains(s.stderr.String(), want) || s.stdout.String() != "" {
			t.Errorf("%s ended with exit code %d, stdout %q, stderr %q; want a hint with %q on stderr only", name, code, s.stdout.String(), s.stderr.String(), want)
		}
	}
}

// TestListShowsKinds: a list that contains only services has no column KIND.
func TestListShowsKinds(t *testing.T) {
	f := start(t, nil)
	columns := func(args ...string) []string {
		s := newSession(t)
		if code := s.run(f, args...); code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, s.stderr.String())
		}
		var out []string
		for line := range strings.Lines(s.stdout.String()) {
			if n := utf8.RuneCountInString(line); n > 101 {
				t.Errorf("%v prints a line of %d columns: %s", args, n, line)
			}
			if cells := strings.Fields(line); len(cells) > 2 {
				out = append(out, cells[0]+" "+cells[1])
			}
		}
		return out
	}
	if got := columns("list", "--group", "web"); got[0] != "WORKLOAD STATUS" {
		t.Errorf("a list that contains only services begins with the columns %s", got[0])
	}
	f.workloads[0].Kind = spec.KindJob
	f.workloads[0].WorkloadId = "a-batch-with-a-name-that-is-longer-than-its-column"
	if got := columns("list"); got[0] != "WORKLOAD KIND" || !strings.HasSuffix(got[1], " job") || got[2] != "db service" {
		t.Errorf("the list with a job has the line %q", got)
	}
	if got := columns("list", "--kind", "Job"); len(got) != 2 {
		t.Errorf("list --kind Job prints %q", got)
	}
	if s := newSession(t); s.run(f, "list", "--kind", "jobs") != exitUsage || !strings.Contains(s.stderr.String(), `--kind "jobs" must be one of service, job, cron, system`) {
		t.Errorf("list --kind jobs prints %s", s.stderr.String())
	}
}

// TestTablesFitNarrowTerminals: the lines of all tables fit into terminals of every width.
func TestTablesFitNarrowTerminals(t *testing.T) {
	f := start(t, nil)
	for _, width := range []int{40, 60, 80, 100, 200} {
		for _, verb := range []string{"list", "nodes", "status", "events", "why db", "get web-0", "node node-a", "actions web-0", "drain node-a --preview"} {
			s := newSession(t).terminal(width, 50)
			s.env["NO_COLOR"] = "1"
			if code := s.run(f, strings.Fields(verb)...); code != 0 {
				t.Fatalf("%s: exit %d: %s", verb, code, s.stderr.String())
			}
			inSpec := false // long lines of the specification are not wrapped, so they are not checked
			for _, line := range strings.Split(s.stdout.String(), "\n") {
				inSpec = strings.HasPrefix(line, "Specification") || inSpec && strings.HasPrefix(line, "  ")
				if n := utf8.RuneCountInString(line); n > width && !inSpec {
					t.Errorf("the output of %s on a terminal of %d columns has a line of %d columns: %s", verb, width, n, line)
				}
			}
		}
	}
}

func TestColoursAreUsedOnlyOnTerminals(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct {
		name string
		set  func(*session)
		args []string
		want bool
	}{
		{"output to a terminal has colours", func(s *session) { s.terminal(120, 40) }, []string{"list"}, true},
		{"output to a pipe has no colours", func(*session) {}, []string{"list"}, false},
		{"NO_COLOR is respected", func(s *session) { s.terminal(120, 40).env["NO_COLOR"] = "1" }, []string{"list"}, false},
		{"an empty NO_COLOR has no effect", func(s *session) { s.terminal(120, 40).env["NO_COLOR"] = "" }, []string{"list"}, true},
		{"output to a terminal with TERM=dumb has no colours", func(s *session) { s.terminal(120, 40).env["TERM"] = "dumb" }, []string{"list"}, false},
		{"--no-color is respected", func(s *session) { s.terminal(120, 40) }, []string{"list", "--no-color"}, false},
		{"errors written to a pipe have no colours", func(s *session) { s.outTerm = true }, []string{"get", "x"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSession(t)
			c.set(s)
			s.run(f, c.args...)
			if got := strings.Contains(s.stdout.String()+s.stderr.String(), "\x1b["); got != c.want {
				t.Errorf("whether the output has colours is %v, want %v:\n%q", got, c.want, s.stdout.String())
			}
		})
	}
}

// TestForeignTextIsHarmless: control characters in messages of workloads are not written to the terminal.
func TestForeignTextIsHarmless(t *testing.T) {
	f, s := start(t, nil), newSession(t).terminal(200, 40)
	s.env["NO_COLOR"] = "1"
	s.run(f, "list")
	if out := s.stdout.String(); strings.Contains(out, "\x1b") || !strings.Contains(out, "said ?[31mred") {
		t.Errorf("control characters in a message of a workload were written to the terminal: %q", out)
	}
}

func TestErrorsHaveTheirExitCodes(t *testing.T) {
	noLeader := dial.Error(codes.Unavailable, dial.ReasonNoLeader, "there is no leader; `persysctl status` shows the replicas")
	many := func(err error) []error {
		out := make([]error, 1000)
		for i := range out {
			out[i] = err
		}
		return out
	}
	for _, c := range []struct {
		name   string
		method string
		errs   []error
		args   []string
		code   int
		stderr []string
	}{
		{"a command that succeeds", "", nil, []string{"list"}, exitOK, nil},
		{"an unknown command", "", nil, []string{"lits"}, exitUsage, []string{`unknown command "lits"`, "hint: persysctl list"}},
		{"the verb that docker uses for list", "", nil, []string{"ps"}, exitUsage, []string{`unknown command "ps"`, "hint: persysctl list\n"}},
		{"docker stack deploy", "", nil, []string{"stack", "deploy", "-c", "compose.yaml", "shop"}, exitUsage, []string{`unknown command "stack"`, "hint: persysctl apply -f FILE\n"}},
		{"docker service ls", "", nil, []string{"service", "ls"}, exitUsage, []string{"hint: persysctl list\n"}},
		{"docker service scale", "", nil, []string{"service", "scale", "web=3"}, exitUsage, []string{"hint: persysctl scale GROUP=COUNT\n"}},
		{"docker stack rm", "", nil, []string{"stack", "rm", "shop"}, exitUsage, []string{"hint: persysctl delete WORKLOAD\n"}},
		{"docker stack ps", "", nil, []string{"stack", "ps", "shop"}, exitUsage, []string{"hint: persysctl list\n"}},
		{"a noun of another tool alone", "", nil, []string{"stack"}, exitUsage, []string{"hint: persysctl list\n"}},
		{"another tool's whole command", "", nil, []string{"docker", "service", "inspect", "web"}, exitUsage, []string{"hint: persysctl get WORKLOAD\n"}},
		{"another tool before a command of ours", "", nil, []string{"docker", "logs", "web"}, exitUsage, []string{"hint: persysctl logs\n"}},
		{"kubectl get pods", "", nil, []string{"pods"}, exitUsage, []string{"hint: persysctl list\n"}},
		{"docker inspect", "", nil, []string{"inspect", "web"}, exitUsage, []string{"hint: persysctl get WORKLOAD\n"}},
		{"docker compose up", "", nil, []string{"compose", "up"}, exitUsage, []string{`unexpected argument "up"`, "hint: persysctl apply -f FILE\n"}},
		{"nomad job run", "", nil, []string{"job", "run", "web.nomad"}, exitUsage, []string{"hint: persysctl apply -f FILE\n"}},
		{"a mistyped list", "", nil, []string{"lst"}, exitUsage, []string{"hint: persysctl list\n"}},
		{"the verb that docker uses for start", "", nil, []string{"up", "nginx"}, exitUsage, []string{`takes no argument, got "nginx"`, "persysctl apply -f FILE\n"}},
		{"the verb that docker uses for get", "", nil, []string{"inspect", "web"}, exitUsage, []string{"hint: persysctl get WORKLOAD\n"}},
		{"a verb that resembles no command", "", nil, []string{"frobnicate"}, exitUsage, []string{"hint: persysctl --help\n"}},
		{"ls is an alias of list", "", nil, []string{"ls"}, exitOK, nil},
		{"describe is an alias of get", "", nil, []string{"describe", "web-0"}, exitOK, nil},
		{"rm is an alias of delete", "", nil, []string{"rm", "old"}, exitOK, nil},
		{"a value of --tail that is not a number", "", nil, []string{"logs", "web-0", "--tail", "x"}, exitUsage, []string{`invalid argument "x" for "--tail" flag: must be a whole number` + "\n"}},
		{"an unknown flag", "", nil, []string{"list", "--nod"}, exitUsage, []string{"unknown flag: --nod", "hint: persysctl list --help"}},
		{"a missing argument", "", nil, []string{"why-not", "web"}, exitUsage, []string{"NODE is missing"}},
		{"a surplus argument", "", nil, []string{"get", "a", "b"}, exitUsage, []string{`unexpected argument "b"`}},
		{"a blank argument", "", nil, []string{"get", " "}, exitUsage, []string{"WORKLOAD must not be blank"}},
		{"an unknown value of --output", "", nil, []string{"list", "-o", "xml"}, exitUsage, []string{`--output "xml" must be one of table, wide, json, yaml`}},
		{"an invalid number", "", nil, []string{"list", "--rpc-timeout-seconds", "0"}, exitUsage, []string{"rpc-timeout-seconds"}},
		{"an invalid timeout", "", nil, []string{"start", "old", "--wait", "--timeout", "0s"}, exitUsage, []string{"--timeout 0s must be longer than 0"}},
		{"an invalid --tail", "", nil, []string{"events", "--tail", "-1"}, exitUsage, []string{"--tail -1 must be 0 or more"}},
		{"an invalid --since", "", nil, []string{"logs", "web-0", "--since", "yesterday"}, exitUsage, []string{`--since "yesterday" must be a duration`}},
		{"a file that does not exist", "", nil, []string{"apply", "-f", "/nowhere.yaml"}, exitFailed, []string{"/nowhere.yaml: no such file"}},
		{"apply without a file", "", nil, []string{"apply"}, exitUsage, []string{"no file is given"}},
		{"a file without -f", "", nil, []string{"apply", "x.yaml"}, exitUsage, []string{"files are named with -f"}},
		{"a workload that does not exist", "", nil, []string{"get", "nothing"}, exitNotFound, []string{`Error: workload "nothing" not found`, "hint: persysctl list"}},
		{"an answer that contains a refusal because the id is unknown", "", nil, []string{"start", "nothing"}, exitNotFound, []string{`workload "nothing" not found`}},
		{"a refusal", "CordonNode", []error{status.Error(codes.FailedPrecondition, "the cluster is in mode degraded: etcd is away")},
			[]string{"cordon", "node-a"}, exitFailed, []string{"the cluster is in mode degraded: etcd is away"}},
		{"a hint in the server's message is printed on a separate line", "CordonNode", []error{status.Error(codes.FailedPrecondition, "frozen; `persysctl mode set normal` thaws")},
			[]string{"cordon", "node-a"}, exitFailed, []string{"Error: frozen\n", "hint: persysctl mode set normal\n"}},
		{"permission", "RemoveReplica", []error{status.Error(codes.PermissionDenied, "user/bob may not remove replica")},
			[]string{"replica", "remove", "x"}, exitFailed, []string{"user/bob may not", "--tls-cert"}},
		{"no leader", "ListWorkloads", many(noLeader), []string{"list", "--rpc-timeout-seconds", "1"}, exitUnavailable, []string{"no leader", "hint: persysctl status"}},
		{"a node whose agent does not answer", "Logs", many(status.Error(codes.Unavailable, "node node-a: the agent does not answer")), []string{"logs", "web-0"},
			exitUnavailable, []string{"Error: node node-a: the agent does not answer"}},
		{"an unknown outcome", "DeleteWorkload", many(dial.UnknownOutcome("delete workload: the leader fell silent")),
			[]string{"delete", "old", "--rpc-timeout-seconds", "1"}, exitUnknown, []string{"may or may not have happened", "persysctl events"}},
		{"a read has no unknown outcome", "Recovery", many(status.Error(codes.DeadlineExceeded, "late")), []string{"recovery", "show"}, exitUnavailable, []string{"no answer within 15m"}},
		{"a preview has no unknown outcome", "RestoreMirror", []error{dial.UnknownOutcome("silent")}, []string{"recovery", "restore", "--dry-run"}, exitUnavailable, []string{"nothing was changed"}},
		{"a restore has an unknown outcome", "RestoreMirror", []error{nil, dial.UnknownOutcome("silent")}, []string{"recovery", "restore", "--yes"}, exitUnknown, []string{"may or may not"}},
		{"aborted", "DeleteWorkload", []error{status.Error(codes.Aborted, "the world moved")}, []string{"delete", "old"}, exitFailed, []string{"the world moved", "again"}},
		{"a web server that is no scheduler", "Why", []error{status.Error(codes.Unimplemented, "unexpected HTTP status code received from server: 404 (Not Found); malformed header: missing HTTP content-type")},
			[]string{"why", "db"}, exitFailed, []string{"is no scheduler: it answers with HTTP status 404\n", "hint: name a scheduler with --server HOST:PORT"}},
		{"an old scheduler", "Why", []error{status.Error(codes.Unimplemented, "unknown method Why")}, []string{"why", "db"}, exitFailed, []string{"does not know the call"}},
		{"the worst result of several workloads decides the exit code", "DeleteWorkload", append([]error{nil}, many(dial.UnknownOutcome("silent"))...),
			[]string{"delete", "nothing", "old", "--rpc-timeout-seconds", "1"}, exitUnknown, []string{`"nothing" not found`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			f.fail[c.method] = c.errs
			if code := s.run(f, c.args...); code != c.code {
				t.Errorf("the exit code is %d, want %d: %s", code, c.code, s.stderr.String())
			}
			for _, want := range c.stderr {
				if !strings.Contains(s.stderr.String(), want) {
					t.Errorf("stderr does not contain %q: %s", want, s.stderr.String())
				}
			}
			if c.code != exitOK && !strings.HasPrefix(s.stderr.String(), "Error: ") {
				t.Errorf("an error message must begin with Error:, but is %q", s.stderr.String())
			}
		})
	}
}

func TestASlowSchedulerEndsTheCommand(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"list"}, exitUnavailable}, {[]string{"stop", "old"}, exitUnknown}} {
		t.Run(c.args[0], func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			f.slow = 20 * time.Second
			if code := s.run(f, append(c.args, "--rpc-timeout-seconds", "1")...); code != c.code {
				t.Errorf("the exit code is %d, want %d: %s", code, c.code, s.stderr.String())
			}
		})
	}
}

// TestAMissingServerIsReportedSoon: if no scheduler runs, the error comes long before the 20 seconds that a
// call may take, and names the systemd unit to start.
func TestAMissingServerIsReportedSoon(t *testing.T) {
	for _, args := range [][]string{{"list"}, {"stop", "web"}, {"events", "-w"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			s := newSession(t)
			began := time.Now()
			code := s.run(nil, append([]string{"--insecure", "-s", "127.0.0.1:1"}, args...)...)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the error came after %s", took)
			}
			for _, want := range []string{"no scheduler listens at 127.0.0.1:1", "systemctl status persys-scheduler", "persys dev"} {
				if code != exitUnavailable || !strings.Contains(s.stderr.String(), want) {
					t.Errorf("exit %d: %s; want 4 and %q", code, s.stderr.String(), want)
				}
			}
		})
	}
}

// TestStorageIsClean: control characters in texts of an agent are not written to the terminal.
func TestStorageIsClean(t *testing.T) {
	s := newSession(t)
	c := &cli{world: s.world}
	const evil = "\x1b]0;x\a\nnot ours"
	c.showVolumes(&clusterv1.ListVolumesResponse{Problems: []*clusterv1.StorageProblem{{NodeId: "node-a", Reason: evil}}})
	c.showGarbage("node-a", &clusterv1.CollectGarbageRequest{}, &clusterv1.CollectGarbageResponse{Skipped: []string{evil}})
	c.showNode(&controlv1.NodeView{NodeId: "node-a", StoragePools: []*controlv1.StoragePoolView{{Name: evil}}})
	if out := s.stdout.String(); strings.ContainsAny(out, "\x1b\a") || strings.Contains(out, "\nnot ours") {
		t.Errorf("control characters in a text of an agent were written to the terminal: %q", out)
	}
}

// TestUncordonOfADrainingNode: a user uncordons a node that is being drained. The drain must go on, and the output
// must name the command that ends a drain.
func TestUncordonOfADrainingNode(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.nodes = []*controlv1.NodeView{{NodeId: "node-a", Status: "Draining"}}
	if code := s.run(f, "uncordon", "node-a"); code != 0 || !strings.Contains(s.stderr.String(), "persysctl drain node-a --undo") || len(f.requests) != 1 {
		t.Errorf("the command ended with exit code %d: %s%s", code, s.stdout.String(), s.stderr.String())
	}
}
