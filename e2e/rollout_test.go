package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver/sim"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// A group of three is updated member by member, and the leader is killed in the middle. The run
// logs of the engines show that at most one member was down at a time. Then the group is updated to
// an image that does not exist: the first member fails, and the group is rolled back.
func TestRolloutSurvivesItsLeader(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": "15s"})})
	for range 3 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	file := func(image string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: web\ncount: 3\nupdate: {min_healthy_time: 2s, healthy_deadline: 2m, auto_revert: true}\n"+
			"resources: {cpu: 10m, memory: 8Mi}\ncontainer: {image: "+image+"}\n"), 0o600))
		return path
	}
	ctl(t, c, "apply", "-f", file("sim/one"), "--wait", "--timeout", "3m")
	if out := ctl(t, c, "apply", "-f", file("sim/slow:1s")); !strings.Contains(out, "a few members at a time") {
		t.Errorf("the answer does not tell of turns: %s", out)
	}
	rollout := func(ctx context.Context) (*clusterv1.GetRolloutResponse, error) {
		admin, err := c.AnyAdmin(ctx)
		if err != nil {
			return nil, err
		}
		return admin.GetRollout(ctx, &clusterv1.GetRolloutRequest{Group: "web"})
	}
	must(t, testbed.Poll(t.Context(), settle, "the second member's turn", func(ctx context.Context) error {
		r, err := rollout(ctx)
		if err == nil && r.GetMembers()[1].GetState() != "Updating" {
			err = fmt.Errorf("%s: %v", r.GetPhase(), r.GetMembers())
		}
		return err
	}))
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	must(t, c.Schedulers[leader].Kill())
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "3m")
	if n := mostMissing(t, c, "web-"); n != 1 {
		t.Errorf("%d members were down at a time, want 1", n)
	}

	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("sim/missing"), "--wait", "--timeout", "3m"))
	if res.Code == 0 || !strings.Contains(res.Stderr, "web goes back") {
		t.Errorf("an update that fails ends with exit %d\n%s", res.Code, res.Stderr)
	}
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "3m")
	r := got[*clusterv1.GetRolloutResponse](t)(rollout(t.Context()))
	if !r.GetReverting() || !strings.Contains(r.GetReason(), "web-0 was given up: PermanentFailure") {
		t.Errorf("it does not say why it went back: %v", r)
	}
	for _, m := range r.GetMembers() {
		if m.GetState() != "Updated" || m.GetStatus() != "Running" || m.GetRevisionId() != r.GetMembers()[0].GetRevisionId() {
			t.Errorf("after the way back: %v", m)
		}
	}
	if n := mostMissing(t, c, "web-"); n != 1 {
		t.Errorf("%d members were down at a time on the way there and back, want 1", n)
	}
	must(t, c.Schedulers[leader].Start())
	must(t, c.WaitReady(t.Context(), settle))
}

// mostMissing returns the highest number of workloads with a prefix that were down at one time,
// after all of them ran for the first time, according to the run logs of their engines.
func mostMissing(t *testing.T, c *harness.Cluster, prefix string) int {
	t.Helper()
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	all := map[string]bool{}
	for _, a := range c.Agents {
		for _, r := range got[[]sim.Run](t)(sim.ReadRuns(a.SimDir)) {
			if !strings.HasPrefix(string(r.Workload), prefix) {
				continue
			}
			all[string(r.Workload)] = true
			changes = append(changes, change{r.From, 1})
			if r.To != 0 {
				changes = append(changes, change{r.To, -1})
			}
		}
	}
	// Starts before ends of the same time: one instance replaces another.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), b.by-a.by) })
	up, whole, most := 0, false, 0
	for _, ch := range changes {
		if up += ch.by; up == len(all) {
			whole = true
		}
		if whole {
			most = max(most, len(all)-up)
		}
	}
	return most
}
