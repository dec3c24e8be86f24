package control

import (
	"container/heap"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// node is what the leader knows of one node in memory. Times are Unix nanoseconds on the wall clock.
type node struct {
	id       string
	index    uint64 // log index of the replicated node record from which the fields up and protocol come
	protocol uint32
	up       bool // the node is Up in the replicated state

	heard    int64  // time of the last heartbeat that extended the lease in this term; 0 = none yet
	expires  int64  // earliest time at which the planner may declare the node lost
	granted  int64  // end of the last lease that the node was told; 0 = none
	sequence uint64 // highest number of a heartbeat since the node registered
	full     bool   // the node's complete list of workloads was received in this term
	downAt   int64  // since when this term knows that the node is down; 0 = the node is up
	expiring bool   // the planner is declaring the node lost; its lease must not be extended meanwhile

	usage     sched.NodeUsage
	moves     []sched.MoveReport             // what the node last reported about moves of volumes
	pools     map[string]int64               // GB in use in each storage pool, by name; the map is never changed
	workloads map[string]sched.WorkloadUsage // last reported use by workload; a complete list of the node replaces the map

	pos int // index in the heap expiry; -1 = not in the heap
}

// liveness is the liveness table: all nodes by id, and the nodes that are up, sorted by the end of their
// lease.
type liveness struct {
	cfg      *Settings
	nodes    btree.Map[string, *node]
	expiry   expiryHeap
	returned btree.Map[string, *node] // nodes that the state has as down, but that have a valid lease
	downAt   btree.Map[string, int64] // for each node that is down, since when; each planning step gets a copy
	expiring []*node
}

func (l *liveness) init(cfg *Settings) { l.cfg = cfg }

// length returns the length of a node's lease in nanoseconds.
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

// place updates two lists of nodes: expiry has the nodes that are up, and returned has those that
// are down in the state but have sent a heartbeat. It adds n to each list, or removes n from it.
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

// begin fills the table at the start of a term: every node of the state gets one full lease from now.
func (l *liveness) begin(view fsm.View, now int64) {
	l.sync(view, now)
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires = now + l.length(n.protocol)
		n.granted = n.expires
		return true
	})
	heap.Init(&l.expiry)
}

// sync updates the table to the records of a view. It is called if the leader has missed changes
// before the view, so that it cannot process them one by one.
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

// grantAll gives every node a lease that lasts at least its full length from now. It is called at the end of
// a frozen mode.
func (l *liveness) grantAll(now int64) {
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires = max(n.expires, now+l.length(n.protocol))
		return true
	})
	heap.Init(&l.expiry)
}

// shift moves every deadline by d nanoseconds, because the process was paused or its clock was set.
func (l *liveness) shift(d int64) {
	l.nodes.Scan(func(_ string, n *node) bool {
		n.expires += d
		if n.downAt != 0 {
			l.setDownAt(n, n.downAt+d)
		}
		return true
	})
}

// observe takes over the replicated record of a node. A record that is older than the last one changes
// nothing.
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
		// A node that the state has just marked up gets a full lease, in which it must send its first heartbeat.
		n.expires = max(n.expires, now+l.length(record.Facts.Protocol))
	}
	if n.up && !record.Up {
		n.heard = 0 // before the node may return, it must send another heartbeat
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

// removed drops a node whose record was removed from the state. old is its last record.
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

// hear stores the reported use in a heartbeat, which arrived at the time mono on the monotonic clock. It does not
// extend the lease. It returns false if a later heartbeat arrived before this one, which must then change nothing.
func (l *liveness) hear(hb *sched.Heartbeat, mono int64) bool {
	n, ok := l.nodes.Get(hb.Node)
	if !ok || hb.Sequence < n.sequence {
		return false
	}
	n.sequence = hb.Sequence
	n.full = n.full || hb.Full
	n.usage = hb.Used
	n.moves = hb.Moves
	if hb.PoolsUsed != nil {
		n.pools = hb.PoolsUsed
	}
	former := n.workloads
	if hb.Full || n.workloads == nil {
		n.workloads = make(map[string]sched.WorkloadUsage, len(hb.Usage))
	}
	for _, u := range hb.Usage {
		// A heartbeat with the complete list of workloads also repeats old measurements: for these, keep the
		// time at which the measurement first arrived.
		if u.Heard = mono; former[u.Workload].At == u.At && former[u.Workload].Heard != 0 {
			u.Heard = former[u.Workload].Heard
		}
		n.workloads[u.Workload] = u
	}
	return true
}

// reregistered resets the number of the last heartbeat of a node, because an agent that has registered counts
// from 1 again.
func (l *liveness) reregistered(id string) {
	if n, ok := l.nodes.Get(id); ok {
		n.sequence, n.full = 0, false
	}
}

// askForAll makes the next answer to a node ask for its complete list of workloads, because one of its
// reports was lost.
func (l *liveness) askForAll(id string) {
	if n, ok := l.nodes.Get(id); ok {
		n.full = false
	}
}

// extend moves the end of a node's lease to the time received (the arrival of the heartbeat) plus the length
// of the lease, but never to an earlier time. The caller has confirmed, after the time received, that this
// replica leads. ok is false if the node is unknown or is being declared lost. back is true if the state has
// the node as down and this is its first heartbeat since then.
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

// clearExpiring allows all leases to be extended again. It is called when the commands of a planning
// step, which may declare nodes lost, have been applied or refused.
func (l *liveness) clearExpiring() {
	for _, n := range l.expiring {
		n.expiring = false
	}
	l.expiring = l.expiring[:0]
}

// snapshot is what a planning step reads about liveness and orders. It does not change during the step. Its
// times are on the planner's clock.
type snapshot struct {
	expired, returned []heardNode
	nextExpiry        int64
	offset            int64 // planner's clock minus wall clock, in nanoseconds
	downAt            *btree.Map[string, int64]
	outstanding       *btree.BTreeG[latestOrder]
	moves             map[string]moving // nodes that take part in moves of volumes
}

// moving is what a node last said about moves of volumes.
type moving struct {
	reports []sched.MoveReport // never changed
	heard   int64              // time of its last heartbeat; 0 = none
}

type heardNode struct {
	id             string
	heard, expires int64
}

// snapshot returns the liveness of all nodes at the time now. From then until clearExpiring, the leases of
// expired nodes cannot be extended. Otherwise a node could be granted a lease and declared lost at the same
// time.
func (l *liveness) snapshot(now int64, grace int64) snapshot {
	var s snapshot
	var walk func(i int)
	walk = func(i int) { // in the heap, children expire after their parent: look at them only if the parent has expired
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

// Expired calls fn for each node in the snapshot whose lease has ended by now.
func (s snapshot) Expired(now int64, fn func(sched.NodeID, int64) bool) {
	each(s.expired, func(n heardNode) bool { return n.expires <= now-s.offset }, fn)
}

// Returned calls fn for each node in the snapshot that was down and has sent a heartbeat again.
func (s snapshot) Returned(now int64, fn func(sched.NodeID, int64) bool) {
	each(s.returned, func(n heardNode) bool { return n.expires > now-s.offset }, fn)
}

// NextExpiry returns the earliest end of a lease in the snapshot, on the planner's clock.
func (s snapshot) NextExpiry() int64 { return s.onPlannersClock(s.nextExpiry) }

// DownSince returns the time from which on this leader has known that a node is down.
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

// MoveReport returns what a node had last reported about the move of a workload's volumes.
func (s snapshot) MoveReport(node, workload string) (sched.MoveReport, bool) {
	return moveReport(s.moves[node].reports, workload)
}

// Heard returns when a node that takes part in a move of volumes had sent its last heartbeat, on the planner's clock.
func (s snapshot) Heard(node string) int64 { return s.onPlannersClock(s.moves[node].heard) }

func moveReport(list []sched.MoveReport, workload string) (sched.MoveReport, bool) {
	for _, r := range list {
		if r.Workload == workload {
			return r, true
		}
	}
	return sched.MoveReport{}, false
}

// movesOf returns what the nodes that take part in moves of volumes last said.
func (l *liveness) movesOf(v fsm.View) map[string]moving {
	out := map[string]moving{}
	v.Moves(func(m *fsm.Move) bool {
		for _, id := range []string{m.From, m.To} {
			if n, ok := l.nodes.Get(id); ok {
				out[id] = moving{n.moves, n.heard}
			}
		}
		return true
	})
	return out
}

// Outstanding reports whether the dispatcher had this order, or a newer one for the same workload, when the
// snapshot was taken.
func (s snapshot) Outstanding(o sched.Order) bool {
	latest, ok := s.outstanding.Get(latestOrder{key: keyOf(o)})
	return ok && !latest.generation.Less(o.Generation)
}
