package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// dispatcher carries orders to agents: a bounded queue per node, a few in flight
// per node, one per workload of a node, each with a deadline. An order that could
// not be delivered waits out its backoff; then the planner may give it again, if
// the state still asks for it.
type dispatcher struct {
	s     *stint
	ctx   context.Context
	stop  context.CancelFunc
	slots chan struct{}  // deliveries in all
	wg    sync.WaitGroup // flights, and timers that have neither run nor been stopped

	mu     sync.Mutex
	nodes  map[string]*nodeQueue
	orders map[orderKey]*entry
}

type orderKey struct{ node, workload string }

func keyOf(o sched.Order) orderKey { return orderKey{o.Node, o.Workload} }

// entry is one order on the books. It waits, flies, or rests with a timer set.
type entry struct {
	order     sched.Order
	confirmed time.Time    // leadership was confirmed then, after the order was planned
	flying    bool         //
	next      *sched.Order // a newer generation, given during the flight
	tries     int
	timer     *time.Timer // ends a rest
	spent     bool        // its backoff is over: not outstanding, kept for the count of tries
}

type nodeQueue struct {
	waiting []*entry
	flying  int
	entries int  // on the books for this node
	failing bool // the last delivery failed: one at a time until one succeeds
}

const (
	// freshConfirm is how long after its Confirm an order may set out without another.
	freshConfirm = time.Second
	// keepSpent is how long the tries of an order are remembered that nobody gives again.
	keepSpent = time.Minute
	// deleteAgain is how long an agent may take over a delete before it is asked again.
	deleteAgain  = time.Second
	firstBackoff = 100 * time.Millisecond
	// complainAt is the try at which the workload itself says that its node cannot be told.
	complainAt = 3
)

// errWithdrawn means that the state no longer asks for an order.
var errWithdrawn = errors.New("the state no longer asks for it")

func newDispatcher(s *stint) *dispatcher {
	ctx, stop := context.WithCancel(s.ctx)
	return &dispatcher{
		s: s, ctx: ctx, stop: stop,
		slots:  make(chan struct{}, s.cfg.Parallel),
		nodes:  map[string]*nodeQueue{},
		orders: map[orderKey]*entry{},
	}
}

// close ends every flight and every rest, and waits for them. Nothing may be
// added meanwhile or after.
func (d *dispatcher) close() {
	d.stop()
	d.mu.Lock()
	for _, e := range d.orders {
		d.stir(e)
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// outstanding says whether this very order, or a later one for the same workload
// on the same node, is on its way.
func (d *dispatcher) outstanding(o sched.Order) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.orders[keyOf(o)]
	if e == nil || e.spent {
		return false
	}
	latest := e.order
	if e.next != nil {
		latest = *e.next
	}
	return !latest.Generation.Less(o.Generation)
}

// busy reports whether anything about a workload is on its way to a node, or was
// a moment ago.
func (d *dispatcher) busy(node, workload string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.orders[orderKey{node, workload}] != nil
}

// add takes orders over, right after a Confirm; what finds its node's queue full
// is given again later.
func (d *dispatcher) add(orders []sched.Order) {
	confirmed := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return
	}
	for _, o := range orders {
		e := d.orders[keyOf(o)]
		switch {
		case e == nil:
			if q := d.queue(o.Node); q.entries < d.s.cfg.NodeQueue {
				e = &entry{order: o, confirmed: confirmed}
				d.orders[keyOf(o)] = e
				q.entries++
				d.enqueue(e, q)
			}
		case e.spent && e.order == o, e.order.Generation.Less(o.Generation):
			d.renew(e, o, confirmed)
		}
	}
}

// renew gives an entry its order again, or a later one.
func (d *dispatcher) renew(e *entry, o sched.Order, confirmed time.Time) {
	if e.flying {
		e.next, e.confirmed = &o, confirmed
		return
	}
	if e.order != o {
		e.tries = 0
	}
	e.order, e.confirmed, e.spent = o, confirmed, false
	if d.stir(e) {
		d.enqueue(e, d.queue(o.Node))
	}
	// Else it waits in its queue already, or its rest is just ending and the
	// planner will be asked again.
}

func (d *dispatcher) queue(node string) *nodeQueue {
	q := d.nodes[node]
	if q == nil {
		q = &nodeQueue{}
		d.nodes[node] = q
	}
	return q
}

func (d *dispatcher) enqueue(e *entry, q *nodeQueue) {
	q.waiting = append(q.waiting, e)
	d.start(q)
}

// start lets as many waiting orders of a node set out as may; the caller holds mu.
func (d *dispatcher) start(q *nodeQueue) {
	most := d.s.cfg.NodeParallel
	if q.failing {
		most = 1
	}
	for q.flying < most && len(q.waiting) > 0 && d.ctx.Err() == nil {
		e := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.flying++
		e.flying = true
		o, confirmed := e.order, e.confirmed
		d.wg.Go(func() {
			ack, err := d.fly(o, confirmed)
			d.land(e, o, ack, err)
		})
	}
}

// fly delivers one order and files the answer.
func (d *dispatcher) fly(o sched.Order, confirmed time.Time) (sched.Ack, error) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-d.ctx.Done():
		return sched.Ack{}, d.ctx.Err()
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.s.cfg.OrderDeadline)
	defer cancel()
	if time.Since(confirmed) > freshConfirm {
		// It waited for its turn: this replica may have been deposed meanwhile.
		if err := d.s.confirm.after(ctx); err != nil {
			return sched.Ack{}, err
		}
		if !asked(d.s.store.View(), o) {
			return sched.Ack{}, errWithdrawn
		}
	}
	ack, err := d.s.agents.Deliver(ctx, d.s.epoch, o)
	d.s.cfg.Metrics.Result(actionOf(o.Op), err == nil && !ack.Refused && !ack.Fenced)
	if err == nil && !ack.Fenced {
		d.file(o, ack)
	}
	return ack, err
}

func actionOf(op sched.Op) string {
	if op == sched.OpDelete {
		return "delete"
	}
	return "apply"
}

// land takes a flown order off the books, or lets it rest first.
func (d *dispatcher) land(e *entry, o sched.Order, ack sched.Ack, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queue(o.Node)
	q.flying--
	e.flying = false
	if d.ctx.Err() != nil {
		return
	}
	if !errors.Is(err, errWithdrawn) {
		q.failing = err != nil
	}
	if err == nil && !ack.Fenced {
		d.s.cfg.Logger.Debug("order delivered", "workload", o.Workload, "node", o.Node, "epoch", d.s.epoch.String(), "generation", o.Generation.String(),
			"action", actionOf(o.Op), "accepted", ack.Accepted, "refused", ack.Refused, "gone", ack.Gone)
	}
	switch {
	case e.next != nil:
		e.order, e.next, e.tries = *e.next, nil, 0
		q.waiting = append(q.waiting, e)
	case err == nil && (ack.Accepted || ack.Refused || ack.Gone) && !ack.Fenced:
		// For a moment, so that the report reaches the state before the planner
		// looks again, and older lists do not call the workload missing.
		wait := 2 * d.s.cfg.FlushEvery
		if o.Op == sched.OpDelete && !ack.Gone {
			wait = deleteAgain // it stops in its own time and reports so
		}
		d.rest(e, wait, func() { d.forget(e) })
	case !asked(d.s.store.View(), o):
		d.forget(e)
	default:
		d.failed(e, ack, err)
	}
	d.start(q)
}

// failed lets an order that its agent did not take rest before the next try.
func (d *dispatcher) failed(e *entry, ack sched.Ack, err error) {
	e.tries++
	o, log := e.order, d.s.cfg.Logger
	if err != nil {
		log.Warn("order not delivered", "workload", o.Workload, "node", o.Node, "epoch", d.s.epoch.String(), "try", e.tries, "err", err)
		if e.tries == complainAt && o.Op == sched.OpApply {
			d.wg.Go(func() { d.s.complain(o, err) })
		}
	} else {
		log.Warn("order refused by a fence", "workload", o.Workload, "node", o.Node, "epoch", d.s.epoch.String(), "try", e.tries, "message", ack.Message)
	}
	backoff := min(d.s.cfg.MaxBackoff, firstBackoff<<min(e.tries-1, 10))
	d.rest(e, backoff, func() {
		if !asked(d.s.store.View(), e.order) {
			d.forget(e)
			return
		}
		e.spent = true
		d.rest(e, keepSpent, func() { d.forget(e) })
		d.s.signal()
	})
}

// forget takes an entry off the books and lets the planner look again.
func (d *dispatcher) forget(e *entry) {
	k := keyOf(e.order)
	delete(d.orders, k)
	q := d.queue(k.node)
	if q.entries--; q.entries == 0 {
		delete(d.nodes, k.node)
	}
	d.s.signal()
}

// rest runs fn under mu after wait, unless the entry is stirred before.
func (d *dispatcher) rest(e *entry, wait time.Duration, fn func()) {
	d.wg.Add(1)
	e.timer = time.AfterFunc(wait, func() {
		defer d.wg.Done()
		d.mu.Lock()
		defer d.mu.Unlock()
		e.timer = nil
		if d.ctx.Err() == nil {
			fn()
		}
	})
}

// stir ends an entry's rest; false if it does not rest, or its rest is over and
// its function about to run.
func (d *dispatcher) stir(e *entry) bool {
	if e.timer == nil || !e.timer.Stop() {
		return false
	}
	e.timer = nil
	d.wg.Done()
	return true
}

// asked reports whether the state still wants this very order delivered.
func asked(view fsm.View, o sched.Order) bool {
	if view.Info().Mode.Frozen() {
		return false
	}
	if n, ok := view.Node(o.Node); !ok || !n.Up {
		return false
	}
	if o.Op == sched.OpDelete {
		r, ok := view.Residual(o.Node, o.Workload)
		return ok && r.Generation == o.Generation
	}
	w, ok := view.Workload(o.Workload)
	return ok && w.Node == o.Node && w.Generation == o.Generation && !w.Acknowledged
}

// Report is what the log learns from the answer to an order, at a moment in Unix nanoseconds; nil
// when the answer says nothing.
func Report(o sched.Order, ack sched.Ack, at int64) *commandv1.WorkloadReport {
	r := &commandv1.WorkloadReport{
		Workload: o.Workload, Node: o.Node, Generation: protoGeneration(o.Generation), Code: ack.Code, Message: ack.Message, ObservedAt: at,
	}
	switch {
	case o.Op == sched.OpDelete:
		if !ack.Gone {
			return nil
		}
		r.Gone = true
	case ack.Refused:
		r.Refused, r.State = true, string(fsm.ActualFailed)
	case ack.Accepted:
		r.Acknowledged, r.State = true, string(ack.State)
		if ack.State == fsm.ActualNone {
			r.State = string(fsm.ActualPending)
		}
	default:
		return nil
	}
	return r
}

// file turns an answer into a report for the log.
func (d *dispatcher) file(o sched.Order, ack sched.Ack) {
	if r := Report(o, ack, d.s.planned()); r != nil {
		d.s.reports.add(d.s.cfg.FlushItems, r)
	}
}

// complain records on the workload that its agent cannot be told.
func (s *stint) complain(o sched.Order, err error) {
	s.propose(s.ctx, []fsm.Command{{
		Head: s.head(),
		Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{
			Workloads: []*commandv1.Unplaced{{
				Workload:     o.Workload,
				IfGeneration: protoGeneration(o.Generation),
				Code:         fsm.CodeDispatchFailed,
				Message:      "node " + o.Node + " could not be told: " + err.Error(),
			}},
		}},
	}})
}
