package sim

import "github.com/persys/compute/agent/driver"

// trouble injects random faults again and again, until the time for faults is over.
func (w *world) trouble() {
	if w.calm {
		return
	}
	w.after(w.between(300, 7000)*ms, nil, w.trouble)
	if w.has(Crons) && w.chance(150) {
		w.jump()
	}
	var kinds []Fault
	for f := Fault(1); f < FencedReturns; f <<= 1 {
		if w.has(f) {
			kinds = append(kinds, f)
		}
	}
	if w.has(DiskStalls) {
		kinds = append(kinds, DiskStalls, DiskStalls, DiskStalls)
	}
	if w.has(NodeTrouble) {
		kinds = append(kinds, NodeTrouble, NodeTrouble)
	}
	if w.has(Hiccups) {
		kinds = append(kinds, Hiccups, Hiccups, Hiccups)
	}
	if len(kinds) == 0 {
		return
	}
	kind := pick(&w.clock, kinds)
	r, m := pick(&w.clock, w.replicas), pick(&w.clock, w.machines)
	if l := w.log.leader; l >= 0 && w.chance(500) {
		r = w.replicas[l]
	}
	long := w.between(500, 20000) * ms
	if w.has(Fencers) && kind&(AgentCrash|AgentPause) != 0 && w.chance(400) {
		long *= 5 // longer than the lease and all waits that follow the end of a lease
	}
	switch kind {
	case ReplicaCrash:
		if r.alive {
			r.crash()
			w.after(long, nil, r.restart)
		}
	case ReplicaPause:
		if r.alive && r.paused <= w.now {
			r.stop(long)
		}
	case ReplicaCut:
		if len(w.replicas) > 1 && !r.cut {
			r.isolate(long)
		}
	case LeaderChange:
		w.elect()
	case DiskStalls:
		if w.chance(300) {
			long = w.between(50, 900) * ms // shorter than the time after which a leader gives up leadership
		}
		if r.alive && !w.oneHangs() {
			r.disk.armed = long
		}
	case Hiccups:
		m.mutes(long)
	case NodeTrouble:
		m.full = w.now + 5*long
	case AgentCrash:
		m.die("crash")
		w.after(long/2, &m.power, m.boot)
	case AgentPause:
		if m.alive && m.paused <= w.now {
			w.tracef("", m.id, "agent is paused for %.1fs", float64(long)/float64(sec))
			m.paused = w.now + long
		}
	case PowerLoss, Reinstall:
		m.off()
		if kind == Reinstall {
			w.sentence(m, "fence "+m.id, fence(m.id)) // the operator who reinstalls a machine also fences its node
		}
		back := long
		switch {
		case w.chance(400):
			back *= 4
		case kind == Reinstall && w.chance(500):
			back = w.between(200, 2000) * ms // the machine is back as fast as a virtual machine that is reset to its image
		}
		w.after(back, nil, func() { w.revive(m, kind == Reinstall) })
	case StateLoss:
		if m.alive {
			m.die("its state file is lost")
			m.disk = newDisk(w, m.id)
			w.after(long/2, &m.power, m.boot)
		}
	case LinkCut:
		w.cutLinks(m, long*2)
	case InstanceCrash:
		for _, id := range keys(m.engine.has) {
			if i := m.engine.has[id]; i.state == driver.Running && w.chance(500) {
				if w.chance(300) {
					m.engine.end(i, driver.Stopped, 0, "ends")
				} else {
					m.engine.end(i, driver.Failed, 1, "dies")
				}
				w.noteExit(m, i)
			}
		}
	case ModeChange:
		if w.chance(400) {
			w.ask("mode degraded", setMode("degraded"), nil)
			w.after(long, nil, func() { w.ask("mode normal", setMode("normal"), nil) })
		}
	}
}

// revive starts a machine again. If an operator has fenced or removed its node, the machine stays off until
// the operator's call is answered, and then starts with an empty disk.
func (w *world) revive(m *machine, wiped bool) {
	switch {
	case m.power.alive:
	case m.condemned && !m.sentenced:
		w.after(5*sec, nil, func() { w.revive(m, wiped) })
	default:
		m.on(wiped || m.condemned && !w.has(FencedReturns))
	}
}

// cutLinks cuts the links between a node and some or all replicas, in one or both directions.
func (w *world) cutLinks(m *machine, d int64) {
	all, way := w.chance(600), w.rng.IntN(3)
	var mended []func()
	for i := range w.replicas {
		if !all && w.chance(500) {
			continue
		}
		if way != 1 && !m.up[i] {
			m.up[i] = true
			mended = append(mended, func() { m.up[i] = false })
		}
		if way != 2 && !m.down[i] {
			m.down[i] = true
			mended = append(mended, func() { m.down[i] = false })
		}
	}
	w.tracef("", m.id, "links are cut for %.1fs: to all replicas %t, direction %d", float64(d)/float64(sec), all, way)
	w.after(d, nil, func() {
		for _, f := range mended {
			f()
		}
	})
}

// heal ends all faults and makes operators undo their drains, cordons and frozen modes.
func (w *world) heal() {
	w.tracef("", "", "the faults stop")
	w.calm = true
	for _, r := range w.replicas {
		r.disk.armed = 0
		r.thaw()
		r.paused = min(r.paused, w.now)
		r.rejoin()
		r.restart()
	}
	for _, m := range w.machines {
		clear(m.up)
		clear(m.down)
		m.paused = min(m.paused, w.now)
		m.full, m.engine.mute = 0, 0
		switch {
		case m.condemned: // the machine starts once its operator has received an answer to the fence or removal
		case !m.power.alive:
			m.on(false)
		default:
			m.boot()
		}
	}
	w.tidy()
	w.after(70*sec, nil, w.tidy) // a cordon or drain that was sent earlier may arrive only after the call that undid it
}

// tidy makes operators undo what they have done during the faults: cordons, drains and frozen
// modes.
func (w *world) tidy() {
	for _, m := range w.machines {
		w.ask("uncordon "+m.id, cordon(m.id, false), nil)
		w.ask("undrain "+m.id, drain(m.id, false), nil)
	}
	if w.has(Placement) {
		w.setPool("")
	}
	w.ask("mode normal", setMode("normal"), nil)
}
