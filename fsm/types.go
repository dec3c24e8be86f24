package fsm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/order"
	"github.com/persys/compute/policy"
)

// Epoch identifies one leadership term: the incarnation of the cluster, then the Raft term.
// Every message from a scheduler to an agent has one, and an agent refuses orders with a lower
// epoch than the highest that it has seen (agent/DESIGN.md).
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

// Generation is the number of an order for a workload. Package order documents it.
type Generation = order.Generation

// Status is the scheduler's status of a workload (docs/RULES.md, "States").
type Status string

// The ten statuses of a workload. Reason codes give the details.
const (
	StatusPending      Status = "Pending"      // not placed, or not started yet by the agent
	StatusScheduled    Status = "Scheduled"    // placed; the node has not acknowledged the order
	StatusUpdating     Status = "Updating"     // placed and running; the node has not acknowledged a newer order
	StatusRunning      Status = "Running"      // the agent reports that the workload runs
	StatusStopped      Status = "Stopped"      // the agent reports that the workload is stopped
	StatusFailed       Status = "Failed"       // the agent reports a failure, or all attempts to start are used up
	StatusUnknown      Status = "Unknown"      // the lease of its node ended, or the engine of its node does not answer; the workload stays bound to the node
	StatusRetryPending Status = "RetryPending" // failed; waits until Retry.NextAt for the next attempt
	StatusDeleting     Status = "Deleting"     // marked for deletion; a node may still have an instance
	StatusDeleted      Status = "Deleted"      // only in events and mirrors: the record of a deleted workload is removed
)

// Desired is the state that the user asked for.
type Desired string

// The desired states of a workload.
const (
	DesiredRunning Desired = "Running"
	DesiredStopped Desired = "Stopped"
	DesiredDeleted Desired = "Deleted"
)

// Actual is the state of a workload as its node reports it.
type Actual string

// The states that a node can report of a workload.
const (
	ActualNone    Actual = ""
	ActualPending Actual = "Pending"
	ActualRunning Actual = "Running"
	ActualStopped Actual = "Stopped"
	ActualFailed  Actual = "Failed"
	ActualUnknown Actual = "Unknown"
	ActualMissing Actual = "Missing"
)

// NodeStatus is the status of a node. It follows from Node.Up and Node.Draining.
type NodeStatus string

// The statuses of a node.
const (
	NodeReady    NodeStatus = "Ready"
	NodeNotReady NodeStatus = "NotReady"
	NodeDraining NodeStatus = "Draining"
)

// Mode is the mode of the control plane (fsm/DESIGN.md).
type Mode string

// The modes of the control plane. Degraded and recovery are frozen: they refuse changes by users.
const (
	ModeNormal   Mode = "normal"
	ModeDegraded Mode = "degraded"
	ModeRecovery Mode = "recovery"
)

// Frozen reports whether m refuses user mutations.
func (m Mode) Frozen() bool { return m != ModeNormal }

// The policies that an exclusive workload may have for the end of its node's lease.
const (
	OnLostLeaseKeep = "keep"
	OnLostLeaseStop = "stop"
)

// Label is one key=value pair. A list of labels is sorted by key, and its keys are distinct.
type Label struct{ Key, Value string }

// Constraint is a placement rule about the labels of a node. Op is one of =, !=, in, not-in, exists, not-exists.
type Constraint struct {
	Key    string
	Op     string
	Values []string
}

// Taint repels workloads that do not tolerate it. In a toleration, an empty Value or Effect matches any value
// or effect.
type Taint struct {
	Key, Value, Effect string
	Seconds            uint32 // only for NoExecute: workloads leave the node this number of seconds after Since
	Since              int64  // only for NoExecute: when the node got the taint, Unix nanoseconds
}

// Effects of taints. NoSchedule and NoExecute repel new workloads; PreferNoSchedule repels them only if
// another node takes them. NoExecute also moves running workloads.
const (
	TaintNoSchedule       = "NoSchedule"
	TaintPreferNoSchedule = "PreferNoSchedule"
	TaintNoExecute        = "NoExecute"
)

// AnyTaint is the key of a toleration that tolerates every taint.
const AnyTaint = "*"

// HostPort is a port on the host that a workload publishes. Protocol is tcp or udp. Address is an address
// of the host, or empty for all.
type HostPort struct {
	Port     uint16
	Protocol string
	Address  string
}

// Collides reports whether two workloads on one engine cannot publish host ports p and o at the same time.
func (p HostPort) Collides(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.Address == o.Address || p.Address == "" || o.Address == "")
}

// Demand is the part of a specification that the planner reads (spec/DESIGN.md).
type Demand struct {
	Type           string // type of the workload: container, compose or vm
	CPU            int64  // CPU in millicores
	Memory         int64  // memory in MiB
	Disk           int64  // disk in GB
	Pool           string // storage pool for the disk; "" = the first pool of the node
	StorageDrivers []string
	Ports          []HostPort
	Labels         []Label // labels that the node must carry
	Constraints    []Constraint
	Tolerations    []Taint
	Group          string
	Exclusive      bool
	OnLostLease    string // keep or stop: what happens when the lease of the node ends
	Priority       int32
	PortNames      []PortName // named ports, sorted by name; only DNS uses them
	// Asks lists the privileges that the specification asks for. Policies decide whether they are allowed. Schedulers
	// cannot read a Compose stack in Git. The list of such a stack has one element, with the rule RuleUnreadStack.
	Asks      []policy.Ask
	LocalData []LocalData
	MACs      []string  // Ethernet addresses of a virtual machine, sorted
	Job       *Job      // nil for a workload that does not run to completion
	Template  *Template // nil for a workload that is not a template
	Placement *Placement
	Tags      []Label    // by which affinity rules of other workloads can name this workload
	Autoscale *Autoscale // nil for a workload that is not a member of a group with an autoscaler
	// Reschedule limits the moves off nodes that cannot run the workload; nil = the default.
	Reschedule *Reschedule
	Surge      bool     // the workload is an extra member of a group, which exists only during an update with start_first
	Networks   []string // names of the networks of its namespace that the workload joins
	// ServiceAddress: the workload's service gets an address of its own in each network of the workload.
	ServiceAddress bool
	Ingress        []IngressPort // ports at which the service answers on every node, sorted; they lead into the first network
	Devices        []DeviceCount
	// MemoryFiles: the workload has secrets or configs as files in memory.
	MemoryFiles bool
	Volumes     []VolumeUse // managed volumes, sorted by name
}

// Placement holds the rules of a workload about which nodes it may or should run on. Demand.Placement is nil if
// there are none.
type Placement struct {
	Spread     []Spread
	Affinities []Affinity
	Policy     string // spread or binpack; empty = the policy of the cluster
}

// ByHost is the value of Spread.By and Affinity.By that makes each node a topology domain of its own. Any other
// value is the key of a node label whose values are the domains.
const ByHost = "host"

// Spread keeps the members of a workload's group evenly distributed over the values of a node label.
type Spread struct {
	By      string
	MaxSkew int32 // largest difference between the numbers of members at two values
	Must    bool
}

// Affinity places a workload on certain nodes, or near other workloads of its namespace; with Anti
// it keeps the workload away from them. It has one target: Node, Workload, Group or Tag.
type Affinity struct {
	Anti            bool
	Node            Constraint // Key is empty if the target is not Node
	Workload, Group string
	Tag             Label
	By              string // nodes with the same value of this label are one topology domain; empty if the target is Node
	Must            bool
	Weight          int32 // 1 to 100; 0 if Must
}

// Repels reports whether the workload has a required anti-affinity to other workloads.
func (p *Placement) Repels() bool {
	return p != nil && slices.ContainsFunc(p.Affinities, func(a Affinity) bool { return a.Anti && a.Must && a.By != "" })
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
	CodeUnplaced          = "Unplaced"          // no node fits the workload; Message counts the reasons
	CodeNodeLost          = "NodeLost"          // the lease of its node ended
	CodeAwaitFailover     = "AwaitFailover"     // an exclusive workload waits for `persysctl node fence`
	CodeAwaitStop         = "AwaitStop"         // waits until the previous node, or the lost node that the workload is bound to, has stopped the instance
	CodeDraining          = "Draining"          // the workload was moved off a draining node
	CodeTainted           = "Tainted"           // the node has a NoExecute taint that the workload does not tolerate
	CodeDoesNotFit        = "DoesNotFit"        // the node does not satisfy the changed demand of the workload
	CodeBackoff           = "BackoffWait"       // the workload waits in status RetryPending until Retry.NextAt
	CodeExhausted         = "RetriesExhausted"  // all attempts to start the workload are used up
	CodePermanentFailure  = "PermanentFailure"  // a retry cannot help: the specification must be changed
	CodeMissing           = "Missing"           // the node no longer has the workload
	CodeDispatchFailed    = "dispatch_failed"   // the order could not be delivered to the agent
	CodeDeleting          = "Deleting"          // a deleted workload waits until its node has removed the instance
	CodeNodeRemoved       = "NodeRemoved"       // its node was removed
	CodeHoldsData         = "HoldsData"         // the workload should leave its node, or the node is lost, but only that node has its data
	CodeCannotMove        = "CannotMove"        // the workload should leave its node, but no other node can take it, so it keeps running there
	CodePreempted         = "Preempted"         // the workload was evicted for a workload of higher priority
	CodeApplyRefused      = "ApplyRefused"      // the agent refused the order
	CodeUserRequest       = "UserRequest"       // a person requested it
	CodeUserStop          = "UserStop"          // a user stopped it
	CodeUserRetry         = "UserRetry"         // a user ran persysctl retry
	CodeRuntimeNotOffered = "RuntimeNotOffered" // the node no longer offers the workload type
	CodeApplyTimeout      = "ApplyTimeout"      // the agent accepted the order but did not finish it in time
	CodeCompleted         = "Completed"         // the workload exited with success, and its restart policy does not restart it
	CodeWorking           = "Working"           // the agent is carrying out the order; the message names the step
	CodeDeleteTimeout     = "DeleteTimeout"     // the agent did not remove the deleted workload in time
	CodeDeadlineExceeded  = "DeadlineExceeded"  // the job did not finish within its deadline
	CodeNotCreated        = "NotCreated"        // a member of the system workload was not created; the message says why
	CodeReplaced          = "Replaced"          // the cron stopped the run to start another one
	CodeCronMissed        = "CronMissed"        // a time of a schedule got no run, because it was too late or no run could be created
	CodeCronSkipped       = "CronSkipped"       // a time of a schedule got no run, because an earlier run had not ended
	CodeFailedOnNode      = "FailedOnNode"      // the node could not run the workload for a cause of its own, so the workload left it
	CodeRebalanced        = "Rebalanced"        // the workload was evicted to even out the load of the nodes
	CodeAwaitEnd          = "AwaitEnd"          // the node is draining, and the running job may end there until the deadline of the drain
	CodeMoved             = "Moved"             // the workload was assigned to another node together with its volumes
	CodeMoving            = "Moving"            // the workload is stopped while its volumes move to another node
	CodeAwaitTurn         = "AwaitTurn"         // the job waits: as many members of its group run as its parallelism allows
)

// PortName gives a service name to a port that a workload publishes.
type PortName struct {
	Name          string
	ContainerPort uint16
	Protocol      string
	HostPort      uint16 // 0 = any host port
}

// Names reports whether n is the name of the published port p.
func (n PortName) Names(p PortBinding) bool {
	return n.ContainerPort == p.ContainerPort && n.Protocol == orTCP(p.Protocol) && (n.HostPort == 0 || n.HostPort == p.HostPort)
}

func orTCP(protocol string) string {
	if protocol == "" {
		return "tcp"
	}
	return protocol
}

// PortBinding is a port that the engine of a node has published for a workload.
type PortBinding struct {
	HostPort      uint16
	ContainerPort uint16
	Protocol      string
	Address       string // address of the host; "" = all addresses
}

// Loopback reports whether only programs on the host itself can reach the port.
func (p PortBinding) Loopback() bool {
	a, err := netip.ParseAddr(p.Address)
	return err == nil && a.IsLoopback()
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
	Generation   Generation // generation of the reported order
	Code         string     // failure class that the agent reported; "" = no failure
	Message      string
	Failure      int32 // FailureReason of control.v1, as a number
	Retryable    bool
	Terminal     bool // the agent reports that no retry helps
	TryElsewhere bool // no instance runs, the cause belongs to the node, and the agent has tried often enough
	RestartCount int32
	Addresses    []string
	Ports        []PortBinding
	Health       string // Healthy, Unhealthy or HealthStarting; "" without health checks
	Exit         *Exit  // how the last instance ended; nil if no instance has ended
	At           int64  // Unix nanoseconds on the agent's clock
}

// unobserved is the value of Workload.Actual until a node reports the workload. It never changes.
var unobserved = &Observation{}

// Retry is the backoff of one workload. The leader computes NextAt and writes it to the log.
type Retry struct {
	Attempts       int32
	MaxAttempts    int32
	NextAt         int64 // time of the next attempt, Unix nanoseconds; 0 = no attempt is scheduled
	FirstFailureAt int64 // time of the first failure since the last success, Unix nanoseconds; 0 = no failure
	Terminal       bool  // no retries until a user acts or the failures are cleared
	// StableSince is the time, in Unix nanoseconds, since which the workload has run
	// without interruption after failures; 0 = the workload does not run or has no
	// failures to clear.
	StableSince int64
	Verdict     Verdict // reason for Terminal
}

// Verdict says why the planner gave up a workload, that is, why it orders no further attempts.
type Verdict struct{ Code, Message string }

// AgentAction is one task of an agent. Times are Unix seconds on the agent's clock; 0 = the task has not
// reached that point.
type AgentAction struct {
	TaskID    string
	Workload  string
	Type      string // type of the task: apply_workload or delete_workload
	Status    string // state of the task: pending, running, completed or failed
	Error     string
	CreatedAt int64
	StartedAt int64
	EndedAt   int64
}

// NodeAudit records which finished tasks of a node have become events.
type NodeAudit struct {
	Node    string
	EndedAt int64    // Unix seconds; all tasks that ended earlier have become events
	Tasks   []string // ids of the tasks that ended in that second and have become events, sorted
}

// Workload is the record of one workload. A published Workload is never changed: Apply replaces
// it with a new one.
type Workload struct {
	ID             string
	Spec           []byte // the encoded specification, with secrets sealed
	Content        string // content hash, c1:<64 hex digits>
	Bundle         string // digest of the files beside the Compose file; "" = none
	CallerRevision string
	Namespace      string  // name of the namespace; "" = the default namespace, see In
	Demand         *Demand // never nil in a State and never changed, because versions of a record share it
	Desired        Desired
	Status         Status
	Reason         Reason
	Node           string // node of the workload; "" = unplaced
	PreviousNode   string
	Generation     Generation
	Acknowledged   bool         // the node accepted the order with this Generation
	Restarts       uint32       // number of forced restarts; the revision then ends with -r and this number
	Actual         *Observation // last report of the node about the workload; never nil in a State and never changed
	FormerPorts    []HostPort   // ports that a previous instance may still bind; see ports.go
	Retry          Retry
	CreatedAt      int64 // Unix nanoseconds, as are UpdatedAt and AssignedAt
	UpdatedAt      int64
	AssignedAt     int64
	// AcknowledgedAt is the time at which the node accepted the order, or at which the agent finished
	// its work on the order, if that was later. 0 = the node has not accepted the order, or the time
	// is unknown.
	AcknowledgedAt int64
	// SameSince is the generation of the order that started the present instance, if all later orders
	// asked for the same instance: they changed only versions of secrets and configs that the instance
	// gets by a signal, or, for a job, nothing that its node sees. It is zero if the present order asks
	// for a new instance.
	SameSince Generation
	// MayOutliveLease is set while the node may leave the workload running when its lease ends, because the
	// node has not yet accepted an order with on_lost_lease: stop.
	MayOutliveLease bool
	// Policy is the name of the policy against which the specification was checked when it was
	// stored; "" = it was checked against no policy.
	Policy string
	// Data lists the local data that the workload may have on the node, according to every specification that
	// the node has accepted. DiscardData is set while the workload may leave its node and lose that data; see
	// data.go.
	Data        []LocalData
	DiscardData bool
	// KeepVolumes is set while the workload is deleted and its volumes that have a name are kept.
	KeepVolumes bool
	// PreemptedBy is the id of the workload for which this workload was evicted from PreviousNode; ""
	// once this workload has a node again.
	PreemptedBy string
	// PreemptedAt is the time of the last preemption of this workload, Unix nanoseconds; 0 = none is recorded.
	PreemptedAt int64
	// Moved is the last move that evened out the load of the nodes; nil if there was none.
	Moved *Moved
	// Adopted is, for a workload imported from legacy v1 schedulers, the revision that Node already
	// runs. It stands for the revision that follows from Content, until the specification changes
	// or the workload leaves Node. "" for other workloads.
	Adopted string
	// JobSince is when a job with its present specification was first assigned to a node, Unix nanoseconds; 0 = never.
	// Result is the result of a finished job; nil otherwise.
	JobSince int64
	Result   *JobResult
	// FailedOn lists the nodes that the workload left because they could not run it, oldest first.
	FailedOn []NodeFailure
	// Owner is the template that the workload was created from; "" for other workloads. Run says why it was
	// created; nil for other workloads. SealedFor is the id for which the secrets in Spec are sealed; "" = ID.
	Owner     string
	SealedFor string
	Run       *Run
	Template  *TemplateState // nil for a workload that is not a template
	// Objects lists the secrets and configs that the workload uses, sorted by kind and name. If there are any, SpecContent
	// is the content hash of the specification alone, and Content also depends on their versions.
	// Update is how the members of the group of w, or of the system workload w, are changed; zero = all at once.
	Objects     []ObjectUse
	SpecContent string
	Update      rollout.Policy
	CreateIndex uint64
	ModifyIndex uint64
	Actions     []AgentAction // recent tasks of the agent for this workload, recorded at the last timeout, newest first

	history *history // earlier specifications (revisions.go); nil if there are none
}

// Bare returns an empty record with an id. It stands for a workload that has no record.
func Bare(id string) *Workload {
	return &Workload{ID: id, Demand: &Demand{}, Actual: unobserved}
}

// Revision returns the revision that agents compare: c1-<16 hex>, followed by -r<n> after n
// forced restarts (spec/DESIGN.md). Agents skip an unchanged revision. An adopted revision keeps its
// name, so that a legacy v1 agent skips it too.
func (w *Workload) Revision() string {
	if w.RunsAdopted() {
		return w.Adopted
	}
	c := w.Content
	if len(c) > 3 && c[:3] == "c1:" {
		c = c[3:]
	}
	if len(c) > 16 {
		c = c[:16]
	}
	if w.Restarts == 0 {
		return ownRevision + c
	}
	return fmt.Sprintf("%s%s-r%d", ownRevision, c, w.Restarts)
}

// ownRevision is the prefix of every revision that is derived from a content hash.
const ownRevision = "c1-"

// RunsAdopted reports whether the present revision of an imported workload is the one that its node
// already ran at the import. After a forced restart it is not.
func (w *Workload) RunsAdopted() bool { return w.Adopted != "" && w.Restarts == 0 }

// Pool is a storage pool that a node offers. Total is in GB.
type Pool struct {
	Name  string
	Type  string
	Total int64
}

// NodeFacts holds the facts that a node reported when it registered.
type NodeFacts struct {
	Endpoint       string // host:port of the agent's gRPC server
	CPU            int64  // millicores that workloads may use
	Memory         int64  // MiB that workloads may use
	Pools          []Pool
	Types          []string // workload types that the node offers: container, compose, vm; empty = a legacy v1 agent, which offers all but vm
	StorageDrivers []string
	Labels         []Label
	Taints         []Taint
	EngineID       string // id of the container engine; nodes that report the same id share host ports
	AgentVersion   string
	InstanceID     string // id of the agent, stored in its data directory
	Protocol       uint32 // protocol version of the agent: 0 = legacy v1 peer; 1 = uses epochs and generations
	SelfFencing    bool
	FenceBound     uint32 // number of seconds after the end of the lease within which the fencer stops workloads with on_lost_lease: stop
	Timestamp      string // time of the registration, RFC 3339, as the agent sent it
	LeaseSeconds   int64
	Networking     Networking // what the node can do for networks that span nodes
	VolumeMoves    bool       // the agent can move volumes to and from other nodes
	MemoryFiles    bool       // the agent keeps secrets and configs as files in memory
	MetricsPort    uint16     // port on which the agent serves /metrics over plain HTTP; 0 = none
	Devices        []DeviceCount
}

// Node is the record of one node. A published Node is never changed.
type Node struct {
	ID            string
	Facts         NodeFacts
	Up            bool
	Draining      bool
	JobsUntil     int64 // until when running jobs may stay on the draining node to end there, Unix nanoseconds; 0 = they move at once
	Cordoned      bool
	Fenced        bool     // a person stated that the workloads of the lost node no longer run
	Set           NodeKeys // labels and taints that people set or removed; see Labels and Taints
	Lacks         []string // workload types that the node refused since it registered, sorted
	Reason        string
	UpdatedBy     string // cause of the last change: register, heartbeat, monitor or reconciler
	UpdatedAt     int64  // Unix nanoseconds, as are LastHeartbeat and RegisteredAt
	LastHeartbeat int64  // time of the last heartbeat that changed Up; other heartbeats do not update it
	RegisteredAt  int64
	CreateIndex   uint64
	ModifyIndex   uint64

	merged *mergedKeys // the merged labels and taints, computed from Facts and Set
}

// Status derives the status of the node. Heartbeats do not end a drain.
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

// Engine returns the key under which host ports are reserved: the id of the engine, or a key derived from
// the id of the node if it reported no engine.
func (n *Node) Engine() string {
	if n.Facts.EngineID != "" {
		return n.Facts.EngineID
	}
	return "node:" + n.ID
}

// Alloc is the sum of the resources reserved on one node: the demands of the workloads assigned to it and of
// its residuals (instances that it must still remove). It follows from the records of workloads and
// residuals, and Check recomputes it.
type Alloc struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      []PoolUse
	Devices   []DeviceCount // sorted by name
	Workloads int           // number of assigned workloads
	Residuals int           // number of residuals
	Moves     int           // number of moves of volumes that reserve resources here
}

// PoolUse is the storage reserved in one pool, in GB. Lists of PoolUse are sorted by Pool.
type PoolUse struct {
	Pool string
	GB   int64
}

// Residual is a workload that was evicted, moved or deleted, and that its previous node may still run. Its
// demand stays reserved until the node reports that the instance is gone.
type Residual struct {
	Node       string
	Workload   string
	Generation Generation // the agent must remove instances of this generation and of earlier generations
	Engine     string
	Demand     Demand
	Since      int64 // Unix nanoseconds
	Reason     string
	// KeepVolumes is set if the workload was deleted and its volumes that have a name are kept.
	KeepVolumes bool
}

// Replica is what one scheduler has announced about itself. The Raft configuration alone decides which
// replicas vote.
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
	Memory       int64         // MiB of memory that the scheduler process may use; 0 = not known
	Repair       ReplicaRepair // the last repair of damaged data; zero if there was none
}

// ReplicaRepair describes how a replica replaced damaged data.
type ReplicaRepair struct {
	Of     string // Raft server id that the replica had before
	Damage string // description of the damage, with the name of the file
	Aside  string // folder below the data directory to which the damaged data was moved
	At     int64  // Unix nanoseconds
	Done   bool   // the replica has caught up with the leader and has a vote
}

// Limits of the texts of a ReplicaRepair, in bytes.
const (
	MaxRepairDamage = 1024
	MaxRepairAside  = 128
)

// Event is one entry of the event history. Details are sorted by key.
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
	// Namespace is the namespace of Workload, or the namespace that the event is about. "" means the
	// default namespace, or that the event belongs to no namespace.
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
	EventPreemption        = "Preemption"     // the workload was placed by preempting a workload of lower priority
	EventDataDiscarded     = "DataDiscarded"  // a person allowed a workload to leave its node without its local data
	EventWorkloadStable    = "WorkloadStable" // a workload ran without interruption for long enough, so its failures were cleared
	EventAgentAction       = "AgentAction"
	EventDriftResolved     = "DriftResolved"
	EventNodeRegistered    = "NodeRegistered"
	EventNodeReady         = "NodeReady"
	EventNodeCordoned      = "NodeCordoned"
	EventNodeUncordoned    = "NodeUncordoned"
	EventNodeDraining      = "NodeDraining"
	EventNodeDrainEnded    = "NodeDrainEnded"
	EventNodeLabelsChanged = "NodeLabelsChanged" // a person set or removed labels; Message lists them
	EventNodeTaintsChanged = "NodeTaintsChanged"
	EventNodeFenced        = "NodeFenced"
	EventNodeRemoved       = "NodeRemoved"
	EventModeChanged       = "ModeChanged"
	EventReplicaJoined     = "ReplicaJoined"
	EventReplicaRemoved    = "ReplicaRemoved"
	EventReplicaDamaged    = "ReplicaDamaged"  // a replica with damaged data moved it aside and joined under a new Raft id
	EventReplicaRepaired   = "ReplicaRepaired" // a replica with a new id has caught up and has a vote again
	EventReplicaCopied     = "ReplicaCopied"   // a copy of a scheduler's data directory is in use on another machine; the cluster refuses that copy
	EventClusterFormed     = "ClusterFormed"
	EventFeatureLevelRaise = "FeatureLevelRaised"
	EventRebalancePolicy   = "RebalancePolicyChanged"
	EventMirrorAttached    = "MirrorAttached"
	EventMirrorDetached    = "MirrorDetached"
	EventClusterRestored   = "ClusterRestored"
	EventClusterRecovered  = "ClusterRecovered"

	EventClusterKeyPinned   = "ClusterKeyPinned"
	EventClusterKeyRotation = "ClusterKeyRotation"
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
	EventCallMade           = "CallMade"      // a call that changes no state was made; with an error if the call failed
	EventSessionOpened      = "SessionOpened" // a user opened a console or ran a command in a workload
	EventSessionClosed      = "SessionClosed"
	EventNamespaceCreated   = "NamespaceCreated"
	EventNamespaceChanged   = "NamespaceChanged"
	EventNamespaceDeleted   = "NamespaceDeleted"
	EventRolloutStarted     = "RolloutStarted" // a member-by-member update of a group began
	EventRolloutSuperseded  = "RolloutSuperseded"
	EventRolloutAwaits      = "RolloutAwaitsPromotion" // the canaries of a rolling update have settled
	EventRolloutPromoted    = "RolloutPromoted"
	EventRolloutPaused      = "RolloutPaused" // a rolling update was paused; Message holds the cause
	EventRolloutResumed     = "RolloutResumed"
	EventRolloutReverting   = "RolloutReverting"
	EventRolloutCompleted   = "RolloutCompleted"
	EventPolicyCreated      = "PolicyCreated"
	EventPolicyChanged      = "PolicyChanged"
	EventPolicyDeleted      = "PolicyDeleted"
	EventPolicyBound        = "PolicyBound" // a policy was bound to a namespace or to a label of nodes
	EventPolicyUnbound      = "PolicyUnbound"
	EventRoleCreated        = "RoleCreated"
	EventRoleChanged        = "RoleChanged"
	EventRoleDeleted        = "RoleDeleted"
	EventRoleBound          = "RoleBound"
	EventRoleUnbound        = "RoleUnbound"
	EventAccountCreated     = "AccountCreated"
	EventAccountRotated     = "AccountRotated"
	EventAccountDeleted     = "AccountDeleted"
	EventConsoleLinked      = "ConsoleLinked" // a person made a one-time link to the web console
	EventConsoleOpened      = "ConsoleOpened"
	EventConsoleEnded       = "ConsoleEnded"
	EventMirrorRestored     = "MirrorRestored" // a user requested that the state be written to etcd
	EventCoreDNSLost        = "CoreDNSLost"
	EventCoreDNSBack        = "CoreDNSBack"
	EventJobSucceeded       = "JobSucceeded"
	EventJobFailed          = "JobFailed"
	EventCronFired          = "CronFired"     // a time of a schedule came, and a run was created
	EventCronMissed         = "CronMissed"    // a time of a schedule got no run; Message says why
	EventCronSkipped        = "CronSkipped"   // a time of a schedule got no run, because an earlier run had not ended
	EventRunStarted         = "RunStarted"    // a user started a run of a cron or of a parameterized job
	EventGroupScaled        = "GroupScaled"   // the number of members of a group was changed; Message has both numbers and the cause
	EventMemberCreated      = "MemberCreated" // a system workload got a member for a node
	EventMemberRemoved      = "MemberRemoved" // a system workload lost its member for a node; Message says why
	EventNetworkCreated     = "NetworkCreated"
	EventNetworkDeleted     = "NetworkDeleted"
	EventPortsHeld          = "PortsHeld"     // the ports in ingress mode at which a node does not answer have changed
	EventSecretChanged      = "SecretChanged" // a secret was created or got a version; Details has the version
	EventSecretDeleted      = "SecretDeleted"
	EventSecretShown        = "SecretShown" // the value of a secret was shown to a user
	EventConfigChanged      = "ConfigChanged"
	EventConfigDeleted      = "ConfigDeleted"
	EventVolumeCreated      = "VolumeCreated"
	EventVolumeKept         = "VolumeKept" // the workload of a volume was deleted, and the volume is kept
	EventVolumeDeleted      = "VolumeDeleted"
	EventVolumeMove         = "VolumeMove" // the move of a volume to another node has a new phase; Reason is the phase
	EventMutation           = "Mutation"   // an API mutation that was refused or changed nothing; Reason is the result
)

// Info is the part of the state that is not in a table.
type Info struct {
	ClusterID            string
	Incarnation          uint64
	Shard                string
	Sequence             uint64 // sequence number of the newest generation
	Clock                int64  // Unix nanoseconds; the latest time in any command so far
	Mode                 Mode
	ModeReason           string
	ModeChangedAt        int64
	FeatureLevel         uint32
	Digest               uint64 // hash over all commands and changed records up to Index (fsm/DESIGN.md)
	EventSeq             uint64
	ReceiptSeq           uint64
	ReceiptsDroppedUntil int64  // latest time in the request id of a dropped receipt, Unix milliseconds
	Index                uint64 // last applied log index
	Term                 uint64 // Raft term of the log entry at Index
	MirrorEtcd           uint64 // cluster id of the etcd that has held the whole mirror; 0 = none
	MirrorPin            uint64 // cluster id of the etcd that a person attached as the mirror; 0 = none
	MirrorEndpoints      string // endpoints of the attached etcd, separated by commas; "" = those of the setting ETCD_ENDPOINTS
	ModePinned           bool   // a person set the mode, so the leader does not change it
	ClusterKeyID         string // id of the key that seals secrets; empty = not pinned yet
	TrustVersion         uint64 // advances when authorities, tokens, admissions, revocations or gossip keys change
	GossipRing           string // gossip keys, sealed under the cluster key; empty = gossip uses a key derived from the cluster key
	GossipVersion        uint64 // counts the changes of GossipRing
	NetworkID            uint32 // number of the newest network
	NetworkIndex         uint64 // log index of the newest change of what nodes have to set up for networks
	ObjectFloor          uint64 // highest version number of all deleted objects; versions of new objects are higher
	KeyRotation                 // of the cluster key
	Rebalance            RebalancePolicy
}

// AttachedEtcd returns the cluster id of the etcd that is attached as the mirror; 0 if none is attached. No
// other etcd may hold the mirror.
func (m Info) AttachedEtcd() uint64 { return cmp.Or(m.MirrorPin, m.MirrorEtcd) }

// Epoch returns the epoch of the last applied entry: its incarnation and term.
func (m Info) Epoch() Epoch { return Epoch{Incarnation: m.Incarnation, Term: m.Term} }
