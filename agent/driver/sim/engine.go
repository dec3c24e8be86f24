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
	// Dir stores the engine in a folder, which is created if missing; empty keeps it in memory.
	Dir string
	// Kind of workloads; default container.
	Kind driver.Kind
	// EngineID defaults to the folder's stored id, else "sim-" and a random part.
	EngineID string
	// Mono is the clock of all workload behaviour; default Boottime. Processes that share a folder must use
	// the same clock.
	Mono func() time.Duration
	// Now is the clock of reported times; default time.Now.
	Now func() time.Time
}

// Boottime returns CLOCK_BOOTTIME: it never jumps, counts time in suspend, and is the same for all processes.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("sim: CLOCK_BOOTTIME: " + err.Error()) // every kernel since 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}

// Engine is a simulated engine. Its methods are safe for concurrent use.
type Engine struct {
	opt   Options
	store store

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	failed   map[driver.ID]int // failures of flaky images so far
}

// NewEngine opens an engine, or creates one.
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

// SetDown makes every call of every driver fail with class RuntimeUnhealthy until it is called with
// "". Workloads go on meanwhile.
func (e *Engine) SetDown(reason string) error {
	err := e.with("set down", func() error { return e.store.setDown(reason) })
	if reason == "" {
		e.hint(driver.ID(""))
	}
	return err
}

// PowerOff kills everything that runs at once, as a power failure does (exit code 137).
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

// Occupy creates a running instance without labels under a name: a stranger, for tests. Vacate removes it;
// it returns false if the stranger was changed meanwhile.
func (e *Engine) Occupy(name string) error {
	return e.with("occupy", func() error {
		return e.store.put(record{Name: name, RuntimeID: "stranger-" + name, Image: "stranger", Started: true, StartedAt: e.opt.Mono(), Wall: e.opt.Now()})
	})
}

// Vacate undoes Occupy.
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

// Runs returns the intervals in which instances ran, in order of start.
func (e *Engine) Runs() ([]Run, error) {
	var entries []entry
	err := e.with("runs", func() (err error) {
		entries, err = e.store.entries()
		return err
	})
	return runsOf(entries, e.opt.Mono()), err
}

// with runs f under the engine's lock, whether or not the engine is down.
func (e *Engine) with(op string, f func() error) error {
	unlock, err := e.store.lock()
	if err != nil {
		return wrap(op, err)
	}
	return wrap(op, errors.Join(f(), unlock()))
}

// wrap adds a class to an error of the store; a driver.Error keeps its own.
func wrap(op string, err error) error {
	var typed *driver.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	return &driver.Error{Class: cmp.Or(driver.Generic(err), driver.RuntimeError), Op: op, Err: err}
}

const maxOutput = 64 // lines of output kept per instance

func (e *Engine) say(r *record, at time.Duration, text string) {
	out := append(append([]line(nil), r.Output...), line{r.shown(at), text})
	r.Output = out[max(0, len(out)-maxOutput):]
}

// start begins a run of r and stores it.
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

// end stops a run with an exit code. It ignores an instance that does not run.
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

// Ephemeral ports, Linux's default range.
const (
	firstEphemeral = 32768
	ephemerals     = 28232
)

// checkPorts refuses a host port that another running instance of this engine holds, and assigns ephemeral
// ports.
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
			return driver.Errorf(driver.PortBindConflict, "start", "port %d/%s is held by %q", p.HostPort, p.Protocol, holder)
		}
		taken[hostPort{p.HostPort, p.Protocol}] = r.Name
	}
	r.Behaviour.Ports = ports
	return nil
}
