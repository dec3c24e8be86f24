package moby

import (
	"strconv"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
)

// If the kernel killed a process of a container for lack of memory, the reported message names the memory
// limit. The test covers three cases: the container has ended, it is between two restarts, and it still runs
// because only a child process was killed.
func TestKilledForMemory(t *testing.T) {
	limit := memoryLimit(&container.HostConfig{Resources: container.Resources{Memory: 24 << 20}})
	for _, c := range []struct {
		fact  string
		state container.State
		want  string // part of the message; "" if the message must not mention memory
	}{
		{"the container ended after the kill", container.State{Status: container.StateExited, ExitCode: 137, OOMKilled: true}, "memory limit of 24 MiB (exit code 137)"},
		{"the engine restarts the container after the kill", container.State{Status: container.StateRestarting, ExitCode: 137, OOMKilled: true}, "(restart 3): OOMKilled: the container exceeded its memory limit of 24 MiB"},
		{"a child process was killed, and the container runs on", container.State{Status: container.StateRunning, OOMKilled: true}, "running; a process was killed: the container exceeded its memory limit of 24 MiB"},
		{"a child process was killed, and the container runs on, with a health check", container.State{Status: container.StateRunning, OOMKilled: true, Health: &container.Health{Status: container.Healthy}}, "healthy; a process was killed"},
		{"the container was killed by another signal", container.State{Status: container.StateRestarting, ExitCode: 137}, ""},
		{"no process was killed", container.State{Status: container.StateRunning}, ""},
	} {
		t.Run(c.fact, func(t *testing.T) {
			_, _, message := StateOf(&c.state, 3, limit)
			if !strings.Contains(message, c.want) || c.want == "" && strings.Contains(message, "memory") {
				t.Errorf("the message of the container is %q, want it to contain %q", message, c.want)
			}
		})
	}
	if got := memoryLimit(&container.HostConfig{}); got != "its memory limit" {
		t.Errorf("the message of a killed container without a memory limit is %q, want one that names no limit", got)
	}
}

// TestOOMEventsOfChildren: after an OOM event, a running container is reported as OOMKilled until it starts
// again or is removed. The event also comes if only a child process was killed.
func TestOOMEventsOfChildren(t *testing.T) {
	var o ooms
	killed := func(id string, status container.ContainerState) bool {
		in := container.InspectResponse{ID: id, State: &container.State{Status: status}}
		o.complete(&in)
		return in.State.OOMKilled
	}
	o.note(events.ActionStart, "a")
	if killed("a", container.StateRunning) {
		t.Error("a container is reported as OOMKilled before the event")
	}
	o.note(events.ActionOOM, "a")
	for status, want := range map[container.ContainerState]bool{container.StateRunning: true, container.StateExited: false} {
		if killed("a", status) != want || killed("b", status) {
			t.Errorf("container a in state %s: reported as killed: %t, want killed only while it runs; container b: reported as killed: %t, want not", status, killed("a", status), killed("b", status))
		}
	}
	for _, end := range []events.Action{events.ActionStart, events.ActionDestroy} {
		o.note(events.ActionOOM, "a")
		if o.note(end, "a"); killed("a", container.StateRunning) {
			t.Errorf("the container is still reported as OOMKilled after the event %q", end)
		}
	}
	o.complete(&container.InspectResponse{}) // complete must accept an answer of the engine without the state of the container
	for i := range 2 * maxOOMs {
		o.note(events.ActionOOM, strconv.Itoa(i))
	}
	if len(o.ids) > maxOOMs {
		t.Errorf("the ids of %d killed containers are stored, want at most maxOOMs", len(o.ids))
	}
}

// TestTheMessageOfAnUnhealthyContainer: the message contains the exit code and the output of the last check.
func TestTheMessageOfAnUnhealthyContainer(t *testing.T) {
	log := func(output string) []*container.HealthcheckResult {
		return []*container.HealthcheckResult{{ExitCode: 0, Output: "old"}, {ExitCode: 1, Output: output}}
	}
	for _, c := range []struct {
		status container.HealthStatus
		log    []*container.HealthcheckResult
		want   string
	}{
		{container.Unhealthy, log("no\n route\n"), "running, health check: unhealthy (exit code 1: no route)"},
		{container.Unhealthy, log(""), "running, health check: unhealthy (exit code 1)"},
		{container.Unhealthy, nil, "running, health check: unhealthy"},
		{container.Healthy, log("ok"), "running, health check: healthy"},
		{container.Unhealthy, log(strings.Repeat("x", 400)), "running, health check: unhealthy (exit code 1: " + strings.Repeat("x", 187) + "…)"},
	} {
		_, _, message := StateOf(&container.State{Status: container.StateRunning, Health: &container.Health{Status: c.status, Log: c.log}}, 0, "")
		if message != c.want {
			t.Errorf("the message of the container is %q, want %q", message, c.want)
		}
	}
}
