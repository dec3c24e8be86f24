package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Metrics receives measurements. Its methods are called from any goroutine and must not block.
type Metrics interface {
	// Append: entries were written to this replica's disk, fsync included.
	Append(entries, bytes int, took time.Duration)
	// Commit: an entry of proposed commands was answered on the leader. took begins when Raft got the
	// entry.
	Commit(commands, bytes int, took time.Duration, err error)
	// Apply: one entry was applied here.
	Apply(changes []fsm.Change, took time.Duration)
	// Snapshot: a snapshot was written (what is "write") or restored ("restore").
	Snapshot(what string, took time.Duration, err error)
	// Election: this replica stood for election.
	Election()
}

type noMetrics struct{}

func (noMetrics) Append(int, int, time.Duration)        {}
func (noMetrics) Commit(int, int, time.Duration, error) {}
func (noMetrics) Apply([]fsm.Change, time.Duration)     {}
func (noMetrics) Snapshot(string, time.Duration, error) {}
func (noMetrics) Election()                             {}

// observed is called in goroutines of Raft.
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
