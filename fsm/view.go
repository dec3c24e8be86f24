package fsm

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/policy"
)

// View is a consistent, read-only snapshot of the state at one index. Taking a View is O(1) and
// never blocks Apply. A View stays valid and unchanged for as long as it is held. Records are
// shared: callers must not modify them.
//
// Scans call fn in key order until it returns false.
type View interface {
	Info() Info

	Workload(id string) (*Workload, bool)
	Workloads(after string, fn func(*Workload) bool) // workloads with ids greater than after
	WorkloadCount() int
	StatusCount(s Status) int // workloads in this status, O(1)
	WorkloadsOn(node string, fn func(*Workload) bool)
	Group(group string, fn func(*Workload) bool)
	// Children scans the workloads that were created from a template, by id; see templates.go.
	Children(template string, fn func(*Workload) bool)
	Ruled(fn func(*Workload) bool) // workloads that have tags or a required anti-affinity to others
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
	// PortHolder returns the workload for which a host port of an engine is reserved, and its node; "" if the
	// port is free. The ports of an instance that a node must still remove (residual) stay reserved until it
	// is removed.
	PortHolder(engine string, p HostPort) (workload, node string)

	Residual(node, workload string) (*Residual, bool)
	Residuals(node string, fn func(*Residual) bool)       // Residuals scans the residuals of one node; "" = of all nodes
	ResidualsOf(workload string, fn func(*Residual) bool) // ResidualsOf scans the residuals of one workload
	ResidualCount() int

	// Tombstone returns the tombstone of a deleted workload.
	Tombstone(workload string) (*Tombstone, bool)
	Tombstones(fn func(*Tombstone) bool) // tombstones, by workload id
	TombstoneCount() int

	// Namespace returns one namespace. Namespaces scans all of them, including the default namespace.
	// NamespacesOf returns the namespaces that list a user; if there are none, the user may act everywhere.
	// See namespaces.go.
	Namespace(name string) (*Namespace, bool)
	Namespaces(fn func(*Namespace) bool)
	UseOf(namespace string) Use
	// Room returns the limit of the size of the whole state, and Total its present size; see room.go.
	Room() Room
	Total() Total
	NamespacesOf(user string) []string

	// Preempted scans the workloads whose last preemption was after the given time, in Unix nanoseconds, the
	// earliest first; see preempt.go.
	Preempted(after int64, fn func(*Workload) bool)
	// RankOf returns the rank of a workload: its priority, which decides which workloads it may
	// preempt; see preempt.go.
	RankOf(w *Workload) Rank

	// Policy returns one policy. Policies scans all of them, including the built-in ones. PolicyIn returns
	// the policy that is bound to a namespace, NodePolicies the policies that are bound to labels of a
	// node, and Admitted the policy against which a workload was checked when it was stored. See
	// policies.go.
	Policy(name string) (*Policy, bool)
	Policies(fn func(*Policy) bool)
	PolicyIn(namespace string) *Policy
	NodePolicies(n *Node) []*policy.Policy
	Admitted(w *Workload) *policy.Policy

	// Role returns a role that is not built in, and Roles scans all of these. Bindings scans all bindings of
	// roles, BindingsOf those of one subject. See roles.go. Account returns the identity of a program, and
	// Accounts scans all of them; see accounts.go.
	Role(name string) (*Role, bool)
	Roles(fn func(*Role) bool)
	Bindings(fn func(*Binding) bool)
	BindingsOf(kind, name string, fn func(*Binding) bool)
	Account(name string) (*Account, bool)
	Accounts(fn func(*Account) bool)
	// Console returns a session of the web console; Consoles scans all of them, by id.
	Console(id string) (*Console, bool)
	Consoles(fn func(*Console) bool)

	// Network returns one network of a namespace; Networks scans all of them, by namespace and name.
	Network(namespace, name string) (*Network, bool)
	Networks(fn func(*Network) bool)

	// Audit scans the records of an audit log. AuditLast returns the number of its newest record. See
	// auditlog.go.
	Audit(l AuditLog, after uint64, fn func(before AuditHash, r *AuditRecord) bool)
	AuditLast(l AuditLog) uint64

	// NameFault returns why command b would be refused because of the DNS names or Ethernet addresses of
	// its workloads; see names.go.
	NameFault(b *commandv1.PutWorkloads, leaving []*Workload, sees func(namespace string) bool) string

	// Revisions returns the recorded specifications of a workload, oldest first.
	Revisions(workload string) []Revision

	// Bundle returns the sealed files of a Compose stack by their digest; Bundles scans all of them.
	Bundle(digest string) (*Bundle, bool)
	Bundles(fn func(*Bundle) bool)

	// Object returns a secret or a config of a namespace; Objects scans all of them. UsersOf scans
	// the workloads that use an object, and the versions that they use; 0 = the version that is
	// present at each start.
	Object(namespace, kind, name string) (*Object, bool)
	Objects(fn func(*Object) bool)
	UsersOf(o *Object, fn func(w *Workload, version uint64) bool)

	// Volume returns one volume; Volumes scans all of them, by namespace, name, driver and node.
	// UsersOfVolume returns the ids of the workloads that use a volume. See volumes.go.
	Volume(namespace, name, driver, node string) (*Volume, bool)
	Volumes(fn func(*Volume) bool)
	VolumeView
	UsersOfVolume(v *Volume) []string
	MoveView

	// Rollout returns the last member-by-member update of a group. Rolling scans the running updates. Seen
	// returns the present state of a member, as far as an update depends on it. See rollouts.go.
	Rollout(group string) (*rollout.Rollout, bool)
	Rolling(fn func(*rollout.Rollout) bool)
	Seen(id string) rollout.Seen

	Replica(id string) (*Replica, bool)
	Replicas(fn func(*Replica) bool)

	// The next methods read the tables of certificate authorities, join tokens, issued
	// certificates and revocations; see trust.go.
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

	// Drifts scans the open drifts of one node, or of all nodes if node is "", by workload and type.
	Drifts(node string, fn func(*Drift) bool)
	Drift(node, workload, kind string) (*Drift, bool)
	DriftCount() int

	// Receipt returns the stored answer to an API mutation.
	Receipt(request [16]byte, hash uint64) (Result, bool)
	ReceiptCount() int
}
