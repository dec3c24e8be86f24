package control

import (
	"errors"
	"fmt"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// Time is one point in time on the two clocks of a replica.
type Time struct {
	Wall int64 // Unix nanoseconds; wall clock, used for leases; it may be set forward and back
	Mono int64 // nanoseconds since any fixed start; monotonic clock, used for timers; it never goes back
}

// ID connects an effect with its answer. IDs are unique within a Term.
type ID uint64

// Call identifies an API call that waits for the lease of a node. The caller chooses the number,
// which is unique among the waiting calls.
type Call uint64

// Input is an event that is passed to the Term. The types before Effect in this file implement it.
type Input interface{ input() }

// Tick says that time has passed. It is due when the clock reaches Term.WakeAt.
type Tick struct{}

// Updates has changes of the replicated state, in order and without gaps.
type Updates struct {
	View    fsm.View // the state after Changes
	Changes []fsm.Change
	Fresh   bool // earlier changes were missed, so the planner must read all of View
	Thawed  bool // a frozen mode has ended, or may have ended in missed changes
}

// Heartbeat is a heartbeat that a node has sent. The Term answers it with the effect Reply.
type Heartbeat struct {
	Call Call
	Beat sched.Heartbeat
}

// Registered means that the registration of a node is committed. The Term answers it with the effect Reply,
// which has the node's first lease.
type Registered struct {
	Call Call
	Node string
}

// Abandoned means that the caller of Call no longer waits for its Reply. If the Term has not sent the Reply
// yet, it sends one that repeats the end of the lease before the call, without an extension.
type Abandoned struct{ Call Call }

// Planned is the answer to the effect Plan.
type Planned struct {
	Step sched.Step
	Took time.Duration // duration of the planning step; after a slow step the next begins later
}

// Proposed is the answer to the effect Propose. If the commands are in the log, Err is nil. The state machine
// may still have refused them.
type Proposed struct {
	ID  ID
	Err error
}

// Confirmed is the answer to the effect Confirm. Err is nil if this replica led at a moment after Confirm was
// issued.
type Confirmed struct {
	ID  ID
	Err error
}

// Delivered is the answer to the effect Deliver. If the agent answered, Err is nil; the Ack may be a refusal.
type Delivered struct {
	ID  ID
	Ack sched.Ack
	Err error
}

// Listed is the answer to the effect List.
type Listed struct {
	ID      ID
	Reports []sched.Reported
	Err     error
}

// Looked is the answer to the effect Look. Found is false if the node does not have the workload.
type Looked struct {
	ID     ID
	Report sched.Reported
	Found  bool
	Err    error
}

// Scaled is the answer to the effect Scale. Err is nil if the group now has Scale.Count members.
type Scaled struct {
	ID  ID
	Err error
}

// ActionsRead is the answer to the effect ReadActions.
type ActionsRead struct {
	ID      ID
	Actions []*commandv1.AgentAction
	Err     error
}

// Lost means that this replica no longer leads. It ends the term: every waiting caller gets ErrNotLeading,
// and later inputs have no effect.
type Lost struct{}

func (Tick) input()        {}
func (Updates) input()     {}
func (Heartbeat) input()   {}
func (Registered) input()  {}
func (Abandoned) input()   {}
func (Planned) input()     {}
func (Proposed) input()    {}
func (Confirmed) input()   {}
func (Delivered) input()   {}
func (Listed) input()      {}
func (Looked) input()      {}
func (ActionsRead) input() {}
func (Scaled) input()      {}
func (Lost) input()        {}

// Effect is an action that the caller of the Term must carry out. The types below implement it.
type Effect interface{ effect() }

// Plan asks for one planning step: sched.Next(World, Cache). At most one step is planned at a time.
type Plan struct {
	World sched.World
	Cache *sched.Cache
}

// Propose puts commands through the log as one batch. The answer, possibly an error, must come within about
// ten seconds.
type Propose struct {
	ID       ID
	Commands []fsm.Command
	Reports  int // number of workload reports in the commands; 0 = none
}

// Confirm asks for proof by the log that this replica still leads. The answer, possibly an error, must come
// within a few seconds.
type Confirm struct{ ID ID }

// Deliver sends one order to an agent. An answer that comes later than the time Within is ignored.
type Deliver struct {
	ID     ID
	Epoch  fsm.Epoch
	Order  sched.Order
	Within time.Duration
}

// List asks the caller to read all workloads of a node.
type List struct {
	ID   ID
	Node string
}

// Look asks the caller to read one workload of a node.
type Look struct {
	ID             ID
	Node, Workload string
}

// ReadActions reads the newest tasks of a node's agent: those about one workload, or all if Workload is "".
type ReadActions struct {
	ID             ID
	Node, Workload string
	Limit          int
}

// Scale asks the caller to change the number of members of a group to Count, if it is From now. The answer,
// possibly an error, must come within about ten seconds.
type Scale struct {
	ID          ID
	Group       string
	From, Count int
	Reason      string
}

// Reply answers Heartbeat, Registered and Abandoned, exactly once per Call. Err is nil,
// ErrNotLeading or *ErrUnknownNode.
type Reply struct {
	Call  Call
	Lease sched.Lease
	Err   error
}

// The caller only logs and counts the effects below.
type (
	// Paused reports that this process was paused or that its clock was set.
	Paused struct{ By time.Duration }
	// ClockBehind reports that the state was written with a clock that is ahead of this replica's clock.
	ClockBehind struct{ By time.Duration }
	// Undelivered reports that an agent did not accept an order, which is tried again later. If the agent
	// refused the order because it has seen a newer epoch or generation, Err is nil and Message says so.
	Undelivered struct {
		Order   sched.Order
		Try     int
		Err     error
		Message string
	}
	// PlanLost reports that it is unknown whether the commands of a planning step are in the log.
	PlanLost struct{}
	// AuditTruncated reports that an agent has more finished tasks than the leader reads.
	AuditTruncated struct {
		Node string
		Read int
	}
)

func (Plan) effect()           {}
func (Propose) effect()        {}
func (Confirm) effect()        {}
func (Deliver) effect()        {}
func (List) effect()           {}
func (Look) effect()           {}
func (ReadActions) effect()    {}
func (Scale) effect()          {}
func (Reply) effect()          {}
func (Paused) effect()         {}
func (ClockBehind) effect()    {}
func (Undelivered) effect()    {}
func (PlanLost) effect()       {}
func (AuditTruncated) effect() {}

// ErrNotLeading is the answer to a call outside a leadership term.
var ErrNotLeading = errors.New("this replica is not the leader")

// ErrUnknownNode is the answer to a node that is not registered, or that has not registered since it was
// fenced. An agent that gets this answer registers.
type ErrUnknownNode struct {
	Node   string
	Fenced bool
}

// NotFound marks the error, so that the API answers with "not found".
func (e *ErrUnknownNode) NotFound() bool { return true }

func (e *ErrUnknownNode) Error() string {
	if e.Fenced {
		return fmt.Sprintf("node %q was fenced and has not registered since", e.Node)
	}
	return fmt.Sprintf("node %q is not registered", e.Node)
}
