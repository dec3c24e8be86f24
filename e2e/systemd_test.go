package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"

	fence "github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// aSystemd starts a systemd as process 1 of new namespaces, and returns it with its systemctl. The namespaces
// share the socket of the Docker engine.
func aSystemd(t *testing.T) (*harness.Systemd, func(args ...string) string) {
	t.Helper()
	testbed.Program(t, "systemctl")
	machine, err := harness.BootSystemd(t.Context(), t.TempDir())
	testbed.Need(t, "a machine where systemd can be process 1 of a namespace", err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the machine with systemd:\n%s", machine.Log())
		}
		must(t, machine.Close())
	})
	return machine, func(args ...string) string {
		t.Helper()
		return got[string](t)(machine.Ctl(t.Context(), args...))
	}
}

// TestSystemd runs agent and fencer by the packaged units under a real systemd, with a container on the
// real engine: restarts, the watchdog and upgrades must work as the units configure them.
func TestSystemd(t *testing.T) {
	const lease = 8 * time.Second // lease time, longer than systemd takes to restart a fencer
	e, image := theEngine(t)
	bins := shipped(t)
	machine, ctl := aSystemd(t)
	c := start(t, harness.Options{Binaries: bins, SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": lease.String()})})
	id := onDocker(t, e, c)
	runs := e.Watch(t.Context(), id)
	defer runs.Close()
	a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Env: map[string]string{"PERSYS_FENCER_GRACE": fencerGrace.String()}}))
	must(t, errors.Join(
		machine.Install("/usr/bin/persys-agent", bins.Agent, 0o755),
		machine.Write("/etc/persys/agent.env", []byte(strings.Join(a.Env, "\n")+"\n"), 0o600),
	))
	for _, unit := range []string{"persys-agent.service", "persys-fencer.service"} {
		must(t, machine.Install("/etc/systemd/system/"+unit, filepath.Join("..", "deploy", "systemd", unit), 0o644))
	}
	ctl("daemon-reload")
	ctl("start", "persys-agent")
	t.Cleanup(func() {
		_, _ = machine.Ctl(context.Background(), "kill", "--signal=KILL", "persys-agent", "persys-fencer")
	})

	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	fencing(t, control, a, time.Now())
	spec := container(image)
	spec.Exclusive, spec.OnLostLease = true, "stop"
	apply(t, c, "db", spec)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(a.NodeID)))

	restarts := func() string {
		t.Helper()
		return ctl("show", "--property=NRestarts", "--value", "persys-fencer")
	}
	again := func(before string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "another fencer by systemd", func(context.Context) error {
			if now := restarts(); now == before || len(a.Fencers()) != 2 {
				return fmt.Errorf("systemd has restarted fencers %s times, %s times before; the fencers are %v, want a further restart and two fencers", now, before, a.Fencers())
			}
			return nil
		}))
	}
	for what, sig := range map[string]syscall.Signal{"both fencers killed": syscall.SIGKILL, "both fencers paused": syscall.SIGSTOP} {
		before, at := restarts(), time.Now()
		must(t, a.SignalFencers(sig))
		again(before)
		t.Logf("%s: other fencers run after %s", what, time.Since(at).Round(10*time.Millisecond))
		fencing(t, control, a, time.Now())
	}

	// Upgrade the agent: replace its binary and restart the unit. The containers must keep running.
	must(t, os.Remove(machine.Path("/usr/bin/persys-agent")))
	must(t, machine.Install("/usr/bin/persys-agent", bins.Agent, 0o755))
	ctl("restart", "persys-agent")
	fencing(t, control, a, time.Now())
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", settle, runningOn(a.NodeID)))
	list := got[[]harness.Run](t)(runs.Of("db"))
	if len(list) != 1 || !list[0].To.IsZero() {
		t.Fatalf("fencers and agent were restarted; the container has the runs %+v, want one that goes on", list)
	}

	// Pause schedulers, agent and both fencers at once. systemd must replace a paused fencer by a new one, which
	// stops the exclusive container when the lease ends.
	before := restarts()
	for _, s := range c.Schedulers {
		must(t, s.Pause())
	}
	at := time.Now()
	ctl("kill", "--signal=STOP", "persys-agent")
	must(t, a.SignalFencers(syscall.SIGSTOP))
	limit := lease + fence.Bound(fencerGrace)
	stopped := runEnded(t, runs, list[0], limit+settle, "schedulers, agent and both fencers paused")
	took := stopped.Sub(at)
	t.Logf("schedulers, agent and both fencers paused: stopped after %s", took.Round(10*time.Millisecond))
	if took < lease/2 || took > limit { // the lease was granted at the last heartbeat, which may be a little before the pause
		t.Errorf("the exclusive container stopped %s after the pause, want the end of its lease of %s, and at most %s", took, lease, limit)
	}
	if now := restarts(); now == before {
		t.Error("systemd has not started another fencer in place of the paused ones")
	}
	for _, s := range c.Schedulers {
		must(t, s.Continue())
	}
	ctl("kill", "--signal=CONT", "persys-agent")
	ctl("start", "persys-agent")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "db", 2*settle, func(w *controlv1.WorkloadView) bool {
		list, err := runs.Of("db")
		return err == nil && len(list) == 2 && runningOn(a.NodeID)(w)
	}))

	// Stop the units of agent and fencers. Afterwards no fencer may run.
	ctl("stop", "persys-agent", "persys-fencer")
	if left := a.Fencers(); len(left) > 0 {
		t.Errorf("fencers %v still run after systemctl stop", left)
	}
}
