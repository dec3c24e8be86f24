package store

import (
	"context"

	"github.com/persys/compute/fsm"
)

// Bounds of the change feed. The oldest entries are dropped first. A cursor that has not read a dropped entry
// gets ErrCompacted.
const (
	MaxEntries = 8192
	MaxChanges = 32_768
	MaxBytes   = 32 << 20 // maximum estimated size of the records in the feed, bytes
)

// Batch holds all changes between the last position of a cursor and View. It may cover several log
// entries. Changes are in log order, and View is the state after the last of them.
type Batch struct {
	View    fsm.View
	Index   uint64 // log index of View
	Changes []fsm.Change
}

// entry holds the changes made by one log entry.
type entry struct {
	index   uint64
	changes []fsm.Change
	bytes   int
}

// feed is a bounded buffer of the newest entries. It keeps no states, because an old state would keep all its
// tree nodes in memory.
type feed struct {
	entries []entry
	start   uint64 // position of entries[0] in the feed; positions never go back, not even at a restore
	floor   uint64 // changes up to this index are no longer in the feed
	changes int    // total number of changes in all entries
	bytes   int    // estimated size of all entries in bytes
	dropped uint64 // number of entries dropped because of the bounds or of a restore
}

func newFeed(index uint64) feed { return feed{floor: index} }

// add appends the changes of one log entry, and drops the oldest entries until the feed is within its bounds.
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
	f.entries = f.entries[1:] // the dropped entries are freed when a later append moves the slice to a new array
	f.start++
	f.dropped++
	f.floor = e.index
	f.changes -= len(e.changes)
	f.bytes -= e.bytes
}

// reset drops all entries. Cursors at earlier positions get ErrCompacted.
func (f *feed) reset(index uint64) {
	f.start += uint64(len(f.entries)) + 1
	f.dropped += uint64(len(f.entries))
	f.entries, f.changes, f.bytes, f.floor = nil, 0, 0, index
}

// sizeOf estimates the bytes of memory that the changes of an entry keep in use.
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
		case c.Table == fsm.TableBundle && c.NewBundle() != nil:
			n += 250 + len(c.NewBundle().Data)
		case c.Table == fsm.TableNode:
			n += 1200
		default:
			n += 250
		}
	}
	return n
}

// Stats are the figures of the store for metrics.
type Stats struct {
	Entries   int    // number of entries in the feed
	Changes   int    // total number of changes in the entries of the feed
	Bytes     int    // estimated size of the records in the feed, in bytes
	Dropped   uint64 // number of entries dropped from the feed so far
	Cursors   int    // number of open cursors
	Compacted uint64 // number of times that Cursor.Next returned ErrCompacted
	Waiters   int    // number of calls of Store.At that are waiting
}

// Stats returns the present figures of the store.
func (st *Store) Stats() Stats {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := &st.feed
	return Stats{Entries: len(f.entries), Changes: f.changes, Bytes: f.bytes, Dropped: f.dropped,
		Cursors: st.cursors, Compacted: st.compacted, Waiters: len(st.waiters)}
}

// Cursor reads the change feed. Only one goroutine may use it, but any goroutine may call Close.
type Cursor struct {
	st     *Store
	pos    uint64 // position of the next entry to read
	done   chan struct{}
	closed bool // set by Close; guarded by st.mu
}

// Changes returns a cursor over the changes published after an index, usually the index of a View. It returns
// ErrCompacted if the feed no longer holds all of these changes, or ErrClosed.
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

// Next waits until there are unread changes and returns all of them. It returns ErrCompacted,
// ErrClosed, or the cause of the end of ctx.
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

// take returns the unread changes. If there are none, it returns a channel that is closed when changes are
// added to the feed.
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

// Close makes Next return ErrClosed. A second call does nothing.
func (c *Cursor) Close() {
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.st.cursors--
		close(c.done)
	}
}
