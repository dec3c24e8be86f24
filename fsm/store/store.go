// Package store publishes the states of the state machine. It provides the newest state, a call that waits
// until an index is reached, and the change feed.
//
// One goroutine writes: it takes State, applies a log entry and calls Publish. All other goroutines
// read at any time without holding a lock: View loads a pointer to an immutable state atomically.
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
	// ErrCompacted means that the feed no longer holds changes that a cursor has not read, because the cursor
	// fell too far behind or a snapshot was restored. The reader then takes a View, processes all of it, and
	// subscribes again after its index.
	ErrCompacted = errors.New("the change feed no longer has the changes after this index: take a view and subscribe again")
	// ErrClosed means that the store or the cursor was closed.
	ErrClosed = errors.New("the store is closed")
)

// Store publishes states and wakes the goroutines that wait for them. Use New.
type Store struct {
	root atomic.Pointer[fsm.State]

	mu        sync.Mutex
	closed    bool
	published fsm.State // the state after the last entry of the feed; the field root may be one entry newer
	waiters   waiters
	feed      feed
	wake      chan struct{} // closed and replaced when the feed changes
	cursors   int           // number of open cursors
	compacted uint64        // number of times that Next returned ErrCompacted
}

// New returns a store whose newest state is s.
func New(s fsm.State) *Store {
	st := &Store{published: s, wake: make(chan struct{}), feed: newFeed(s.Info().Index)}
	st.root.Store(&s)
	return st
}

// View returns the newest published state. It costs one atomic load.
func (st *Store) View() fsm.View { return *st.root.Load() }

// State returns the newest published state, for the goroutine that applies the log.
func (st *Store) State() fsm.State { return *st.root.Load() }

// Publish makes s the newest state and adds the changes that led to it to the feed. It wakes the calls of At
// that wait for its index, and the cursors. Only the writer may call it. The slice changes must not be
// modified afterwards.
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

// Restore makes s the newest state and empties the feed, because no changes lead to s. Every
// cursor gets ErrCompacted.
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

// Close makes every waiting At and every cursor return ErrClosed. View continues to work.
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

// At waits until the index of the newest state is at least min and returns that state. It returns ErrClosed, or
// the cause of the end of ctx with the index that was reached. At does not poll. The cost of Publish does not
// depend on how many calls wait for a later index.
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
		// Check again while holding mu. Publish stores the root before it takes mu, so no wake-up is
		// missed.
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

// waiter is one waiting call of At. pos is its position in the heap of waiters; -1 after the call was woken.
type waiter struct {
	min   uint64
	ready chan struct{}
	pos   int
}

// waiters is a heap of the waiting calls of At, ordered by min.
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

// release wakes the calls of At whose min is at most index.
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
