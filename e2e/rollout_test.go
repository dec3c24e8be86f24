package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver/sim"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestRolloutSurvivesItsLeader: a group of three is updated member by member, and the leader is killed in the
// middle. By the run logs of the simulated engines, at most one member may have been down at any time. Then
// the group is updated to an image that does not exist: the first member fails, and the group is rolled back.
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
		t.Errorf("the answer does not say that members are updated in turns: %s", out)
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
			err = fmt.Errorf("the rollout is in phase %s with the members %v", r.GetPhase(), r.GetMembers())
		}
		return err
	}))
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	must(t, c.Schedulers[leader].Kill())
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "3m")
	if n := mostMissing(t, c, "web-"); n != 1 {
		t.Errorf("%d members were down at the same time, want 1", n)
	}

	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("sim/missing"), "--wait", "--timeout", "3m"))
	if res.Code == 0 || !strings.Contains(res.Stderr, "web goes back") {
		t.Errorf("an update to an image that does not exist ended with exit %d, want a failure that says that the group goes back\n%s", res.Code, res.Stderr)
	}
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "3m")
	r := got[*clusterv1.GetRolloutResponse](t)(rollout(t.Context()))
	if !r.GetReverting() || !strings.Contains(r.GetReason(), "web-0 was given up: PermanentFailure") {
		t.Errorf("the event does not say why the update was rolled back: %v", r)
	}
	for _, m := range r.GetMembers() {
		if m.GetState() != "Updated" || m.GetStatus() != "Running" || m.GetRevisionId() != r.GetMembers()[0].GetRevisionId() {
			t.Errorf("after the rollback the members are %v, want all Running with one revision", m)
		}
	}
	if n := mostMissing(t, c, "web-"); n != 1 {
		t.Errorf("%d members were down at the same time during update and rollback, want 1", n)
	}
	must(t, c.Schedulers[leader].Start())
	must(t, c.WaitReady(t.Context(), settle))
}

// mostMissing returns how many of the workloads whose ids begin with prefix were down at the same time, at
// most. It reads the starts and ends from the run logs of the simulated engines, from the time at which all
// of them ran first.
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
	// If an instance starts at the same time at which another one ends, count the start first, because the new
	// instance replaces the old one and none is missing in between.
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

// TestRolloutWaitsForTheFormerInstance: a program that ignores its stop signal runs until its grace period is
// over. The deadline for a member (healthy_deadline) begins when its new instance starts. So the update must
// succeed, although stopping the former instance takes longer than the deadline. While the former instance
// stops, the member is not Running, and its reason says what happens.
func TestRolloutWaitsForTheFormerInstance(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	file := func(version string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: stubborn\ncount: 1\nupdate: {min_healthy_time: 1s, healthy_deadline: 6s, auto_revert: true}\n"+
			"resources: {cpu: 10m, memory: 16Mi}\n"+
			// A Go program ignores SIGWINCH.
			"container: {image: "+image+", stop_signal: SIGWINCH, stop_grace_period: 12s, env: {VERSION: "+version+"}}\n"), 0o600))
		return path
	}
	ctl(t, c, "apply", "-f", file("one"), "--wait", "--timeout", "2m")
	before := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "stubborn-0", settle, running))
	ctl(t, c, "apply", "-f", file("two"))
	var said []string
	must(t, testbed.Poll(t.Context(), settle, "the end of the update", func(ctx context.Context) error {
		admin, err := c.AnyAdmin(ctx)
		if err != nil {
			return err
		}
		r, err := admin.GetRollout(ctx, &clusterv1.GetRolloutRequest{Group: "stubborn"})
		if err != nil {
			return err
		}
		control, err := c.Any(ctx)
		if err != nil {
			return err
		}
		w, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "stubborn-0"})
		if err != nil {
			return err
		}
		why := w.GetWorkload().GetReason()
		said = append(said, w.GetWorkload().GetStatus()+" "+why.GetCode()+": "+why.GetMessage())
		if r.GetReverting() || r.GetPhase() == "Paused" {
			t.Fatalf("the update has failed: %s\n%s", r.GetReason(), strings.Join(said, "\n"))
		}
		if r.GetPhase() != "Completed" {
			return fmt.Errorf("the rollout is in phase %s: %s", r.GetPhase(), r.GetReason())
		}
		return nil
	}))
	after := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "stubborn-0", settle, running))
	if after.GetRevisionId() == before.GetRevisionId() {
		t.Error("after the update the member still has its former revision")
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, "Pending Working: stopping the former container") {
		t.Errorf("the views during the update do not say that the former container is being stopped:\n%s", all)
	}
}

// TestRolloutThatFitsNowhere: no node has enough resources for the new instances of an update. No former
// instance is stopped, persysctl plan warns, and the update is rolled back. The reason of the update must be
// why no node could take the member.
func TestRolloutThatFitsNowhere(t *testing.T) {
	c := sharedCluster(t)
	node := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true})).NodeID
	file := func(memory string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: large\ncount: 2\nupdate: {min_healthy_time: 1s, healthy_deadline: 5s, auto_revert: true}\n"+
			"resources: {cpu: 10m, memory: "+memory+"}\ncontainer: {image: sim/one}\n"), 0o600))
		return path
	}
	ctl(t, c, "apply", "-f", file("8Mi"), "--wait", "--timeout", "2m")
	for _, id := range []string{"large-0", "large-1"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	warning := "Warning: large-0 and 1 other: node " + node + " has too little memory for the changed workload; it would run on unchanged, because no other node takes it: 0/1 nodes fit: 1 memory"
	if plan := ctl(t, c, "plan", "-f", file("900Gi")); !strings.Contains(plan, warning) {
		t.Errorf("persysctl plan does not warn that the update fits on no node: %s", plan)
	}
	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("900Gi"), "--wait", "--timeout", "2m"))
	if res.Code == 0 || !strings.Contains(res.Stderr, "0/1 nodes fit: 1 memory") {
		t.Errorf("an update that fits on no node ended with exit %d, want a failure with the planner's reason\n%s", res.Code, res.Stderr)
	}
	ctl(t, c, "rollout", "status", "large", "--wait", "--timeout", "2m")
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	r := got[*clusterv1.GetRolloutResponse](t)(admin.GetRollout(t.Context(), &clusterv1.GetRolloutRequest{Group: "large"}))
	if !r.GetReverting() || !strings.Contains(r.GetReason(), "0/1 nodes fit: 1 memory") {
		t.Errorf("the rollout does not say why it was rolled back: %v", r)
	}
	if n := mostMissing(t, c, "large-"); n != 0 {
		t.Errorf("%d members were down, want none", n)
	}
}

// TestRolloutThatIsNeverHealthyGoesBack: on a real engine, the new version of a group runs but never answers its
// health check. The update must be rolled back automatically, and the other member must not be touched.
func TestRolloutThatIsNeverHealthyGoesBack(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	file := func(port string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: sick\ncount: 2\nupdate: {min_healthy_time: 1s, healthy_deadline: 25s, auto_revert: true}\n"+
			"resources: {cpu: 10m, memory: 16Mi}\nhealth_check: {http: /healthz, port: 8080, interval: 1s, retries: 2}\n"+
			"container: {image: "+image+", env: {PORT: '"+port+"'}}\n"), 0o600))
		return path
	}
	ctl(t, c, "apply", "-f", file("8080"), "--wait", "--timeout", "2m")
	untouched := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "sick-1", settle, running))
	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("9090"), "--wait", "--timeout", "3m"))
	if res.Code == 0 || !strings.Contains(res.Stderr, "sick goes back") {
		t.Errorf("an update that never becomes healthy ended with exit %d, want a failure that says that the group goes back\n%s", res.Code, res.Stderr)
	}
	ctl(t, c, "rollout", "status", "sick", "--wait", "--timeout", "3m")
	for _, id := range []string{"sick-0", "sick-1"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, func(w *controlv1.WorkloadView) bool {
			return running(w) && w.GetHealth() == "healthy"
		}))
	}
	if now := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "sick-1", settle, running)); now.GetRevisionId() != untouched.GetRevisionId() {
		t.Errorf("the member that was not updated has revision %s, want %s as before", now.GetRevisionId(), untouched.GetRevisionId())
	}
}

// TestStartFirstAndCanaries: on a real engine, a start-first update of two members never leaves fewer than
// two members that answer, and the extra member is removed at the end. Then the test begins two updates with
// a canary (a member that is updated first), promotes the first one and aborts the second one.
func TestStartFirstAndCanaries(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	file := func(version, update string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: fresh\ncount: 2\nupdate: {min_healthy_time: 1s, healthy_deadline: 1m, "+update+"}\n"+
			"resources: {cpu: 10m, memory: 16Mi}\nhealth_check: {http: /healthz, port: 8080, interval: 1s, retries: 3}\n"+
			"container: {image: "+image+", ports: ['8080'], env: {VERSION: "+version+"}}\n"), 0o600))
		return path
	}
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	members := func() (list []*controlv1.WorkloadView) {
		r := got[*controlv1.ListWorkloadsResponse](t)(control.ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{Group: "fresh"}))
		return r.GetWorkloads()
	}
	revisions := func() string {
		var out []string
		for _, w := range members() {
			out = append(out, w.GetWorkloadId()+"@"+w.GetRevisionId())
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	ctl(t, c, "apply", "-f", file("one", "order: start-first"), "--wait", "--timeout", "2m")

	// Until the update has ended, send requests to every running member, again and again, and count how many
	// answer.
	ended, least, extra := make(chan struct{}), 99, false
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		for {
			select {
			case <-ended:
				return
			case <-t.Context().Done():
				return
			default:
			}
			r, err := control.ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{Group: "fresh"})
			if err != nil {
				continue // the scheduler is busy
			}
			answers := 0
			for _, w := range r.GetWorkloads() {
				extra = extra || w.GetSurge()
				if w.GetStatus() != "Running" || len(w.GetPorts()) == 0 {
					continue
				}
				if r, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", w.GetPorts()[0].GetHostPort())); err == nil {
					if _ = r.Body.Close(); r.StatusCode == http.StatusOK {
						answers++
					}
				}
			}
			least = min(least, answers)
		}
	}()
	before := revisions()
	ctl(t, c, "apply", "-f", file("two", "order: start-first"), "--wait", "--timeout", "3m")
	close(ended)
	<-asked
	if least < 2 || least == 99 {
		t.Errorf("during the update %d members answered at some time, want at least 2", least)
	}
	if !extra {
		t.Error("the update had no extra member")
	}
	alone := func(ctx context.Context) error {
		r, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Group: "fresh"})
		if err == nil && len(r.GetWorkloads()) != 2 {
			err = fmt.Errorf("the group still has %d members", len(r.GetWorkloads()))
		}
		return err
	}
	must(t, testbed.Poll(t.Context(), settle, "the extra member to be gone", alone))
	after := revisions()
	if after == before {
		t.Errorf("the update changed nothing: %s", after)
	}

	out := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("three", "order: start-first, canary: 1"), "--wait", "--timeout", "2m"))
	if out.Code != 0 || !strings.Contains(out.Stderr, "persysctl rollout promote fresh") {
		t.Fatalf("an apply with a canary ended with exit %d, want 0 and a text that names the next command\n%s", out.Code, out.Stderr)
	}
	if status := ctl(t, c, "rollout", "status", "fresh"); !strings.Contains(status, "Updated, extra, canary") {
		t.Errorf("the status does not show the canary:\n%s", status)
	}
	if now := revisions(); !strings.HasPrefix(now, after+" fresh-2@") {
		t.Errorf("before the promotion the members are %s, want those of before and one more: %s", now, after)
	}
	ctl(t, c, "rollout", "promote", "fresh")
	ctl(t, c, "rollout", "status", "fresh", "--wait", "--timeout", "2m")
	must(t, testbed.Poll(t.Context(), settle, "the canary to be gone", alone))
	promoted := revisions()
	if promoted == after {
		t.Errorf("the promotion changed nothing: %s", promoted)
	}

	ctl(t, c, "apply", "-f", file("four", "canary: 1"), "--wait", "--timeout", "2m")
	if now := revisions(); now == promoted {
		t.Errorf("the canary has the former specification: %s", now)
	}
	ctl(t, c, "rollout", "abort", "fresh")
	ctl(t, c, "rollout", "status", "fresh", "--wait", "--timeout", "2m")
	if now := revisions(); now != promoted {
		t.Errorf("after the abort the members are %s, want %s", now, promoted)
	}
}

// TestTaintDuringAnUpdate: while a group is updated, a node gets a taint NoExecute. The update still ends
// with success, on the other nodes.
func TestTaintDuringAnUpdate(t *testing.T) {
	c := sharedCluster(t)
	for range 3 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	file := func(image string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		must(t, os.WriteFile(path, []byte("id: web\ncount: 3\nupdate: {min_healthy_time: 2s, healthy_deadline: 2m}\n"+
			"resources: {cpu: 10m, memory: 8Mi}\ncontainer: {image: "+image+"}\n"), 0o600))
		return path
	}
	ctl(t, c, "apply", "-f", file("sim/one"), "--wait", "--timeout", "2m")
	node := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web-2", settle, running)).GetAssignedNodeId()
	ctl(t, c, "apply", "-f", file("sim/slow:1s"))
	ctl(t, c, "node", "taint", node, "repair:NoExecute")
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "3m")
	for _, id := range []string{"web-0", "web-1", "web-2"} {
		w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, func(w *controlv1.WorkloadView) bool {
			return running(w) && w.GetAssignedNodeId() != node
		}))
		if image := w.GetSpec().GetContainer().GetImage(); image != "sim/slow:1s" {
			t.Errorf("%s runs %s, want the new image", id, image)
		}
	}
}
