package fsm

import "github.com/persys/compute/fsm/rollout"

// View is a consistent, read-only snapshot of the state at one index. Taking a View is O(1) and
// never blocks Apply. A View stays valid and unchanged for as long as it is held. Records are
// shared: callers must not modify them.
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
	// Pending scans workloads that wait for placement, by descending priority, then by
	// CreateIndex, then by id.
	Pending(fn func(*Workload) bool)
	PendingCount() int
	// Unacknowledged scans placed workloads whose present generation is not yet accepted by
	// their node.
	Unacknowledged(fn func(*Workload) bool)
	// RetryDue scans workloads with Retry.NextAt in (0, until], earliest first.
	RetryDue(until int64, fn func(*Workload) bool)
	// NextRetry returns the earliest Retry.NextAt; 0 if there is none.
	NextRetry() int64

	Node(id string) (*Node, bool)
	Nodes(after string, fn func(*Node) bool)
	NodeCount() int
	Alloc(node string) Alloc
	// PortHolder returns the workload that holds a host port of an engine and its node; "" if
	// the port is free. Residuals hold their ports until they are gone.
	PortHolder(engine string, p HostPort) (workload, node string)

	Residual(node, workload string) (*Residual, bool)
	Residuals(node string, fn func(*Residual) bool)       // of one node; "" = all
	ResidualsOf(workload string, fn func(*Residual) bool) // of one workload
	ResidualCount() int

	// Tombstone returns the tombstone of a deleted workload.
	Tombstone(workload string) (*Tombstone, bool)
	Tombstones(fn func(*Tombstone) bool) // by workload
	TombstoneCount() int

	// Namespace returns one namespace. Namespaces scans all of them, with the default
	// namespace. NamespacesOf returns the namespaces that a user is confined to; a user
	// without any acts everywhere. See namespaces.go.
	Namespace(name string) (*Namespace, bool)
	Namespaces(fn func(*Namespace) bool)
	UseOf(namespace string) Use
	NamespacesOf(user string) []string

	// Revisions returns the recorded specifications of a workload, oldest first.
	Revisions(workload string) []Revision

	// Rollout returns the last member-by-member update of a group. Rolling scans the running
	// updates. Seen returns the facts about a member that an update depends on. See
	// rollouts.go.
	Rollout(group string) (*rollout.Rollout, bool)
	Rolling(fn func(*rollout.Rollout) bool)
	Seen(id string) rollout.Seen

	Replica(id string) (*Replica, bool)
	Replicas(fn func(*Replica) bool)

	// The tables that issue, renew and revoke certificates; see trust.go.
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

	// Events scans the kept events with Seq > after, oldest first.
	Events(after uint64, fn func(*Event) bool)
	// EventsBack scans the kept events, newest first.
	EventsBack(fn func(*Event) bool)

	// AuditedUntil returns the Unix second in which the last recorded task of a node ended, on
	// the agent's clock; 0 if none is recorded. NodeAudit returns the whole record.
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
