package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
)

// Restore replaces the replicated state, on every replica, by what build makes of
// the present one, and returns the index that shows it. Only the leader can.
//
// Nobody acts on a state that is about to go: this replica's stint ends first,
// and proposals are refused (ErrBusy) until it is over. build then sees
// everything that was committed. What it returns is given to Raft as a snapshot,
// so it reaches the others as one piece, and a new stint begins, in the epoch of
// the new incarnation.
//
// Errors before the state is handed to Raft mean that nothing happened.
// ErrUnknownOutcome means that this replica, and maybe others, have it, but no
// majority was seen to: look at the cluster, and restore again.
func (n *Node) Restore(ctx context.Context, build func(present fsm.State) (fsm.State, error)) (index uint64, err error) {
	if !n.IsLeader() {
		return 0, n.notLeader()
	}
	if !n.restoring.CompareAndSwap(false, true) {
		return 0, fmt.Errorf("%w: a restore is under way", ErrBusy)
	}
	n.leadership.hold()
	defer func() {
		n.restoring.Store(false)
		n.leadership.release(n.ctx)
	}()
	began := time.Now()
	// Everything proposed so far stands before this barrier.
	if err := n.prop.settle(ctx); err != nil {
		return 0, fmt.Errorf("before the restore: %w", err)
	}
	if err := n.await(ctx, func() error { return n.raft.Barrier(n.cfg.Timing.RPC).Error() }); err != nil {
		return 0, fmt.Errorf("before the restore: %w", err)
	}
	next, err := build(n.machine.store.State())
	if err != nil {
		return 0, err
	}
	info := next.Info()
	var size countingWriter
	if err := next.WriteSnapshot(&size); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil { // making it took long: who asked has gone
		return 0, err
	}
	n.log.Warn("replacing the state by a restored one", "incarnation", info.Incarnation, "index", info.Index, "bytes", int64(size))
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: info.Index, Term: info.Term, Size: int64(size)}
	err = n.await(ctx, func() error {
		select {
		case n.replacing <- struct{}{}:
			defer func() { <-n.replacing }()
		case <-n.haltedCh:
			return n.stoppedErr()
		case <-n.ctx.Done():
			return n.stoppedErr()
		}
		r, w := io.Pipe()
		go func() {
			buf := bufio.NewWriterSize(w, 1<<16)
			err := next.WriteSnapshot(buf)
			if err == nil {
				err = buf.Flush()
			}
			w.CloseWithError(err)
		}()
		defer r.Close() // ends the writer, whatever became of the reader
		return n.raft.Restore(meta, r, 0)
	})
	if err != nil {
		// Raft applies it here first: what is not seen here, after Raft has
		// answered, has not happened.
		if !isCanceled(err) && n.machine.store.State().Info().Incarnation < info.Incarnation {
			return 0, fmt.Errorf("restore: %w", err)
		}
		return 0, unknown(fmt.Errorf("restore: %w", err))
	}
	n.log.Info("the state is restored", "incarnation", info.Incarnation, "index", info.Index, "took", time.Since(began))
	return info.Index, nil
}

// Restoring reports whether this replica is about to replace the whole state.
func (n *Node) Restoring() bool { return n.restoring.Load() }

// countingWriter counts.
type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}
