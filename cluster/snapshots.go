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

// verifySnapshots removes unfinished snapshots and returns the index of the newest complete snapshot. A snapshot whose
// metadata file is damaged is an error. The library would skip it and use an older snapshot. Then the log might lack
// the entries that follow the older snapshot, and no error would say why.
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
		meta, err := snapshotMeta(path)
		if err == nil && meta.Index == 0 {
			err = errors.New("names no index")
		}
		if err != nil {
			return 0, corrupt(err, "snapshot %s: meta.json", path)
		}
		newest = max(newest, meta.Index)
	}
	return newest, nil
}

// snapshotMeta reads the metadata of the snapshot in a folder.
func snapshotMeta(folder string) (meta raft.SnapshotMeta, err error) {
	b, err := os.ReadFile(filepath.Join(folder, "meta.json"))
	if err == nil {
		err = json.Unmarshal(b, &meta)
	}
	return meta, err
}

type snapshotFolder struct {
	path  string
	index uint64
}

// snapshotFolders lists the snapshots on the disk of this replica. A folder without readable metadata is a snapshot
// that is being written or deleted.
func (n *Node) snapshotFolders() (out []snapshotFolder, err error) {
	dir := filepath.Join(n.cfg.DataDir, RaftDir, "snapshots")
	found, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	for _, f := range found {
		path := filepath.Join(dir, f.Name())
		if meta, err := snapshotMeta(path); err == nil && filepath.Ext(path) != ".tmp" {
			out = append(out, snapshotFolder{path, meta.Index})
		}
	}
	return out, nil
}

// snapshots is the library's snapshot store, in a folder that only its owner can read.
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
	// The library makes the folder of snapshots readable for all users. So put it in a folder that
	// only the owner can read.
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, err
	}
	list, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	if len(list) > 0 {
		// Open verifies the checksum of the whole file.
		_, r, err := files.Open(list[0].ID)
		if err != nil {
			return nil, corrupt(err, "snapshot %s", filepath.Join(folder, list[0].ID))
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

// Create begins to write a snapshot: either of this replica's state, or a snapshot that another replica sends.
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
	done    bool // set by Close, which the library calls twice
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

// entryID identifies a log entry, and so, by Raft's log matching, all entries before it too. The zero value identifies
// no entry.
type entryID struct{ index, term uint64 }

// snapshotHistory holds the last entry of the newest snapshot that this replica took, and the last entry of the newest
// snapshot that it installed from a leader. The state contains these entries even if the log no longer reaches back to
// them.
type snapshotHistory struct {
	logs *logStore
	size atomic.Int64 // size of the newest snapshot in bytes; 0 if there is none

	mu        sync.Mutex
	taken     entryID
	installed entryID
	coming    entryID // last entry of the snapshot that the library is about to install
	arrived   bool    // the snapshot that ends with the entry coming is on disk
}

// sealed is called when a snapshot that ends with entry id is on disk. A snapshot that is being installed is
// not in the state yet.
func (p *snapshotHistory) sealed(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == p.coming {
		p.arrived = true
		return
	}
	p.taken = id
}

// expects records the last entry of the snapshot that the library is about to install. It is called with the
// zero value when the library has answered.
func (p *snapshotHistory) expects(id entryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.coming, p.arrived = id, false
}

// restoring is called after the state of a snapshot was read and before it replaces the present state. For a
// snapshot that another replica sent, it removes the log entries that conflict with it. For a snapshot from
// the disk at a start, or from a backup, it does nothing.
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

// contradicts reports whether id, an entry in the present leader's log, differs from the last entry of a
// snapshot of this replica with the same index. If it differs, this replica's state was never committed: it is a backup
// that only this replica restored.
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

// follow makes the library accept an append that continues a snapshot. The library looks for the
// entry before the appended entries only in its log, except if that entry is the last one that this
// replica has. Suppose a follower holds a snapshot and entries after it, and the leader missed the
// answer and sends these entries again. The library would refuse them, because the log lacks the
// entry before them. The leader would send the snapshot again, and so on without end (see also
// https://github.com/hashicorp/raft/issues/697). A snapshot that ends at the same index and term
// proves the same history, so follow removes the comparison from the request. Entries of the log
// that conflict with the appended ones are removed as usual.
//
// An append proves the log only up to its own last entry. A later entry of this log may never have been
// committed, but if the leader's commit index is higher, the library would apply it. So follow lowers the
// commit index in the request.
func (p *snapshotHistory) follow(r *raft.AppendEntriesRequest) {
	r.LeaderCommitIndex = min(r.LeaderCommitIndex, r.PrevLogEntry+uint64(len(r.Entries)))
	if p.holds(entryID{r.PrevLogEntry, r.PrevLogTerm}) {
		r.PrevLogEntry, r.PrevLogTerm = 0, 0
	}
}

// standing is the result of comparing a snapshot that a leader sends with this replica's state.
type standing int

const (
	wanted standing = iota // the snapshot has entries that the state lacks, or it contradicts the state
	held                   // the state contains the snapshot, and the log continues after the snapshot
	behind                 // the state is beyond the snapshot, and the log begins after it
)

// standing compares the snapshot that ends with entry id with the state of this replica; applied is the index of the
// replica's last applied entry.
func (p *snapshotHistory) standing(id entryID, applied uint64) standing {
	if id.index > applied {
		return wanted
	}
	first, _, err := p.logs.ends()
	if err != nil {
		return behind // the log store halts the replica because it could not read the log
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
