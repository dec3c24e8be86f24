package core

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// job is the pending or running work on one workload id.
type job struct {
	due   time.Time // time when the job is evaluated next; zero if no evaluation is due
	act   *Act      // action in progress
	cover *Act      // action that waits until the fencer confirms its workload
	until time.Time // deadline of cover
	turns int       // number of evaluations since the work began
}

func (j job) busy() bool { return j.act != nil || j.cover != nil }

// maxTurns limits the evaluations (turns) of one job, in case an engine reports wrong states. A workload
// usually needs three turns, and one more for each previous type whose instance must be removed.
const maxTurns = 16

// due schedules an evaluation of a workload id (a comparison of its order with its instance) for the time at.
// If an evaluation is scheduled already, the earlier of the two times is kept.
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

// rest ends the present work on a workload id. Work continues at the next scheduled evaluation.
func (x *step) rest(id string) {
	j, _ := x.jobs.Get(id)
	x.setJob(id, job{due: j.due})
}

// begin starts jobs that are due, those due longest first, until Concurrency jobs are in progress. A stack that
// only waits for one of its own services is not counted: a service that runs once, such as a migration, may
// take hours.
func (x *step) begin() {
	inWork := 0
	var ready []string
	dues := map[string]time.Time{}
	x.jobs.Scan(func(id string, j job) bool {
		switch {
		case j.busy():
			if w := x.Get(id); w == nil || !strings.HasPrefix(w.busy, workload.WaitingFor) {
				inWork++
			}
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

// arm asks for a Tick at the earliest due time of all jobs.
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

// turn compares the order and the instance of one workload id, and starts the next action.
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
		x.setJob(id, job{due: x.now.Add(x.Policy.Base)}) // setJob replaces the due time of the job, also an earlier one
		return
	}
	j.act, j.cover, j.until = nil, nil, time.Time{}
	x.jobs.Set(id, j) // kept although no action is in progress, because the job counts the evaluations
	if in != nil && in.Deleting {
		// Check the back-off of the delete here. After each failed delete the engine is listed, and that list
		// schedules this job at once.
		if next := x.evaluate(w); next.do == Wait {
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
		x.act(&Act{Verb: RemoveFormer, ID: id, Intent: in, Kinds: in.PreviousTypes[:1], Retention: retentionOf(in)})
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

// remove starts the removal of a workload's instances from the engine of its type and those of its previous
// types. If there is no order, it removes them from all engines.
func (x *step) remove(id string, in *Intent, tomb *Tombstone) {
	a := &Act{Verb: Remove, ID: id, Intent: in, Grace: x.grace(id)}
	if in != nil {
		a.Retention = retentionOf(in)
		a.Kinds = append([]workload.Kind{in.Type}, in.PreviousTypes...)
		w := x.Get(id)
		a.exit = w.memory.exit
		if o := w.Observed; in.Traits.Job && in.fits(in.observed(o)) {
			if a.Ends = !w.ended(); !a.Ends {
				a.exit = new(exitOf(o))
			}
		}
	} else {
		a.Retention = Retention{Keep: tomb.KeepVolumes, KeepShared: tomb.KeepShared, Retain: tomb.Retain}
		for _, e := range x.engines {
			a.Kinds = append(a.Kinds, e.Kind)
		}
		if w := x.Get(id); w != nil && w.Observed != nil {
			a.Orphan = w.Kind
		}
	}
	x.act(a)
}

func retentionOf(in *Intent) Retention {
	return Retention{Keep: in.KeepVolumes, KeepShared: in.KeepShared, Purge: in.Purge, Retain: in.Retain}
}

// done handles the end of an Act (a driver's action) and decides the next action on its workload.
func (x *step) done(d Done) {
	id := d.Act.ID
	j, ok := x.jobs.Get(id)
	if !ok || j.act != d.Act {
		return
	}
	j.act = nil
	x.jobs.Set(id, j)
	x.store.Workload = id // if a write of this step fails, StoreFailed ends the act and schedules the work again
	if d.Act.Leased {
		x.do(TellFencer{}) // no start is in progress now, so the agent can confirm the end of a lease to the fencer
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
			if d.Failed.Started && w.follows(in) {
				w = x.edit(w)
				x.carriedOut(w, d.Act.Verb)
				in = w.Intent
			}
			x.failed(id, in, d.Failed.Class, d.Failed.Message)
			return
		case w.follows(in):
			w = x.edit(w)
			x.carriedOut(w, d.Act.Verb)
		case w != nil && w.Intent != nil && w.Intent.Heal && d.Act.Verb.starts(): // a newer order arrived during the restart
			x.healed(x.edit(w))
		}
		x.turn(id)
	}
}

// lookDone stores the result of a Look (the inspection of one instance) and starts the next action on the
// workload.
func (x *step) lookDone(d Done, w *Workload) {
	id, in := d.Act.ID, d.Act.Intent
	if d.Failed != nil {
		// The state of the instance is unknown, so do nothing now. The task (the history entry of the order)
		// stays open.
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
		x.saw(w, d.Observed, d.Began)
	}
	next := x.evaluate(w)
	if next.do == Nothing || next.do == Wait {
		x.schedule(w, next)
		x.publish(w)
		if next.do == Nothing {
			// The order is carried out, so the instance is not started again if it ends from now on. This does not
			// hold while the state is Unknown: the instance may have ended before the order arrived. Nor does it hold
			// for an exclusive workload that waits after a restart of the agent.
			w.memory.asked = w.memory.asked && (w.memory.waits || w.Observed != nil && w.Observed.State == workload.Unknown)
			w.memory.fresh = w.memory.asked
			x.do(Settled{id})
		}
		x.finishTask(w)
		x.rest(id)
		return
	}
	if x.rebinding != "" { // while drivers for another cluster label are being made, no instance may be created
		x.publish(w)
		x.rest(id)
		return
	}
	w.memory.asked = false
	if next.heals {
		x.heal(w)
		in = w.Intent
	}
	x.publish(w)
	if x.Meta.Engine != x.Bound { // store the label, because from now on there may be instances with it
		x.Meta.Engine = x.Bound
		x.writeMeta()
	}
	a := &Act{
		Verb: next.do, ID: id, Intent: in, Kinds: []workload.Kind{in.Type}, Retention: retentionOf(in), Cluster: x.Bound,
		Grace: x.grace(id), Absent: w.Observed == nil, bound: d.Act.bound, Heals: next.heals,
		Repeats: next.heals || next.do == Ensure && !w.memory.fresh && !in.restarts(),
		Leased:  in.Leased() && in.Running() && next.do.starts(),
	}
	if a.Leased {
		x.actUnderLease(a)
	} else {
		x.act(a)
	}
	if a.Heals {
		x.publish(w)
	}
}

// grace returns the longest time that a workload may take to stop before it is killed. It is
// workload.OwnGrace, so that the specification decides. After the end of a lease it is the fencer's grace,
// because the schedulers wait no longer than that.
func (x *step) grace(id string) time.Duration {
	if w := x.Get(id); w != nil && w.memory.lapsed {
		return cmp.Or(x.fencer.grace, DefaultGrace)
	}
	return workload.OwnGrace
}

// carriedOut clears the one-time requests of an order after an action carried them out: a restart, the
// making of a new instance, the removal of a previous type. If the optional Store fails, the next process
// of the agent may carry them out a second time.
func (x *step) carriedOut(w *Workload, verb Verb) {
	in := w.Intent
	w.memory.fresh = w.memory.fresh && !verb.starts()
	next := *in
	switch {
	case verb == RemoveFormer:
		next.PreviousTypes = in.PreviousTypes[1:]
	case in.Recreate || (in.Restart || in.Refresh) && in.Running():
		// A started instance has the current files, so no refresh is pending. In a stack this holds only for the
		// services that were started.
		next.Recreate, next.Restart, next.Refresh = false, false, in.Refresh && verb == Ensure && in.Type == workload.Compose
		w.Failure.Final, w.Failure.Next = false, time.Time{}
	default:
		w.Failure.Final, w.Failure.Next = false, time.Time{}
		if in.Heal && verb.starts() {
			x.healed(w)
		}
		return
	}
	next.Heal = in.Heal && !verb.starts()
	next.removed()
	w.Intent = &next
	x.write(false).Intents = append(x.store.Intents, &next)
}

// failed records a failed action on a workload and schedules the next attempt.
func (x *step) failed(id string, in *Intent, class workload.Class, message string) {
	w := x.Get(id)
	if !w.follows(in) {
		x.turn(id) // the failed action belonged to a previous order, so evaluate the new one at once
		return
	}
	w = x.edit(w)
	w.Failure = x.Policy.after(w.Failure, in, class, message, x.now)
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

// exit returns how the instance that the action removed had ended, if it belonged to a job. It returns
// nil if that is not known.
func (d Done) exit() *Exit {
	if o := d.Observed; d.Act.Ends && o != nil && !o.FinishedAt.IsZero() {
		return new(exitOf(o))
	}
	return d.Act.exit
}

// removeDone completes a delete: it sets Done in the tombstone (the record of the delete) and drops the
// workload from the State.
func (x *step) removeDone(d Done, w *Workload) {
	id, in, exit := d.Act.ID, d.Act.Intent, d.exit()
	x.store.Exit = exit
	if d.Failed != nil {
		if in != nil {
			if t := x.Tombstone(id); t != nil && exit != nil { // the instance may be gone at the next attempt
				kept := *t
				kept.Exit = exit
				x.setTombstone(kept)
			}
			x.failed(id, in, d.Failed.Class, d.Failed.Message)
			return
		}
		x.notice(true, "delete", "workload", id, "error", d.Failed.Message)
		x.rest(id)
		x.due(id, x.now.Add(x.Policy.Base))
		return
	}
	if w != nil && w.Intent != in {
		x.turn(id) // a new order arrived while the workload was being removed
		return
	}
	tomb := Tombstone{ID: id}
	if t := x.Tombstone(id); t != nil {
		tomb = *t
	}
	tomb.Done, tomb.DeletedAt = true, x.now
	if exit != nil {
		tomb.Exit = exit
	}
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
	st.Forget = append(st.Forget, id)
	x.setTombstone(x.reportGone(tomb))
	if w != nil {
		x.forget(w)
	}
	x.freed()
	x.do(deleted)
	x.do(Settled{id})
	x.rest(id)
	x.rebind()
}

// storeFailed is called after an input's records could not be stored. It schedules the work on the workload
// again. If the input reported the removal of a job's instance, that instance is gone. storeFailed then keeps
// in the State how the instance had ended, so that the next attempt can report it.
func (x *step) storeFailed(e StoreFailed) {
	if e.ID == "" {
		return
	}
	if w := x.Get(e.ID); w != nil && e.Exit != nil {
		x.edit(w).memory.exit = e.Exit
	}
	x.rest(e.ID)
	x.due(e.ID, x.now.Add(x.Policy.Base))
}

// startTask marks a pending task (an entry of the order history) as running. It does so in memory only: a
// restarted agent treats pending and running tasks in the same way.
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

// finishTask marks the open task (the history entry of the order) as ended if the workload needs no further
// work.
func (x *step) finishTask(w *Workload) {
	if !w.Task.Open() {
		return
	}
	bad, text := w.Failure.Attempts > 0 || w.Failure.Final, ""
	if bad {
		text = w.Failure.Message
	}
	if w.memory.waits && !w.finished() {
		bad, text = true, waitsMessage
	}
	if w.memory.lapsed && !w.finished() {
		bad, text = true, lapsedMessage
	}
	w.Task = w.Task.Ended(text, bad, x.now)
	x.putTask(w.Task)
	x.publish(w)
}

// evaluate updates what the core remembers of a workload (memory and failures) from the observed instance. It
// returns the next action.
func (x *step) evaluate(w *Workload) decision {
	w = x.edit(w)
	in, o := w.Intent, w.Observed
	seen := workload.Observed{State: workload.Absent}
	if o != nil {
		seen = *o
	}
	if seen.State == workload.Running {
		if w.memory.waits && !w.Task.Open() {
			w.memory.asked, w.memory.fresh = false, false
		}
		w.memory.waits = false // the instance kept running while the agent restarted, so it is adopted
	}
	d := w.desired()
	d.waits, d.lapsed = w.memory.waits, w.memory.lapsed
	if w.memory.over.message != "" && !w.memory.over.of(d.content, o) {
		w.memory.over, w.Failure = excess{}, Failure{} // the workload has another instance or content now, so its earlier failures do not count
	}
	over := w.memory.over
	d.over = over.message != "" && d.running
	d.healing = in.healing()
	d.former = o != nil && !in.fits(in.observed(o))
	d.unhealthy, d.healAt = w.unhealthy() || d.healing, x.Policy.healAt(w)
	if d.lapsed && seen.State == workload.Running { // the instance still ran when the lease ended, so a later end is a stop because of the lease
		w.memory.lapsedAt = time.Time{}
	}
	switch {
	case d.over && !d.deleting:
		w.Failure = Failure{Class: workload.ResourceQuotaExceeded, Message: over.message, At: over.at, Attempts: 1, Final: true}
	case d.lapsed && d.running && (seen.FinishedAt.IsZero() || !seen.FinishedAt.Before(w.memory.lapsedAt)):
		// An instance that the fencer or the agent stopped at the end of the lease has not ended by itself.
		if mark := mark(&seen); !seen.FinishedAt.IsZero() && mark != w.Failure.Ended && mark != w.Failure.Stopped {
			w.Failure.Stopped, w.Failure.At = mark, x.now
		}
	case !x.InWork(w.ID) || x.looks(w.ID): // an instance that is being made has not ended by itself
		w.Failure = x.Policy.settle(d, seen, w.Failure, x.now)
	}
	return decide(d, in.observed(o), w.Failure, x.now)
}

// schedule sets when the workload is evaluated again, as its decision requires.
func (x *step) schedule(w *Workload, next decision) {
	switch next.do {
	case Nothing:
		// Evaluate the workload again once it has run long enough for its failures to be forgotten.
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

// list returns all workloads as a new slice, for loops that change workloads in the State.
func (x *step) list() []*Workload {
	out := make([]*Workload, 0, x.workloads.Len())
	for w := range x.State.Workloads() {
		out = append(out, w)
	}
	return out
}
