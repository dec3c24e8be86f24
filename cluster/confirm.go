package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

const (
	// confirmEvery is the shortest time between two barriers of Confirm.
	confirmEvery = time.Millisecond
	// confirmLimit is the timeout of one barrier of Confirm. Without a quorum Raft gives up earlier.
	confirmLimit = 10 * time.Second
)

type commandHead = commandv1.Head

func newHead(epoch fsm.Epoch, at time.Time) *commandHead {
	h := &commandv1.Head{At: at.UnixNano(), By: "leader"}
	if epoch != (fsm.Epoch{}) {
		h.Epoch = &commandv1.Epoch{Incarnation: epoch.Incarnation, Term: epoch.Term}
	}
	return h
}

// confirmer shares barriers among callers of Confirm. Callers that arrive in the same millisecond form a
// batch with one barrier. A caller joins a batch only before its barrier is proposed, so the barrier always
// comes after the call began. The library's VerifyLeader does not promise that (cluster/DESIGN.md).
type confirmer struct {
	n       *Node
	mu      sync.Mutex
	next    *confirmation
	running bool
	last    time.Time
}

type confirmation struct {
	done        chan struct{}
	index, term uint64
	err         error
}

// Confirm proves that this replica still leads: it returns once a barrier that was proposed after
// the call began is committed, and applied on this replica. A View at or above the returned index
// shows everything that was committed before the call. Confirm returns the same errors as Propose;
// ErrUnknownOutcome means only that leadership is not proven.
func (n *Node) Confirm(ctx context.Context) (index uint64, err error) {
	index, _, err = n.conf.confirm(ctx)
	return index, err
}

func (c *confirmer) confirm(ctx context.Context) (index, term uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	c.mu.Lock()
	if c.next == nil {
		c.next = &confirmation{done: make(chan struct{})}
	}
	b := c.next
	if !c.running {
		c.running = true
		if !c.n.spawn(c.run) {
			c.running = false
			c.next = nil
			c.mu.Unlock()
			return 0, 0, c.n.stoppedErr()
		}
	}
	c.mu.Unlock()
	select {
	case <-b.done:
		return b.index, b.term, b.err
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("confirm leadership: %w", ctx.Err())
	}
}

// run starts batches until no caller waits. Batches overlap: a batch does not wait for the commit of the
// previous batch.
func (c *confirmer) run() {
	for {
		c.mu.Lock()
		wait := confirmEvery - time.Since(c.last)
		c.mu.Unlock()
		if wait > 0 {
			time.Sleep(wait)
		}
		c.mu.Lock()
		b := c.next
		c.next = nil
		if b == nil {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.last = time.Now()
		c.mu.Unlock()
		if !c.n.spawn(func() { c.barrier(b) }) {
			b.err = c.n.stoppedErr()
			close(b.done)
		}
	}
}

func (c *confirmer) barrier(b *confirmation) {
	defer close(b.done)
	ctx, cancel := context.WithTimeout(c.n.ctx, confirmLimit)
	defer cancel()
	cmd := &commandv1.Command{
		Head: c.n.head(fsm.Epoch{}),
		Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}},
	}
	_, b.index, b.term, b.err = c.n.prop.propose(ctx, []fsm.Command{cmd})
}
