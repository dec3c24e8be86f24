package agent

import (
	"strings"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// checking gives a workload a health check.
func checking(command ...string) option {
	return func(r *agentv1.ApplyWorkloadRequest) {
		r.Content = "c1:" + strings.Join(command, " ")
		r.Spec.HealthCheck = &agentv1.HealthCheck{Command: command, Retries: 1, IntervalSeconds: 1}
	}
}

func (r *rig) says(id, message string) {
	r.t.Helper()
	r.until(func() bool { return strings.HasPrefix(r.status(id).GetMessage(), message) },
		func() string { return "the message is " + r.status(id).GetMessage() + ", want " + message })
}

func TestHealthChecks(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", checking("true"))
	r.reaches("web", running)
	r.says("web", "running, health check: healthy")
	before := r.observed("web").RuntimeID

	// Another check is another content; the instance is the same.
	r.apply("web", "sim/run", checking("sh", "-c", "err no database; exit 3"))
	r.says("web", "running, health check: unhealthy (the command ended with code 3: no database")
	if st := r.status("web"); st.ActualState != running || st.Health != "unhealthy" {
		t.Errorf("an unhealthy workload is %s, %q", st.ActualState, st.Health)
	}
	// The check is known to the agent after its restart.
	r.restart()
	r.says("web", "running, health check: unhealthy")
	if after := r.observed("web").RuntimeID; after != before {
		t.Errorf("instance %s became %s for a check", before, after)
	}
	// Without a check nothing is said, and nothing is watched.
	r.apply("web", "sim/run", content("c1:none"))
	r.says("web", "running")
	r.until(func() bool { return r.status("web").GetMessage() == "running" }, func() string { return r.status("web").GetMessage() })
	r.apply("web", "sim/run", checking("true"))
	r.says("web", "running, health check: healthy")
	r.delete("web")
	r.gone("web")
	if state, _ := r.a.checks.State("web"); state != "" {
		t.Errorf("a deleted workload is still %s", state)
	}
}
