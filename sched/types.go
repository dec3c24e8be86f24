package sched

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// NodeID is a node's id; "" means no node.
type NodeID = string

// Policy is the placement policy of the planner.
type Policy string

// The placement policies: Spread prefers empty nodes, BinPack full ones.
const (
	Spread  Policy = "spread"
	BinPack Policy = "binpack"
)

// Tuning holds the settings of the planner. Durations are nanoseconds.
type Tuning struct {
	Policy           Policy
	UnavailableGrace int64 // extra wait after the end of a lease (SCHEDULER_NODE_UNAVAILABLE_GRACE)
	MissingGrace     int64 // time for an agent to repair a missing workload by itself (SCHEDULER_MISSING_GRACE_PERIOD)
	RetryBase        int64 // default 5 s: upper bound of the first wait before a retry
	RetryMax         int64 // default 2 min: largest upper bound of a wait before a retry
	MaxAttempts      int32 // default 5: number of attempts of a workload that sets none
	FailureGrace     int64 // default 2 min: a workload is not given up within this time after its first failure, and its failures are cleared once it has run for this time
	ApplyTimeout     int64 // default 45 s: time limit from the acceptance of an order to running or stopped, for containers and Compose projects; 0 = no limit
	VMApplyTimeout   int64 // default 4 min: as ApplyTimeout, for virtual machines; 0 = no limit
	DeleteTimeout    int64 // default 1 min: a workload whose delete takes longer gets the reason DeleteTimeout; 0 = never
	// PreemptionCooldown is how long a workload that was preempted is not preempted again (default 5 min). Within
	// this time, at most PreemptionBudget workloads are preempted in the whole cluster (default 100).
	PreemptionCooldown int64
	PreemptionBudget   int
	Seed               uint64
	MaxCommands        int // maximum number of command items in one step; 0 = 4096
}

// Liveness says which nodes are alive, as known from their heartbeats. The leader keeps this knowledge in
// memory and not in the state. Times are Unix nanoseconds on the leader's clock, already corrected for pauses
// of the leader.
type Liveness interface {
	// Expired calls fn for each node that the state has as up and whose lease ended at or before now.
	Expired(now int64, fn func(node NodeID, lastHeartbeat int64) bool)
	// NextExpiry returns the earliest end of a lease among the nodes that the state has as up; 0 if there is
	// none.
	NextExpiry() int64
	// Returned calls fn for each node that the state has as down, but that has sent a heartbeat since and has
	// a valid lease.
	Returned(now int64, fn func(node NodeID, lastHeartbeat int64) bool)
	// DownSince returns the time from which on this leader has known, by its own clock, that a node is down;
	// 0 for other nodes.
	DownSince(node NodeID) int64
	// Outstanding reports whether this order or a newer one for the same workload is queued, in flight or
	// waits after a failed delivery. Such an order must not be given again.
	Outstanding(o Order) bool
	// MoveReport returns what a node last reported about the move of a workload's volumes.
	MoveReport(node NodeID, workload string) (MoveReport, bool)
	// Heard returns when a node that takes part in a move of volumes sent its last heartbeat; 0 = this leader has had
	// none.
	Heard(node NodeID) int64
}

// World is the input of one planning step.
type World struct {
	State   fsm.View
	Changes []fsm.Change // changes since the previous step; ignored if there is no cache
	Live    Liveness
	Now     int64 // Unix nanoseconds
	Epoch   fsm.Epoch
	Tuning  Tuning
}

// Op is what an order tells an agent to do.
type Op uint8

// The operations of orders.
const (
	OpApply  Op = iota + 1 // run or stop the workload in this revision
	OpDelete               // stop and remove all instances up to Generation
)

// Order is one order of the leader to one agent. It is comparable.
type Order struct {
	Op         Op
	Node       NodeID
	Workload   string
	Generation fsm.Generation
}

// Ack is an agent's answer to an order.
type Ack struct {
	Accepted bool // the agent has stored the order on disk
	Skipped  bool // the agent already ran this revision, so it does nothing
	Gone     bool // only for OpDelete: the node has no instance of the workload
	Refused  bool // the agent refused the order finally; Code and Message hold the reason
	Fenced   bool // the agent refused the order because it has seen a newer epoch or generation
	Code     string
	Message  string
	State    fsm.Actual
}

// Step is the result of one planning step: commands and orders.
type Step struct {
	Commands  []fsm.Command
	Orders    []Order
	Inquiries []Inquiry
	WakeAt    int64 // time of the next step if nothing changes: the earliest deadline of any pass; 0 = none
	Why       []Note
}

// Inquiry asks the leader to read the agent's recent tasks about a workload that missed its deadline, so that
// the record of the workload can show them. It changes nothing by itself, and may be lost.
type Inquiry struct {
	Node     NodeID
	Workload string
}

// Note describes one decision of a planning step, for logs, metrics and `persysctl why`.
type Note struct {
	Workload string
	Node     NodeID
	Action   string // the decision, e.g. Assign, Evict, RetryScheduled, AwaitFailover, NoAction
	Detail   string
}

// Heartbeat is one report of a node as it reached the leader.
type Heartbeat struct {
	Node        NodeID
	ReceivedAt  int64 // Unix nanoseconds, leader's clock
	Full        bool  // if set, Reports is the complete list of workloads; otherwise it has only what changed
	Protocol    uint32
	Used        NodeUsage
	PoolsUsed   map[string]int64 // GB in use in each storage pool, by name; nil = as in the last report
	Reports     []Reported
	Usage       []WorkloadUsage
	Volumes     *commandv1.ReportVolumes // volumes that the node holds; nil = not reported
	Moves       []MoveReport             // moves of volumes in which the node takes part
	Sequence    uint64
	ForwardedBy string
}

// NodeUsage is the measured resource usage of a machine. It is shown to users; the planner does not read
// it.
type NodeUsage struct {
	CPU, Memory, Disk    int64 // millicores, MiB, GB
	NetReceived, NetSent int64 // bytes since the machine started
	// NamesAge is the number of seconds since a scheduler last confirmed the DNS names of networks in the
	// node's resolver; 0 if they are current.
	NamesAge uint32
}

// WorkloadUsage is the measured resource usage of one workload. It is shown to users, and the autoscaler reads
// CPUPercent. The planner does not read it.
type WorkloadUsage struct {
	Workload             string
	Type, Source         string
	CPUPercent           float64 // percent; 100 = one core
	Memory, MemoryLimit  int64   // bytes
	Disk, DiskLimit      int64   // bytes
	DiskCapped           bool    // the container engine enforces DiskLimit
	DiskRead, DiskWrite  int64   // bytes since the workload started
	NetReceived, NetSent int64   // bytes since the workload started
	At                   int64   // Unix nanoseconds, the node's clock
	Unmeasured           bool    // CPUPercent is not known yet
	Heard                int64   // when the leader got this measurement first, on its monotonic clock; set by the leader
}

// Reported is what a node reported about one workload.
type Reported struct {
	Workload    string
	Observation fsm.Observation
	Revision    string
	Gone        bool
	Nothing     bool // the report comes from a legacy v1 agent whose engine has no instance of the workload
}

// Lease is the leader's answer to a heartbeat or registration.
type Lease struct {
	Interval  int64 // time between heartbeats in nanoseconds
	Duration  int64 // length of the lease in nanoseconds
	ExpiresAt int64 // Unix nanoseconds
	Drain     bool  // the node takes no new workloads
	SendFull  bool  // the next heartbeat must carry the complete list of workloads
	Epoch     fsm.Epoch
}
