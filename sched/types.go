package sched

import (
	"github.com/persys/compute/fsm"
)

// NodeID is a node's id; "" means no node.
type NodeID = string

// Policy of placement.
type Policy string

// Policies: Spread prefers empty nodes, BinPack full ones.
const (
	Spread  Policy = "spread"
	BinPack Policy = "binpack"
)

// Tuning holds the settings of the planner. Durations are nanoseconds.
type Tuning struct {
	Policy           Policy
	UnavailableGrace int64 // extra wait after a lease ends (SCHEDULER_NODE_UNAVAILABLE_GRACE)
	MissingGrace     int64 // a missing workload's node gets this long (SCHEDULER_MISSING_GRACE_PERIOD)
	RetryBase        int64 // first backoff bound, 5 s
	RetryMax         int64 // largest backoff bound, 2 min
	MaxAttempts      int32 // default attempts, 5
	FailureGrace     int64 // 2 min; no workload is given up earlier than this after its first failure, and its failures are forgotten once it has run this long
	ApplyTimeout     int64 // from acceptance to running or stopped, for containers and Compose projects, 45 s; 0 = no limit
	VMApplyTimeout   int64 // the same for VMs, 4 min; 0 = no limit
	DeleteTimeout    int64 // a delete that takes longer gets the reason DeleteTimeout, 1 min; 0 = never
	Seed             uint64
	MaxCommands      int // items per step, 0 = 4096
}

// Liveness is what the leader knows from heartbeats and keeps in memory only.
// Times are Unix nanoseconds on the leader's clock, already shifted for its own
// pauses.
type Liveness interface {
	// Expired calls fn for each node that the state holds Up and whose lease ended
	// at or before now.
	Expired(now int64, fn func(node NodeID, lastHeartbeat int64) bool)
	// NextExpiry is the earliest lease end of the nodes the state holds Up; 0 if none.
	NextExpiry() int64
	// Returned calls fn for each node that the state holds down and that has a valid
	// lease from a later heartbeat.
	Returned(now int64, fn func(node NodeID, lastHeartbeat int64) bool)
	// DownSince is since when this leader has known a node to be down, by its own clock;
	// 0 for other nodes.
	DownSince(node NodeID) int64
	// Outstanding reports whether this order or a newer one for the same workload is
	// queued, in flight or in a delivery backoff; then it must not be given again.
	Outstanding(o Order) bool
}

// World is everything that one step may look at.
type World struct {
	State   fsm.View
	Changes []fsm.Change // since the step before; ignored when there is no cache
	Live    Liveness
	Now     int64 // Unix nanoseconds
	Epoch   fsm.Epoch
	Tuning  Tuning
}

// Op is what an order asks of an agent.
type Op uint8

// The orders.
const (
	OpApply  Op = iota + 1 // make this revision so, running or stopped
	OpDelete               // stop and forget everything up to Generation
)

// Order is one message to one agent. It is comparable.
type Order struct {
	Op         Op
	Node       NodeID
	Workload   string
	Generation fsm.Generation
}

// Ack is an agent's answer to an order.
type Ack struct {
	Accepted bool // acknowledged: durable on the agent
	Skipped  bool // it already had this revision
	Gone     bool // for OpDelete: nothing is left
	Refused  bool // refused for good; Code and Message say why
	Fenced   bool // refused by a fence: a newer epoch or generation was seen
	Code     string
	Message  string
	State    fsm.Actual
}

// Step is the outcome of Next.
type Step struct {
	Commands  []fsm.Command
	Orders    []Order
	Inquiries []Inquiry
	WakeAt    int64 // earliest deadline that any pass cares about, 0 = none
	Why       []Note
}

// Inquiry asks to read the tasks of an agent about a workload that missed its deadline,
// so that they are kept with the record. It changes nothing by itself, and may be lost.
type Inquiry struct {
	Node     NodeID
	Workload string
}

// Note records one decision for logs, metrics and `persysctl why`.
type Note struct {
	Workload string
	Node     NodeID
	Action   string // e.g. Assign, Evict, RetryScheduled, AwaitFailover, NoAction
	Detail   string
}

// Heartbeat is one node's report as it reached the leader.
type Heartbeat struct {
	Node        NodeID
	ReceivedAt  int64 // Unix nanoseconds, leader's clock
	Full        bool  // Reports is the complete list, not a delta
	Protocol    uint32
	Used        NodeUsage
	PoolsUsed   map[string]int64 // GB that storage pools hold, by name; nil leaves them as they were
	Reports     []Reported
	Usage       []WorkloadUsage
	Sequence    uint64
	ForwardedBy string
}

// NodeUsage is the measured use of a machine. It is shown to people; the planner does not
// read it.
type NodeUsage struct {
	CPU, Memory, Disk    int64 // millicores, MiB, GB
	NetReceived, NetSent int64 // bytes since the machine started
}

// WorkloadUsage is the measured use of one workload. It is shown to people; the planner
// does not read it.
type WorkloadUsage struct {
	Workload             string
	Type, Source         string
	CPUPercent           float64 // 100 = one core
	Memory, MemoryLimit  int64   // bytes
	Disk, DiskLimit      int64   // bytes
	DiskCapped           bool    // the engine keeps the limit
	DiskRead, DiskWrite  int64   // bytes so far
	NetReceived, NetSent int64   // bytes so far
	At                   int64   // Unix nanoseconds, the node's clock
}

// Reported is one workload as a node reported it.
type Reported struct {
	Workload    string
	Observation fsm.Observation
	Revision    string
	Gone        bool
}

// Lease is the leader's answer to a heartbeat or registration.
type Lease struct {
	Interval  int64 // nanoseconds between heartbeats
	Duration  int64 // nanoseconds
	ExpiresAt int64 // Unix nanoseconds
	Drain     bool  // take no new work
	SendFull  bool  // the next heartbeat must carry the complete list
	Epoch     fsm.Epoch
}
