package sim

import (
	"slices"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
)

// guards are a machine's pair of fencers and what its agent knows of them. One lease.State stands for
// both fencers, on the machine's clock. Which of the two acts at a deadline, or whether a supervisor had
// to start another one first, is a delay that is drawn.
type guards struct {
	state   lease.State
	alarm   int64 // local time of the deadline that is waited for
	ticking bool

	// Memory of the agent's process.
	lapses, confirm uint64
	deadline        int64 // local
	covered         []lease.Workload
	extra           map[string]int64 // local time until which it is guarded ahead of its intent
	busy            map[string]bool  // guarded steps under way
}

const guardGrace = 10 * sec

// forget is a new process of the agent.
func (g *guards) forget() {
	g.lapses, g.confirm, g.deadline, g.covered = 0, 0, 0, nil
	g.extra, g.busy = map[string]int64{}, map[string]bool{}
}

func guardedOne(id string) lease.Workload {
	return lease.Workload{Kind: driver.Container, ID: driver.ID(id)}
}

// stops reports whether an intent ends with the lease.
func (m *machine) stops(in *agent.Intent) bool {
	return m.w.has(Guards) && in != nil && in.Exclusive && in.OnLostLease == fsm.OnLostLeaseStop
}

// bound is what the node registers.
func (m *machine) bound() uint32 {
	if m.w.cfg.Sabotage == ShortBound {
		return 1
	}
	return uint32(lease.Bound(time.Duration(guardGrace)) / time.Second)
}

// meetGuard is the first thing that an agent's process does.
func (m *machine) meetGuard() {
	if !m.w.has(Guards) {
		return
	}
	g := &m.guards
	g.forget()
	now := m.local(m.w.now)
	st := m.fence(lease.Renewal{Agent: m.process(), Instance: m.disk.instance, Ask: true})
	g.lapses, g.confirm, g.deadline, g.covered = st.Lapses, st.Lapses, int64(st.Deadline), st.Guarded
	for _, id := range keys(m.disk.intents) {
		if m.stops(m.disk.intents[id]) && (st.Lapsed || now >= g.deadline || !slices.Contains(st.Guarded, guardedOne(id))) {
			m.of(id).Lapsed = true
		}
	}
	m.fencerTicks()
	m.mindGuard()
}

// mindGuard tells the guard something every half second.
func (m *machine) mindGuard() {
	m.w.after(500*ms, &m.proc, func() {
		m.tellGuard()
		m.mindGuard()
	})
}

// guardedList is what may run under the lease.
func (m *machine) guardedList() []lease.Workload {
	g := &m.guards
	var out []lease.Workload
	for _, id := range keys(m.work) {
		k := m.work[id]
		if !m.stops(m.disk.intents[id]) || k.Lapsed {
			continue
		}
		if !k.Waits || k.observed != nil && k.observed.State == driver.Running || !m.listed && slices.Contains(g.covered, guardedOne(id)) {
			out = append(out, guardedOne(id))
		}
	}
	now := m.local(m.w.now)
	for _, id := range keys(g.extra) {
		if now > g.extra[id] || now >= m.session.until {
			delete(g.extra, id)
		} else if one := guardedOne(id); !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out
}

// tellGuard has one exchange with the guard.
func (m *machine) tellGuard() {
	if !m.w.has(Guards) {
		return
	}
	g := &m.guards
	for again := true; again; {
		again = false
		if len(g.busy) == 0 {
			g.confirm = g.lapses
		}
		list := m.guardedList()
		now := m.local(m.w.now)
		st := m.fence(lease.Renewal{
			Agent: m.process(), Instance: m.disk.instance, Deadline: time.Duration(m.session.until), Lapses: g.confirm, Guarded: list,
		})
		g.deadline, g.covered = int64(st.Deadline), st.Guarded
		if st.Lapses > g.lapses {
			g.lapses = st.Lapses
			m.lapse()
			again = len(g.busy) == 0
		}
		if now >= g.deadline && len(list) > 0 {
			m.lapse()
		}
	}
	m.fencerWaits()
	m.fencerTicks()
}

// lapse ends what is guarded, as the agent sees it.
func (m *machine) lapse() {
	for _, id := range keys(m.work) {
		if k := m.work[id]; m.stops(m.disk.intents[id]) && !k.Lapsed {
			k.Lapsed = true
			m.w.tracef(id, m.id, "agent: it has lapsed")
			m.publish(k)
			m.kick(id, 0)
		}
	}
	clear(m.guards.extra)
}

// holdsUnder reports whether something may be started now.
func (m *machine) holdsUnder(id string) bool {
	g := &m.guards
	k := m.work[id]
	return k != nil && !k.Lapsed && slices.Contains(g.covered, guardedOne(id)) && m.local(m.w.now) < g.deadline && g.confirm == g.lapses
}

// coverOrder has an order guarded before it is accepted; false if it cannot be.
func (m *machine) coverOrder(req *agentv1.ApplyWorkloadRequest, old *agent.Intent, g driver.Generation) bool {
	id := req.GetId()
	if !m.w.has(Guards) || !req.GetExclusive() || req.GetOnLostLease() != fsm.OnLostLeaseStop ||
		req.GetDesiredState() == agentv1.DesiredState_DESIRED_STATE_STOPPED {
		return true
	}
	if k := m.work[id]; k != nil && old != nil && (k.Lapsed || k.Waits) && !old.Generation.Less(g) {
		return true // it is accepted, and not started
	}
	m.guards.extra[id] = m.local(m.w.now) + 10*sec
	m.tellGuard()
	gu := &m.guards
	return slices.Contains(gu.covered, guardedOne(id)) && m.local(m.w.now) < gu.deadline && gu.confirm == gu.lapses
}

// newFencers are those of a machine that has just started.
func newFencers() guards {
	return guards{state: lease.State{First: true, Settings: lease.Settings{Grace: time.Duration(guardGrace)}}}
}

// process names the agent's process.
func (m *machine) process() lease.Process { return lease.Process{PID: 1, Start: uint64(m.proc.life)} }

// fence gives the fencer one input and carries out what it decides.
func (m *machine) fence(in lease.Input) (answer lease.Status) {
	w, g := m.w, &m.guards
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
			w.after(w.between(2000, 5000)*ms, &m.power, m.boot) // its own supervisor
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
	w, g := m.w, &m.guards
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
		case w.cfg.Sabotage == NoGuard:
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
	w, g := m.w, &m.guards
	if g.ticking || len(g.state.Lease.ToStop) == 0 || w.cfg.Sabotage == NoGuard {
		return
	}
	g.ticking = true
	w.after(200*ms, &m.power, func() {
		g.ticking = false
		m.fence(lease.Tick{AgentAlive: m.alive})
		m.fencerTicks()
	})
}
