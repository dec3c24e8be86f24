package cluster

import (
	"context"
	"fmt"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Level says how fresh the state that a read sees must be (cluster/DESIGN.md).
type Level uint8

// The levels of reads.
const (
	// Stale reads the state that this replica has now.
	Stale Level = iota
	// Session reads a state that contains at least a given log index. Any replica can serve it.
	Session
	// Linearizable reads a state that contains everything that was committed when the read began.
	Linearizable
)

func (l Level) String() string {
	switch l {
	case Stale:
		return "stale"
	case Session:
		return "session"
	case Linearizable:
		return "linearizable"
	}
	return fmt.Sprintf("level %d", uint8(l))
}

// Store returns this replica's copy of the replicated state, with functions to view it, to wait for an index
// and to follow the changes.
func (n *Node) Store() *store.Store { return n.machine.store }

// Read returns a view of the state. A Session read waits until this replica has applied log index min; other
// levels ignore min. The error is that of ctx or, for Linearizable, that of Confirm. On a follower a
// linearizable read returns ErrNotLeader; package rpc forwards such reads.
func (n *Node) Read(ctx context.Context, level Level, min uint64) (fsm.View, error) {
	switch level {
	case Stale:
		return n.Store().View(), nil
	case Session:
		return n.Store().At(ctx, min)
	case Linearizable:
		index, err := n.Confirm(ctx)
		if err != nil {
			return nil, err
		}
		return n.Store().At(ctx, index)
	}
	return nil, fmt.Errorf("read: unknown %s", level)
}
