package sim

import (
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
)

// fencers models the two fencers of a machine. A fencer is a process that stops exclusive workloads when the
// lease ends. One lease.State, on the machine's clock, stands for both. A random delay models which fencer
// acts at a deadline, and the time until a supervisor has started another one.
type fencers struct {
	state   lease.State
	alarm   int64 // time at which the fencer must check again, on the machine's clock
	ticking bool
}

const fencerGrace = 10 * sec

// meetFencer is called when an agent process starts: it asks the fencer which workloads the previous
// agent process ran.
func (m *machine) meetFencer() {
	if !m.w.has(Fencers) {
		return
	}
	st := m.fence(lease.Renewal{Agent: m.process(), Instance: m.disk.instance, Ask: true})
	m.do(core.FencerMet{Status: st})
	m.fencerTicks()
	m.mindFencer()
}

// mindFencer sends the fencer a message from the agent every half second.
func (m *machine) mindFencer() {
	m.w.after(500*ms, &m.proc, func() {
		m.renewLease()
		m.mindFencer()
	})
}

// tellFencer starts an exchange between the agent and the fencer after the time d.
func (m *machine) tellFencer(d int64) {
	if !m.telling && m.w.has(Fencers) {
		m.telling = true
		m.w.after(d*ms, &m.proc, func() {
			m.telling = false
			m.renewLease()
		})
	}
}

// renewLease makes one exchange between the agent and the fencer, in which the agent says when the lease
// ends.
func (m *machine) renewLease() {
	m.do(core.FencerDue{})
	sent := m.renewal
	sent.Agent = m.process()
	st := m.fence(sent)
	m.do(core.FencerAnswered{Sent: sent, Status: st})
	m.fencerWaits()
	m.fencerTicks()
}

// newFencers returns the fencers of a machine that has just been switched on.
func newFencers() fencers {
	return fencers{state: lease.State{First: true, Settings: lease.Settings{Grace: time.Duration(fencerGrace)}}}
}

// process returns the identity by which the fencer knows the agent's process.
func (m *machine) process() lease.Process { return lease.Process{PID: 1, Start: uint64(m.proc.life)} }

// fence passes one input to the fencer (the process that stops exclusive workloads when the lease
// ends) and carries out what it decides.
func (m *machine) fence(in lease.Input) (answer lease.Status) {
	w, g := m.w, &m.fencers
	var effects []lease.Effect
	g.state, effects = lease.Step(g.state, time.Duration(m.local(w.now)), in)
	for _, e := range effects {
		switch e := e.(type) {
		case lease.Answer:
			answer = e.Status
			answer.Second = true // one lease.State stands for both fencers
		case lease.Lapse:
			w.tracef("", m.id, "fencer: the lease has ended, %d workloads to stop", len(g.state.Lease.ToStop))
			w.lapsed(m)
		case lease.Kill:
			m.die("the fencer does not confirm the end of its lease")
			w.after(w.between(2000, 5000)*ms, &m.power, m.boot) // a supervisor starts the agent again
		case lease.Look:
			var running []lease.Workload
			for _, one := range e.Of {
				if i := m.engine.has[string(one.ID)]; i != nil && i.state == driver.Running {
					running = append(running, one)
				}
			}
			w.after(0, &m.power, func() { m.fence(lease.Looked{Look: e, Running: running, AgentAlive: m.alive}) })
		case lease.Halt:
			m.fencerHalts(e)
		}
	}
	return answer
}

// fencerHalts makes the fencer stop an instance, which takes up to the grace period.
func (m *machine) fencerHalts(e lease.Halt) {
	w, i := m.w, m.engine.has[string(e.Workload.ID)]
	if i == nil {
		m.fence(lease.Halted{Workload: e.Workload})
		return
	}
	began := i.started
	w.after(w.between(50, int64(e.Grace)/ms+300)*ms, &m.power, func() {
		if m.engine.has[i.id] == i && i.state == driver.Running && i.started == began {
			m.engine.end(i, driver.Stopped, 0, "its fencer")
		}
		m.fence(lease.Halted{Workload: e.Workload})
	})
}

// fencerWaits schedules the fencer's check of the clock for the end of the lease.
func (m *machine) fencerWaits() {
	w, g := m.w, &m.fencers
	at := int64(g.state.Lease.Deadline)
	if at <= g.alarm {
		return
	}
	g.alarm = at
	late := w.between(0, 250) * ms
	switch {
	case w.chance(100): // agent and fencers were killed at the same time, and a supervisor starts new fencers
		late = w.between(1500, 3300) * ms
	case w.chance(250): // the first fencer does not act, so the second fencer has to
		late = int64(lease.SecondWaits) + w.between(0, 250)*ms
	}
	w.after(max(at-m.local(w.now), 0)+ms+late, &m.power, func() {
		switch {
		case w.cfg.Sabotage == NoFencer:
		case m.local(w.now) < at: // the machine's clock is slow: the deadline is not reached there yet
			g.alarm = 0
			m.fencerWaits()
		default:
			m.fence(lease.Tick{AgentAlive: m.alive})
			m.fencerTicks()
		}
	})
}

// fencerTicks makes the fencer check the clock every 200 ms while it still has workloads to stop.
func (m *machine) fencerTicks() {
	w, g := m.w, &m.fencers
	if g.ticking || len(g.state.Lease.ToStop) == 0 || w.cfg.Sabotage == NoFencer {
		return
	}
	g.ticking = true
	w.after(200*ms, &m.power, func() {
		g.ticking = false
		m.fence(lease.Tick{AgentAlive: m.alive})
		m.fencerTicks()
	})
}
