package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Effect is an action for the shell (package runner or the simulator). The shell carries out the
// effects of a Step in order. The types below implement it.
type Effect interface{ effect() }

type (
	// Store writes records in one transaction. A step has at most one Store, as its first effect. If
	// a required Store fails, the shell drops the new State and the other effects, returns the error
	// to the sender, and sends StoreFailed if Workload is set. If an optional Store fails, the shell
	// continues.
	Store struct {
		Required       bool
		Workload       string // id for StoreFailed
		Meta           *Meta
		Intents        []*Intent
		Forget         []string // ids whose intents and statuses are dropped
		Tasks          []*Task
		DropTasks      []*Task
		Tombstones     []*Tombstone
		DropTombstones []string
	}

	// Answer is the reply to the sender of an Apply, Delete, Call or Heard.
	Answer struct {
		Refusal *Refusal
		// Unavailable, if set, is the reason why the order cannot be accepted now. Retry: the order may
		// be accepted after the fencer's next answer.
		Unavailable string
		Retry       bool
		// Skipped: the order changes nothing. Absent: the deleted workload is not on this node.
		Skipped, Absent bool
		Message         string
		Intent          *Intent // of an accepted order
		Task            *Task
		Status          *Status // the last report, for a skipped order
	}

	// Cancel interrupts an Act. With Starting, only the start of an instance is interrupted; a
	// removal continues.
	Cancel struct {
		Act      *Act
		Starting bool
	}

	// Arm requests a Tick at a time. It replaces the previous Arm; a zero time cancels it.
	Arm struct{ At time.Time }

	// Renew sends a message to the fencer. FencerAnswered is the reply.
	Renew struct{ Renewal lease.Renewal }

	// TellFencer requests a FencerDue soon.
	TellFencer struct{}

	// Changed: a report changed, so a heartbeat is due. If ID is set, the report of that workload
	// must be stored.
	Changed struct{ ID string }

	// Register: the registered facts of the node changed.
	Register struct{}

	// Rebind requests drivers that label instances with another cluster id. Engines is the reply.
	Rebind struct{ Cluster string }

	// Watch starts a health check of a running instance and ends any other health check of the
	// workload. For the same instance it only updates the addresses.
	Watch struct {
		Instance string // a new value restarts the check
		Intent   *Intent
		Observed *workload.Observed
	}

	// Unwatch ends the health check of a workload.
	Unwatch struct{ ID string }

	// Settled: the workload is in the state that its order asks for, or is deleted.
	Settled struct{ ID string }

	// TaskEnded, TurnedFailed and Deleted are for metrics. Orphan is the kind of a deleted instance
	// without an order.
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

// Act is work on one workload. Done with the same pointer reports its end.
type Act struct {
	Verb   Verb
	ID     string
	Intent *Intent         // nil if a deleted workload or an orphan is removed
	Kinds  []workload.Kind // the engines to act on
	Fate   Fate            // what happens to volumes, for Remove, RemoveFormer and Recreate
	// Cluster is the cluster id for the labels of the instance.
	Cluster string
	Grace   time.Duration // time for the workload to stop before it is killed
	// Guarded: the act may start a workload with on_lost_lease: stop, so a lapse cancels the whole
	// act.
	Guarded bool
	Absent  bool // no instance existed before
	Orphan  workload.Kind

	bound uint64 // Engine.Bound at the time of the decision
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
