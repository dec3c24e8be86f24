package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// verifySnapshots removes unfinished snapshots and reports the index of the
// newest. The library skips a snapshot whose description it cannot read; then
// the log would not reach back far enough, and nobody would say why.
func verifySnapshots(dir string) (newest uint64, err error) {
	found, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("snapshots: %w", err)
	}
	for _, f := range found {
		path := filepath.Join(dir, f.Name())
		if !f.IsDir() {
			continue
		}
		if strings.HasSuffix(f.Name(), ".tmp") {
			if err := os.RemoveAll(path); err != nil {
				return 0, fmt.Errorf("unfinished snapshot: %w", err)
			}
			continue
		}
		var meta raft.SnapshotMeta
		b, err := os.ReadFile(filepath.Join(path, "meta.json"))
		if errors.Is(err, os.ErrPermission) { // nothing is wrong with the data
			return 0, fmt.Errorf("snapshot: %w", err)
		}
		if err == nil {
			err = json.Unmarshal(b, &meta)
		}
		if err == nil && meta.Index == 0 {
			err = errors.New("names no index")
		}
		if err != nil {
			return 0, fmt.Errorf("%w: snapshot %s: meta.json: %w", ErrCorrupt, path, err)
		}
		newest = max(newest, meta.Index)
	}
	return newest, nil
}

// snapshots is the library's store, with the closed folder that ours are kept in.
type snapshots struct {
	*raft.FileSnapshotStore
	history *snapshotHistory
}

func openSnapshots(dir string, history *snapshotHistory, logger hclog.Logger) (*snapshots, error) {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, keptSnaps, logger)
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	folder := filepath.Join(dir, "snapshots")
	// The library opens its folder to everybody; the one above it is closed.
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, err
	}
	list, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	if len(list) > 0 {
		// Checks the whole file's checksum.
		_, r, err := files.Open(list[0].ID)
		if err != nil {
			return nil, fmt.Errorf("%w: snapshot %s: %w", ErrCorrupt, filepath.Join(folder, list[0].ID), err)
		}
		r.Close()
		history.taken = entryID{list[0].Index, list[0].Term}
		history.size.Store(list[0].Size)
		if err := history.logs.dropContradicted(history.taken); err != nil {
			return nil, err
		}
	}
	return &snapshots{files, history}, nil
}

// Create begins a snapshot, of this replica's state or one that another sends.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, configIndex, trans)
	if err != nil {
		return nil, err
	}
	return &recordingSink{SnapshotSink: sink, history: s.history, id: entryID{index, term}}, nil
}

type recordingSink struct {
	raft.SnapshotSink
	history *snapshotHistory
	id      entryID
	size    int64
	done    bool // the library closes a sink twice
}

func (s *recordingSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	s.size += int64(n)
	return n, err
}

func (s *recordingSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.done {
		s.history.size.Store(s.size)
		s.history.sealed(s.id)
	}
	s.done = true
	return err
}

// entryID names an entry of a log, and with it all that came before. The zero value is none.
type entryID struct{ index, term uint64 }

// past is what this replica's state is known to hold whatever its log shows: the
// last entries of the snapshots that it took and installed last. The log need not
// reach back to such an entry.
type snapshotHistory struct {
	logs *logStore
	size atomic.Int64 // bytes of the snapshot that was written last; 0 = none

	mu        sync.Mutex
	taken     entryID
	installed entryID
	coming    entryID // given to the library to install
	arrived   bool    // and on disk
}

// sealed is told that a snapshot is on disk. One that is being installed is not in
// the state yet.
func (p *snapshotHistory) sealed(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == p.coming {
		p.arrived = true
		return
	}
	p.taken = id
}

// expects names the snapshot that the library is given to install; the zero value
// that it has answered.
func (p *snapshotHistory) expects(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.coming, p.arrived = id, false
}

// restoring is called when the state of a snapshot was read and is about to take the
// place of the present one: of one that was sent, at a start, or of a backup.
func (p *snapshotHistory) restoring() error {
	p.mu.Lock()
	id, sent := p.coming, p.arrived
	p.mu.Unlock()
	if !sent {
		return nil
	}
	if err := p.logs.dropConflict(id); err != nil {
		return err
	}
	p.logs.grown.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.installed, p.taken = id, entryID{}
	return nil
}

func (p *snapshotHistory) holds(id entryID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return id != entryID{} && (id == p.taken || id == p.installed)
}

// refutes reports whether the log of a leader of now has another entry at the end of
// a snapshot of this replica: then what this replica holds was never committed (a
// backup that only it has restored).
func (p *snapshotHistory) contradicts(id entryID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, own := range []entryID{p.taken, p.installed} {
		if id.index > 0 && own.index == id.index && own.term != id.term {
			return true
		}
	}
	return false
}

// follow makes the library accept an append that continues a snapshot. The
// library compares the entry before those appended with its log alone, unless the
// log ends there: a follower that holds the snapshot and entries after it, and is
// sent these again because the leader did not hear that it has them, would refuse
// them for want of the entry before, be sent the snapshot again, and so on without
// end (so too in https://github.com/hashicorp/raft/issues/697, where the log holds
// an entry at that index which was never committed). A snapshot of the same index
// and term is the same past; without an entry before it there is nothing to
// compare, and what conflicts after it is removed as ever.
//
// An append proves the log up to its own last entry and no further: what the leader
// has committed beyond it may be another entry here that was never committed, which
// the library would apply.
func (p *snapshotHistory) follow(r *raft.AppendEntriesRequest) {
	r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
	if p.holds(entryID{r.PrevLogEntry, r.PrevLogTerm}) {
		r.PrevLogEntry, r.PrevLogTerm = 0, 0
	}
}

// standing is how a snapshot that a leader sends stands to the state.
type standing int

const (
	wanted standing = iota // it has what the state has not, or contradicts it
	held                   // the state has all of it, and the log goes on from there
	behind                 // the state is beyond it, and the log begins after it
)

// standing of a snapshot; applied is how far the log was applied.
func (p *snapshotHistory) standing(id entryID, applied uint64) standing {
	if id.index > applied {
		return wanted
	}
	first, _, err := p.logs.ends()
	if err != nil {
		return behind // the store halts the replica
	}
	known, goesOn := p.holds(id) || p.logs.has(id), first <= id.index+1
	switch {
	case !known && goesOn:
		return wanted
	case known && (applied == id.index || first > 0 && goesOn):
		return held
	}
	return behind
}
