package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Effect is an action that the caller of Step (package runner or the simulator) carries out, in the order
// in which Step returned the effects. The types below implement Effect.
type Effect interface{ effect() }

type (
	// Store writes records in one transaction. A step has at most one Store, as its first effect. If a
	// required Store fails, the caller of Step drops the new State and the other effects, returns the error to
	// the sender of the order, and sends StoreFailed if Workload is set. If an optional Store fails, the
	// caller carries out the other effects.
	Store struct {
		Required       bool
		Workload       string // workload id that the input StoreFailed gets if the write fails
		Exit           *Exit  // how the removed instance of a job had ended; StoreFailed gets it too
		Meta           *Meta
		Intents        []*Intent
		Forget         []string // ids whose intents and statuses are dropped
		Tasks          []*Task
		DropTasks      []*Task
		Tombstones     []*Tombstone
		DropTombstones []string
	}

	// Answer is the reply to the caller who sent the input Apply, Delete, Call or Heard.
	Answer struct {
		Refusal *Refusal
		// Unavailable, if set, is the reason why the order cannot be accepted now. If Retry is set, the
		// sender may repeat the order, because the fencer's next answer may allow it.
		Unavailable string
		Retry       bool
		// Skipped: the order changes nothing. Absent: the order is a delete, and the workload is not on this
		// node.
		Skipped, Absent bool
		Message         string
		Intent          *Intent // intent of an accepted order
		Task            *Task
		Status          *Status // last report of the workload, if the order was skipped
	}

	// Cancel interrupts an Act. If Starting is set, it interrupts only an Act that starts an
	// instance; a removal continues.
	Cancel struct {
		Act      *Act
		Starting bool
	}

	// Arm sets the timer: the caller sends the input Tick at the time At. A new Arm replaces the previous
	// one; if At is zero, the timer is cancelled.
	Arm struct{ At time.Time }

	// Renew sends a message to the fencer. The input FencerAnswered brings the reply.
	Renew struct{ Renewal lease.Renewal }

	// TellFencer requests the input FencerDue at once, so that the fencer gets a message before the next
	// periodic one.
	TellFencer struct{}

	// Changed: the report of a workload changed, so a heartbeat must be sent soon. If ID is set, the report of
	// that workload must be written to the state file.
	Changed struct{ ID string }

	// Register requests a new registration with the schedulers, because the registered facts of the node
	// changed.
	Register struct{}

	// Rebind requests new drivers, which label instances with this cluster id. The input Engines reports that
	// they were made.
	Rebind struct{ Cluster string }

	// Watch starts a health check of a running instance and ends any other health check of the workload. If
	// the health check of the instance runs already, Watch only updates the addresses that it connects to.
	Watch struct {
		Instance string // identifies the instance that is checked; another value restarts the check
		Intent   *Intent
		Observed *workload.Observed
	}

	// Unwatch ends the health check of a workload.
	Unwatch struct{ ID string }

	// Settled reports that the workload has reached the state that its order demands, or is deleted.
	Settled struct{ ID string }

	// TaskEnded, TurnedFailed and Deleted are only for metrics. Orphan is set if the deleted instance had no
	// order; Orphan is then the kind of the instance, such as container.
	TaskEnded    struct{ Task *Task }
	TurnedFailed struct{ Class workload.Class }
	Deleted      struct {
		ID     string
		Orphan workload.Kind
	}

	// Notice makes the caller of Step write a log line with key-value pairs.
	Notice struct {
		Warn bool
		Text string
		Args []any
	}
)

// Act is an action on one workload, carried out by a driver. The input Done with the same pointer reports its
// end.
type Act struct {
	Verb      Verb
	ID        string
	Intent    *Intent         // order to carry out; nil if the action removes a deleted workload or an orphan
	Kinds     []workload.Kind // the engines to act on
	Retention Retention       // how Remove, RemoveFormer and Recreate treat the workload's volumes
	// Cluster is the cluster id for the labels of the instance.
	Cluster string
	Grace   time.Duration // upper limit of the time that the workload gets to stop by itself, see workload.OwnGrace
	// Leased: the action may start a workload with on_lost_lease: stop, so the end of the lease cancels the
	// whole action.
	Leased bool
	Absent bool // whether the workload had no instance before the action
	// Heals: the action restarts an unhealthy workload (Verb is Restart). The healthy services of a stack
	// then keep running.
	Heals  bool
	Orphan workload.Kind
	// Repeats: no order asks for this start; the agent starts the workload again by itself. In a stack, the
	// driver then does not start services that have ended and whose restart policies keep them ended.
	Repeats bool
	// Ends: the action removes the instance of a job that has not ended by itself. The instance is then stopped and
	// inspected before its removal, so that the job's record gets its exit code and output.
	Ends bool

	exit  *Exit  // how the instance of a job ended, as known before the action was decided
	bound uint64 // number of the driver (Engine.Bound) when the action was decided
}

// Retention says which volumes of a removed workload are kept.
type Retention struct {
	Keep       bool // keep all volumes
	KeepShared bool // keep volumes that other nodes can use too
	Purge      bool // also remove volumes with the retain policy
	Retain     bool // keep only the named volumes, and keep them until a person deletes them
}

func (Store) effect()        {}
func (Answer) effect()       {}
func (*Act) effect()         {}
func (Cancel) effect()       {}
func (Arm) effect()          {}
func (Renew) effect()        {}
func (TellFencer) effect()   {}
func (Changed) effect()      {}
func (Register) effect()     {}
func (Rebind) effect()       {}
func (Watch) effect()        {}
func (Unwatch) effect()      {}
func (Settled) effect()      {}
func (TaskEnded) effect()    {}
func (TurnedFailed) effect() {}
func (Deleted) effect()      {}
func (Notice) effect()       {}
