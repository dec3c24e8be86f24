package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

// pump hands due workloads to goroutines and looks at everything in between.
func (a *Agent) pump(ctx context.Context) error {
	swept := make(chan struct{}, 1)
	sweeping := false
	sweepAt := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		if !sweeping && !now.Before(sweepAt) {
			sweeping = true
			sweepAt = now.Add(a.cfg.ReconcileInterval)
			a.spawn(func() {
				a.sweep(ctx)
				swept <- struct{}{}
			})
		}
		ids, next := a.queue.take(now, a.cfg.Concurrency)
		for _, id := range ids {
			a.spawn(func() {
				defer a.missed(id) // after it counts as done: a hint is heeded here or where it comes in
				defer a.queue.done(id)
				a.work(ctx, id)
			})
		}
		if next.IsZero() || sweepAt.Before(next) {
			next = sweepAt
		}
		wait := time.Until(next)
		if sweeping && next.Equal(sweepAt) {
			wait = max(wait, time.Second)
		}
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
			return nil
		case <-a.queue.wake:
		case <-timer.C:
		case <-swept:
			sweeping = false
		}
	}
}

// absorb takes over what an engine listed, or that it could not, and asks for the work that
// follows. Nothing is forgotten because an engine does not answer, and nothing newer because a List
// that began before took longer.
func (a *Agent) absorb(e *engine, seen []driver.Observed, began time.Time, err error) {
	now := time.Now()
	kind := e.drv.Kind()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.engines[kind] != e {
		return // replaced meanwhile
	}
	if err != nil {
		e.trouble = err.Error()
		for _, w := range a.workloads {
			if w.kind == kind {
				a.publish(w, now)
			}
		}
		return
	}
	e.listed, e.trouble = true, ""
	there := make(map[string]bool, len(seen))
	for i := range seen {
		o := &seen[i]
		id := string(o.ID)
		w := a.workloads[id]
		if w == nil {
			w = &workload{id: id, kind: kind}
			a.workloads[id] = w
			a.orphan(w, o, now)
		}
		if w.kind == kind {
			if !w.lookedAt.After(began) {
				w.observed = o
			}
			there[id] = true
		}
	}
	for id, w := range a.workloads {
		if w.kind != kind || w.lookedAt.After(began) {
			continue
		}
		w.seen = now
		if !there[id] {
			w.observed = nil
			if w.intent == nil {
				a.forget(id)
				continue
			}
		}
		if in := w.intent; in != nil {
			a.schedule(w, a.consider(w, in, now), now)
		}
		a.publish(w, now)
	}
}

// orphan is told of an instance that carries our labels and that nobody ordered. If it was deleted
// at its generation or later, the delete is carried out again; else it is only reported, because
// it may be the last copy of something.
func (a *Agent) orphan(w *workload, o *driver.Observed, now time.Time) {
	t := a.tombs[w.id]
	if t == nil || t.Generation.Less(o.Generation) {
		a.log.Warn("an instance of ours runs without an order", "workload", w.id, "generation", o.Generation.String())
		return
	}
	again := *t
	again.Done = false
	a.tombs[w.id] = &again
	a.queue.add(w.id, now)
}

// consider brings a workload's memory of failures up to date and says its next step. It is called
// with mu held.
func (a *Agent) consider(w *workload, in *intent, now time.Time) step {
	s, m := consider(a.cfg.policy(), in, Memory{Asked: w.asked, Waits: w.waits, Lapsed: w.lapsed, Over: w.over, Failure: w.fail}, w.observed, now)
	w.waits, w.fail, w.over = m.Waits, m.Failure, m.Over
	return s
}

// consider is the agent's whole judgement of one workload, for what an engine shows (nil: nothing).
func consider(p retryPolicy, in *intent, m Memory, o *driver.Observed, now time.Time) (step, Memory) {
	seen := driver.Observed{State: driver.Absent}
	if o != nil {
		seen = *o
	}
	if seen.State == driver.Running {
		m.Waits = false // it survived, and is adopted
	}
	d := in.desired(m.Asked, o)
	d.waits, d.lapsed = m.Waits, m.Lapsed
	if m.Over.Message != "" && !m.Over.of(d.content, o) {
		m.Over = Excess{} // another instance, or about to be
		m.Failure = failure{}
	}
	d.over = m.Over.Message != "" && d.running
	if d.over && !d.deleting {
		m.Failure = failure{Class: driver.ResourceQuotaExceeded, Message: m.Over.Message, At: m.Over.At, Attempts: 1, Final: true}
	} else {
		m.Failure = p.settle(d, seen, m.Failure, now)
	}
	return decide(d, in.observed(o), m.Failure, now), m
}

// schedule asks for another look when the step wants one. It is called with mu held.
func (a *Agent) schedule(w *workload, next step, now time.Time) {
	switch next.do {
	case doNothing:
		// A workload that failed is forgiven once it has run for a while.
		if o := w.observed; o != nil && o.State == driver.Running && w.fail.Attempts > 0 && !o.StartedAt.IsZero() {
			a.queue.add(w.id, later(o.StartedAt.Add(a.cfg.StableAfter), now.Add(time.Second)))
		}
	case doWait:
		a.queue.add(w.id, next.until)
	default:
		a.queue.add(w.id, now)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// work brings one workload to where it should be, or as far as it gets. It is the only goroutine
// that does so for this id.
func (a *Agent) work(ctx context.Context, id string) {
	// Three steps, and one for each former type, are the most a workload needs; the bound is against engines that lie.
	for range 8 {
		if ctx.Err() != nil || !a.advance(ctx, id) {
			return
		}
	}
	a.queue.add(id, time.Now().Add(a.cfg.RetryBase))
}

// advance takes one step. It reports whether to look again at once.
func (a *Agent) advance(ctx context.Context, id string) (again bool) {
	a.mu.Lock()
	w, tomb := a.workloads[id], a.tombs[id]
	var in *intent
	if w != nil {
		in = w.intent
	}
	a.mu.Unlock()
	if in == nil && (tomb == nil || tomb.Done) {
		return false
	}
	if in != nil && in.Deleting && a.tooEarly(w, in) {
		return false
	}
	a.startTask(id)
	if in == nil || in.Deleting {
		return a.bury(ctx, id, in)
	}
	if len(in.PreviousTypes) > 0 {
		if err := a.removeFrom(ctx, id, in.PreviousTypes[0], a.fate(in, nil)); err != nil {
			return a.failed(ctx, id, in, err)
		}
		a.amend(id, in, func(next *intent) {
			next.PreviousTypes = in.PreviousTypes[1:]
			next.removed()
		})
		return true
	}
	e, cluster, err := a.engineFor(in.Type)
	if err != nil {
		return a.failed(ctx, id, in, fmt.Errorf("state file: %w", err))
	}
	if e == nil {
		return a.failed(ctx, id, in, driver.Errorf(driver.RuntimeError, "apply", "runtime not available: %s", in.Type))
	}
	seen, err := a.lookAt(ctx, e, w, in)
	if err != nil {
		// Nothing is known, so nothing is done; the order stays open.
		a.queue.add(id, time.Now().Add(a.cfg.RetryBase))
		return false
	}
	if seen.stale {
		return true
	}
	next := seen.next
	if !seen.act {
		if next.do == doNothing {
			a.settled(id)
		}
		a.finish(id, in)
		return false
	}
	start := time.Now()
	within, done := a.step(ctx, id, next.do.String())
	if in.guarded() && in.running() && next.do != doHalt && next.do != doRemove {
		err = a.underLease(within, in, func(ctx context.Context) error { return a.carryOut(ctx, e, in, cluster, next.do) })
	} else {
		err = a.carryOut(within, e, in, cluster, next.do)
	}
	done(err)
	if err != nil {
		return a.failed(ctx, id, in, err)
	}
	a.metrics.applied(time.Since(start), next.do, seen.absent)
	a.mu.Lock()
	if w.intent == in {
		w.fail.Final, w.fail.Next = false, time.Time{}
	}
	a.mu.Unlock()
	if in.Recreate || in.Restart && in.running() {
		a.amend(id, in, func(next *intent) {
			next.Recreate, next.Restart = false, false
			next.removed()
		})
	}
	return true
}

// carryOut does a step on an engine. A panic in it, over a specification that nobody has thought of,
// is that workload's failure: it takes neither the agent nor its other workloads with it.
func (a *Agent) carryOut(ctx context.Context, e *engine, in *intent, cluster string, do verb) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StepTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("a step panicked", "workload", in.ID, "do", do.String(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = driver.Errorf(driver.RuntimeError, do.String(), "the agent failed while it carried this out; its log says where")
		}
	}()
	id := driver.ID(in.ID)
	a.log.Debug("step", "workload", in.ID, "do", do.String(), "generation", in.Generation.String())
	switch do {
	case doHalt, doRestart:
		if err := e.drv.Halt(ctx, id, a.stopGrace(in.ID)); err != nil || do == doHalt {
			return err
		}
	case doRecreate, doRemove:
		if err := e.remover(a.fate(in, nil))(ctx, id); err != nil || do == doRemove || !in.running() {
			return err
		}
	}
	return a.ensure(ctx, e, in, cluster)
}

// failed notes a failed step and when to try again.
func (a *Agent) failed(ctx context.Context, id string, in *intent, err error) (again bool) {
	if ctx.Err() != nil {
		return false // the agent ends; that is nobody's failure
	}
	now := time.Now()
	a.mu.Lock()
	w := a.workloads[id]
	if w == nil || w.intent != in {
		a.mu.Unlock()
		return true // a newer order; the failure was the old one's
	}
	w.fail = a.cfg.policy().after(w.fail, in, err, ending(a.tombs, a.shown, now), now)
	if at := w.fail.Next; !at.IsZero() {
		a.queue.add(id, at)
	}
	t := w.task
	a.publish(w, now)
	a.mu.Unlock()
	if t.open() {
		a.putTask(w, t.ended(err.Error(), true, now))
	}
	return false
}

// shown is each workload that was ordered, but those given up, and what its engine shows. It is called with mu held.
func (a *Agent) shown(yield func(*intent, *driver.Observed) bool) {
	for _, w := range a.workloads {
		if w.intent != nil && !w.fail.Final && !yield(w.intent, w.observed) {
			return
		}
	}
}

// finish ends a workload's task: the order is carried out, or found to need nothing.
func (a *Agent) finish(id string, in *intent) {
	now := time.Now()
	a.mu.Lock()
	w := a.workloads[id]
	if w == nil || w.intent != in {
		a.mu.Unlock()
		return
	}
	t, f, waits, lapsed := w.task, w.fail, w.waits, w.lapsed
	a.mu.Unlock()
	if t.open() {
		bad := f.Attempts > 0 || f.Final
		text := ""
		if bad {
			text = f.Message
		}
		if waits {
			bad, text = true, waitsMessage
		}
		if lapsed {
			bad, text = true, lapsedMessage
		}
		a.putTask(w, t.ended(text, bad, now))
		return
	}
	a.mu.Lock()
	a.publish(w, now)
	a.mu.Unlock()
}

// startTask marks a workload's pending task as running; in memory only, because after a restart it
// is taken up all the same.
func (a *Agent) startTask(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[id]
	if w == nil || w.task == nil || w.task.Status != taskPending {
		return
	}
	now := time.Now()
	w.task = w.task.started(now)
	a.history.put(w.task)
	a.publish(w, now)
}

// putTask stores the next state of a workload's task. A history that cannot be written is no
// reason to stop working: the state in memory goes on.
func (a *Agent) putTask(w *workload, t *task) {
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	if err := a.store.update(func(tx write) error { return tx.task(t) }); err != nil {
		a.log.Error("storing the task history", "workload", t.Workload, "error", err)
	}
	a.mu.Lock()
	a.history.put(t)
	if w.task != nil && w.task.ID == t.ID {
		w.task = t
	}
	if w.intent != nil || w.observed != nil {
		a.publish(w, time.Now())
	}
	a.mu.Unlock()
	a.metrics.task(t)
}

// amend replaces an intent by one with a carried-out wish taken off. It does nothing when a newer
// order replaced it meanwhile.
func (a *Agent) amend(id string, in *intent, change func(*intent)) {
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	next := *in
	change(&next)
	a.mu.Lock()
	w := a.workloads[id]
	same := w != nil && w.intent == in
	a.mu.Unlock()
	if !same {
		return
	}
	if err := a.store.update(func(w write) error { return w.intent(&next) }); err != nil {
		// It is done all the same, and is not done again by this process: at worst the next one does, once.
		a.log.Error("state file", "workload", id, "error", err)
	}
	a.mu.Lock()
	w.intent = &next
	a.mu.Unlock()
}

// tooEarly reports whether the back-off of a delete is not over, and if so asks for another look then: looks at its
// engine, of which the delete itself is one, queue it at once.
func (a *Agent) tooEarly(w *workload, in *intent) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.consider(w, in, now)
	if next.do == doWait {
		a.schedule(w, next, now)
	}
	return next.do == doWait
}

// bury carries out a delete: removes what there is, looks that nothing is left, and only then
// forgets the order and makes the tombstone final. in is nil for an id without order.
func (a *Agent) bury(ctx context.Context, id string, in *intent) (again bool) {
	start := time.Now()
	orphan := a.orphanKind(id)
	kinds := []driver.Kind{}
	if in != nil {
		kinds = append(append(kinds, in.Type), in.PreviousTypes...)
	} else {
		for _, e := range a.allEngines() {
			kinds = append(kinds, e.drv.Kind())
		}
	}
	a.mu.Lock()
	fate := a.fate(in, a.tombs[id])
	a.mu.Unlock()
	for _, kind := range kinds {
		within, done := a.step(ctx, id, "delete")
		err := a.removeFrom(within, id, kind, fate)
		done(err)
		if err == nil {
			continue
		}
		if in == nil {
			if ctx.Err() == nil {
				a.log.Warn("delete", "workload", id, "error", err)
			}
			a.queue.add(id, time.Now().Add(a.cfg.RetryBase))
			return false
		}
		return a.failed(ctx, id, in, err)
	}
	if err := a.storage.Release(ctx, id, fate); err != nil {
		if in != nil {
			return a.failed(ctx, id, in, err)
		}
		a.log.Warn("the volumes of a deleted workload", "workload", id, "error", err)
		a.queue.add(id, time.Now().Add(a.cfg.RetryBase))
		return false
	}
	a.intentMu.Lock()
	defer a.intentMu.Unlock()
	now := time.Now()
	a.mu.Lock()
	w, tomb := a.workloads[id], a.tombs[id]
	var t *task
	if w != nil {
		if w.intent != in {
			a.mu.Unlock()
			return true // ordered anew meanwhile
		}
		t = w.task
	}
	if !t.open() {
		t = a.history.openFor(id)
	}
	a.mu.Unlock()
	if tomb == nil {
		tomb = &tombstone{ID: id, DeletedAt: now}
	}
	done := *tomb
	done.Done, done.DeletedAt = true, now
	if t != nil {
		t = t.ended("", false, now)
	}
	err := a.store.update(func(tx write) error {
		if err := tx.forget(id); err != nil {
			return err
		}
		if t != nil {
			if err := tx.task(t); err != nil {
				return err
			}
		}
		return tx.tombstone(&done)
	})
	if err != nil {
		a.log.Error("state file", "workload", id, "error", err)
		a.queue.add(id, now.Add(a.cfg.RetryBase))
		return false
	}
	a.mu.Lock()
	a.version++
	done.version = a.version
	a.tombs[id] = &done
	a.forget(id)
	if t != nil {
		a.history.put(t)
	}
	a.mu.Unlock()
	a.signal()
	a.metrics.deleted(time.Since(start), orphan, t)
	a.settled(id)
	if err := a.rebind(a.life); err != nil {
		a.log.Error("drivers", "error", err)
	}
	return false
}

// remover is Remove of an engine, or Leave for a workload that lives on elsewhere, or may: it takes nothing
// with it that it may have there.
func (e *engine) remover(fate volume.Fate) func(context.Context, driver.ID) error {
	l, ok := e.drv.(driver.Leaver)
	if !ok || !fate.Keep && !fate.KeepShared {
		return e.drv.Remove
	}
	return func(ctx context.Context, id driver.ID) error { return l.Leave(ctx, id, fate.Keep) }
}

// removeFrom removes a workload from one engine and looks that it is gone.
func (a *Agent) removeFrom(ctx context.Context, id string, kind driver.Kind, fate volume.Fate) error {
	a.mu.Lock()
	e := a.engines[kind]
	a.mu.Unlock()
	if e == nil {
		return driver.Errorf(driver.RuntimeError, "delete", "runtime not available: %s", kind)
	}
	limited, cancel := context.WithTimeout(ctx, a.cfg.StepTimeout)
	defer cancel()
	if err := e.remover(fate)(limited, driver.ID(id)); err != nil {
		return err
	}
	// What a List of before saw must not come back as news.
	return a.refresh(ctx, e)
}
