package sim

import (
	"errors"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// The fault Hiccups: the cores of the agent and of the leader get the inputs that follow from local troubles.

var errDisk = errors.New("the state file cannot be written")

// unbound is the cluster id in the labels of the instances of an agent that knows no cluster.
const unbound = "unbound"

func (m *machine) hiccups(perMille int) bool {
	return m.w.has(Hiccups) && !m.w.calm && m.w.chance(perMille)
}

// write carries out a Store effect. It returns an error if the write failed and the step must be dropped.
func (m *machine) write(s core.Store) error {
	if !m.hiccups(40) {
		m.disk.write(s)
		return nil
	}
	m.w.tracef(s.Workload, m.id, "agent: a write to the state file fails, required %t", s.Required)
	if !s.Required {
		return nil
	}
	if s.Workload != "" {
		m.do(core.StoreFailed{ID: s.Workload, Exit: s.Exit})
	}
	return errDisk
}

// hangs reports whether the engine does not answer at the present virtual time.
func (e *engine) hangs() bool { return e.m.w.now < e.mute }

// mutes makes the engine of a machine not answer for d nanoseconds. Its instances keep running.
func (m *machine) mutes(d int64) {
	m.w.tracef("", m.id, "the engine does not answer for %.1fs", float64(d)/float64(sec))
	m.engine.mute = m.w.now + d
	m.w.after(d, &m.proc, m.list)
}

// inspect makes the agent inspect one workload after its instance has changed.
func (m *machine) inspect(id string) {
	w := m.w
	e, ok := m.core.Engine(workload.Container)
	if !ok || m.engine.hangs() {
		return
	}
	l := core.Looked{ID: id, Kind: e.Kind, Bound: e.Bound, Observed: m.engine.list()[id], Began: m.now()}
	w.after(w.between(1, 40)*ms, &m.proc, func() { m.do(l) })
}

// rebind makes drivers that label instances with a cluster id.
func (m *machine) rebind(cluster string) {
	w := m.w
	w.tracef("", m.id, "agent: makes drivers for cluster %s", cluster)
	w.after(w.between(1, 3000)*ms, &m.proc, func() {
		m.do(core.Engines{Cluster: cluster, Kinds: []workload.Kind{workload.Container}})
		m.probe()
		m.list()
	})
}

// label returns the cluster id for the labels of instances when the agent starts.
func (m *machine) label() string {
	if m.w.has(Hiccups) {
		return m.core.Label(unbound)
	}
	return clusterID
}

// abandon makes a caller stop waiting for the leader's answer, sometimes before the leader answers.
func (l *leadership) abandon(c control.Call) {
	w := l.w
	if w.has(Hiccups) && !w.calm && w.chance(100) {
		l.after(w.between(0, 30)*ms, func() {
			if l.calls[c] != nil {
				l.step(control.Abandoned{Call: c})
			}
		})
	}
}

// updates returns the input for changes of the state. Sometimes the reader of the changes has missed some of them.
func (l *leadership) updates(changes []fsm.Change) control.Updates {
	w := l.w
	if w.has(Hiccups) && !w.calm && w.chance(30) {
		w.tracef("", "", "replica %d misses changes of the state", l.r.idx)
		return control.Updates{View: l.r.state, Fresh: true, Thawed: true}
	}
	return control.Updates{View: l.r.state, Changes: changes}
}

// muted fails an action of the agent because the engine does not answer.
func (m *machine) muted(a *core.Act) {
	w := m.w
	w.after(w.between(100, 1000)*ms, &m.proc, func() {
		m.do(core.Done{Act: a, Failed: &core.Failed{Class: driver.RuntimeUnhealthy, Message: "the engine does not answer"}, Began: time.Time{}})
	})
}

// countsNoSilence checks that the planner counts no failed attempt of a workload while the engine of its node does not answer
// the agent.
func (w *world) countsNoSilence(view fsm.View, step sched.Step) {
	for _, c := range step.Commands {
		for _, r := range c.GetScheduleRetries().GetRetries() {
			x, ok := view.Workload(r.GetWorkload())
			if ok && x.Desired == fsm.DesiredRunning && x.Actual.State == fsm.ActualUnknown && x.Actual.Generation == x.Generation && r.GetAttempts() > x.Retry.Attempts {
				w.violate("silence", x.ID, x.Node, "attempt %d counts as failed while the engine does not answer: %s", r.GetAttempts(), r.GetMessage())
			}
		}
	}
}
