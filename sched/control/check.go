package control

import (
	"fmt"
	"maps"
	"slices"
)

// Check recomputes every count and bound of the term and reports the first that does not
// hold. Tests and the simulator call it.
func (t *Term) Check() error {
	if err := t.orders.check(&t.cfg); err != nil {
		return err
	}
	if err := t.live.check(); err != nil {
		return err
	}
	for i := 1; i < t.timers.Len(); i++ {
		if t.timers.Less(i, (i-1)/2) {
			return fmt.Errorf("timer %d is due before its parent", i)
		}
	}
	if len(t.reports.order) != len(t.reports.pending) {
		return fmt.Errorf("%d reports are pending, %d are in order", len(t.reports.pending), len(t.reports.order))
	}
	if t.reads.running > t.cfg.Inspections || len(t.reads.waiting) > maxWaiting {
		return fmt.Errorf("%d inspections are running and %d wait, at most %d and %d may", t.reads.running, len(t.reads.waiting), t.cfg.Inspections, maxWaiting)
	}
	return nil
}

func (d *dispatcher) check(cfg *Settings) error {
	type count struct{ entries, flying, outstanding int }
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
			return fmt.Errorf("the order of %v is %v", k, e.order)
		}
		if e.flight != 0 {
			n.flying++
			all.flying++
		}
		latest := e.order.Generation
		if e.next != nil {
			latest = e.next.Generation
		}
		switch o, ok := d.outstanding.Get(latestOrder{key: k}); {
		case ok == e.spent:
			return fmt.Errorf("order %v is spent %t and outstanding %t", e.order, e.spent, ok)
		case ok && o.generation != latest:
			return fmt.Errorf("order %v counts as outstanding at %s, not %s", e.order, o.generation, latest)
		case ok:
			all.outstanding++
		}
		byNode[k.node] = n
	}
	if d.outstanding.Len() != all.outstanding || d.flying != all.flying || all.flying > cfg.Parallel {
		return fmt.Errorf("%d orders are outstanding and %d in flight (counted: %d and %d), at most %d may be in flight",
			d.outstanding.Len(), d.flying, all.outstanding, all.flying, cfg.Parallel)
	}
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		q, n := d.nodes[id], byNode[id]
		if q.entries != n.entries || n.entries > cfg.NodeQueue {
			return fmt.Errorf("node %s: %d orders are held (counted: %d), at most %d may be", id, q.entries, n.entries, cfg.NodeQueue)
		}
		if n.flying > q.flying || q.flying > cfg.NodeParallel {
			return fmt.Errorf("node %s: %d orders are in flight or ready (in flight: %d), at most %d may be", id, q.flying, n.flying, cfg.NodeParallel)
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
			err = fmt.Errorf("node %s: up %t, down since %d, indexed at %d", id, n.up, n.downAt, at)
		case returned != (!n.up && n.heard != 0):
			err = fmt.Errorf("node %s: up %t, heard at %d, counts as returned %t", id, n.up, n.heard, returned)
		case n.up && (n.pos < 0 || l.expiry[n.pos] != n):
			err = fmt.Errorf("node %s is up and not in the expiry heap", id)
		}
		if n.up {
			up++
		}
		return err == nil
	})
	if err == nil && up != len(l.expiry) {
		err = fmt.Errorf("%d nodes are up, %d are in the expiry heap", up, len(l.expiry))
	}
	for i := 1; i < len(l.expiry) && err == nil; i++ {
		if l.expiry.Less(i, (i-1)/2) {
			err = fmt.Errorf("node %s expires before its parent in the heap", l.expiry[i].id)
		}
	}
	return err
}
