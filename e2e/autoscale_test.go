package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestAutoscale: a group for which the agent reports a high CPU use grows to its maximum number of members.
// The number stays the same when the leader changes and when the file is applied again.
func TestAutoscale(t *testing.T) {
	c := start(t, harness.Options{Binaries: shipped(t), SchedulerEnv: fast(nil)})
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	file := filepath.Join(t.TempDir(), "web.yaml")
	apply := func(most int) string {
		t.Helper()
		must(t, os.WriteFile(file, fmt.Appendf(nil, "id: web\nautoscale: {min: 2, max: %d, cpu: 70}\nresources: {cpu: 100m, memory: 16Mi}\ncontainer: {image: 'sim/busy:9'}\n", most), 0o600))
		return ctl(t, c, "apply", "-f", file)
	}
	members := func(n int, within time.Duration) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), within, fmt.Sprintf("%d running members", n), func(ctx context.Context) error {
			api, err := c.Any(ctx)
			if err != nil {
				return err
			}
			list, err := api.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Group: "web", Status: "Running"})
			if err == nil && len(list.GetWorkloads()) != n {
				err = fmt.Errorf("%d members run", len(list.GetWorkloads()))
			}
			return err
		}))
	}
	apply(4)
	members(2, settle)
	members(4, 3*time.Minute)
	if text := ctl(t, c, "events", "-o", "json"); !strings.Contains(text, "web from 3 to 4: CPU use is 90 % of the request in 3 of 3 members, target 70 %") {
		t.Errorf("the events lack the change from 3 to 4 members:\n%s", text)
	}
	must(t, testbed.Poll(t.Context(), time.Minute, "the last decision in persysctl why", func(ctx context.Context) error {
		res, err := c.Ctl(ctx, "why", "web-0", "-o", "json")
		if err == nil && !strings.Contains(res.Stdout, "4 members, the limit") {
			err = fmt.Errorf("persysctl why prints %s%s", res.Stdout, res.Stderr)
		}
		return err
	}))

	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	must(t, c.Schedulers[leader].Kill())
	_ = got[int](t)(c.WaitLeader(t.Context(), electionLimit, leader))
	if text := apply(4); !strings.Contains(text, "unchanged") {
		t.Errorf("an apply of the same file prints %s, want unchanged", text)
	}
	members(4, settle)
	apply(3)
	members(3, settle)
}
