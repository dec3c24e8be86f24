package core

import (
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Step applies one input. It returns the next State and the effects in the order in which to carry
// them out.
func Step(s State, in Input) (State, []Effect) {
	s.workloads, s.tombs, s.tasks, s.jobs = s.workloads.Copy(), s.tombs.Copy(), s.tasks.Copy(), s.jobs.Copy()
	s.engines = slices.Clone(s.engines)
	s.fencer.extra = slices.Clone(s.fencer.extra)
	x := &step{State: s, now: in.Now, clock: in.Clock, fresh: map[*Workload]bool{}}
	x.event(in.Event)
	x.cover()
	x.begin()
	x.arm()
	if x.writes {
		x.effects = append([]Effect{x.store}, x.effects...)
	}
	return x.State, x.effects
}

// step is the working state of one call of Step.
type step struct {
	State
	now     time.Time
	clock   time.Duration
	store   Store
	writes  bool
	effects []Effect
	fresh   map[*Workload]bool // workloads that were copied in this step and so may be changed
}

func (x *step) event(e Event) {
	switch e := e.(type) {
	case Start:
		x.start()
	case Apply:
		x.apply(e.Order)
	case Delete:
		x.delete(e)
	case Call:
		x.call(e)
	case Heard:
		x.heard(e)
	case Leased:
		x.leased(e.Until)
	case Drain:
		x.Draining = e.On
	case Engines:
		x.setEngines(e)
	case Probed:
		x.probed(e)
	case Listed:
		x.listed(e)
	case Looked:
		x.looked(e)
	case Done:
		x.done(e)
	case Wake:
		x.due(e.ID, x.now)
	case StoreFailed:
		x.storeFailed(e)
	case Progress:
		if w := x.Get(e.ID); w != nil && w.busy != e.Text {
			w = x.edit(w)
			w.busy = e.Text
			x.publish(w)
		}
	case Checked:
		if w := x.Get(e.ID); w != nil && w.watched != "" {
			w = x.edit(w)
			w.health, w.detail = e.State, e.Detail
			x.publish(w)
			if w.unhealthy() {
				x.due(w.ID, x.now)
			}
		}
	case Measured:
		x.measured(e)
	case FencerMet:
		x.fencerMet(e)
	case FencerDue:
		x.fencerDue()
	case FencerAnswered:
		x.fencerAnswered(e)
	case Record:
		x.putTask(e.Task)
	case Forget:
		x.forgetFailed(e.Intent)
	case Prune:
		x.prune()
	}
}

func (x *step) do(e Effect) { x.effects = append(x.effects, e) }

func (x *step) notice(warn bool, text string, args ...any) { x.do(Notice{warn, text, args}) }

// write returns the Store effect of this step. If required is set, the caller drops the whole step if
// that Store fails.
func (x *step) write(required bool) *Store {
	x.writes = true
	x.store.Required = x.store.Required || required
	return &x.store
}

// edit returns a copy of workload w, which this step may change. If w is a copy that this step made
// already, edit returns w.
func (x *step) edit(w *Workload) *Workload {
	if x.fresh[w] {
		return w
	}
	next := *w
	x.fresh[&next] = true
	x.workloads.Set(w.ID, &next)
	return &next
}

func (x *step) add(id string, kind workload.Kind) *Workload {
	w := &Workload{ID: id, Kind: kind}
	x.fresh[w] = true
	x.workloads.Set(id, w)
	return w
}

// forget removes a workload from the State and ends its health check.
func (x *step) forget(w *Workload) {
	x.workloads.Delete(w.ID)
	if w.watched != "" {
		x.do(Unwatch{w.ID})
	}
}

// putTask adds or replaces a task (an entry of the order history) in memory and in the state file. The write is
// optional, because a failed write of the history must not stop the work.
func (x *step) putTask(t *Task) {
	x.tasks.Set(t.key(), t)
	x.write(false).Tasks = append(x.store.Tasks, t)
	if !t.Open() && t.Action != ActionGC {
		x.do(TaskEnded{t})
	}
}

// supersede ends the open task of a workload, if any, and adds the task t, which replaces it.
func (x *step) supersede(open, t *Task) {
	if open.Open() && open != t {
		old := open.Ended("superseded by "+t.ID, false, x.now)
		x.tasks.Set(old.key(), old)
		x.write(true).Tasks = append(x.store.Tasks, old)
	}
	x.tasks.Set(t.key(), t)
	x.write(true).Tasks = append(x.store.Tasks, t)
}

// openTask returns the newest task of a workload if it is pending or running, or nil.
func (x *step) openTask(id string) *Task {
	for t := range x.TasksNewestFirst() {
		if t.Workload == id && t.Open() {
			return t
		}
	}
	return nil
}

func (x *step) setTombstone(t Tombstone) {
	x.tombs.Set(t.ID, &t)
	x.write(true).Tombstones = append(x.store.Tombstones, &t)
}

// reportGone gives a tombstone (the record of a deleted workload) a new version, so that the next heartbeat
// reports the workload as deleted.
func (x *step) reportGone(t Tombstone) Tombstone {
	x.Version++
	t.version = x.Version
	x.do(Changed{})
	return t
}

// start schedules the work on all restored workloads and on all deletes that are still pending.
func (x *step) start() {
	for w := range x.State.Workloads() {
		x.due(w.ID, x.now)
	}
	for t := range x.State.Tombstones() {
		if t.open() {
			x.due(t.ID, x.now)
		}
	}
}

// forgetFailed drops the failed order in, if it is still the newest order for its workload and the workload
// has no instance.
func (x *step) forgetFailed(in *Intent) {
	w := x.Get(in.ID)
	if w == nil || w.Intent != in || w.Observed != nil {
		return
	}
	x.write(true).Forget = append(x.store.Forget, in.ID)
	x.forget(w)
}

func (x *step) prune() {
	over := x.tasks.Len() - MaxTasks
	var tasks []*Task
	for t := range x.Tasks() {
		if over <= 0 && x.now.Sub(t.CreatedAt) <= maxTaskAge {
			break
		}
		if !t.Open() {
			tasks = append(tasks, t)
			over--
		}
	}
	var tombs []string
	var told []*Tombstone
	for t := range x.State.Tombstones() {
		if t.Done && t.Exit != nil && x.now.Sub(t.DeletedAt) > repeated {
			told = append(told, t)
		}
	}
	for _, t := range told { // drop the outputs of the jobs, up to 4 KiB each: heartbeats no longer report these deletes
		next := *t
		next.Exit = nil
		x.tombs.Set(t.ID, &next)
	}
	over = x.tombs.Len() - maxTombstones
	for t := range x.State.Tombstones() {
		if t.Done && (x.now.Sub(t.DeletedAt) > maxTombstoneAge || over > 0) {
			tombs = append(tombs, t.ID)
			over--
		}
	}
	if len(tasks)+len(tombs) == 0 {
		return
	}
	for _, t := range tasks {
		x.tasks.Delete(t.key())
	}
	for _, id := range tombs {
		x.tombs.Delete(id)
	}
	st := x.write(true)
	st.DropTasks, st.DropTombstones = tasks, tombs
}
