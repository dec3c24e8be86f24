package leader

import (
	"container/heap"
	"sync"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// beat is what the leader remembers of one node. Times are Unix nanoseconds.
type beat struct {
	node     string
	index    uint64 // of the record that up and protocol come from
	protocol uint32
	up       bool // as the replicated state holds it

	heard    int64  // last heartbeat that extended the lease in this stint, 0 = none yet
	expires  int64  // when the planner may call the node lost
	told     int64  // end of the lease that the node was last granted, 0 = none
	sequence uint64 // highest seen of this registration
	full     bool   // its complete list has been read in this stint
	downAt   int64  // since when this stint knows the node to be down, 0 while it is up
	doomed   bool   // the planner is declaring it lost: nothing extends its lease now
	usage    sched.NodeUsage
	pools    map[string]int64 // GB in use, by name; never changed once it is here
	// workloads is what each of them uses; a complete list replaces it.
	workloads map[string]sched.WorkloadUsage

	pos int // in the expiry heap; -1 = not in it
}

// table is the liveness table: nodes by id and, for those that are up, ordered
// by the end of their lease.
type table struct {
	length func(protocol uint32, nodes int) int64 // of a lease, nanoseconds

	mu       sync.Mutex
	nodes    map[string]*beat
	expiry   expiryHeap
	returned map[string]*beat // heard with a valid lease while the state holds them down
	doomed   []*beat
}

func newTable(length func(protocol uint32, nodes int) int64) *table {
	return &table{length: length, nodes: map[string]*beat{}, returned: map[string]*beat{}}
}

type expiryHeap []*beat

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }
func (h *expiryHeap) Push(x any)        { b := x.(*beat); b.pos = len(*h); *h = append(*h, b) }
func (h *expiryHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	*h = old[:len(old)-1]
	b.pos = -1
	return b
}

// place puts b where its expiry belongs; the caller holds mu.
func (t *table) place(b *beat) {
	switch {
	case b.up && b.pos < 0:
		heap.Push(&t.expiry, b)
	case b.up:
		heap.Fix(&t.expiry, b.pos)
	case b.pos >= 0:
		heap.Remove(&t.expiry, b.pos)
	}
	if !b.up && b.heard != 0 {
		t.returned[b.node] = b
	} else {
		delete(t.returned, b.node)
	}
}

// begin starts a stint: every node of the state is granted one full lease from
// now, as leadership has just been established.
func (t *table) begin(view fsm.View, now int64) {
	t.sync(view, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.nodes {
		b.expires = now + t.length(b.protocol, len(t.nodes))
		b.told = b.expires
		if !b.up {
			b.downAt = now
		}
	}
	heap.Init(&t.expiry)
}

// sync brings the table up to a view whose changes were not seen one by one.
func (t *table) sync(view fsm.View, now int64) {
	view.Nodes("", func(n *fsm.Node) bool {
		t.observe(n, now)
		return true
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, b := range t.nodes {
		if _, ok := view.Node(id); !ok && b.index <= view.Info().Index {
			t.drop(b)
		}
	}
}

// grantAll lets no node expire before a full lease from now, as at the end of a
// frozen mode.
func (t *table) grantAll(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.nodes {
		b.expires = max(b.expires, now+t.length(b.protocol, len(t.nodes)))
	}
	heap.Init(&t.expiry)
}

// shift moves every deadline by d: this process was paused, or its clock was set.
func (t *table) shift(d int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.nodes {
		b.expires += d
		if b.downAt != 0 {
			b.downAt += d
		}
	}
}

// observe keeps the table in step with a replicated node. A record that is older
// than the one already seen changes nothing.
func (t *table) observe(n *fsm.Node, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.nodes[n.ID]
	switch {
	case b == nil:
		b = &beat{node: n.ID, pos: -1}
		t.nodes[n.ID] = b
	case n.ModifyIndex < b.index:
		return
	}
	if n.Up && !b.up {
		// Time to be heard in, whoever declared it up.
		b.expires = max(b.expires, now+t.length(n.Facts.Protocol, len(t.nodes)))
	}
	if b.up && !n.Up {
		b.heard = 0 // it must be heard again before it may return
	}
	switch {
	case n.Up:
		b.downAt = 0
	case b.downAt == 0:
		b.downAt = now
	}
	b.index, b.up, b.protocol = n.ModifyIndex, n.Up, n.Facts.Protocol
	t.place(b)
}

// removed forgets a node whose record is gone; old is what it last was.
func (t *table) removed(old *fsm.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.nodes[old.ID]; b != nil && b.index <= old.ModifyIndex {
		t.drop(b)
	}
}

func (t *table) drop(b *beat) {
	b.up, b.heard = false, 0
	t.place(b)
	delete(t.nodes, b.node)
}

// hear takes a heartbeat's figures in, which does not extend the lease. fresh is
// false for one that was overtaken by a later one and must change nothing.
func (t *table) hear(hb *sched.Heartbeat) (fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.nodes[hb.Node]
	if b == nil || hb.Sequence < b.sequence {
		return false
	}
	b.sequence = hb.Sequence
	b.full = b.full || hb.Full
	b.usage = hb.Used
	if hb.PoolsUsed != nil {
		b.pools = hb.PoolsUsed
	}
	if hb.Full || b.workloads == nil {
		b.workloads = make(map[string]sched.WorkloadUsage, len(hb.Usage))
	}
	for _, u := range hb.Usage {
		b.workloads[u.Workload] = u
	}
	return true
}

// registered begins a new registration: its heartbeats are counted from the start.
func (t *table) registered(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.nodes[node]; b != nil {
		b.sequence, b.full = 0, false
	}
}

// forgetReports asks a node for its complete list: something that it said was lost.
func (t *table) forgetReports(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.nodes[node]; b != nil {
		b.full = false
	}
}

// extend moves the end of a node's lease to received plus its length, never
// back. The caller has confirmed leadership after received. It reports false if
// the node is being declared lost; back means that the planner has to be told of
// a node that the state holds down.
func (t *table) extend(node string, received int64) (ok, back bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.nodes[node]
	if b == nil || b.doomed {
		return false, false
	}
	back = b.heard == 0 && !b.up
	end := received + t.length(b.protocol, len(t.nodes))
	b.heard = max(b.heard, received)
	b.expires, b.told = max(b.expires, end), max(b.told, end)
	t.place(b)
	return true, back
}

// usageOf returns what a workload last used on a node.
func (t *table) usageOf(node, workload string) (sched.WorkloadUsage, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.nodes[node]
	if b == nil {
		return sched.WorkloadUsage{}, false
	}
	u, ok := b.workloads[workload]
	return u, ok
}

// get returns a copy of what is known of a node.
func (t *table) get(node string) (b beat, nodes int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.nodes[node]
	if p == nil {
		return beat{}, len(t.nodes), false
	}
	return *p, len(t.nodes), true
}

// Expired is sched.Liveness's, by the wall clock. The nodes that it names cannot have their
// lease extended before pardon: otherwise one could be granted a lease and be
// declared lost at the same time.
func (t *table) Expired(now int64, fn func(sched.NodeID, int64) bool) {
	t.mu.Lock()
	type hit struct {
		node  string
		heard int64
	}
	var hits []hit
	// The heap is only partly ordered: walk down while parents are expired.
	var walk func(i int)
	walk = func(i int) {
		if i >= len(t.expiry) || t.expiry[i].expires > now {
			return
		}
		b := t.expiry[i]
		b.doomed = true
		t.doomed = append(t.doomed, b)
		hits = append(hits, hit{b.node, b.heard})
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
	t.mu.Unlock()
	for _, h := range hits {
		if !fn(h.node, h.heard) {
			return
		}
	}
}

// pardon ends what Expired began, once the planner's commands are judged.
func (t *table) pardon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.doomed {
		b.doomed = false
	}
	t.doomed = t.doomed[:0]
}

// NextExpiry is sched.Liveness's.
func (t *table) NextExpiry() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.expiry) == 0 {
		return 0
	}
	return t.expiry[0].expires
}

// Returned is sched.Liveness's.
func (t *table) Returned(now int64, fn func(sched.NodeID, int64) bool) {
	t.mu.Lock()
	var hits []beat
	for _, b := range t.returned {
		if b.expires > now {
			hits = append(hits, *b)
		}
	}
	t.mu.Unlock()
	for i := range hits {
		if !fn(hits[i].node, hits[i].heard) {
			return
		}
	}
}

// DownSince is sched.Liveness's.
func (t *table) DownSince(node string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.nodes[node]; b != nil {
		return b.downAt
	}
	return 0
}
