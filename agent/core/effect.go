package core

import (
	"time"

	"github.com/persys/compute/agent/fencer/lease"
	"github.com/persys/compute/agent/workload"
)

// Effect is one thing that the shell does after a Step, in the order of the list. The types below
// implement it.
type Effect interface{ effect() }

type (
	// Store writes records in one transaction. There is at most one in a step, and it is the first
	// effect. If a required Store fails, the shell drops the new State and the other effects, tells the
	// sender, and sends StoreFailed if there is none. If another one fails, the shell goes on.
	Store struct {
		Required       bool
		Workload       string // that was being worked on
		Meta           *Meta
		Intents        []*Intent
		Forget         []string // intents and statuses to drop
		Tasks          []*Task
		DropTasks      []*Task
		Tombstones     []*Tombstone
		DropTombstones []string
	}

	// Answer is for the sender of an Apply, Delete, Call or Heard.
	Answer struct {
		Refusal *Refusal
		// Unavailable, if set, says why the order cannot be taken now. Retry: the fencer's next answer
		// may change that.
		Unavailable string
		Retry       bool
		// Skipped: nothing new was asked for. Absent: a delete of what is not here.
		Skipped, Absent bool
		Message         string
		Intent          *Intent // of an order that was taken
		Task            *Task
		Status          *Status // the last report, of an order that was skipped
	}

	// Cancel breaks off an Act. Starting: only if it is starting an instance; a removal goes on.
	Cancel struct {
		Act      *Act
		Starting bool
	}

	// Arm asks for a Tick at a time. It replaces the Arm before; a zero time asks for none.
	Arm struct{ At time.Time }

	// Renew is a message for the fencer, answered by FencerAnswered.
	Renew struct{ Renewal lease.Renewal }

	// TellFencer asks for a FencerDue soon.
	TellFencer struct{}

	// Changed: a report changed, and is worth a heartbeat. Saved reports are worth storing.
	Changed struct{ ID string }

	// Register: what the node registers has changed.
	Register struct{}

	// Rebind asks for drivers that label with another cluster id, answered by Engines.
	Rebind struct{ Cluster string }

	// Watch begins a health check of a running instance in place of any other one of the workload, or
	// tells the addresses of the same one.
	Watch struct {
		Instance string // changes when the check has to begin anew
		Intent   *Intent
		Observed *workload.Observed
	}

	// Unwatch ends a workload's health check.
	Unwatch struct{ ID string }

	// Settled: a workload is as it was ordered.
	Settled struct{ ID string }

	// TaskEnded, TurnedFailed and Deleted are for metrics. Orphan is the kind of an instance that was
	// deleted without an order.
	TaskEnded    struct{ Task *Task }
	TurnedFailed struct{ Class workload.Class }
	Deleted      struct {
		ID     string
		Orphan workload.Kind
	}

	// Notice is a line for the log, with pairs of key and value.
	Notice struct {
		Warn bool
		Text string
		Args []any
	}
)

// Act is work on one workload. It is answered by Done with the same pointer.
type Act struct {
	Verb   Verb
	ID     string
	Intent *Intent         // nil for the removal of an instance that nobody ordered
	Kinds  []workload.Kind // the engines to act on
	Fate   Fate            // of volumes, for Remove, RemoveFormer and Recreate
	// Cluster is the cluster id on the labels of an instance.
	Cluster string
	Grace   time.Duration // what the workload gets to end by itself
	// Guarded: the act may start a workload that is to be stopped with the lease, so a Cancel breaks it
	// off as a whole.
	Guarded bool
	Absent  bool // there was no instance before
	Orphan  workload.Kind

	bound uint64 // engines that it was decided for
}

// Fate says what becomes of the volumes of a workload that is removed.
type Fate struct {
	Keep       bool // none is removed
	KeepShared bool // none that other nodes can reach is removed
	Purge      bool // those to be retained are removed as well
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
