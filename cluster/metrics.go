package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Metrics receives the measurements of a replica. Its methods are called from any goroutine and must not
// block.
type Metrics interface {
	// Append: log entries were written to this replica's disk. The duration took includes fsync.
	Append(entries, bytes int, took time.Duration)
	// Commit: the leader has answered the callers of one log entry. took is the time from the
	// entry's hand-over to Raft to the answer.
	Commit(commands, bytes int, took time.Duration, err error)
	// Apply: this replica applied one log entry, which made these changes to the state.
	Apply(changes []fsm.Change, took time.Duration)
	// Snapshot: a snapshot was written (what is "write") or restored (what is "restore").
	Snapshot(what string, took time.Duration, err error)
	// Stalled: this replica led, and its disk hung for longer than Timing.DiskStall.
	Stalled()
	// Election: this replica stood for election.
	Election()
	// TermRefused: a peer sent an implausible Raft term, which was not adopted.
	TermRefused()
}

type noMetrics struct{}

func (noMetrics) Append(int, int, time.Duration)        {}
func (noMetrics) Commit(int, int, time.Duration, error) {}
func (noMetrics) Apply([]fsm.Change, time.Duration)     {}
func (noMetrics) Snapshot(string, time.Duration, error) {}
func (noMetrics) Stalled()                              {}
func (noMetrics) Election()                             {}
func (noMetrics) TermRefused()                          {}

// observed handles an observation that the Raft library reports. It runs in goroutines of the library.
func (n *Node) observed(o *raft.Observation) {
	switch d := o.Data.(type) {
	case raft.LeaderObservation:
		n.watch.fire()
	case raft.RaftState:
		if d == raft.Candidate {
			n.cfg.Metrics.Election()
		}
	}
}
