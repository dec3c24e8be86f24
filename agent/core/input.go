package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Input is an event with the time at which it happened.
type Input struct {
	Now   time.Time     // wall clock
	Clock time.Duration // time since boot; leases are measured by it
	Event Event
}

// Event is an event for Step. The types below implement it.
type Event interface{ event() }

type (
	// Start begins the work on all restored workloads and tombstones.
	Start struct{}

	// Apply is an order to run a workload or to keep it stopped. Answer is the reply.
	Apply struct{ Order Order }

	// Delete is an order to remove a workload. Answer is the reply.
	Delete struct {
		Sender
		ID          string
		Generation  workload.Generation
		Purge       bool // also remove volumes with the retain policy
		KeepVolumes bool // keep all volumes: the workload continues on another node
	}

	// Call checks the sender of any other call. Answer is the reply. With Changes, the call changes
	// the machine and needs an epoch if a leadership is known.
	Call struct {
		Sender
		Changes bool
	}

	// Heard is a scheduler's response to a registration or heartbeat. Answer is the reply; on a
	// refusal the response must be ignored.
	Heard struct {
		ClusterID string
		Epoch     *Epoch
	}

	// Leased: the schedulers granted a lease that ends at Until, on the clock of Input.Clock.
	Leased struct{ Until time.Duration }

	// Drain: the schedulers switch draining on or off. A draining node accepts no new workloads.
	Drain struct{ On bool }

	// Engines reports the drivers made for a cluster label. With Added, the kinds are added to the
	// existing ones; otherwise they replace them.
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
	}

	// Listed is a list of all instances of an engine, or the error in Trouble. Bound identifies the
	// engine.
	Listed struct {
		Kind    workload.Kind
		Bound   uint64
		Seen    []workload.Observed
		Began   time.Time
		Trouble string
	}

	// Looked is the observed state of one workload on which no Act is under way.
	Looked struct {
		ID       string
		Kind     workload.Kind
		Bound    uint64 // Engine.Bound of the driver
		Observed *workload.Observed
		Began    time.Time
	}

	// Done: an Act has ended. Failed is nil on success.
	Done struct {
		Act    *Act
		Failed *Failed
		// Result of a Look. Whole: the whole engine was listed instead, and its Listed was sent
		// before.
		Observed *workload.Observed
		Began    time.Time
		Whole    bool
	}

	// Wake requests a look at a workload.
	Wake struct{ ID string }

	// StoreFailed: the Store effect of an input without sender failed, so the input had no effect.
	// ID is the Workload of that Store.
	StoreFailed struct{ ID string }

	// Tick: the time of the last Arm is reached.
	Tick struct{}

	// Progress is the current activity of a driver for a workload; empty when it has ended.
	Progress struct{ ID, Text string }

	// Checked is the current state of a health check.
	Checked struct{ ID, State, Detail string }

	// Measured is the disk use and disk limit of an instance in bytes.
	Measured struct {
		ID, RuntimeID string
		Bytes, Limit  int64
	}

	// FencerMet is the fencer's first answer to this process. Problem is set if there was no answer.
	FencerMet struct {
		Status  lease.Status
		Problem string
	}

	// FencerDue requests the next Renew.
	FencerDue struct{}

	// FencerAnswered is the fencer's answer to a Renew.
	FencerAnswered struct {
		Sent    lease.Renewal
		Status  lease.Status
		Problem string
	}

	// Record adds a task to the history.
	Record struct{ Task *Task }

	// Forget drops an order that failed permanently, if it is still Intent.
	Forget struct{ Intent *Intent }

	// Prune drops history and tombstones beyond their limits.
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

// Sender identifies the sender and the addressee of an order. Empty fields are not checked.
type Sender struct {
	Epoch    *Epoch // nil from legacy v1 schedulers and operators
	Node     string // node id that the order is for
	Instance string // instance id of the agent that the order is for
}

// Order is the content of an Apply.
type Order struct {
	Sender
	ID         string
	Kind       workload.Kind
	Revision   string
	Content    string // the scheduler's name for the specification
	SpecHash   string // the agent's name for it
	Generation workload.Generation
	Running    bool
	Labels     map[string]string
	Exclusive  bool
	// OnLostLease is "", keep or stop.
	OnLostLease string
	Traits      Traits
	Body        any
	// Room is the node's offer of each resource, in the order of Traits.Promises. If it is nil,
	// orders are not refused for lack of resources.
	Room *[3]Room
}

// Room is how much of one resource may be promised to workloads.
type Room struct {
	Resource, Unit         string
	Total, Reserved, Offer int64
}

// Failed is the reason why an Act failed.
type Failed struct {
	Class   workload.Class
	Message string
}
