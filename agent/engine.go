package agent

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/runs"
)

// engine is one driver with what is known of it. The agent's lock guards the facts.
type engine struct {
	drv  driver.Driver
	look runs.Shared
	stop context.CancelFunc // ends its event stream

	probed   bool
	capacity driver.Capacity
	listed   bool // some List succeeded
	pools    []driver.Pool
	trouble  string // why the last List failed, empty if it did not
}

func (e *engine) healthy() bool { return e.probed && e.capacity.Healthy && e.trouble == "" }

func (e *engine) cause() string {
	switch {
	case e.trouble != "":
		return e.trouble
	case !e.probed:
		return "not asked yet"
	}
	return e.capacity.Reason
}

// bind makes the drivers for a cluster id and starts to listen to them. It is called with
// intentMu held.
func (a *Agent) bind(ctx context.Context, cluster string) error {
	drivers, err := a.factory(a.binding(cluster))
	if err != nil {
		return err
	}
	engines := make(map[driver.Kind]*engine, len(drivers))
	for _, d := range drivers {
		if engines[d.Kind()] != nil {
			return driver.Errorf(driver.InvalidConfiguration, "bind", "two drivers of kind %s", d.Kind())
		}
		engines[d.Kind()] = a.engine(ctx, d)
	}
	a.mu.Lock()
	old := a.engines
	a.engines, a.bound = engines, cluster
	for kind, e := range engines {
		if was := old[kind]; was != nil {
			e.probed, e.capacity = was.probed, was.capacity // another label, the same engine
		}
	}
	a.mu.Unlock()
	a.retire(old, engines)
	for _, e := range engines {
		a.attend(ctx, e)
		if old != nil {
			a.spawn(func() {
				if err := a.refresh(ctx, e); err != nil && ctx.Err() == nil {
					a.log.Warn("an engine does not answer", "kind", e.drv.Kind(), "error", err)
				}
			})
		}
	}
	return nil
}

func (a *Agent) binding(cluster string) Binding {
	return Binding{ClusterID: cluster, NodeID: a.cfg.NodeID, Owns: a.owns, Taken: a.taken, Content: a.legacyContent, Progress: a.progress, Pulled: a.pulled}
}

func (a *Agent) engine(ctx context.Context, d driver.Driver) *engine {
	e := &engine{drv: d}
	e.look.Run = func() error { return a.list(ctx, e) }
	return e
}

// attend begins to listen to an engine.
func (a *Agent) attend(ctx context.Context, e *engine) {
	ctx, e.stop = context.WithCancel(ctx)
	a.spawn(func() { a.listen(ctx, e) })
}

// welcome takes on engines that have come to the machine since.
func (a *Agent) welcome(ctx context.Context) {
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	drivers, err := a.cfg.Late(a.binding(a.bound))
	if err != nil {
		a.log.Warn("a runtime has come to this machine and cannot be used", "error", err)
	}
	for _, d := range drivers {
		e := a.engine(ctx, d)
		a.attend(ctx, e)
		a.mu.Lock()
		a.engines[d.Kind()] = e
		a.mu.Unlock()
	}
}

// retire ends what was made for an earlier binding. Drivers that a factory gave again stay open.
func (a *Agent) retire(old, kept map[driver.Kind]*engine) {
	for kind, e := range old {
		if e.stop != nil {
			e.stop()
		}
		if again := kept[kind]; again != nil && again.drv == e.drv {
			continue
		}
		if c, ok := e.drv.(io.Closer); ok {
			if err := c.Close(); err != nil {
				a.log.Warn("closing a driver", "kind", kind, "error", err)
			}
		}
	}
}

// rebind moves to the cluster's own label once it is known, while nothing carries another. It is
// called with intentMu held.
func (a *Agent) rebind(ctx context.Context) error {
	a.mu.Lock()
	cluster, bound, fixed := a.meta.Epoch.ClusterID, a.bound, a.meta.Engine
	held := false
	for _, w := range a.workloads {
		held = held || w.intent != nil
	}
	a.mu.Unlock()
	if ctx == nil || cluster == "" || cluster == bound || fixed != "" && held {
		return nil
	}
	return a.bind(ctx, cluster)
}

// engineFor returns the engine for kind after fixing the cluster label on disk: from now on
// something may carry it.
func (a *Agent) engineFor(kind driver.Kind) (*engine, string, error) {
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	a.mu.Lock()
	e, bound, m := a.engines[kind], a.bound, a.meta
	a.mu.Unlock()
	if e == nil || m.Engine == bound {
		return e, bound, nil
	}
	m.Engine = bound
	if err := a.store.update(func(w write) error { return w.meta(m) }); err != nil {
		return nil, "", err
	}
	a.mu.Lock()
	a.meta.Engine = bound
	a.mu.Unlock()
	return e, bound, nil
}

// owns: it is ordered, or its delete is not carried out yet.
func (a *Agent) owns(id driver.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[string(id)]
	return w != nil && w.intent != nil
}

// taken: it is in the file that a legacy v1 agent left. What was ordered since is made with our mark, so that an
// instance without one is somebody else's.
func (a *Agent) taken(kind driver.Kind, id driver.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[string(id)]
	return w != nil && w.intent != nil && w.intent.LegacyContent != "" &&
		(w.intent.Type == kind || slices.Contains(w.intent.PreviousTypes, kind))
}

// progress notes what a driver is busy with for a workload.
func (a *Agent) progress(id driver.ID, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workloads[string(id)]; w != nil && w.busy != text {
		w.busy = text
		a.publish(w, time.Now())
	}
}

func (a *Agent) legacyContent(id driver.ID, runtimeID string) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[string(id)]
	if w == nil || w.intent == nil || w.observed == nil || w.observed.RuntimeID != runtimeID {
		return "", false
	}
	content := w.intent.legacyContent(w.observed)
	return content, content != ""
}

// refresh waits for a List that began after the call.
func (a *Agent) refresh(ctx context.Context, e *engine) error { return e.look.Fresh(ctx, a.spawn) }

func (a *Agent) list(ctx context.Context, e *engine) error {
	limited, cancel := context.WithTimeout(ctx, a.cfg.ListTimeout)
	defer cancel()
	a.mu.Lock()
	for _, w := range a.workloads {
		w.hinted = w.hinted && a.engines[w.kind] != e
	}
	a.mu.Unlock()
	began := time.Now()
	seen, err := e.drv.List(limited)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.absorb(e, seen, began, err)
	return err
}

// look asks an engine about one workload. whole says that it was asked about all of them instead, because
// that costs it no more or because nothing is known of the others, and that absorb has taken over the answer.
func (a *Agent) look(ctx context.Context, e *engine, id string) (o *driver.Observed, began time.Time, whole bool, err error) {
	one, ok := e.drv.(driver.Looker)
	a.mu.Lock()
	whole = !ok || !e.listed || e.trouble != ""
	if w := a.workloads[id]; w != nil && !whole {
		w.hinted = false
	}
	a.mu.Unlock()
	if whole {
		return nil, time.Time{}, true, a.refresh(ctx, e)
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.ListTimeout)
	defer cancel()
	began = time.Now()
	o, err = one.Look(limited, driver.ID(id))
	if ctx.Err() != nil {
		return nil, began, false, ctx.Err()
	}
	if err != nil {
		a.absorb(e, nil, began, err)
	}
	return o, began, false, err
}

// verdict is what a look at a workload that is being worked on leads to.
type verdict struct {
	next   step
	act    bool // something is to be done now
	absent bool // there is no instance
	stale  bool // another order or engine has replaced the one that is worked on: nothing was judged
}

// lookAt brings what is known of a workload up to date, before and after a step on it, and judges it. It is
// called by the goroutine that works on it.
func (a *Agent) lookAt(ctx context.Context, e *engine, w *workload, in *intent) (verdict, error) {
	o, began, whole, err := a.look(ctx, e, w.id)
	if err != nil {
		return verdict{}, err
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.workloads[w.id] != w || w.intent != in || a.engines[in.Type] != e {
		return verdict{stale: true}, nil
	}
	if !whole {
		w.saw(o, began, now)
	}
	v := verdict{next: a.consider(w, in, now), absent: w.observed == nil}
	v.act = v.next.do != doNothing && v.next.do != doWait
	if v.act {
		w.asked = false
	} else {
		a.schedule(w, v.next, now)
	}
	a.publish(w, now)
	return v, nil
}

// saw takes over what a look at this workload alone showed, unless a later one has ended before. It is called
// with mu held.
func (w *workload) saw(o *driver.Observed, began, now time.Time) {
	if !w.lookedAt.After(began) {
		w.observed, w.seen, w.lookedAt = o, now, began
	}
}

// listen turns an engine's events into looks at what they are of. Events are hints, so a burst of them is one
// look at each.
func (a *Agent) listen(ctx context.Context, e *engine) {
	const quiet = 50 * time.Millisecond
	pause := a.cfg.RetryBase
	for ctx.Err() == nil {
		events, err := e.drv.Events(ctx)
		if err == nil {
			for id := range events {
				burst := map[string]bool{string(id): a.hint(e, string(id))}
				timer := time.NewTimer(quiet)
			gather:
				for {
					select {
					case id, open := <-events:
						if !open {
							break gather
						}
						burst[string(id)] = a.hint(e, string(id))
					case <-timer.C:
						break gather
					case <-ctx.Done():
						break gather
					}
				}
				timer.Stop()
				if err := a.heed(ctx, e, burst); err != nil && ctx.Err() == nil {
					a.log.Debug("looking after an event", "kind", e.drv.Kind(), "error", err)
				}
			}
		}
		// The stream ended or could not be had; periodic looks go on meanwhile.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// hint notes that a workload may have changed. False: there is none of that id to look at alone.
func (a *Agent) hint(e *engine, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[id]
	if w == nil || w.intent == nil || a.engines[w.kind] != e {
		return false
	}
	w.hinted = true
	return true
}

// heed looks at what a burst of events is of: at each workload alone where that is cheaper than to look at
// all, but not at those that have been looked at since, or are being worked on: see missed.
func (a *Agent) heed(ctx context.Context, e *engine, burst map[string]bool) error {
	_, alone := e.drv.(driver.Looker)
	var due []string
	a.mu.Lock()
	for id, known := range burst {
		alone = alone && known
		if w := a.workloads[id]; w != nil && w.hinted && !a.queue.running(id) {
			due = append(due, id)
		}
	}
	alone = alone && (len(due) < 2 || len(due) <= len(a.workloads)/2)
	a.mu.Unlock()
	if !alone {
		return a.refresh(ctx, e)
	}
	var looks errgroup.Group
	looks.SetLimit(hintedLooks)
	for _, id := range due {
		looks.Go(func() error { return a.lookAfter(ctx, e, id) })
	}
	return looks.Wait()
}

// hintedLooks is how many workloads of a burst are looked at at one time.
const hintedLooks = 4

// lookAfter looks at a workload that nobody works on, and asks for the work that follows.
func (a *Agent) lookAfter(ctx context.Context, e *engine, id string) error {
	o, began, whole, err := a.look(ctx, e, id)
	if err != nil || whole {
		return err
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[id]
	if w == nil || w.intent == nil || a.engines[w.kind] != e {
		return nil
	}
	w.saw(o, began, now)
	a.schedule(w, a.consider(w, w.intent, now), now)
	a.publish(w, now)
	return nil
}

// missed asks for another look at a workload whose engine hinted at it while it was worked on and after the
// last look at it began.
func (a *Agent) missed(id string) {
	a.mu.Lock()
	w := a.workloads[id]
	again := w != nil && w.intent != nil && w.hinted
	if again {
		w.hinted = false
	}
	a.mu.Unlock()
	if again {
		a.queue.add(id, time.Now())
	}
}

// probe asks every engine what it is. It reports whether anything that is registered changed.
func (a *Agent) probe(ctx context.Context) bool {
	changed := false
	for _, e := range a.allEngines() {
		limited, cancel := context.WithTimeout(ctx, a.cfg.ListTimeout)
		capacity, err := e.drv.Probe(limited)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			capacity.Healthy = false
			if capacity.Reason == "" {
				capacity.Reason = err.Error()
			}
		}
		a.mu.Lock()
		if !capacity.Healthy && capacity.EngineID == "" {
			capacity.EngineID = e.capacity.EngineID // it is away, not another one
		}
		was := e.capacity
		changed = changed || !e.probed || was.Healthy != capacity.Healthy || was.EngineID != capacity.EngineID
		e.probed, e.capacity = true, capacity
		a.mu.Unlock()
		a.metrics.runtime(e.drv.Kind(), capacity.Healthy)
	}
	return changed
}

func (a *Agent) allEngines() []*engine {
	a.mu.Lock()
	defer a.mu.Unlock()
	return inOrder(a.engines)
}

// inOrder lists engines, always in the same order.
func inOrder(engines map[driver.Kind]*engine) []*engine {
	out := make([]*engine, 0, len(engines))
	for _, kind := range []driver.Kind{driver.Container, driver.Compose, driver.VM} {
		if e := engines[kind]; e != nil {
			out = append(out, e)
		}
	}
	return out
}

// sweep looks at everything: engines, workloads, and what has been kept long enough.
func (a *Agent) sweep(ctx context.Context) {
	start := time.Now()
	if a.cfg.Late != nil {
		a.welcome(ctx)
	}
	stored := a.storage.Measure(ctx)
	pooled := a.lookAtPools(ctx)
	if a.probe(ctx) || stored || pooled {
		a.facts.Store(true)
		a.signal()
	}
	var wait sync.WaitGroup
	for _, e := range a.allEngines() {
		wait.Go(func() {
			if err := a.refresh(ctx, e); err != nil && !errors.Is(err, context.Canceled) {
				a.log.Warn("an engine does not answer", "kind", e.drv.Kind(), "error", err)
			}
		})
	}
	wait.Wait()
	a.first.Do(func() { close(a.looked) })
	if ctx.Err() != nil {
		return
	}
	a.prune(time.Now())
	a.metrics.reconciled(time.Since(start))
	a.periodicGC(ctx, start)
}
