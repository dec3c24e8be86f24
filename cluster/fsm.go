package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// machine adapts the pure state machine to Raft: each log entry is one Tx and publishes one root. After an
// entry that this version cannot apply, machine applies no further entries and refuses to write snapshots,
// because a replica that skips an entry would diverge.
type machine struct {
	state   fsm.State // the next fields are accessed only by Raft's FSM goroutine
	unpack  unpacker
	decoder fsm.Decoder
	store   *store.Store
	digests digestRing
	halt    func(error)
	halted  atomic.Bool
	// expect is the cluster id that the state must have; "" accepts any. known is set once the state has had
	// that id.
	expect string
	shard  string // shard that the cluster must have; "" if any shard is accepted
	known  bool
	// learned is called once, when the state gets its cluster id.
	learned func(id string)
	// onSnapshot is called when the writing of a snapshot begins.
	onSnapshot func()
	// restoring is called after a snapshot was read and before its state replaces the present state.
	restoring func() error
	metrics   Metrics
	// restoreErr is the first error of a restore. It is kept because the library would silently go on with
	// an older snapshot.
	restoreErr error
}

// applied is the result of Apply for one log entry.
type applied struct {
	index, term uint64
	results     []fsm.Result
}

func newMachine() *machine {
	s := fsm.New()
	return &machine{state: s, store: store.New(s), halt: func(error) {}, learned: func(string) {}, onSnapshot: func() {}, restoring: func() error { return nil }, metrics: noMetrics{}}
}

// Apply applies a log entry. It returns *applied or an error.
func (m *machine) Apply(l *raft.Log) (answer any) {
	if m.halted.Load() {
		return ErrClosed
	}
	defer func() {
		if r := recover(); r != nil {
			answer = m.stop(fmt.Errorf("applying log entry %d: panic: %v\n%s", l.Index, r, debug.Stack()))
		}
	}()
	began := time.Now()
	frames, err := m.unpack.unpack(l.Data)
	if err != nil {
		return m.unreadable(l, err)
	}
	n, err := m.decoder.Open(frames)
	if err != nil {
		return m.unreadable(l, err)
	}
	tx := m.state.Begin()
	a := &applied{index: l.Index, term: l.Term, results: make([]fsm.Result, n)}
	tx.Expect(n)
	for i := range a.results {
		cmd, err := m.decoder.Next()
		if err != nil {
			return m.unreadable(l, err) // the entry cannot be decoded, so none of its commands is applied
		}
		a.results[i], _ = tx.Apply(fsm.Meta{Index: l.Index, Term: l.Term}, cmd)
	}
	changes := tx.Changes()
	m.state = tx.Commit()
	info := m.state.Info()
	if err := m.admit(info); err != nil {
		return m.stop(err)
	}
	m.digests.put(l.Index, info.Digest)
	m.store.Publish(m.state, changes)
	m.metrics.Apply(changes, time.Since(began))
	return a
}

func (m *machine) unreadable(l *raft.Log, err error) error {
	if !errors.Is(err, fsm.ErrUnknownCommand) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return m.stop(fmt.Errorf("log entry %d: %w", l.Index, err))
}

func (m *machine) stop(err error) error {
	m.halted.Store(true)
	m.halt(err)
	return err
}

// admit checks the cluster id and the shard of a state before it is published.
func (m *machine) admit(info fsm.Info) error {
	id := info.ClusterID
	if id == "" || m.known {
		return nil // a state that has a cluster id was checked when it got the id, which never changes
	}
	if want := m.expect; want != "" && want != id {
		return fmt.Errorf("%w: the log is of cluster %q, this replica belongs to %q", ErrWrongCluster, id, want)
	}
	if want := m.shard; want != "" && want != info.Shard {
		return fmt.Errorf("%w: cluster %q is shard %q, SCHEDULER_SHARD_KEY asks for %q", ErrWrongCluster, id, info.Shard, want)
	}
	m.known = true
	m.learned(id)
	return nil
}

// StoreConfiguration implements raft.ConfigurationStore. A membership change advances the index, so that a
// snapshot can include it.
func (m *machine) StoreConfiguration(uint64, raft.Configuration) {}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.halted.Load() {
		return nil, ErrClosed
	}
	m.onSnapshot()
	return &frozen{m.state, m.metrics}, nil
}

// Restore builds the new state and publishes it only after the whole stream was read and verified.
func (m *machine) Restore(src io.ReadCloser) (err error) {
	defer src.Close()
	defer func(began time.Time) {
		m.metrics.Snapshot("restore", time.Since(began), err)
	}(time.Now())
	if m.halted.Load() {
		return ErrClosed
	}
	s, err := fsm.ReadSnapshot(bufio.NewReaderSize(src, 1<<16))
	if err != nil {
		if err = fmt.Errorf("snapshot: %w", err); !errors.Is(err, fsm.ErrNewer) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if m.restoreErr == nil {
			m.restoreErr = err
		}
		return err
	}
	m.known = false // the snapshot comes from another replica and may have another cluster id
	if err := m.admit(s.Info()); err != nil {
		if m.restoreErr == nil {
			m.restoreErr = err
		}
		return m.stop(err)
	}
	if err := m.restoring(); err != nil {
		return err
	}
	m.state = s
	m.digests.reset()
	m.store.Restore(s)
	return nil
}

type frozen struct {
	state   fsm.State
	metrics Metrics
}

func (f *frozen) Persist(sink raft.SnapshotSink) (err error) {
	defer func(began time.Time) { f.metrics.Snapshot("write", time.Since(began), err) }(time.Now())
	w := bufio.NewWriterSize(sink, 1<<16)
	err = f.state.WriteSnapshot(w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (f *frozen) Release() {}

// digestRing keeps the digests of the state after each of the newest log entries.
type digestRing struct {
	mu    sync.Mutex
	slots [4096]struct{ index, digest uint64 }
	last  uint64
	count int
}

func (r *digestRing) put(index, digest uint64) {
	r.mu.Lock()
	r.slots[index%uint64(len(r.slots))] = struct{ index, digest uint64 }{index, digest}
	r.last = index
	r.count++
	r.mu.Unlock()
}

func (r *digestRing) reset() {
	r.mu.Lock()
	clear(r.slots[:])
	r.last, r.count = 0, 0
	r.mu.Unlock()
}

func (r *digestRing) at(index uint64) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots[index%uint64(len(r.slots))]
	return s.digest, s.index == index && index != 0
}

func (r *digestRing) newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
