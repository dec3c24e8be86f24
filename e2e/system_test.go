package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/persys/compute/agent/driver/sim"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// TestSystemWorkload: a system workload has one member on every node. A node that joins gets its member,
// and a node that is drained loses its member after its other workloads. After a node has failed and
// returned several times, it has one member, of which two instances never ran at the same time.
func TestSystemWorkload(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	spec := container("persys/any:1")
	spec.Kind = "system"
	apply(t, c, "log", spec)
	members := func(what string, nodes ...string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), 2*settle, what, func(ctx context.Context) error { return membersAre(ctx, c, "log", nodes) }))
	}
	members("the members of both nodes", "node-a", "node-b")

	joined := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	members("the member of the node that joined", "node-a", "node-b", joined.NodeID)

	// Start a workload that takes a moment to stop on the node that is drained below. The system workload's
	// member must leave that node after this workload.
	for _, a := range c.Agents[:2] {
		ctl(t, c, "cordon", a.NodeID)
	}
	web := container("persys/any:1")
	web.GetContainer().Env = map[string]string{"SIM_STOP_DELAY": "2s"}
	apply(t, c, "web", web)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(joined.NodeID)))
	for _, a := range c.Agents[:2] {
		ctl(t, c, "uncordon", a.NodeID)
	}
	ctl(t, c, "drain", joined.NodeID)
	members("the end of the member of the drained node", "node-a", "node-b")
	ofWeb, ofLog := runsOn(t, joined, "web"), runsOn(t, joined, "log-"+joined.NodeID)
	if len(ofWeb) != 1 || len(ofLog) != 1 || ofWeb[0].To == 0 || ofLog[0].To < ofWeb[0].To {
		t.Errorf("the drained node ran web %+v and the member %+v, want one run of each, the member ending last", ofWeb, ofLog)
	}
	ctl(t, c, "drain", joined.NodeID, "--undo")
	members("the member after the drain", "node-a", "node-b", joined.NodeID)

	// Kill the agent of a node several times: for a moment, for longer than its lease, and while no scheduler
	// leads.
	flapping := c.Agents[1]
	member := "log-" + flapping.NodeID
	before := runsOn(t, flapping, member)
	for i := range 6 {
		must(t, flapping.Kill())
		switch i % 3 {
		case 1:
			must(t, c.WaitNode(t.Context(), flapping.NodeID, "NotReady", settle))
		case 2:
			leader := c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), electionLimit))]
			must(t, leader.Kill())
			must(t, leader.Start())
		}
		must(t, flapping.Start())
		must(t, c.WaitNode(t.Context(), flapping.NodeID, "Ready", settle))
	}
	members("the members after a node came and went", "node-a", "node-b", joined.NodeID)
	if now := runsOn(t, flapping, member); len(before) != 1 || !slices.Equal(now, before) {
		t.Errorf("the member ran %+v while its agent came and went, want the run that it had before, %+v", now, before)
	}
	// Power the whole machine off and on. The member must run again on its node.
	must(t, flapping.Kill())
	must(t, got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: flapping.SimDir})).PowerOff())
	must(t, flapping.Start())
	must(t, testbed.Poll(t.Context(), 2*settle, "the second run of the member", func(ctx context.Context) error {
		if n := len(runsOn(t, flapping, member)); n < 2 {
			return fmt.Errorf("member %s has run %d times, want twice", member, n)
		}
		return membersAre(ctx, c, "log", []string{"node-a", "node-b", joined.NodeID})
	}))
	if runs := runsOf(t, c, member); len(sim.Overlaps(runs)) > 0 {
		t.Errorf("the member ran twice at one time: %+v", runs)
	}
}

// membersAre returns nil if a system workload has exactly one running member on each of the given nodes, and no node
// still has an instance to stop.
func membersAre(ctx context.Context, c *harness.Cluster, id string, nodes []string) error {
	admin, err := c.LeaderAdmin(ctx)
	if err != nil {
		return err
	}
	s, err := stateOf(ctx, admin)
	if err != nil {
		return err
	}
	var have, left, want []string
	for _, n := range nodes {
		want = append(want, id+"-"+n+" Running on "+n)
	}
	s.Children(id, func(w *fsm.Workload) bool {
		have = append(have, fmt.Sprintf("%s %s on %s", w.ID, w.Status, w.Node))
		return true
	})
	s.Residuals("", func(r *fsm.Residual) bool { left = append(left, r.Workload+" on "+r.Node); return true })
	if !slices.Equal(have, want) || len(left) > 0 {
		return fmt.Errorf("the members are %v, want %v; not stopped yet: %v", have, want, left)
	}
	return nil
}

// runsOn returns the runs of one workload on the simulated engine of an agent.
func runsOn(t *testing.T, a *harness.Agent, id string) []sim.Run {
	t.Helper()
	return slices.DeleteFunc(got[[]sim.Run](t)(sim.ReadRuns(a.SimDir)), func(r sim.Run) bool { return string(r.Workload) != id })
}
