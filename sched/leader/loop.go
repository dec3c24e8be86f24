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

// ErrNotLeading is returned outside a leadership term.
var ErrNotLeading = control.ErrNotLeading

// ErrUnknownNode is returned for a node that is not registered, or not since it was
// fenced.
type ErrUnknownNode = control.ErrUnknownNode

// Loop is the leader of one replica: idle until Run, and again after it.
type Loop struct {
	cfg    Config
	log    Proposer
	agents Agents
	store  *store.Store
	term   atomic.Pointer[term]
}

// New makes a Loop over a replica's log and state.
func New(cfg Config, log Proposer, agents Agents, st *store.Store) *Loop {
	return &Loop{cfg: cfg.withDefaults(), log: log, agents: agents, store: st}
}

// Leading reports whether a term is running on this replica.
func (l *Loop) Leading() bool { return l.term.Load() != nil }

// term runs one control.Term.
type term struct {
	*Loop
	ctx   context.Context
	epoch fsm.Epoch
	wake  chan struct{}  // capacity 1: the term is due earlier than the clock knows
	wg    sync.WaitGroup // effects under way

	mu     sync.Mutex
	core   *control.Term
	wakeAt int64 // monotonic
	calls  map[control.Call]chan control.Reply
	call   control.Call // the last one
}

// Run leads for one term: from an established leadership until ctx ends. It returns nil
// when ctx has ended, after every goroutine of the term.
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

// clock steps the term whenever it is due, until ctx ends.
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

// step hands one input to the term and carries out the effects.
func (t *term) step(in control.Input) {
	t.mu.Lock()
	effects := t.core.Step(t.cfg.Clock(), t.store.View(), in)
	if len(effects) > 0 {
		// Callers of Heartbeat are not counted by wg. Run must not return before their effects have started.
		t.wg.Add(1)
		defer t.wg.Done()
	}
	earlier := t.core.WakeAt() < t.wakeAt
	t.wakeAt = t.core.WakeAt()
	for _, e := range effects {
		if r, ok := e.(control.Reply); ok {
			t.calls[r.Call] <- r // has room for the one reply
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

// follow hands the change feed to the term, from a view on, until ctx ends. When it falls
// off the feed it starts again from the newest view.
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
		// The missed changes may have ended a frozen mode.
		view = t.store.View()
		t.step(control.Updates{View: view, Fresh: true, Thawed: true})
	}
}

// Heartbeat takes one node's heartbeat and answers with its lease. The lease is extended
// only if leadership was confirmed after the heartbeat arrived here, and within ctx;
// otherwise the old end is repeated and Duration is 0. Errors: ErrNotLeading,
// *ErrUnknownNode.
func (l *Loop) Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error) {
	return l.ask(ctx, func(c control.Call) control.Input { return control.Heartbeat{Call: c, Beat: hb} })
}

// Registered grants the lease of a node whose registration is committed. Errors are those
// of Heartbeat.
func (l *Loop) Registered(ctx context.Context, node string) (sched.Lease, error) {
	return l.ask(ctx, func(c control.Call) control.Input { return control.Registered{Call: c, Node: node} })
}

// ask hands a call to the term and waits for its reply.
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

// Stats returns figures for metrics; all zero outside a term.
func (l *Loop) Stats() (s control.Stats) {
	l.look(func(t *control.Term) { s = t.Stats() })
	return s
}

// LeaseOf returns the end of a node's lease and when the node was last heard, Unix
// nanoseconds (0 = not in this term); ok is false outside a term and for unknown nodes.
func (l *Loop) LeaseOf(node string) (expires, heard int64, ok bool) {
	l.look(func(t *control.Term) { expires, heard, ok = t.Lease(node) })
	return expires, heard, ok
}

// UsageOf returns what a node last reported to use.
func (l *Loop) UsageOf(node string) (u sched.NodeUsage, ok bool) {
	l.look(func(t *control.Term) { u, ok = t.NodeUsage(node) })
	return u, ok
}

// PoolsUsedOf returns what a node last reported that its storage pools hold: GB, by name.
// The map must not be changed.
func (l *Loop) PoolsUsedOf(node string) (pools map[string]int64) {
	l.look(func(t *control.Term) { pools = t.PoolsUsed(node) })
	return pools
}

// WorkloadUsageOf returns what a node last reported that one of its workloads uses.
func (l *Loop) WorkloadUsageOf(node, workload string) (u sched.WorkloadUsage, ok bool) {
	l.look(func(t *control.Term) { u, ok = t.WorkloadUsage(node, workload) })
	return u, ok
}

// look runs fn on the term, if there is one.
func (l *Loop) look(fn func(*control.Term)) {
	if t := l.term.Load(); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		fn(t.core)
	}
}
