package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
)

// untouched checks that each workload has run without interruption: its simulated engine has recorded one
// start and no end.
func untouched(t *testing.T, c *harness.Cluster, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if runs := runsOf(t, c, id); len(runs) != 1 || runs[0].To != 0 {
			t.Errorf("workload %s was restarted or moved: %+v", id, runs)
		}
	}
}

// refusesEarlierEpoch checks that an agent refuses an order whose epoch has a lower incarnation than the
// present one, even if the order's term is higher.
func refusesEarlierEpoch(t *testing.T, a *harness.Agent, cluster string, incarnation uint64) {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+a.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer cc.Close()
	resp, err := agentv1.NewAgentServiceClient(cc).DeleteWorkload(t.Context(), &agentv1.DeleteWorkloadRequest{
		Id: "kept-0", NodeId: a.NodeID, Epoch: &agentv1.Epoch{ClusterId: cluster, Incarnation: incarnation, Term: 1 << 40},
		Generation: &agentv1.Generation{Incarnation: incarnation, Sequence: 1 << 40},
	})
	must(t, err)
	if !resp.GetFenced() {
		t.Errorf("agent %s did not refuse an order of an earlier incarnation: %v", a.NodeID, resp)
	}
}

func incarnation(t *testing.T, c *harness.Cluster, i int) uint64 {
	t.Helper()
	return got[*clusterv1.StatusResponse](t)(c.Status(t.Context(), i)).GetIncarnation()
}

// startAndKeep starts two agents and some workloads, which must keep running until the end of the test; one
// of them is exclusive. It returns their ids.
func startAndKeep(t *testing.T, c *harness.Cluster) []string {
	t.Helper()
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	var ids []string
	for i := range 4 {
		spec := container("persys/any:1")
		spec.Exclusive = i == 3
		ids = append(ids, fmt.Sprintf("kept-%d", i))
		apply(t, c, ids[i], spec)
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	return ids
}

// TestLostQuorumIsRecovered: two of three schedulers are lost with their disks. One command on the third
// makes the cluster work again: it applies workloads, new schedulers join, agents refuse orders with an
// epoch from before the loss, and running workloads are not touched.
func TestLostQuorumIsRecovered(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	ids := startAndKeep(t, c)
	left := follower(t, c)
	caughtUp(t, c, left)
	old, cluster := incarnation(t, c, left), got[*clusterv1.StatusResponse](t)(c.Status(t.Context(), left)).GetClusterId()
	id := selfID(t, c, left)
	var lost []int
	for i, s := range c.Schedulers {
		if i != left {
			must(t, s.Kill())
			must(t, s.Wipe())
			lost = append(lost, i)
		}
	}
	survivor := c.Schedulers[left]
	recovery := func(args ...string) (string, error) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), settle)
		defer cancel()
		cmd := exec.CommandContext(ctx, survivor.Path, append([]string{"recover", "--data-dir", survivor.DataDir}, args...)...)
		cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, survivor.Env
		err := cmd.Run()
		return out.String(), err
	}
	if out, err := recovery("--yes"); err == nil || !strings.Contains(out, "is in use") {
		t.Errorf("a scheduler that runs must not be recovered, but the recovery said: %v\n%s", err, out)
	}
	must(t, survivor.Kill())
	if out, err := recovery(); err == nil || !strings.Contains(out, "--yes") {
		t.Errorf("the recovery did not ask for confirmation: %v\n%s", err, out)
	}
	out, err := recovery("--yes")
	if err != nil {
		t.Fatalf("persys-scheduler recover failed: %v\n%s", err, out)
	}
	for _, want := range []string{cluster, id, c.Schedulers[lost[0]].Name, c.Schedulers[lost[1]].Name, "4 workloads (4 running)", "Recovered under incarnation"} {
		if !strings.Contains(out, want) {
			t.Errorf("persys-scheduler recover does not print %q:\n%s", want, out)
		}
	}

	must(t, survivor.Start())
	leader, err := c.WaitLeader(t.Context(), electionLimit)
	must(t, err)
	if leader != left || selfID(t, c, left) != id {
		t.Errorf("scheduler %d leads with the replica id %s, want the recovered scheduler with its former id", leader, selfID(t, c, left))
	}
	if now := incarnation(t, c, left); now <= old {
		t.Errorf("the incarnation is %d and was %d, want a higher one", now, old)
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	apply(t, c, "new", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "new", settle, running))
	for _, a := range c.Agents {
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	}
	refusesEarlierEpoch(t, agentWith(t, c, "new"), cluster, old)

	// Start the two lost schedulers again with empty disks. They must join as new replicas.
	for _, i := range lost {
		must(t, c.Schedulers[i].Start())
	}
	must(t, c.WaitReady(t.Context(), 60*time.Second))
	must(t, survivor.Kill())
	apply(t, c, "newer", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "newer", settle, running))
	untouched(t, c, append(ids, "new")...)
}

// agentWith returns the agent of the node to which a workload is assigned.
func agentWith(t *testing.T, c *harness.Cluster, id string) *harness.Agent {
	t.Helper()
	w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	holder, _ := agentOf(t, c, w.GetAssignedNodeId())
	return holder
}

// ctl runs persysctl, fails the test if the exit code is not 0, and returns the output.
func ctl(t *testing.T, c *harness.Cluster, args ...string) string {
	t.Helper()
	res, err := c.Ctl(t.Context(), args...)
	must(t, err)
	if res.Code != 0 {
		t.Fatalf("persysctl %s: exit %d\n%s%s", strings.Join(args, " "), res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// TestBackupIsRestored restores a backup twice: first into the running cluster, after mistakes of an
// operator, and then into new schedulers, after all schedulers were lost with their disks. Workloads that
// are in the backup and in the cluster keep running and are not restarted.
func TestBackupIsRestored(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	ids := startAndKeep(t, c)
	file := filepath.Join(t.TempDir(), "state.backup")
	from := follower(t, c)
	caughtUp(t, c, from)
	var out, errs bytes.Buffer
	code, err := c.RunCtl(t.Context(), c.CtlEnv(c.Schedulers[from].GRPC), &out, &errs, "backup", "create", file)
	must(t, err)
	if code != 0 || !strings.Contains(out.String(), "4 workloads, 2 nodes") {
		t.Fatalf("persysctl backup create ended with exit %d, want 0\n%s%s", code, out.String(), errs.String())
	}
	st := got[*clusterv1.StatusResponse](t)(c.Status(t.Context(), from))
	if got := ctl(t, c, "backup", "inspect", file); !strings.Contains(got, st.GetClusterId()) || !strings.Contains(got, "4, 4 running") {
		t.Errorf("persysctl backup inspect prints\n%s", got)
	}

	// Make the mistakes of an operator: delete one workload, stop one, and add one.
	ctl(t, c, "delete", "kept-0", "--wait")
	ctl(t, c, "stop", "kept-1", "--wait")
	apply(t, c, "younger", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "younger", settle, running))
	preview := ctl(t, c, "backup", "restore", file, "--dry-run")
	for _, want := range []string{"would be brought back: kept-0", "would be changed back: kept-1", "would be forgotten: younger", "2 workloads would be left"} {
		if !strings.Contains(preview, want) {
			t.Errorf("the preview of the restore does not print %q:\n%s", want, preview)
		}
	}
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	old := incarnation(t, c, leader)
	ctl(t, c, "backup", "restore", file, "--yes")
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	if now := incarnation(t, c, leader); now <= old {
		t.Errorf("the incarnation is %d and was %d, want a higher one", now, old)
	}
	if res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "get", "younger")); res.Code != 3 {
		t.Errorf("a restore must remove a workload that the backup lacks, but persysctl get ended with exit %d\n%s", res.Code, res.Stdout)
	}
	untouched(t, c, "kept-2", "kept-3", "younger")
	refusesEarlierEpoch(t, agentWith(t, c, "kept-0"), st.GetClusterId(), old)

	// Kill all schedulers and delete their data. The agents, their workloads and the backup file remain.
	old = incarnation(t, c, leader)
	for _, s := range c.Schedulers {
		must(t, s.Kill())
		must(t, s.Wipe())
		s.Env = append(s.Env, "SCHEDULER_CLUSTER_ID="+st.GetClusterId())
	}
	for _, s := range c.Schedulers {
		must(t, s.Start())
	}
	must(t, c.WaitReady(t.Context(), 60*time.Second))
	ctl(t, c, "backup", "restore", file, "--yes")
	for _, a := range c.Agents {
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	apply(t, c, "new", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "new", settle, running))
	refusesEarlierEpoch(t, agentWith(t, c, "new"), st.GetClusterId(), old)
	untouched(t, c, "kept-2", "kept-3", "younger")
}
