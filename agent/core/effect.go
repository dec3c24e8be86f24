package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Effect is an action that the caller of Step (package runner or the simulator) carries out. The caller keeps
// the order of the effects. The types below implement Effect.
type Effect interface{ effect() }

type (
	// Store writes records in one transaction. A step has at most one Store, as its first effect. If a
	// required Store fails, the caller of Step drops the new State and the other effects, returns the error to
	// the sender of the order, and sends StoreFailed if Workload is set. If an optional Store fails, the
	// caller carries out the other effects.
	Store struct {
		Required       bool
		Workload       string // workload id that the input StoreFailed gets if the write fails
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
		// Unavailable, if set, is the reason why the order cannot be accepted now. Retry: the order may be
		// accepted once the fencer has answered again.
		Unavailable string
		Retry       bool
		// Skipped: the order changes nothing. Absent: the deleted workload is not on this node.
		Skipped, Absent bool
		Message         string
		Intent          *Intent // intent of an accepted order
		Task            *Task
		Status          *Status // last report of the workload, if the order was skipped
	}

	// Cancel interrupts an Act. With Starting, it interrupts only the start of an instance; a removal
	// continues.
	Cancel struct {
		Act      *Act
		Starting bool
	}

	// Arm asks for the input Tick at a time. It replaces the previous Arm; a zero time cancels it.
	Arm struct{ At time.Time }

	// Renew sends a message to the fencer. The input FencerAnswered brings the reply.
	Renew struct{ Renewal lease.Renewal }

	// TellFencer asks for the input FencerDue soon, so that the agent sends the fencer a message before the
	// next periodic one.
	TellFencer struct{}

	// Changed: a report changed, so a heartbeat is due. If ID is set, the report of that workload
	// must be stored.
	Changed struct{ ID string }

	// Register requests a new registration with the schedulers, because the registered facts of the node
	// changed.
	Register struct{}

	// Rebind requests new drivers, which label instances with this cluster id. The input Engines reports that
	// they were made.
	Rebind struct{ Cluster string }

	// Watch starts a health check of a running instance and ends any other health check of the workload. If
	// the instance is checked already, Watch only updates the addresses.
	Watch struct {
		Instance string // identifies the instance that is checked; another value restarts the check
		Intent   *Intent
		Observed *workload.Observed
	}

	// Unwatch ends the health check of a workload.
	Unwatch struct{ ID string }

	// Settled: the workload is in the state that its order asks for, or is deleted.
	Settled struct{ ID string }

	// TaskEnded, TurnedFailed and Deleted are only for metrics. Orphan is set if an instance without an order
	// was deleted; it is the kind of that instance.
	TaskEnded    struct{ Task *Task }
	TurnedFailed struct{ Class workload.Class }
	Deleted      struct {
		ID     string
		Orphan workload.Kind
	}

	// Notice is a log line with key-value pairs.
	Notice struct {
		Warn bool
		Text string
		Args []any
	}
)

// Act is an action on one workload, carried out by a driver. The input Done with the same pointer reports its
// end.
type Act struct {
	Verb   Verb
	ID     string
	Intent *Intent         // order to carry out; nil if the action removes a deleted workload or an orphan
	Kinds  []workload.Kind // the engines to act on
	Fate   Fate            // how Remove, RemoveFormer and Recreate treat the workload's volumes
	// Cluster is the cluster id for the labels of the instance.
	Cluster string
	Grace   time.Duration // upper limit of the time that the workload gets to stop by itself, see workload.OwnGrace
	// Leased: the action may start a workload with on_lost_lease: stop, so the end of the lease cancels the
	// whole action.
	Leased bool
	Absent bool // whether the workload had no instance before the action
	// Heals: the verb is Restart, because the workload is unhealthy. The healthy services of a stack then keep
	// running.
	Heals  bool
	Orphan workload.Kind

	bound uint64 // number of the driver (Engine.Bound) when the action was decided
}

// Fate is what happens to the volumes of a removed workload.
type Fate struct {
	Keep       bool // keep all volumes
	KeepShared bool // keep volumes that other nodes can reach
	Purge      bool // also remove volumes with the retain policy
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
