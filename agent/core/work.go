package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

// job is the work on one id: when to look at it next, and what is under way.
type job struct {
	due   time.Time // zero: not due
	act   *Act      // under way
	cover *Act      // waits for the fencer to confirm the lease
	until time.Time // how long cover waits
	turns int       // acts since the work began
}

func (j job) busy() bool { return j.act != nil || j.cover != nil }

// maxTurns bounds the acts of one piece of work, against engines that lie: a workload needs three, and
// one for each former type.
const maxTurns = 16

// due asks for work on an id at a time; the earliest of several counts.
func (x *step) due(id string, at time.Time) {
	j, _ := x.jobs.Get(id)
	if j.due.IsZero() || at.Before(j.due) {
		j.due = at
		x.jobs.Set(id, j)
	}
}

func (x *step) setJob(id string, j job) {
	if !j.busy() && j.due.IsZero() {
		x.jobs.Delete(id)
	} else {
		x.jobs.Set(id, j)
	}
}

// rest ends the work on an id until it is due again.
func (x *step) rest(id string) {
	j, _ := x.jobs.Get(id)
	x.setJob(id, job{due: j.due})
}

// begin takes up work that is due, the longest due first, as far as Concurrency allows.
func (x *step) begin() {
	inWork := 0
	var ready []string
	dues := map[string]time.Time{}
	x.jobs.Scan(func(id string, j job) bool {
		switch {
		case j.busy():
			inWork++
		case !j.due.After(x.now):
			ready = append(ready, id)
			dues[id] = j.due
		}
		return true
	})
	slices.SortStableFunc(ready, func(a, b string) int { return dues[a].Compare(dues[b]) })
	for _, id := range ready {
		if inWork >= x.Concurrency {
			return
		}
		j, _ := x.jobs.Get(id)
		j.due = time.Time{}
		x.setJob(id, j)
		x.turn(id)
		if j, _ := x.jobs.Get(id); j.busy() {
			inWork++
		}
	}
}

// arm asks for a Tick when something is due.
func (x *step) arm() {
	var next time.Time
	x.jobs.Scan(func(_ string, j job) bool {
		at := j.due
		if j.busy() {
			at = j.until
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
		return true
	})
	if !next.IsZero() && !next.After(x.now) {
		next = time.Time{} // it waits for an Act to end
	}
	if !next.Equal(x.armed) {
		x.armed = next
		x.do(Arm{next})
	}
}

// turn takes one step of the work on an id.
func (x *step) turn(id string) {
	w, tomb := x.Get(id), x.Tombstone(id)
	var in *Intent
	if w != nil {
		in = w.Intent
	}
	if in == nil && !tomb.open() {
		x.rest(id)
		return
	}
	j, _ := x.jobs.Get(id)
	if j.turns++; j.turns > maxTurns {
		x.setJob(id, job{due: x.now.Add(x.Policy.Base)}) // later than any other due time
		return
	}
	j.act, j.cover, j.until = nil, nil, time.Time{}
	x.jobs.Set(id, j) // also an idle job, because it counts the turns
	if in != nil && in.Deleting {
		// A list of its engine asks for work at once, and the delete itself causes one.
		if next := x.consider(w); next.do == Wait {
			x.rest(id)
			x.due(id, next.until)
			return
		}
	}
	x.startTask(id)
	switch {
	case in == nil || in.Deleting:
		x.remove(id, in, tomb)
	case len(in.PreviousTypes) > 0:
		x.act(&Act{Verb: RemoveFormer, ID: id, Intent: in, Kinds: in.PreviousTypes[:1], Fate: fateOf(in)})
	default:
		e, ok := x.Engine(in.Type)
		switch {
		case !ok:
			x.failed(id, in, workload.RuntimeError, "apply: runtime not available: "+string(in.Type)+" ("+string(workload.RuntimeError)+")")
		case x.rebinding != "": // another driver takes over: setEngines asks for the work again
			x.rest(id)
		default:
			x.act(&Act{Verb: Look, ID: id, Intent: in, Kinds: []workload.Kind{in.Type}, bound: e.Bound})
		}
	}
}

func (x *step) act(a *Act) {
	j, _ := x.jobs.Get(a.ID)
	j.act, j.cover, j.until = a, nil, time.Time{}
	x.jobs.Set(a.ID, j)
	x.do(a)
}

// remove asks for the removal of a workload from its engines: from all of them if nobody ordered it.
func (x *step) remove(id string, in *Intent, tomb *Tombstone) {
	a := &Act{Verb: Remove, ID: id, Intent: in, Grace: x.grace(id)}
	if in != nil {
		a.Fate = fateOf(in)
		a.Kinds = append([]workload.Kind{in.Type}, in.PreviousTypes...)
	} else {
		a.Fate = Fate{Keep: tomb.KeepVolumes, KeepShared: tomb.KeepShared}
		for _, e := range x.engines {
			a.Kinds = append(a.Kinds, e.Kind)
		}
		if w := x.Get(id); w != nil && w.Observed != nil {
			a.Orphan = w.Kind
		}
	}
	x.act(a)
}

func fateOf(in *Intent) Fate {
	return Fate{Keep: in.KeepVolumes, KeepShared: in.KeepShared, Purge: in.Purge}
}

// done files the outcome of an Act and goes on.
func (x *step) done(d Done) {
	id := d.Act.ID
	j, ok := x.jobs.Get(id)
	if !ok || j.act != d.Act {
		return
	}
	j.act = nil
	x.jobs.Set(id, j)
	if d.Act.Guarded {
		x.do(TellFencer{}) // a lapse can be confirmed once nothing is being started
	}
	w, in := x.Get(id), d.Act.Intent
	switch d.Act.Verb {
	case Look:
		x.lookDone(d, w)
	case Remove:
		x.removeDone(d, w)
	default:
		switch {
		case d.Failed != nil:
			x.failed(id, in, d.Failed.Class, d.Failed.Message)
			return
		case w != nil && w.Intent == in:
			w = x.edit(w)
			x.carriedOut(w, d.Act.Verb)
		}
		x.turn(id)
	}
}

// lookDone takes over what a look at a workload that is being worked on showed, and decides.
func (x *step) lookDone(d Done, w *Workload) {
	id, in := d.Act.ID, d.Act.Intent
	if d.Failed != nil {
		// Nothing is known, so nothing is done; the order stays open.
		x.rest(id)
		x.due(id, x.now.Add(x.Policy.Base))
		return
	}
	if e, ok := x.Engine(in.Type); w == nil || w.Intent != in || !ok || e.Bound != d.Act.bound {
		x.turn(id) // another order or engine has taken the place of the one that was looked for
		return
	}
	w = x.edit(w)
	if !d.Whole {
		w.saw(d.Observed, d.Began, x.now)
	}
	next := x.consider(w)
	if next.do == Nothing || next.do == Wait {
		x.schedule(w, next)
		x.publish(w)
		if next.do == Nothing {
			x.do(Settled{id})
		}
		x.finishTask(w)
		x.rest(id)
		return
	}
	if x.rebinding != "" { // nothing new may get the label that is about to change
		x.publish(w)
		x.rest(id)
		return
	}
	w.memory.asked = false
	x.publish(w)
	if x.Meta.Engine != x.Bound { // from now on an instance may carry this label
		x.Meta.Engine = x.Bound
		x.writeMeta()
		x.store.Workload = id
	}
	a := &Act{
		Verb: next.do, ID: id, Intent: in, Kinds: []workload.Kind{in.Type}, Fate: fateOf(in), Cluster: x.Bound,
		Grace: x.grace(id), Absent: w.Observed == nil, bound: d.Act.bound,
		Guarded: in.Guarded() && in.Running() && next.do.starts(),
	}
	if a.Guarded {
		x.actUnderLease(a)
	} else {
		x.act(a)
	}
}

// grace is what a workload gets to end by itself. One whose lease has ended gets no more than its fencer
// would give it, because the schedulers wait no longer.
func (x *step) grace(id string) time.Duration {
	if w := x.Get(id); w != nil && w.memory.lapsed {
		return min(x.StopGrace, cmp.Or(x.fencer.grace, DefaultGrace))
	}
	return x.StopGrace
}

// carriedOut takes off what an order asked for once: a restart, a new instance, the removal of a former
// one. If the file does not take it, this process does not do it again; the next one may, once.
func (x *step) carriedOut(w *Workload, verb Verb) {
	in := w.Intent
	next := *in
	switch {
	case verb == RemoveFormer:
		next.PreviousTypes = in.PreviousTypes[1:]
	case in.Recreate || in.Restart && in.Running():
		next.Recreate, next.Restart = false, false
		w.Failure.Final, w.Failure.Next = false, time.Time{}
	default:
		w.Failure.Final, w.Failure.Next = false, time.Time{}
		return
	}
	next.removed()
	w.Intent = &next
	x.write(false).Intents = append(x.store.Intents, &next)
}

// failed counts a failed step and says when to try again.
func (x *step) failed(id string, in *Intent, class workload.Class, message string) {
	w := x.Get(id)
	if w == nil || w.Intent != in {
		x.turn(id) // the failure was that of a former order
		return
	}
	w = x.edit(w)
	w.Failure = x.Policy.after(w.Failure, in, class, message, x.ending(x.now), x.now)
	x.rest(id)
	if at := w.Failure.Next; !at.IsZero() {
		x.due(id, at)
	}
	if w.Task.Open() {
		w.Task = w.Task.Ended(message, true, x.now)
		x.putTask(w.Task)
	}
	x.publish(w)
}

// removeDone makes a tombstone final, once nothing of the workload is left.
func (x *step) removeDone(d Done, w *Workload) {
	id, in := d.Act.ID, d.Act.Intent
	if d.Failed != nil {
		if in != nil {
			x.failed(id, in, d.Failed.Class, d.Failed.Message)
			return
		}
		x.notice(true, "delete", "workload", id, "error", d.Failed.Message)
		x.rest(id)
		x.due(id, x.now.Add(x.Policy.Base))
		return
	}
	if w != nil && w.Intent != in {
		x.turn(id) // ordered anew meanwhile
		return
	}
	tomb := Tombstone{ID: id}
	if t := x.Tombstone(id); t != nil {
		tomb = *t
	}
	tomb.Done, tomb.DeletedAt = true, x.now
	var t *Task
	if w != nil {
		t = w.Task
	}
	if !t.Open() {
		t = x.openTask(id)
	}
	deleted := Deleted{ID: id, Orphan: d.Act.Orphan}
	if t != nil {
		x.putTask(t.Ended("", false, x.now))
		deleted.Orphan = ""
	}
	st := x.write(true)
	st.Forget, st.Workload = append(st.Forget, id), id
	x.setTombstone(x.reportGone(tomb))
	if w != nil {
		x.forget(w)
	}
	x.do(deleted)
	x.do(Settled{id})
	x.rest(id)
	x.rebind()
}

// storeFailed tries the work on an id again later.
func (x *step) storeFailed(id string) {
	if id == "" {
		return
	}
	x.rest(id)
	x.due(id, x.now.Add(x.Policy.Base))
}

// startTask marks a pending task as running. In memory only: a restart takes it up all the same.
func (x *step) startTask(id string) {
	w := x.Get(id)
	if w == nil || w.Task == nil || w.Task.Status != TaskPending {
		return
	}
	w = x.edit(w)
	w.Task = w.Task.Started(x.now)
	x.tasks.Set(w.Task.key(), w.Task)
	x.publish(w)
}

// finishTask ends a workload's task: the order is carried out, or needs nothing.
func (x *step) finishTask(w *Workload) {
	if !w.Task.Open() {
		return
	}
	bad, text := w.Failure.Attempts > 0 || w.Failure.Final, ""
	if bad {
		text = w.Failure.Message
	}
	if w.memory.waits {
		bad, text = true, waitsMessage
	}
	if w.memory.lapsed {
		bad, text = true, lapsedMessage
	}
	w.Task = w.Task.Ended(text, bad, x.now)
	x.putTask(w.Task)
	x.publish(w)
}

// consider brings a workload's memory up to date with what its engine shows, and decides.
func (x *step) consider(w *Workload) decision {
	w = x.edit(w)
	in, o := w.Intent, w.Observed
	seen := workload.Observed{State: workload.Absent}
	if o != nil {
		seen = *o
	}
	if seen.State == workload.Running {
		w.memory.waits = false // it survived the restart, and is adopted
	}
	d := in.desired(w.memory.asked, o)
	d.waits, d.lapsed = w.memory.waits, w.memory.lapsed
	if w.memory.over.message != "" && !w.memory.over.of(d.content, o) {
		w.memory.over, w.Failure = excess{}, Failure{} // another instance, or about to be
	}
	over := w.memory.over
	d.over = over.message != "" && d.running
	if d.over && !d.deleting {
		w.Failure = Failure{Class: workload.ResourceQuotaExceeded, Message: over.message, At: over.at, Attempts: 1, Final: true}
	} else {
		w.Failure = x.Policy.settle(d, seen, w.Failure, x.now)
	}
	return decide(d, in.observed(o), w.Failure, x.now)
}

// schedule asks for work when a decision wants it.
func (x *step) schedule(w *Workload, next decision) {
	switch next.do {
	case Nothing:
		// A workload that failed is forgiven once it has run for a while.
		if o := w.Observed; o != nil && o.State == workload.Running && w.Failure.Attempts > 0 && !o.StartedAt.IsZero() {
			at := o.StartedAt.Add(x.Policy.Stable)
			if soon := x.now.Add(time.Second); at.Before(soon) {
				at = soon
			}
			x.due(w.ID, at)
		}
	case Wait:
		x.due(w.ID, next.until)
	default:
		x.due(w.ID, x.now)
	}
}

// list is every workload: for loops that change them.
func (x *step) list() []*Workload {
	out := make([]*Workload, 0, x.workloads.Len())
	for w := range x.State.Workloads() {
		out = append(out, w)
	}
	return out
}
