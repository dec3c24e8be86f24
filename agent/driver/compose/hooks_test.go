package compose_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/drivertest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// hooks returns a stack whose hooks write to the output of its container. The first pre_stop hook fails, which does not
// prevent the stop.
func (b *bench) hooks(id, down string) driver.Spec {
	b.Helper()
	spec := b.spec(id, b.hooked(down))
	b.ensure(spec)
	return spec
}

func (b *bench) hooked(down string) *agentv1.WorkloadSpec {
	return b.yaml(fmt.Sprintf(`services:
  app:
    image: IMAGE
    post_start: [{command: [/probe, shout, hook-up]}]
    pre_stop:
      - command: [/probe, say, "", "no peer", "3"]
      - command: [/probe, shout, %s]
`, down))
}

func (b *bench) said(id driver.ID) func(word string) int {
	b.Helper()
	text := drivertest.Logs(b.ctx, b, b.d, id, driver.LogOptions{})
	return func(word string) int { return strings.Count(text, word) }
}

// The post_start hook of a service runs after each start by the agent, not only after the start that
// follows the creation of the container. The pre_stop hook runs before each stop.
func TestHooksOfAStackRunAtEachStartAndStop(t *testing.T) {
	b := newBench(t)
	spec := b.hooks("hooks", "hook-down")
	if err := b.d.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	if said := b.said(spec.ID); said("hook-up") != 1 || said("hook-down") != 1 {
		t.Errorf("after one start and one stop, post_start ran %d times and pre_stop %d times, want once each", said("hook-up"), said("hook-down"))
	}
	b.ensure(spec)
	if said := b.said(spec.ID); said("hook-up") != 2 {
		t.Errorf("after a second start, post_start ran %d times, want 2", said("hook-up"))
	}
}

// A change of the pre_stop hook replaces the container, because a label of the container stores its
// hooks.
func TestAChangedHookReplacesTheContainer(t *testing.T) {
	b := newBench(t)
	spec := b.hooks("hookchange", "hook-one")
	before := b.containerOf(spec.ID, "app")
	in, err := b.cli.ContainerInspect(b.ctx, before, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := fmt.Sprint(in.Container.Config.Labels)
	if !strings.Contains(labels, driver.LabelHooks+":sealed:") || strings.Contains(labels, "hook-one") {
		t.Errorf("the container's labels are %s, want the hooks sealed", labels)
	}
	same := b.spec("hookchange", b.hooked("hook-one"))
	same.ID, same.Content = spec.ID, "c1:same"
	b.ensure(same)
	if b.containerOf(spec.ID, "app") != before {
		t.Error("an update without changed hooks replaced the container")
	}
	next := b.spec("hookchange", b.hooked("hook-two"))
	next.ID, next.Content = spec.ID, "c1:next"
	b.ensure(next)
	if b.containerOf(spec.ID, "app") == before {
		t.Error("an update with another pre_stop hook did not replace the container")
	}
	if err := b.d.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	if said := b.said(spec.ID); said("hook-two") != 1 {
		t.Errorf("at the stop the new pre_stop hook ran %d times, want once", said("hook-two"))
	}
}

// A pre_stop hook that does not end takes no longer than the grace period that the caller of Halt gives, so that a fencer
// stops a stack in time.
func TestAHookOfAStackEndsWithTheGracePeriod(t *testing.T) {
	b := newBench(t)
	spec := b.spec("hookhangs", b.yaml("services: {app: {image: IMAGE, stop_grace_period: 5m, pre_stop: [{command: [/probe, wait]}]}}"))
	b.ensure(spec)
	began := time.Now()
	if err := b.d.Halt(b.ctx, spec.ID, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*time.Second || took > 30*time.Second {
		t.Errorf("Halt of a stack whose pre_stop hook does not end took %s, want the grace period of 2 s", took)
	}
}

// A stack whose post_start fails has not started: its container is stopped, and each further Ensure runs
// the hooks again, until they succeed. A service whose hooks succeeded keeps running.
func TestAFailedPostStartOfAStackRunsAgain(t *testing.T) {
	b := newBench(t)
	spec := b.spec("hookfails", b.yaml(`services:
  app:
    image: IMAGE
    restart: on-failure
    volumes: [./gate:/gate]
    post_start:
      - command: [/probe, shout, hook-up]
      - command: [/probe, exists, /gate/open]
  other:
    image: IMAGE
    post_start: [{command: [/probe, shout, other-up]}]
`))
	fails := func(when string) {
		t.Helper()
		err := b.d.Ensure(b.ctx, spec)
		if driver.ClassOf(err) != driver.RuntimeError || !strings.Contains(err.Error(), "service app: post_start[1]") || driver.StartedOf(err) {
			t.Fatalf("%s: Ensure returned %v, want a RuntimeError that names the service and the hook", when, err)
		}
		for service, want := range map[string]bool{"app": false, "other": true} {
			in, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, service), client.ContainerInspectOptions{})
			if err != nil || in.Container.State.Running != want {
				t.Errorf("%s: the container of service %q runs: %t, want %t (error: %v)", when, service, !want, want, err)
			}
		}
	}
	fails("first start")
	fails("second try")
	gates, err := filepath.Glob(filepath.Join(b.dir, "*", "files", "gate"))
	if err != nil || len(gates) != 1 {
		t.Fatalf("the mounted folders \"gate\" on this machine are %v (error %v), want one", gates, err)
	}
	open := filepath.Join(gates[0], "open")
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.ensure(spec)
	if said := b.said(spec.ID); said("hook-up") != 3 {
		t.Errorf("after two failed Ensures and a successful one, post_start ran %d times, want 3", said("hook-up"))
	}
	if err := b.d.Halt(b.ctx, spec.ID, driver.OwnGrace); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(open); err != nil {
		t.Fatal(err)
	}
	fails("start of existing containers")
	spec.Repeats = true // app has ended with exit code 0, so its restart policy alone would not start it
	fails("try without an order")
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.ensure(spec)
	if said := b.said(spec.ID); said("hook-up") != 6 {
		t.Errorf("after a stop, two more failed Ensures and a successful one, post_start ran %d times in total, want 6", said("hook-up"))
	}
}

// The reason of a failed start is visible to people who may not see the secrets of the stack. The output of a pre_start hook may
// hold them, and it must not choose the class of the failure.
func TestTheErrorOfAPreStartHookHasNoOutput(t *testing.T) {
	b := newBench(t)
	spec := b.spec("prestart", b.yaml(`services:
  app:
    image: IMAGE
    environment: {IN: hunter2-env}
    pre_start:
      - command: [say, "", "hunter2-env and hunter2-hook: no space left on device", "3"]
        environment: {HOOK: hunter2-hook}
`))
	b.Cleanup(func() { // Compose keeps the container of the hook, without the labels of the workload
		filters := make(client.Filters).Add("label", api.ProjectLabel+"="+compose.ProjectName(spec.ID), api.HookLabel+"=pre_start")
		left, err := b.cli.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: filters})
		if err != nil {
			b.Error(err)
		}
		for _, c := range left.Items {
			if _, err := b.cli.ContainerRemove(context.Background(), c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
				b.Error(err)
			}
		}
	})
	err := b.d.Ensure(b.ctx, spec)
	if driver.ClassOf(err) != driver.RuntimeError || !strings.Contains(err.Error(), `service "app" pre_start[0] exited with code 3 (hook container `) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Ensure returned %v, want a RuntimeError with the hook and its exit code, without its output", err)
	}
}
