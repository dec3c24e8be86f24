package agent

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
)

// checking is an option of apply: it adds a health check that runs a command to the specification.
func checking(command ...string) option {
	return func(r *agentv1.ApplyWorkloadRequest) {
		r.Content = "c1:" + strings.Join(command, " ")
		r.Spec.HealthCheck = &agentv1.HealthCheck{Command: command, Retries: 1, IntervalSeconds: 1}
	}
}

func (r *rig) says(id, message string) {
	r.t.Helper()
	r.until(func() bool { return strings.HasPrefix(r.status(id).GetMessage(), message) },
		func() string {
			return "the status message of the workload is " + r.status(id).GetMessage() + ", want " + message
		})
}

func TestHealthChecksAreReported(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", checking("true"))
	r.reaches("web", running)
	r.says("web", "running, health check: healthy")
	before := r.observed("web").RuntimeID

	// The scheduler sends an order with another health check, and so with another content hash. The agent does
	// not replace the instance.
	r.apply("web", "sim/run", checking("sh", "-c", "err no database; exit 3"))
	r.says("web", "running, health check: unhealthy (the command ended with code 3: no database")
	if st := r.status("web"); st.ActualState != running || st.Health != "unhealthy" {
		t.Errorf("a workload whose health check fails has state %s and health %q; want running and unhealthy", st.ActualState, st.Health)
	}
	// An order without a content hash changes only the health check. The agent does not replace the instance
	// either.
	r.apply("web", "sim/run", checking("true"), content(""))
	r.says("web", "running, health check: healthy")
	r.apply("web", "sim/run", checking("sh", "-c", "err no database; exit 3"), content(""))
	r.says("web", "running, health check: unhealthy")
	// After a restart the agent continues the health check, because it is stored.
	r.restart()
	r.says("web", "running, health check: unhealthy")
	if after := r.observed("web").RuntimeID; after != before {
		t.Errorf("a changed health check replaced instance %s by %s", before, after)
	}
	// The status of a workload without a check does not mention a check.
	r.apply("web", "sim/run", content("c1:none"))
	r.says("web", "running")
	r.until(func() bool { return r.status("web").GetMessage() == "running" }, func() string { return r.status("web").GetMessage() })
	r.apply("web", "sim/run", checking("true"))
	r.says("web", "running, health check: healthy")
	r.delete("web")
	r.gone("web")
	if state, _ := r.a.runner.Checks().State("web"); state != "" {
		t.Errorf("the agent still runs the health check of a deleted workload; its last result is %s", state)
	}
}

// The agent replaces bytes in statuses that are not valid UTF-8. protobuf refuses to marshal such a string,
// so one string would block a whole heartbeat or answer.
func TestStatusesAreValidUTF8(t *testing.T) {
	const raw = "gr\xf6\xdfer"
	r := newRig(t, under(leader())).start()
	r.hooks.set(func(h *hooks) {
		h.ensure = func(s driver.Spec) error {
			if s.ID == "fails" {
				return driver.Errorf(driver.InvalidImage, "pull", raw)
			}
			return nil
		}
	})
	r.apply("checked", "sim/run", by(7), at(5), checking("sh", "-c", "err "+strings.Repeat("a", 159)+"ä; exit 3"))
	r.apply("fails", "sim/run", by(7), at(5))
	r.says("checked", "running, health check: unhealthy")
	if st := r.reaches("fails", failing); !strings.Contains(st.Message, "gr\ufffder") {
		t.Errorf("the reason in the report of the unhealthy workload is %q", st.Message)
	}
	list := r.a.session.Reports()
	actions, err := r.api.ListActions(t.Context(), &agentv1.ListActionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []proto.Message{&controlv1.HeartbeatRequest{WorkloadStatuses: list}, &agentv1.ListWorkloadsResponse{Workloads: r.a.Snapshot()}, actions} {
		if _, err := proto.Marshal(m); err != nil {
			t.Error(err)
		}
	}
}
