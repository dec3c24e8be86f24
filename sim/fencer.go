package sim

import (
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
)

// fencers are the two of a machine. One lease.State stands for both, on the machine's clock. Which of the two acts at a deadline, or whether a supervisor had
// to start another one first, is a delay that is drawn.
type fencers struct {
	state   lease.State
	alarm   int64 // local time of the deadline that is waited for
	ticking bool
}

const fencerGrace = 10 * sec

// bound is the fence bound, in seconds, that the node registers.
func (m *machine) bound() uint32 {
	if m.w.cfg.Sabotage == ShortBound {
		return 1
	}
	return uint32(lease.Bound(time.Duration(fencerGrace)) / time.Second)
}

// meetFencer asks the fencer what has become of the workloads of a former process.
func (m *machine) meetFencer() {
	if !m.w.has(Fencers) {
		return
	}
	st := m.fence(lease.Renewal{Agent: m.process(), Instance: m.disk.instance, Ask: true})
	m.do(core.FencerMet{Status: st})
	m.fencerTicks()
	m.mindFencer()
}

// mindFencer tells the fencer something every half second.
func (m *machine) mindFencer() {
	m.w.after(500*ms, &m.proc, func() {
		m.renewLease()
		m.mindFencer()
	})
}

// tellFencer has an exchange with the fencer soon.
func (m *machine) tellFencer(d int64) {
	if !m.telling && m.w.has(Fencers) {
		m.telling = true
		m.w.after(d*ms, &m.proc, func() {
			m.telling = false
			m.renewLease()
		})
	}
}

// renewLease has one exchange with the fencer.
func (m *machine) renewLease() {
	m.do(core.FencerDue{})
	sent := m.renewal
	sent.Agent = m.process()
	st := m.fence(sent)
	m.do(core.FencerAnswered{Sent: sent, Status: st})
	m.fencerWaits()
	m.fencerTicks()
}

// newFencers are the fencers of a machine that has just started.
func newFencers() fencers {
	return fencers{state: lease.State{First: true, Settings: lease.Settings{Grace: time.Duration(fencerGrace)}}}
}

// process names the agent's process.
func (m *machine) process() lease.Process { return lease.Process{PID: 1, Start: uint64(m.proc.life)} }

// fence gives the fencer one input and carries out what it decides.
func (m *machine) fence(in lease.Input) (answer lease.Status) {
	w, g := m.w, &m.fencers
	var effects []lease.Effect
	g.state, effects = lease.Step(g.state, time.Duration(m.local(w.now)), in)
	for _, e := range effects {
		switch e := e.(type) {
		case lease.Answer:
			answer = e.Status
		case lease.Lapse:
			w.tracef("", m.id, "fencer: the lease has ended, %d to stop", len(g.state.Lease.ToStop))
		case lease.Kill:
			m.die("it does not confirm the end of its lease")
			w.after(w.between(2000, 5000)*ms, &m.power, m.boot) // by the supervisor of the agent
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

// fencerHalts stops an instance within the grace, as an engine does.
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

// fencerWaits has a fencer look at the clock when the lease ends.
func (m *machine) fencerWaits() {
	w, g := m.w, &m.fencers
	at := int64(g.state.Lease.Deadline)
	if at <= g.alarm {
		return
	}
	g.alarm = at
	late := w.between(0, 250) * ms
	switch {
	case w.chance(100): // agent and fencers were lost at once: a supervisor starts new ones
		late = w.between(1500, 3300) * ms
	case w.chance(250): // the second fencer acts
		late = int64(lease.SecondWaits) + w.between(0, 250)*ms
	}
	w.after(max(at-m.local(w.now), 0)+ms+late, &m.power, func() {
		switch {
		case w.cfg.Sabotage == NoFencer:
		case m.local(w.now) < at: // its clock is slow
			g.alarm = 0
			m.fencerWaits()
		default:
			m.fence(lease.Tick{AgentAlive: m.alive})
			m.fencerTicks()
		}
	})
}

// fencerTicks has the fencer look at the clock every 200 ms while workloads have to be stopped.
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
