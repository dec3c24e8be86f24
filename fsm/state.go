package fsm

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/fsm/rollout"
)

// State is the whole replicated state at one index: a pointer to a root that never changes after a Tx has
// committed it. Copying a State costs nothing, and any number of goroutines may read it.
//
// Only one goroutine at a time may call Begin (and so Apply) on the states of one cluster, because Begin makes
// copy-on-write copies of the B-trees, which changes a marker in the originals. Reading needs no lock.
//
// State implements View. The zero State is not usable; start with New.
type State struct{ r *root }

type (
	table[V any] = btree.Map[string, V]
	set          = btree.Map[string, struct{}]
)

// root holds the tables of records, followed by the indexes that are computed from them. The indexes are
// rebuilt after a snapshot is read, and Check compares them with the tables.
type root struct {
	info Info

	workloads *table[*Workload] // keyed by workload id
	nodes     *table[*Node]     // keyed by node id
	residuals *table[*Residual] // keyed by node/workload
	replicas  *table[*Replica]  // keyed by Raft server id
	events    *queue[Event]     // ordered by Seq
	receipts  *receipts.Queue
	audit     auditLogs

	authorities *table[*Authority]  // keyed by authority id
	tokens      *table[*Token]      // keyed by token id
	admissions  *table[*Admission]  // keyed by role and name of the identity: role/name
	revocations *table[*Revocation] // keyed by role/name of the identity, or by certificate:fingerprint
	audits      *table[*NodeAudit]  // keyed by node id
	drifts      *table[*Drift]      // keyed by node/workload/type
	namespaces  *table[*Namespace]  // keyed by namespace name
	policies    *table[*Policy]     // keyed by policy name
	bundles     *table[*Bundle]     // keyed by bundle digest
	roles       *table[*Role]       // keyed by role name
	bindings    *table[*Binding]    // keyed by kind/name/role
	accounts    *table[*Account]    // keyed by account name
	consoles    *table[*Console]    // keyed by id
	networks    *table[*Network]    // keyed by namespace/name
	objects     *table[*Object]     // keyed by namespace/kind/name
	volumes     *table[*Volume]     // keyed by namespace/name/driver/node
	moves       *table[*Move]       // moves of volumes, keyed by workload id

	tombstones *table[*Tombstone]       // keyed by workload id
	rollouts   *table[*rollout.Rollout] // keyed by group name

	byNode          *set              // index of placed workloads; keys are node/workload
	byGroup         *set              // index of group members; keys are group/workload
	byOwner         *set              // index of children of templates; keys are template/workload
	byLabel         *set              // index of ids and groups that are not their own DNS label; keys from labelKeys
	byRule          *set              // index of workloads that affect the placement of other workloads, see ruled; keys are ids
	byVolume        *set              // index of the users of volumes; keys are namespace/name/driver/workload
	byMAC           *set              // index of Ethernet addresses of virtual machines; keys are address/workload
	byIngress       *set              // index of ports in ingress mode; keys are port/protocol/workload
	pending         *set              // index of workloads that wait for a placement; keys from pendingKey
	unacked         *set              // index of placed workloads whose order is not acknowledged; keys are ids
	retryDue        *set              // index of scheduled retries; keys from retryKey
	byPreemption    *set              // index of workloads by the time of their last preemption; keys from preemptionKey
	residualsOf     *set              // index of residuals by workload; keys are workload/node
	ports           *table[portClaim] // claims to host ports; keys begin with portKey
	alloc           *table[*Alloc]    // reserved resources, keyed by node id
	tombstonesByAge *set              // index of tombstones, oldest first; keys from tombstoneKey
	uses            *table[*Use]      // use of quotas, keyed by namespace name
	total           Total             // sum of the use of all namespaces
	byUser          *set              // index of the users of namespaces; keys are user/namespace
	policyIn        *table[string]    // name of the bound policy, keyed by namespace name
	rolling         *set              // groups whose rollout is running
	statuses        [len(statusOrder)]int
}

// degree is the degree of the B-trees (the size of their nodes), half of the library's default. A log
// entry copies the tree nodes on the path to each record that it changes, so small nodes are cheaper.
const degree = 16

func tree[K cmp.Ordered, V any]() *btree.Map[K, V] { return btree.NewMap[K, V](degree) }

// portClaim names the workload that claims a host port, and its node.
type portClaim struct{ workload, node, address string }

// New returns the state of a cluster that is not formed yet: no cluster id, index 0, and every
// command except InitCluster and Barrier is refused as Unsupported.
func New() State {
	return State{&root{
		info:            Info{Mode: ModeNormal},
		workloads:       tree[string, *Workload](),
		nodes:           tree[string, *Node](),
		residuals:       tree[string, *Residual](),
		replicas:        tree[string, *Replica](),
		events:          &queue[Event]{},
		receipts:        receipts.New(),
		audit:           newAuditLogs(),
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
		policies:        tree[string, *Policy](),
		bundles:         tree[string, *Bundle](),
		roles:           tree[string, *Role](),
		bindings:        tree[string, *Binding](),
		accounts:        tree[string, *Account](),
		consoles:        tree[string, *Console](),
		networks:        tree[string, *Network](),
		objects:         tree[string, *Object](),
		volumes:         tree[string, *Volume](),
		moves:           tree[string, *Move](),
		byVolume:        tree[string, struct{}](),
		policyIn:        tree[string, string](),
		uses:            tree[string, *Use](),
		byUser:          tree[string, struct{}](),
		byNode:          tree[string, struct{}](),
		byGroup:         tree[string, struct{}](),
		byOwner:         tree[string, struct{}](),
		byLabel:         tree[string, struct{}](),
		byRule:          tree[string, struct{}](),
		byMAC:           tree[string, struct{}](),
		byIngress:       tree[string, struct{}](),
		pending:         tree[string, struct{}](),
		unacked:         tree[string, struct{}](),
		retryDue:        tree[string, struct{}](),
		byPreemption:    tree[string, struct{}](),
		residualsOf:     tree[string, struct{}](),
		ports:           tree[string, portClaim](),
		alloc:           tree[string, *Alloc](),
		tombstonesByAge: tree[string, struct{}](),
	}}
}

var _ View = State{}

// View returns the state as a View. It copies nothing.
func (s State) View() View { return s }

// Info returns the part of the state that is not in a table: ids, mode, index, clock and counters.
func (s State) Info() Info { return s.r.info }

// Workload returns one workload.
func (s State) Workload(id string) (*Workload, bool) { return s.r.workloads.Get(id) }

// Workloads calls fn for the workloads with ids greater than after, in the order of ids.
func (s State) Workloads(after string, fn func(*Workload) bool) {
	s.r.workloads.Ascend(after, func(id string, w *Workload) bool {
		return id == after || fn(w)
	})
}

// WorkloadCount is the number of workload records, including workloads that are being deleted.
func (s State) WorkloadCount() int { return s.r.workloads.Len() }

// StatusCount returns the number of workloads in a status; 0 for an unknown status.
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

// eachUnder calls fn for the entries of a table whose keys begin with prefix, in the order of the keys, until fn returns false.
func eachUnder[V any](m *table[V], prefix string, fn func(key string, v V) bool) {
	m.Ascend(prefix, func(k string, v V) bool { return strings.HasPrefix(k, prefix) && fn(k, v) })
}

// countUnder returns the number of entries of a table whose keys begin with prefix.
func countUnder[V any](m *table[V], prefix string) (n int) {
	eachUnder(m, prefix, func(string, V) bool {
		n++
		return true
	})
	return n
}

// scan calls fn for the workloads of an index whose keys in the index are prefix followed by the workload id.
func (s State) scan(ix *set, prefix string, fn func(*Workload) bool) {
	ix.Ascend(prefix, func(k string, _ struct{}) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		w, ok := s.r.workloads.Get(k[len(prefix):])
		return !ok || fn(w)
	})
}

// Pending scans workloads that wait for a placement, by descending
// priority, then age, then id.
func (s State) Pending(fn func(*Workload) bool) {
	s.r.pending.Scan(func(k string, _ struct{}) bool {
		w, ok := s.r.workloads.Get(k[pendingPrefix:])
		return !ok || fn(w)
	})
}

// PendingCount is the number of workloads that Pending visits.
func (s State) PendingCount() int { return s.r.pending.Len() }

// Unacknowledged scans, by id, the placed workloads whose node has not yet accepted the present order.
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

// NextRetry is the earliest Retry.NextAt; 0 if there is none.
func (s State) NextRetry() int64 {
	k, _, ok := s.r.retryDue.Min()
	if !ok {
		return 0
	}
	return retryTime(k)
}

// Node returns one node.
func (s State) Node(id string) (*Node, bool) { return s.r.nodes.Get(id) }

// Nodes calls fn for the nodes with ids greater than after, in the order of ids.
func (s State) Nodes(after string, fn func(*Node) bool) {
	s.r.nodes.Ascend(after, func(id string, n *Node) bool {
		return id == after || fn(n)
	})
}

// NodeCount is the number of registered nodes, including lost ones.
func (s State) NodeCount() int { return s.r.nodes.Len() }

// Alloc returns the sum of the resources reserved on a node; zero for an unknown node. Callers must
// not modify the list Disk.
func (s State) Alloc(node string) Alloc {
	if a, ok := s.r.alloc.Get(node); ok {
		return *a
	}
	return Alloc{}
}

// PortHolder returns the workload, and its node, for which host port p of an engine, or a port that
// collides with p, is reserved. After an update, several workloads of one engine may claim the same
// port. A workload whose instance has yet to stop is then the holder. If no instance has yet to
// stop, the holder is the workload whose claim has the lowest generation.
func (s State) PortHolder(engine string, p HostPort) (workload, node string) {
	prefix := portKey(engine, p)
	s.r.ports.Ascend(prefix, func(k string, c portClaim) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		if !p.Collides(HostPort{p.Port, p.Protocol, c.address}) {
			return true
		}
		workload, node = c.workload, c.node
		return false
	})
	return workload, node
}

// Residual returns the residual of a workload on a node: the record that the node may still run an
// instance which it must remove.
func (s State) Residual(node, workload string) (*Residual, bool) {
	return s.r.residuals.Get(pair(node, workload))
}

// Residuals scans the residuals (instances that a node must still remove) of one node, by workload;
// of all nodes if node is "".
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

// ResidualsOf scans the residuals of one workload by node: the nodes that may still run an instance
// which they must remove.
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

// ResidualCount is the number of residuals (instances that a node must still remove) on all nodes.
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

// eventsUpTo returns how many of the events that the state still has have Seq <= seq.
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

// Receipt returns the stored answer to an API mutation, with Duplicate set. If the stored hash of
// the request differs from the given hash, Receipt returns a refusal of kind OtherRequest. A hash
// of 0 is not compared.
func (s State) Receipt(request [16]byte, hash uint64) (Result, bool) {
	rc, ok := s.r.receipts.Get(request)
	if !ok {
		return Result{}, false
	}
	return answerOf(rc, hash), true
}

// ReceiptCount is the number of answers kept.
func (s State) ReceiptCount() int { return s.r.receipts.Len() }

// pair joins two ids to one key. Ids contain no slash, so the key can be split again.
func pair(a, b string) string { return a + "/" + b }

// pendingPrefix is the number of bytes before the id in a pendingKey.
const pendingPrefix = 12

// pendingKey returns a key that sorts by descending priority, then CreateIndex, then id.
func pendingKey(w *Workload) string {
	b := make([]byte, pendingPrefix, pendingPrefix+len(w.ID))
	// Flip the sign bit, so that signed priorities sort as bytes. Complement all bits, so that the order is descending.
	binary.BigEndian.PutUint32(b, ^(uint32(w.Demand.Priority) ^ 1<<31))
	binary.BigEndian.PutUint64(b[4:], w.CreateIndex)
	return string(append(b, w.ID...))
}

// retryKey returns a key that sorts by Retry.NextAt, which is positive, then id.
func retryKey(w *Workload) string { return timeKey(w.Retry.NextAt, w.ID) }

func timeKey(at int64, id string) string {
	b := make([]byte, 8, 8+len(id))
	binary.BigEndian.PutUint64(b, uint64(at))
	return string(append(b, id...))
}

func retryTime(key string) int64 { return int64(binary.BigEndian.Uint64([]byte(key[:8]))) }

// portKey returns the common prefix of the keys of all claims to one host port of one engine.
func portKey(engine string, p HostPort) string { return string(appendPortKey(nil, engine, p)) }

func appendPortKey(b []byte, engine string, p HostPort) []byte {
	b = append(b, engine...)
	b = append(b, 0)
	b = append(b, p.Protocol...)
	b = append(b, 0)
	return binary.BigEndian.AppendUint16(b, p.Port)
}

// claimKind says which part of a record claims a host port.
type claimKind byte

const (
	claimFormer claimKind = iota // a claim to a former port of a workload, which an instance of an earlier order may still bind
	claimLeft                    // a port of a residual
	claimWanted                  // a claim to a port in the demand of a workload
)

// claimKey orders the claims to one port: claims of instances that are to stop come first, the others follow by
// generation. The kind is part of the key: one command may turn a former port of a workload into a port of its
// residual, and these two claims must have different keys.
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
	b = append(b, byte(kind))
	return string(append(b, p.Address...))
}
