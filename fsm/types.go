package fsm

import "fmt"

// Epoch identifies one leadership term: the incarnation of the cluster, then the Raft term. It
// orders every message from schedulers to agents (agent/DESIGN.md).
type Epoch struct {
	Incarnation uint64
	Term        uint64
}

// Less reports whether e is an older leadership term than o.
func (e Epoch) Less(o Epoch) bool {
	if e.Incarnation != o.Incarnation {
		return e.Incarnation < o.Incarnation
	}
	return e.Term < o.Term
}

func (e Epoch) String() string { return fmt.Sprintf("%d/%d", e.Incarnation, e.Term) }

// Generation orders the orders about one workload. A new generation is issued whenever the order
// for the agent changes: for a new spec, another desired state, another node, or a retry.
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

// IsZero reports whether g is unset. Peers that do not know generations send zero.
func (g Generation) IsZero() bool { return g == Generation{} }

func (g Generation) String() string { return fmt.Sprintf("%d.%d", g.Incarnation, g.Sequence) }

// Status is the scheduler's status of a workload (RULES, "States").
type Status string

// The ten statuses of a workload. Reason codes give the details.
const (
	StatusPending      Status = "Pending"      // not placed, or its agent has not started it yet
	StatusScheduled    Status = "Scheduled"    // placed; the order is not acknowledged
	StatusUpdating     Status = "Updating"     // placed and running; a newer order is not acknowledged
	StatusRunning      Status = "Running"      // reported by its agent
	StatusStopped      Status = "Stopped"      // reported by its agent
	StatusFailed       Status = "Failed"       // reported by its agent, or attempts exhausted
	StatusUnknown      Status = "Unknown"      // the lease of its node ended; the workload stays bound to the node
	StatusRetryPending Status = "RetryPending" // waits for Retry.NextAt
	StatusDeleting     Status = "Deleting"     // marked for deletion; a node may still hold it
	StatusDeleted      Status = "Deleted"      // only in events and mirrors: the record of a deleted workload is removed
)

// Desired is the state that the user asked for.
type Desired string

// The desired states.
const (
	DesiredRunning Desired = "Running"
	DesiredStopped Desired = "Stopped"
	DesiredDeleted Desired = "Deleted"
)

// Actual is the state of a workload as its node reports it.
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

// The modes. Degraded and recovery are frozen.
const (
	ModeNormal   Mode = "normal"
	ModeDegraded Mode = "degraded"
	ModeRecovery Mode = "recovery"
)

// Frozen reports whether m refuses user mutations.
func (m Mode) Frozen() bool { return m != ModeNormal }

// Policies of exclusive workloads for the end of their node's lease.
const (
	OnLostLeaseKeep = "keep"
	OnLostLeaseStop = "stop"
)

// Label is one key=value pair. A slice of labels is sorted by key, and its keys are distinct.
type Label struct{ Key, Value string }

// Constraint is a placement rule over the labels of a node. Op is one of =, !=, in, not-in,
// exists, not-exists.
type Constraint struct {
	Key    string
	Op     string
	Values []string
}

// Taint repels workloads that do not tolerate it. Effect is NoSchedule or PreferNoSchedule. In a
// toleration, an empty Value or Effect matches any.
type Taint struct{ Key, Value, Effect string }

// HostPort is a port on the host that a workload publishes. Protocol is tcp or udp.
type HostPort struct {
	Port     uint16
	Protocol string
}

// Demand is the part of a spec that the planner reads (spec/DESIGN.md).
type Demand struct {
	Type           string // container, compose or vm
	CPU            int64  // millicores
	Memory         int64  // MiB
	Disk           int64  // GB
	Pool           string // storage pool; empty = the first pool of the node
	StorageDrivers []string
	Ports          []HostPort
	Labels         []Label // the node must carry all of them
	Constraints    []Constraint
	Tolerations    []Taint
	Group          string
	Exclusive      bool
	OnLostLease    string // keep or stop
	Priority       int32
	PortNames      []PortName // sorted by name; read by DNS only
}

// Reason explains the status of a workload or node: Code is for programs, Message for people.
type Reason struct {
	Code      string
	Message   string
	At        int64 // Unix nanoseconds
	Retryable bool
}

// Reason codes that the state machine or the planner sets. The failure classes of agents
// (contract/semantics.md section 9) are reason codes too.
const (
	CodeUnplaced          = "Unplaced"          // no node fits; Message counts the causes
	CodeNodeLost          = "NodeLost"          // the lease of its node ended
	CodeAwaitFailover     = "AwaitFailover"     // exclusive: waits for `persysctl node fence`
	CodeAwaitStop         = "AwaitStop"         // waits until its former node, or the lost node it is bound to, has stopped it
	CodeDraining          = "Draining"          // moved off a draining node
	CodeDoesNotFit        = "DoesNotFit"        // its node no longer satisfies the changed demand
	CodeBackoff           = "BackoffWait"       // RetryPending until NextAt
	CodeExhausted         = "RetriesExhausted"  // attempts used up
	CodePermanentFailure  = "PermanentFailure"  // a retry cannot help: change the spec
	CodeMissing           = "Missing"           // its node no longer has the workload
	CodeDispatchFailed    = "dispatch_failed"   // the order could not be sent to the agent
	CodeDeleting          = "Deleting"          // waits until its node has removed it
	CodeNodeRemoved       = "NodeRemoved"       // its node was removed
	CodePreempted         = "Preempted"         // evicted for a workload of higher priority
	CodeApplyRefused      = "ApplyRefused"      // the agent refused the order
	CodeUserStop          = "UserStop"          // desired Stopped
	CodeUserRetry         = "UserRetry"         // persysctl retry
	CodeRuntimeNotOffered = "RuntimeNotOffered" // its node no longer offers the workload type
	CodeApplyTimeout      = "ApplyTimeout"      // the agent accepted the order and did not carry it out in time
	CodeDeleteTimeout     = "DeleteTimeout"     // the agent did not remove the deleted workload in time
)

// PortName gives a published port a service name.
type PortName struct {
	Name          string
	ContainerPort uint16
	Protocol      string
	HostPort      uint16 // 0 = any host port
}

// Names reports whether n names the published port p.
func (n PortName) Names(p PortBinding) bool {
	return n.ContainerPort == p.ContainerPort && n.Protocol == orTCP(p.Protocol) && (n.HostPort == 0 || n.HostPort == p.HostPort)
}

func orTCP(protocol string) string {
	if protocol == "" {
		return "tcp"
	}
	return protocol
}

// PortBinding is a port that the runtime has published.
type PortBinding struct {
	HostPort      uint16
	ContainerPort uint16
	Protocol      string
}

// Values of Observation.Health for workloads with health checks.
const (
	Healthy        = "healthy"
	Unhealthy      = "unhealthy"
	HealthStarting = "starting"
)

// Observation is the last accepted report from the node of a workload.
type Observation struct {
	State        Actual
	Generation   Generation // of the order that the report is about
	Code         string     // failure class, empty if none
	Message      string
	Failure      int32 // control.v1 FailureReason
	Retryable    bool
	RestartCount int32
	Addresses    []string
	Ports        []PortBinding
	Health       string // Healthy, Unhealthy or HealthStarting; empty without health checks
	At           int64  // Unix nanoseconds on the agent's clock
}

// unobserved is the Actual of workloads that no node has reported. It is never changed.
var unobserved = &Observation{}

// Retry is the backoff of one workload. The leader computes NextAt and writes it to the log.
type Retry struct {
	Attempts       int32
	MaxAttempts    int32
	NextAt         int64 // Unix nanoseconds; 0 = none scheduled
	FirstFailureAt int64 // Unix nanoseconds; 0 = no failure since the last success
	Terminal       bool  // no more retries until the user acts or the failures are cleared
	// StableSince is the time since which the workload has run without interruption after
	// failures, Unix nanoseconds; 0 = it does not run, or it has no failures to clear.
	StableSince int64
	Verdict     Verdict // why Terminal is set
}

// Verdict is the reason for which the planner gave up a workload.
type Verdict struct{ Code, Message string }

// AgentAction is one task of an agent. Times are Unix seconds on the agent's clock; 0 = not yet.
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

// NodeAudit is the position up to which the tasks of a node have become events.
type NodeAudit struct {
	Node    string
	EndedAt int64    // Unix seconds; tasks that ended earlier have become events
	Tasks   []string // tasks that ended in this second and have become events, sorted
}

// Workload is the record of one workload. A published Workload is never changed: Apply replaces
// it with a new one.
type Workload struct {
	ID             string
	Spec           []byte // opaque, secrets sealed
	Content        string // c1:<64 hex>
	CallerRevision string
	Namespace      string  // "" is the default namespace; see In
	Demand         *Demand // never nil in a State and never changed, because versions of a record share it
	Desired        Desired
	Status         Status
	Reason         Reason
	Node           string // "" = unplaced
	PreviousNode   string
	Generation     Generation
	Acknowledged   bool         // the node accepted the order of this Generation
	Restarts       uint32       // -r counter in Revision; advanced by a retry
	Actual         *Observation // never nil in a State and never changed
	FormerPorts    []HostPort   // see ports.go
	Retry          Retry
	CreatedAt      int64 // Unix nanoseconds, as are the next two
	UpdatedAt      int64
	AssignedAt     int64
	AcknowledgedAt int64 // when the node accepted the order of this Generation; 0 = it has not, or the time is unknown
	// Unguarded is set while the node may not stop the workload when its lease ends, because
	// it has not accepted the order that says so.
	Unguarded   bool
	CreateIndex uint64
	ModifyIndex uint64
	Actions     []AgentAction // tasks of its agent at the last timeout, newest first

	history *history // former specifications (revisions.go); nil if there are none
}

// Bare returns a record with nothing but an id, for a workload that has no record.
func Bare(id string) *Workload {
	return &Workload{ID: id, Demand: &Demand{}, Actual: unobserved}
}

// Revision returns the revision that agents compare: c1-<16 hex>, followed by -r<n> after n
// forced restarts (spec/DESIGN.md). Agents skip an unchanged revision.
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

// Pool is a storage pool that a node offers. Total is in GB.
type Pool struct {
	Name  string
	Type  string
	Total int64
}

// NodeFacts holds the facts that a node reported when it registered.
type NodeFacts struct {
	Endpoint       string // host:port of its gRPC server
	CPU            int64  // millicores that workloads may use
	Memory         int64  // MiB that workloads may use
	Pools          []Pool
	Types          []string // container, compose, vm; empty = a legacy node, which offers all but vm
	StorageDrivers []string
	Labels         []Label
	Taints         []Taint
	EngineID       string // nodes that report the same engine share its host ports
	AgentVersion   string
	InstanceID     string // stored in the agent's data directory
	Protocol       uint32 // 0 = legacy v1 peer; 1 = uses epochs and generations
	SelfFencing    bool
	FenceBound     uint32 // with SelfFencing: seconds after the end of its lease within which it stops workloads with on_lost_lease stop
	Timestamp      string // RFC 3339, as sent
	LeaseSeconds   int64
}

// Node is the record of one node. A published Node is never changed.
type Node struct {
	ID            string
	Facts         NodeFacts
	Up            bool
	Draining      bool
	Cordoned      bool
	Fenced        bool     // a person stated, since the node went down, that its workloads are dead
	Lacks         []string // workload types that the node refused since it registered, sorted
	Reason        string
	UpdatedBy     string // register, heartbeat, monitor or reconciler
	UpdatedAt     int64  // Unix nanoseconds, as are the next two
	LastHeartbeat int64  // as of the last transition; not updated by every heartbeat
	RegisteredAt  int64
	CreateIndex   uint64
	ModifyIndex   uint64
}

// Status derives the status of the node. A heartbeat never clears Draining.
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

// Engine returns the key under which host ports are reserved: the id of the engine, or a key made
// of the node's id if the node reported no engine.
func (n *Node) Engine() string {
	if n.Facts.EngineID != "" {
		return n.Facts.EngineID
	}
	return "node:" + n.ID
}

// Alloc is the sum of the resources reserved on one node: the demands of the workloads assigned
// to it and of its residuals. It is derived; Check recomputes it.
type Alloc struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      []PoolUse
	Workloads int // number of assigned workloads
	Residuals int // number of residuals
}

// PoolUse is the storage reserved in one pool, in GB. Slices of it are sorted by Pool.
type PoolUse struct {
	Pool string
	GB   int64
}

// Residual is a workload that was evicted, moved or deleted and that its former node may still
// run. Its demand stays reserved until the node reports that it is gone.
type Residual struct {
	Node       string
	Workload   string
	Generation Generation // the agent must remove instances of this generation and of earlier ones
	Engine     string
	Demand     Demand
	Since      int64 // Unix nanoseconds
	Reason     string
}

// Replica is the announcement of one scheduler. Only the Raft configuration says which replicas
// vote.
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

// Event is one entry of the history. Details are sorted by key.
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
	// Namespace is the namespace of Workload, or the one that the event is about; "" is the
	// default namespace, or none.
	Namespace string
}

// Event types. The contract defines the first six (contract/state-etcd.md).
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
	EventWorkloadStable    = "WorkloadStable" // it ran without interruption for long enough, so its failures were cleared
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
	EventCallRefused        = "CallRefused"   // an API call was refused before it became a command
	EventCallMade           = "CallMade"      // an API call that makes no command; with an error if it failed
	EventSessionOpened      = "SessionOpened" // a user opened a console or ran a command in a workload
	EventSessionClosed      = "SessionClosed"
	EventNamespaceCreated   = "NamespaceCreated"
	EventNamespaceChanged   = "NamespaceChanged"
	EventNamespaceDeleted   = "NamespaceDeleted"
	EventRolloutStarted     = "RolloutStarted" // a member-by-member update of a group began
	EventRolloutSuperseded  = "RolloutSuperseded"
	EventRolloutPaused      = "RolloutPaused" // Message holds the cause
	EventRolloutResumed     = "RolloutResumed"
	EventRolloutReverting   = "RolloutReverting"
	EventRolloutCompleted   = "RolloutCompleted"
	EventMirrorRestored     = "MirrorRestored" // a user had the state written to etcd
	EventCoreDNSLost        = "CoreDNSLost"
	EventCoreDNSBack        = "CoreDNSBack"
	EventMutation           = "Mutation" // an API mutation that was refused or changed nothing; Reason is the result
)

// Info is the part of the state that is not a table.
type Info struct {
	ClusterID            string
	Incarnation          uint64
	Shard                string
	Sequence             uint64 // last generation sequence handed out
	Clock                int64  // Unix nanoseconds; the maximum of At over all commands
	Mode                 Mode
	ModeReason           string
	ModeChangedAt        int64
	FeatureLevel         uint32
	Digest               uint64 // divergence digest at Index (fsm/DESIGN.md)
	EventSeq             uint64
	ReceiptSeq           uint64
	ReceiptsDroppedUntil int64  // Unix milliseconds, UUIDv7 time of the newest dropped receipt
	Index                uint64 // last applied log index
	Term                 uint64 // term of the entry at Index
	MirrorEtcd           uint64 // cluster id of the etcd that has held the whole mirror; 0 = none
	ModePinned           bool   // a person set the mode; see commandv1.SetMode
	ClusterKeyID         string // id of the key that seals secrets; empty = not pinned yet
	TrustVersion         uint64 // advances when authorities, tokens, admissions, revocations or gossip keys change
	GossipRing           string // gossip keys, sealed under the cluster key; empty = the key derived from the cluster key
	GossipVersion        uint64 // advances with every change of GossipRing
}

// Epoch returns the epoch of this state.
func (m Info) Epoch() Epoch { return Epoch{Incarnation: m.Incarnation, Term: m.Term} }
