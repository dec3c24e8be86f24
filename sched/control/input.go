package control

import (
	"errors"
	"fmt"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// Moment is one point in time on the two clocks of a replica.
type Moment struct {
	Wall int64 // Unix nanoseconds; leases are on this clock; it may be set forward and back
	Mono int64 // nanoseconds since any fixed start; never goes back; timers are on this clock
}

// ID pairs an effect with its answer; IDs are unique within a Term.
type ID uint64

// Call identifies a caller that waits for a lease; the caller chooses it, unique among
// the waiting ones.
type Call uint64

// Input is something that happened. Its kinds are the types of this file up to Effect.
type Input interface{ input() }

// Tick is the passing of time: Term.WakeAt says when it is due.
type Tick struct{}

// Updates are changes of the replicated state, in order and without gaps.
type Updates struct {
	View    fsm.View // after Changes
	Changes []fsm.Change
	Fresh   bool // changes were missed before View: the planner starts again from it
	Thawed  bool // a frozen mode has ended, or may have ended among missed changes
}

// Heartbeat is the heartbeat of a node; it is answered by Reply.
type Heartbeat struct {
	Call Call
	Beat sched.Heartbeat
}

// Registered means that the registration of a node is committed; it is answered by
// Reply with the node's first lease.
type Registered struct {
	Call Call
	Node string
}

// Abandoned means that a caller waits no longer. It is answered by Reply with the old
// lease, unless it has been answered already.
type Abandoned struct{ Call Call }

// Planned answers Plan.
type Planned struct {
	Step sched.Step
	Took time.Duration // time that planning took; long plans are made less often
}

// Proposed answers Propose. Err is nil if the commands are in the log; the state machine
// may have refused them all the same.
type Proposed struct {
	ID  ID
	Err error
}

// Confirmed answers Confirm. Err is nil if this replica led at a moment after Confirm
// was issued.
type Confirmed struct {
	ID  ID
	Err error
}

// Delivered answers Deliver. Err is nil if the agent answered; a refusal is an Ack.
type Delivered struct {
	ID  ID
	Ack sched.Ack
	Err error
}

// Listed answers List.
type Listed struct {
	ID      ID
	Reports []sched.Reported
	Err     error
}

// Looked answers Look. Found is false if the node does not have the workload.
type Looked struct {
	ID     ID
	Report sched.Reported
	Found  bool
	Err    error
}

// ActionsRead answers ReadActions.
type ActionsRead struct {
	ID      ID
	Actions []*commandv1.AgentAction
	Err     error
}

// Lost ends the term: every waiting caller gets ErrNotLeading, and no input has an
// effect any more.
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
func (Lost) input()        {}

// Effect is something to be done outside. Its kinds are the types below.
type Effect interface{ effect() }

// Plan asks for one planning step: sched.Next(World, Cache). At most one is under way.
type Plan struct {
	World sched.World
	Cache *sched.Cache
}

// Propose puts commands through the log, as one batch. It must be answered within about
// ten seconds, if need be with an error.
type Propose struct {
	ID       ID
	Commands []fsm.Command
	Reports  int // of a flush: how many workload reports it carries
}

// Confirm proves leadership by the log. It must be answered within a few seconds, if
// need be with an error.
type Confirm struct{ ID ID }

// Deliver sends one order to an agent. It should be answered within Within; a later
// answer is ignored.
type Deliver struct {
	ID     ID
	Epoch  fsm.Epoch
	Order  sched.Order
	Within time.Duration
}

// List reads everything that a node has.
type List struct {
	ID   ID
	Node string
}

// Look reads one workload of a node.
type Look struct {
	ID             ID
	Node, Workload string
}

// ReadActions reads the newest tasks of a node, of one workload or, with "", of all.
type ReadActions struct {
	ID             ID
	Node, Workload string
	Limit          int
}

// Reply answers Heartbeat, Registered and Abandoned, exactly once per Call. Err is nil,
// ErrNotLeading or *ErrUnknownNode.
type Reply struct {
	Call  Call
	Lease sched.Lease
	Err   error
}

// The effects below only inform: for logs and metrics.
type (
	// Paused tells that this process stood still, or that its clock was set.
	Paused struct{ By time.Duration }
	// ClockBehind tells that the state was written by a clock that is ahead of this one.
	ClockBehind struct{ By time.Duration }
	// Undelivered tells that an order was not taken by its agent and rests before
	// another try. Err is nil if a fence refused it; then Message says which.
	Undelivered struct {
		Order   sched.Order
		Try     int
		Err     error
		Message string
	}
	// PlanLost tells that the outcome of a planning step is unknown.
	PlanLost struct{}
	// AuditTruncated tells that a node has more tasks than are read.
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
func (Reply) effect()          {}
func (Paused) effect()         {}
func (ClockBehind) effect()    {}
func (Undelivered) effect()    {}
func (PlanLost) effect()       {}
func (AuditTruncated) effect() {}

// ErrNotLeading is the answer to a caller that asks outside a leadership term.
var ErrNotLeading = errors.New("this replica is not the leader")

// ErrUnknownNode is the answer to a node that never registered, or has not registered
// since it was fenced. Agents register when they get it.
type ErrUnknownNode struct {
	Node   string
	Fenced bool
}

// NotFound marks the error for the API.
func (e *ErrUnknownNode) NotFound() bool { return true }

func (e *ErrUnknownNode) Error() string {
	if e.Fenced {
		return fmt.Sprintf("node %q was fenced and has not registered since", e.Node)
	}
	return fmt.Sprintf("node %q is not registered", e.Node)
}
