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

// TestComposeStack runs the example stack on the real programs: the test applies it, shows it with every
// service, reads its logs, and deletes it.
func TestComposeStack(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	raw, err := os.ReadFile("../examples/stack.yaml")
	must(t, err)
	// Replace the image by the one of this test run, and the port by any free port.
	text := strings.NewReplacer("persys/hello:demo", image, `["18081:8080"]`, `["8080"]`).Replace(string(raw))
	file := filepath.Join(t.TempDir(), "stack.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	ctl(t, c, "apply", "-f", file, "--wait")
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "shop", settle, running))
	if view.GetType() != "compose" || len(view.GetPorts()) == 0 {
		t.Errorf("the stack is shown with type %q and ports %v", view.GetType(), view.GetPorts())
	}
	if out := ctl(t, c, "get", "shop"); !strings.Contains(out, "web: running; worker: running") {
		t.Errorf("persysctl get does not show the services of the stack and their states:\n%s", out)
	}
	must(t, testbed.Poll(t.Context(), settle, "the output of both services", func(context.Context) error {
		if out := ctl(t, c, "logs", "shop"); !strings.Contains(out, "web-1 | ") || !strings.Contains(out, "worker-1 | ") {
			return fmt.Errorf("the logs of the stack are\n%s", out)
		}
		return nil
	}))
	ctl(t, c, "delete", "shop", "--wait")
	must(t, testbed.Poll(t.Context(), settle, "the stack's removal", func(ctx context.Context) error {
		all, err := e.Workload(ctx, id, "shop")
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("after the delete %d containers of the stack are left", len(all))
		}
		return err
	}))
}
