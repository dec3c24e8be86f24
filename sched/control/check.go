package control

import (
	"fmt"
	"maps"
	"slices"
)

// Check compares the stored counts of the term with the data that they count, and checks its limits. It
// returns an error for the first that is wrong. Tests and the simulator call it.
func (t *Term) Check() error {
	if err := t.orders.check(&t.cfg); err != nil {
		return err
	}
	if err := t.live.check(); err != nil {
		return err
	}
	for i := 1; i < t.timers.Len(); i++ {
		if t.timers.Less(i, (i-1)/2) {
			return fmt.Errorf("the heap of timers is out of order: timer %d is below a timer that is due later", i)
		}
	}
	if len(t.reports.order) != len(t.reports.pending) {
		return fmt.Errorf("%d workload reports wait to be committed, but the list of their order has %d", len(t.reports.pending), len(t.reports.order))
	}
	if t.reads.running > t.cfg.Inspections || len(t.reads.waiting) > maxWaiting {
		return fmt.Errorf("%d reads of agents are running and %d wait; the limits are %d and %d", t.reads.running, len(t.reads.waiting), t.cfg.Inspections, maxWaiting)
	}
	return nil
}

func (d *dispatcher) check(cfg *Settings) error {
	type count struct{ entries, inFlight, outstanding int }
	byNode := map[string]count{}
	all := count{}
	for _, k := range slices.SortedFunc(maps.Keys(d.entries), func(a, b orderKey) int {
		if a.less(b) {
			return -1
		}
		return 1
	}) {
		e, n := d.entries[k], byNode[k.node]
		n.entries++
		if keyOf(e.order) != k {
			return fmt.Errorf("the order for %v is stored under another key: %v", k, e.order)
		}
		if e.flight != 0 {
			n.inFlight++
			all.inFlight++
		}
		latest := e.order.Generation
		if e.next != nil {
			latest = e.next.Generation
		}
		switch o, ok := d.outstanding.Get(latestOrder{key: k}); {
		case ok == e.spent:
			return fmt.Errorf("the dispatcher's entry of order %v has spent = %t and outstanding = %t; exactly one of them must be true", e.order, e.spent, ok)
		case ok && o.generation != latest:
			return fmt.Errorf("order %v is outstanding with generation %s, want %s", e.order, o.generation, latest)
		case ok:
			all.outstanding++
		}
		byNode[k.node] = n
	}
	if d.outstanding.Len() != all.outstanding || d.inFlight != all.inFlight || all.inFlight > cfg.Parallel {
		return fmt.Errorf("%d orders are held and %d are in flight (counted: %d and %d), at most %d may be in flight",
			d.outstanding.Len(), d.inFlight, all.outstanding, all.inFlight, cfg.Parallel)
	}
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		q, n := d.nodes[id], byNode[id]
		if q.entries != n.entries || n.entries > cfg.NodeQueue {
			return fmt.Errorf("node %s: %d orders are held (counted: %d), at most %d may be", id, q.entries, n.entries, cfg.NodeQueue)
		}
		if n.inFlight > q.inFlight || q.inFlight > cfg.NodeParallel {
			return fmt.Errorf("node %s: %d orders are in flight or ready (in flight: %d), at most %d may be", id, q.inFlight, n.inFlight, cfg.NodeParallel)
		}
	}
	return nil
}

func (l *liveness) check() (err error) {
	up := 0
	l.nodes.Scan(func(id string, n *node) bool {
		at, down := l.downAt.Get(id)
		_, returned := l.returned.Get(id)
		switch {
		case down != (n.downAt != 0) || at != n.downAt || down == n.up:
			err = fmt.Errorf("node %s: up is %t, down since %d, but the map downAt has %d", id, n.up, n.downAt, at)
		case returned != (!n.up && n.heard != 0):
			err = fmt.Errorf("node %s: up is %t and the last heartbeat was at %d, but membership in the set returned is %t", id, n.up, n.heard, returned)
		case n.up && (n.pos < 0 || l.expiry[n.pos] != n):
			err = fmt.Errorf("node %s is up, but is missing in the heap of lease ends", id)
		}
		if n.up {
			up++
		}
		return err == nil
	})
	if err == nil && up != len(l.expiry) {
		err = fmt.Errorf("%d nodes are up, but the heap of lease ends has %d", up, len(l.expiry))
	}
	for i := 1; i < len(l.expiry) && err == nil; i++ {
		if l.expiry.Less(i, (i-1)/2) {
			err = fmt.Errorf("the heap of lease ends is out of order: node %s is below a node whose lease ends later", l.expiry[i].id)
		}
	}
	return err
}
