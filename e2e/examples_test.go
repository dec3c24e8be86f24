package e2e

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
)

// exampleFiles returns the files of the specifications in examples/.
func exampleFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"../examples/*.yaml", "../examples/*.json", "../examples/*/docker-compose.yml"} {
		out = append(out, got[[]string](t)(filepath.Glob(pattern))...)
	}
	if len(out) < 12 {
		t.Fatalf("only %d example files were found: %v", len(out), out)
	}
	return out
}

// appliedNames matches the names of the workloads that an apply prints.
var appliedNames = regexp.MustCompile(`(?m)^(\S+) (applied|unchanged)`)

var onlyUnchanged = regexp.MustCompile(`(?m)^\d+ unchanged\. Nothing`)

// runExample applies an example, waits until it runs, applies it a second time, which must change nothing,
// and deletes it.
func runExample(t *testing.T, c *harness.Cluster, file string) {
	t.Helper()
	var ids []string
	for _, m := range appliedNames.FindAllStringSubmatch(ctl(t, c, "apply", "-f", file, "--wait", "--timeout", "40s"), -1) {
		ids = append(ids, m[1])
	}
	if len(ids) == 0 {
		t.Fatal("the output of persysctl apply names no workload")
	}
	if again := ctl(t, c, "apply", "-f", file); strings.Count(again, "unchanged") != len(ids) {
		t.Errorf("applying the example again changes something:\n%s", again)
	}
	if plan := ctl(t, c, "plan", "-f", file); !onlyUnchanged.MatchString(plan) {
		t.Errorf("a plan of the applied example is not empty:\n%s", plan)
	}
	ctl(t, c, append([]string{"delete", "--wait", "--timeout", "40s"}, ids...)...)
}

// TestExamples: every example runs unchanged on simulated engines.
func TestExamples(t *testing.T) {
	c := sharedCluster(t)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_NODE_LABELS": "region=eu,disk=ssd"}}))
	}
	// A simulated container runs no program, so this HTTP server answers the health check of the example.
	hello := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(hello.Close)
	asked := regexp.MustCompile(`(health_check: .*port: )8080`)
	for _, file := range exampleFiles(t) {
		t.Run(strings.TrimPrefix(file, "../examples/"), func(t *testing.T) {
			if text := string(got[[]byte](t)(os.ReadFile(file))); asked.MatchString(text) {
				_, port, _ := net.SplitHostPort(hello.Listener.Addr().String())
				file = filepath.Join(t.TempDir(), filepath.Base(file))
				must(t, os.WriteFile(file, []byte(asked.ReplaceAllString(text, "${1}"+port)), 0o600))
			}
			runExample(t, c, file)
		})
	}
}

// TestExamplesOnDocker: the examples of containers and of Compose files run on a real engine too.
func TestExamplesOnDocker(t *testing.T) {
	e, image := theEngine(t)
	volumes, stacks := t.TempDir(), t.TempDir() // these folders are made before the cluster, which writes there, so that they are removed after it has stopped
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Env: map[string]string{
		"PERSYS_NODE_LABELS": "region=eu,disk=ssd", "PERSYS_STORAGE_LOCAL_ROOT": volumes, "PERSYS_COMPOSE_DIR": stacks}}))
	hostPort := regexp.MustCompile(`"1\d{4}:(\d+(/udp)?)"`)
	mapped := regexp.MustCompile(`(host: |"hostPort": )1\d{4}`)
	for _, file := range exampleFiles(t) {
		name := strings.TrimPrefix(file, "../examples/")
		if slices.Contains([]string{"vm.yaml", "git-stack.yaml", "placement.yaml"}, name) {
			continue // these examples need a VM, a repository or a folder that the test machine lacks
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files := []string{file}
			if strings.HasSuffix(file, "docker-compose.yml") {
				files = append(files, filepath.Join(filepath.Dir(file), ".env"))
			}
			for _, f := range files {
				// Replace the image of the example by the image of this test run, and its port by any free
				// port.
				text := strings.ReplaceAll(string(got[[]byte](t)(os.ReadFile(f))), "persys/hello:demo", image)
				text = mapped.ReplaceAllString(hostPort.ReplaceAllString(text, `"$1"`), "${1}0")
				must(t, os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(text), 0o600))
			}
			runExample(t, c, filepath.Join(dir, filepath.Base(file)))
		})
	}
}
