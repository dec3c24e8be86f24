package sim

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"golang.org/x/sys/unix"
)

// Options of an Engine.
type Options struct {
	// Dir is the folder in which the engine is stored; it is created if it is missing. If Dir is empty, the
	// engine is kept in memory.
	Dir string
	// Kind is the kind of the engine's workloads; default container.
	Kind driver.Kind
	// EngineID is the id that the engine reports. The default is the id stored in Dir, or else "sim-" and a
	// random part.
	EngineID string
	// Mono is the clock that drives the behaviour of workloads; default Boottime. Processes that share a
	// folder must use the same clock.
	Mono func() time.Duration
	// Now is the clock for the times that the driver reports; default time.Now.
	Now func() time.Time
}

// Boottime returns the time of CLOCK_BOOTTIME. This clock never jumps, continues during suspend, and is the
// same for all processes of the machine.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("sim: CLOCK_BOOTTIME: " + err.Error()) // cannot happen: every kernel since 2.6.39 has this clock
	}
	return time.Duration(ts.Nano())
}

// Engine is a simulated engine. Its methods are safe for concurrent use.
type Engine struct {
	opt   Options
	store store

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	failed   map[driver.ID]int // number of failed Ensure calls of each workload with the image sim/flaky
}

// NewEngine opens the engine in opt.Dir, or creates a new one.
func NewEngine(opt Options) (*Engine, error) {
	opt.Kind = cmp.Or(opt.Kind, driver.Container)
	if opt.Mono == nil {
		opt.Mono = Boottime
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.EngineID == "" {
		random := make([]byte, 6)
		if _, err := rand.Read(random); err != nil {
			return nil, err
		}
		opt.EngineID = "sim-" + hex.EncodeToString(random)
	}
	e := &Engine{opt: opt, watchers: make(map[*watcher]struct{}), failed: make(map[driver.ID]int)}
	if opt.Dir == "" {
		e.store = &memory{name: opt.EngineID, records: make(map[string]record)}
		return e, nil
	}
	store, err := openFolder(opt.Dir, opt.EngineID)
	if err != nil {
		return nil, fmt.Errorf("simulated engine: %w", err)
	}
	e.store = store
	return e, nil
}

// SetDown makes the engine unreachable: every call of its drivers fails with class RuntimeUnhealthy and the
// reason, until SetDown is called with "". Workloads keep running.
func (e *Engine) SetDown(reason string) error {
	err := e.with("set down", func() error { return e.store.setDown(reason) })
	if reason == "" {
		e.hint(driver.ID(""))
	}
	return err
}

// PowerOff kills all running instances at once, with exit code 137, as a power failure does.
func (e *Engine) PowerOff() error {
	return e.with("power off", func() error {
		records, err := e.store.all()
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := e.end(r, 137, "the machine was powered off"); err != nil {
				return err
			}
		}
		return nil
	})
}

// Kill ends the instances of a workload on any node with an exit code, as a crash does.
// Restart policies do not apply.
func (e *Engine) Kill(id driver.ID, code int) error {
	return e.with("kill", func() error {
		records, err := e.store.all()
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Labels[driver.LabelWorkload] != string(id) {
				continue
			}
			if err := e.end(r, code, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// Occupy creates a running instance without our labels. Tests use the instance to check that a driver leaves
// such instances alone. Vacate removes the instance.
func (e *Engine) Occupy(name string) error {
	return e.with("occupy", func() error {
		return e.store.put(record{Name: name, RuntimeID: "stranger-" + name, Image: "stranger", Started: true, StartedAt: e.opt.Mono(), Wall: e.opt.Now()})
	})
}

// Vacate removes the instance that Occupy created. It returns false if a driver changed or removed the
// instance.
func (e *Engine) Vacate(name string) (untouched bool, err error) {
	err = e.with("vacate", func() error {
		r, ok, err := e.store.get(name)
		if err != nil {
			return err
		}
		untouched = ok && r.RuntimeID == "stranger-"+name && r.at(e.opt.Mono()).state == driver.Running
		return e.store.remove(name)
	})
	return untouched, err
}

// Runs returns the intervals in which instances ran, in the order of their starts.
func (e *Engine) Runs() ([]Run, error) {
	var entries []entry
	err := e.with("runs", func() (err error) {
		entries, err = e.store.entries()
		return err
	})
	return runsOf(entries, e.opt.Mono()), err
}

// with runs f under the engine's lock, even while SetDown has made the engine unreachable for drivers.
func (e *Engine) with(op string, f func() error) error {
	unlock, err := e.store.lock()
	if err != nil {
		return wrap(op, err)
	}
	return wrap(op, errors.Join(f(), unlock()))
}

// wrap turns an error of the store into a driver.Error with a class. A driver.Error keeps its own class.
func wrap(op string, err error) error {
	var typed *driver.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	return &driver.Error{Class: cmp.Or(driver.Generic(err), driver.RuntimeError), Op: op, Err: err}
}

const maxOutput = 64 // maximum number of lines of output kept for each instance

func (e *Engine) say(r *record, at time.Duration, text string) {
	out := append(append([]line(nil), r.Output...), line{r.shown(at), text})
	r.Output = out[max(0, len(out)-maxOutput):]
}

// start starts the simulated instance r, stores its record and adds the start to the run log.
func (e *Engine) start(r record) error {
	if err := e.checkPorts(&r); err != nil {
		r.Refused, r.Class = err.Error(), driver.ClassOf(err)
		e.hintRecord(r)
		return errors.Join(err, e.store.put(r))
	}
	now := e.opt.Mono()
	r.Started, r.StartedAt, r.Wall = true, now, e.opt.Now().Round(time.Microsecond).UTC()
	r.Ended, r.EndedAt, r.ExitCode, r.Note, r.Refused, r.Class = false, 0, 0, "", "", ""
	e.say(&r, now, "sim: started "+r.Image)
	if err := e.store.put(r); err != nil {
		return err
	}
	e.hintRecord(r)
	return e.store.log(entry{
		At: now, Event: "start", RuntimeID: r.RuntimeID, Until: r.until(),
		Workload: r.Labels[driver.LabelWorkload], Cluster: r.Labels[driver.LabelCluster], Node: r.Labels[driver.LabelNode],
		Generation: r.Labels[driver.LabelGeneration], Content: r.Labels[driver.LabelContent],
	})
}

// end ends the run of the instance r with an exit code and stores its record. If r does not run, end does
// nothing.
func (e *Engine) end(r record, code int, note string) error {
	now := e.opt.Mono()
	if !r.at(now).active() {
		return nil
	}
	r.Ended, r.EndedAt, r.ExitCode, r.Note = true, now, code, note
	e.say(&r, now, fmt.Sprintf("sim: ended with code %d", code))
	if err := e.store.put(r); err != nil {
		return err
	}
	e.hintRecord(r)
	return e.store.log(entry{At: now, Event: "stop", RuntimeID: r.RuntimeID, ExitCode: code})
}

// The range of host ports from which the engine chooses free ones; it is Linux's default range of ephemeral
// ports.
const (
	firstEphemeral = 32768
	ephemerals     = 28232
)

// checkPorts returns an error if another running instance of this engine uses a host port of r. It chooses a
// free host port where the specification names none.
func (e *Engine) checkPorts(r *record) error {
	if len(r.Behaviour.Ports) == 0 {
		return nil
	}
	type hostPort struct {
		port     int
		protocol string
	}
	taken := make(map[hostPort]string)
	records, err := e.store.all()
	if err != nil {
		return err
	}
	now := e.opt.Mono()
	for _, other := range records {
		if other.Name == r.Name || !other.at(now).active() {
			continue
		}
		for _, p := range other.Behaviour.Ports {
			taken[hostPort{p.HostPort, p.Protocol}] = other.Name
		}
	}
	ports := append([]driver.Port(nil), r.Behaviour.Ports...)
	for i := range ports {
		p := &ports[i]
		for try := 0; p.HostPort == 0 && try < ephemerals; try++ {
			n, err := e.store.sequence()
			if err != nil {
				return err
			}
			if port := firstEphemeral + int(n%ephemerals); taken[hostPort{port, p.Protocol}] == "" {
				p.HostPort = port
			}
		}
		if holder, ok := taken[hostPort{p.HostPort, p.Protocol}]; ok {
			return driver.Errorf(driver.PortBindConflict, "start", "port %d/%s is used by %q", p.HostPort, p.Protocol, holder)
		}
		taken[hostPort{p.HostPort, p.Protocol}] = r.Name
	}
	r.Behaviour.Ports = ports
	return nil
}
