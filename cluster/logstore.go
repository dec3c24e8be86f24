package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	logFile      = "log.db"
	cacheEntries = 4096
	// cacheBytes bounds the entries in the cache, because a coalesced entry can have 256 KiB.
	cacheBytes = 32 << 20
	// deleteChunk is the number of entries that one transaction of a compaction removes, so that an append
	// waits only briefly for the write lock.
	deleteChunk = 256
)

// Keys of this package in the stable store, beside those of the Raft library.
var (
	keyReplicaID = []byte("persys-replica-id")
	keyClusterID = []byte("persys-cluster-id")
	keyRemoved   = []byte("persys-removed")
)

// storage holds the records of logStore.
type storage interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// logStore is the Raft log and the stable store on disk: raft-boltdb, with a checksum per entry, a cache
// bounded by bytes, and compaction in small steps. The first failed write or unreadable entry stops the
// replica.
type logStore struct {
	disk storage
	path string
	// fail is called with the first error, once the replica has started.
	fail    func(error)
	started atomic.Bool
	grown   growth
	metrics Metrics

	mu    sync.RWMutex
	ring  []*raft.Log
	first uint64 // the ring holds entries in [first, next)
	next  uint64
	bytes int
}

func openLogStore(dir string, wrap func(storage) storage) (s *logStore, err error) {
	path := filepath.Join(dir, logFile)
	defer guardFault(path, &err)
	if err := walk(path); err != nil {
		return nil, err
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout:        time.Second,
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
			// A small mapping would be replaced, while all readers wait, each time the file doubles.
			InitialMmapSize: 256 << 20,
		},
	})
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("raft log %s: %w", path, err)
		}
		return nil, fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, path, err)
	}
	var disk storage = bolt
	if wrap != nil {
		disk = wrap(disk)
	}
	return &logStore{disk: disk, path: path, fail: func(error) {}, metrics: noMetrics{}, ring: make([]*raft.Log, cacheEntries)}, nil
}

// walk reads every used page of the file. Opening it for writing does the same in another goroutine, where
// a broken page would end the process.
func walk(path string) (err error) {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("raft log %s: %w", path, err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guardFault(path, &err)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("raft log %s: %w", path, err)
		}
		return fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, path, err)
	}
	return errors.Join(visit(db, path), db.Close())
}

func visit(db *bbolt.DB, path string) (err error) {
	defer guardFault(path, &err)
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func([]byte, []byte) error { return nil })
		})
	})
	if err != nil {
		return fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, path, err)
	}
	return nil
}

// guardFault turns a panic or a memory fault while reading a broken file into an error with the file's
// name. Call it with defer.
func guardFault(path string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: raft log %s: %v", ErrCorrupt, path, r)
	}
}

// growth counts the entries and bytes that the log gained since the last snapshot.
type growth struct{ entries, bytes atomic.Int64 }

// entryCost is the cost of an entry beside its data, in bytes, on disk and when it is read and applied
// again. In a quiet cluster most entries have hardly any data.
const entryCost = 256

func (g *growth) add(entries, bytes int) {
	g.put(int64(entries), int64(bytes+entries*entryCost))
}

func (g *growth) put(entries, bytes int64) {
	g.entries.Add(entries)
	g.bytes.Add(bytes)
}

func (g *growth) reset() {
	g.entries.Store(0)
	g.bytes.Store(0)
}

// verify reads every entry above the snapshot: the Raft library would panic on a bad one during its start.
func (s *logStore) verify(snapshot uint64) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guardFault(s.path, &err)
	first, err := s.disk.FirstIndex()
	if err != nil {
		return fmt.Errorf("%w: raft log %s: first index: %w", ErrCorrupt, s.path, err)
	}
	last, err := s.disk.LastIndex()
	if err != nil {
		return fmt.Errorf("%w: raft log %s: last index: %w", ErrCorrupt, s.path, err)
	}
	if last == 0 || last <= snapshot {
		return nil
	}
	if first > snapshot+1 {
		return fmt.Errorf("%w: raft log %s starts at index %d, but the newest snapshot ends at %d", ErrCorrupt, s.path, first, snapshot)
	}
	var l raft.Log
	for i := snapshot + 1; i <= last; i++ {
		if err := s.read(i, &l); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				err = fmt.Errorf("%w: raft log %s: entry %d is missing", ErrCorrupt, s.path, i)
			}
			return err
		}
		s.grown.add(1, len(l.Data))
	}
	return nil
}

func (s *logStore) read(i uint64, l *raft.Log) error {
	*l = raft.Log{}
	if err := s.disk.GetLog(i, l); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return fmt.Errorf("%w: raft log %s: entry %d: %w", ErrCorrupt, s.path, i, err)
	}
	if l.Index != i || len(l.Extensions) != 8 || binary.LittleEndian.Uint64(l.Extensions) != checksum(l) {
		return fmt.Errorf("%w: raft log %s: entry %d fails its checksum", ErrCorrupt, s.path, i)
	}
	l.Extensions = nil
	return nil
}

func checksum(l *raft.Log) uint64 {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	var d xxhash.Digest
	d.Reset()
	d.Write(head[:])
	d.Write(l.Data)
	return d.Sum64()
}

func (s *logStore) failed(op string, err error) error {
	err = fmt.Errorf("%w: %s: %s: %w", ErrStorage, s.path, op, err)
	if s.started.Load() {
		s.fail(err)
	}
	return err
}

func (s *logStore) FirstIndex() (uint64, error) { return s.disk.FirstIndex() }
func (s *logStore) LastIndex() (uint64, error)  { return s.disk.LastIndex() }

func (s *logStore) GetLog(i uint64, l *raft.Log) error {
	s.mu.RLock()
	if i >= s.first && i < s.next {
		*l = *s.ring[i%cacheEntries]
		s.mu.RUnlock()
		return nil
	}
	s.mu.RUnlock()
	err := s.read(i, l)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if s.started.Load() {
		s.fail(err)
		// The library panics if its main loop cannot read an entry. The replica is stopping and the reason
		// is recorded, so end the calling goroutine instead of the process.
		runtime.Goexit()
	}
	return err
}

func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *logStore) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	copies := make([]raft.Log, len(logs))
	sums := make([]byte, 8*len(logs))
	size := 0
	for i, l := range logs {
		copies[i] = *l
		sum := sums[8*i : 8*i+8 : 8*i+8]
		binary.LittleEndian.PutUint64(sum, checksum(l))
		copies[i].Extensions = sum
		sealed[i] = &copies[i]
		size += len(l.Data)
	}
	began := time.Now()
	if err := s.disk.StoreLogs(sealed); err != nil {
		return s.failed("append", err)
	}
	s.metrics.Append(len(logs), size, time.Since(began))
	s.grown.add(len(logs), size)
	s.mu.Lock()
	for _, l := range logs {
		s.cache(l)
	}
	s.mu.Unlock()
	return nil
}

func (s *logStore) cache(l *raft.Log) {
	if l.Index != s.next {
		s.dropCache()
		s.first, s.next = l.Index, l.Index
	}
	for s.next > s.first && (s.next-s.first >= cacheEntries || s.bytes+len(l.Data) > cacheBytes) {
		s.dropOldest()
	}
	s.ring[l.Index%cacheEntries] = l
	s.bytes += len(l.Data)
	s.next++
}

func (s *logStore) dropOldest() {
	slot := s.first % cacheEntries
	s.bytes -= len(s.ring[slot].Data)
	s.ring[slot] = nil
	s.first++
}

func (s *logStore) dropCache() {
	for s.first < s.next {
		s.dropOldest()
	}
}

func (s *logStore) DeleteRange(lo, hi uint64) error {
	last, err := s.disk.LastIndex()
	if err != nil {
		return s.failed("truncate", err)
	}
	s.mu.Lock()
	if hi >= s.first && lo < s.next {
		s.dropCache()
		s.first, s.next = 0, 0
	}
	s.mu.Unlock()
	if hi >= last {
		// The leader overwrites this suffix: remove all of it or nothing.
		if err := s.disk.DeleteRange(lo, hi); err != nil {
			return s.failed("truncate", err)
		}
		return nil
	}
	for lo <= hi {
		upto := min(hi, lo+deleteChunk-1)
		if err := s.disk.DeleteRange(lo, upto); err != nil {
			return s.failed("compact", err)
		}
		lo = upto + 1
	}
	return nil
}

// conflict returns the range of entries that a snapshot proves to be uncommitted, or that are followed by a
// gap; a leader must not send them. These are the entries up to the end of the snapshot, unless the log
// holds exactly that last entry. With after, later entries are included if their term is lower than the
// snapshot's, because their leader lost. 0, 0 means none.
func (s *logStore) conflict(snapshot entryID, after bool) (from, to uint64, err error) {
	first, last, err := s.ends()
	if err != nil || first == 0 || s.has(snapshot) {
		return 0, 0, err
	}
	if after && last > snapshot.index {
		var next raft.Log
		if err := s.read(max(first, snapshot.index+1), &next); err != nil {
			return 0, 0, err
		}
		if next.Term < snapshot.term {
			return first, last, nil
		}
	}
	if to = min(snapshot.index, last); first > to {
		return 0, 0, nil
	}
	return first, to, nil
}

// dropConflict removes conflicting entries up to the end of a snapshot. Later entries stay: they may have
// been acknowledged, and the library has the end of the log in memory.
func (s *logStore) dropConflict(snapshot entryID) error {
	return s.drop(s.conflict(snapshot, false))
}

// dropContradicted removes all entries that contradict a snapshot, before the library starts.
func (s *logStore) dropContradicted(snapshot entryID) error {
	return s.drop(s.conflict(snapshot, true))
}

func (s *logStore) drop(from, to uint64, err error) error {
	if err != nil || to == 0 {
		return err
	}
	return s.DeleteRange(from, to)
}

func (s *logStore) ends() (first, last uint64, err error) {
	if first, err = s.disk.FirstIndex(); err == nil {
		last, err = s.disk.LastIndex()
	}
	if err != nil {
		err = s.failed("first and last index", err)
	}
	return first, last, err
}

// has reports whether the log holds exactly this entry, readable.
func (s *logStore) has(id entryID) bool {
	var l raft.Log
	return s.read(id.index, &l) == nil && l.Term == id.term
}

func (s *logStore) Get(k []byte) ([]byte, error)       { return s.disk.Get(k) }
func (s *logStore) GetUint64(k []byte) (uint64, error) { return s.disk.GetUint64(k) }

func (s *logStore) Set(k, v []byte) error {
	if err := s.disk.Set(k, v); err != nil {
		return s.stableFailed(err)
	}
	return nil
}

func (s *logStore) SetUint64(k []byte, v uint64) error {
	if err := s.disk.SetUint64(k, v); err != nil {
		return s.stableFailed(err)
	}
	return nil
}

func (s *logStore) stableFailed(err error) error {
	err = s.failed("write term or vote", err)
	if s.started.Load() {
		runtime.Goexit() // as in GetLog: the library would panic
	}
	return err
}

// own reads one of our keys; "" if it was never set.
func (s *logStore) own(key []byte) (string, error) {
	v, err := s.disk.Get(key)
	if err != nil {
		if err.Error() == raftboltdb.ErrKeyNotFound.Error() {
			return "", nil
		}
		return "", fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, s.path, err)
	}
	return string(v), nil
}

func (s *logStore) setOwn(key []byte, v string) error {
	if err := s.disk.Set(key, []byte(v)); err != nil {
		return s.failed("write "+string(key), err)
	}
	return nil
}

func (s *logStore) Close() error { return s.disk.Close() }
