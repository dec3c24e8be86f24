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

// verifySnapshots removes unfinished snapshots and returns the index of the newest one. The library skips a
// snapshot with a broken description; the log would then not reach back far enough, and no error would say
// why.
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
		if errors.Is(err, os.ErrPermission) { // the data is not damaged
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

// snapshots is the library's store in a folder that only its owner can read.
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
	// The library creates its folder readable for all users; the folder above it is closed.
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, err
	}
	list, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	if len(list) > 0 {
		// Open checks the checksum of the whole file.
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

// Create begins a snapshot of this replica's state, or of one that another replica sends.
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

// entryID identifies an entry of a log, and with it all entries before it. The zero value is none.
type entryID struct{ index, term uint64 }

// snapshotHistory holds the last entries of the snapshots that this replica took and installed last. The
// state contains these entries, whatever the log shows: the log need not reach back to them.
type snapshotHistory struct {
	logs *logStore
	size atomic.Int64 // bytes of the last snapshot; 0 = none

	mu        sync.Mutex
	taken     entryID
	installed entryID
	coming    entryID // handed to the library to install
	arrived   bool    // that snapshot is on disk
}

// sealed is called when a snapshot is on disk. A snapshot that is being installed is not in the state yet.
func (p *snapshotHistory) sealed(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == p.coming {
		p.arrived = true
		return
	}
	p.taken = id
}

// expects sets the snapshot that the library is about to install; the zero value when the library has
// answered.
func (p *snapshotHistory) expects(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.coming, p.arrived = id, false
}

// restoring is called after the state of a snapshot was read, before it replaces the present state: a
// snapshot that a leader sent, that of a start, or a backup.
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

// contradicts reports whether the log of the present leader has another entry at the end of one of this
// replica's snapshots. Then this replica's state was never committed: it is a backup that only this replica
// restored.
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

// follow makes the library accept an append that continues a snapshot. The library compares the entry
// before the appended ones with its log alone, unless the log ends there. A follower that holds a snapshot
// and entries after it would refuse these entries if the leader sent them again because it missed the
// answer: the follower lacks the entry before them. It would be sent the snapshot again, and so on without
// end (see also https://github.com/hashicorp/raft/issues/697). A snapshot with the same index and term
// proves the same history, so follow drops the comparison. Conflicting entries after it are removed as
// usual.
//
// An append proves the log only up to its own last entry: an entry of this log beyond it may never have
// been committed, although the leader's commit index is higher, and the library would apply it. So follow
// lowers the commit index.
func (p *snapshotHistory) follow(r *raft.AppendEntriesRequest) {
	r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
	if p.holds(entryID{r.PrevLogEntry, r.PrevLogTerm}) {
		r.PrevLogEntry, r.PrevLogTerm = 0, 0
	}
}

// standing compares a snapshot that a leader sends with the state.
type standing int

const (
	wanted standing = iota // the snapshot has entries that the state lacks, or contradicts it
	held                   // the state contains the snapshot, and the log continues after it
	behind                 // the state is beyond the snapshot, and the log begins after it
)

// standing compares snapshot id with the state; applied is the last applied index.
func (p *snapshotHistory) standing(id entryID, applied uint64) standing {
	if id.index > applied {
		return wanted
	}
	first, _, err := p.logs.ends()
	if err != nil {
		return behind // the log store halts the replica
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
