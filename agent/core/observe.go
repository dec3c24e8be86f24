package core

import (
	"fmt"
	"time"

	"github.com/persys/compute/agent/workload"
)

// setEngines takes over new drivers.
func (x *step) setEngines(e Engines) {
	// Engines that are added do not end a replacement of the drivers that is still under way.
	waited := !e.Added && x.rebinding != ""
	old := x.engines
	if !e.Added {
		x.rebinding = ""
		x.engines, x.Bound = nil, e.Cluster
	}
	for _, kind := range e.Kinds {
		x.bounds++
		next := Engine{Kind: kind, Bound: x.bounds}
		for _, was := range old {
			if was.Kind == kind { // another label, the same engine
				next.Probed, next.Healthy, next.EngineID, next.Reason = was.Probed, was.Healthy, was.EngineID, was.Reason
			}
		}
		x.engines = append(x.engines, next)
	}
	sortEngines(x.engines)
	if waited { // work rests while drivers are replaced
		for w := range x.State.Workloads() {
			x.due(w.ID, x.now)
		}
	}
}

func (x *step) engine(kind workload.Kind) *Engine {
	for i := range x.engines {
		if x.engines[i].Kind == kind {
			return &x.engines[i]
		}
	}
	return nil
}

func (x *step) probed(p Probed) {
	e := x.engine(p.Kind)
	if e == nil {
		return
	}
	id := p.EngineID
	if !p.Healthy && id == "" {
		id = e.EngineID // it is away, not another engine
	}
	if !e.Probed || e.Healthy != p.Healthy || e.EngineID != id {
		x.do(Register{})
	}
	e.Probed, e.Healthy, e.EngineID, e.Reason = true, p.Healthy, id, p.Reason
}

// listed takes over a list of an engine, or that there was none, and asks for the work that follows. A
// workload is not forgotten because its engine does not answer. A list that began before a look at a
// workload alone, and took longer, changes nothing about it.
func (x *step) listed(l Listed) {
	e := x.engine(l.Kind)
	if e == nil || e.Bound != l.Bound {
		return
	}
	e.Trouble = l.Trouble
	if l.Trouble != "" {
		for _, w := range x.list() {
			if w.Kind == l.Kind {
				x.publish(w)
			}
		}
		return
	}
	e.Listed = true
	there := map[string]bool{}
	for i := range l.Seen {
		o := &l.Seen[i]
		id := string(o.ID)
		w := x.Get(id)
		if w == nil {
			w = x.add(id, l.Kind)
			x.orphan(w, o)
		}
		if w.Kind == l.Kind {
			if !w.lookedAt.After(l.Began) {
				w = x.edit(w)
				w.Observed = o
			}
			there[id] = true
		}
	}
	for _, w := range x.list() {
		if w.Kind != l.Kind || w.lookedAt.After(l.Began) {
			continue
		}
		w = x.edit(w)
		w.Seen = x.now
		if !there[w.ID] {
			w.Observed = nil
			if w.Intent == nil {
				x.forget(w)
				continue
			}
		}
		if w.Intent != nil {
			x.schedule(w, x.consider(w))
		}
		x.publish(w)
	}
}

// orphan judges an instance with our labels that nobody ordered. If it was deleted at its generation or
// later, the delete is carried out again. Otherwise it is only reported: it may be the last copy of
// something.
func (x *step) orphan(w *Workload, o *workload.Observed) {
	t := x.Tombstone(w.ID)
	if t == nil || t.Generation.Less(o.Generation) {
		x.notice(true, "an instance of ours runs without an order", "workload", w.ID, "generation", o.Generation.String())
		return
	}
	again := *t
	again.Done = false
	x.tombs.Set(w.ID, &again)
	x.due(w.ID, x.now)
}

// looked takes over a look at one workload.
func (x *step) looked(l Looked) {
	w := x.Get(l.ID)
	e := x.engine(l.Kind)
	if w == nil || w.Intent == nil || w.Kind != l.Kind || e == nil || e.Bound != l.Bound {
		return // among others: the driver that looked has been replaced
	}
	w = x.edit(w)
	w.saw(l.Observed, l.Began, x.now)
	x.schedule(w, x.consider(w))
	x.publish(w)
}

// saw takes over a look at this workload alone, unless one that began later has ended before.
func (w *Workload) saw(o *workload.Observed, began, now time.Time) {
	if !w.lookedAt.After(began) {
		w.Observed, w.Seen, w.lookedAt = o, now, began
	}
}

// measured compares what an instance occupies with its limit. One above the limit is stopped. One that
// was stopped may run again if somebody made room in its volumes or raised the limit.
func (x *step) measured(m Measured) {
	w := x.Get(m.ID)
	if w == nil || w.Intent == nil || w.Observed == nil || w.Observed.RuntimeID != m.RuntimeID {
		return
	}
	was := w.memory.over.of(w.Intent.EngineContent, w.Observed)
	over := m.Limit > 0 && m.Bytes > m.Limit
	if over == was {
		return
	}
	w = x.edit(w)
	if over {
		const mib = 1 << 20
		w.memory.over = excess{content: w.Intent.EngineContent, instance: m.RuntimeID, at: x.now, message: fmt.Sprintf(
			"disk: it occupies %d MiB, its limit is %d MiB; stopped. Give it more disk, or delete it and apply it anew", m.Bytes/mib, m.Limit/mib)}
		x.notice(true, "stopping a workload that is over its disk limit", "workload", w.ID, "bytes", m.Bytes, "limit", m.Limit)
	} else {
		w.memory.over, w.Failure = excess{}, Failure{}
	}
	x.due(w.ID, x.now)
}
