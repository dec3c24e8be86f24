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

// dispatcher carries orders to agents: a bounded queue per node, NodeParallel in flight
// per node and Parallel in all, one per workload of a node, each with a deadline. An
// order that was not delivered rests before the planner may give it again, if the state
// still asks for it.
type dispatcher struct {
	nodes       map[string]*nodeQueue
	entries     map[orderKey]*entry
	outstanding *btree.BTreeG[latestOrder] // of the entries that are not spent; planning gets a copy
	ready       []*entry                   // wait for one of the Parallel flights only
	flying      int
}

type orderKey struct{ node, workload string }

func keyOf(o sched.Order) orderKey { return orderKey{o.Node, o.Workload} }

func (k orderKey) less(o orderKey) bool {
	return cmp.Or(cmp.Compare(k.node, o.node), cmp.Compare(k.workload, o.workload)) < 0
}

// latestOrder is the newest generation that is on its way to a node.
type latestOrder struct {
	key        orderKey
	generation fsm.Generation
}

// entry is one order held by the dispatcher. It waits, is in flight, or rests until a
// timer ends.
type entry struct {
	order     sched.Order
	confirmed int64        // leadership was confirmed then, monotonic, after the order was planned
	flight    uint64       // number of its flight; 0 = not in flight
	deadline  *timer       // of the flight
	next      *sched.Order // a newer generation, given during the flight
	tries     int
	rest      *timer
	spent     bool // its backoff is over: not outstanding, kept only for the count of tries
}

type nodeQueue struct {
	waiting []*entry
	flying  int  // in flight, or ready to be
	entries int  // held for this node
	failing bool // the last delivery failed: one at a time until one succeeds
}

const (
	// freshConfirm is how long after a Confirm an order may set out without another one.
	freshConfirm = time.Second
	// keepSpent is how long the tries of an order are remembered if it is not given again.
	keepSpent = time.Minute
	// deleteAgain is how long an agent may take over a delete before it is asked again.
	deleteAgain  = time.Second
	firstBackoff = 100 * time.Millisecond
	// complainAt is the try from which on the workload says that its node cannot be told.
	complainAt = 3
)

// errWithdrawn means that the state no longer asks for an order.
var errWithdrawn = errors.New("the state no longer asks for it")

func (d *dispatcher) init() {
	d.nodes, d.entries = map[string]*nodeQueue{}, map[orderKey]*entry{}
	d.outstanding = btree.NewBTreeGOptions(func(a, b latestOrder) bool { return a.key.less(b.key) }, btree.Options{NoLocks: true})
}

// index keeps outstanding in step with an entry.
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

// busy reports whether an order about a workload is on its way to a node, or was a
// moment ago.
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

// give takes orders over right after a Confirm. An order that finds the queue of its
// node full is dropped; the planner gives it again.
func (t *Term) give(orders []sched.Order) {
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

// renew gives an entry its order again, or a later one.
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
	// Otherwise it waits in its queue already.
}

func (t *Term) enqueue(e *entry, q *nodeQueue) {
	q.waiting = append(q.waiting, e)
	t.setOut(q)
}

// setOut starts as many waiting orders of a node as may be in flight.
func (t *Term) setOut(q *nodeQueue) {
	d := &t.orders
	most := t.cfg.NodeParallel
	if q.failing {
		most = 1
	}
	for q.flying < most && len(q.waiting) > 0 {
		e := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.flying++
		d.ready = append(d.ready, e)
	}
	for d.flying < t.cfg.Parallel && len(d.ready) > 0 {
		e := d.ready[0]
		d.ready[0] = nil
		d.ready = d.ready[1:]
		d.flying++
		t.fly(e)
	}
}

// fly delivers the order of an entry. An order that had to wait for its turn needs
// another Confirm, since this replica may have been deposed meanwhile.
func (t *Term) fly(e *entry) {
	t.lastFlight++
	flight := t.lastFlight
	e.flight = flight
	land := func(ack sched.Ack, err error) {
		if e.flight == flight {
			t.land(e, ack, err)
		}
	}
	e.deadline = t.after(t.cfg.OrderDeadline, func() {
		land(sched.Ack{}, fmt.Errorf("no answer within %s", t.cfg.OrderDeadline))
	})
	deliver := func() {
		t.emit(Deliver{
			ID:    t.await(func(in Input) { land(in.(Delivered).Ack, in.(Delivered).Err) }),
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
			land(sched.Ack{}, err)
		case !asked(t.view, e.order):
			land(sched.Ack{}, errWithdrawn)
		case t.until(e.deadline.at) <= 0:
			// The deadline has passed; its timer ends the flight in this step.
		default:
			deliver()
		}
	})
}

// land ends the flight of an order: the entry is forgotten, or rests first.
func (t *Term) land(e *entry, ack sched.Ack, err error) {
	d, o := &t.orders, e.order
	q := d.queue(o.Node)
	t.stop(e.deadline)
	e.flight, e.deadline = 0, nil
	q.flying--
	d.flying--
	if !errors.Is(err, errWithdrawn) {
		q.failing = err != nil
	}
	if err == nil && !ack.Fenced {
		t.report(answerReport(o, ack, t.planned()))
	}
	switch {
	case e.next != nil:
		e.order, e.next, e.tries = *e.next, nil, 0
		q.waiting = append(q.waiting, e)
	case err == nil && (ack.Accepted || ack.Refused || ack.Gone) && !ack.Fenced:
		// For a moment, so that the report reaches the state before the planner looks
		// again, and older lists do not make the workload count as missing.
		wait := 2 * t.cfg.FlushEvery
		if o.Op == sched.OpDelete && !ack.Gone {
			wait = deleteAgain // the agent stops it in its own time and reports that
		}
		e.rest = t.after(wait, func() { t.forget(e) })
	case !asked(t.view, o):
		t.forget(e)
	default:
		t.failed(e, ack, err)
	}
	t.setOut(q)
}

// failed lets an order that its agent did not take rest before the next try.
func (t *Term) failed(e *entry, ack sched.Ack, err error) {
	e.tries++
	t.emit(Undelivered{Order: e.order, Try: e.tries, Err: err, Message: ack.Message})
	if err != nil && e.tries == complainAt && e.order.Op == sched.OpApply {
		t.complain(e.order, err)
	}
	backoff := min(t.cfg.MaxBackoff, firstBackoff<<min(e.tries-1, 10))
	e.rest = t.after(backoff, func() {
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

// forget drops an entry and lets the planner look again.
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

// complain records on the workload that its agent cannot be told.
func (t *Term) complain(o sched.Order, err error) {
	t.propose(func(error) {}, &commandv1.Command{
		Head: t.head(),
		Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{
			Workloads: []*commandv1.Unplaced{{
				Workload:     o.Workload,
				IfGeneration: fsm.GenerationPB(o.Generation),
				Code:         fsm.CodeDispatchFailed,
				Message:      "node " + o.Node + " could not be told: " + err.Error(),
			}},
		}},
	})
}
