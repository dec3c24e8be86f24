package cluster

import (
	"context"
	"fmt"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Level says how fresh a read must be (cluster/DESIGN.md).
type Level uint8

// The levels of reads.
const (
	// Stale reads the state of this replica as it is.
	Stale Level = iota
	// Session reads a state of at least a given index, from any replica.
	Session
	// Linearizable reads a state with everything that was committed when the read began.
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

// Store returns this replica's state: views, waiting and the change feed.
func (n *Node) Store() *store.Store { return n.machine.store }

// Read returns a view. A Session read waits until this replica has applied log index min; other levels
// ignore min. Errors: that of ctx, and for Linearizable those of Confirm. A follower returns ErrNotLeader:
// package rpc forwards reads.
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
