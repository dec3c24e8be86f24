package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Metrics receives figures; every method may be called from any goroutine and
// must not block.
type Metrics interface {
	// Append is one write of entries to this replica's disk, fsync included.
	Append(entries, bytes int, took time.Duration)
	// Commit is one entry of proposed commands on the leader, from handing it to
	// Raft until its verdicts are there.
	Commit(commands, bytes int, took time.Duration, err error)
	// Apply is one entry applied here.
	Apply(changes []fsm.Change, took time.Duration)
	// Snapshot is one snapshot written ("write") or restored ("restore").
	Snapshot(what string, took time.Duration, err error)
	// Election is told each time this replica stands.
	Election()
}

type noMetrics struct{}

func (noMetrics) Append(int, int, time.Duration)        {}
func (noMetrics) Commit(int, int, time.Duration, error) {}
func (noMetrics) Apply([]fsm.Change, time.Duration)     {}
func (noMetrics) Snapshot(string, time.Duration, error) {}
func (noMetrics) Election()                             {}

// observed is called in Raft's goroutines.
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
