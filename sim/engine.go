package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/persys/compute/agent/driver"
)

// instance is the instance of one workload on a simulated engine.
type instance struct {
	id         string
	content    string
	revision   string
	generation driver.Generation
	flavour    string
	ports      []uint32
	state      driver.State
	runtimeID  string
	started    int64 // virtual time at which the instance was first started
	finished   int64
	exit       int
	since      int64 // virtual time at which the present run started
}

// engine runs the instances of a machine. It goes on when the agent dies. If the agent dies during an
// operation, the operation ends either before or after the call to the engine that is in progress.
type engine struct {
	m     *machine
	has   map[string]*instance
	busy  map[string]bool
	count int
	mute  int64 // virtual time until which the engine does not answer
}

// list returns all instances of the simulated engine, in the form in which a real driver lists
// them.
func (e *engine) list() map[string]*driver.Observed {
	out := map[string]*driver.Observed{}
	for id, i := range e.has {
		o := &driver.Observed{
			ID: driver.ID(id), Revision: i.revision, Content: i.content, Generation: i.generation, Owned: true,
			State: i.state, ExitCode: i.exit, RuntimeID: i.runtimeID, StartedAt: e.m.time(i.started),
		}
		if i.finished != 0 {
			o.FinishedAt = e.m.time(i.finished)
		}
		if i.state == driver.Failed {
			o.Class, o.Message = driver.RuntimeError, fmt.Sprintf("ended with exit code %d", i.exit)
		}
		out[id] = o
	}
	return out
}

// spec is the part of a specification that a simulated engine needs.
type spec struct {
	id, content, revision string
	generation            driver.Generation
	running               bool
	flavour               string
	ports                 []uint32
	may                   func() bool // called right before a start, to ask whether it is still allowed; nil = always allowed
}

// do carries out one operation on a workload, and calls done if the calling process still lives.
// The operation fails if another operation on the same workload is in progress.
func (e *engine) do(verb string, sp spec, done func(error)) {
	w, m := e.m.w, e.m
	if e.busy[sp.id] {
		w.after(300*ms, &m.proc, func() {
			done(driver.Errorf(driver.RuntimeUnhealthy, verb, "another operation on %s is in progress", sp.id))
		})
		return
	}
	e.busy[sp.id] = true
	life := m.proc.life
	finish := func(err error) {
		e.busy[sp.id] = false
		if m.proc.life == life && m.proc.alive {
			w.after(w.between(0, 5)*ms, &m.proc, func() { done(err) })
		}
	}
	pace := func(low, high int64, fn func()) { w.after(w.between(low, high)*ms, &m.power, fn) }
	// If the agent dies between two calls to the engine, the operation ends there.
	lives := func() bool { return m.proc.life == life && m.proc.alive }
	ensure := func() {
		i := e.has[sp.id]
		if i != nil && i.content == sp.content && (i.state == driver.Running || !sp.running) {
			i.revision = sp.revision
			finish(nil)
			return
		}
		if i != nil && i.content != sp.content && i.state == driver.Running {
			e.end(i, driver.Stopped, 0, "replaced")
		}
		low, high := int64(100), int64(2500)
		if strings.HasPrefix(sp.flavour, "slow") {
			low, high = 8000, 30000
		}
		start := func() {
			if err := e.refuse(sp); err != nil {
				finish(err)
				return
			}
			i := e.has[sp.id]
			if i == nil || i.content != sp.content {
				e.count++
				i = &instance{id: sp.id, content: sp.content, flavour: sp.flavour, ports: sp.ports, runtimeID: fmt.Sprintf("%s-%d", m.id, e.count), state: driver.Stopped}
				e.has[sp.id] = i
				i.generation = sp.generation
			}
			i.revision = sp.revision
			if sp.running {
				e.start(i)
			}
			finish(nil)
		}
		var pulled func()
		pulled = func() {
			switch {
			case !lives():
				finish(nil) // an image pull ends when the agent's process dies; a start goes on
			case sp.may != nil && m.paused > w.now: // the agent's process is paused, so it starts nothing now
				w.after(m.paused-w.now, &m.power, pulled)
			case sp.may != nil && !sp.may():
				finish(driver.Errorf(driver.RuntimeUnhealthy, verb, "the lease has ended"))
			default:
				pace(5, 100, start)
			}
		}
		pace(low, high, pulled)
	}
	halt := func(then func()) {
		i := e.has[sp.id]
		if i == nil || i.state != driver.Running {
			then()
			return
		}
		pace(50, 4000, func() {
			if i.state == driver.Running {
				e.end(i, driver.Stopped, 0, "halted")
			}
			then()
		})
	}
	remove := func(then func()) {
		halt(func() {
			if !lives() && w.chance(500) {
				finish(nil)
				return
			}
			pace(10, 500, func() {
				delete(e.has, sp.id)
				then()
			})
		})
	}
	switch verb {
	case "ensure":
		ensure()
	case "halt":
		if w.has(StopTrouble) && !w.calm && w.chance(600) {
			pace(50, 1000, func() { finish(driver.Errorf(driver.RuntimeError, verb, "it does not stop")) })
			return
		}
		halt(func() { finish(nil) })
	case "restart":
		halt(func() {
			if !lives() {
				finish(nil)
				return
			}
			ensure()
		})
	case "recreate":
		remove(func() {
			if !lives() || !sp.running {
				finish(nil)
				return
			}
			ensure()
		})
	case "remove":
		remove(func() { finish(nil) })
	default:
		w.violate("simulator", sp.id, m.id, "unknown step %s", verb)
	}
}

// refuse returns the reason why the engine cannot start a specification; nil if it can.
func (e *engine) refuse(sp spec) error {
	w := e.m.w
	if !sp.running {
		return nil
	}
	for _, id := range keys(e.has) {
		o := e.has[id]
		if id == sp.id || o.state != driver.Running {
			continue
		}
		for _, p := range o.ports {
			for _, q := range sp.ports {
				if p == q {
					return driver.Errorf(driver.PortBindConflict, "ensure", "port %d is bound by %s", p, id)
				}
			}
		}
	}
	if e.m.refuses(sp.id) {
		return driver.Errorf(driver.StorageFull, "ensure", "no space left")
	}
	if strings.HasPrefix(sp.flavour, "bad") {
		return driver.Errorf(driver.InvalidImage, "ensure", "no such image")
	}
	if strings.HasPrefix(sp.flavour, "flaky") && w.chance(400) {
		return driver.Errorf(driver.RuntimeError, "ensure", "the engine hiccuped")
	}
	return nil
}

// refuses reports whether the machine cannot run a workload for a cause of the machine (fault NodeTrouble). For
// each workload, one machine can never run it; others cannot while their disk is full.
func (m *machine) refuses(id string) bool {
	w := m.w
	return w.has(NodeTrouble) && (m.full > w.now || int(xxhash.Sum64String(id)%uint64(len(w.machines))) == m.idx)
}

func (e *engine) start(i *instance) {
	w := e.m.w
	i.state, i.started, i.finished, i.since = driver.Running, w.now, 0, w.now
	w.tracef(i.id, e.m.id, "RUNS %s %s", i.generation, i.flavour)
	w.begun(e.m, i)
	if isJob(i.flavour) {
		e.endsJob(i)
	}
	if strings.HasPrefix(i.flavour, "crashy") {
		run := i.runtimeID
		began := i.started
		w.after(w.between(500, 15000)*ms, &e.m.power, func() {
			if e.has[i.id] == i && i.runtimeID == run && i.started == began && i.state == driver.Running {
				e.end(i, driver.Failed, 1, "crashes")
			}
		})
	}
}

// end ends the run of an instance. In most cases the agent learns of the end by an event and lists
// the instances.
func (e *engine) end(i *instance, state driver.State, code int, why string) {
	w, m := e.m.w, e.m
	i.state, i.finished, i.exit = state, w.now, code
	w.tracef(i.id, m.id, "ENDS (%s)", why)
	if w.chance(800) {
		w.after(w.between(50, 400)*ms, &m.proc, func() {
			if m.hiccups(500) {
				m.inspect(i.id)
			} else {
				m.look()
			}
		})
	}
}

// time converts a moment of the virtual time to the machine's clock.
func (m *machine) time(at int64) time.Time {
	return time.Unix(0, m.local(at)).UTC()
}

// local converts a virtual time to the machine's clock.
func (m *machine) local(at int64) int64 {
	ran := at - start
	return at + m.offset + ran/1000*m.drift/1000
}
