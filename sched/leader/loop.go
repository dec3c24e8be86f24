package leader

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

// ErrNotLeading is returned by calls while this replica does not lead.
var ErrNotLeading = control.ErrNotLeading

// ErrUnknownNode is returned for a node that is not registered, or that has not registered since it was
// fenced.
type ErrUnknownNode = control.ErrUnknownNode

// Loop runs the leadership terms of one replica. It is idle outside of Run.
type Loop struct {
	cfg    Config
	log    Proposer
	agents Agents
	store  *store.Store
	term   atomic.Pointer[term]
}

// New returns a Loop that proposes to log, delivers to agents and reads the state from st.
func New(cfg Config, log Proposer, agents Agents, st *store.Store) *Loop {
	return &Loop{cfg: cfg.withDefaults(), log: log, agents: agents, store: st}
}

// Leading reports whether a leadership term is running on this replica.
func (l *Loop) Leading() bool { return l.term.Load() != nil }

// term runs one control.Term in real time.
type term struct {
	*Loop
	ctx   context.Context
	epoch fsm.Epoch
	wake  chan struct{}  // signal (capacity 1) that the term must be stepped earlier than the goroutine clock expects
	wg    sync.WaitGroup // counts the goroutines that carry out effects

	mu     sync.Mutex
	core   *control.Term
	wakeAt int64 // when clock will step the term next, on the monotonic clock
	calls  map[control.Call]chan control.Reply
	call   control.Call // the number of the last Call
}

// Run leads for one term. It is called when this replica has become the leader, and ctx ends when it no
// longer is. It returns nil after ctx has ended and every goroutine of the term has returned.
func (l *Loop) Run(ctx context.Context, epoch fsm.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view := l.store.View()
	t := &term{
		Loop: l, ctx: ctx, epoch: epoch,
		wake:  make(chan struct{}, 1),
		core:  control.New(l.cfg.Settings, epoch, l.cfg.Clock(), view),
		calls: map[control.Call]chan control.Reply{},
	}
	t.wg.Go(func() { t.follow(view) })
	l.term.Store(t)
	t.clock()
	l.term.Store(nil)
	t.step(control.Lost{})
	cancel()
	t.wg.Wait()
	return nil
}

// clock steps the term whenever its WakeAt is reached, until ctx ends.
func (t *term) clock() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
			t.step(control.Tick{})
		}
		t.mu.Lock()
		wait := time.Duration(t.wakeAt - t.cfg.Clock().Mono)
		t.mu.Unlock()
		timer.Reset(max(0, wait))
	}
}

// step passes one input to the control.Term and carries out the effects.
func (t *term) step(in control.Input) {
	t.mu.Lock()
	effects := t.core.Step(t.cfg.Clock(), t.store.View(), in)
	if len(effects) > 0 {
		// Step may run on the goroutine of a caller of Heartbeat, for which Run does not wait. Add this
		// goroutine to wg, so that Run does not return before the effects of the step have started.
		t.wg.Add(1)
		defer t.wg.Done()
	}
	earlier := t.core.WakeAt() < t.wakeAt
	t.wakeAt = t.core.WakeAt()
	for _, e := range effects {
		if r, ok := e.(control.Reply); ok {
			t.calls[r.Call] <- r // this does not block: the channel has room for the only reply
			delete(t.calls, r.Call)
		}
	}
	t.mu.Unlock()
	if earlier {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	for _, e := range effects {
		t.carryOut(e)
	}
}

// follow passes the change feed to the term, beginning after view, until ctx ends. If the feed no longer has
// the next changes, follow continues from the newest view.
func (t *term) follow(view fsm.View) {
	for t.ctx.Err() == nil {
		cur, err := t.store.Changes(view.Info().Index)
		for err == nil {
			var b store.Batch
			if b, err = cur.Next(t.ctx); err == nil {
				t.step(control.Updates{View: b.View, Changes: b.Changes})
			}
		}
		if cur != nil {
			cur.Close()
		}
		if errors.Is(err, store.ErrClosed) || t.ctx.Err() != nil {
			return
		}
		// This function read the state some time ago. A change since then may have ended a frozen mode, in which the
		// leader places nothing.
		view = t.store.View()
		t.step(control.Updates{View: view, Fresh: true, Thawed: true})
	}
}

// Heartbeat passes a heartbeat to the term and returns the node's lease. The lease is extended only if
// leadership is confirmed after the heartbeat arrived here and before ctx ends. Otherwise the answer repeats
// the old end of the lease, with Duration 0. It returns ErrNotLeading or *ErrUnknownNode.
func (l *Loop) Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error) {
	return l.ask(ctx, func(c control.Call) control.Input { return control.Heartbeat{Call: c, Beat: hb} })
}

// Registered returns the first lease of a node whose registration is committed. It returns the same errors as
// Heartbeat.
func (l *Loop) Registered(ctx context.Context, node string) (sched.Lease, error) {
	return l.ask(ctx, func(c control.Call) control.Input { return control.Registered{Call: c, Node: node} })
}

// ask passes a call of a node to the term and waits for its reply.
func (l *Loop) ask(ctx context.Context, in func(control.Call) control.Input) (sched.Lease, error) {
	t := l.term.Load()
	if t == nil {
		return sched.Lease{}, ErrNotLeading
	}
	reply := make(chan control.Reply, 1)
	t.mu.Lock()
	t.call++
	call := t.call
	t.calls[call] = reply
	t.mu.Unlock()
	t.step(in(call))
	select {
	case r := <-reply:
		return r.Lease, r.Err
	case <-t.ctx.Done():
		return sched.Lease{}, ErrNotLeading
	case <-ctx.Done():
	}
	t.step(control.Abandoned{Call: call})
	select {
	case r := <-reply:
		return r.Lease, r.Err
	case <-t.ctx.Done():
		return sched.Lease{}, ErrNotLeading
	}
}

// Stats returns figures for metrics. They are all zero if this replica does not lead.
func (l *Loop) Stats() (s control.Stats) {
	l.look(func(t *control.Term) { s = t.Stats() })
	return s
}

// LeaseOf returns the end of a node's lease and the time of its last heartbeat in Unix nanoseconds (0 = none
// in this term); ok is false if this replica does not lead or the node is unknown.
func (l *Loop) LeaseOf(node string) (expires, heard int64, ok bool) {
	l.look(func(t *control.Term) { expires, heard, ok = t.Lease(node) })
	return expires, heard, ok
}

// UsageOf returns the resource usage that a node last reported.
func (l *Loop) UsageOf(node string) (u sched.NodeUsage, ok bool) {
	l.look(func(t *control.Term) { u, ok = t.NodeUsage(node) })
	return u, ok
}

// PoolsUsedOf returns the GB in use of each storage pool of a node, by name, as last reported. The map must
// not be changed.
func (l *Loop) PoolsUsedOf(node string) (pools map[string]int64) {
	l.look(func(t *control.Term) { pools = t.PoolsUsed(node) })
	return pools
}

// MoveReportOf returns what a node last reported about the move of a workload's volumes; ok is false if this replica does
// not lead, or if there is no report.
func (l *Loop) MoveReportOf(node, workload string) (r sched.MoveReport, ok bool) {
	l.look(func(t *control.Term) { r, ok = t.MoveReport(node, workload) })
	return r, ok
}

// WorkloadUsageOf returns the resource usage that a node last reported for one of its workloads.
func (l *Loop) WorkloadUsageOf(node, workload string) (u sched.WorkloadUsage, ok bool) {
	l.look(func(t *control.Term) { u, ok = t.WorkloadUsage(node, workload) })
	return u, ok
}

// AutoscaleOf returns the last decision about the number of members of a group; ok is false if there is none in
// this leadership term.
func (l *Loop) AutoscaleOf(group string) (d sched.Autoscaled, ok bool) {
	l.look(func(t *control.Term) { d, ok = t.Autoscaled(group) })
	return d, ok
}

// look calls fn with the present leadership term, if there is one.
func (l *Loop) look(fn func(*control.Term)) {
	if t := l.term.Load(); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		fn(t.core)
	}
}
