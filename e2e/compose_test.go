package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// The example stack runs through the real programs: it is applied, shown with every service, its
// logs are read, and it is deleted.
func TestComposeStack(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	raw, err := os.ReadFile("../examples/stack.yaml")
	must(t, err)
	// The image of this run, and any free port.
	text := strings.NewReplacer("persys/hello:demo", image, `["18081:8080"]`, `["8080"]`).Replace(string(raw))
	file := filepath.Join(t.TempDir(), "stack.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	ctl(t, c, "apply", "-f", file, "--wait")
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "shop", settle, running))
	if view.GetType() != "compose" || len(view.GetPorts()) == 0 {
		t.Errorf("type %q, ports %v", view.GetType(), view.GetPorts())
	}
	if out := ctl(t, c, "get", "shop"); !strings.Contains(out, "web: running; worker: running") {
		t.Errorf("the services are not shown:\n%s", out)
	}
	must(t, testbed.Poll(t.Context(), settle, "both services' output", func(context.Context) error {
		if out := ctl(t, c, "logs", "shop"); !strings.Contains(out, "web-1 | ") || !strings.Contains(out, "worker-1 | ") {
			return fmt.Errorf("logs:\n%s", out)
		}
		return nil
	}))
	ctl(t, c, "delete", "shop", "--wait")
	must(t, testbed.Poll(t.Context(), settle, "the stack's removal", func(ctx context.Context) error {
		all, err := e.Workload(ctx, id, "shop")
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("%d containers are left", len(all))
		}
		return err
	}))
}
