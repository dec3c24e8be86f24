package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/driver/sim"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// TestLocalDataStaysOnItsNode: neither a drain nor a changed constraint moves a workload away from the node that has the
// data of its volume. With --discard-data it moves without the data, which stay on the node.
func TestLocalDataStaysOnItsNode(t *testing.T) {
	c := sharedCluster(t)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	first, second := c.Agents[0], c.Agents[1]
	path := func(a *harness.Agent) string {
		return filepath.Join(filepath.Dir(a.StatePath), "volumes", "local", "data")
	}
	file := filepath.Join(t.TempDir(), "db.yaml")
	text := "id: db\ncontainer:\n  image: persys/any:1\n  managed_volumes: [{name: data, path: /data}]\nresources: {cpu: 10m, memory: 8Mi}\n"
	applied := func(text string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(text), 0o600))
		ctl(t, c, "apply", "-f", file)
	}
	held := func(when string) {
		t.Helper()
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, func(w *controlv1.WorkloadView) bool {
			return w.GetReason().GetCode() == fsm.CodeHoldsData && w.GetAssignedNodeId() == first.NodeID
		}))
		if data, err := os.ReadFile(filepath.Join(path(first), "f")); err != nil || string(data) != "the only copy" {
			t.Errorf("%s: the file in the volume is %q (%v)", when, data, err)
		}
	}
	ctl(t, c, "cordon", second.NodeID)
	applied(text)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(first.NodeID)))
	must(t, os.WriteFile(filepath.Join(path(first), "f"), []byte("the only copy"), 0o600))
	ctl(t, c, "uncordon", second.NodeID)

	ctl(t, c, "drain", first.NodeID)
	held("after a drain")
	ctl(t, c, "drain", first.NodeID, "--undo")
	ctl(t, c, "node", "label", second.NodeID, "side=other")
	applied(text + "constraints: [side = other]\n")
	held("after a change of the constraints")
	applied(text)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(first.NodeID)))

	ctl(t, c, "drain", first.NodeID, "--discard-data")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(second.NodeID)))
	if _, err := os.Stat(filepath.Join(path(second), "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume on %s has the file of the other node: %v", second.NodeID, err)
	}
	if data, err := os.ReadFile(filepath.Join(path(first), "f")); err != nil || string(data) != "the only copy" {
		t.Errorf("the volume that stayed on %s has %q (%v)", first.NodeID, data, err)
	}
}

// TestRebalance: a node becomes free, and persysctl rebalance must move members of a group to it, one after
// the other, until no move would improve the balance enough. An exclusive workload stays. No workload runs
// twice at once.
func TestRebalance(t *testing.T) {
	c := sharedCluster(t)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	first, second := c.Agents[0].NodeID, c.Agents[1].NodeID
	ctl(t, c, "cordon", second)
	web := container("persys/any:1")
	web.GetContainer().Ports = nil
	db := proto.CloneOf(web)
	web.Count, db.Group, db.Exclusive = new(int32(6)), "web", true
	apply(t, c, "web", web)
	apply(t, c, "db", db)
	ids := []string{"db"}
	for i := range 6 {
		ids = append(ids, fmt.Sprintf("web-%d", i))
	}
	for _, id := range ids {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(first)))
	}
	ctl(t, c, "uncordon", second)
	if text := ctl(t, c, "rebalance", "--preview"); !strings.Contains(text, second) {
		t.Fatalf("the preview shows no move to %s:\n%s", second, text)
	}

	text := ctl(t, c, "rebalance", "--apply", "--wait", "--timeout", "50s", "-o", "json")
	var done struct {
		Moves []struct {
			ID string `json:"workload_id"`
			To string `json:"to_node_id"`
		}
	}
	must(t, json.Unmarshal([]byte(text), &done))
	if n := len(done.Moves); n != 3 {
		t.Errorf("%d workloads moved, want 3, so that four are on one node and three on the other: %s", n, text)
	}
	moved := map[string]string{}
	for _, m := range done.Moves {
		moved[m.ID] = m.To
	}
	if text := ctl(t, c, "rebalance", "--apply"); !strings.Contains(text, "No move has the required gain.") {
		t.Errorf("after the rebalancing another one makes moves:\n%s", text)
	}
	for _, id := range ids {
		want := []string{first}
		if to := moved[id]; to != "" {
			want = append(want, second)
		}
		runs := runsOf(t, c, id)
		var on []string
		for _, r := range runs {
			on = append(on, r.NodeID)
		}
		if !slices.Equal(on, want) || len(sim.Overlaps(runs)) > 0 {
			t.Errorf("%s ran %+v, want runs on %v, one after the other", id, runs, want)
		}
	}
	if moved["db"] != "" {
		t.Error("the exclusive workload moved")
	}
}

// TestReschedule: another program on a machine holds the host port that a container needs. After some failed
// attempts, the container must start on the other machine. It must stay there when the port on the first machine is
// free again, and also when the agent of the other machine restarts.
func TestReschedule(t *testing.T) {
	c, machines, image := onMachines(t, 2)
	first, second := c.Agents[0].NodeID, c.Agents[1].NodeID
	const port = 18080
	var stranger net.Listener
	must(t, harness.InNetNS(machines[0].NetNS(), func() (err error) {
		stranger, err = new(net.ListenConfig).Listen(t.Context(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	}))
	t.Cleanup(func() { _ = stranger.Close() })

	ctl(t, c, "cordon", second)
	spec := container(image)
	spec.GetContainer().Ports = []*controlv1.Port{{HostPort: port, ContainerPort: 8080}}
	apply(t, c, "web", spec)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == "PORT_BIND_CONFLICT" && w.GetAssignedNodeId() == first
	}))
	ctl(t, c, "uncordon", second)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", 2*settle, runningOn(second)))
	if text := ctl(t, c, "why", "web"); !strings.Contains(text, "it left node "+first) || !strings.Contains(text, "PORT_BIND_CONFLICT") {
		t.Errorf("persysctl why does not say that the workload left %s because of its port:\n%s", first, text)
	}

	must(t, stranger.Close())
	must(t, c.Agents[1].Kill())
	must(t, c.Agents[1].Start())
	must(t, c.WaitNode(t.Context(), second, "Ready", settle))
	// The port on the first machine is free again. Start another workload there that needs the port. Meanwhile
	// the planner makes several steps, in which it must not move the first workload back.
	other := proto.CloneOf(spec)
	other.Constraints = []*controlv1.Constraint{{Key: fsm.NodeIDLabel, Operator: "=", Values: []string{first}}}
	apply(t, c, "other", other)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "other", settle, runningOn(first)))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(second)))
	if n := evictions(t, c, "web"); n != 1 {
		t.Errorf("the workload left a node %d times, want once", n)
	}
}

// evictions returns how many events say that a workload left its node (WorkloadEvicted).
func evictions(t *testing.T, c *harness.Cluster, id string) (n int) {
	t.Helper()
	s := got[fsm.State](t)(stateOf(t.Context(), got[clusterv1.ClusterClient](t)(c.LeaderAdmin(t.Context()))))
	s.Events(0, func(e *fsm.Event) bool {
		if e.Type == fsm.EventWorkloadEvicted && e.Workload == id {
			n++
		}
		return true
	})
	return n
}

// TestJobsWhileTheEngineRestarts: the container engine restarts in the middle of three jobs, which end by
// its SIGTERM. Each run ends once, with its exit code. The jobs without retries keep this result, success
// or failure. The job with a retry runs again.
func TestJobsWhileTheEngineRestarts(t *testing.T) {
	needMachines(t)
	machines, cluster := openMachines(t, 1)
	m := machines[0]
	must(t, m.StartEngine(t.Context()))
	const image = "persys/probe:machines"
	must(t, m.Docker.BuildGo(t.Context(), image, "./agent/driver/moby/mobytest/probe", nil))
	c := onCluster(t, machines, cluster)
	for id, code := range map[string]int{"good": 0, "bad": 42, "again": 7} {
		spec := container(image)
		spec.Kind, spec.GetContainer().Ports, spec.GetContainer().RestartPolicy = "job", nil, ""
		spec.GetContainer().Command = []string{"quits", fmt.Sprint(code)}
		spec.Job = &controlv1.JobSpec{Retries: new(int32(0))}
		if id == "again" {
			spec.Job.Retries = new(int32(1))
		}
		apply(t, c, id, spec)
	}
	for _, id := range []string{"good", "bad", "again"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
		// The program says so when it handles SIGTERM. Before that, the kernel drops the signal of the engine
		// because the program is the first process of its container.
		must(t, testbed.Poll(t.Context(), settle, "the program to handle SIGTERM", func(context.Context) error {
			if text := ctl(t, c, "logs", id); !strings.Contains(text, "probe: ready") {
				return fmt.Errorf("the output of the program is %q", text)
			}
			return nil
		}))
	}
	must(t, m.StopEngine())
	must(t, m.StartEngine(t.Context()))

	good, bad := finished(t, c, "good"), finished(t, c, "bad")
	if r := good.GetJobResult(); !r.GetSucceeded() || r.GetExit().GetCode() != 0 || good.GetRetryAttempts() != 0 {
		t.Errorf("the job that ended with exit code 0 has the result %v after %d failures", r, good.GetRetryAttempts())
	}
	if r := bad.GetJobResult(); r.GetSucceeded() || r.GetExit().GetCode() != 42 {
		t.Errorf("the job that ended with exit code 42 has the result %v", r)
	}
	again := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "again", 2*settle, func(w *controlv1.WorkloadView) bool {
		return running(w) && w.GetRetryAttempts() > 0
	}))
	if again.GetRetryAttempts() != 1 {
		t.Errorf("the run of the job with a retry was counted %d times, want once", again.GetRetryAttempts())
	}
	must(t, testbed.Poll(t.Context(), settle, "one container of the job that runs again", func(ctx context.Context) error {
		list, err := m.Docker.Workload(ctx, *cluster, "again")
		if err == nil && len(list) != 1 {
			err = errors.New(fmt.Sprint(len(list), " containers"))
		}
		return err
	}))
	for id, n := range jobEnds(t, c) {
		if n != 1 {
			t.Errorf("job %s ended %d times, want once", id, n)
		}
	}
}

// jobEnds returns, for each job, how many events say that it succeeded or failed.
func jobEnds(t *testing.T, c *harness.Cluster) map[string]int {
	t.Helper()
	s := got[fsm.State](t)(stateOf(t.Context(), got[clusterv1.ClusterClient](t)(c.LeaderAdmin(t.Context()))))
	ends := map[string]int{}
	s.Events(0, func(e *fsm.Event) bool {
		if e.Type == fsm.EventJobSucceeded || e.Type == fsm.EventJobFailed {
			ends[e.Workload]++
		}
		return true
	})
	return ends
}
