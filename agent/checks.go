package agent

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/health"
)

// healthPrefix begins the message of a workload that runs and has a health check; the state follows, and
// after it, in brackets, why it is not healthy. It is what is said of Docker's own checks too.
const healthPrefix = "running, health check: "

// check watches a workload while it runs as ordered, and ends the watch when it does not. It is called
// with mu held.
func (a *Agent) check(w *workload) {
	if a.checks == nil {
		return
	}
	in, o := w.intent, w.observed
	if in == nil || in.Deleting || !in.running() || o == nil || o.State != driver.Running || in.spec.GetHealthCheck() == nil {
		a.checks.Drop(driver.ID(w.id))
		return
	}
	t := health.Target{
		ID: driver.ID(w.id), Instance: o.RuntimeID + " " + o.StartedAt.String() + " " + string(in.HealthCheck), Started: o.StartedAt,
		Addresses: o.Addresses, Ports: o.Ports, Check: proto.CloneOf(in.spec.GetHealthCheck()),
	}
	if e := a.engines[w.kind]; e != nil {
		t.Execer, _ = e.drv.(driver.Execer)
	}
	a.checks.Watch(t)
}

// healthOf is the message of a workload with a check, and its health: the worse of ours and of what the
// engine says of the image's own. It is called with mu held.
func (a *Agent) healthOf(w *workload) (message, verdict string) {
	state, detail := a.checks.State(driver.ID(w.id))
	if state == "" {
		state = health.Starting
	}
	message = healthPrefix + state
	if detail != "" {
		message += " (" + detail + ")"
	}
	engine := string(w.observed.Health)
	if engine != "" {
		message = w.observed.Message + "; " + message
	}
	for _, worst := range []string{health.Unhealthy, health.Starting} {
		if state == worst || engine == worst {
			return message, worst
		}
	}
	return message, state
}

// checked is told that a check says something else.
func (a *Agent) checked(id driver.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workloads[string(id)]; w != nil {
		a.publish(w, time.Now())
	}
}

// forget drops a workload that is no more. It is called with mu held.
func (a *Agent) forget(id string) {
	delete(a.workloads, id)
	if a.checks != nil {
		a.checks.Drop(driver.ID(id))
	}
}
