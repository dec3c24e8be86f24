package runner

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
)

// engine is one container engine or hypervisor of the machine: its driver, and the state that the runner
// keeps about it.
type engine struct {
	drv  driver.Driver
	look flight
	stop context.CancelFunc // ends the stream of the engine's events

	mu    sync.Mutex
	bound uint64          // number by which the core identifies this driver (core.Engine.Bound); 0 until the core has assigned one
	hints map[string]bool // workloads about which an event arrived since their last inspection began
	pools []driver.Pool
}

func (e *engine) number() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bound
}

// hinted reports whether an engine event about a workload arrived after the start of its last
// inspection.
func (e *engine) hinted(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hints[id]
}

// unhint is called when an inspection of the workload id begins, or a list of all workloads if id is "". It
// clears the hint for id, or all hints if id is "". It reports whether there was a hint for id.
func (e *engine) unhint(id string) (was bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was = e.hints[id]
	if id == "" {
		clear(e.hints)
	}
	delete(e.hints, id)
	return was
}

// engines holds the engines in use, one for each kind of workload.
type engines struct {
	mu   sync.Mutex
	made sync.Mutex // held while the drivers are changed, so that only one change is in progress
	m    map[driver.Kind]*engine
}

func (s *engines) get(kind driver.Kind) *engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[kind]
}

// replace replaces all engines by those in m, for example after the cluster id became known. It returns the
// previous engines.
func (s *engines) replace(m map[driver.Kind]*engine) (old map[driver.Kind]*engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.m = s.m, m
	return old
}

// list returns the engines: containers, stacks, VMs.
func (s *engines) list() (out []*engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range []driver.Kind{driver.Container, driver.Compose, driver.VM} {
		if e := s.m[kind]; e != nil {
			out = append(out, e)
		}
	}
	return out
}

// Driver returns the driver for a kind of workloads, or nil.
func (r *Runner) Driver(kind driver.Kind) driver.Driver {
	if e := r.engines.get(kind); e != nil {
		return e.drv
	}
	return nil
}

// Drivers returns all drivers in a fixed order.
func (r *Runner) Drivers() (out []driver.Driver) {
	for _, e := range r.engines.list() {
		out = append(out, e.drv)
	}
	return out
}

// Refresh lists the instances on the engine of a kind and waits for the result. It does not use the result of
// a list that began before the call.
func (r *Runner) Refresh(ctx context.Context, kind driver.Kind) error {
	if e := r.engines.get(kind); e != nil {
		return r.refresh(ctx, e)
	}
	return nil
}

// bind makes the drivers for a cluster id and starts to receive the events of their engines.
func (r *Runner) bind(cluster string) error {
	r.engines.made.Lock()
	defer r.engines.made.Unlock()
	drivers, err := r.cfg.Factory(r.binding(cluster))
	if err != nil {
		return err
	}
	made := make(map[driver.Kind]*engine, len(drivers))
	for _, d := range drivers {
		if made[d.Kind()] != nil {
			return driver.Errorf(driver.InvalidConfiguration, "bind", "two drivers of kind %s", d.Kind())
		}
		made[d.Kind()] = r.engine(d)
	}
	r.mu.Lock()
	old := r.engines.replace(made)
	err = r.tellEngines(core.Engines{Cluster: cluster}, made)
	r.mu.Unlock()
	r.closeReplaced(old, made)
	for _, e := range made {
		r.listenTo(e)
		if old != nil {
			r.Spawn(func() {
				if err := r.refresh(r.life, e); err != nil && r.life.Err() == nil {
					r.log.Warn("an engine does not answer", "kind", e.drv.Kind(), "error", err)
				}
			})
		}
	}
	return err
}

// tellEngines passes to the core an event that says for which kinds of workloads there are drivers. made
// holds these drivers. Then tellEngines stores in each of them the number that the core has assigned to the
// driver (core.Engine.Bound). r.mu must be held.
func (r *Runner) tellEngines(event core.Engines, made map[driver.Kind]*engine) error {
	for kind := range made {
		event.Kinds = append(event.Kinds, kind)
	}
	slices.Sort(event.Kinds)
	_, err := r.step(event)
	state := r.State()
	for kind, e := range made {
		known, _ := state.Engine(kind)
		e.mu.Lock()
		e.bound = known.Bound
		e.mu.Unlock()
	}
	return err
}

func (r *Runner) binding(cluster string) Binding {
	return Binding{
		ClusterID: cluster, NodeID: r.cfg.Core.Node, Networks: r.cfg.Networks, Sealer: r.store.Key(),
		Owns:  r.Owns,
		Taken: func(kind driver.Kind, id driver.ID) bool { return r.State().Taken(kind, string(id)) },
		Content: func(id driver.ID, runtimeID string) (string, bool) {
			return r.State().LegacyContent(string(id), runtimeID)
		},
		Progress: func(id driver.ID, text string) { r.moved(string(id), text) },
		Pulled: func(ref, before string) {
			if err := r.store.Pulled(ref, before, time.Now()); err != nil {
				r.log.Error("could not record a pulled image", "image", ref, "err", err)
			}
		},
	}
}

// Owns reports whether there is an order for a workload, or a delete that is not carried out yet.
func (r *Runner) Owns(id driver.ID) bool { return r.State().Intent(string(id)) != nil }

func (r *Runner) engine(d driver.Driver) *engine {
	e := &engine{drv: d, hints: map[string]bool{}}
	e.look.run = func() error { return r.list(e) }
	return e
}

func (r *Runner) listenTo(e *engine) {
	ctx, cancel := context.WithCancel(r.life)
	e.stop = cancel
	r.Spawn(func() { r.listen(ctx, e) })
}

// addEngines makes drivers for engines that were installed on the machine after the agent started.
func (r *Runner) addEngines() {
	r.engines.made.Lock()
	defer r.engines.made.Unlock()
	drivers, err := r.cfg.Late(r.binding(r.State().Bound))
	if err != nil {
		r.log.Warn("an engine was installed on this machine but cannot be used", "error", err)
	}
	made := map[driver.Kind]*engine{}
	for _, d := range drivers {
		made[d.Kind()] = r.engine(d)
	}
	if len(made) == 0 {
		return
	}
	r.mu.Lock()
	all := map[driver.Kind]*engine{}
	for _, e := range r.engines.list() {
		all[e.drv.Kind()] = e
	}
	for kind, e := range made {
		all[kind] = e
	}
	r.engines.replace(all)
	err = r.tellEngines(core.Engines{Added: true}, made)
	r.mu.Unlock()
	if err != nil {
		r.log.Error("could not write the state file", "error", err)
	}
	for _, e := range made {
		r.listenTo(e)
	}
}

// closeReplaced stops engines that were replaced, and closes their drivers. A driver in kept stays open, because the
// factory returned the same driver again.
func (r *Runner) closeReplaced(old, kept map[driver.Kind]*engine) {
	for kind, e := range old {
		if e.stop != nil {
			e.stop()
		}
		if again := kept[kind]; again != nil && again.drv == e.drv {
			continue
		}
		if c, ok := e.drv.(io.Closer); ok {
			if err := c.Close(); err != nil {
				r.log.Warn("could not close a driver", "kind", kind, "error", err)
			}
		}
	}
}

// refresh lists the instances of an engine and waits for the result. It does not use the result of a list
// that began before the call.
func (r *Runner) refresh(ctx context.Context, e *engine) error { return e.look.fresh(ctx, r.Spawn) }

func (r *Runner) list(e *engine) error {
	limited, cancel := context.WithTimeout(r.life, r.cfg.ListTimeout)
	defer cancel()
	e.unhint("")
	began := time.Now()
	seen, err := e.drv.List(limited)
	if r.life.Err() != nil {
		return r.life.Err()
	}
	r.listed(e, seen, began, err)
	return err
}

func (r *Runner) listed(e *engine, seen []driver.Observed, began time.Time, err error) {
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	r.mu.Lock() // wait until tellEngines, which holds mu, has set bound
	defer r.mu.Unlock()
	r.apply(core.Listed{Kind: e.drv.Kind(), Bound: e.number(), Seen: seen, Began: began, Trouble: trouble})
}

// lookAt inspects one workload on an engine. If the driver has no Look, or the last list is missing or
// failed, lookAt lists the whole engine instead. In that case it hands the list to the core and returns
// whole = true.
func (r *Runner) lookAt(ctx context.Context, e *engine, id string) (o *driver.Observed, began time.Time, whole bool, err error) {
	one, ok := e.drv.(driver.Looker)
	known, _ := r.State().Engine(e.drv.Kind())
	if !ok || !known.Listed || known.Trouble != "" {
		return nil, time.Time{}, true, r.refresh(ctx, e)
	}
	e.unhint(id)
	limited, cancel := context.WithTimeout(ctx, r.cfg.ListTimeout)
	defer cancel()
	began = time.Now()
	o, err = one.Look(limited, driver.ID(id))
	if ctx.Err() != nil {
		return nil, began, false, ctx.Err()
	}
	if err != nil {
		r.listed(e, nil, began, err)
	}
	return o, began, false, err
}

// listen receives the events of an engine and inspects the workloads that the events name. After a burst of
// events it inspects each workload once.
func (r *Runner) listen(ctx context.Context, e *engine) {
	const quiet = 50 * time.Millisecond
	for ctx.Err() == nil {
		events, err := e.drv.Events(ctx)
		if err == nil {
			for id := range events {
				burst := map[string]bool{string(id): r.hint(e, string(id))}
				timer := time.NewTimer(quiet)
			gather:
				for {
					select {
					case id, open := <-events:
						if !open {
							break gather
						}
						burst[string(id)] = r.hint(e, string(id))
					case <-timer.C:
						break gather
					case <-ctx.Done():
						break gather
					}
				}
				timer.Stop()
				if err := r.follow(ctx, e, burst); err != nil && ctx.Err() == nil {
					r.log.Debug("could not look at a workload after an event", "kind", e.drv.Kind(), "error", err)
				}
			}
		}
		// The event stream ended or could not be opened. Until it is open again, only the periodic lists find
		// changes.
		select {
		case <-time.After(r.cfg.Core.Policy.Base):
		case <-ctx.Done():
		}
	}
}

// hint records that a workload may have changed. It returns false if the driver cannot inspect a single
// workload, so that the whole engine must be listed.
func (r *Runner) hint(e *engine, id string) bool {
	w := r.State().Get(id)
	if w == nil || w.Intent == nil || w.Kind != e.drv.Kind() {
		return false
	}
	e.mu.Lock()
	e.hints[id] = true
	e.mu.Unlock()
	return true
}

// hintedLooks is the maximum number of workloads that are inspected at the same time after a burst of events.
const hintedLooks = 4

// follow inspects the workloads that the events of a burst name: one by one if that is cheaper than a list of
// the engine. It skips workloads that were inspected after their event arrived. It also skips workloads on
// which an action is in progress; the method missed handles these when the action has ended.
func (r *Runner) follow(ctx context.Context, e *engine, burst map[string]bool) error {
	_, alone := e.drv.(driver.Looker)
	var due []string
	state := r.State()
	for id, known := range burst {
		alone = alone && known
		if state.Get(id) != nil && e.hinted(id) && !state.InWork(id) {
			due = append(due, id)
		}
	}
	if !alone || len(due) >= 2 && len(due) > state.Len()/2 {
		return r.refresh(ctx, e)
	}
	var looks errgroup.Group
	looks.SetLimit(hintedLooks)
	for _, id := range due {
		looks.Go(func() error {
			o, began, whole, err := r.lookAt(ctx, e, id)
			if err == nil && !whole {
				r.do(core.Looked{ID: id, Kind: e.drv.Kind(), Bound: e.number(), Observed: o, Began: began})
			}
			return err
		})
	}
	return looks.Wait()
}

// missed is called when an action on a workload has ended. If an event about the workload arrived after the
// action's last inspection, missed makes the core evaluate the workload again, because the action did not
// see that change.
func (r *Runner) missed(e *engine, id string) {
	if e == nil {
		return
	}
	if state := r.State(); state.Intent(id) != nil && !state.InWork(id) && e.unhint(id) {
		r.do(core.Wake{ID: id})
	}
}

// probe asks every engine whether it works.
func (r *Runner) probe(ctx context.Context) {
	for _, e := range r.engines.list() {
		limited, cancel := context.WithTimeout(ctx, r.cfg.ListTimeout)
		capacity, err := e.drv.Probe(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			capacity.Healthy = false
			if capacity.Reason == "" {
				capacity.Reason = err.Error()
			}
		}
		r.do(core.Probed{Kind: e.drv.Kind(), EngineID: capacity.EngineID, Healthy: capacity.Healthy, Reason: capacity.Reason, Devices: capacity.Devices})
		r.cfg.Metrics.Runtime(e.drv.Kind(), capacity.Healthy)
	}
}
