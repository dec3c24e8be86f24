package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestDevices: on an engine with two CDI devices, two containers get one each, and a third container waits
// until one is free. Agents find used devices by a label of their containers. An image that carries this
// label itself does not occupy a device. The record of the node keeps its devices while its engine is down,
// also if the agent starts during that time.
func TestDevices(t *testing.T) {
	needMachines(t)
	daemon, err := testbed.Server(t.Context(), "dockerd")
	testbed.Need(t, "a Docker engine with CDI, built from tools/dockerd,", err)
	runc, err := testbed.Server(t.Context(), "runc")
	testbed.Need(t, "runc, built from tools/runc,", err)
	machines, cluster := openMachines(t, 1)
	m := machines[0]
	specs := t.TempDir()
	must(t, os.WriteFile(filepath.Join(specs, "vendor.json"), []byte(`{"cdiVersion": "0.6.0", "kind": "vendor.com/gpu", "devices": [
		{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}]}},
		{"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu1", "hostPath": "/dev/null"}]}}]}`), 0o600))
	must(t, m.UseEngine(daemon, map[string]any{
		"cdi-spec-dirs": []string{specs}, "userland-proxy": false, "seccomp-profile": "unconfined", // this runc has no seccomp
		"runtimes": map[string]any{"own": map[string]string{"path": runc}}, "default-runtime": "own",
	}))
	image := startEngines(t, machines)
	liar := "persys/liar:1"
	must(t, m.Docker.BuildGo(t.Context(), liar, "./examples/hello", map[string]string{driver.LabelPrefix + "devices": "vendor.com/gpu=0,vendor.com/gpu=1"}))
	_ = got[string](t)(m.Docker.Run(t.Context(), "liar", liar, nil))

	c := start(t, harness.Options{Binaries: shipped(t), Host: harness.MachineHost.String(), SchedulerEnv: fast(nil)})
	*cluster = got[string](t)(clusterID(t, c))
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Machine: m}))
	offers := func(ctx context.Context) error {
		out, err := c.Ctl(ctx, "node", agent.NodeID)
		if err == nil && !strings.Contains(out.Stdout, "vendor.com/gpu") {
			err = errors.New("persysctl node shows no device vendor.com/gpu: " + out.Stdout + out.Stderr)
		}
		return err
	}
	must(t, testbed.Poll(t.Context(), settle, "the devices of the engine", offers))
	apply(t, c, "labelled", container(liar))
	want := func(id string) {
		spec := container(image)
		spec.Resources.Devices = map[string]int64{"vendor.com/gpu": 1}
		apply(t, c, id, spec)
	}
	// has returns the devices in the container of a workload.
	has := func(id string) (found []string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), 2*settle, "the container of "+id, func(ctx context.Context) error {
			list, err := m.Docker.Workload(ctx, *cluster, id)
			if err != nil || len(list) != 1 {
				return fmt.Errorf("%d containers (%v)", len(list), err)
			}
			pid, err := m.Docker.PID(ctx, list[0].ID)
			if err != nil || pid == 0 {
				return fmt.Errorf("the container does not run (%v)", err)
			}
			found, err = filepath.Glob(fmt.Sprintf("/proc/%d/root/dev/gpu*", pid))
			for i := range found {
				found[i] = filepath.Base(found[i])
			}
			return err
		}))
		return found
	}
	want("one")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "one", 2*settle, running))
	want("two")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "two", 2*settle, running))
	both := append(has("one"), has("two")...)
	if slices.Sort(both); !slices.Equal(both, []string{"gpu0", "gpu1"}) {
		t.Errorf("the two containers have the devices %q, want one each", both)
	}
	if none := has("labelled"); len(none) > 0 {
		t.Errorf("a container without resources.devices has %q", none)
	}
	want("three")
	unplaced := func(w *controlv1.WorkloadView) bool {
		return w.GetAssignedNodeId() == "" && strings.Contains(w.GetMessage(), "vendor.com/gpu")
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "three", settle, unplaced))

	must(t, agent.Terminate(settle))
	must(t, m.StopEngine())
	must(t, agent.Start())
	must(t, testbed.Poll(t.Context(), settle, "the node to report that its engine is down", func(ctx context.Context) error {
		out, err := c.Ctl(ctx, "node", agent.NodeID)
		if err == nil && !strings.Contains(out.Stdout, "RUNTIME_UNHEALTHY") {
			err = errors.New("the node does not say that its engine is down: " + out.Stdout)
		}
		return err
	}))
	must(t, offers(t.Context()))
	must(t, m.StartEngine(t.Context()))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "two", 2*settle, running))
	ctl(t, c, "delete", "one", "--wait")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "three", 2*settle, running))
	both = append(has("three"), has("two")...)
	if slices.Sort(both); !slices.Equal(both, []string{"gpu0", "gpu1"}) {
		t.Errorf("after one was deleted the containers have the devices %q, want one each", both)
	}
	ctl(t, c, "delete", "two", "three", "labelled", "--wait")
}
