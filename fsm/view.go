package fsm

import "github.com/persys/compute/fsm/rollout"

// View is a consistent, read-only picture of the state at one index. Taking one
// is O(1) and never blocks Apply; it stays valid and unchanged for as long as it
// is held. Records are shared: callers must not modify what the pointers show.
//
// Scans call fn in key order until it returns false.
type View interface {
	Info() Info

	Workload(id string) (*Workload, bool)
	Workloads(after string, fn func(*Workload) bool) // ids > after
	WorkloadCount() int
	StatusCount(s Status) int // workloads in this status, O(1)
	WorkloadsOn(node string, fn func(*Workload) bool)
	Group(group string, fn func(*Workload) bool)
	// Pending scans workloads that ought to be placed and are not, by descending
	// priority, then by age of the demand (CreateIndex), then id.
	Pending(fn func(*Workload) bool)
	PendingCount() int
	// Unacknowledged scans placed workloads whose present generation the node has
	// not accepted yet.
	Unacknowledged(fn func(*Workload) bool)
	// RetryDue scans workloads with Retry.NextAt in (0, until], earliest first.
	RetryDue(until int64, fn func(*Workload) bool)
	// NextRetry is the earliest Retry.NextAt, 0 if none.
	NextRetry() int64

	Node(id string) (*Node, bool)
	Nodes(after string, fn func(*Node) bool)
	NodeCount() int
	Alloc(node string) Alloc
	// PortHolder says which workload holds a host port of an engine ("" = free),
	// and on which node; residuals hold theirs until they are gone.
	PortHolder(engine string, p HostPort) (workload, node string)

	Residual(node, workload string) (*Residual, bool)
	Residuals(node string, fn func(*Residual) bool)       // of one node; "" = all
	ResidualsOf(workload string, fn func(*Residual) bool) // of one workload
	ResidualCount() int

	// Tombstone returns what is remembered of a deleted workload.
	Tombstone(workload string) (*Tombstone, bool)
	Tombstones(fn func(*Tombstone) bool) // by workload
	TombstoneCount() int

	// Namespace returns one namespace, and Namespaces scans all, the default one too; see
	// namespaces.go. NamespacesOf are those that a user is confined to, none: it is not.
	Namespace(name string) (*Namespace, bool)
	Namespaces(fn func(*Namespace) bool)
	UseOf(namespace string) Use
	NamespacesOf(user string) []string

	// Revisions are the specifications of a workload that are known, oldest first.
	Revisions(workload string) []Revision

	// Rollout is the last update of a group that went through it member by member, Rolling
	// scans those that go on, and Seen is what they look at; see rollouts.go.
	Rollout(group string) (*rollout.Rollout, bool)
	Rolling(fn func(*rollout.Rollout) bool)
	Seen(id string) rollout.Seen

	Replica(id string) (*Replica, bool)
	Replicas(fn func(*Replica) bool)

	// Authorities, tokens, admissions and revocations are what join and renew
	// certificates; see trust.go.
	Authority(id string) (*Authority, bool)
	Authorities(fn func(*Authority) bool)
	Issuer(now int64) (*Authority, bool)
	Token(id string) (*Token, bool)
	Tokens(fn func(*Token) bool)
	Admission(role, name string) (*Admission, bool)
	Admissions(fn func(*Admission) bool)
	Revocations(fn func(*Revocation) bool)
	RevokedIdentity(role, name string) (*Revocation, bool)
	RevokedCertificate(fingerprint string) (*Revocation, bool)

	// Events scans kept events with Seq > after, oldest first.
	Events(after uint64, fn func(*Event) bool)
	// EventsBack scans kept events newest first.
	EventsBack(fn func(*Event) bool)

	// AuditedUntil is the Unix second in which the last known task of a node
	// ended, on the agent's clock; 0 = none is known.
	AuditedUntil(node string) int64
	NodeAudit(node string) (*NodeAudit, bool)

	// Drifts scans the open drifts of one node, or of all if node is "", by
	// workload and type.
	Drifts(node string, fn func(*Drift) bool)
	Drift(node, workload, kind string) (*Drift, bool)
	DriftCount() int

	// Receipt returns the stored answer to an API mutation.
	Receipt(request [16]byte) (Result, bool)
	ReceiptCount() int
}
