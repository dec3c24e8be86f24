package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestComposeStackWithFiles: a stack runs with the files beside its Compose file: env_file, include, extends,
// a bind mount, a config and a secret. If a file changes, an apply must replace the container that uses it. A
// rollback must bring the former content back, and a delete must leave no file behind. The contents are in
// plain text only in the folder that the containers mount.
func TestComposeStackWithFiles(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	cluster := onDocker(t, e, c)
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	dir := filepath.Join(t.TempDir(), "filed")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "IMAGE", image)), 0o600))
	}
	write("stack.yml", `include: [parts/side.yml]
services:
  web:
    extends: {file: base.yml, service: base}
    env_file: web.env
    volumes: ["./conf:/etc/site:ro", "./data:/data"]
    configs: [{source: main, target: /main.conf}]
  worker:
    image: IMAGE
    secrets: [token]
configs: {main: {file: conf/main.conf}}
secrets: {token: {file: ./token.txt}}
`)
	write("parts/side.yml", "services: {side: {image: IMAGE}}\n")
	write("base.yml", "services: {base: {image: IMAGE, ports: [\"8080\"]}}\n")
	write("web.env", "GREETING=canary-greeting\n")
	write("conf/main.conf", "main canary-one")
	write("conf/debug.log", "no")
	write("token.txt", "canary-token")
	write(".persysignore", "**/*.log\n")
	file := filepath.Join(dir, "stack.yml")

	containers := func() map[string]string { // returns container ids by service
		out := map[string]string{}
		all, err := e.Workload(t.Context(), cluster, "filed")
		must(t, err)
		for _, one := range all {
			out[one.Labels["com.docker.compose.service"]] = one.ID
		}
		return out
	}
	// reads waits until each container of the stack reports the expected file contents, and no other container
	// of the stack runs. main is the expected content of main.conf, which the test changes.
	reads := func(when, main string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, when, func(ctx context.Context) error {
			all := containers()
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"side", "web", "worker"}) {
				return fmt.Errorf("the stack runs the services %v", got)
			}
			for _, want := range []struct{ service, path, text string }{
				{"web", "/etc/site/main.conf", main}, {"web", "/main.conf", main}, {"worker", "/run/secrets/token", "canary-token"},
			} {
				text, err := e.MountedFile(ctx, all[want.service], want.path)
				if err != nil || text != want.text {
					return fmt.Errorf("file %s of service %s is %q (%v), want %q", want.path, want.service, text, err, want.text)
				}
			}
			return nil
		}))
	}

	res, err := c.Ctl(t.Context(), "plan", "-f", file)
	must(t, err)
	if want := "5 files, "; !strings.Contains(res.Stderr, want) || !strings.Contains(res.Stderr, "are sent with it: base.yml, conf/main.conf, parts/side.yml, token.txt, web.env") {
		t.Errorf("the plan does not name the files:\n%s", res.Stderr)
	}
	ctl(t, c, "apply", "-f", file, "--wait")
	reads("the first files", "main canary-one")
	first := containers()
	if env := got[[]string](t)(e.Environment(t.Context(), first["web"])); !slices.Contains(env, "GREETING=canary-greeting") {
		t.Errorf("the container does not have the variable of the env_file: %v", env)
	}
	if _, err := e.MountedFile(t.Context(), first["web"], "/etc/site/debug.log"); err == nil {
		t.Error("the container has a file that .persysignore excludes")
	}
	plain := func() {
		t.Helper()
		for _, s := range c.Schedulers {
			for _, canary := range []string{"canary-one", "canary-token", "canary-greeting"} {
				if path := got[string](t)(containsText(s.DataDir, canary)); path != "" {
					t.Errorf("the file %s has the secret %s in plain text", path, canary)
				}
			}
		}
		if data, err := os.ReadFile(a.StatePath); err != nil || strings.Contains(string(data), "canary-") {
			t.Errorf("the agent's state file has the content of a file of the stack in plain text (%v)", err)
		}
	}
	plain()

	if out := ctl(t, c, "apply", "-f", file); !strings.Contains(out, "unchanged") {
		t.Errorf("applying the same files again changed the stack:\n%s", out)
	}
	write("conf/main.conf", "main canary-two")
	ctl(t, c, "apply", "-f", file, "--wait")
	reads("the changed file", "main canary-two")
	second := containers()
	if second["web"] == first["web"] || second["worker"] != first["worker"] || second["side"] != first["side"] {
		t.Errorf("after a change of a file of web only web's container must be replaced; containers before %v, then %v", first, second)
	}
	ctl(t, c, "rollback", "filed", "--wait")
	reads("the former file", "main canary-one")

	if text := ctl(t, c, "get", "filed", "-o", "json"); !strings.Contains(text, "conf/main.conf") || strings.Contains(text, "canary-") {
		t.Errorf("get -o json shows\n%s", text)
	}
	text, shown := ctl(t, c, "get", "filed", "-o", "yaml"), filepath.Join(t.TempDir(), "shown.yaml")
	must(t, os.WriteFile(shown, []byte(text), 0o600))
	if out := ctl(t, c, "apply", "-f", shown); !strings.Contains(out, "unchanged") || strings.Contains(text, "canary-") {
		t.Errorf("get -o yaml shows\n%s\nand when it is applied again:\n%s", text, out)
	}
	reads("the file after the apply of get -o yaml", "main canary-one")
	plain()

	ctl(t, c, "delete", "filed", "--wait")
	must(t, testbed.Poll(t.Context(), settle, "the removal of the stack and its files", func(ctx context.Context) error {
		if left := containers(); len(left) > 0 {
			return fmt.Errorf("containers are left: %v", left)
		}
		left, err := containsText(filepath.Dir(a.StatePath), "canary-")
		if err == nil && left != "" {
			err = fmt.Errorf("the file %s is left", left)
		}
		return err
	}))
}
