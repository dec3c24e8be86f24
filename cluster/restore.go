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

// Restore replaces the state on every replica by the result of build, which is called with the present state.
// Restore returns the index at which Store shows the new state. Only the leader can restore.
//
// Nothing may act on the old state. So this replica's leadership term ends first, and proposals are refused
// with ErrBusy until Restore returns; the state that build gets contains everything that was committed. Raft
// sends the new state to the other replicas as one snapshot. Then a new leadership term begins, in the epoch
// of the new incarnation.
//
// If an error occurs before Raft gets the state, nothing has changed. ErrUnknownOutcome means that this
// replica, and maybe others, have the new state, but it is not known whether a majority has. Look at the
// cluster and restore again.
func (n *Node) Restore(ctx context.Context, build func(present fsm.State) (fsm.State, error)) (index uint64, err error) {
	if !n.IsLeader() {
		return 0, n.notLeader()
	}
	if !n.restoring.CompareAndSwap(false, true) {
		return 0, fmt.Errorf("%w: a restore is in progress", ErrBusy)
	}
	n.leadership.hold()
	defer func() {
		n.restoring.Store(false)
		n.leadership.release(n.ctx)
	}()
	began := time.Now()
	// New calls are refused from now on. Wait until the calls that were accepted before have been
	// answered, because the restored state is built from a state that contains them.
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
	if err := ctx.Err(); err != nil { // the caller may have given up while build ran
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
		defer r.Close() // ends the goroutine that writes the snapshot, also after an error
		return n.raft.Restore(meta, r, 0)
	})
	if err != nil {
		// Raft applies the snapshot on this replica before it sends it to others. So if Raft has answered and this
		// replica does not show the new state, no replica has the new state.
		if !isCanceled(err) && n.machine.store.State().Info().Incarnation < info.Incarnation {
			return 0, fmt.Errorf("restore: %w", err)
		}
		return 0, unknown(fmt.Errorf("restore: %w", err))
	}
	n.log.Info("the state is restored", "incarnation", info.Incarnation, "index", info.Index, "took", time.Since(began))
	return info.Index, nil
}

// Restoring reports whether Restore is about to replace the whole state.
func (n *Node) Restoring() bool { return n.restoring.Load() }

// countingWriter counts the bytes that are written to it.
type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}
