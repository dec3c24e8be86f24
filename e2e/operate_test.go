package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver/sim"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestOperatorCommands runs cordon, uncordon, drain and its undo, restart, retry, stop (twice) and start on
// the real programs. After each command the workloads must run on the nodes that the command requires, and
// never twice at the same time.
func TestOperatorCommands(t *testing.T) {
	c := sharedCluster(t)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	apply(t, c, "web", container("persys/any:1"))
	w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, running))
	holder, other := agentOf(t, c, w.GetAssignedNodeId())

	ctl(t, c, "cordon", holder.NodeID)
	if out := ctl(t, c, "nodes"); !strings.Contains(out, "cordoned") {
		t.Errorf("persysctl nodes does not show the cordon:\n%s", out)
	}
	for i := range 3 {
		id := fmt.Sprintf("new-%d", i)
		apply(t, c, id, container("persys/any:1"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(other.NodeID)))
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(holder.NodeID)))
	ctl(t, c, "uncordon", holder.NodeID)

	if out := ctl(t, c, "drain", other.NodeID, "--preview"); !strings.Contains(out, holder.NodeID) {
		t.Errorf("the preview does not name the new node:\n%s", out)
	}
	ctl(t, c, "drain", other.NodeID, "--wait", "--timeout", "30s")
	for i := range 3 {
		id := fmt.Sprintf("new-%d", i)
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(holder.NodeID)))
		if runs := runsOf(t, c, id); len(runs) != 2 || len(sim.Overlaps(runs)) > 0 {
			t.Errorf("workload %s was not moved exactly once, with one run after the other: %+v", id, runs)
		}
	}
	must(t, c.WaitNode(t.Context(), other.NodeID, "Draining", settle))
	ctl(t, c, "drain", other.NodeID, "--undo")
	must(t, c.WaitNode(t.Context(), other.NodeID, "Ready", settle))

	before := len(runsOf(t, c, "web"))
	ctl(t, c, "restart", "web", "--wait", "--timeout", "30s")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, func(w *controlv1.WorkloadView) bool {
		return running(w) && strings.HasSuffix(w.GetRevisionId(), "-r1")
	}))
	if runs := runsOf(t, c, "web"); len(runs) != before+1 {
		t.Errorf("after a restart the workload must have one more run than the %d before, got %+v", before, runs)
	}
	// Apply a workload that fails until it has used all its attempts. persysctl retry must make the agent try it
	// again at once.
	broken := container("sim/missing")
	broken.GetContainer().Env = map[string]string{"SIM_FAIL": "INVALID_IMAGE"}
	apply(t, c, "broken", broken)
	failed := func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Failed" }
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "broken", settle, failed))
	ctl(t, c, "retry", "broken")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "broken", settle, func(w *controlv1.WorkloadView) bool {
		return failed(w) && strings.HasSuffix(w.GetRevisionId(), "-r1")
	}))

	ctl(t, c, "stop", "web", "--wait", "--timeout", "30s")
	if runs := runsOf(t, c, "web"); runs[len(runs)-1].To == 0 {
		t.Errorf("the stopped workload has a run that has not ended: %+v", runs)
	}
	ctl(t, c, "stop", "web")
	ctl(t, c, "start", "web", "--wait", "--timeout", "30s")
	if runs := runsOf(t, c, "web"); runs[len(runs)-1].To != 0 || len(sim.Overlaps(runs)) > 0 {
		t.Errorf("the started workload does not run exactly once: %+v", runs)
	}
}

// TestNoWorkloadRunsTwiceWhileLeadersDie: leaders die while eight clients change workloads and drains move
// them. The history is linearizable, and no workload runs twice at the same time.
func TestNoWorkloadRunsTwiceWhileLeadersDie(t *testing.T) {
	c := start(t, harness.Options{Binaries: shipped(t), SchedulerEnv: fast(nil)})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	tr := load(t, c)
	tr.more(60, 30*time.Second)
	drain := func(a *harness.Agent, on bool) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "drain "+a.NodeID, func(ctx context.Context) error {
			admin, err := c.AnyAdmin(ctx)
			if err == nil {
				_, err = admin.DrainNode(ctx, &clusterv1.DrainNodeRequest{NodeId: a.NodeID, On: on})
			}
			return err
		}))
	}
	for i := range 3 {
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		drain(c.Agents[i%2], true)
		tr.more(20, 30*time.Second)
		must(t, c.Schedulers[leader].Kill())
		tr.more(60, 30*time.Second)
		must(t, c.Schedulers[leader].Start())
		drain(c.Agents[i%2], false)
		must(t, c.WaitReady(t.Context(), 20*time.Second))
	}
	tr.end()
	for i := range workloads {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), workloadName(i), settle, running))
	}
	moved, total := 0, 0
	for i := range workloads {
		id := workloadName(i)
		runs := runsOf(t, c, id)
		if pairs := sim.Overlaps(runs); len(pairs) > 0 {
			t.Errorf("%s ran twice at the same time: %+v", id, pairs[0])
		}
		open := 0
		for j, r := range runs {
			if r.To == 0 {
				open++
			}
			if j > 0 && r.NodeID != runs[j-1].NodeID {
				moved++
			}
		}
		if open != 1 {
			t.Errorf("workload %s: %d of its %d runs have not ended, want one", id, open, len(runs))
		}
		total += len(runs)
	}
	if moved < 3 {
		t.Errorf("the drains moved workloads only %d times between the nodes; this test needs at least 3", moved)
	}
	t.Logf("%d workloads, %d runs, %d moves, no overlap", workloads, total, moved)
}

// TestLogsFollowed: persysctl logs -f follows a real container while the schedulers die and return one after
// another. No line is lost.
func TestLogsFollowed(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	apply(t, c, "spoken", container(image))
	w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "spoken", settle, func(w *controlv1.WorkloadView) bool {
		return running(w) && len(w.GetPorts()) > 0
	}))
	url := fmt.Sprintf("http://127.0.0.1:%d/?line=", w.GetPorts()[0].GetHostPort())
	say := func(n int) string {
		t.Helper()
		text := fmt.Sprintf("%03d", n)
		must(t, testbed.Poll(t.Context(), settle, "the page", func(ctx context.Context) error {
			code, _, err := getText(ctx, url+text)
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("persysctl logs ended with status %d", code)
			}
			return err
		}))
		return "line=" + text
	}
	var out, errs testbed.Output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.RunCtl(ctx, c.CtlEnv(), &out, &errs, "logs", "spoken", "-f")
		done <- err
	}()
	t.Cleanup(func() { cancel(); <-done })
	seen := func(text string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "the line "+text, func(context.Context) error {
			if !out.Has(text) {
				return fmt.Errorf("the line is missing in:\n%s%s", out.String(), errs.String())
			}
			return nil
		}))
	}
	seen("hello listens on")
	n := 0
	said := func() string { n++; return say(n) }
	seen(said())
	for _, s := range c.Schedulers {
		must(t, s.Kill())
		first := said()
		seen(first)
		must(t, s.Start())
		must(t, c.WaitReady(t.Context(), 20*time.Second))
		seen(said())
	}
	last := -1
	text := out.String()
	for i := 1; i <= n; i++ {
		at := strings.Index(text, fmt.Sprintf("line=%03d", i))
		if at <= last {
			t.Errorf("line %d is missing, or not after the previous line:\n%s", i, text)
		}
		last = at
	}
}
