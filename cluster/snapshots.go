package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// snapshots is the library's store, with the closed folder that ours are kept in,
// and says which snapshot the log is based on.
type snapshots struct {
	*raft.FileSnapshotStore
	base *base
}

func openSnapshots(dir string, base *base, logger hclog.Logger) (*snapshots, error) {
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
		base.set(entryID{list[0].Index, list[0].Term})
	}
	return &snapshots{files, base}, nil
}

// Create begins a snapshot; the log is based on it once its sink is closed.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, configIndex, trans)
	if err != nil {
		return nil, err
	}
	return &baseSink{SnapshotSink: sink, base: s.base, id: entryID{index, term}}, nil
}

type baseSink struct {
	raft.SnapshotSink
	base *base
	id   entryID
	done bool // the library closes a sink twice; by then another snapshot may have been installed
}

func (s *baseSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.done {
		s.done = true
		s.base.set(s.id)
	}
	return err
}

// entryID names an entry of a log, and with it all that came before.
type entryID struct{ index, term uint64 }

// base is the last entry of the snapshot that was taken or installed last. The log
// need not hold that entry, or may hold another of its index that was never
// committed, when the snapshot came from the leader.
type base struct{ last atomic.Pointer[entryID] }

func (b *base) set(id entryID) { b.last.Store(&id) }

// forget is called when a snapshot could not be restored.
func (b *base) forget() { b.last.Store(nil) }

// follow makes the library accept an append that continues the snapshot. The
// library compares the entry before those appended with its log alone, unless the
// log ends there: a follower that holds the snapshot and entries after it, and is
// sent these again because the leader did not hear that it has them, would refuse
// them for want of the entry before, be sent the snapshot again, and so on without
// end (so too in https://github.com/hashicorp/raft/issues/697, where the log holds
// an entry at that index which was never committed). A snapshot of the same index
// and term is the same past; without an entry before it there is nothing to
// compare, and what conflicts after it is removed as ever.
func (b *base) follow(r *raft.AppendEntriesRequest) {
	if id := b.last.Load(); id != nil && r.PrevLogEntry == id.index && r.PrevLogTerm == id.term {
		r.PrevLogEntry, r.PrevLogTerm = 0, 0
	}
}
