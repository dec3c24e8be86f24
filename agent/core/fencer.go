package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// fencer is the agent's view of its fencer and its lease. A guarded workload runs only under a lease
// that the fencer has confirmed. When the lease ends, the fencer stops all guarded workloads, and
// the agent starts each of them only on a newer order.
type fencer struct {
	lease     time.Duration    // end of the lease that the schedulers granted
	confirmed time.Duration    // end of the lease that the fencer confirmed
	covered   []lease.Workload // workloads that the fencer confirmed
	extra     []ahead
	lapses    uint64 // number of lapses that the agent has seen
	told      uint64 // lapses acknowledged to the fencer: no start from before them is under way
	grace     time.Duration
	answered  time.Time // time of the last answer
	twice     time.Time // time of the last answer that reported a second fencer
	alive     bool      // registered as self_fencing
	problem   string
	lacks     []workload.Kind // kinds that this agent runs and the fencer cannot stop
}

// ahead is an order that is guarded before it is accepted.
type ahead struct {
	workload lease.Workload
	until    time.Time
}

const (
	// fencerAway is how long the fencer may not answer, or report no second fencer, before the node
	// is registered as not self-fencing.
	fencerAway = 10 * time.Second
	// coverWait is how long a start waits for the fencer's confirmation.
	coverWait = 2 * time.Second
	// aheadFor is how long a workload stays guarded while its order is not accepted yet.
	aheadFor = 10 * time.Second
	// DefaultGrace is how long a fencer lets a workload stop before it kills it.
	DefaultGrace = 10 * time.Second
)

func guarded(in *Intent) lease.Workload {
	return lease.Workload{Kind: in.Type, ID: workload.ID(in.ID)}
}

func (x *step) leased(until time.Duration) {
	x.fencer.lease = max(x.fencer.lease, until)
	x.do(TellFencer{})
}

// guards lists the workloads that may run under the lease.
func (x *step) guards() []lease.Workload {
	var out []lease.Workload
	for w := range x.State.Workloads() {
		in := w.Intent
		if in == nil || !in.Guarded() || w.memory.lapsed {
			continue
		}
		// A workload that waits after a restart is guarded while it runs or may run.
		runs := w.Observed != nil && w.Observed.State == workload.Running
		if !w.memory.waits || runs || w.Seen.IsZero() && slices.Contains(x.fencer.covered, guarded(in)) {
			out = append(out, guarded(in))
		}
	}
	if x.clock >= x.fencer.lease {
		x.fencer.extra = nil
	}
	x.fencer.extra = slices.DeleteFunc(x.fencer.extra, func(a ahead) bool { return x.now.After(a.until) })
	for _, a := range x.fencer.extra {
		out = append(out, a.workload)
	}
	return lease.Sorted(out)
}

// fencerMet applies the fencer's first answer to the workloads that a previous process left running.
func (x *step) fencerMet(e FencerMet) {
	st, f := e.Status, &x.fencer
	f.lapses, f.told, f.grace = st.Lapses, st.Lapses, DefaultGrace
	if e.Problem == "" {
		f.confirmed, f.covered = st.Deadline, st.Guarded
		x.hear(st)
	} else {
		f.problem = e.Problem
		x.notice(true, "the guard does not answer: what is to be stopped with the lease stays stopped", "error", e.Problem)
	}
	for _, w := range x.list() {
		// If the lease did not continue without a gap, the workload must be stopped.
		if in := w.Intent; in != nil && in.Guarded() &&
			(e.Problem != "" || st.Lapsed || x.clock >= st.Deadline || !slices.Contains(st.Guarded, guarded(in))) {
			x.edit(w).memory.lapsed = true
		}
	}
}

// starting reports whether a guarded workload is being started.
func (x *step) starting() (found bool) {
	x.jobs.Scan(func(_ string, j job) bool {
		found = j.act != nil && j.act.Guarded
		return !found
	})
	return found
}

func (x *step) fencerDue() {
	f := &x.fencer
	if !x.starting() {
		f.told = f.lapses
	}
	x.do(Renew{lease.Renewal{
		Instance: x.Meta.InstanceID, Cluster: x.Bound, Deadline: f.lease, Lapses: f.told, Guarded: x.guards(),
	}})
}

func (x *step) fencerAnswered(e FencerAnswered) {
	f := &x.fencer
	was, problem := f.alive, e.Problem
	if e.Problem != "" {
		f.alive = f.alive && x.now.Sub(f.answered) < fencerAway
	} else {
		problem = x.hear(e.Status)
		f.confirmed, f.covered = e.Status.Deadline, e.Status.Guarded
		if e.Status.Lapses > f.lapses {
			f.lapses = e.Status.Lapses
			x.lapse("the guard has stopped it")
			if !x.starting() {
				x.do(TellFencer{}) // the fencer waits for the acknowledgement of the lapse
			}
		}
	}
	if x.clock >= f.confirmed && len(e.Sent.Guarded) > 0 {
		x.lapse("no guard has confirmed a later end of the lease")
	}
	if problem != f.problem {
		if problem != "" {
			x.notice(true, "guard", "error", problem)
		} else {
			x.notice(false, "the guard answers", "grace", f.grace, "second", e.Status.Second)
		}
		f.problem = problem
	}
	if f.alive != was {
		x.do(Register{})
	}
}

// hear records an answer of the fencer and returns the problem with the fencer, if any. Self-fencing
// requires two fencers that can stop every kind of workload that this agent runs.
func (x *step) hear(st lease.Status) (problem string) {
	f := &x.fencer
	f.grace = st.Grace
	f.heard(st, x.now)
	var kinds []workload.Kind
	for _, e := range x.engines {
		kinds = append(kinds, e.Kind)
	}
	if f.lacks = st.Lacks(kinds); len(f.lacks) == 0 {
		return ""
	}
	f.alive = false
	return fmt.Sprintf("the guard's own settings leave out %s, which this agent runs: the node counts as one without a guard", f.lacks)
}

func (f *fencer) heard(st lease.Status, now time.Time) {
	f.answered = now
	if st.Second {
		f.twice = now
	}
	f.alive = !f.twice.IsZero() && now.Sub(f.twice) < fencerAway
}

// lapse marks all guarded workloads as lapsed: it cancels their starts, and only a newer order
// starts them again.
func (x *step) lapse(why string) {
	for _, w := range x.list() {
		if w.Intent == nil || !w.Intent.Guarded() || w.memory.lapsed {
			continue
		}
		w = x.edit(w)
		w.memory.lapsed = true
		x.notice(true, "the lease has ended, and with it this workload", "workload", w.ID, "reason", why)
		x.publish(w)
		x.due(w.ID, x.now)
	}
	x.fencer.extra = nil
	x.jobs.Scan(func(_ string, j job) bool {
		if j.act != nil && j.act.Guarded {
			x.do(Cancel{Act: j.act})
		}
		return true
	})
}

// isCovered reports whether the fencer will stop a workload when the current lease ends.
func (x *step) isCovered(w lease.Workload) bool {
	f := &x.fencer
	return slices.Contains(f.covered, w) && x.clock < f.confirmed && f.told == f.lapses
}

// noLease returns the reason why no workload can be covered now, independent of the fencer's
// answers. It is empty if the fencer may confirm workloads.
func (x *step) noLease() string {
	switch {
	case !x.Settings.Fencer:
		return "on_lost_lease: stop needs a guard, and PERSYS_GUARD is off"
	case x.clock >= max(x.fencer.lease, x.fencer.confirmed):
		return "there is no lease to run it under"
	}
	return ""
}

func (x *step) unconfirmed() string {
	return "the guard has not confirmed this workload: " + x.fencer.problem
}

// coverOrder reports whether an order can be accepted: an accepted order must be guarded, because
// the schedulers rely on it. If the workload is not covered yet, coverOrder answers the sender, who
// retries after the fencer's next answer.
func (x *step) coverOrder(w *Workload, next *Intent, newer bool) bool {
	if !next.Guarded() || !next.Running() {
		return true
	}
	if w != nil && w.Intent != nil && w.Waiting() && !newer {
		return true // the order is accepted, but the workload is not started
	}
	if x.isCovered(guarded(next)) {
		return true
	}
	if why := x.noLease(); why != "" {
		x.answer(Answer{Unavailable: guardError(why)})
		return false
	}
	f := &x.fencer
	same := func(a ahead) bool { return a.workload == guarded(next) }
	first := !slices.ContainsFunc(f.extra, same)
	f.extra = slices.DeleteFunc(f.extra, same)
	f.extra = append(f.extra, ahead{guarded(next), x.now.Add(aheadFor)})
	if first { // a repeated order waits for the next periodic message to the fencer
		x.do(TellFencer{})
	}
	x.answer(Answer{Unavailable: guardError(x.unconfirmed()), Retry: true})
	return false
}

// guardError formats a fencer error like the error of a driver.
func guardError(why string) string {
	return "guard: " + why + " (" + string(workload.RuntimeUnhealthy) + ")"
}

// actUnderLease holds an act until the fencer has confirmed its workload. It fails the act if the
// lease has ended.
func (x *step) actUnderLease(a *Act) {
	if w := x.Get(a.ID); w.memory.lapsed {
		x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, guardError("the lease has ended"))
		return
	}
	j, _ := x.jobs.Get(a.ID)
	j.act, j.cover = nil, a
	if j.until.IsZero() {
		j.until = x.now.Add(coverWait)
	}
	x.jobs.Set(a.ID, j)
	x.do(TellFencer{})
}

// cover continues or fails the acts that wait for the fencer.
func (x *step) cover() {
	var waiting []job
	x.jobs.Scan(func(_ string, j job) bool {
		if j.cover != nil {
			waiting = append(waiting, j)
		}
		return true
	})
	for _, j := range waiting {
		a := j.cover
		w := x.Get(a.ID)
		switch why := x.noLease(); {
		case w == nil || w.Intent != a.Intent || w.memory.lapsed || x.rebinding != "":
			x.turn(a.ID)
		case x.isCovered(guarded(a.Intent)):
			x.act(a)
		case why != "":
			x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, guardError(why))
		case !x.now.Before(j.until):
			x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, guardError(x.unconfirmed()))
		}
	}
}
