package sim

import (
	"fmt"
	"time"

	"github.com/persys/compute/agent/driver"
	agentmessage "github.com/persys/compute/agent/message"
	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// The fault Drift: in a cluster at rest, nodes are made to differ from the state in three ways. Each
// difference must be recorded, and closed once it is repaired.

const (
	driftEvery = 30 * time.Second
	driftBound = 240 * sec // maximum duration of a difference between a node and the state, with the time of repairs and their backoff
)

// list passes the instances on a machine to the leader, which compares them with the state. If a message is
// lost, the call times out.
func (l *leadership) list(e control.List) {
	w, r, m := l.w, l.r, l.w.machine(e.Node)
	l.after(int64(l.cfg.OrderDeadline), func() { l.step(control.Listed{ID: e.ID, Err: errUnknown}) })
	w.send(&m.proc, func() bool { return !m.down[r.idx] }, func() {
		listed := m.listed()
		w.send(&r.proc, func() bool { return !m.up[r.idx] }, func() { l.step(control.Listed{ID: e.ID, Reports: listed}) })
	})
}

// listed is the agent's API method ListWorkloads, as schedulers read its answer.
func (m *machine) listed() (out []sched.Reported) {
	for _, st := range agentmessage.Statuses(m.core, agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED) {
		out = append(out, message.Listed(st, false))
	}
	return out
}

// injected is a difference between a node and the state that the simulator made on purpose.
type injected struct {
	node, workload, kind string
	generation           fsm.Generation // generation of the workload when the difference was made
}

// drift makes nodes differ from the state, and waits until each difference was recorded and all are closed.
// It also deletes orphans (instances without a record) that earlier faults have left.
func (w *world) drift() {
	w.tracef("", "", "nodes begin to differ from the state")
	from := w.truth.Info().EventSeq
	made := w.inject()
	until := w.now + driftBound
	for w.report.Violation == nil && w.now < until {
		w.step(5 * sec)
		w.decide()
		if w.now > until-driftBound+2*int64(driftEvery) && w.truth.DriftCount() == 0 && w.truth.ResidualCount() == 0 {
			break
		}
	}
	if w.report.Violation != nil {
		return
	}
	for _, x := range made {
		detected, resolved := w.recorded(from, x)
		now, _ := w.truth.Workload(x.workload)
		// A difference need not be recorded: a complete list in a heartbeat may cause its repair
		// before a comparison finds it.
		healed := now != nil && now.Generation != x.generation
		switch {
		case !detected && !healed:
			w.violate("drift", x.workload, x.node, "a drift %s was never recorded", x.kind)
		case detected && !resolved:
			w.violate("drift", x.workload, x.node, "a drift %s was recorded and never closed", x.kind)
		case detected:
			w.report.Drifts++
		}
	}
	w.truth.Drifts("", func(d *fsm.Drift) bool {
		w.violate("drift", d.Workload, d.Node, "%s is open %s after it began: %s/%s, %d repairs", d.Type, duration(w.now-d.DetectedAt), d.SchedulerStatus, d.AgentStatus, d.Repairs)
		return true
	})
	for _, m := range w.machines {
		if _, ok := m.engine.has[orphanID(m)]; ok {
			w.violate("drift", orphanID(m), m.id, "the orphan that was deleted by request is still there")
		}
	}
}

func duration(ns int64) string { return fmt.Sprintf("%.1fs", float64(ns)/float64(sec)) }

func orphanID(m *machine) string { return "orphan-" + m.id }

// inject makes three differences: an orphan (an instance without a record), a missing instance and
// an instance of another revision.
func (w *world) inject() (out []injected) {
	o := w.machines[0]
	o.engine.count++
	o.engine.has[orphanID(o)] = &instance{
		id: orphanID(o), content: "by hand", revision: "c1-by-hand", flavour: "good", state: driver.Running,
		runtimeID: fmt.Sprintf("%s-by-hand-%d", o.id, o.engine.count), started: w.now, since: w.now,
	}
	o.look()
	out = append(out, injected{node: o.id, workload: orphanID(o), kind: fsm.DriftOrphan})
	kinds := []string{fsm.DriftMissing, fsm.DriftRevision}
	w.truth.Workloads("", func(x *fsm.Workload) bool {
		m := w.machine(x.Node)
		flavour, _ := w.users.flavourOf(x.Content)
		if m == nil || len(kinds) == 0 || x.Status != fsm.StatusRunning || flavour[:2] != "go" || m.disk.intents[x.ID] == nil || m.core.Get(x.ID).Task.Open() {
			return true
		}
		kind := kinds[0]
		kinds = kinds[1:]
		if kind == fsm.DriftMissing {
			// The instance is removed from the engine, and the agent loses its record of the workload.
			delete(m.engine.has, x.ID)
			delete(m.disk.intents, x.ID)
			delete(m.disk.status, x.ID)
			delete(m.disk.acknowledged, x.ID)
		} else {
			old := *m.disk.intents[x.ID]
			old.RevisionID = "c1-of-another-time"
			m.disk.intents[x.ID] = &old
		}
		m.die("its state file has changed")
		m.boot()
		w.tracef(x.ID, m.id, "drift: %s", kind)
		out = append(out, injected{m.id, x.ID, kind, x.Generation})
		return true
	})
	return out
}

// decide makes an operator delete the orphans (instances without a record) that drift detection
// found.
func (w *world) decide() {
	w.truth.Drifts("", func(d *fsm.Drift) bool {
		if d.Type == fsm.DriftOrphan && d.Action == fsm.ActionInvestigate && !w.users.decided[d.Node+"/"+d.Workload] {
			w.users.decided[d.Node+"/"+d.Workload] = true
			node, id := d.Node, d.Workload
			w.ask("drift delete "+node+" "+id, func(c *commandv1.Command) {
				c.Body = &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: node, Workload: id}}
			}, nil)
		}
		return true
	})
}

// recorded reports whether a difference was recorded after the event number from, and whether it was then
// closed.
func (w *world) recorded(from uint64, x injected) (detected, resolved bool) {
	w.truth.Events(from, func(e *fsm.Event) bool {
		if e.Node == x.node && e.Workload == x.workload && e.Reason == x.kind {
			detected = detected || e.Type == fsm.EventDriftDetected
			resolved = e.Type == fsm.EventDriftResolved
		}
		return true
	})
	return detected, resolved
}

// step runs the simulated cluster for d nanoseconds.
func (w *world) step(d int64) {
	until := w.now + d
	for w.report.Violation == nil && w.next(until) {
	}
}
