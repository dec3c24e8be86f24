package control

import (
	"container/heap"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// node is what the leader remembers of one node. Times are Unix nanoseconds, wall clock.
type node struct {
	id       string
	index    uint64 // of the record that up and protocol come from
	protocol uint32
	up       bool // as the replicated state has it

	heard    int64  // last heartbeat that extended the lease in this term, 0 = none yet
	expires  int64  // from then on the planner may declare the node lost
	granted  int64  // end of the lease that the node was last told, 0 = none
	sequence uint64 // highest heartbeat number of this registration
	full     bool   // its complete list was received in this term
	downAt   int64  // since when this term knows the node to be down, 0 while it is up
	expiring bool   // the planner is declaring it lost; nothing extends its lease meanwhile

	usage     sched.NodeUsage
	pools     map[string]int64               // GB in use, by name; the map is never changed
	workloads map[string]sched.WorkloadUsage // a complete list replaces it

	pos int // in the expiry heap; -1 = not in it
}

// liveness is the liveness table: nodes by id and, of those that are up, by the end of
// their lease.
type liveness struct {
	cfg      *Settings
	nodes    btree.Map[string, *node]
	expiry   expiryHeap
	returned btree.Map[string, *node] // heard with a valid lease while the state has them down
	downAt   btree.Map[string, int64] // node.downAt where it is not 0; planning gets a copy
	expiring []*node
}

func (l *liveness) init(cfg *Settings) { l.cfg = cfg }

// length is the length of a node's lease, nanoseconds.
func (l *liveness) length(protocol uint32) int64 {
	_, d := l.cfg.leaseTerms(protocol, l.nodes.Len())
	return int64(d)
}

type expiryHeap []*node

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }
func (h *expiryHeap) Push(x any)        { n := x.(*node); n.pos = len(*h); *h = append(*h, n) }
func (h *expiryHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	n.pos = -1
	return n
}

// place puts n where its expiry and its state belong.
func (l *liveness) place(n *node) {
	switch {
	case n.up && n.pos < 0:
		heap.Push(&l.expiry, n)
	case n.up:
		heap.Fix(&l.expiry, n.pos)
	case n.pos >= 0:
		heap.Remove(&l.expiry, n.pos)
	}
	if !n.up && n.heard != 0 {
		l.returned.Set(n.id, n)
	} else {
		l.returned.Delete(n.id)
	}
}

func (l *liveness) setDownAt(n *node, at int64) {
	if n.downAt = at; at != 0 {
		l.downAt.Set(n.id, at)
	} else {
		l.downAt.Delete(n.id)
	}
}

// begin starts a term: every node of the state is granted one full lease from now.
func (l *liveness) begin(view fsm.View, now int64) {
	l.sync(view, now)
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires = now + l.length(n.protocol)
		n.granted = n.expires
		return true
	})
	heap.Init(&l.expiry)
}

// sync brings the table up to a view whose changes were missed.
func (l *liveness) sync(view fsm.View, now int64) {
	view.Nodes("", func(n *fsm.Node) bool {
		l.observe(n, now)
		return true
	})
	var gone []*node
	l.nodes.Scan(func(id string, n *node) bool {
		if _, ok := view.Node(id); !ok && n.index <= view.Info().Index {
			gone = append(gone, n)
		}
		return true
	})
	for _, n := range gone {
		l.drop(n)
	}
}

// grantAll lets no node expire before a full lease from now, as at the end of a frozen
// mode.
func (l *liveness) grantAll(now int64) {
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires = max(n.expires, now+l.length(n.protocol))
		return true
	})
	heap.Init(&l.expiry)
}

// shift moves every deadline by d nanoseconds: the process was paused, or its clock was
// set.
func (l *liveness) shift(d int64) {
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires += d
		if n.downAt != 0 {
			l.setDownAt(n, n.downAt+d)
		}
		return true
	})
}

// observe takes over the replicated record of a node. A record that is older than the
// one already seen changes nothing.
func (l *liveness) observe(record *fsm.Node, now int64) {
	n, ok := l.nodes.Get(record.ID)
	switch {
	case !ok:
		n = &node{id: record.ID, pos: -1}
		l.nodes.Set(record.ID, n)
	case record.ModifyIndex < n.index:
		return
	}
	if record.Up && !n.up {
		// It gets a full lease to be heard in, whoever declared it up.
		n.expires = max(n.expires, now+l.length(record.Facts.Protocol))
	}
	if n.up && !record.Up {
		n.heard = 0 // it must be heard again before it may return
	}
	switch {
	case record.Up:
		l.setDownAt(n, 0)
	case n.downAt == 0:
		l.setDownAt(n, now)
	}
	n.index, n.up, n.protocol = record.ModifyIndex, record.Up, record.Facts.Protocol
	l.place(n)
}

// removed forgets a node whose record is gone; old is its last record.
func (l *liveness) removed(old *fsm.Node) {
	if n, ok := l.nodes.Get(old.ID); ok && n.index <= old.ModifyIndex {
		l.drop(n)
	}
}

func (l *liveness) drop(n *node) {
	n.up, n.heard = false, 0
	l.place(n)
	l.setDownAt(n, 0)
	l.nodes.Delete(n.id)
}

// hear takes over the figures of a heartbeat; it does not extend the lease. It reports
// false for a heartbeat that was overtaken by a later one and must change nothing.
func (l *liveness) hear(hb *sched.Heartbeat) bool {
	n, ok := l.nodes.Get(hb.Node)
	if !ok || hb.Sequence < n.sequence {
		return false
	}
	n.sequence = hb.Sequence
	n.full = n.full || hb.Full
	n.usage = hb.Used
	if hb.PoolsUsed != nil {
		n.pools = hb.PoolsUsed
	}
	if hb.Full || n.workloads == nil {
		n.workloads = make(map[string]sched.WorkloadUsage, len(hb.Usage))
	}
	for _, u := range hb.Usage {
		n.workloads[u.Workload] = u
	}
	return true
}

// reregistered starts the count of a node's heartbeats again.
func (l *liveness) reregistered(id string) {
	if n, ok := l.nodes.Get(id); ok {
		n.sequence, n.full = 0, false
	}
}

// askForAll has a node send its complete list: one of its reports was lost.
func (l *liveness) askForAll(id string) {
	if n, ok := l.nodes.Get(id); ok {
		n.full = false
	}
}

// extend moves the end of a node's lease to received plus its length, never back.
// Leadership was confirmed after received. It reports false if the node is being
// declared lost. back means that the state has the node down and that this is the first
// it is heard since.
func (l *liveness) extend(id string, received int64) (ok, back bool) {
	n, known := l.nodes.Get(id)
	if !known || n.expiring {
		return false, false
	}
	back = n.heard == 0 && !n.up
	end := received + l.length(n.protocol)
	n.heard = max(n.heard, received)
	n.expires, n.granted = max(n.expires, end), max(n.granted, end)
	l.place(n)
	return true, back
}

// clearExpiring lets leases be extended again once the planner's commands are judged.
func (l *liveness) clearExpiring() {
	for _, n := range l.expiring {
		n.expiring = false
	}
	l.expiring = l.expiring[:0]
}

// snapshot is what one planning step may know of liveness and of orders: it does not
// change while the step is planned. Its times are on the planner's clock.
type snapshot struct {
	expired, returned []heardNode
	nextExpiry        int64
	offset            int64 // planner's clock minus wall clock
	downAt            *btree.Map[string, int64]
	outstanding       *btree.BTreeG[latestOrder]
}

type heardNode struct {
	id             string
	heard, expires int64
}

// snapshot takes the liveness of all nodes at a time. The leases of expired nodes cannot
// be extended until clearExpiring: otherwise one of them could be granted a lease and be
// declared lost at the same time.
func (l *liveness) snapshot(now int64, grace int64) snapshot {
	var s snapshot
	var walk func(i int)
	walk = func(i int) { // the heap is only partly ordered: go down while parents are expired
		if i >= len(l.expiry) || l.expiry[i].expires > now-grace {
			return
		}
		n := l.expiry[i]
		n.expiring = true
		l.expiring = append(l.expiring, n)
		s.expired = append(s.expired, heardNode{n.id, n.heard, n.expires})
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
	l.returned.Scan(func(id string, n *node) bool {
		if n.expires > now {
			s.returned = append(s.returned, heardNode{id, n.heard, n.expires})
		}
		return true
	})
	if len(l.expiry) > 0 {
		s.nextExpiry = l.expiry[0].expires
	}
	s.downAt = l.downAt.Copy()
	return s
}

func each(nodes []heardNode, among func(heardNode) bool, fn func(sched.NodeID, int64) bool) {
	for _, n := range nodes {
		if among(n) && !fn(n.id, n.heard) {
			return
		}
	}
}

// Expired implements sched.Liveness.
func (s snapshot) Expired(now int64, fn func(sched.NodeID, int64) bool) {
	each(s.expired, func(n heardNode) bool { return n.expires <= now-s.offset }, fn)
}

// Returned implements sched.Liveness.
func (s snapshot) Returned(now int64, fn func(sched.NodeID, int64) bool) {
	each(s.returned, func(n heardNode) bool { return n.expires > now-s.offset }, fn)
}

// NextExpiry implements sched.Liveness.
func (s snapshot) NextExpiry() int64 { return s.onPlannersClock(s.nextExpiry) }

// DownSince implements sched.Liveness.
func (s snapshot) DownSince(node string) int64 {
	at, _ := s.downAt.Get(node)
	return s.onPlannersClock(at)
}

func (s snapshot) onPlannersClock(at int64) int64 {
	if at == 0 {
		return 0
	}
	return at + s.offset
}

// Outstanding implements sched.Liveness.
func (s snapshot) Outstanding(o sched.Order) bool {
	latest, ok := s.outstanding.Get(latestOrder{key: keyOf(o)})
	return ok && !latest.generation.Less(o.Generation)
}
