package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver/sim"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// interval and lease: the heartbeat interval and the lease that the settings of the function fast give.
// settle: the time limit of the tests for a change to take effect.
const (
	interval = time.Second
	lease    = 3 * time.Second
	settle   = 30 * time.Second
)

// apply applies one workload through any scheduler, and fails the test if the schedulers refuse the workload.
func apply(t *testing.T, c *harness.Cluster, id string, spec *controlv1.WorkloadSpec) *controlv1.ApplyWorkloadResponse {
	t.Helper()
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: spec})
	must(t, err)
	if !resp.GetSuccess() {
		t.Fatalf("apply of %s was refused: %s", id, resp.GetErrorMessage())
	}
	return resp
}

// container returns the spec of a small container. The engine chooses its host port.
func container(image string) *controlv1.WorkloadSpec {
	return &controlv1.WorkloadSpec{
		Type:      "container",
		Resources: &controlv1.ResourceRequirements{CpuMillicores: 50, MemoryMb: 32},
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{
			Image: image, Ports: []*controlv1.Port{{ContainerPort: 8080}}, RestartPolicy: "always",
		}},
	}
}

func running(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Running" }

func runningOn(node string) func(*controlv1.WorkloadView) bool {
	return func(w *controlv1.WorkloadView) bool { return running(w) && w.GetAssignedNodeId() == node }
}

func agentOf(t *testing.T, c *harness.Cluster, node string) (holder, other *harness.Agent) {
	t.Helper()
	for _, a := range c.Agents {
		if a.NodeID == node {
			holder = a
		} else {
			other = a
		}
	}
	if holder == nil || other == nil {
		t.Fatalf("node %q is not a node of this cluster", node)
	}
	return holder, other
}

// runsOf returns the runs (start and end of each instance) of one workload on all simulated engines of a
// cluster.
func runsOf(t *testing.T, c *harness.Cluster, id string) []sim.Run {
	t.Helper()
	var out []sim.Run
	for _, a := range c.Agents {
		runs, err := sim.ReadRuns(a.SimDir)
		must(t, err)
		for _, r := range runs {
			if string(r.Workload) == id {
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b sim.Run) int { return int(a.From - b.From) })
	return out
}

// TestAgentRestart: after a restart, an agent takes its running containers over and does not restart them.
func TestAgentRestart(t *testing.T) {
	t.Run("docker", func(t *testing.T) {
		e, image := theEngine(t)
		c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
		id := onDocker(t, e, c)
		a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
		apply(t, c, "adopted", container(image))
		before := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "adopted", settle, running))
		only := func() (string, string) {
			t.Helper()
			all, err := e.Workload(t.Context(), id, "adopted")
			must(t, err)
			if len(all) != 1 || string(all[0].State) != "running" {
				t.Fatalf("want one running container of the workload, the engine has %v", all)
			}
			started, err := e.Started(t.Context(), all[0].ID)
			must(t, err)
			return all[0].ID, started
		}
		container, started := only()

		must(t, a.Kill())
		must(t, c.WaitNode(t.Context(), a.NodeID, "NotReady", settle)) // wait until the schedulers have noticed that the agent is dead
		if now, at := only(); now != container || at != started {
			t.Errorf("the container was restarted when its agent died: %s started %s, before %s started %s", now, at, container, started)
		}
		must(t, a.Start())
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
		after := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "adopted", settle, running))
		if now, at := only(); now != container || at != started {
			t.Errorf("the container was not adopted: %s started %s, before %s started %s", now, at, container, started)
		}
		if after.GetRevisionId() != before.GetRevisionId() || after.GetContent() != before.GetContent() {
			t.Errorf("the workload has revision %s, want %s as before", after.GetRevisionId(), before.GetRevisionId())
		}
		// The agent still manages the container.
		control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
		resp, err := control.DeleteWorkload(t.Context(), &controlv1.DeleteWorkloadRequest{WorkloadId: "adopted"})
		if err != nil || !resp.GetSuccess() {
			t.Fatalf("the delete returned %v %s, want success", err, resp.GetErrorMessage())
		}
		must(t, testbed.Poll(t.Context(), settle, "the container's removal", func(ctx context.Context) error {
			all, err := e.Workload(ctx, id, "adopted")
			if err == nil && len(all) > 0 {
				err = fmt.Errorf("the container that the agent must remove still exists in state %s", all[0].State)
			}
			return err
		}))
	})
	t.Run("simulated", func(t *testing.T) {
		c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
		a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
		for i := range 5 {
			apply(t, c, fmt.Sprintf("adopted-%d", i), container("persys/any:1"))
		}
		for i := range 5 {
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), fmt.Sprintf("adopted-%d", i), settle, running))
		}
		for range 2 { // the agent restarts twice; the second restart takes less time than a lease
			must(t, a.Restart())
			must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
		}
		for i := range 5 {
			id := fmt.Sprintf("adopted-%d", i)
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
			if runs := runsOf(t, c, id); len(runs) != 1 || runs[0].To != 0 {
				t.Errorf("workload %s was restarted or moved: %+v", id, runs)
			}
		}
	})
}

// TestAgentLostOnDocker: two agents use the same Docker engine. When the agent of a workload dies, the
// other agent runs the workload at the latest a few seconds after the lease has ended.
func TestAgentLostOnDocker(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	}
	apply(t, c, "moving", container(image))
	w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "moving", settle, running))
	holder, other := agentOf(t, c, w.GetAssignedNodeId())
	must(t, holder.Kill())
	at := time.Now()
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "moving", settle, runningOn(other.NodeID)))
	t.Logf("agent killed; its container ran on the other agent after %s, with a lease of %s", time.Since(at).Round(time.Millisecond), lease)
	all, err := e.Workload(t.Context(), id, "moving")
	must(t, err)
	nodes := map[string]string{}
	for _, s := range all {
		nodes[s.Labels["persys.node_id"]] = string(s.State)
	}
	if nodes[other.NodeID] != "running" {
		t.Errorf("the engine has containers in the states %v (by node), want one running of %s", nodes, other.NodeID)
	}
	// Start the killed agent again. It must stop its container of the workload, which now runs at the other
	// agent.
	must(t, holder.Start())
	must(t, testbed.Poll(t.Context(), settle, "the old container's removal", func(ctx context.Context) error {
		all, err := e.Workload(ctx, id, "moving")
		if err == nil && (len(all) != 1 || all[0].Labels["persys.node_id"] != other.NodeID) {
			err = fmt.Errorf("the engine has %d containers of the workload, want only the one on the other agent", len(all))
		}
		return err
	}))
}

// TestAgentLost kills the agent of a node. The workload must start on the other node, but not before the
// lease has ended, and the instance on the first node must stop when the first agent starts again. Each
// agent has a simulated engine, which records every start and stop.
func TestAgentLost(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	exclusive := container("persys/any:1")
	exclusive.Exclusive = true
	apply(t, c, "single", exclusive)
	w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, running))
	holder, other := agentOf(t, c, w.GetAssignedNodeId())
	// Start workloads that are not exclusive on the node whose agent will be killed.
	pinned := container("persys/any:1")
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	cordon := func(on bool) {
		t.Helper()
		_, err := admin.CordonNode(t.Context(), &clusterv1.CordonNodeRequest{NodeId: other.NodeID, On: on})
		must(t, err)
	}
	cordon(true)
	for i := range 3 {
		apply(t, c, fmt.Sprintf("many-%d", i), pinned)
	}
	for i := range 3 {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), fmt.Sprintf("many-%d", i), settle, runningOn(holder.NodeID)))
	}
	// Apply a workload whose program ends at once. It fails on this node, and the agent waits before it starts
	// the program again.
	crashing := container("sim/crash")
	crashing.GetContainer().RestartPolicy = ""
	crashing.Kind, crashing.Job = "job", &controlv1.JobSpec{Retries: new(int32(100))}
	apply(t, c, "retried", crashing)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "retried", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetStatus() == "RetryPending" && w.GetAssignedNodeId() == holder.NodeID
	}))

	must(t, holder.Kill())
	killed, at := sim.Boottime(), time.Now()
	// Another workload is placed on the dead node before any scheduler has noticed the death. The agent never
	// gets the order.
	apply(t, c, "late", container("persys/any:1"))
	late := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "late", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetAssignedNodeId() != "" || w.GetReason().GetCode() != ""
	}))
	t.Logf("applied after the death of its only node: %s on node %q (%s)", late.GetStatus(), late.GetAssignedNodeId(), late.GetReason().GetMessage())
	cordon(false)
	for i := range 3 {
		id := fmt.Sprintf("many-%d", i)
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(other.NodeID)))
		runs := runsOf(t, c, id)
		if len(runs) != 2 || runs[1].NodeID != other.NodeID {
			t.Fatalf("%s: want one run on each node, got %+v", id, runs)
		}
		// The workload may start elsewhere only after the lease. The lease began at the last heartbeat, which was
		// at most one interval before the kill.
		if early := runs[1].From - killed; early < lease-interval-200*time.Millisecond {
			t.Errorf("workload %s was started again %s after its agent was killed, before its lease of %s could end", id, early, lease)
		}
	}
	took := time.Since(at)
	t.Logf("agent killed; 3 workloads ran on the other agent after %s with a lease of %s", took.Round(time.Millisecond), lease)
	if took > lease+10*time.Second {
		t.Errorf("moving took %s, want the lease (%s) and a few seconds", took, lease)
	}

	// The other node must also run two more workloads: retried, which had failed on the dead node, and late,
	// whose order the dead agent never got.
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "late", settle, runningOn(other.NodeID)))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "retried", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetAssignedNodeId() == other.NodeID
	}))
	if runs := runsOf(t, c, "late"); len(runs) != 1 || runs[0].NodeID != other.NodeID {
		t.Errorf("workload late ran %+v, want one run, on %s", runs, other.NodeID)
	}

	// The exclusive workload must stay until an operator confirms that the dead node is off (persysctl node
	// fence). persysctl why must name that command.
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == fsm.CodeAwaitFailover
	}))
	if view.GetAssignedNodeId() != holder.NodeID {
		t.Errorf("the exclusive workload was moved to %q without a fence", view.GetAssignedNodeId())
	}
	why, err := c.Ctl(t.Context(), "why", "single")
	must(t, err)
	if !strings.Contains(why.Stdout+why.Stderr, "node fence "+holder.NodeID) {
		t.Errorf("persysctl why does not name the command:\n%s%s", why.Stdout, why.Stderr)
	}
	if runs := runsOf(t, c, "single"); len(runs) != 1 {
		t.Errorf("the exclusive workload ran again without a fence: %+v", runs)
	}
	// Power the machine off: all instances on its engine end. Then confirm that the node is off, as an operator
	// does (node fence).
	engine := got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: holder.SimDir}))
	must(t, engine.PowerOff())
	_, err = admin.FenceNode(t.Context(), &clusterv1.FenceNodeRequest{NodeId: holder.NodeID})
	must(t, err)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, runningOn(other.NodeID)))
	if over := sim.Overlaps(runsOf(t, c, "single")); len(over) > 0 {
		t.Errorf("the exclusive workload ran twice at one time: %+v", over)
	}

	// Start the killed agent again. The moved workloads must stay on the other node, and the restarted agent
	// must stop its own instances of them.
	must(t, holder.Start())
	must(t, c.WaitNode(t.Context(), holder.NodeID, "Ready", settle))
	for _, id := range []string{"many-0", "many-1", "many-2", "late", "single"} {
		must(t, testbed.Poll(t.Context(), settle, "the end of "+id+" on "+holder.NodeID, func(context.Context) error {
			for _, r := range runsOf(t, c, id) {
				if r.NodeID == holder.NodeID && r.To == 0 {
					return fmt.Errorf("the workload still runs on the node that lost it")
				}
			}
			return nil
		}))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(other.NodeID)))
	}
	for _, pair := range sim.Overlaps(runsOf(t, c, "single")) {
		t.Errorf("the exclusive workload ran twice at one time: %+v", pair)
	}
}

// TestFrozenSchedulersEvictNoWorkload: the leader alone, and then all schedulers, are frozen for longer than a lease. No workload may
// be evicted or restarted.
func TestFrozenSchedulersEvictNoWorkload(t *testing.T) {
	// The lease is one second longer than in other tests, because the agent must first notice that the leader
	// hangs, and the race detector is slow on a busy machine.
	const lease = 4 * time.Second
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": lease.String()})})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	ids := make([]string, 6)
	for i := range ids {
		ids[i] = fmt.Sprintf("calm-%d", i)
		apply(t, c, ids[i], container("persys/any:1"))
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	undisturbed := func(after string) {
		t.Helper()
		for _, id := range ids {
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
			if runs := runsOf(t, c, id); len(runs) != 1 || runs[0].To != 0 {
				t.Errorf("after %s, workload %s had been started %d times: %+v, want once", after, id, len(runs), runs)
			}
		}
	}
	// asleep freezes the schedulers with these indexes for longer than a lease. The schedulers measure the lease
	// by the real clock, so asleep blocks for this time.
	asleep := func(who ...int) {
		t.Helper()
		for _, i := range who {
			must(t, c.Schedulers[i].Pause())
		}
		pause(t.Context(), lease+1500*time.Millisecond)
		for _, i := range who {
			must(t, c.Schedulers[i].Continue())
		}
		must(t, c.WaitReady(t.Context(), settle))
		for _, a := range c.Agents {
			must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
		}
		pause(t.Context(), lease) // wait one more lease, in which a delayed eviction would happen
	}
	asleep(got[int](t)(c.WaitLeader(t.Context(), electionLimit)))
	undisturbed("the leader slept")
	asleep(0, 1, 2)
	undisturbed("all schedulers slept")
}
