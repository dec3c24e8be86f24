package core

import (
	"fmt"
	"maps"
	"time"

	"github.com/persys/compute/agent/workload"
)

// setEngines records for which kinds of workloads there are drivers, after all drivers were replaced or some
// were added.
func (x *step) setEngines(e Engines) {
	// While all drivers are being replaced because the cluster id became known (rebinding), an event with
	// Added can arrive. It does not end the replacement.
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
			if was.Kind == kind { // the engine has only got a new driver, so its state stays
				next.Probed, next.Healthy, next.EngineID, next.Reason, next.Devices = was.Probed, was.Healthy, was.EngineID, was.Reason, was.Devices
			}
		}
		x.engines = append(x.engines, next)
	}
	sortEngines(x.engines)
	if waited { // no action starts while drivers are being replaced
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
	id, devices := p.EngineID, p.Devices
	if !p.Healthy && id == "" {
		id, devices = e.EngineID, e.Devices // an engine that does not answer keeps the id and the devices that it reported before
	}
	if !e.Probed || e.Healthy != p.Healthy || e.EngineID != id || !maps.Equal(e.Devices, devices) {
		x.do(Register{})
	}
	e.Probed, e.Healthy, e.EngineID, e.Reason, e.Devices = true, p.Healthy, id, p.Reason, devices
	if known := x.State.Devices(); !maps.Equal(known, x.Meta.Devices) {
		x.Meta.Devices = known
		x.writeMeta()
	}
}

// listed stores the observations in a list of an engine's instances, or the error of that list, and schedules
// the work that follows. Workloads of an engine that does not answer are kept. If a single workload was
// inspected after the list was started, the list is ignored for this workload, because its entry may be older
// than the inspection.
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
				x.ended(w, o)
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
			x.ended(w, nil)
			w.Observed = nil
			if w.Intent == nil {
				x.forget(w)
				continue
			}
		}
		if w.Intent != nil {
			x.schedule(w, x.evaluate(w))
		}
		x.publish(w)
	}
}

// orphan handles an instance that has our labels but no order. If there is a tombstone (the record of the
// workload's delete) with the generation of the instance or a higher one, the delete is carried out again.
// Otherwise the instance is only reported, because it may be the last copy of its data.
func (x *step) orphan(w *Workload, o *workload.Observed) {
	t := x.Tombstone(w.ID)
	if t == nil || t.Generation.Less(o.Generation) {
		x.notice(true, "an instance has our labels but no order; it is left as it is", "workload", w.ID, "generation", o.Generation.String())
		return
	}
	again := *t
	again.Done = false
	x.tombs.Set(w.ID, &again)
	x.due(w.ID, x.now)
}

// looked stores the result of an inspection of one workload, and schedules the work that follows from it.
func (x *step) looked(l Looked) {
	w := x.Get(l.ID)
	e := x.engine(l.Kind)
	if w == nil || w.Intent == nil || w.Kind != l.Kind || e == nil || e.Bound != l.Bound {
		return // the workload is gone or has another type, or the driver was replaced
	}
	w = x.edit(w)
	x.saw(w, l.Observed, l.Began)
	x.schedule(w, x.evaluate(w))
	x.publish(w)
}

// saw stores an observed instance of a workload, unless a newer observation is stored already.
func (x *step) saw(w *Workload, o *workload.Observed, began time.Time) {
	if !w.lookedAt.After(began) {
		x.ended(w, o)
		w.Observed, w.Seen, w.lookedAt = o, x.now, began
	}
}

// ended is called with a new observation o of the workload w. If the instance of w has ended, it may have
// released a host port or a container name. So ended schedules another attempt for the workloads that wait
// for a port or name.
func (x *step) ended(w *Workload, o *workload.Observed) {
	was := w.Observed
	if was == nil || o != nil && o.RuntimeID == was.RuntimeID && (o.State == workload.Running || was.State != workload.Running) {
		return
	}
	x.freed()
}

// freed schedules another attempt for the workloads that wait for a host port or a container name in use.
func (x *step) freed() {
	for _, w := range x.list() {
		switch w.Failure.Class {
		case workload.PortBindConflict, workload.NameConflict:
			if w.Failure.Next.After(x.now) {
				w = x.edit(w)
				w.Failure.Next = x.now
				x.due(w.ID, x.now)
			}
		}
	}
}

// measured compares the disk use of an instance with its limit. An instance over its limit is
// stopped. It may run again when its use drops below the limit or the limit is raised.
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
			"disk: the workload occupies %d MiB, its limit is %d MiB; stopped. Give it more disk, or delete it and apply it again", m.Bytes/mib, m.Limit/mib)}
		x.notice(true, "stopping a workload that is over its disk limit", "workload", w.ID, "bytes", m.Bytes, "limit", m.Limit)
	} else {
		w.memory.over, w.Failure = excess{}, Failure{}
	}
	x.due(w.ID, x.now)
}
