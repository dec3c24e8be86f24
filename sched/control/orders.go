package control

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// dispatcher delivers orders to agents. Each node has a bounded queue. At most NodeParallel orders are in
// flight to one node, and Parallel to all nodes together, and there is one order per workload and node. Each
// delivery has a deadline. After a failed delivery the order waits for a while (backoff). Then the planner
// may give the order again, if the state still needs it.
type dispatcher struct {
	nodes       map[string]*nodeQueue
	entries     map[orderKey]*entry
	outstanding *btree.BTreeG[latestOrder] // the orders that are queued, in flight or waiting for another try; each planning step gets a copy
	ready       []*entry                   // entries that wait only because Parallel orders are in flight
	inFlight    int
}

type orderKey struct{ node, workload string }

func keyOf(o sched.Order) orderKey { return orderKey{o.Node, o.Workload} }

func (k orderKey) less(o orderKey) bool {
	return cmp.Or(cmp.Compare(k.node, o.node), cmp.Compare(k.workload, o.workload)) < 0
}

// latestOrder is an entry of the index outstanding: for a workload and a node, the newest generation whose
// order is queued, in flight or waits for another try.
type latestOrder struct {
	key        orderKey
	generation fsm.Generation
}

// entry is one order in the dispatcher. It is queued, is in flight, or waits for a timer.
type entry struct {
	order     sched.Order
	confirmed int64        // monotonic time at which a Confirm that began after the order was planned succeeded
	flight    uint64       // number of the delivery in flight; 0 = none
	deadline  *timer       // timer that ends the delivery in flight
	next      *sched.Order // newer order for the same workload that came during the delivery
	tries     int
	rest      *timer
	spent     bool // the backoff has ended: the entry only keeps the number of tries, and its order is not outstanding
}

type nodeQueue struct {
	waiting  []*entry
	inFlight int  // number of the node's orders that are in flight or in the list ready
	entries  int  // number of orders held for this node
	failing  bool // the last delivery failed: the node gets only one order at a time until a delivery succeeds
}

const (
	// freshConfirm is the time after a Confirm during which orders may be sent without another Confirm.
	freshConfirm = time.Second
	// keepSpent is the time for which the number of failed deliveries of an order is remembered if the
	// planner does not issue the order again.
	keepSpent = time.Minute
	// deleteAgain is the time that an agent has for a delete before the order is sent again. After
	// deletePatience tries this time doubles with each try.
	deleteAgain    = time.Second
	deletePatience = 8
	firstBackoff   = 100 * time.Millisecond
	// failuresUntilRecorded is the number of failed deliveries of an order after which the record of its workload gets
	// the reason dispatch_failed.
	failuresUntilRecorded = 3
)

// errWithdrawn means that the state no longer needs the order.
var errWithdrawn = errors.New("the state no longer needs the order")

func (d *dispatcher) init() {
	d.nodes, d.entries = map[string]*nodeQueue{}, map[orderKey]*entry{}
	d.outstanding = btree.NewBTreeGOptions(func(a, b latestOrder) bool { return a.key.less(b.key) }, btree.Options{NoLocks: true})
}

// index updates d.outstanding, the index of the newest orders, after a change of an entry.
func (d *dispatcher) index(e *entry) {
	latest := latestOrder{keyOf(e.order), e.order.Generation}
	if e.next != nil {
		latest.generation = e.next.Generation
	}
	if e.spent {
		d.outstanding.Delete(latest)
	} else {
		d.outstanding.Set(latest)
	}
}

// busy reports whether an order about a workload waits for a node, is being delivered, or was delivered
// a moment ago.
func (d *dispatcher) busy(node, workload string) bool {
	return d.entries[orderKey{node, workload}] != nil
}

func (d *dispatcher) queue(node string) *nodeQueue {
	q := d.nodes[node]
	if q == nil {
		q = &nodeQueue{}
		d.nodes[node] = q
	}
	return q
}

// enqueueOrders puts the orders of a planning step into the queues of their nodes, right after a Confirm (proof of
// leadership). An order for a node whose queue is full is dropped; a later planning step issues it again.
func (t *Term) enqueueOrders(orders []sched.Order) {
	d := &t.orders
	for _, o := range orders {
		e := d.entries[keyOf(o)]
		switch {
		case e == nil:
			if q := d.queue(o.Node); q.entries < t.cfg.NodeQueue {
				e = &entry{order: o, confirmed: t.now.Mono}
				d.entries[keyOf(o)] = e
				d.index(e)
				q.entries++
				t.enqueue(e, q)
			}
		case e.spent && e.order == o, e.order.Generation.Less(o.Generation):
			t.renew(e, o)
		}
	}
}

// renew puts an order into the queue entry that its workload already has: the same order again, or a newer one.
func (t *Term) renew(e *entry, o sched.Order) {
	e.confirmed = t.now.Mono
	if e.flight != 0 {
		e.next = &o
		t.orders.index(e)
		return
	}
	if e.order != o {
		e.tries = 0
	}
	e.order, e.spent = o, false
	t.orders.index(e)
	if t.stop(e.rest) {
		t.enqueue(e, t.orders.queue(o.Node))
	}
	// The entry is in the queue already.
}

func (t *Term) enqueue(e *entry, q *nodeQueue) {
	q.waiting = append(q.waiting, e)
	t.setOut(q)
}

// setOut starts to deliver orders that wait in a node's queue, up to the limit of orders in flight.
func (t *Term) setOut(q *nodeQueue) {
	d := &t.orders
	most := t.cfg.NodeParallel
	if q.failing {
		most = 1
	}
	for q.inFlight < most && len(q.waiting) > 0 {
		e := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.inFlight++
		d.ready = append(d.ready, e)
	}
	for d.inFlight < t.cfg.Parallel && len(d.ready) > 0 {
		e := d.ready[0]
		d.ready[0] = nil
		d.ready = d.ready[1:]
		d.inFlight++
		t.deliver(e)
	}
}

// deliver delivers the order of an entry. If the order had to wait, it first needs another Confirm, because this
// replica may have been deposed meanwhile.
func (t *Term) deliver(e *entry) {
	t.lastFlight++
	flight := t.lastFlight
	e.flight = flight
	finish := func(ack sched.Ack, err error) {
		if e.flight == flight {
			t.delivered(e, ack, err)
		}
	}
	e.deadline = t.after(t.cfg.OrderDeadline, func() {
		finish(sched.Ack{}, fmt.Errorf("no answer within %s", t.cfg.OrderDeadline))
	})
	deliver := func() {
		t.emit(Deliver{
			ID:    t.await(func(in Input) { finish(in.(Delivered).Ack, in.(Delivered).Err) }),
			Epoch: t.epoch, Order: e.order, Within: t.until(e.deadline.at),
		})
	}
	if t.now.Mono-e.confirmed <= int64(freshConfirm) {
		deliver()
		return
	}
	t.afterConfirm(func(err error) {
		switch {
		case e.flight != flight:
		case err != nil:
			finish(sched.Ack{}, err)
		case !asked(t.view, e.order):
			finish(sched.Ack{}, errWithdrawn)
		case t.until(e.deadline.at) <= 0:
			// The deadline of the delivery has passed; its timer ends the delivery in this step.
		default:
			deliver()
		}
	})
}

// delivered handles the end of a delivery: the agent answered with ack, or err says that no answer came.
// It removes the entry of the order at once or after a wait.
func (t *Term) delivered(e *entry, ack sched.Ack, err error) {
	d, o := &t.orders, e.order
	q := d.queue(o.Node)
	t.stop(e.deadline)
	e.flight, e.deadline = 0, nil
	q.inFlight--
	d.inFlight--
	if !errors.Is(err, errWithdrawn) {
		q.failing = err != nil
	}
	if err == nil && !ack.Fenced {
		t.report(answerReport(t.view, o, ack, t.planned()))
	}
	switch {
	case e.next != nil:
		e.order, e.next, e.tries = *e.next, nil, 0
		q.waiting = append(q.waiting, e)
	case err == nil && (ack.Accepted || ack.Refused || ack.Gone) && !ack.Fenced:
		// The entry is kept for a moment. So the report of the agent reaches the state before the planner
		// looks again, and a workload list that is older than the order does not make the leader report the
		// workload as missing.
		if o.Op == sched.OpDelete && !ack.Gone {
			// The agent accepted the delete, but has not removed the workload yet. It reports later that the
			// workload is gone.
			e.tries++
			t.restFor(e, min(t.cfg.MaxBackoff, deleteAgain<<min(max(0, e.tries-deletePatience), 10)))
			break
		}
		e.rest = t.after(2*t.cfg.FlushEvery, func() { t.forget(e) })
	case !asked(t.view, o):
		t.forget(e)
	default:
		t.failed(e, ack, err)
	}
	t.setOut(q)
}

// failed schedules the next try of an order that could not be delivered, or that the agent refused because it
// has seen a newer epoch or generation.
func (t *Term) failed(e *entry, ack sched.Ack, err error) {
	e.tries++
	t.emit(Undelivered{Order: e.order, Try: e.tries, Err: err, Message: ack.Message})
	if err != nil && e.tries == failuresUntilRecorded && e.order.Op == sched.OpApply {
		t.recordFailure(e.order, err)
	}
	t.restFor(e, min(t.cfg.MaxBackoff, firstBackoff<<min(e.tries-1, 10)))
}

// restFor keeps an entry until its backoff has ended. After that the planner may give the order
// again, and the entry still has the number of tries.
func (t *Term) restFor(e *entry, wait time.Duration) {
	e.rest = t.after(wait, func() {
		if !asked(t.view, e.order) {
			t.forget(e)
			return
		}
		e.spent = true
		t.orders.index(e)
		e.rest = t.after(keepSpent, func() { t.forget(e) })
		t.signal()
	})
}

// forget drops an entry and requests another planning step, which issues the order again if it is
// still needed.
func (t *Term) forget(e *entry) {
	d, k := &t.orders, keyOf(e.order)
	delete(d.entries, k)
	d.outstanding.Delete(latestOrder{key: k})
	q := d.queue(k.node)
	if q.entries--; q.entries == 0 {
		delete(d.nodes, k.node)
	}
	t.signal()
}

// asked reports whether the present state still asks for order o with the same generation.
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

// recordFailure proposes to record, as the reason in the workload's record, that its order could not be delivered
// (dispatch_failed).
func (t *Term) recordFailure(o sched.Order, err error) {
	t.propose(func(error) {}, &commandv1.Command{
		Head: t.head(),
		Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{
			Workloads: []*commandv1.Unplaced{{
				Workload:     o.Workload,
				IfGeneration: fsm.GenerationPB(o.Generation),
				Code:         fsm.CodeDispatchFailed,
				Message:      "the order could not be delivered to node " + o.Node + ": " + err.Error(),
			}},
		}},
	})
}
