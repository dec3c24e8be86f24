package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

// job is the work on one workload id.
type job struct {
	due   time.Time // time of the next turn; zero: none
	act   *Act      // under way
	cover *Act      // waits for the fencer to confirm the lease
	until time.Time // deadline of cover
	turns int       // turns since the work began
}

func (j job) busy() bool { return j.act != nil || j.cover != nil }

// maxTurns limits the turns of one job, in case an engine reports wrong states. A workload needs
// three, and one more for each previous type.
const maxTurns = 16

// due schedules a turn for an id. The earliest time counts.
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

// begin starts due jobs, oldest due time first, up to Concurrency jobs.
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

// arm requests a Tick for the earliest due time.
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
		next = time.Time{} // the job can start only after another Act ends
	}
	if !next.Equal(x.armed) {
		x.armed = next
		x.do(Arm{next})
	}
}

// turn does the next step of the work on an id.
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
		x.setJob(id, job{due: x.now.Add(x.Policy.Base)}) // replaces any earlier due time
		return
	}
	j.act, j.cover, j.until = nil, nil, time.Time{}
	x.jobs.Set(id, j) // an idle job is kept too, because it counts the turns
	if in != nil && in.Deleting {
		// Check the back-off: a list of the engine makes the job due at once, and the delete itself
		// causes a list.
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
		case x.rebinding != "": // the drivers are being replaced; setEngines schedules the work again
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

// remove starts the removal of a workload from its engines, or from all engines if there is no
// order.
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

// done handles the end of an Act and continues the job.
func (x *step) done(d Done) {
	id := d.Act.ID
	j, ok := x.jobs.Get(id)
	if !ok || j.act != d.Act {
		return
	}
	j.act = nil
	x.jobs.Set(id, j)
	if d.Act.Guarded {
		x.do(TellFencer{}) // a lapse can be acknowledged when no start is under way
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

// lookDone applies the result of a Look and starts the next act.
func (x *step) lookDone(d Done, w *Workload) {
	id, in := d.Act.ID, d.Act.Intent
	if d.Failed != nil {
		// The state is unknown, so do nothing now; the task stays open.
		x.rest(id)
		x.due(id, x.now.Add(x.Policy.Base))
		return
	}
	if e, ok := x.Engine(in.Type); w == nil || w.Intent != in || !ok || e.Bound != d.Act.bound {
		x.turn(id) // the order or the driver has changed since the Look was started
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
	if x.rebinding != "" { // no instance may get the label that is being replaced
		x.publish(w)
		x.rest(id)
		return
	}
	w.memory.asked = false
	x.publish(w)
	if x.Meta.Engine != x.Bound { // from now on instances may have this label
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

// grace is how long a workload may take to stop before it is killed. After a lapse it is at most the
// fencer's grace, because the schedulers wait no longer than that.
func (x *step) grace(id string) time.Duration {
	if w := x.Get(id); w != nil && w.memory.lapsed {
		return min(x.StopGrace, cmp.Or(x.fencer.grace, DefaultGrace))
	}
	return x.StopGrace
}

// carriedOut clears the one-time requests of an order that were carried out: a restart, a new
// instance, the removal of a previous type. If the optional Store fails, a new process may carry
// them out a second time.
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

// failed counts a failed step and schedules the next attempt.
func (x *step) failed(id string, in *Intent, class workload.Class, message string) {
	w := x.Get(id)
	if w == nil || w.Intent != in {
		x.turn(id) // the failure belongs to a previous order
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

// removeDone completes a delete: it marks the tombstone as done and forgets the workload.
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
		x.turn(id) // a new order arrived meanwhile
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

// storeFailed schedules the work on an id again.
func (x *step) storeFailed(id string) {
	if id == "" {
		return
	}
	x.rest(id)
	x.due(id, x.now.Add(x.Policy.Base))
}

// startTask marks a pending task as running, in memory only. A restart of the agent resumes pending
// and running tasks alike.
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

// finishTask ends the open task of a workload that needs no further work.
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

// consider updates a workload's memory and failures from its observed state, and decides the next
// action.
func (x *step) consider(w *Workload) decision {
	w = x.edit(w)
	in, o := w.Intent, w.Observed
	seen := workload.Observed{State: workload.Absent}
	if o != nil {
		seen = *o
	}
	if seen.State == workload.Running {
		w.memory.waits = false // the instance kept running during the restart and is adopted
	}
	d := in.desired(w.memory.asked, o)
	d.waits, d.lapsed = w.memory.waits, w.memory.lapsed
	if w.memory.over.message != "" && !w.memory.over.of(d.content, o) {
		w.memory.over, w.Failure = excess{}, Failure{} // the instance or its content has changed
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

// schedule makes the job due as a decision requires.
func (x *step) schedule(w *Workload, next decision) {
	switch next.do {
	case Nothing:
		// Look again when the workload has run long enough for its failures to be forgotten.
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

// list returns all workloads. Loops that change the workloads use it.
func (x *step) list() []*Workload {
	out := make([]*Workload, 0, x.workloads.Len())
	for w := range x.State.Workloads() {
		out = append(out, w)
	}
	return out
}
