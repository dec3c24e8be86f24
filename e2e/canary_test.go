package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestSecretsAreNowhereButInTheRuntime gives a secret to a container and to a stack, and puts it into further
// specifications that fail. The secret reaches the runtime and appears nowhere else: not in logs at debug
// level, data folders, state files, the mirror, a backup, the output of any command, the answers of the
// gateway, events or errors.
func TestSecretsAreNowhereButInTheRuntime(t *testing.T) {
	const canary = "c4nary0f7he7est"
	e, image := theEngine(t)
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	debug := map[string]string{"LOG_LEVEL": "debug", "LOG_FORMAT": "json"}
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 1, TLS: true, SchedulerEnv: mirrored(etcd, debug), AgentEnv: debug})
	id := onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	api := as(t, c, gatewayOf(t, c), "admin")

	files := t.TempDir() // the test does not search this folder, because it holds the specifications with the secrets
	write := func(name, text string) string {
		path := filepath.Join(files, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	var shown strings.Builder
	run := func(args ...string) string {
		t.Helper()
		res := got[harness.CtlResult](t)(c.Ctl(t.Context(), args...))
		fmt.Fprintf(&shown, "$ persysctl %s\n%s%s\n", strings.Join(args, " "), res.Stdout, res.Stderr)
		return res.Stdout + res.Stderr
	}
	one := write("web.yaml", "id: web\ncontainer: {image: "+image+", env: {TOKEN: "+canary+"-env}}\n")
	stack := write("shop.yaml", `id: shop
compose:
  env: {PASSWORD: `+canary+`-stack}
  inline: |
    services: {api: {image: "`+image+`", environment: {PASSWORD: "${PASSWORD}", FIXED: "`+canary+`-inline"}}}
`)
	// The specification bad.yaml has a secret where a port belongs, and the scheduler refuses it. An error that quotes
	// the wrong value would reveal the secret.
	failing := write("bad.yaml", `id: bad
compose:
  env: {PORT: "`+canary+`-port"}
  inline: |
    services: {api: {image: "`+image+`", ports: ["${PORT}:80"]}}
`)
	missing := write("gone.yaml", "id: gone\ncontainer: {image: 127.0.0.1:1/none:v1, env: {TOKEN: "+canary+"-pull}}\n")
	refused := write("refused.yaml", "id: refused\ncontainer: {image: \"not an image\", env: {\"BAD NAME\": "+canary+"-refused}}\n")
	for _, f := range []string{one, stack, missing} {
		run("apply", "-f", f)
	}
	for _, f := range []string{failing, refused} {
		if out := run("apply", "-f", f); !strings.Contains(out, "was refused") && !strings.Contains(out, "container.image: is no image reference") {
			t.Errorf("apply -f %s was not refused: %s", f, out)
		}
	}
	for _, w := range []string{"web", "shop"} {
		_, err := c.WaitWorkload(t.Context(), w, settle, running)
		must(t, err)
	}
	must(t, testbed.Poll(t.Context(), settle, "the failure in the status", func(ctx context.Context) error {
		if out := run("get", "gone"); !strings.Contains(out, "NETWORK_UNREACHABLE") {
			return fmt.Errorf("%s", out)
		}
		return nil
	}))
	for _, w := range []string{"web", "shop"} {
		all, err := e.Workload(t.Context(), id, w)
		must(t, err)
		env := ""
		for _, ctr := range all {
			env += strings.Join(got[[]string](t)(e.Environment(t.Context(), ctr.ID)), " ")
		}
		if !strings.Contains(env, canary) {
			t.Fatalf("the containers of %s did not get their secret: %s", w, env)
		}
	}

	changed := write("web.yaml", "id: web\ncontainer: {image: "+image+", env: {TOKEN: "+canary+"-other, NEW: "+canary+"-new}}\n")
	for _, args := range [][]string{
		{"plan", "-f", changed}, {"plan", "-f", changed, "-o", "json"}, {"plan", "-f", stack, "-o", "yaml"}, {"apply", "-f", changed, "--dry-run"},
		{"list", "-o", "wide"}, {"list", "-o", "json"}, {"events", "-o", "json"}, {"events", "-o", "wide"}, {"audit", "-o", "json"},
		{"drift", "list", "-o", "json"}, {"node", "node-a", "-o", "yaml"}, {"node", "gc", "node-a", "--dry-run", "-o", "json"}, {"volume", "list", "-o", "json"},
		{"status", "-o", "json"}, {"summary", "-o", "json"},
	} {
		run(args...)
	}
	for _, w := range []string{"web", "shop", "gone"} {
		for _, args := range [][]string{{"get", w}, {"get", w, "-o", "yaml"}, {"get", w, "-o", "json"}, {"why", w}, {"actions", w, "-o", "json"}} {
			run(args...)
		}
		for _, path := range []string{"/v1/workloads/" + w, "/workloads/" + w, "/v1/workloads/" + w + "/why", "/v1/workloads/" + w + "/actions"} {
			code, body := api.do("GET", path, "")
			fmt.Fprintf(&shown, "GET %s %d %v\n", path, code, body)
		}
	}
	code, body := api.do("GET", "/v1/workloads", "")
	fmt.Fprintf(&shown, "GET /v1/workloads %d %v\n", code, body)
	if !strings.Contains(shown.String(), "***") {
		t.Errorf("no shown text has a redacted value:\n%s", shown.String())
	}
	backup := filepath.Join(c.Dir, "backup")
	run("backup", "create", backup)
	if _, err := os.Stat(backup); err != nil {
		t.Error(err)
	}

	secret := []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))[:16]}
	for _, s := range secret {
		for line := range strings.Lines(shown.String()) {
			if strings.Contains(line, s) {
				t.Errorf("a command or answer shows the secret: %s", line)
			}
		}
		// c.Dir has data and logs of the schedulers, state and folders of the agent, the log of the gateway,
		// and the backup. None of them may contain a secret.
		if found := got[string](t)(containsText(c.Dir, s)); found != "" {
			t.Errorf("%s holds the secret", found)
		}
		for k, v := range got[map[string]string](t)(allKeys(t.Context(), kv)) {
			if strings.Contains(v, s) {
				t.Errorf("etcd: %s holds the secret", k)
			}
		}
	}
	if c, e := got[string](t)(containsText(c.Dir, "\"level\":\"DEBUG\"")), ""; c == e {
		t.Error("no debug line was logged, so the search in the logs has no meaning")
	}
}
