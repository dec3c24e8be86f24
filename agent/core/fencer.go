package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// fencer is what the agent knows about its fencer, a separate process, and about its lease. A leased workload
// (exclusive, with on_lost_lease: stop) runs only under a lease that the fencer has confirmed. When the lease
// ends, the fencer stops all leased workloads, and the agent starts each of them only on a newer order.
type fencer struct {
	lease     time.Duration    // end of the lease that the schedulers granted, as time since the machine started
	confirmed time.Duration    // end of the lease that the fencer confirmed, as time since the machine started
	covered   []lease.Workload // workloads that the fencer has confirmed: it will stop them at the end of the lease
	extra     []ahead
	lapses    uint64 // number of lapses (ends of a lease) that the agent has seen
	told      uint64 // number of lapses that the agent has acknowledged to the fencer: no start that began before them is in progress
	grace     time.Duration
	answered  time.Time // time of the fencer's last answer
	twice     time.Time // time of the last answer that said that a second fencer process runs
	alive     bool      // the node is registered as self_fencing
	problem   string
	lacks     []workload.Kind // workload kinds that this agent runs and the fencer cannot stop
}

// ahead is a workload that the agent already reports to the fencer as leased (to be stopped when the lease
// ends), although it has not accepted the order yet.
type ahead struct {
	workload lease.Workload
	until    time.Time
}

const (
	// fencerAway is how long the fencer may stay silent, or report that no second fencer runs, before the node
	// registers that it is not self-fencing: that it may fail to stop its leased workloads when the lease
	// ends.
	fencerAway = 10 * time.Second
	// coverWait is how long the start of a workload waits until the fencer confirms that it will stop the
	// workload when the lease ends.
	coverWait = 2 * time.Second
	// aheadFor is how long the agent reports a workload to the fencer as leased (to be stopped when the lease
	// ends) although its order is not accepted yet.
	aheadFor = 10 * time.Second
	// DefaultGrace is how long a fencer waits for a workload to stop before it kills the workload.
	DefaultGrace = 10 * time.Second
)

func leaseWorkload(in *Intent) lease.Workload {
	return lease.Workload{Kind: in.Type, ID: workload.ID(in.ID)}
}

func (x *step) leased(until time.Duration) {
	x.fencer.lease = max(x.fencer.lease, until)
	x.do(TellFencer{})
}

// leasedWorkloads lists the workloads that the fencer must stop when the lease ends.
func (x *step) leasedWorkloads() []lease.Workload {
	var out []lease.Workload
	for w := range x.State.Workloads() {
		in := w.Intent
		if in == nil || !in.Leased() || w.memory.lapsed {
			continue
		}
		// After a restart of the agent, a workload that waits for a new order may still run. The fencer must
		// stop it at the end of the lease. So it is listed, unless an observation shows that it does not run.
		runs := w.Observed != nil && (w.Observed.State == workload.Running || w.Observed.PartlyRunning)
		if !w.memory.waits || runs || w.Seen.IsZero() && slices.Contains(x.fencer.covered, leaseWorkload(in)) {
			out = append(out, leaseWorkload(in))
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

// fencerMet handles the first answer of the fencer after a start of the agent. It decides which leased
// workloads (stopped when the lease ends) that still run from before the start must be stopped now.
func (x *step) fencerMet(e FencerMet) {
	st, f := e.Status, &x.fencer
	f.lapses, f.told, f.grace = st.Lapses, st.Lapses, DefaultGrace
	if e.Problem == "" {
		f.confirmed, f.covered = st.Deadline, st.Leased
		x.hear(st)
	} else {
		f.problem = e.Problem
		x.notice(true, "the fencer does not answer: leased workloads stay stopped", "error", e.Problem)
	}
	for _, w := range x.list() {
		// If this node had no lease for some time, the schedulers may have placed the workload on another
		// node. So the workload must be stopped here.
		if in := w.Intent; in != nil && in.Leased() &&
			(e.Problem != "" || st.Lapsed || x.clock >= st.Deadline || !slices.Contains(st.Leased, leaseWorkload(in))) {
			w = x.edit(w)
			w.memory.lapsed = true
			if e.Problem == "" && (st.Lapsed || x.clock >= st.Deadline) {
				w.memory.lapsedAt = x.wall(st.Deadline)
			}
		}
	}
}

// starting reports whether any leased workload (one that is stopped when the lease ends) is being started now.
func (x *step) starting() (found bool) {
	x.jobs.Scan(func(_ string, j job) bool {
		found = j.act != nil && j.act.Leased
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
		Instance: x.Meta.InstanceID, Cluster: x.Bound, Deadline: f.lease, Lapses: f.told, Leased: x.leasedWorkloads(),
	}})
}

func (x *step) fencerAnswered(e FencerAnswered) {
	f := &x.fencer
	was, problem := f.alive, e.Problem
	if e.Problem != "" {
		f.alive = f.alive && x.now.Sub(f.answered) < fencerAway
	} else {
		problem = x.hear(e.Status)
		f.confirmed, f.covered = e.Status.Deadline, e.Status.Leased
		if e.Status.Lapses > f.lapses {
			f.lapses = e.Status.Lapses
			x.lapse(e.Status.Deadline, "the fencer has stopped the leased workloads")
			if !x.starting() {
				x.do(TellFencer{}) // the fencer waits for the agent to acknowledge the end of the lease
			}
		}
	}
	if x.clock >= f.confirmed && len(e.Sent.Leased) > 0 {
		x.lapse(f.confirmed, "no fencer has confirmed a later end of the lease")
	}
	if problem != f.problem {
		if problem != "" {
			x.notice(true, "the node is not self-fencing, or its fencer does not answer", "error", problem)
		} else {
			x.notice(false, "the fencer answers", "grace", f.grace, "second", e.Status.Second)
		}
		f.problem = problem
	}
	if f.alive != was {
		x.do(Register{})
	}
}

// hear stores an answer of the fencer in the State. It returns the reason why the node is not self-fencing
// (sure to stop its leased workloads when the lease ends), or "" if it is. Self-fencing requires two fencers
// that can stop every kind of workload that this agent runs.
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
	return fmt.Sprintf("the settings of the fencer process leave out %s, which this agent runs: the node is not registered as self-fencing", f.lacks)
}

func (f *fencer) heard(st lease.Status, now time.Time) {
	f.answered = now
	if st.Second {
		f.twice = now
	}
	f.alive = !f.twice.IsZero() && now.Sub(f.twice) < fencerAway
}

// wall converts a time since the machine started, which is not in the future, to the wall clock.
func (x *step) wall(at time.Duration) time.Time { return x.now.Add(min(at, x.clock) - x.clock) }

// lapse is called when the lease has ended at the time end. It marks all leased workloads (those with on_lost_lease: stop)
// as lapsed: it cancels their starts, and only a newer order starts them again. A workload that has ended by itself
// before keeps its report, with its exit.
func (x *step) lapse(end time.Duration, why string) {
	for _, w := range x.list() {
		if w.Intent == nil || !w.Intent.Leased() || w.memory.lapsed {
			continue
		}
		w = x.edit(w)
		w.memory.lapsed, w.memory.lapsedAt = true, x.wall(end)
		if !w.finished() {
			x.notice(true, "the workload may not run any more, because the lease has ended", "workload", w.ID, "reason", why)
		}
		x.publish(w)
		x.due(w.ID, x.now)
	}
	x.fencer.extra = nil
	x.jobs.Scan(func(_ string, j job) bool {
		if j.act != nil && j.act.Leased {
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

// noLease returns the reason why the fencer cannot confirm that it will stop any workload: no fencer is
// configured, or the node has no lease. It returns "" if the fencer can confirm workloads.
func (x *step) noLease() string {
	switch {
	case !x.Settings.Fencer:
		return "on_lost_lease: stop needs a fencer, and PERSYS_FENCER is off"
	case x.clock >= max(x.fencer.lease, x.fencer.confirmed):
		return "the node has no lease from the schedulers, and this workload runs only under one"
	}
	return ""
}

func (x *step) unconfirmed() string {
	return "the fencer has not confirmed this workload: " + x.fencer.problem
}

// coverOrder reports whether an order can be accepted. The schedulers rely on the fencer to stop the workload
// of an accepted order. If the fencer has not confirmed the workload yet, coverOrder answers the sender, who
// retries after the fencer's next answer.
func (x *step) coverOrder(w *Workload, next *Intent, newer bool) bool {
	if !next.Leased() || !next.Running() {
		return true
	}
	if w != nil && w.Intent != nil && w.Waiting() && !newer {
		return true // the order is accepted, but the workload is not started
	}
	if x.isCovered(leaseWorkload(next)) {
		return true
	}
	if why := x.noLease(); why != "" {
		x.answer(Answer{Unavailable: fencerError(why)})
		return false
	}
	f := &x.fencer
	same := func(a ahead) bool { return a.workload == leaseWorkload(next) }
	first := !slices.ContainsFunc(f.extra, same)
	f.extra = slices.DeleteFunc(f.extra, same)
	f.extra = append(f.extra, ahead{leaseWorkload(next), x.now.Add(aheadFor)})
	if first { // send a message at the first attempt of an order only; at repeated attempts the periodic message is soon enough
		x.do(TellFencer{})
	}
	x.answer(Answer{Unavailable: fencerError(x.unconfirmed()), Retry: true})
	return false
}

// fencerError prefixes an error of the fencer in the way in which errors of drivers are prefixed.
func fencerError(why string) string {
	return "fencer: " + why + " (" + string(workload.RuntimeUnhealthy) + ")"
}

// actUnderLease holds an action back until the fencer has confirmed that it will stop the workload when the
// lease ends. If the lease has ended, the action fails.
func (x *step) actUnderLease(a *Act) {
	if w := x.Get(a.ID); w.memory.lapsed {
		x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, fencerError("the lease has ended"))
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

// cover handles the actions that are held back until the fencer confirms that it will stop their workloads. It
// starts those whose workloads are confirmed, and fails those for which there is no lease or that have waited
// too long.
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
		case x.isCovered(leaseWorkload(a.Intent)):
			x.act(a)
		case why != "":
			x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, fencerError(why))
		case !x.now.Before(j.until):
			x.failed(a.ID, a.Intent, workload.RuntimeUnhealthy, fencerError(x.unconfirmed()))
		}
	}
}
