// Package store is what blocks around the pure state machine: the published
// root, waiting for an index, and the change feed.
//
// One goroutine writes: it takes State, applies a log entry and calls Publish.
// Everybody else reads, at any time, without locks held while they do: View is
// an atomic load of a pointer to something that never changes.
package store

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/persys/compute/fsm"
)

var (
	// ErrCompacted means that the feed no longer holds what a cursor needs: it
	// fell too far behind, or a snapshot was restored. Take a View, act on the
	// whole of it, and subscribe again after its index.
	ErrCompacted = errors.New("the change feed no longer goes back that far: take a view and subscribe again")
	// ErrClosed means that the store or the cursor was closed.
	ErrClosed = errors.New("the store is closed")
)

// Store publishes states and tells who waits for them. Use New.
type Store struct {
	root atomic.Pointer[fsm.State]

	mu        sync.Mutex
	closed    bool
	published fsm.State // the root that feed leads to; root may be one ahead of it
	waiters   waiters
	feed      feed
	wake      chan struct{} // closed and replaced when the feed moves
	cursors   int           // open ones
	compacted uint64        // times that a cursor had fallen off
}

// New publishes s.
func New(s fsm.State) *Store {
	st := &Store{published: s, wake: make(chan struct{}), feed: newFeed(s.Info().Index)}
	st.root.Store(&s)
	return st
}

// View is the newest published state. It costs an atomic load.
func (st *Store) View() fsm.View { return *st.root.Load() }

// State is the newest published state, for the goroutine that applies the log.
func (st *Store) State() fsm.State { return *st.root.Load() }

// Publish makes s the newest state and changes the way that led to it, then
// wakes who waits for its index or for changes. Only the writer calls it. The
// slice must not be changed afterwards.
func (st *Store) Publish(s fsm.State, changes []fsm.Change) {
	st.root.Store(&s)
	index := s.Info().Index
	st.mu.Lock()
	defer st.mu.Unlock()
	st.published = s
	st.waiters.release(index)
	if len(changes) > 0 {
		st.feed.add(index, changes)
		st.broadcast()
	}
}

// Restore makes s the newest state although no changes lead to it; every cursor
// gets ErrCompacted.
func (st *Store) Restore(s fsm.State) {
	st.root.Store(&s)
	index := s.Info().Index
	st.mu.Lock()
	defer st.mu.Unlock()
	st.published = s
	st.waiters.release(index)
	st.feed.reset(index)
	st.broadcast()
}

// broadcast wakes every cursor. The caller holds mu.
func (st *Store) broadcast() {
	if st.closed {
		return
	}
	close(st.wake)
	st.wake = make(chan struct{})
}

// Close ends every At and every cursor with ErrClosed. View goes on to work.
func (st *Store) Close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return
	}
	st.closed = true
	close(st.wake)
	st.waiters.releaseAll()
}

// At returns the newest state as soon as its index is at least min. It errs with
// ErrClosed or, naming the index that was reached, with the context's error.
// Waiting costs no polling, and a Publish looks at nobody who must wait on.
func (st *Store) At(ctx context.Context, min uint64) (fsm.View, error) {
	for {
		if s := st.root.Load(); s.Info().Index >= min {
			return *s, nil
		}
		st.mu.Lock()
		if st.closed {
			st.mu.Unlock()
			return nil, ErrClosed
		}
		// Publish stores the root before it takes mu: looking again under mu
		// leaves no gap in which a wake-up could be missed.
		if s := st.root.Load(); s.Info().Index >= min {
			st.mu.Unlock()
			return *s, nil
		}
		w := &waiter{min: min, ready: make(chan struct{})}
		heap.Push(&st.waiters, w)
		st.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
			st.mu.Lock()
			if w.pos >= 0 {
				heap.Remove(&st.waiters, w.pos)
			}
			st.mu.Unlock()
			return nil, fmt.Errorf("wait for index %d (at %d): %w", min, st.root.Load().Info().Index, context.Cause(ctx))
		}
	}
}

// waiter is one call of At. pos is its place in the heap, -1 once released.
type waiter struct {
	min   uint64
	ready chan struct{}
	pos   int
}

// waiters is a heap by min.
type waiters []*waiter

func (h waiters) Len() int           { return len(h) }
func (h waiters) Less(i, j int) bool { return h[i].min < h[j].min }
func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *waiters) Push(x any) {
	w := x.(*waiter)
	w.pos = len(*h)
	*h = append(*h, w)
}

func (h *waiters) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.pos = -1
	return w
}

// release wakes everybody who waits for an index up to the one given.
func (h *waiters) release(index uint64) {
	for len(*h) > 0 && (*h)[0].min <= index {
		close(heap.Pop(h).(*waiter).ready)
	}
}

func (h *waiters) releaseAll() {
	for len(*h) > 0 {
		close(heap.Pop(h).(*waiter).ready)
	}
}
