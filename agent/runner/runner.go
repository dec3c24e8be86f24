package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/health"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/agent/volume"
)

// Binding is what a driver must know of the agent that uses it.
type Binding struct {
	// ClusterID is for labels: the cluster's id, or Unbound while none is known. It changes only
	// while the agent holds no workloads; then the drivers are made again.
	ClusterID string
	NodeID    string
	// Owns says whether the agent's store claims a workload, for instances without node label.
	Owns func(driver.ID) bool
	// Taken says whether a workload of a kind was taken over from a legacy v1 agent. An instance without
	// any label may then be that workload's: only its name tells.
	Taken func(driver.Kind, driver.ID) bool
	// Content says which content an instance without content label has, if the store knows.
	Content func(id driver.ID, runtimeID string) (string, bool)
	// Progress shows in the status what a driver is busy with for a workload, until it is told "". It
	// does not block for long, and only changes of the status are reported.
	Progress func(id driver.ID, text string)
	// Pulled is told of each image that a driver pulled and that had not been on the machine before; or
	// that it renewed, with the id of the image that had the name until then.
	Pulled func(ref, before string)
}

// Unbound is the cluster id on labels while the agent has met no scheduler that names a cluster.
const Unbound = "unbound"

// Factory makes the drivers, one for each kind at most. It is called once at the start and again
// when the cluster becomes known. Drivers that have a method Close() error are closed when
// replaced and at the end.
type Factory func(Binding) ([]driver.Driver, error)

// Fixed is a Factory for drivers that need no binding.
func Fixed(drivers ...driver.Driver) Factory {
	return func(Binding) ([]driver.Driver, error) { return drivers, nil }
}

// Fencer stops workloads when the lease ends; *fencer.Client is one.
type Fencer interface {
	Renew(context.Context, lease.Renewal) (lease.Status, error)
	Close()
}

// Config of a Runner. All fields up to Logger are required, unless they say otherwise.
type Config struct {
	Core    core.Settings
	Store   *store.Store
	Saved   core.Saved
	Storage *volume.Manager
	Host    host.Host
	Factory Factory
	// Late makes drivers of engines that have come to the machine since the start; nil = none will.
	Late   Factory
	Fencer Fencer // nil = none
	Used   *usage.Table
	// Metrics may be nil.
	Metrics *metrics.Metrics
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Swept is called at the end of each look at everything, with the time it began. May be nil.
	Swept func(ctx context.Context, began time.Time)

	ReconcileInterval, UsageInterval, DiskInterval time.Duration
	StepTimeout, ListTimeout                       time.Duration
}

// Runner drives one core.
type Runner struct {
	cfg   Config
	log   *slog.Logger
	used  *usage.Table
	store *store.Store

	life   context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine
	checks *health.Checker

	state atomic.Pointer[core.State]

	// mu serializes steps, and with them the writes of the file. It guards what follows.
	mu      sync.Mutex
	armed   time.Time
	renewal lease.Renewal // the next message to the fencer
	unsaved map[string]bool
	running map[*core.Act]*running

	engines engines
	origins origins

	wake    chan struct{} // armed changed
	unkept  chan struct{} // unsaved grew
	changed chan struct{} // a report changed
	facts   atomic.Bool   // what is registered changed
	tell    chan struct{} // the fencer has to be told something
	heard   signal        // after each answer of the fencer
	met     chan struct{} // closed once the fencer has answered, or there is none
	looked  chan struct{} // closed after the first look at everything
	first   sync.Once
	ownDisk bool // the default pool is not the machine's own disk
	process lease.Process
	boot    string
}

// New makes a Runner; nothing runs before Start. It must be closed.
func New(cfg Config) (*Runner, error) {
	r := &Runner{
		cfg: cfg, log: cfg.Logger, store: cfg.Store, used: cfg.Used, unsaved: map[string]bool{}, running: map[*core.Act]*running{},
		wake: make(chan struct{}, 1), unkept: make(chan struct{}, 1), changed: make(chan struct{}, 1), tell: make(chan struct{}, 1),
		met: make(chan struct{}), looked: make(chan struct{}), heard: newSignal(),
	}
	if cfg.Fencer != nil {
		var err error
		if r.process, err = fencer.Self(); err == nil {
			r.boot, err = fencer.BootID()
		}
		if err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	r.ownDisk = cfg.Storage.OwnDisk()
	state := core.Restore(cfg.Core, cfg.Saved, time.Now())
	r.state.Store(&state)
	r.life, r.cancel = context.WithCancel(context.Background())
	r.checks = health.New(r.life, r.Spawn, func(id driver.ID) {
		r.mu.Lock() // so that no other check begins between the reading and the step
		defer r.mu.Unlock()
		state, detail := r.checks.State(id)
		if _, err := r.step(core.Checked{ID: string(id), State: state, Detail: detail}); err != nil {
			r.log.Error("state file", "error", err)
		}
	})
	return r, nil
}

// Start makes the drivers, asks the fencer what has become of the workloads of a former process, and
// begins to work.
func (r *Runner) Start() error {
	if err := r.bind(r.State().Label(Unbound)); err != nil {
		return fmt.Errorf("drivers: %w", err)
	}
	guards := r.State().Guards()
	switch {
	case guards:
		r.meetFencer() // before anything is touched
	case r.cfg.Fencer == nil:
		close(r.met)
	}
	// A file server that is away must not keep the node away.
	r.Spawn(func() { r.cfg.Storage.Mount(r.life) })
	r.do(core.Start{})
	r.Spawn(r.timer)
	r.Spawn(r.sweeps)
	r.Spawn(r.keepStatuses)
	r.Spawn(r.measure)
	r.Spawn(r.measureDisks)
	if r.cfg.Fencer != nil {
		r.Spawn(func() { r.mindFencer(guards) })
	}
	return nil
}

// Stop ends all work; Close also waits for it.
func (r *Runner) Stop() { r.cancel() }

// Close ends all work, and stores the last reports. Workloads go on.
func (r *Runner) Close() error {
	r.cancel()
	r.work.Wait()
	r.retire(r.engines.replace(nil), nil)
	return r.Flush()
}

// Spawn runs fn in a goroutine that Close waits for.
func (r *Runner) Spawn(fn func()) { r.work.Go(fn) }

// Life ends with Close.
func (r *Runner) Life() context.Context { return r.life }

// State is what the agent knows now.
func (r *Runner) State() core.State { return *r.state.Load() }

// Changed receives when a report has changed that is worth a heartbeat.
func (r *Runner) Changed() <-chan struct{} { return r.changed }

// Signal says that a heartbeat is due.
func (r *Runner) Signal() { nudge(r.changed) }

// Registers reports whether what is registered has changed. With take, the next call says false.
func (r *Runner) Registers(take bool) bool {
	if take {
		return r.facts.Swap(false)
	}
	return r.facts.Load()
}

// Looked is closed after the first look at everything; Met once the fencer has answered.
func (r *Runner) Looked() <-chan struct{} { return r.looked }

// Met is closed once the fencer has answered, or there is none.
func (r *Runner) Met() <-chan struct{} { return r.met }

// Checks are the health checks under way.
func (r *Runner) Checks() *health.Checker { return r.checks }

// Used is what workloads use.
func (r *Runner) Used() *usage.Table { return r.used }

// Do applies an event. The error says that what has to be durable could not be stored; the event has had
// no effect then.
func (r *Runner) Do(e core.Event) (core.Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step(e)
}

// Offer applies an order that may have to wait for the fencer, for as long as ctx allows.
func (r *Runner) Offer(ctx context.Context, e core.Event) (core.Answer, error) {
	for {
		again := r.heard.wait()
		answer, err := r.Do(e)
		if err != nil || !answer.Retry {
			return answer, err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return answer, nil
		}
	}
}

// do applies an event that nobody waits for.
func (r *Runner) do(e core.Event) {
	if _, err := r.Do(e); err != nil {
		r.log.Error("state file", "error", err)
	}
}

// step applies an event. It is called with mu held.
func (r *Runner) step(e core.Event) (answer core.Answer, err error) {
	next, effects := core.Step(r.State(), core.Input{Now: time.Now(), Clock: fencer.Now(), Event: e})
	if len(effects) > 0 {
		if s, ok := effects[0].(core.Store); ok {
			effects = effects[1:]
			switch err := r.store.Write(s); {
			case err != nil && s.Required:
				if s.Workload != "" {
					_, _ = r.step(core.StoreFailed{ID: s.Workload})
				}
				return core.Answer{}, err
			case err != nil:
				r.log.Error("state file", "error", err)
			}
		}
	}
	r.state.Store(&next)
	for _, e := range effects {
		if a, ok := e.(core.Answer); ok {
			answer = a
		} else {
			r.effect(e)
		}
	}
	return answer, nil
}

// effect carries out one effect, without waiting. It is called with mu held.
func (r *Runner) effect(e core.Effect) {
	switch e := e.(type) {
	case *core.Act:
		r.begin(e)
	case core.Cancel:
		if run := r.running[e.Act]; run != nil {
			run.interrupt(e.Starting)
		}
	case core.Arm:
		r.armed = e.At
		nudge(r.wake)
	case core.Changed:
		if e.ID != "" {
			r.unsaved[e.ID] = true
			nudge(r.unkept)
		}
		nudge(r.changed)
	case core.Register:
		r.facts.Store(true)
		nudge(r.changed)
	case core.TellFencer:
		nudge(r.tell)
	case core.Renew:
		r.renewal = e.Renewal
	case core.Rebind:
		r.Spawn(func() {
			// Work rests until the drivers carry the label of the cluster.
			for {
				err := r.bind(e.Cluster)
				if err == nil {
					return
				}
				r.log.Error("could not make the drivers, trying again", "error", err)
				select {
				case <-time.After(r.cfg.Core.Policy.Base):
				case <-r.life.Done():
					return
				}
			}
		})
	case core.Watch:
		r.check(e)
	case core.Unwatch:
		r.checks.Drop(driver.ID(e.ID))
	case core.Settled:
		r.origins.settled(e.ID)
	case core.TaskEnded:
		r.cfg.Metrics.Task(e.Task)
	case core.TurnedFailed:
		r.cfg.Metrics.Failed(e.Class)
	case core.Deleted:
		r.cfg.Metrics.Orphan(e.Orphan)
	case core.Notice:
		if e.Warn {
			r.log.Warn(e.Text, e.Args...)
		} else {
			r.log.Info(e.Text, e.Args...)
		}
	}
}

// timer sends a Tick when one is due.
func (r *Runner) timer() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		r.mu.Lock()
		at := r.armed
		r.mu.Unlock()
		timer.Stop()
		if !at.IsZero() {
			timer.Reset(max(0, time.Until(at)))
		}
		select {
		case <-r.life.Done():
			return
		case <-r.wake:
		case <-timer.C:
			r.do(core.Tick{})
		}
	}
}

// flushEvery is how long a changed report waits for others before it is stored: fifty workloads that start
// change theirs some hundred times, and each write waits for the disk. Engines tell again what a crash
// loses of it, but for the failures of that time.
const flushEvery = 500 * time.Millisecond

// keepStatuses stores the reports that change.
func (r *Runner) keepStatuses() {
	var problem string
	pause := flushEvery
	for {
		select {
		case <-r.unkept:
		case <-r.life.Done():
			return
		}
		select {
		case <-time.After(pause):
		case <-r.life.Done():
			return
		}
		text := ""
		if err := r.Flush(); err != nil {
			text = err.Error()
		}
		if pause = flushEvery; text != "" {
			pause = max(pause, r.cfg.Core.Policy.Base)
			nudge(r.unkept) // the reports stay in memory
			if text != problem {
				r.log.Error("state file", "error", text) // a full disk is logged once, not at every turn
			}
		}
		problem = text
	}
}

// Flush stores the reports that changed.
func (r *Runner) Flush() error {
	r.mu.Lock() // else the report of a workload that is deleted meanwhile would be left behind
	defer r.mu.Unlock()
	if len(r.unsaved) == 0 {
		return nil
	}
	var list []*core.Workload
	state := r.State()
	for id := range r.unsaved {
		if w := state.Get(id); w != nil && w.Intent != nil && w.Status != nil {
			list = append(list, w)
		}
	}
	if err := r.store.WriteStatuses(list); err != nil {
		return fmt.Errorf("storing statuses: %w", err)
	}
	clear(r.unsaved)
	return nil
}

// sweeps looks at everything now and then.
func (r *Runner) sweeps() {
	tick := time.NewTicker(r.cfg.ReconcileInterval)
	defer tick.Stop()
	for {
		r.Sweep()
		select {
		case <-r.life.Done():
			return
		case <-tick.C:
		}
	}
}

// Sweep looks at engines, workloads and storage, and drops records that have been kept long enough.
func (r *Runner) Sweep() {
	ctx, began := r.life, time.Now()
	if r.cfg.Late != nil {
		r.addEngines()
	}
	stored := r.cfg.Storage.Measure(ctx)
	pooled := r.lookAtPools(ctx)
	r.probe(ctx)
	if stored || pooled {
		r.facts.Store(true)
		r.Signal()
	}
	var wait sync.WaitGroup
	for _, e := range r.engines.list() {
		wait.Go(func() {
			if err := r.refresh(ctx, e); err != nil && !errors.Is(err, context.Canceled) {
				r.log.Warn("an engine does not answer", "kind", e.drv.Kind(), "error", err)
			}
		})
	}
	wait.Wait()
	r.first.Do(func() { close(r.looked) })
	if ctx.Err() != nil {
		return
	}
	r.do(core.Prune{})
	r.cfg.Metrics.Reconciled(time.Since(began))
	if r.cfg.Swept != nil {
		r.cfg.Swept(ctx, began)
	}
}

func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// signal wakes everybody who waits.
type signal struct {
	mu   *sync.Mutex
	next *chan struct{}
}

func newSignal() signal {
	c := make(chan struct{})
	return signal{&sync.Mutex{}, &c}
}

// wait is closed by the next fire.
func (s signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.next
}

func (s signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(*s.next)
	*s.next = make(chan struct{})
}
