package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
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
	// cacheBytes is the maximum size in bytes of all entries in the cache. Entries differ in size: an entry
	// with many commands can have 256 KiB.
	cacheBytes = 32 << 20
	// deleteChunk is the number of entries that one transaction removes when the log is compacted, so that
	// an append waits only briefly for the write lock.
	deleteChunk = 256
)

// Keys of this package in the stable store. The Raft library has its own keys there.
var (
	keyReplicaID = []byte("persys-replica-id")
	keyClusterID = []byte("persys-cluster-id")
	keyRemoved   = []byte("persys-removed")
	keyLocation  = []byte("persys-place")
	keyCopied    = []byte("persys-copied")
)

// Names that the Raft library uses in the file of the log: keys in the stable store, and the bucket of the stable
// store.
var (
	keyTerm      = []byte("CurrentTerm")
	keyLastVote  = []byte("LastVoteTerm") // term of the last vote
	keyCandidate = []byte("LastVoteCand")
	stableBucket = []byte("conf")
)

// stableKeys are all keys that may occur in the stable store. Any other key is a name that was damaged on disk.
// Without this check, a lookup of the right name would find nothing, as if the value had never been set.
var stableKeys = []string{string(keyTerm), string(keyLastVote), string(keyCandidate), string(keyReplicaID), string(keyClusterID), string(keyRemoved), string(keyLocation), string(keyCopied)}

// storage is the interface of raft-boltdb that logStore uses.
type storage interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// logStore stores the Raft log and the stable store (term, vote, ids) on disk. It adds to raft-boltdb a
// checksum per entry and per value of the stable store, a cache bounded by bytes, and compaction in small
// steps. The first failed write or unreadable entry stops the replica.
type logStore struct {
	disk storage
	path string
	// fail is called with the first read or write error after the start of the replica, and stops
	// the replica.
	fail    func(error)
	started atomic.Bool
	grown   growth
	metrics Metrics
	watch   diskWatch

	mu    sync.RWMutex
	ring  []*raft.Log
	first uint64 // the cache ring holds the entries with index first ≤ i < next
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
			// If the memory mapping is small, bbolt replaces it each time the file doubles, and all readers wait
			// meanwhile. So begin with a large mapping.
			InitialMmapSize: 256 << 20,
		},
	})
	if err != nil {
		return nil, corrupt(err, "raft log %s", path)
	}
	var disk storage = bolt
	if wrap != nil {
		disk = wrap(disk)
	}
	return &logStore{disk: disk, path: path, fail: func(error) {}, metrics: noMetrics{}, ring: make([]*raft.Log, cacheEntries)}, nil
}

// walk checks that every used page of the log file can be read, before the file is opened for writing: then
// bbolt reads the same pages in another goroutine, where a broken page would end the process.
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
		return corrupt(err, "raft log %s", path)
	}
	return errors.Join(visit(db, path), db.Close())
}

func visit(db *bbolt.DB, path string) (err error) {
	defer guardFault(path, &err)
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			// Every value has been read; check the checksums of the values of the stable store too.
			stable := bytes.Equal(name, stableBucket)
			return b.ForEach(func(k, v []byte) error {
				if !stable {
					return nil
				}
				if !slices.Contains(stableKeys, string(k)) {
					return fmt.Errorf("unknown key %q in the stable store", k)
				}
				_, err := unseal(k, v)
				return err
			})
		})
	})
	if err != nil {
		return fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, path, err)
	}
	return nil
}

// guardFault is for use with defer. If reading a broken file causes a panic or a memory fault, guardFault
// turns it into an error with the file's name.
func guardFault(path string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: raft log %s: %v", ErrCorrupt, path, r)
	}
}

// growth counts the entries and bytes that were added to the log since the last snapshot.
type growth struct{ entries, bytes atomic.Int64 }

// entryCost is what an entry costs in addition to its data, in bytes: on disk, and when the entry is read and
// applied again. In a quiet cluster most entries have hardly any data.
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

// verify reads every entry after the snapshot's index. The Raft library would panic on a bad entry during its
// start.
func (s *logStore) verify(snapshot uint64) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guardFault(s.path, &err)
	first, err := s.disk.FirstIndex()
	if err != nil {
		return corrupt(err, "raft log %s: first index", s.path)
	}
	last, err := s.disk.LastIndex()
	if err != nil {
		return corrupt(err, "raft log %s: last index", s.path)
	}
	term, err := s.GetUint64(keyTerm)
	if err != nil && !isNotFound(err) {
		return err
	}
	if term == 0 && (last > 0 || snapshot > 0) {
		return fmt.Errorf("%w: raft log %s holds entries but no term", ErrCorrupt, s.path)
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
		if l.Term > term {
			return fmt.Errorf("%w: raft log %s: entry %d is of term %d, and the stored term is %d", ErrCorrupt, s.path, i, l.Term, term)
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
		return corrupt(err, "raft log %s: entry %d", s.path, i)
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
		// The library panics if its main loop cannot read an entry. The replica is stopping and has
		// recorded the reason, so end only the calling goroutine, not the process.
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
	began, end := time.Now(), s.watch.begin()
	err := s.disk.StoreLogs(sealed)
	end()
	if err != nil {
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
		// The leader replaces these entries at the end of the log: remove all of them or none.
		if err := s.deleteRange(lo, hi); err != nil {
			return s.failed("truncate", err)
		}
		return nil
	}
	for lo <= hi {
		upto := min(hi, lo+deleteChunk-1)
		if err := s.deleteRange(lo, upto); err != nil {
			return s.failed("compact", err)
		}
		lo = upto + 1
	}
	return nil
}

func (s *logStore) deleteRange(lo, hi uint64) error {
	defer s.watch.begin()()
	return s.disk.DeleteRange(lo, hi)
}

func (s *logStore) set(k, v []byte) error {
	defer s.watch.begin()()
	return s.disk.Set(k, seal(k, v))
}

// conflict returns the range of log entries that this replica must never send as a leader, because a snapshot proves
// that they are uncommitted, or because a gap follows them. If the log holds exactly the snapshot's last entry, no
// entry conflicts. Otherwise the range contains all entries up to the end of the snapshot. If after is true, the range
// includes later entries whose term is lower than that of the snapshot, because their leader was deposed before they
// were committed. 0, 0 means no entries.
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

// dropConflict removes the conflicting entries up to the end of a snapshot. Later entries stay: they may have
// been acknowledged, and the library keeps the index of the last entry in memory.
func (s *logStore) dropConflict(snapshot entryID) error {
	return s.drop(s.conflict(snapshot, false))
}

// dropContradicted removes all log entries that contradict a snapshot. It is called before the Raft library
// starts.
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

// has reports whether the log holds the entry with this index and term, and can read it.
func (s *logStore) has(id entryID) bool {
	var l raft.Log
	return s.read(id.index, &l) == nil && l.Term == id.term
}

// seal appends the checksum to a value of the stable store. Without the checksum, a flipped bit in the term
// or the vote would go unnoticed, and the replica could vote twice in one term.
func seal(k, v []byte) []byte {
	return binary.LittleEndian.AppendUint64(append(make([]byte, 0, len(v)+8), v...), sumOf(k, v))
}

func unseal(k, sealed []byte) ([]byte, error) {
	at := len(sealed) - 8
	if at < 0 || binary.LittleEndian.Uint64(sealed[at:]) != sumOf(k, sealed[:at]) {
		return nil, fmt.Errorf("the value of key %s fails its checksum", k)
	}
	return sealed[:at:at], nil
}

func sumOf(k, v []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	d.Write(k)
	d.Write([]byte{0})
	d.Write(v)
	return d.Sum64()
}

func isNotFound(err error) bool { return err.Error() == raftboltdb.ErrKeyNotFound.Error() }

// Get, GetUint64, Set and SetUint64 implement raft.StableStore.
func (s *logStore) Get(k []byte) ([]byte, error) {
	sealed, err := s.disk.Get(k)
	if err != nil {
		if isNotFound(err) {
			return nil, err // return err unchanged: the Raft library compares its text
		}
		return nil, s.unreadable(corrupt(err, "raft log %s: the value of key %s", s.path, k))
	}
	v, err := unseal(k, sealed)
	if err != nil {
		return nil, s.unreadable(fmt.Errorf("%w: raft log %s: %w", ErrCorrupt, s.path, err))
	}
	return v, nil
}

func (s *logStore) GetUint64(k []byte) (uint64, error) {
	v, err := s.Get(k)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, s.unreadable(fmt.Errorf("%w: raft log %s: the value of key %s has %d bytes, want 8", ErrCorrupt, s.path, k, len(v)))
	}
	return binary.BigEndian.Uint64(v), nil
}

func (s *logStore) unreadable(err error) error {
	if s.started.Load() {
		s.fail(err)
	}
	return err
}

func (s *logStore) Set(k, v []byte) error {
	if err := s.set(k, v); err != nil {
		return s.stableFailed(err)
	}
	return nil
}

func (s *logStore) SetUint64(k []byte, v uint64) error {
	return s.Set(k, binary.BigEndian.AppendUint64(nil, v))
}

func (s *logStore) stableFailed(err error) error {
	err = s.failed("write term or vote", err)
	if s.started.Load() {
		runtime.Goexit() // end the goroutine, as in GetLog, because the library would panic
	}
	return err
}

// own reads a value that this package keeps in the stable store; "" if it was never set.
func (s *logStore) own(key []byte) (string, error) {
	v, err := s.Get(key)
	if err != nil && isNotFound(err) {
		return "", nil
	}
	return string(v), err
}

func (s *logStore) setOwn(key []byte, v string) error {
	if err := s.set(key, []byte(v)); err != nil {
		return s.failed("write "+string(key), err)
	}
	return nil
}

func (s *logStore) Close() error { return s.disk.Close() }
