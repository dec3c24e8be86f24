package store

import (
	"context"

	"github.com/persys/compute/fsm"
)

// Bounds of the feed. What a cursor has not read within them it gets as
// ErrCompacted; the oldest entries go first.
const (
	MaxEntries = 8192
	MaxChanges = 32_768
	MaxBytes   = 32 << 20 // of records, roughly
)

// Batch is everything that changed between a cursor's last position and View.
// Several log entries may be in one Batch: Changes are in log order, and View is
// the state after the last of them.
type Batch struct {
	View    fsm.View
	Index   uint64 // View's
	Changes []fsm.Change
}

// entry is one published log entry.
type entry struct {
	index   uint64
	changes []fsm.Change
	bytes   int
}

// feed is a bounded buffer of the newest entries. It keeps no states: an old
// root would keep all its nodes alive.
type feed struct {
	entries []entry
	start   uint64 // position of entries[0]; positions only grow, restores included
	floor   uint64 // changes up to this index are no longer here
	changes int
	bytes   int
	dropped uint64 // entries that went out at the old end, or at a restore
}

func newFeed(index uint64) feed { return feed{floor: index} }

// add appends an entry and drops the oldest ones beyond the bounds.
func (f *feed) add(index uint64, changes []fsm.Change) {
	e := entry{index: index, changes: changes, bytes: sizeOf(changes)}
	f.entries = append(f.entries, e)
	f.changes += len(changes)
	f.bytes += e.bytes
	for len(f.entries) > 1 && (len(f.entries) > MaxEntries || f.changes > MaxChanges || f.bytes > MaxBytes) {
		f.drop()
	}
}

func (f *feed) drop() {
	e := f.entries[0]
	f.entries[0] = entry{}
	f.entries = f.entries[1:] // append moves the rest to a new array now and then
	f.start++
	f.dropped++
	f.floor = e.index
	f.changes -= len(e.changes)
	f.bytes -= e.bytes
}

// reset forgets everything; positions before it are compacted.
func (f *feed) reset(index uint64) {
	f.start += uint64(len(f.entries)) + 1
	f.dropped += uint64(len(f.entries))
	f.entries, f.changes, f.bytes, f.floor = nil, 0, 0, index
}

// sizeOf estimates the memory that an entry keeps alive.
func sizeOf(changes []fsm.Change) int {
	n := 0
	for i := range changes {
		c := &changes[i]
		n += 64 + len(c.Key)
		switch {
		case c.Table == fsm.TableWorkload:
			for _, w := range [...]*fsm.Workload{c.OldWorkload(), c.NewWorkload()} {
				if w != nil {
					n += 500 + len(w.Spec)
				}
			}
		case c.Table == fsm.TableNode:
			n += 1200
		default:
			n += 250
		}
	}
	return n
}

// Stats are figures for metrics.
type Stats struct {
	Entries   int    // that the feed holds
	Changes   int    // in them
	Bytes     int    // of records, roughly
	Dropped   uint64 // entries that the feed no longer holds
	Cursors   int    // open ones
	Compacted uint64 // times that a cursor was told that it had fallen off
	Waiters   int    // calls of At that wait
}

// Stats says how the feed is doing.
func (st *Store) Stats() Stats {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := &st.feed
	return Stats{Entries: len(f.entries), Changes: f.changes, Bytes: f.bytes, Dropped: f.dropped,
		Cursors: st.cursors, Compacted: st.compacted, Waiters: len(st.waiters)}
}

// Cursor reads the feed. It is for one goroutine, except Close.
type Cursor struct {
	st     *Store
	pos    uint64 // position of the next entry to read
	done   chan struct{}
	closed bool // under st.mu
}

// Changes subscribes to what is published after an index, usually that of a View
// taken before. ErrCompacted if the feed no longer goes back to it.
func (st *Store) Changes(after uint64) (*Cursor, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, ErrClosed
	}
	f := &st.feed
	if after < f.floor {
		return nil, ErrCompacted
	}
	c := &Cursor{st: st, pos: f.start, done: make(chan struct{})}
	st.cursors++
	for _, e := range f.entries {
		if e.index > after {
			break
		}
		c.pos++
	}
	return c, nil
}

// Next waits for changes and returns all there are. Errors: ErrCompacted,
// ErrClosed, or the context's.
func (c *Cursor) Next(ctx context.Context) (Batch, error) {
	for {
		b, wake, err := c.take()
		if err != nil || len(b.Changes) > 0 {
			return b, err
		}
		select {
		case <-wake:
		case <-c.done:
			return Batch{}, ErrClosed
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
	}
}

// take returns what is there, or the channel that is closed when more comes.
func (c *Cursor) take() (Batch, <-chan struct{}, error) {
	st := c.st
	st.mu.Lock()
	defer st.mu.Unlock()
	f := &st.feed
	switch {
	case st.closed || c.closed:
		return Batch{}, nil, ErrClosed
	case c.pos < f.start:
		st.compacted++
		return Batch{}, nil, ErrCompacted
	}
	fresh := f.entries[min(c.pos-f.start, uint64(len(f.entries))):]
	if len(fresh) == 0 {
		return Batch{}, st.wake, nil
	}
	view := st.published
	n := 0
	for _, e := range fresh {
		n += len(e.changes)
	}
	b := Batch{View: view, Index: view.Info().Index, Changes: fresh[0].changes}
	if len(fresh) > 1 {
		b.Changes = make([]fsm.Change, 0, n)
		for _, e := range fresh {
			b.Changes = append(b.Changes, e.changes...)
		}
	}
	c.pos += uint64(len(fresh))
	return b, nil, nil
}

// Close ends Next with ErrClosed. It may be called more than once.
func (c *Cursor) Close() {
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.st.cursors--
		close(c.done)
	}
}
