package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Input is an event with the time at which it happened.
type Input struct {
	Now   time.Time     // wall clock
	Clock time.Duration // time since the machine started; leases end at times of this clock
	Event Event
}

// Event is the kind and content of an Input. The types below implement it.
type Event interface{ event() }

type (
	// Start begins the work on all workloads, and on all pending deletes (tombstones), that were restored from
	// the state file.
	Start struct{}

	// Apply is an order to run a workload or to keep it stopped. The effect Answer is the reply.
	Apply struct{ Order Order }

	// Delete is an order to remove a workload. The effect Answer is the reply.
	Delete struct {
		Sender
		ID          string
		Generation  workload.Generation
		Purge       bool // also remove volumes with the retain policy
		KeepVolumes bool // keep all volumes: the workload continues on another node
		Retain      bool // keep only the named volumes, until a person deletes them; KeepVolumes is then false
	}

	// Call checks the sender of an API call that is neither Apply nor Delete. The effect Answer is the reply.
	// If Changes is set, the call changes the machine, and must carry an epoch once the agent has seen the
	// epoch of a leader.
	Call struct {
		Sender
		Changes bool
	}

	// Heard is a scheduler's response to a registration or heartbeat of this agent. The effect Answer is the
	// reply; if it is a refusal, the caller must ignore the response.
	Heard struct {
		ClusterID string
		Epoch     *Epoch
	}

	// Leased: the schedulers granted this node a lease that ends at Until, given as time since the machine
	// started.
	Leased struct{ Until time.Duration }

	// Drain: the schedulers switch draining on or off. A draining node accepts no new workloads.
	Drain struct{ On bool }

	// Engines reports that drivers were made that label instances with a cluster id. If Added is set, Kinds
	// are added to the kinds that have a driver; if not, they replace those kinds.
	Engines struct {
		Cluster string
		Kinds   []workload.Kind
		Added   bool
	}

	// Probed is the result of a probe of an engine. EngineID is empty if the engine did not answer.
	Probed struct {
		Kind     workload.Kind
		EngineID string
		Healthy  bool
		Reason   string
		Devices  map[string]int64 // see Engine.Devices
	}

	// Listed is the list of all instances of an engine; if listing failed, Trouble is the error. Bound is the
	// number (Engine.Bound) of the driver that made the list; drivers are numbered in the order in which they
	// are made.
	Listed struct {
		Kind    workload.Kind
		Bound   uint64
		Seen    []workload.Observed
		Began   time.Time
		Trouble string
	}

	// Looked is the result of an inspection of one workload, while no Act on the workload is in progress.
	Looked struct {
		ID       string
		Kind     workload.Kind
		Bound    uint64 // Engine.Bound of the driver that inspected the workload
		Observed *workload.Observed
		Began    time.Time
	}

	// Done: an Act has ended. Failed is nil on success.
	Done struct {
		Act    *Act
		Failed *Failed
		// Observed is the result of a Look, the inspection of one instance, or, after an action with Act.Ends, of the
		// inspection of the instance that the action stopped. Whole is set if the driver cannot inspect one instance and
		// listed all instances of its engine instead. The input Listed with that list was sent before this input.
		Observed *workload.Observed
		Began    time.Time
		Whole    bool
	}

	// Wake makes Step compare a workload's order with its instance again.
	Wake struct{ ID string }

	// StoreFailed: a write to the state file (the effect Store) failed, and no caller waits for the answer to
	// its input. The input had no effect. ID and Exit are the fields Workload and Exit of that Store.
	StoreFailed struct {
		ID   string
		Exit *Exit
	}

	// Tick reports that the time of the last effect Arm is reached.
	Tick struct{}

	// Progress is the current activity of a driver for a workload; empty when it has ended.
	Progress struct{ ID, Text string }

	// Checked is the new result of a workload's health check.
	Checked struct{ ID, State, Detail string }

	// Measured is a measurement of an instance's disk use: the bytes that it uses and its limit.
	Measured struct {
		ID, RuntimeID string
		Bytes, Limit  int64
	}

	// FencerMet is the first answer of the fencer after the start of the agent. If the fencer did not answer,
	// Problem says why; otherwise Problem is empty.
	FencerMet struct {
		Status  lease.Status
		Problem string
	}

	// FencerDue says that the next message to the fencer is due. The effect Renew is that message.
	FencerDue struct{}

	// FencerAnswered is the fencer's answer to the effect Renew.
	FencerAnswered struct {
		Sent    lease.Renewal
		Status  lease.Status
		Problem string
	}

	// Record adds a task to the history.
	Record struct{ Task *Task }

	// Forget drops an order that failed permanently, if Intent is still the order of its workload.
	Forget struct{ Intent *Intent }

	// Prune drops entries of the order history and tombstones (records of deleted workloads) that are too old
	// or too many.
	Prune struct{}
)

func (Start) event()          {}
func (Apply) event()          {}
func (Delete) event()         {}
func (Call) event()           {}
func (Heard) event()          {}
func (Leased) event()         {}
func (Drain) event()          {}
func (Engines) event()        {}
func (Probed) event()         {}
func (Listed) event()         {}
func (Looked) event()         {}
func (Done) event()           {}
func (Wake) event()           {}
func (StoreFailed) event()    {}
func (Tick) event()           {}
func (Progress) event()       {}
func (Checked) event()        {}
func (Measured) event()       {}
func (FencerMet) event()      {}
func (FencerDue) event()      {}
func (FencerAnswered) event() {}
func (Record) event()         {}
func (Forget) event()         {}
func (Prune) event()          {}

// Sender names who sent an order, and the agent that it is for. Empty fields are not checked.
type Sender struct {
	Epoch    *Epoch // leadership epoch; nil from legacy v1 schedulers and operators
	Node     string // node id to which the order is addressed
	Instance string // agent instance id to which the order is addressed
}

// Order is the content of an Apply.
type Order struct {
	Sender
	ID         string
	Kind       workload.Kind
	Revision   string
	Content    string // hash by which the scheduler identifies the specification
	SpecHash   string // hash by which the agent identifies the specification
	Generation workload.Generation
	// SameSince is the generation since which all orders for a job have asked for the same run; zero if this order asks for
	// a new run.
	SameSince workload.Generation
	Running   bool
	Labels    map[string]string
	Exclusive bool
	// Adopts: the workload was imported from a legacy v1 cluster, and its specification has not changed
	// since. So the agent does not replace an instance that the legacy v1 agent made for it.
	Adopts bool
	// OnLostLease is what happens to an exclusive workload when the lease ends: stop or keep; "" means keep.
	OnLostLease string
	// OnUnhealthy is what happens to a workload that has become unhealthy: restart or keep; "" means keep.
	OnUnhealthy string
	// Policies and Confined are stored in the fields of Intent with these names.
	Policies []string
	Confined bool
	Traits   Traits
	Body     any
	// Room says how much CPU, memory and disk the node offers to workloads; the indexes are those of
	// Traits.Promises. If it is nil, orders are not refused for lack of resources.
	Room *[3]Room
}

// Room is how much of one resource the node offers to workloads.
type Room struct {
	Resource, Unit         string
	Total, Reserved, Offer int64
}

// Failed is the reason why an Act failed.
type Failed struct {
	Class   workload.Class
	Message string
	// Started: the action has started all parts of the instance as the order asks, and then a part failed. So
	// the order is carried out, and the next start is one by the agent itself (Act.Repeats).
	Started bool
}
