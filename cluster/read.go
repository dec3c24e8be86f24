package cluster

import (
	"context"
	"fmt"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// Level is how fresh a read has to be (cluster/DESIGN.md).
type Level uint8

// The levels.
const (
	// Stale: whatever this replica has.
	Stale Level = iota
	// Session: at least a given index, from any replica.
	Session
	// Linearizable: everything that was committed when the read began.
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

// Store is this replica's state: views, waiting and the change feed.
func (n *Node) Store() *store.Store { return n.machine.store }

// Read returns a view of the wished freshness. A Session read waits until this
// replica has applied log index min; min is ignored otherwise. Errors: ctx's,
// and for Linearizable those of Confirm: on a follower ErrNotLeader, because
// passing a read on is the edge's work.
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
