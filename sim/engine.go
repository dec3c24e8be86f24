package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// instance is what an engine has of one workload.
type instance struct {
	id         string
	content    string
	revision   string
	generation driver.Generation
	flavour    string
	ports      []uint32
	state      driver.State
	runtimeID  string
	started    int64 // true time
	finished   int64
	exit       int
	since      int64 // start of the present run
}

// engine runs the instances of a machine. It outlives its agent. If the agent dies during an operation,
// the operation ends before or after the call that is under way.
type engine struct {
	m     *machine
	has   map[string]*instance
	busy  map[string]bool
	count int
}

// list shows all instances, as a driver does.
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

// spec is what the agent asks of an engine.
type spec struct {
	id, content, revision string
	generation            driver.Generation
	running               bool
	flavour               string
	ports                 []uint32
	may                   func() bool // asked right before the start; nil: it may start
}

// do carries out one verb and calls done, if the process that asked still lives. It fails if another
// operation on the workload is under way.
func (e *engine) do(verb string, sp spec, done func(error)) {
	w, m := e.m.w, e.m
	if e.busy[sp.id] {
		w.after(300*ms, &m.proc, func() {
			done(driver.Errorf(driver.RuntimeUnhealthy, verb, "another operation on %s is under way", sp.id))
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
	// A death of the agent between two calls ends the operation there.
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
				finish(nil) // a pull ends with its caller; a start does not
			case sp.may != nil && m.paused > w.now: // the process that would start it is paused
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

// refuse says why an engine cannot start what is asked of it.
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
	if strings.HasPrefix(sp.flavour, "bad") {
		return driver.Errorf(driver.InvalidImage, "ensure", "no such image")
	}
	if strings.HasPrefix(sp.flavour, "flaky") && w.chance(400) {
		return driver.Errorf(driver.RuntimeError, "ensure", "the engine hiccuped")
	}
	return nil
}

func (e *engine) start(i *instance) {
	w := e.m.w
	i.state, i.started, i.finished, i.since = driver.Running, w.now, 0, w.now
	w.tracef(i.id, e.m.id, "RUNS %s %s", i.generation, i.flavour)
	w.begun(e.m, i)
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

// end stops an instance. An event may tell the agent.
func (e *engine) end(i *instance, state driver.State, code int, why string) {
	w, m := e.m.w, e.m
	i.state, i.finished, i.exit = state, w.now, code
	w.tracef(i.id, m.id, "ENDS (%s)", why)
	if w.chance(800) {
		w.after(w.between(50, 400)*ms, &m.proc, func() { m.look() })
	}
}

// time is a moment on the machine's clock.
func (m *machine) time(at int64) time.Time {
	return time.Unix(0, m.local(at)).UTC()
}

// local converts true time to the machine's clock.
func (m *machine) local(at int64) int64 {
	ran := at - start
	return at + m.offset + ran/1000*m.drift/1000
}
