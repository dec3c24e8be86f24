package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// terms of a lease: how often to beat and how long it lasts, for one node.
func (l *Loop) terms(protocol uint32, nodes int) (interval, duration time.Duration) {
	if protocol == 0 {
		return l.cfg.LegacyInterval, max(l.cfg.LegacyLease, l.cfg.NodeLease)
	}
	interval, duration = l.cfg.HeartbeatInterval, l.cfg.NodeLease
	if nodes > 1000 {
		// Above 1,000 nodes both grow, so that the leader's work per second does not.
		interval = interval * time.Duration(nodes) / 1000
		duration = duration * time.Duration(nodes) / 1000
	}
	return interval, duration
}

func (l *Loop) leaseLength(protocol uint32, nodes int) int64 {
	_, d := l.terms(protocol, nodes)
	return int64(d)
}

// confirmer shares one Confirm among all that ask within a window.
type confirmer struct {
	log   Proposer
	every time.Duration
	ctx   context.Context // the stint's

	mu     sync.Mutex
	closed bool
	round  *round // collects waiters; its Confirm has not begun
	last   time.Time
	wg     sync.WaitGroup
}

type round struct {
	done chan struct{}
	err  error
}

// confirmTimeout bounds one Confirm; a leader that needs longer is about to lose
// its office.
const confirmTimeout = 3 * time.Second

// after returns nil once a Confirm that began after this call has succeeded.
func (c *confirmer) after(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrNotLeading
	}
	r := c.round
	if r == nil {
		r = &round{done: make(chan struct{})}
		c.round = r
		delay := max(0, c.every-time.Since(c.last))
		c.wg.Go(func() { c.run(r, delay) })
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *confirmer) run(r *round, delay time.Duration) {
	sleep(c.ctx, delay)
	c.mu.Lock()
	c.round, c.last = nil, time.Now() // who asks from here on waits for the next one
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, confirmTimeout)
	defer cancel()
	_, r.err = c.log.Confirm(ctx)
	close(r.done)
}

// close ends the service and waits for the Confirm that is under way.
func (c *confirmer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}

// Heartbeat takes one node's report and answers with its lease. The lease is
// extended only if leadership was confirmed after the heartbeat arrived here, and
// within ctx; otherwise the old end is repeated and Duration is 0. Errors:
// ErrNotLeading, *ErrUnknownNode.
func (l *Loop) Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error) {
	s := l.stint.Load()
	if s == nil {
		return sched.Lease{}, ErrNotLeading
	}
	received := s.now()
	view := s.store.View()
	node, ok := view.Node(hb.Node)
	if !ok {
		return sched.Lease{}, &ErrUnknownNode{Node: hb.Node}
	}
	if node.Fenced {
		// It may be a late word of what was declared dead: only who registers is back.
		return sched.Lease{}, &ErrUnknownNode{Node: hb.Node, Fenced: true}
	}
	s.table.observe(node, received)
	if !s.table.hear(&hb) {
		return s.answer(node, false) // overtaken by a later one
	}
	s.digest(view, node, &hb)
	return s.grant(ctx, node, received)
}

// Registered grants the lease of a node whose registration is committed.
func (l *Loop) Registered(ctx context.Context, node string) (sched.Lease, error) {
	s := l.stint.Load()
	if s == nil {
		return sched.Lease{}, ErrNotLeading
	}
	received := s.now()
	n, ok := s.store.View().Node(node)
	if !ok {
		return sched.Lease{}, &ErrUnknownNode{Node: node}
	}
	s.table.observe(n, received)
	s.table.registered(node)
	return s.grant(ctx, n, received)
}

// grant extends the lease of a node for what was received at a moment, by the
// stint's clock, if leadership can be confirmed.
func (s *stint) grant(ctx context.Context, node *fsm.Node, received int64) (sched.Lease, error) {
	err := s.confirm.after(ctx)
	if s.ctx.Err() != nil || errors.Is(err, ErrNotLeading) {
		return sched.Lease{}, ErrNotLeading
	}
	if err != nil {
		return s.answer(node, false)
	}
	extended, back := s.table.extend(node.ID, received)
	if back {
		s.signal()
	}
	return s.answer(node, extended)
}

// answer says what lease a node has; one that was not extended has Duration 0.
func (s *stint) answer(node *fsm.Node, extended bool) (sched.Lease, error) {
	b, nodes, ok := s.table.get(node.ID)
	if !ok || b.told == 0 {
		// There is no old lease to repeat: somebody else has to answer.
		return sched.Lease{}, ErrNotLeading
	}
	interval, duration := s.terms(b.protocol, nodes)
	if !extended {
		duration = 0
	}
	return sched.Lease{
		Interval:  int64(interval),
		Duration:  int64(duration),
		ExpiresAt: b.told,
		Drain:     s.store.View().Info().Mode.Frozen() || node.Draining,
		SendFull:  !b.full,
		Epoch:     s.epoch,
	}, nil
}

// LeaseOf returns the end of a node's lease and when it was last heard, Unix
// nanoseconds (0 = not in this stint); ok is false outside a stint.
func (l *Loop) LeaseOf(node string) (expires, heard int64, ok bool) {
	s := l.stint.Load()
	if s == nil {
		return 0, 0, false
	}
	b, _, ok := s.table.get(node)
	return b.expires, b.heard, ok
}

// UsageOf returns what a node last said it uses.
func (l *Loop) UsageOf(node string) (sched.NodeUsage, bool) {
	s := l.stint.Load()
	if s == nil {
		return sched.NodeUsage{}, false
	}
	b, _, ok := s.table.get(node)
	return b.usage, ok
}

// PoolsUsedOf returns what a node last said that its storage pools hold: GB, by name. The map must not be
// changed.
func (l *Loop) PoolsUsedOf(node string) map[string]int64 {
	s := l.stint.Load()
	if s == nil {
		return nil
	}
	b, _, _ := s.table.get(node)
	return b.pools
}

// WorkloadUsageOf returns what a node last said that one of its workloads uses.
func (l *Loop) WorkloadUsageOf(node, workload string) (sched.WorkloadUsage, bool) {
	s := l.stint.Load()
	if s == nil {
		return sched.WorkloadUsage{}, false
	}
	return s.table.usageOf(node, workload)
}
