package compose

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
)

// If a service fails its health check, the stack is unhealthy. The health is reported in a field of its own,
// because a long message is shortened and may lose it.
func TestHealthOfAStackIsAField(t *testing.T) {
	var parts []*part
	for i := range 200 {
		health, message := driver.Healthy, "running, health check: healthy, and a long line about what it does all day"
		if i == 0 {
			health, message = driver.Unhealthy, "running, health check: unhealthy"
		}
		parts = append(parts, &part{service: fmt.Sprintf("service-%03d", i), Observed: driver.Observed{
			ID: "shop", State: driver.Running, Health: health, Message: message, RuntimeID: fmt.Sprint(i),
		}})
	}
	o := combine("shop", "shop", parts, nil)
	if strings.Contains(o.Message, "unhealthy") || len(o.Message) > driver.MaxMetadata {
		t.Fatalf("the message has only %d bytes and is not cut, so this test checks nothing", len(o.Message))
	}
	if o.State != driver.Running || o.Health != driver.Unhealthy {
		t.Errorf("the stack is %s with health %q, want running and unhealthy", o.State, o.Health)
	}
	parts[0].Health = driver.Starting
	if o := combine("shop", "shop", parts, nil); o.Health != driver.Starting {
		t.Errorf("with one starting service, the health is %q, want starting", o.Health)
	}
	parts[0].Health = "" // the service of this part has no health check
	if o := combine("shop", "shop", parts, nil); o.Health != driver.Healthy {
		t.Errorf("with one service that has no health check, the health is %q", o.Health)
	}
}

// A stack is not reported as Running if the engine cannot inspect all of its containers.
func TestPartlyInspectedStackIsNotRunning(t *testing.T) {
	parts := []*part{
		{service: "db", Observed: driver.Observed{ID: "shop", State: driver.Unknown, Message: "the engine does not tell", RuntimeID: "1"}},
		{service: "web", Observed: driver.Observed{ID: "shop", State: driver.Running, Message: "running", RuntimeID: "2"}},
	}
	if o := combine("shop", "shop", parts, nil); o.State != driver.Unknown || !strings.Contains(o.Message, "db: the engine does not tell") {
		t.Errorf("a stack with a container that cannot be inspected is %s (%s), want Unknown", o.State, o.Message)
	}
}

// TestTheOutputOfAStackThatIsAJob: a stack is a job if its services end and are not restarted. Its reported
// output is that of the service that failed or, if none failed, of the service that ended last.
func TestTheOutputOfAStackThatIsAJob(t *testing.T) {
	at := time.Unix(1000, 0)
	ended := func(service string, state driver.State, code int, after time.Duration) *part {
		return &part{service: service, once: true, status: container.StateExited, Observed: driver.Observed{
			RuntimeID: service, State: state, ExitCode: code, FinishedAt: at.Add(after), Output: "output of " + service,
		}}
	}
	for _, c := range []struct {
		name  string
		parts []*part
		want  string
	}{
		{"all succeeded", []*part{ended("a", driver.Stopped, 0, 2*time.Second), ended("b", driver.Stopped, 0, time.Second)}, "output of a"},
		{"one failed before the other ended", []*part{ended("a", driver.Stopped, 0, 2*time.Second), ended("b", driver.Failed, 1, time.Second)}, "output of b"},
	} {
		if o := combine("shop", "shop", c.parts, nil); o.Output != c.want {
			t.Errorf("%s: the output is %q, want %q", c.name, o.Output, c.want)
		}
	}
}

// TestAFailedServiceThatIsNotStartedAgain: if the restart policies of all failed services forbid another
// start, the stack is reported as one that stays failed (KeepEnded). A service that was never started,
// because it awaits the success of a failed service, does not change that.
func TestAFailedServiceThatIsNotStartedAgain(t *testing.T) {
	ended := func(service, policy string, engine container.RestartPolicyMode, code int) *part {
		p := &part{service: service, status: container.StateExited, Observed: driver.Observed{
			RuntimeID: service, State: driver.Stopped, ExitCode: code, StartedAt: time.Unix(1000, 0), FinishedAt: time.Unix(1001, 0),
		}}
		if code != 0 {
			p.State = driver.Failed
		}
		p.once, p.final = keepsEnded(policy, engine)
		return p
	}
	created := func(service, on string) *part {
		return &part{service: service, status: container.StateCreated, Observed: driver.Observed{RuntimeID: service, State: driver.Stopped},
			needs: types.DependsOnConfig{on: {Condition: types.ServiceConditionCompletedSuccessfully, Required: true}}}
	}
	needs := func(p *part, condition string, required bool) *part {
		for on := range p.needs {
			p.needs[on] = types.ServiceDependency{Condition: condition, Required: required}
		}
		return p
	}
	web := &part{service: "web", status: container.StateRunning, Observed: driver.Observed{RuntimeID: "web", State: driver.Running}}
	const no, onFailure = container.RestartPolicyDisabled, container.RestartPolicyOnFailure
	for _, c := range []struct {
		name        string
		parts       []*part
		kept, rests bool
	}{
		{"policy no, exit code 3", []*part{ended("a", "no", no, 3)}, true, false},
		{"policy no, beside a service that runs", []*part{ended("a", "no", no, 3), web}, true, true},
		{"policy on-failure, when the engine has used all restarts", []*part{ended("a", "on-failure", onFailure, 3)}, true, false},
		{"policy on-failure of an exclusive stack, which the agent starts again", []*part{ended("a", "on-failure", no, 3)}, false, false},
		{"policy no, beside a service that is paused", []*part{ended("a", "no", no, 3), {service: "web", status: container.StatePaused, Observed: driver.Observed{State: driver.Stopped}}}, true, true},
		{"no policy", []*part{ended("a", "", no, 3)}, false, false},
		{"policy no, beside a failed service without a policy", []*part{ended("a", "no", no, 3), ended("b", "", no, 3)}, false, false},
		{"policy no, and a service that awaits the success of the failed one", []*part{ended("a", "no", no, 3), created("b", "a"), created("c", "b"), web}, true, true},
		{"policy no, and a service that awaits the health of the failed one", []*part{ended("a", "no", no, 3), needs(created("b", "a"), types.ServiceConditionHealthy, true), web}, true, true},
		{"policy no, and a service that awaits the start of the failed one", []*part{ended("a", "no", no, 3), needs(created("b", "a"), types.ServiceConditionStarted, true), web}, false, true},
		{"policy no, and a service that awaits the success of the failed one, but does not require it",
			[]*part{ended("a", "no", no, 3), needs(created("b", "a"), types.ServiceConditionCompletedSuccessfully, false), web}, false, true},
		{"policy no, and a service that awaits another service, which succeeded", []*part{ended("a", "no", no, 3), ended("d", "no", no, 0), created("b", "d"), web}, false, true},
	} {
		if o := combine("shop", "shop", c.parts, nil); o.State != driver.Failed || o.KeepEnded != c.kept || o.PartlyRunning != c.rests {
			t.Errorf("%s: the stack is %s, KeepEnded %t, PartlyRunning %t; want Failed, %t, %t", c.name, o.State, o.KeepEnded, o.PartlyRunning, c.kept, c.rests)
		}
	}
}
