package sim

import (
	"slices"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/guard"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
)

// guards are a machine's pair of guards and what its agent knows of them. What they hold and decide is
// the real guard.Book, on the machine's clock; which of the two acts at a deadline, or one that a
// supervisor had to start first, is a delay that is drawn.
type guards struct {
	book    guard.Book
	alarm   int64 // local time of the deadline that is waited for
	looking bool
	late    int64 // true time since when the agent has not confirmed; 0 = it has
	halting map[string]bool

	// Memory of the agent's process.
	lapses, confirm uint64
	deadline        int64 // local
	covered         []guard.Workload
	extra           map[string]int64 // local time until which it is guarded ahead of its intent
	busy            map[string]bool  // guarded steps under way
}

const guardGrace = 10 * sec

// forget is a new process of the agent.
func (g *guards) forget() {
	g.lapses, g.confirm, g.deadline, g.covered = 0, 0, 0, nil
	g.extra, g.busy = map[string]int64{}, map[string]bool{}
}

func guardedOne(id string) guard.Workload {
	return guard.Workload{Kind: driver.Container, ID: driver.ID(id)}
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
	return uint32(guard.Bound(time.Duration(guardGrace)) / time.Second)
}

// meetGuard is the first thing that an agent's process does.
func (m *machine) meetGuard() {
	if !m.w.has(Guards) {
		return
	}
	g := &m.guards
	g.forget()
	now := m.local(m.w.now)
	st := g.book.Feed(guard.Feed{Instance: m.disk.instance, Ask: true}, time.Duration(now))
	g.lapses, g.confirm, g.deadline, g.covered = st.Lapses, st.Lapses, int64(st.Deadline), st.Guarded
	for _, id := range keys(m.disk.intents) {
		if m.stops(m.disk.intents[id]) && (st.Lapsed || now >= g.deadline || !slices.Contains(st.Guarded, guardedOne(id))) {
			m.of(id).Lapsed = true
		}
	}
	m.guardLooks()
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
func (m *machine) guardedList() []guard.Workload {
	g := &m.guards
	var out []guard.Workload
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
		st := g.book.Feed(guard.Feed{Instance: m.disk.instance, Deadline: time.Duration(m.session.until), Lapses: g.confirm, Guarded: list}, time.Duration(now))
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
	m.guardWaits()
	m.guardLooks()
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

// guardWaits has a guard look when the lease ends.
func (m *machine) guardWaits() {
	w, g := m.w, &m.guards
	at := int64(g.book.Deadline())
	if at <= g.alarm {
		return
	}
	g.alarm = at
	late := w.between(0, 250) * ms
	switch {
	case w.chance(100): // agent and guards were lost at once: a supervisor's new one
		late = w.between(1500, 3300) * ms
	case w.chance(250): // the second
		late = int64(guard.SecondWaits) + w.between(0, 250)*ms
	}
	w.after(max(at-m.local(w.now), 0)+ms+late, &m.power, func() {
		switch {
		case w.cfg.Sabotage == NoGuard:
		case g.book.Lapse(time.Duration(m.local(w.now))):
			w.tracef("", m.id, "guard: the lease has ended, %d to stop", len(g.book.Condemned()))
			m.guardLooks()
		case m.local(w.now) < at: // its clock is slow
			g.alarm = 0
			m.guardWaits()
		}
	})
}

// guardLooks stops what is condemned, and looks again until nothing can start it any more.
func (m *machine) guardLooks() {
	w, g := m.w, &m.guards
	if g.looking || len(g.book.Condemned()) == 0 || w.cfg.Sabotage == NoGuard {
		return
	}
	g.looking = true
	w.after(200*ms, &m.power, func() {
		g.looking = false
		switch {
		case g.book.Confirmed() || !m.alive:
			g.late = 0
		case g.late == 0:
			g.late = w.now
		case w.now-g.late > int64(guard.KillAfter):
			m.die("it does not confirm the end of its lease")
			w.after(w.between(2000, 5000)*ms, &m.power, m.boot) // its own supervisor
		}
		runs := false
		for _, c := range g.book.Condemned() {
			id := string(c.ID)
			i := m.engine.has[id]
			if i == nil || i.state != driver.Running {
				continue
			}
			runs = true
			if g.halting[id] {
				continue
			}
			g.halting[id] = true
			began := i.started
			grace := min(max(int64(g.book.Deadline())+guardGrace-m.local(w.now), 0), guardGrace)
			w.after(w.between(50, grace/ms+300)*ms, &m.power, func() {
				delete(g.halting, id)
				if m.engine.has[id] == i && i.state == driver.Running && i.started == began {
					m.engine.end(i, driver.Stopped, 0, "its guard")
				}
			})
		}
		if !runs && (g.book.Confirmed() || !m.alive) {
			g.book.Stopped()
		}
		m.guardLooks()
	})
}
