package sched

import (
	"math"
	"math/bits"
	"sort"

	"github.com/persys/compute/fsm"
)

// The weights of group members and taints in a score, in parts (millionths of a node). One member of the same
// group on a node costs as much as half a node of load, so only a large difference in load outweighs it.
const (
	perMember = whole / 2
	perAvoid  = whole / 2
)

// smallClass is the number of candidates up to which every candidate is scored. If there are more, the sorted
// search is used.
const smallClass = 192

// Score is the score of a node for one demand, in millionths of a node. The lowest total wins. A hash of
// workload and node decides between equal totals.
type Score struct {
	Load  int64 // mean reserved share of CPU, memory and disk
	Added int64 // share that the demand adds on a node of this size class
	Group int64 // half a node for each member of the same group on the node
	Taint int64 // half a node if it has a PreferNoSchedule taint that the demand does not tolerate
	Rules int64 // sum of the weights of the preferred rules that the node does not satisfy, see rules.go
	Total int64
}

// query is one search for the best node for a demand.
type query struct {
	x    *nodeIndex
	d    *fsm.Demand
	in   *class // nil for a demand that names its nodes, see pinned
	bin  bool   // full nodes come first
	at   uint64 // position of the workload on the ring of node hashes
	from int32  // first node slot clockwise from the position at

	best   int32 // slot of the best node found so far; -1 = none
	score  int64
	dist   uint64
	result Score // score of the best node
}

// query prepares the search for the best node for a demand.
func (x *nodeIndex) query(v fsm.View, who subject, d *fsm.Demand) query {
	x.prepare(v, who.namespace, d)
	x.in = x.pooled[who.namespace]
	for i := range x.sizes {
		x.added[i] = x.sizes[i].added(d)
	}
	q := query{x: x, d: d, bin: x.packs(d), at: hash(x.seed, who.id), best: -1, score: math.MaxInt64}
	if _, ok := pinned(d); !ok {
		q.in = x.classOf(x.in, d)
	}
	q.from = int32(sort.Search(len(x.ring), func(i int) bool { return x.ring[i] >= q.at }))
	return q
}

// added returns the mean share of a node that a demand takes, computed as in loadOf for the size
// class of the node. The share depends only on the class, so all nodes of a class keep their order
// by load.
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

// packs reports whether a demand is to be placed by bin-packing (on full nodes), as its own
// placement policy or else that of the cluster says.
func (x *nodeIndex) packs(d *fsm.Demand) bool {
	if d.Placement != nil && d.Placement.Policy != "" {
		return Policy(d.Placement.Policy) == BinPack
	}
	return x.policy == BinPack
}

// base turns a load into a score by the placement policy (spread or bin-pack). With either policy, a node
// that reports no totals comes last.
func base(bin bool, load int64) int64 {
	switch {
	case !bin:
		return load
	case load < noTotals:
		return whole - load
	}
	return 3*noTotals - load
}

// scoreOf returns the parts and the total of a node's score.
func (x *nodeIndex) scoreOf(d *fsm.Demand, s int32) Score {
	h := &x.hot[s]
	sc := Score{Load: int64(h.load), Added: x.sizes[x.shapes[h.shape].size].added(d)}
	sc.Group = int64(h.members) * perMember
	if _, ok := avoids(d, x.recs[s]); ok {
		sc.Taint = perAvoid
	}
	sc.Rules = x.rules.cost(s)
	sc.Total = base(x.packs(d), sc.Load+sc.Added) + sc.Group + sc.Taint + sc.Rules
	return sc
}

// offer makes a node the result of the search so far, if its score is lower than that of the
// present result.
func (q *query) offer(s int32, score int64) {
	dist := q.x.ring[s] - q.at
	if score < q.score || score == q.score && (dist < q.dist || dist == q.dist && s < q.best) {
		q.best, q.score, q.dist = s, score, dist
	}
}

// search finds the best node that passes every filter: first among the nodes that are not listed, by the index
// sorted by load, then among the few listed nodes. Listed nodes have members of the demand's group, or
// workloads that a rule with topology "host" names.
func (q *query) search(listed []int32) {
	x := q.x
	if ids, ok := pinned(q.d); ok {
		for _, id := range ids {
			if s, ok := x.slotOf[id]; ok && x.ready.has(s) && x.hot[s].place >= 0 && x.static(x.in, q.d, s).filter == passes && !x.rules.rejects(s) && x.room(q.d, s) == passes {
				q.offer(s, x.scoreOf(q.d, s).Total)
			}
		}
		return
	}
	c := q.in
	if c.count == 0 {
		return
	}
	if n := c.count - c.avoided; n > 0 && !x.rules.onlyListed {
		q.among(c.allowed, c.avoid, n, c.plain, x.rules.elsewhere)
	}
	if c.avoided > 0 && !x.rules.onlyListed {
		q.among(c.avoid, nil, c.avoided, c.shunned, x.rules.elsewhere+perAvoid)
	}
	for _, s := range listed {
		h := &x.hot[s]
		if !c.allowed.has(s) || !x.ready.has(s) || h.place < 0 {
			continue
		}
		label := x.rules.byLabel(s)
		if label < 0 {
			continue
		}
		score := q.plainScore(s) + int64(h.members)*perMember + label + int64(max(0, h.place-1))
		if c.avoid.has(s) {
			score += perAvoid
		}
		if score <= q.score && x.room(q.d, s) == passes {
			q.offer(s, score)
		}
	}
}

// plainScore returns the score of a node from its load alone, without group members and taints.
func (q *query) plainScore(s int32) int64 {
	h := &q.x.hot[s]
	return base(q.bin, int64(h.load)+q.x.added[q.x.shapes[h.shape].size])
}

// pinned returns the nodes that a demand names by the label node.id. For such a demand the results of the
// filters are not kept in a class, because no other demand would use them.
func pinned(d *fsm.Demand) ([]string, bool) {
	for i := range d.Constraints {
		if c := &d.Constraints[i]; c.Key == fsm.NodeIDLabel && (c.Op == "=" || c.Op == "in") {
			return c.Values, true
		}
	}
	return nil, false
}

// among searches the unlisted nodes that are in the set mask but not in the set except. count is the number of
// these nodes, inShape their number in each shape (nodes with equal properties), and extra is added to each
// score.
func (q *query) among(mask, except bitset, count int, inShape []int32, extra int64) {
	x := q.x
	if count > smallClass {
		// Begin with the shape that has the best possible score, so that most others can be skipped.
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
			if ok, _ := q.candidate(s, mask, except); ok {
				q.offer(s, q.plainScore(s)+extra+x.rules.byLabel(s))
			}
		}
	}
}

// hope returns the best score that any node of a shape could have for the demand.
func (q *query) hope(shape int) int64 {
	sh := &q.x.shapes[shape]
	switch {
	case len(sh.order.chunks) == 0:
		return math.MaxInt64 / 2
	case q.bin:
		return base(q.bin, sh.order.high+q.x.added[sh.size])
	}
	return base(q.bin, sh.order.low+q.x.added[sh.size])
}

// sorted searches one shape in the order of load. The demand adds the same to all nodes of a shape, so the
// first node that passes the filters has the best score of the shape. Only nodes with exactly the same load
// compete with it, by their distance on the ring. If nodes differ in the preferred rules that they satisfy, the
// search goes on until no later node can be better.
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
		if q.bin {
			c = n - 1 - step
		}
		ch := &o.chunks[c]
		nearest := ch.keys[0]
		if q.bin {
			nearest = ch.keys[len(ch.keys)-1]
		}
		if base(q.bin, loadIn(nearest)+added)+extra > q.score {
			return
		}
		if q.d.CPU > 0 && ch.freeCPU < q.d.CPU || q.d.Memory > 0 && ch.freeMem < q.d.Memory {
			continue
		}
		short := 0
		for i := range ch.keys {
			key := ch.keys[i]
			if q.bin {
				key = ch.keys[len(ch.keys)-1-i]
			}
			if x.rules.differ && base(q.bin, loadIn(key)+added)+extra > q.score {
				return
			}
			ok, tight := q.candidate(slotIn(key), mask, except)
			if tight {
				short++
			}
			if ok {
				score := base(q.bin, loadIn(key)+added) + extra
				if x.rules.differ {
					q.offer(slotIn(key), score+x.rules.byLabel(slotIn(key)))
					continue
				}
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

// candidate reports whether a node passes all filters. If it does not, tight reports whether it lacks CPU or
// memory. Listed nodes do not pass.
func (q *query) candidate(s int32, mask, except bitset) (ok, tight bool) {
	h := &q.x.hot[s]
	if !mask.has(s) || except != nil && except.has(s) || h.members|h.place != 0 || q.x.rules.byLabel(s) < 0 {
		return false, false
	}
	f := q.x.room(q.d, s)
	return f == passes, f == shortCPU || f == shortMemory
}

// tied returns, among the nodes with exactly the load in key, the first one clockwise from the workload's
// position on the ring. The node in key passes the filters.
func (q *query) tied(o *order, key uint64, mask, except bitset) int32 {
	load := uint32(key >> 32)
	first := slotIn(key)
	if s, ok := q.walk(o, orderKey(load, q.from), load, mask, except); ok {
		return s
	}
	// No node up to the end of the ring qualifies, so continue at the start of the ring.
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
