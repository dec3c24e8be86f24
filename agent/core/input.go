package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Input is one thing that happened, and when.
type Input struct {
	Now   time.Time     // by the clock on the wall
	Clock time.Duration // since the machine started, which leases are measured by
	Event Event
}

// Event is what happened. The types below implement it.
type Event interface{ event() }

type (
	// Start begins the work on everything that was restored.
	Start struct{}

	// Apply is an order to run a workload, or to keep it stopped. It is answered by an Answer.
	Apply struct{ Order Order }

	// Delete is an order to remove a workload. It is answered by an Answer.
	Delete struct {
		Sender
		ID          string
		Generation  workload.Generation
		Purge       bool // volumes that are to be retained are removed as well
		KeepVolumes bool // no volume is removed: the workload lives on elsewhere
	}

	// Call judges the sender of any other call, and is answered by an Answer. Changes: the call
	// changes the machine, so it needs an epoch where the schedulers have one.
	Call struct {
		Sender
		Changes bool
	}

	// Heard is the answer of a scheduler to a registration or a heartbeat. It is answered by an
	// Answer: a refusal means that the scheduler's answer does not count.
	Heard struct {
		ClusterID string
		Epoch     *Epoch
	}

	// Leased: the schedulers granted a lease until a time on Input.Clock.
	Leased struct{ Until time.Duration }

	// Drain: the schedulers want no new workloads here, or want them again.
	Drain struct{ On bool }

	// Engines are the drivers made for a cluster label. With Added, kinds join those that are there.
	// Failed keeps those of before.
	Engines struct {
		Cluster string
		Kinds   []workload.Kind
		Added   bool
	}

	// Probed is what an engine says of itself. EngineID is empty if it did not answer.
	Probed struct {
		Kind     workload.Kind
		EngineID string
		Healthy  bool
		Reason   string
	}

	// Listed is a list of everything on an engine, or that there was none. Bound says which engine.
	Listed struct {
		Kind    workload.Kind
		Bound   uint64
		Seen    []workload.Observed
		Began   time.Time
		Trouble string
	}

	// Looked is a look at one workload that is not being worked on.
	Looked struct {
		ID       string
		Kind     workload.Kind
		Bound    uint64 // of the driver, as in Engine
		Observed *workload.Observed
		Began    time.Time
	}

	// Done: an Act has ended. Failed is nil if it succeeded.
	Done struct {
		Act    *Act
		Failed *Failed
		// Of a Look: what the engine shows. Whole says that the engine was listed instead; a Listed came
		// before.
		Observed *workload.Observed
		Began    time.Time
		Whole    bool
	}

	// Wake asks for a look at a workload.
	Wake struct{ ID string }

	// StoreFailed: the Store effect of an input without sender failed, so that the input had no effect.
	// ID is the workload that was being worked on.
	StoreFailed struct{ ID string }

	// Tick: the time of the last Arm has come.
	Tick struct{}

	// Progress is what a driver is busy with; empty when it is no longer.
	Progress struct{ ID, Text string }

	// Checked is what a health check says now.
	Checked struct{ ID, State, Detail string }

	// Measured is what an instance occupies, in bytes.
	Measured struct {
		ID, RuntimeID string
		Bytes, Limit  int64
	}

	// FencerMet is the fencer's first answer to this process. Problem is set if it did not answer.
	FencerMet struct {
		Status  lease.Status
		Problem string
	}

	// FencerDue asks for the next message to the fencer, a Renew.
	FencerDue struct{}

	// FencerAnswered is the fencer's answer to a Renew.
	FencerAnswered struct {
		Sent    lease.Renewal
		Status  lease.Status
		Problem string
	}

	// Record adds a task to the history.
	Record struct{ Task *Task }

	// Forget drops an order that failed for good, if it is still Intent.
	Forget struct{ Intent *Intent }

	// Prune drops history and tombstones beyond their bounds.
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

// Sender says who sent an order, and to whom. Empty fields are not checked.
type Sender struct {
	Epoch    *Epoch // nil from legacy v1 schedulers and operators
	Node     string // node id that the order is for
	Instance string // instance id of the agent that the order is for
}

// Order is one apply.
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
	// Room is what this node offers of each resource, in the order of Traits.Promises. Nil: orders are
	// not refused for lack of room.
	Room *[3]Room
}

// Room is how much of one resource may be promised to workloads.
type Room struct {
	Resource, Unit         string
	Total, Reserved, Offer int64
}

// Failed is why an Act did not succeed.
type Failed struct {
	Class   workload.Class
	Message string
}
