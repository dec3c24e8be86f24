package fsm

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm/queue"
	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/fsm/rollout"
)

// State is the whole replicated state at one index: a pointer to a root that never changes after
// a Tx has committed it. Copying a State costs nothing, and any number of goroutines may read
// one.
//
// Only one goroutine at a time may call Begin (and so Apply) on the states of one cluster:
// copying a tree for writing marks the original. Readers share the pointer and do not call it.
//
// State implements View. The zero State is not usable; start with New.
type State struct{ r *root }

type (
	table[V any] = btree.Map[string, V]
	set          = btree.Map[string, struct{}]
)

// root holds the tables, and below them the indexes that follow from the tables. The indexes are
// rebuilt after a snapshot is read, and Check compares them with the tables.
type root struct {
	info Info

	workloads *table[*Workload]   // by id
	nodes     *table[*Node]       // by id
	residuals *table[*Residual]   // by node/workload
	replicas  *table[*Replica]    // by id
	events    *queue.Queue[Event] // Seq after Seq
	receipts  *receipts.Queue

	authorities *table[*Authority]  // by id
	tokens      *table[*Token]      // by id
	admissions  *table[*Admission]  // by role/name
	revocations *table[*Revocation] // by role/name or certificate:fingerprint
	audits      *table[*NodeAudit]  // by node
	drifts      *table[*Drift]      // by node/workload/type
	namespaces  *table[*Namespace]  // by name

	tombstones *table[*Tombstone]       // by workload
	rollouts   *table[*rollout.Rollout] // by group

	byNode          *set              // node/workload
	byGroup         *set              // group/workload
	pending         *set              // see pendingKey
	unacked         *set              // workload
	retryDue        *set              // see retryKey
	residualsOf     *set              // workload/node
	ports           *table[portClaim] // see portKey
	alloc           *table[*Alloc]    // by node
	tombstonesByAge *set              // see tombstoneKey
	uses            *table[*Use]      // by namespace
	byUser          *set              // user/namespace
	rolling         *set              // groups whose rollout is running
	statuses        [len(statusOrder)]int
}

// degree of the trees, half of the default of the library. A log entry copies the tree nodes on
// the path to each record that it changes, so small nodes are cheaper.
const degree = 16

func tree[K cmp.Ordered, V any]() *btree.Map[K, V] { return btree.NewMap[K, V](degree) }

// portClaim names the workload that claims a host port, and its node.
type portClaim struct{ workload, node string }

// New returns the state of a cluster that is not formed yet: no cluster id, index 0, and every
// command except InitCluster and Barrier is refused as Unsupported.
func New() State {
	return State{&root{
		info:            Info{Mode: ModeNormal},
		workloads:       tree[string, *Workload](),
		nodes:           tree[string, *Node](),
		residuals:       tree[string, *Residual](),
		replicas:        tree[string, *Replica](),
		events:          &queue.Queue[Event]{},
		receipts:        receipts.New(),
		authorities:     tree[string, *Authority](),
		tokens:          tree[string, *Token](),
		admissions:      tree[string, *Admission](),
		revocations:     tree[string, *Revocation](),
		tombstones:      tree[string, *Tombstone](),
		rollouts:        tree[string, *rollout.Rollout](),
		rolling:         tree[string, struct{}](),
		audits:          tree[string, *NodeAudit](),
		drifts:          tree[string, *Drift](),
		namespaces:      tree[string, *Namespace](),
		uses:            tree[string, *Use](),
		byUser:          tree[string, struct{}](),
		byNode:          tree[string, struct{}](),
		byGroup:         tree[string, struct{}](),
		pending:         tree[string, struct{}](),
		unacked:         tree[string, struct{}](),
		retryDue:        tree[string, struct{}](),
		residualsOf:     tree[string, struct{}](),
		ports:           tree[string, portClaim](),
		alloc:           tree[string, *Alloc](),
		tombstonesByAge: tree[string, struct{}](),
	}}
}

var _ View = State{}

// View returns the state as a View. It copies nothing.
func (s State) View() View { return s }

// Info returns the part of the state that is not a table.
func (s State) Info() Info { return s.r.info }

// Workload returns one workload.
func (s State) Workload(id string) (*Workload, bool) { return s.r.workloads.Get(id) }

// Workloads scans workloads with ids greater than after.
func (s State) Workloads(after string, fn func(*Workload) bool) {
	s.r.workloads.Ascend(after, func(id string, w *Workload) bool {
		return id == after || fn(w)
	})
}

// WorkloadCount is the number of workload records, deleting ones included.
func (s State) WorkloadCount() int { return s.r.workloads.Len() }

// StatusCount is the number of workloads in one status; 0 for an unknown one.
func (s State) StatusCount(st Status) int {
	if i := statusIndex(st); i >= 0 {
		return s.r.statuses[i]
	}
	return 0
}

// WorkloadsOn scans the workloads assigned to a node, by id.
func (s State) WorkloadsOn(node string, fn func(*Workload) bool) {
	s.scan(s.r.byNode, node+"/", fn)
}

// Group scans the workloads of a group, by id.
func (s State) Group(group string, fn func(*Workload) bool) {
	s.scan(s.r.byGroup, group+"/", fn)
}

// scan visits the workloads whose ids follow prefix in an index.
func (s State) scan(ix *set, prefix string, fn func(*Workload) bool) {
	ix.Ascend(prefix, func(k string, _ struct{}) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		w, ok := s.r.workloads.Get(k[len(prefix):])
		return !ok || fn(w)
	})
}

// Pending scans workloads that ought to be placed and are not, by descending
// priority, then age, then id.
func (s State) Pending(fn func(*Workload) bool) {
	s.r.pending.Scan(func(k string, _ struct{}) bool {
		w, ok := s.r.workloads.Get(k[pendingPrefix:])
		return !ok || fn(w)
	})
}

// PendingCount is the number of workloads that Pending visits.
func (s State) PendingCount() int { return s.r.pending.Len() }

// Unacknowledged scans placed workloads whose order is not accepted yet, by id.
func (s State) Unacknowledged(fn func(*Workload) bool) { s.scan(s.r.unacked, "", fn) }

// RetryDue scans workloads with Retry.NextAt in (0, until], earliest first.
func (s State) RetryDue(until int64, fn func(*Workload) bool) {
	s.r.retryDue.Scan(func(k string, _ struct{}) bool {
		if retryTime(k) > until {
			return false
		}
		w, ok := s.r.workloads.Get(k[8:])
		return !ok || fn(w)
	})
}

// NextRetry is the earliest Retry.NextAt, 0 if none.
func (s State) NextRetry() int64 {
	k, _, ok := s.r.retryDue.Min()
	if !ok {
		return 0
	}
	return retryTime(k)
}

// Node returns one node.
func (s State) Node(id string) (*Node, bool) { return s.r.nodes.Get(id) }

// Nodes scans nodes with ids greater than after.
func (s State) Nodes(after string, fn func(*Node) bool) {
	s.r.nodes.Ascend(after, func(id string, n *Node) bool {
		return id == after || fn(n)
	})
}

// NodeCount is the number of registered nodes, lost ones included.
func (s State) NodeCount() int { return s.r.nodes.Len() }

// Alloc is what is promised on a node; zero if nothing is or it is unknown.
// Callers must not modify its Disk.
func (s State) Alloc(node string) Alloc {
	if a, ok := s.r.alloc.Get(node); ok {
		return *a
	}
	return Alloc{}
}

// PortHolder says which workload holds a host port of an engine, and on which
// node. When an update made two workloads of one engine want the same port, the
// holder is what may still run there although it should not, then the one whose
// order is older.
func (s State) PortHolder(engine string, p HostPort) (workload, node string) {
	prefix := portKey(engine, p)
	s.r.ports.Ascend(prefix, func(k string, c portClaim) bool {
		if strings.HasPrefix(k, prefix) {
			workload, node = c.workload, c.node
		}
		return false
	})
	return workload, node
}

// Residual returns what a node may still run of a workload.
func (s State) Residual(node, workload string) (*Residual, bool) {
	return s.r.residuals.Get(pair(node, workload))
}

// Residuals scans the residuals of one node, by workload; of all if node is "".
func (s State) Residuals(node string, fn func(*Residual) bool) {
	if node == "" {
		s.r.residuals.Scan(func(_ string, r *Residual) bool { return fn(r) })
		return
	}
	prefix := node + "/"
	s.r.residuals.Ascend(prefix, func(k string, r *Residual) bool {
		return strings.HasPrefix(k, prefix) && fn(r)
	})
}

// ResidualsOf scans the residuals of one workload, by node.
func (s State) ResidualsOf(workload string, fn func(*Residual) bool) {
	prefix := workload + "/"
	s.r.residualsOf.Ascend(prefix, func(k string, _ struct{}) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		r, ok := s.r.residuals.Get(pair(k[len(prefix):], workload))
		return !ok || fn(r)
	})
}

// ResidualCount is the number of residuals of all nodes.
func (s State) ResidualCount() int { return s.r.residuals.Len() }

// Replica returns one announced scheduler.
func (s State) Replica(id string) (*Replica, bool) { return s.r.replicas.Get(id) }

// Replicas scans the announced schedulers, by id.
func (s State) Replicas(fn func(*Replica) bool) {
	s.r.replicas.Scan(func(_ string, r *Replica) bool { return fn(r) })
}

// Events scans kept events with Seq > after, oldest first.
func (s State) Events(after uint64, fn func(*Event) bool) {
	for i := s.eventsUpTo(after); i < s.r.events.Len() && fn(s.r.events.At(i)); i++ {
	}
}

// eventsUpTo is the number of kept events with Seq <= seq.
func (s State) eventsUpTo(seq uint64) int {
	n := s.r.events.Len()
	if n == 0 || seq < s.r.events.At(0).Seq {
		return 0
	}
	return int(min(uint64(n), seq-s.r.events.At(0).Seq+1))
}

// EventsBack scans kept events newest first.
func (s State) EventsBack(fn func(*Event) bool) {
	for i := s.r.events.Len() - 1; i >= 0 && fn(s.r.events.At(i)); i-- {
	}
}

// Receipt returns the stored answer to an API mutation, marked Duplicate.
func (s State) Receipt(request [16]byte) (Result, bool) {
	rc, ok := s.r.receipts.Get(request)
	if !ok {
		return Result{}, false
	}
	return answerOf(rc), true
}

// ReceiptCount is the number of answers kept.
func (s State) ReceiptCount() int { return s.r.receipts.Len() }

// pair joins two ids. Ids hold no slash, so a pair reads back unambiguously.
func pair(a, b string) string { return a + "/" + b }

// pendingPrefix is how many bytes stand before the id in a pendingKey.
const pendingPrefix = 12

// pendingKey sorts by descending priority, then CreateIndex, then id.
func pendingKey(w *Workload) string {
	b := make([]byte, pendingPrefix, pendingPrefix+len(w.ID))
	// Flipping the sign bit makes int32 sort as bytes; the complement descends.
	binary.BigEndian.PutUint32(b, ^(uint32(w.Demand.Priority) ^ 1<<31))
	binary.BigEndian.PutUint64(b[4:], w.CreateIndex)
	return string(append(b, w.ID...))
}

// retryKey sorts by Retry.NextAt, which is positive, then id.
func retryKey(w *Workload) string {
	b := make([]byte, 8, 8+len(w.ID))
	binary.BigEndian.PutUint64(b, uint64(w.Retry.NextAt))
	return string(append(b, w.ID...))
}

func retryTime(key string) int64 { return int64(binary.BigEndian.Uint64([]byte(key[:8]))) }

// portKey is the prefix of all claims to one host port of one engine.
func portKey(engine string, p HostPort) string { return string(appendPortKey(nil, engine, p)) }

func appendPortKey(b []byte, engine string, p HostPort) []byte {
	b = append(b, engine...)
	b = append(b, 0)
	b = append(b, p.Protocol...)
	b = append(b, 0)
	return binary.BigEndian.AppendUint16(b, p.Port)
}

// claimKind says which part of a record claims a port.
type claimKind byte

const (
	claimFormer claimKind = iota // a port that an instance of a former order may bind
	claimLeft                    // a residual
	claimWanted                  // a workload's demand
)

// claimKey orders the claims to one port: first claims of instances that are to stop, then by
// generation. The kind is at the end because one command may turn a former port of a workload
// into a port of its residual, and the two claims must have different keys.
func claimKey(engine string, p HostPort, kind claimKind, g Generation, node, workload string) string {
	b := make([]byte, 0, len(engine)+len(p.Protocol)+len(node)+len(workload)+23)
	b = appendPortKey(b, engine, p)
	if kind == claimWanted {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = binary.BigEndian.AppendUint64(b, g.Incarnation)
	b = binary.BigEndian.AppendUint64(b, g.Sequence)
	b = append(b, node...)
	b = append(b, '/')
	b = append(b, workload...)
	return string(append(b, byte(kind)))
}
