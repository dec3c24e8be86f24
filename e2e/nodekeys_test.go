package e2e

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestNodeLabelsAndTaints: labels and taints that a user sets override those that the agent sets, also
// after a restart of all programs. A NoExecute taint moves workloads that do not tolerate it, after the
// delay that the taint allows.
func TestNodeLabelsAndTaints(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	env := map[string]string{"PERSYS_NODE_LABELS": "zone=x,disk=ssd", "PERSYS_NODE_TAINTS": "old:NoSchedule"}
	var agents []*harness.Agent
	for range 2 {
		agents = append(agents, got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: env})))
	}
	a, b := agents[0].NodeID, agents[1].NodeID
	apply(t, c, "web", container("persys/any:1"))
	testbed.Until(t, "why names the taint that the agents set", func() bool {
		return strings.Contains(ctl(t, c, "why", "web"), "old:NoSchedule is not tolerated")
	})
	ctl(t, c, "node", "taint", a, "old-")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(a)))

	ctl(t, c, "node", "label", a, "zone=z", "disk-")
	ctl(t, c, "node", "taint", b, "old-")
	must(t, agents[0].Kill())
	must(t, agents[0].Start())
	for _, s := range c.Schedulers {
		must(t, s.Kill())
	}
	for _, s := range c.Schedulers {
		must(t, s.Start())
	}
	testbed.Until(t, "the node has the labels and taints that the user set", func() bool {
		res, err := c.Ctl(t.Context(), "node", a)
		return err == nil && strings.Contains(res.Stdout, "zone=z") && !strings.Contains(res.Stdout, "disk=ssd") && !strings.Contains(res.Stdout, "old:")
	})

	began := time.Now()
	ctl(t, c, "node", "taint", a, "repair:NoExecute:3")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(b)))
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("the workload left the node after %s; the taint gives it 3 s", took)
	}
	if out := ctl(t, c, "events", "--workload", "web", "-o", "wide"); !strings.Contains(out, "taint repair:NoExecute:3 of node "+a+" is not tolerated") {
		t.Errorf("no event names the taint:\n%s", out)
	}
	if out := ctl(t, c, "audit", "-o", "json"); !strings.Contains(out, "repair:NoExecute:3") {
		t.Errorf("the audit log has no record of the taint:\n%s", out)
	}
}
