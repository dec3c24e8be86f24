package fsm

import "fmt"

// Epoch names one stint of one leader: the incarnation of the cluster, then the
// Raft term. It orders every message from schedulers to agents (agent/DESIGN.md).
type Epoch struct {
	Incarnation uint64
	Term        uint64
}

// Less reports whether e is an older stint than o.
func (e Epoch) Less(o Epoch) bool {
	if e.Incarnation != o.Incarnation {
		return e.Incarnation < o.Incarnation
	}
	return e.Term < o.Term
}

func (e Epoch) String() string { return fmt.Sprintf("%d/%d", e.Incarnation, e.Term) }

// Generation orders everything an agent may be told about one workload. It
// advances whenever what the agent ought to do changes: a new spec, another
// desired state, another node, a retry.
type Generation struct {
	Incarnation uint64
	Sequence    uint64
}

// Less reports whether g is older than o.
func (g Generation) Less(o Generation) bool {
	if g.Incarnation != o.Incarnation {
		return g.Incarnation < o.Incarnation
	}
	return g.Sequence < o.Sequence
}

// IsZero reports whether g was never set; peers that know no generations send it.
func (g Generation) IsZero() bool { return g == Generation{} }

func (g Generation) String() string { return fmt.Sprintf("%d.%d", g.Incarnation, g.Sequence) }

// Status is the scheduler's word for where a workload stands (RULES, "States").
type Status string

// The ten states of a workload. Everything finer is a reason code.
const (
	StatusPending      Status = "Pending"      // stored, not placed, or the agent has not started it yet
	StatusScheduled    Status = "Scheduled"    // placed, the order is not acknowledged
	StatusUpdating     Status = "Updating"     // placed and running, a newer order is not acknowledged
	StatusRunning      Status = "Running"      // as its agent reports
	StatusStopped      Status = "Stopped"      // as its agent reports
	StatusFailed       Status = "Failed"       // as its agent reports, or attempts exhausted
	StatusUnknown      Status = "Unknown"      // the node's lease ended and the workload stays bound to it
	StatusRetryPending Status = "RetryPending" // waits for Retry.NextAt
	StatusDeleting     Status = "Deleting"     // marked for deletion, some node may still hold it
	StatusDeleted      Status = "Deleted"      // only ever in events and mirrors: a deleted record is removed
)

// Desired is what the user wants.
type Desired string

// The desired states.
const (
	DesiredRunning Desired = "Running"
	DesiredStopped Desired = "Stopped"
	DesiredDeleted Desired = "Deleted"
)

// Actual is a node's word for one workload.
type Actual string

// The actual states.
const (
	ActualNone    Actual = ""
	ActualPending Actual = "Pending"
	ActualRunning Actual = "Running"
	ActualStopped Actual = "Stopped"
	ActualFailed  Actual = "Failed"
	ActualUnknown Actual = "Unknown"
	ActualMissing Actual = "Missing"
)

// NodeStatus is derived from Node.Up and Node.Draining.
type NodeStatus string

// The node states.
const (
	NodeReady    NodeStatus = "Ready"
	NodeNotReady NodeStatus = "NotReady"
	NodeDraining NodeStatus = "Draining"
)

// Mode of the control plane (fsm/DESIGN.md).
type Mode string

// The modes; degraded and recovery are frozen.
const (
	ModeNormal   Mode = "normal"
	ModeDegraded Mode = "degraded"
	ModeRecovery Mode = "recovery"
)

// Frozen reports whether m refuses user mutations.
func (m Mode) Frozen() bool { return m != ModeNormal }

// Lost-lease policies of exclusive workloads.
const (
	OnLostLeaseKeep = "keep"
	OnLostLeaseStop = "stop"
)

// Label is one key=value pair. Slices of them are sorted by key, keys distinct.
type Label struct{ Key, Value string }

// Constraint is a placement rule over a node's labels. Op is one of
// =, !=, in, not-in, exists, not-exists.
type Constraint struct {
	Key    string
	Op     string
	Values []string
}

// Taint repels workloads that do not tolerate it. Effect is NoSchedule or
// PreferNoSchedule; as a toleration, an empty Value or Effect matches any.
type Taint struct{ Key, Value, Effect string }

// HostPort is a port on the host that a workload publishes. Protocol is tcp or udp.
type HostPort struct {
	Port     uint16
	Protocol string
}

// Demand is all that the planner knows of a spec (spec/DESIGN.md).
type Demand struct {
	Type           string // container, compose or vm
	CPU            int64  // millicores
	Memory         int64  // MiB
	Disk           int64  // GB
	Pool           string // storage pool; empty = the node's first
	StorageDrivers []string
	Ports          []HostPort
	Labels         []Label // the node must carry all of them
	Constraints    []Constraint
	Tolerations    []Taint
	Group          string
	Exclusive      bool
	OnLostLease    string // keep or stop
	Priority       int32
	PortNames      []PortName // sorted by name; for DNS
}

// Reason says why a workload or node is as it is: a code to match on and a
// sentence to read.
type Reason struct {
	Code      string
	Message   string
	At        int64 // Unix nanoseconds
	Retryable bool
}

// Reason codes that the state machine or the planner set. An agent's failure
// classes (contract/semantics.md section 9) are codes too.
const (
	CodeUnplaced          = "Unplaced"          // no node fits; Message counts why
	CodeNodeLost          = "NodeLost"          // its node's lease ended
	CodeAwaitFailover     = "AwaitFailover"     // exclusive: waits for `persysctl node fence`
	CodeAwaitStop         = "AwaitStop"         // waits until a node has stopped it, the former or, for what is to be stopped, a lost one
	CodeDraining          = "Draining"          // moved off a draining node
	CodeDoesNotFit        = "DoesNotFit"        // its node no longer satisfies the changed demand
	CodeBackoff           = "BackoffWait"       // RetryPending until NextAt
	CodeExhausted         = "RetriesExhausted"  // attempts used up
	CodePermanentFailure  = "PermanentFailure"  // a retry cannot help: change the spec
	CodeMissing           = "Missing"           // its node no longer has it
	CodeDispatchFailed    = "dispatch_failed"   // the agent could not be told
	CodeDeleting          = "Deleting"          // waits for its node to let go
	CodeNodeRemoved       = "NodeRemoved"       // its node was removed
	CodePreempted         = "Preempted"         // made room for a higher priority
	CodeApplyRefused      = "ApplyRefused"      // the agent refused the order
	CodeUserStop          = "UserStop"          // desired Stopped
	CodeUserRetry         = "UserRetry"         // persysctl retry
	CodeRuntimeNotOffered = "RuntimeNotOffered" // node lost that workload type
	CodeApplyTimeout      = "ApplyTimeout"      // accepted, and not there in time
	CodeDeleteTimeout     = "DeleteTimeout"     // to be gone, and not gone in time
)

// PortName is a service name of a port.
type PortName struct {
	Name          string
	ContainerPort uint16
	Protocol      string
	HostPort      uint16 // 0 = whatever it is published as
}

// Names reports whether the name is that of a published port.
func (n PortName) Names(p PortBinding) bool {
	return n.ContainerPort == p.ContainerPort && n.Protocol == orTCP(p.Protocol) && (n.HostPort == 0 || n.HostPort == p.HostPort)
}

func orTCP(protocol string) string {
	if protocol == "" {
		return "tcp"
	}
	return protocol
}

// PortBinding is a port as published by the runtime.
type PortBinding struct {
	HostPort      uint16
	ContainerPort uint16
	Protocol      string
}

// What Observation.Health says of a workload that has health checks.
const (
	Healthy        = "healthy"
	Unhealthy      = "unhealthy"
	HealthStarting = "starting"
)

// Observation is the last accepted report of the node that has the workload.
type Observation struct {
	State        Actual
	Generation   Generation // generation it speaks of
	Code         string     // failure class, empty if none
	Message      string
	Failure      int32 // control.v1 FailureReason
	Retryable    bool
	RestartCount int32
	Addresses    []string
	Ports        []PortBinding
	Health       string // Healthy, Unhealthy, HealthStarting; empty where nothing is checked
	At           int64  // Unix nanoseconds, agent's clock
}

// unobserved is the Actual of what no node has spoken of; never changed.
var unobserved = &Observation{}

// Retry is the backoff of one workload. The leader chooses NextAt and the log
// carries it.
type Retry struct {
	Attempts       int32
	MaxAttempts    int32
	NextAt         int64 // Unix nanoseconds; 0 = none scheduled
	FirstFailureAt int64 // Unix nanoseconds; 0 = no failure since the last success
	Terminal       bool  // no more retries until the user acts, or it has run for a while
	// StableSince is since when it runs after failures that still count, Unix
	// nanoseconds; 0 = it does not, or none count.
	StableSince int64
	Verdict     Verdict // why Terminal is set
}

// Verdict is the planner's last word on a workload that it gave up.
type Verdict struct{ Code, Message string }

// AgentAction is one task of an agent. Times are Unix seconds on its clock, 0 =
// not yet.
type AgentAction struct {
	TaskID    string
	Workload  string
	Type      string // apply_workload or delete_workload
	Status    string // pending, running, completed or failed
	Error     string
	CreatedAt int64
	StartedAt int64
	EndedAt   int64
}

// NodeAudit says up to where the tasks of a node have become events.
type NodeAudit struct {
	Node    string
	EndedAt int64    // Unix seconds: no task that ended before is new
	Tasks   []string // that ended in that second and are known, sorted
}

// Workload is one record. A published Workload is never changed; Apply makes a
// new one.
type Workload struct {
	ID             string
	Spec           []byte // opaque, secrets sealed
	Content        string // c1:<64 hex>
	CallerRevision string
	Namespace      string  // "" is default; see In
	Demand         *Demand // never nil in a State, never changed: versions of a record share it
	Desired        Desired
	Status         Status
	Reason         Reason
	Node           string // "" = unplaced
	PreviousNode   string
	Generation     Generation
	Acknowledged   bool         // the node accepted the order of this Generation
	Restarts       uint32       // -r counter in Revision; advanced by Retry
	Actual         *Observation // as Demand
	FormerPorts    []HostPort   // see ports.go
	Retry          Retry
	CreatedAt      int64 // Unix nanoseconds, as are the next two
	UpdatedAt      int64
	AssignedAt     int64
	AcknowledgedAt int64 // its node accepted the order of this Generation then; 0 = it has not, or nobody noted it
	// Unguarded: its node may still run it as something that it does not stop with its
	// lease, because it has not accepted the order that says so.
	Unguarded   bool
	CreateIndex uint64
	ModifyIndex uint64
	Actions     []AgentAction // what its agent had done when it was last too late, newest first

	history *history // former specifications, see revisions.go; nil for none
}

// Bare is a workload of which nothing but its id is known: one that is gone.
func Bare(id string) *Workload {
	return &Workload{ID: id, Demand: &Demand{}, Actual: unobserved}
}

// Revision is what agents see: c1-<16 hex>, and -r<n> after n forced restarts
// (spec/DESIGN.md). Agents skip an unchanged revision.
func (w *Workload) Revision() string {
	c := w.Content
	if len(c) > 3 && c[:3] == "c1:" {
		c = c[3:]
	}
	if len(c) > 16 {
		c = c[:16]
	}
	if w.Restarts == 0 {
		return "c1-" + c
	}
	return fmt.Sprintf("c1-%s-r%d", c, w.Restarts)
}

// Pool is storage that a node offers, GB.
type Pool struct {
	Name  string
	Type  string
	Total int64
}

// NodeFacts is what a node said of itself when it registered.
type NodeFacts struct {
	Endpoint       string // host:port of its gRPC server
	CPU            int64  // millicores that workloads may use
	Memory         int64  // MiB that workloads may use
	Pools          []Pool
	Types          []string // container, compose, vm; empty = a legacy node: all but vm
	StorageDrivers []string
	Labels         []Label
	Taints         []Taint
	EngineID       string // nodes with one engine share its host ports
	AgentVersion   string
	InstanceID     string // lives with the agent's data directory
	Protocol       uint32 // 0 = legacy v1 peer; 1 = knows epochs and generations
	SelfFencing    bool
	FenceBound     uint32 // with SelfFencing: seconds after its lease within which it has stopped what it is to stop
	Timestamp      string // RFC 3339, as sent
	LeaseSeconds   int64
}

// Node is one record; published Nodes are never changed.
type Node struct {
	ID            string
	Facts         NodeFacts
	Up            bool
	Draining      bool
	Cordoned      bool
	Fenced        bool     // since it went down: what it ran is known to be dead
	Lacks         []string // types that it refused since it registered, sorted
	Reason        string
	UpdatedBy     string // register, heartbeat, monitor or reconciler
	UpdatedAt     int64  // Unix nanoseconds, as are the next two
	LastHeartbeat int64  // at the last transition only
	RegisteredAt  int64
	CreateIndex   uint64
	ModifyIndex   uint64
}

// Status derives the node's state; a heartbeat never clears Draining.
func (n *Node) Status() NodeStatus {
	switch {
	case !n.Up:
		return NodeNotReady
	case n.Draining:
		return NodeDraining
	}
	return NodeReady
}

// Schedulable reports whether new work may be placed on n.
func (n *Node) Schedulable() bool { return n.Up && !n.Draining && !n.Cordoned }

// Engine is the key under which host ports are reserved: the engine's id, or
// the node's own id when it reported none.
func (n *Node) Engine() string {
	if n.Facts.EngineID != "" {
		return n.Facts.EngineID
	}
	return "node:" + n.ID
}

// Alloc is what is promised on one node: the demands of the workloads assigned
// to it and of the residuals it may still run. Derived; Check recomputes it.
type Alloc struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      []PoolUse
	Workloads int // assigned
	Residuals int
}

// PoolUse is GB promised of one pool; sorted by Pool.
type PoolUse struct {
	Pool string
	GB   int64
}

// Residual is something that a node may still run although it should not:
// evicted, moved or deleted, and not yet reported gone. Its demand stays
// reserved until then.
type Residual struct {
	Node       string
	Workload   string
	Generation Generation // the agent must forget everything up to this one
	Engine     string
	Demand     Demand
	Since      int64 // Unix nanoseconds
	Reason     string
}

// Replica is a scheduler as it announced itself. Voters are Raft's to say.
type Replica struct {
	ID           string // Raft server id
	Name         string
	GRPCAddr     string
	HTTPAddr     string
	RaftAddr     string
	GossipAddr   string
	DNSAddr      string
	Version      string
	FeatureLevel uint32
}

// Event is one line of history. Details are sorted by key.
type Event struct {
	Seq      uint64
	Index    uint64
	At       int64 // Unix nanoseconds
	Type     string
	Workload string
	Node     string
	Reason   string
	Message  string
	By       string
	Details  []Label
	// Namespace of its workload, or that it is about; "" is default, or none.
	Namespace string
}

// Event types. The first six are the contract's (contract/state-etcd.md).
const (
	EventWorkloadScheduled = "WorkloadScheduled"
	EventWorkloadFailed    = "WorkloadFailed"
	EventRetryTriggered    = "RetryTriggered"
	EventRescheduled       = "Rescheduled"
	EventNodeLost          = "NodeLost"
	EventDriftDetected     = "DriftDetected"

	EventWorkloadCreated   = "WorkloadCreated"
	EventWorkloadUpdated   = "WorkloadUpdated"
	EventWorkloadState     = "WorkloadState"
	EventWorkloadDeleting  = "WorkloadDeleting"
	EventWorkloadDeleted   = "WorkloadDeleted"
	EventWorkloadUnplaced  = "WorkloadUnplaced"
	EventWorkloadEvicted   = "WorkloadEvicted"
	EventWorkloadStable    = "WorkloadStable" // has run for long enough: its failures are forgotten
	EventAgentAction       = "AgentAction"
	EventDriftResolved     = "DriftResolved"
	EventNodeRegistered    = "NodeRegistered"
	EventNodeReady         = "NodeReady"
	EventNodeCordoned      = "NodeCordoned"
	EventNodeUncordoned    = "NodeUncordoned"
	EventNodeDraining      = "NodeDraining"
	EventNodeDrainEnded    = "NodeDrainEnded"
	EventNodeFenced        = "NodeFenced"
	EventNodeRemoved       = "NodeRemoved"
	EventModeChanged       = "ModeChanged"
	EventReplicaJoined     = "ReplicaJoined"
	EventReplicaRemoved    = "ReplicaRemoved"
	EventClusterFormed     = "ClusterFormed"
	EventFeatureLevelRaise = "FeatureLevelRaised"
	EventMirrorAttached    = "MirrorAttached"
	EventClusterRestored   = "ClusterRestored"
	EventClusterRecovered  = "ClusterRecovered"

	EventClusterKeyPinned   = "ClusterKeyPinned"
	EventGossipRing         = "GossipKeysChanged"
	EventAuthorityAdded     = "AuthorityAdded"
	EventAuthorityDropped   = "AuthorityDropped"
	EventTokenCreated       = "TokenCreated"
	EventTokenDeleted       = "TokenDeleted"
	EventJoined             = "Joined"
	EventJoinRefused        = "JoinRefused"
	EventCertificateRenewed = "CertificateRenewed"
	EventRevoked            = "Revoked"
	EventCallRefused        = "CallRefused"   // before it became a command
	EventCallMade           = "CallMade"      // by somebody, of a call that makes no command; with an error once it failed
	EventSessionOpened      = "SessionOpened" // by a person in a workload: a command or its console
	EventSessionClosed      = "SessionClosed"
	EventNamespaceCreated   = "NamespaceCreated"
	EventNamespaceChanged   = "NamespaceChanged"
	EventNamespaceDeleted   = "NamespaceDeleted"
	EventRolloutStarted     = "RolloutStarted" // of a group, member by member
	EventRolloutSuperseded  = "RolloutSuperseded"
	EventRolloutPaused      = "RolloutPaused" // Message says why
	EventRolloutResumed     = "RolloutResumed"
	EventRolloutReverting   = "RolloutReverting"
	EventRolloutCompleted   = "RolloutCompleted"
	EventMirrorRestored     = "MirrorRestored" // a person had the state written back into etcd
	EventCoreDNSLost        = "CoreDNSLost"
	EventCoreDNSBack        = "CoreDNSBack"
	EventMutation           = "Mutation" // one that was refused or changed nothing; Reason is the result
)

// Info is the part of the state that is not a table.
type Info struct {
	ClusterID            string
	Incarnation          uint64
	Shard                string
	Sequence             uint64 // last generation sequence handed out
	Clock                int64  // Unix nanoseconds; max over every command's At
	Mode                 Mode
	ModeReason           string
	ModeChangedAt        int64
	FeatureLevel         uint32
	Digest               uint64 // divergence digest up to Index (fsm/DESIGN.md)
	EventSeq             uint64
	ReceiptSeq           uint64
	ReceiptsDroppedUntil int64  // Unix milliseconds, UUIDv7 time of the newest dropped receipt
	Index                uint64 // last applied log index
	Term                 uint64 // its term
	MirrorEtcd           uint64 // cluster id of the etcd that has held the whole mirror, 0 = none
	ModePinned           bool   // a person set the mode; see commandv1.SetMode
	ClusterKeyID         string // of the key that seals secrets; empty: not pinned yet
	TrustVersion         uint64 // advances when authorities, tokens, admissions, revocations or gossip keys change
	GossipRing           string // keys of gossip, sealed under the cluster key; empty: the one that follows from it
	GossipVersion        uint64 // advances with every change of GossipRing
}

// Epoch of commands applied at this state.
func (m Info) Epoch() Epoch { return Epoch{Incarnation: m.Incarnation, Term: m.Term} }
