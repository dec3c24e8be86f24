package sched

import (
	"math"
	"math/bits"
	"sort"

	"github.com/persys/compute/fsm"
)

// Weights of the other parts of a score, in parts of a node. One member of the same group
// counts like half a node of load, so only a large difference in load outweighs it.
const (
	perMember = whole / 2
	perAvoid  = whole / 2
)

// smallClass is the number of candidates up to which each one is looked at.
const smallClass = 192

// Score is a node's score for one demand, in millionths of a node; the lowest
// total wins. Equal totals are settled by a hash of workload and node.
type Score struct {
	Load  int64 // mean promised share of CPU, memory and disk
	Added int64 // share that the demand adds, on a node of this size class
	Group int64 // members of the same group on the node, half a node each
	Taint int64 // PreferNoSchedule taints that are not tolerated, half a node
	Total int64
}

// query is one search for the best node.
type query struct {
	x    *nodeIndex
	d    *fsm.Demand
	at   uint64 // the workload's place on the ring
	from int32  // first slot clockwise from there

	best   int32 // slot, -1 = none
	score  int64
	dist   uint64
	result Score // of best
}

// query prepares the search for one demand.
func (x *nodeIndex) query(v fsm.View, id string, d *fsm.Demand) query {
	x.prepare(v, d)
	for i := range x.sizes {
		x.added[i] = x.sizes[i].added(d)
	}
	q := query{x: x, d: d, at: hash(x.seed, id), best: -1, score: math.MaxInt64}
	q.from = int32(sort.Search(len(x.ring), func(i int) bool { return x.ring[i] >= q.at }))
	return q
}

// added is the mean share that a demand takes of a node of this size, computed as in
// loadOf. The size class stands for the node, so that the nodes of one class keep their
// order by load.
func (z *size) added(d *fsm.Demand) int64 {
	var sum, n int64
	add := func(need, total int64) {
		if total > 0 {
			sum += min(need, 100*total) * whole / total
			n++
		}
	}
	add(d.CPU, z.cpu)
	add(d.Memory, z.mem)
	add(d.Disk, z.disk)
	if n == 0 {
		return 0
	}
	return sum / n
}

// base turns load into a score by policy. Under either policy a node without totals comes
// last.
func (x *nodeIndex) base(load int64) int64 {
	switch {
	case x.policy != BinPack:
		return load
	case load < noTotals:
		return whole - load
	}
	return 3*noTotals - load
}

// scoreOf returns the score of a node with its parts.
func (x *nodeIndex) scoreOf(d *fsm.Demand, s int32) Score {
	h := &x.hot[s]
	sc := Score{Load: int64(h.load), Added: x.sizes[x.shapes[h.shape].size].added(d)}
	sc.Group = int64(h.members) * perMember
	if avoids(d, x.recs[s]) {
		sc.Taint = perAvoid
	}
	sc.Total = x.base(sc.Load+sc.Added) + sc.Group + sc.Taint
	return sc
}

// offer keeps a node if it is the best so far.
func (q *query) offer(s int32, score int64) {
	dist := q.x.ring[s] - q.at
	if score < q.score || score == q.score && (dist < q.dist || dist == q.dist && s < q.best) {
		q.best, q.score, q.dist = s, score, dist
	}
}

// search finds the best node that passes every filter: first among nodes
// without members of the demand's group, which keep the order of the index, then
// among the few with members.
func (q *query) search(members []int32) {
	x := q.x
	if ids, ok := pinned(q.d); ok {
		for _, id := range ids {
			if s, ok := x.slotOf[id]; ok && x.ready.has(s) && static(q.d, x.recs[s]).filter == passes && x.room(q.d, s) == passes {
				q.offer(s, x.scoreOf(q.d, s).Total)
			}
		}
		return
	}
	c := x.classOf(q.d)
	if c.count == 0 {
		return
	}
	if n := c.count - c.avoided; n > 0 {
		q.among(c.allowed, c.avoid, n, c.plain, 0)
	}
	if c.avoided > 0 {
		q.among(c.avoid, nil, c.avoided, c.shunned, perAvoid)
	}
	for _, s := range members {
		if !c.allowed.has(s) || !x.ready.has(s) {
			continue
		}
		score := q.plainScore(s) + int64(x.hot[s].members)*perMember
		if c.avoid.has(s) {
			score += perAvoid
		}
		if score <= q.score && x.room(q.d, s) == passes {
			q.offer(s, score)
		}
	}
}

// plainScore is a node's score by load alone.
func (q *query) plainScore(s int32) int64 {
	h := &q.x.hot[s]
	return q.x.base(int64(h.load) + q.x.added[q.x.shapes[h.shape].size])
}

// pinned returns the nodes that a demand names by node.id. Such demands get no class: each
// would have its own.
func pinned(d *fsm.Demand) ([]string, bool) {
	for i := range d.Constraints {
		if c := &d.Constraints[i]; c.Key == nodeIDKey && (c.Op == "=" || c.Op == "in") {
			return c.Values, true
		}
	}
	return nil, false
}

// among searches the nodes in mask and not in except that have no members of the group.
// inShape counts them by shape.
func (q *query) among(mask, except bitset, count int, inShape []int32, extra int64) {
	x := q.x
	if count > smallClass {
		// Search the shape with the best possible score first, so that most others can be
		// left out.
		first, best := -1, int64(math.MaxInt64)
		for i, n := range inShape {
			if n > 0 {
				if hope := q.hope(i); hope < best {
					first, best = i, hope
				}
			}
		}
		if first < 0 {
			return
		}
		q.sorted(&x.shapes[first], mask, except, extra)
		for i, n := range inShape {
			if n > 0 && i != first && q.hope(i)+extra <= q.score {
				q.sorted(&x.shapes[i], mask, except, extra)
			}
		}
		return
	}
	for i, word := range mask {
		if except != nil {
			word &^= except[i]
		}
		for word &= x.ready[i]; word != 0; word &= word - 1 {
			s := int32(i*64 + bits.TrailingZeros64(word))
			if x.hot[s].members == 0 && x.room(q.d, s) == passes {
				q.offer(s, q.plainScore(s)+extra)
			}
		}
	}
}

// hope is the best score that a node of a shape can have.
func (q *query) hope(shape int) int64 {
	sh := &q.x.shapes[shape]
	switch {
	case len(sh.order.chunks) == 0:
		return math.MaxInt64 / 2
	case q.x.policy == BinPack:
		return q.x.base(sh.order.high + q.x.added[sh.size])
	}
	return q.x.base(sh.order.low + q.x.added[sh.size])
}

// sorted searches one shape in the order of load. All nodes of a shape get the
// same addition, so the first load at which a node passes is the best of the
// shape, and only nodes of exactly that load compete by ring distance.
func (q *query) sorted(sh *shape, mask, except bitset, extra int64) {
	o := &sh.order
	n := len(o.chunks)
	if n == 0 {
		return
	}
	x := q.x
	added := x.added[sh.size]
	for step := range n {
		c := step
		if x.policy == BinPack {
			c = n - 1 - step
		}
		ch := &o.chunks[c]
		nearest := ch.keys[0]
		if x.policy == BinPack {
			nearest = ch.keys[len(ch.keys)-1]
		}
		if x.base(loadIn(nearest)+added)+extra > q.score {
			return
		}
		if q.d.CPU > 0 && ch.freeCPU < q.d.CPU || q.d.Memory > 0 && ch.freeMem < q.d.Memory {
			continue
		}
		short := 0
		for i := range ch.keys {
			key := ch.keys[i]
			if x.policy == BinPack {
				key = ch.keys[len(ch.keys)-1-i]
			}
			ok, tight := q.candidate(slotIn(key), mask, except)
			if tight {
				short++
			}
			if ok {
				score := x.base(loadIn(key)+added) + extra
				if score <= q.score {
					q.offer(q.tied(o, key, mask, except), score)
				}
				return
			}
		}
		if short > len(ch.keys)/2 {
			ch.tighten(x)
		}
	}
}

// candidate reports whether a node passes, and if not, whether for want of CPU
// or memory.
func (q *query) candidate(s int32, mask, except bitset) (ok, tight bool) {
	if !mask.has(s) || except != nil && except.has(s) || q.x.hot[s].members != 0 {
		return false, false
	}
	f := q.x.room(q.d, s)
	return f == passes, f == shortCPU || f == shortMemory
}

// tied returns, of the nodes with exactly the load of key, the first one clockwise from
// the workload's place on the ring. The node of key passes the filters.
func (q *query) tied(o *order, key uint64, mask, except bitset) int32 {
	load := uint32(key >> 32)
	first := slotIn(key)
	if s, ok := q.walk(o, orderKey(load, q.from), load, mask, except); ok {
		return s
	}
	// None from there to the end of the ring: continue at its start.
	if s, ok := q.walk(o, orderKey(load, 0), load, mask, except); ok {
		return s
	}
	return first
}

func (q *query) walk(o *order, key uint64, load uint32, mask, except bitset) (int32, bool) {
	c, i := o.seek(key)
	for ; c < len(o.chunks); c, i = c+1, 0 {
		for _, k := range o.chunks[c].keys[i:] {
			if uint32(k>>32) != load {
				return 0, false
			}
			if ok, _ := q.candidate(slotIn(k), mask, except); ok {
				return slotIn(k), true
			}
		}
	}
	return 0, false
}
