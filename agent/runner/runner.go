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
	"github.com/persys/compute/agent/memfile"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/agent/volume"
)

// Binding holds the information about the agent, and the functions of the agent, that its drivers need.
type Binding struct {
	// ClusterID is the cluster id for labels, or Unbound if the cluster is unknown. It changes only while the
	// agent has no workloads; the Factory then makes new drivers.
	ClusterID string
	NodeID    string
	// Owns reports whether the agent has an order for a workload, or a delete that is not carried out yet.
	// Drivers call it for instances without node label.
	Owns func(driver.ID) bool
	// Taken reports whether the record of a workload was taken over from a legacy v1 agent. Such a workload
	// may have an instance without labels, which the driver finds by its name.
	Taken func(driver.Kind, driver.ID) bool
	// Content returns the content (hash of the specification) of an instance without a content label. The bool
	// is false if the agent's records do not contain it.
	Content func(id driver.ID, runtimeID string) (string, bool)
	// A driver calls Progress with the text that the status of a workload is to show: the present step of the
	// driver's work on it, or "" when the work has ended. Progress blocks only briefly.
	Progress func(id driver.ID, text string)
	// Pulled is called for each image that a driver pulled. ref is the image's name. If the engine had
	// another image of this name before, before is the id of that other image.
	Pulled func(ref, before string)
	// Networks connects containers to networks that span nodes; nil if the node takes part in no networks.
	Networks driver.Networks
	// Sealer is the agent's key.
	Sealer driver.Sealer
}

// Unbound is the cluster id in the labels of instances while no scheduler has told the agent its cluster.
const Unbound = "unbound"

// Factory makes the drivers, at most one per kind. It is called at the start, and again when the
// cluster becomes known. Drivers with a Close() error method are closed when they are replaced and
// at the end.
type Factory func(Binding) ([]driver.Driver, error)

// Fixed returns a Factory that always returns these drivers, which need no Binding.
func Fixed(drivers ...driver.Driver) Factory {
	return func(Binding) ([]driver.Driver, error) { return drivers, nil }
}

// Fencer sends messages to the fencer, a separate process that stops exclusive workloads when the lease ends.
// *fencer.Client implements Fencer.
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
	// Files keeps the secrets and configs of workloads as files in memory.
	Files   *memfile.Store
	Host    host.Host
	Factory Factory
	// Late makes drivers of engines that were installed after the agent started; nil if no engine can be
	// installed later.
	Late   Factory
	Fencer Fencer // nil if the agent has no fencer
	Used   *usage.Table
	// Ceiling limits the rights of workloads on this machine.
	Ceiling Ceiling
	// Metrics may be nil.
	Metrics *metrics.Metrics
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Swept is called at the end of each sweep (the periodic check of engines, workloads and storage), with the
	// time at which the sweep started. It may be nil.
	Swept func(ctx context.Context, began time.Time)

	ReconcileInterval, UsageInterval, DiskInterval time.Duration
	StepTimeout, ListTimeout                       time.Duration

	Networks driver.Networks // may be nil
}

// Runner holds the state of one agent's core and carries out its effects.
type Runner struct {
	cfg   Config
	log   *slog.Logger
	used  *usage.Table
	store *store.Store

	life   context.Context // cancelled by Stop and Close
	cancel context.CancelFunc
	work   sync.WaitGroup // counts all goroutines of the runner
	checks *health.Checker

	state atomic.Pointer[core.State]

	// mu serializes steps and their writes to the state file. It guards the fields below it.
	mu      sync.Mutex
	armed   time.Time
	renewal lease.Renewal // the next message to send to the fencer
	unsaved map[string]bool
	running map[*core.Act]*running

	engines engines
	origins origins

	wake    chan struct{} // signals that a timer in armed has changed
	unkept  chan struct{} // signals that unsaved contains more changed reports
	changed chan struct{} // signals that a report has changed
	facts   atomic.Bool   // facts that the node has registered have changed, so it must register again
	tell    chan struct{} // signals that a message to the fencer is due
	heard   signal        // wakes waiters after each answer of the fencer
	met     chan struct{} // closed after the fencer's first answer, or if there is no fencer
	looked  chan struct{} // closed after the first sweep
	first   sync.Once
	ownDisk bool // whether the default storage pool is on a disk of its own, not on that of the root file system
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
			return nil, fmt.Errorf("reading the facts about this process for the fencer: %w", err)
		}
	}
	r.ownDisk = cfg.Storage.OwnDisk()
	state := core.Restore(cfg.Core, cfg.Saved, time.Now())
	r.state.Store(&state)
	r.life, r.cancel = context.WithCancel(context.Background())
	r.checks = health.New(r.life, r.Spawn, func(id driver.ID) {
		r.mu.Lock() // keeps the results of two health checks from overtaking each other
		defer r.mu.Unlock()
		state, detail := r.checks.State(id)
		r.apply(core.Checked{ID: string(id), State: state, Detail: detail})
	})
	return r, nil
}

// Start makes the drivers and asks the fencer about the workloads that the agent's previous process left
// running. Then it starts the work.
func (r *Runner) Start() error {
	if err := r.bind(r.State().Label(Unbound)); err != nil {
		return fmt.Errorf("making the drivers: %w", err)
	}
	needed := r.State().NeedsFencer()
	switch {
	case needed:
		r.meetFencer() // ask the fencer before any instance is changed
	case r.cfg.Fencer == nil:
		close(r.met)
	}
	// Mounting runs in a goroutine of its own, because a file server that does not answer must not block the
	// start of the agent.
	r.Spawn(func() { r.cfg.Storage.Mount(r.life) })
	r.do(core.Start{})
	r.Spawn(r.timer)
	r.Spawn(r.sweeps)
	r.Spawn(r.keepStatuses)
	r.Spawn(r.measure)
	r.Spawn(r.measureDisks)
	if r.cfg.Fencer != nil {
		r.Spawn(func() { r.mindFencer(needed) })
	}
	return nil
}

// Stop ends all work without waiting for it.
func (r *Runner) Stop() { r.cancel() }

// Close ends all work, waits for it, and stores the last reports. Workloads keep running.
func (r *Runner) Close() error {
	r.cancel()
	r.work.Wait()
	r.closeReplaced(r.engines.replace(nil), nil)
	return r.Flush()
}

// Spawn runs fn in a goroutine that Close waits for.
func (r *Runner) Spawn(fn func()) { r.work.Go(fn) }

// Life returns a context that ends with Stop or Close.
func (r *Runner) Life() context.Context { return r.life }

// State returns a snapshot of the agent's state.
func (r *Runner) State() core.State { return *r.state.Load() }

// Changed returns a channel that receives a value after the report of a workload changed, so that a heartbeat
// is due.
func (r *Runner) Changed() <-chan struct{} { return r.changed }

// Signal sends a value on the channel that Changed returns, so that a heartbeat is sent.
func (r *Runner) Signal() { nudge(r.changed) }

// Registers reports whether the node must register again, because facts in its registration changed. If take is
// set, it also resets this flag.
func (r *Runner) Registers(take bool) bool {
	if take {
		return r.facts.Swap(false)
	}
	return r.facts.Load()
}

// FirstSweep returns a channel that is closed after the first sweep, in which the agent probes and lists all
// engines.
func (r *Runner) FirstSweep() <-chan struct{} { return r.looked }

// FencerAnswered returns a channel that is closed after the fencer's first answer, or at once if there is no fencer.
func (r *Runner) FencerAnswered() <-chan struct{} { return r.met }

// Checks returns the checker that runs the health checks.
func (r *Runner) Checks() *health.Checker { return r.checks }

// Used returns the table of the latest resource usage of workloads.
func (r *Runner) Used() *usage.Table { return r.used }

// Do applies an event. If it returns an error, the required records could not be stored, and the event had no
// effect.
func (r *Runner) Do(e core.Event) (core.Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step(e)
}

// Offer applies an order. If the order cannot be accepted yet, because the fencer has not confirmed its
// workload, Offer retries after each answer of the fencer until ctx ends.
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

// apply applies an event and logs its error. r.mu must be held.
func (r *Runner) apply(e core.Event) {
	if _, err := r.step(e); err != nil {
		r.log.Error("could not write the state file", "error", err)
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
					_, _ = r.step(core.StoreFailed{ID: s.Workload, Exit: s.Exit})
				}
				return core.Answer{}, err
			case err != nil:
				r.log.Error("could not write the state file", "error", err)
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
			// The loop runs until drivers for the current cluster id have been made, so that no action
			// starts with drivers that use another label.
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

// timer applies the event Tick to the core at the time that the last effect Arm set.
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

// flushEvery is how long changed reports are collected before they are stored, because each write waits for the
// disk. Starting fifty workloads changes their reports some hundred times. After a crash of the agent, a list
// of the engines shows the changes that were not stored yet. Only changes to the failure counts in the last
// half second before the crash are lost.
const flushEvery = 500 * time.Millisecond

// keepStatuses writes the changed reports of workloads to the state file, at the interval flushEvery.
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
			nudge(r.unkept) // storing failed: the reports stay in memory, and a later attempt stores them
			if text != problem {
				r.log.Error("could not write the state file", "error", text) // the same error is logged only once in a row
			}
		}
		problem = text
	}
}

// Flush stores the changed reports of workloads now.
func (r *Runner) Flush() error {
	r.mu.Lock() // held, because otherwise the report of a workload that is deleted meanwhile would stay in the file
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
		return fmt.Errorf("storing the reports of workloads: %w", err)
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

// Sweep probes and lists all engines, measures the storage, and prunes old records.
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

// signal wakes goroutines: fire wakes all that wait on the channel which wait returned.
type signal struct {
	mu   *sync.Mutex
	next *chan struct{}
}

func newSignal() signal {
	c := make(chan struct{})
	return signal{&sync.Mutex{}, &c}
}

// wait returns a channel that is closed by the next call of fire.
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
