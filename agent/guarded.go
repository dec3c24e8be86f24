package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/fencer/lease"
)

// This file is the agent's side of the lease fence (agent/DESIGN.md; package fencer). What is
// guarded runs only under a lease that the guard has confirmed. When one ends, the guard stops what
// it guards; the agent then starts it again by a newer order only.

// Guard is who stops workloads when the lease ends; *fencer.Client is one.
type Guard interface {
	Renew(context.Context, lease.Renewal) (lease.Status, error)
	Close()
}

// guarded: it is to be stopped when the lease ends.
func (in *intent) guarded() bool { return in.Exclusive && in.OnLostLease == "stop" }

// fenceState is what the agent knows of its guard; mu guards it.
type fenceState struct {
	lease    time.Duration // end of the lease by fencer.Now, as the schedulers granted it
	deadline time.Duration // end that the guard has confirmed
	covered  []lease.Workload
	extra    map[lease.Workload]time.Time // to be guarded though no intent says so yet, until then
	lapses   uint64                       // seen
	confirm  uint64                       // told to the guard: nothing of before is under way
	grace    time.Duration
	answered time.Time // when the guard last did
	twice    time.Time // when it last said that there is a second one
	alive    bool      // registered as self_fencing
	problem  string
	lacks    []driver.Kind                 // what runs here, and it cannot stop
	busy     map[string]context.CancelFunc // guarded steps under way, by workload
}

const (
	// feedEvery is how often the guard is told something, changed or not.
	feedEvery = 500 * time.Millisecond
	// guardAway is how long a guard may be silent, or without a second, before the node is registered
	// without one.
	guardAway = 10 * time.Second
	// coverWait is how long an order or a start waits for the guard's word.
	coverWait = 2 * time.Second
	// extraFor is how long an order that is being taken is guarded ahead of its intent.
	extraFor = 10 * time.Second
)

// leased notes a lease that the schedulers granted, counted from when it was asked for.
func (a *Agent) leased(end time.Duration) {
	if a.cfg.Guard == nil {
		return
	}
	a.mu.Lock()
	a.fence.lease = max(a.fence.lease, end)
	a.mu.Unlock()
	a.feedNow()
}

func (a *Agent) feedNow() { nudge(a.feed) }

// guardedList is what may run under the lease. It is called with mu held.
func (a *Agent) guardedList(now time.Time) []lease.Workload {
	var out []lease.Workload
	for _, w := range a.workloads {
		in := w.intent
		if in == nil || !in.guarded() || w.lapsed {
			continue
		}
		one := lease.Workload{Kind: in.Type, ID: driver.ID(in.ID)}
		// One that waits after a restart is guarded while it runs, or may.
		if !w.waits || w.observed != nil && w.observed.State == driver.Running || w.seen.IsZero() && slices.Contains(a.fence.covered, one) {
			out = append(out, one)
		}
	}
	leased := fencer.Now() < a.fence.lease
	for w, until := range a.fence.extra {
		if now.After(until) || !leased {
			delete(a.fence.extra, w)
		} else {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(x, y lease.Workload) int {
		return strings.Compare(string(x.Kind)+"/"+string(x.ID), string(y.Kind)+"/"+string(y.ID))
	})
	return slices.Compact(out)
}

// meetGuard asks the guard, before anything is done, what has become of what a former process of this
// agent left running.
func (a *Agent) meetGuard(ctx context.Context) {
	defer close(a.met)
	var st lease.Status
	err := errors.New("PERSYS_GUARD is off")
	a.mu.Lock()
	in := lease.Renewal{Agent: a.process, Boot: a.bootID, Instance: a.meta.InstanceID, Ask: true}
	a.mu.Unlock()
	if a.cfg.Guard != nil {
		st, err = a.cfg.Guard.Renew(ctx, in)
	}
	now := fencer.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fence.lapses, a.fence.confirm = st.Lapses, st.Lapses
	if err == nil {
		a.fence.deadline, a.fence.covered, a.fence.grace = st.Deadline, st.Guarded, st.Grace
		a.hear(st)
	}
	for _, w := range a.workloads {
		in := w.intent
		if in == nil || !in.guarded() {
			continue
		}
		// Anything but a lease that goes on: it is stopped, should it run.
		if err != nil || st.Lapsed || now >= st.Deadline || !slices.Contains(st.Guarded, lease.Workload{Kind: in.Type, ID: driver.ID(in.ID)}) {
			w.lapsed = true
		}
	}
	if err != nil {
		a.fence.problem = err.Error()
		a.log.Warn("the guard does not answer: what is to be stopped with the lease stays stopped", "error", err)
	}
}

// mindGuard keeps the guard informed, until ctx ends.
func (a *Agent) mindGuard(ctx context.Context) error {
	if a.cfg.Guard == nil {
		return nil
	}
	defer a.cfg.Guard.Close()
	select {
	case <-a.met:
	default:
		a.meetGuard(ctx)
	}
	tick := time.NewTicker(feedEvery)
	defer tick.Stop()
	for {
		again := a.tellGuard(ctx)
		if again && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.feed:
		}
	}
}

// heard notes an answer. One guard alone is not what the schedulers are promised.
func (f *fenceState) heard(st lease.Status, now time.Time) {
	f.answered = now
	if st.Second {
		f.twice = now
	}
	f.alive = !f.twice.IsZero() && now.Sub(f.twice) < guardAway
}

// hear notes an answer, and says what is amiss with the guard: one whose own settings leave out a kind that runs
// here is none to the schedulers. It is called with mu held.
func (a *Agent) hear(st lease.Status) (problem string) {
	f := &a.fence
	f.heard(st, time.Now())
	var kinds []driver.Kind
	for _, e := range inOrder(a.engines) {
		kinds = append(kinds, e.drv.Kind())
	}
	if f.lacks = st.Lacks(kinds); len(f.lacks) == 0 {
		return ""
	}
	f.alive = false
	return fmt.Sprintf("the guard's own settings leave out %s, which this agent runs: the node counts as one without a guard", f.lacks)
}

// tellGuard has one exchange with the guard. It reports whether another one is due at once.
func (a *Agent) tellGuard(ctx context.Context) (again bool) {
	a.mu.Lock()
	f := &a.fence
	if len(f.busy) == 0 {
		f.confirm = f.lapses
	}
	in := lease.Renewal{
		Agent: a.process, Boot: a.bootID, Instance: a.meta.InstanceID, Cluster: a.bound, Deadline: f.lease, Lapses: f.confirm, Guarded: a.guardedList(time.Now()),
	}
	a.mu.Unlock()
	st, err := a.cfg.Guard.Renew(ctx, in)
	if ctx.Err() != nil {
		return false
	}
	now := fencer.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	was := f.alive
	var problem string
	if err != nil {
		problem = err.Error()
		f.alive = f.alive && time.Since(f.answered) < guardAway
	} else {
		problem = a.hear(st)
		f.grace = st.Grace
		f.deadline, f.covered = st.Deadline, st.Guarded
		if st.Lapses > f.lapses {
			f.lapses = st.Lapses
			a.lapse("the guard has stopped it")
			again = len(f.busy) == 0
		}
	}
	if now >= f.deadline && len(in.Guarded) > 0 {
		// The guard is away, or about to say so.
		a.lapse("no guard has confirmed a later end of the lease")
	}
	if problem != f.problem {
		if problem != "" {
			a.log.Warn("guard", "error", problem)
		} else {
			a.log.Info("the guard answers", "grace", f.grace, "second", st.Second)
		}
		f.problem = problem
	}
	if f.alive != was {
		a.facts.Store(true)
		a.signal()
	}
	close(a.told)
	a.told = make(chan struct{})
	return again
}

// lapse ends everything that is guarded: what is being started is broken off, and nothing is started
// before a newer order says so. It is called with mu held.
func (a *Agent) lapse(why string) {
	now := time.Now()
	for _, w := range a.workloads {
		if w.intent == nil || !w.intent.guarded() || w.lapsed {
			continue
		}
		w.lapsed = true
		a.log.Warn("the lease has ended, and with it this workload", "workload", w.id, "reason", why)
		a.publish(w, now)
		a.queue.add(w.id, now)
	}
	clear(a.fence.extra)
	for _, cancel := range a.fence.busy {
		cancel()
	}
}

// holdsGuarded reports whether the file names something that is guarded.
func (a *Agent) holdsGuarded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workloads {
		if w.intent != nil && w.intent.guarded() {
			return true
		}
	}
	return false
}

// stopGrace is what a workload gets to end by itself. One that lapsed gets what its guard would give
// it: the schedulers wait no longer.
func (a *Agent) stopGrace(id string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workloads[id]
	if w == nil || !w.lapsed {
		return a.cfg.StopGrace
	}
	grace := a.fence.grace
	if grace == 0 {
		grace = DefaultGuardGrace
	}
	return min(a.cfg.StopGrace, grace)
}

// DefaultGuardGrace is what a guard gives a workload to end by itself.
const DefaultGuardGrace = 10 * time.Second

// selfFencing is what is registered of the guard. It is called with mu held.
func (a *Agent) selfFencing() (bool, uint32) {
	if a.cfg.Guard == nil || !a.fence.alive {
		return false, 0
	}
	return true, uint32(math.Ceil(lease.Bound(a.fence.grace).Seconds()))
}

// cover waits until the guard has confirmed that it will stop a workload at the end of a lease that
// goes on. extra guards it ahead of its intent.
func (a *Agent) cover(ctx context.Context, kind driver.Kind, id string, extra bool) error {
	if a.cfg.Guard == nil {
		return driver.Errorf(driver.RuntimeUnhealthy, "guard", "on_lost_lease: stop needs a guard, and PERSYS_GUARD is off")
	}
	want := lease.Workload{Kind: kind, ID: driver.ID(id)}
	limited, cancel := context.WithTimeout(ctx, coverWait)
	defer cancel()
	for first := true; ; first = false {
		a.mu.Lock()
		if extra {
			if a.fence.extra == nil {
				a.fence.extra = map[lease.Workload]time.Time{}
			}
			a.fence.extra[want] = time.Now().Add(extraFor)
		}
		f := &a.fence
		ok := slices.Contains(f.covered, want) && fencer.Now() < f.deadline && f.confirm == f.lapses
		told, problem := a.told, f.problem
		leased := fencer.Now() < max(f.lease, f.deadline)
		a.mu.Unlock()
		if ok {
			return nil
		}
		if !leased {
			return driver.Errorf(driver.RuntimeUnhealthy, "guard", "there is no lease to run it under")
		}
		if first {
			a.feedNow()
		}
		select {
		case <-told:
		case <-limited.Done():
			return driver.Errorf(driver.RuntimeUnhealthy, "guard", "the guard has not confirmed this workload: %s", problem)
		}
	}
}

// coverOrder makes sure that an order which is about to be accepted is guarded: once it is, the
// schedulers rely on it.
func (a *Agent) coverOrder(ctx context.Context, req *agentv1.ApplyWorkloadRequest) error {
	if !req.GetExclusive() || req.GetOnLostLease() != "stop" || a.cfg.Guard == nil ||
		req.GetDesiredState() == agentv1.DesiredState_DESIRED_STATE_STOPPED {
		return nil
	}
	kind, no := a.checkApply(req)
	if no != nil {
		return nil // refused below, with the reason
	}
	a.mu.Lock()
	w := a.workloads[req.GetId()]
	stays := w != nil && w.intent != nil && (w.lapsed || w.waits) && !w.intent.Generation.Less(generationFrom(req.GetGeneration()))
	a.mu.Unlock()
	if stays {
		return nil // it is accepted, and not started
	}
	if err := a.cover(ctx, kind, req.GetId(), true); err != nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("workload %q: %v", req.GetId(), err))
	}
	return nil
}

// underLease runs a step that may start something guarded. It does not begin without a lease, and is
// broken off when that ends.
func (a *Agent) underLease(ctx context.Context, in *intent, step func(context.Context) error) error {
	if err := a.cover(ctx, in.Type, in.ID, false); err != nil {
		return err
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	w := a.workloads[in.ID]
	if w == nil || w.lapsed || fencer.Now() >= a.fence.deadline {
		a.mu.Unlock()
		return driver.Errorf(driver.RuntimeUnhealthy, "guard", "the lease has ended")
	}
	if a.fence.busy == nil {
		a.fence.busy = map[string]context.CancelFunc{}
	}
	a.fence.busy[in.ID] = cancel
	a.mu.Unlock()
	err := step(within)
	a.mu.Lock()
	delete(a.fence.busy, in.ID)
	a.mu.Unlock()
	a.feedNow()
	return err
}
