package docker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func (b *bench) logs(id driver.ID) string {
	b.Helper()
	return drivertest.Logs(b.ctx, b, b.d, id, driver.LogOptions{})
}

// The post_start hook of a container runs after each start of the container by the agent. Its pre_stop hook runs before each
// stop by the agent, also if the agent was restarted since the start and has not read the specification of the workload.
func TestHooksRunAtStartAndStop(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "serve")
	body.PostStart = []*agentv1.Hook{{Command: []string{"/probe", "shout", "hook-up"}}}
	body.PreStop = []*agentv1.Hook{
		{Command: []string{"/probe", "say", "", "no peer", "3"}}, // its failure does not prevent the stop
		{Command: []string{"/probe", "shout", "hook-down"}},
	}
	spec := b.spec("hooks", body)
	b.ensure(spec)
	again := b.driver(t, "node-a")
	if err := again.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	b.await(spec.ID, "stopped", func(o driver.Observed) bool { return o.State != driver.Running })
	if text := b.logs(spec.ID); strings.Count(text, "hook-up") != 1 || strings.Count(text, "hook-down") != 1 {
		t.Errorf("after one start and one stop the container's output is %q, want one line of post_start and one of pre_stop", text)
	}
	b.ensure(spec)
	if text := b.logs(spec.ID); strings.Count(text, "hook-up") != 2 {
		t.Errorf("after the second start the output is %q, want two lines of post_start", text)
	}
}

// A container whose post_start fails is stopped, and the error contains the exit code and the output of the
// hook.
func TestAFailedPostStartStopsTheContainer(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "serve")
	body.PostStart = []*agentv1.Hook{{Command: []string{"/probe", "say", "", "no database", "3"}}}
	spec := b.spec("hookfails", body)
	err := b.d.Ensure(b.ctx, spec)
	var typed *driver.Error
	if !errors.As(err, &typed) || typed.Class != driver.RuntimeError || !strings.Contains(err.Error(), "post_start[0]") || !strings.Contains(err.Error(), "exit code 3: no database") {
		t.Fatalf("Ensure returned %v, want a RuntimeError that names the hook, its exit code and its output", err)
	}
	if o := b.observed(spec.ID); o.State == driver.Running {
		t.Errorf("the container whose post_start failed is %s, want it stopped", o.State)
	}
}

// endlessPostStart has two hooks: the first writes a line to the log of the container, and the second does not end.
var endlessPostStart = []*agentv1.Hook{{Command: []string{"/probe", "shout", "hook-up"}}, {Command: []string{"/probe", "wait"}}}

// interrupt calls Ensure for a container with endlessPostStart, and ends the context of the call when the first hook has run
// the given number of times since the container was created.
func (b *bench) interrupt(spec driver.Spec, runs int) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- b.d.Ensure(ctx, spec) }()
	b.await(spec.ID, fmt.Sprintf("running, after %d runs of the first hook", runs), func(o driver.Observed) bool {
		return o.State == driver.Running && strings.Count(b.logs(spec.ID), "hook-up") >= runs
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		b.Fatalf("the interrupted Ensure returned %v, want context.Canceled", err)
	}
}

// withdrawals records the workloads for which Withdraw was called while their containers ran.
type withdrawals struct {
	driver.Networks
	running func(driver.ID) bool
	of      []driver.ID
}

func (w *withdrawals) Withdraw(_ context.Context, id driver.ID) {
	if w.running(id) {
		w.of = append(w.of, id)
	}
}

func (w *withdrawals) Leave(driver.ID, ...uint32) error { return nil }

// Nodes stop sending new connections to a container before it is stopped because a post_start hook failed or was interrupted.
func TestAContainerIsWithdrawnBeforeTheStopOfAFailedPostStart(t *testing.T) {
	networks := &withdrawals{}
	b := newBench(t, func(o *docker.Options) { o.Networks = networks })
	networks.running = func(id driver.ID) bool {
		in, err := b.cli.ContainerInspect(b.ctx, string(id), client.ContainerInspectOptions{})
		return err == nil && in.Container.State.Running
	}
	body := containerBody(b.image, "serve")
	body.PostStart = endlessPostStart
	spec := b.spec("hookdrawn", body)
	b.interrupt(spec, 1)
	if len(networks.of) != 0 {
		t.Fatalf("Withdraw was called for %q before any stop", networks.of)
	}
	ctx, cancel := context.WithTimeout(b.ctx, 8*time.Second)
	defer cancel()
	if err := b.d.Ensure(ctx, spec); err == nil {
		t.Fatal("Ensure returned nil, but the hook does not end")
	}
	if len(networks.of) != 1 || networks.of[0] != spec.ID {
		t.Errorf("after an interrupted hook, Withdraw was called for %q, want once for %s", networks.of, spec.ID)
	}

	networks.of = nil
	body = containerBody(b.image, "serve")
	body.PostStart = []*agentv1.Hook{{Command: []string{"/probe", "say", "", "no database", "3"}}}
	spec = b.spec("hookdrawn2", body)
	if err := b.d.Ensure(b.ctx, spec); err == nil {
		t.Fatal("Ensure returned nil, but the hook failed")
	}
	if len(networks.of) != 1 || networks.of[0] != spec.ID {
		t.Errorf("after a failed hook, Withdraw was called for %q, want once for %s", networks.of, spec.ID)
	}
}

// The stop after a failed post_start is short, whatever the grace period of the container is, because new orders wait for
// it.
func TestAFailedPostStartStopsTheContainerSoon(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "stubborn")
	body.StopGracePeriodSeconds = 600
	body.PostStart = []*agentv1.Hook{{Command: []string{"/probe", "say", "", "no database", "3"}}}
	spec := b.spec("hookslow", body)
	began := time.Now()
	if err := b.d.Ensure(b.ctx, spec); err == nil || !strings.Contains(err.Error(), "post_start[0]") {
		t.Fatalf("Ensure returned %v, want the error of the post_start hook", err)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("Ensure of a container whose post_start failed took %s, want about 10 s for the stop", took)
	}
	if o := b.observed(spec.ID); o.State == driver.Running {
		t.Errorf("the container whose post_start failed is %s, want it stopped", o.State)
	}
}

// People who may not see the secrets of a workload can read the error of its failed start. So secrets in the
// output of a hook are masked. If the beginning of the output is dropped, the rest of its first line is
// dropped too, because that may be the end of a secret.
func TestTheErrorOfAHookRepeatsNoSecret(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		out  string
		said string
	}{
		"the values of the environments of hook and container are masked": {"of hook hunter2-hook and of container hunter2-env", "of hook … and of container …"},
		"a single line of a value with several lines is masked":           {"it has line-of-hunter2", "it has …"},
		"a cut output": {strings.Repeat("-", 100) + "hunter2-hook" + strings.Repeat("\n", 2040) + "end", "end"},
	} {
		t.Run(name, func(t *testing.T) {
			body := containerBody(b.image, "serve")
			body.Env = map[string]string{"IN": "hunter2-env"}
			body.PostStart = []*agentv1.Hook{{Command: []string{"/probe", "say", "", c.out, "3"}, Environment: map[string]string{"HOOK": "hunter2-hook", "LINES": "first\nline-of-hunter2\n"}}}
			b := &bench{T: t, engine: b.engine, d: b.d, ctx: b.ctx}
			err := b.d.Ensure(b.ctx, b.spec("hookword", body))
			if err == nil || !strings.Contains(err.Error(), "exit code 3: "+c.said+" (") {
				t.Errorf("the error of Ensure is %q, want it to contain the masked output %q", err, c.said)
			}
		})
	}
}

// If the post_start hooks are interrupted, for example by a new order, the container does not count as
// started: the next Ensure runs the hooks again.
func TestAnInterruptedPostStartRunsAgain(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "serve")
	body.PostStart = endlessPostStart
	spec := b.spec("hookcut", body)
	for want := 1; want <= 2; want++ {
		b.interrupt(spec, want)
	}
}

// A pre_stop hook that does not end takes no longer than the grace period.
func TestAHookEndsWithTheGracePeriod(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "serve")
	body.StopGracePeriodSeconds = 2
	body.PreStop = []*agentv1.Hook{{Command: []string{"/probe", "wait"}}}
	spec := b.spec("hookhangs", body)
	b.ensure(spec)
	began := time.Now()
	if err := b.d.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*time.Second || took > 30*time.Second {
		t.Errorf("a stop whose pre_stop hook does not end took %s, want the grace period of 2 s", took)
	}
}

// A hook in a label that this agent did not seal is not run, because no policy has judged it. Containers of legacy v1 agents
// have the labels of their image and those of a user.
func TestHooksOfOthersAreNotRun(t *testing.T) {
	const forged = `{"pre_stop":[{"command":["/probe","shout","hook-down"],"user":"0"}]}`
	b := newBench(t, func(o *docker.Options) { o.Owns = func(driver.ID) bool { return true } })
	sealed := mobytest.Sealer(t).SealSame([]byte(forged), []byte("another workload"))
	for name, labels := range map[driver.ID]map[string]string{
		"a container of a legacy v1 agent with a hooks label":                     {driver.LabelHooks: forged},
		"a hooks label that the agent did not seal, with the labels of this node": {driver.LabelHooks: forged, driver.LabelCluster: b.cluster, driver.LabelNode: "node-a"},
		"a hooks label that the agent sealed for another workload":                {driver.LabelHooks: sealed, driver.LabelCluster: b.cluster, driver.LabelNode: "node-a"},
	} {
		t.Run(string(name), func(t *testing.T) {
			b := &bench{T: t, engine: b.engine, d: b.d, ctx: b.ctx}
			ref := "persys/hooked-" + b.run + ":1"
			mobytest.Labelled(t, b.cli, b.probe, ref, labels)
			b.image = ref
			const id = driver.ID("hooked")
			b.made(id, "rev-1")
			if err := b.d.Halt(b.ctx, id, driver.OwnGrace); err != nil {
				t.Fatal(err)
			}
			b.await(id, "stopped", func(o driver.Observed) bool { return o.State != driver.Running })
			if text := b.logs(id); strings.Contains(text, "hook-down") {
				t.Errorf("the driver ran a hook of a label that this agent did not seal for this workload; the output is %q", text)
			}
		})
	}
}

// Environments of hooks may hold secrets, so people who list containers cannot read them.
func TestLabelsDoNotShowTheEnvironmentOfHooks(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "serve")
	body.PreStop = []*agentv1.Hook{{Command: []string{"/probe", "shout", "down"}, Environment: map[string]string{"WORD": "hunter2-in-a-hook"}}}
	spec := b.spec("hooksecret", body)
	b.ensure(spec)
	in, err := b.cli.ContainerInspect(b.ctx, string(spec.ID), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(in.Container.Config.Labels); !strings.Contains(text, driver.LabelHooks+":sealed:") || strings.Contains(text, "hunter2") {
		t.Errorf("the container's labels are %s, want the hooks sealed, without the secret", text)
	}
}
