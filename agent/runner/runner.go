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

// Binding is the information about the agent that its drivers need.
type Binding struct {
	// ClusterID is the cluster id for labels, or Unbound if the cluster is unknown. It changes only
	// while the agent has no workloads; the drivers are then made again.
	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store has a workload. Drivers call it for instances without
	// node label.
	Owns func(driver.ID) bool
	// Taken reports whether a workload of a kind was taken over from a legacy v1 agent. Such a
	// workload may have an instance without labels, which is matched by name.
	Taken func(driver.Kind, driver.ID) bool
	// Content returns the content of an instance without content label, if the store knows it.
	Content func(id driver.ID, runtimeID string) (string, bool)
	// Progress sets the current activity of a driver for a workload, as shown in its status; "" ends
	// it. It blocks only briefly.
	Progress func(id driver.ID, text string)
	// Pulled is called for each image that a driver pulled. For an image that was renewed, before is
	// the id of the image that had the name until then.
	Pulled func(ref, before string)
}

// Unbound is the cluster id on labels until a scheduler has named a cluster.
const Unbound = "unbound"

// Factory makes the drivers, at most one per kind. It is called at the start, and again when the
// cluster becomes known. Drivers with a Close() error method are closed when they are replaced and
// at the end.
type Factory func(Binding) ([]driver.Driver, error)

// Fixed returns a Factory for drivers that need no binding.
func Fixed(drivers ...driver.Driver) Factory {
	return func(Binding) ([]driver.Driver, error) { return drivers, nil }
}

// Fencer stops workloads when the lease ends. *fencer.Client implements Fencer.
type Fencer interface {
	Renew(context.Context, lease.Renewal) (lease.Status, error)
	Close()
}

// Config configures a Runner. All fields up to Logger are required unless noted.
type Config struct {
	Core    core.Settings
	Store   *store.Store
	Saved   core.Saved
	Storage *volume.Manager
	Host    host.Host
	Factory Factory
	// Late makes drivers of engines that were installed after the start; nil = no such engines.
	Late   Factory
	Fencer Fencer // nil = none
	Used   *usage.Table
	// Metrics may be nil.
	Metrics *metrics.Metrics
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Swept is called at the end of each sweep with the time at which the sweep started. It may be
	// nil.
	Swept func(ctx context.Context, began time.Time)

	ReconcileInterval, UsageInterval, DiskInterval time.Duration
	StepTimeout, ListTimeout                       time.Duration
}

// Runner runs one core.
type Runner struct {
	cfg   Config
	log   *slog.Logger
	used  *usage.Table
	store *store.Store

	life   context.Context // cancelled by Stop and Close
	cancel context.CancelFunc
	work   sync.WaitGroup // all goroutines
	checks *health.Checker

	state atomic.Pointer[core.State]

	// mu serializes steps and their writes to the state file. It guards the fields below it.
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
	facts   atomic.Bool   // the registered facts changed
	tell    chan struct{} // a message to the fencer is due
	heard   signal        // fired after each answer of the fencer
	met     chan struct{} // closed after the fencer's first answer, or if there is no fencer
	looked  chan struct{} // closed after the first sweep
	first   sync.Once
	ownDisk bool // the default pool has a disk of its own
	process lease.Process
	boot    string
}

// New makes a Runner. It starts nothing before Start. The Runner must be closed.
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
		r.mu.Lock() // no other check may start between the reading and the step
		defer r.mu.Unlock()
		state, detail := r.checks.State(id)
		r.apply(core.Checked{ID: string(id), State: state, Detail: detail})
	})
	return r, nil
}

// Start makes the drivers, asks the fencer for the state of the workloads of a previous process, and
// starts the work.
func (r *Runner) Start() error {
	if err := r.bind(r.State().Label(Unbound)); err != nil {
		return fmt.Errorf("drivers: %w", err)
	}
	guards := r.State().Guards()
	switch {
	case guards:
		r.meetFencer() // before any instance is changed
	case r.cfg.Fencer == nil:
		close(r.met)
	}
	// An unreachable file server must not block the start of the node.
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

// Stop ends all work without waiting for it.
func (r *Runner) Stop() { r.cancel() }

// Close ends all work, waits for it, and stores the last reports. Workloads keep running.
func (r *Runner) Close() error {
	r.cancel()
	r.work.Wait()
	r.retire(r.engines.replace(nil), nil)
	return r.Flush()
}

// Spawn runs fn in a goroutine that Close waits for.
func (r *Runner) Spawn(fn func()) { r.work.Go(fn) }

// Life returns a context that ends with Stop or Close.
func (r *Runner) Life() context.Context { return r.life }

// State returns a snapshot of the agent's state.
func (r *Runner) State() core.State { return *r.state.Load() }

// Changed receives after a report changed, so that a heartbeat is due.
func (r *Runner) Changed() <-chan struct{} { return r.changed }

// Signal requests a heartbeat.
func (r *Runner) Signal() { nudge(r.changed) }

// Registers reports whether the registered facts changed. With take, it also resets that flag.
func (r *Runner) Registers(take bool) bool {
	if take {
		return r.facts.Swap(false)
	}
	return r.facts.Load()
}

// Looked is closed after the first sweep.
func (r *Runner) Looked() <-chan struct{} { return r.looked }

// Met is closed after the fencer's first answer, or if there is no fencer.
func (r *Runner) Met() <-chan struct{} { return r.met }

// Checks returns the health checks.
func (r *Runner) Checks() *health.Checker { return r.checks }

// Used returns the resource usage of workloads.
func (r *Runner) Used() *usage.Table { return r.used }

// Do applies an event. On an error the required records could not be stored, and the event had no
// effect.
func (r *Runner) Do(e core.Event) (core.Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step(e)
}

// Offer applies an order, and retries while the order waits for the fencer, until ctx ends.
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

// do applies an event and logs its error.
func (r *Runner) do(e core.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apply(e)
}

// apply is do with mu held.
func (r *Runner) apply(e core.Event) {
	if _, err := r.step(e); err != nil {
		r.log.Error("state file", "error", err)
	}
}

// step applies an event. r.mu must be held.
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

// effect carries out one effect without waiting. r.mu must be held.
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
			// Work is suspended until there are drivers with the cluster's label.
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

// timer sends a Tick at the armed time.
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

// flushEvery is how long changed reports are collected before they are stored, because each write
// waits for the disk. Starting fifty workloads changes their reports some hundred times. After a
// crash, engines report the lost changes again, except the failures of that time.
const flushEvery = 500 * time.Millisecond

// keepStatuses stores changed reports.
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
			nudge(r.unkept) // the reports stay in memory and are stored later
			if text != problem {
				r.log.Error("state file", "error", text) // log a repeated error once
			}
		}
		problem = text
	}
}

// Flush stores the changed reports.
func (r *Runner) Flush() error {
	r.mu.Lock() // otherwise the report of a workload that is deleted meanwhile would stay in the file
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

// sweeps runs Sweep at the reconcile interval.
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

// Sweep looks at engines, workloads and storage, and prunes old records.
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

// signal wakes all waiters.
type signal struct {
	mu   *sync.Mutex
	next *chan struct{}
}

func newSignal() signal {
	c := make(chan struct{})
	return signal{&sync.Mutex{}, &c}
}

// wait returns a channel that the next fire closes.
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
