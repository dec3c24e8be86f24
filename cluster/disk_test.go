package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func TestSnapshotAndRestoreUnderLoad(t *testing.T) {
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) {
		c.Timing.SnapshotEntries, c.Timing.TrailingEntries = 50, 10
		c.Timing.SnapshotInterval = 20 * time.Millisecond
		// The test is about the leader's log: long timeouts keep a busy machine from electing another
		// leader.
		c.Timing.Heartbeat, c.Timing.LeaderLease = 3*time.Second, 2*time.Second
	}
	leader := g.form()
	away := g.follower(leader)
	i := g.index(away)
	ctx, cancel := context.WithCancel(context.Background())
	load := make(chan int64)
	go func() {
		var v int64
		for ; ctx.Err() == nil; v++ {
			pctx, done := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := leader.Propose(pctx, put(fmt.Sprintf("w%d", v%100), v))
			done()
			if err != nil {
				t.Error(err)
				break
			}
		}
		load <- v
	}()
	g.close(i)
	// The log drops the entries that the absent follower lacks.
	gone := away.raft.LastIndex()
	testbed.Until(t, "the log compacted", func() bool {
		first, err := leader.logs.FirstIndex()
		return err == nil && first > gone+1
	})
	back := g.start(i)
	testbed.Until(t, "a snapshot installed", func() bool { return back.Store().View().Info().Index > gone })
	cancel()
	total := <-load
	end := mustPut(t, leader, "end", 1)
	for _, n := range g.snapshot() {
		v, err := n.Read(timeout(t, 10*time.Second), Session, end.Index)
		if err != nil {
			t.Fatal(err)
		}
		if v.Info().Digest != leader.Store().View().Info().Digest {
			t.Errorf("digest %x, the leader's is %x", v.Info().Digest, leader.Store().View().Info().Digest)
		}
	}
	// And a restart begins at the snapshot.
	g.close(i)
	back = g.start(i)
	testbed.Until(t, "all data after the restart", func() bool { return value(back.Store().View(), "end") == 1 })
	t.Logf("%d writes", total)
	if back.Err() != nil {
		t.Error(back.Err())
	}
}

func newestSnapshot(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, RaftDir, "snapshots", "*-*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no snapshot: %v", err)
	}
	// The names are term-index-milliseconds, so they do not sort by index as text.
	return slices.MaxFunc(all, func(a, b string) int { return cmp.Compare(snapshotIndex(t, a), snapshotIndex(t, b)) })
}

func snapshotIndex(t *testing.T, path string) (index uint64) {
	t.Helper()
	var term, at uint64
	if _, err := fmt.Sscanf(filepath.Base(path), "%d-%d-%d", &term, &index, &at); err != nil {
		t.Fatalf("snapshot %s: %v", path, err)
	}
	return index
}

func TestCorruptDataIsNamed(t *testing.T) {
	flip := func(path string, find []byte) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := len(b) / 2
		if find != nil {
			if at = bytes.LastIndex(b, find); at < 0 {
				return fmt.Errorf("%q is not in %s", find, path)
			}
		}
		b[at] ^= 0xff
		return os.WriteFile(path, b, 0o600)
	}
	for _, c := range []struct {
		name     string
		snapshot bool
		damage   func(dir string) (string, error)
	}{
		{"snapshot state", true, func(dir string) (string, error) {
			path := newestSnapshot(t, dir)
			return filepath.Base(path), flip(filepath.Join(path, "state.bin"), nil)
		}},
		{"snapshot description", true, func(dir string) (string, error) {
			path := newestSnapshot(t, dir)
			return filepath.Base(path), os.WriteFile(filepath.Join(path, "meta.json"), []byte("{"), 0o600)
		}},
		{"snapshots lost", true, func(dir string) (string, error) {
			return logFile, os.RemoveAll(filepath.Join(dir, RaftDir, "snapshots"))
		}},
		{"a byte of an entry", false, func(dir string) (string, error) {
			return logFile, flip(logPath(dir), []byte("needle"))
		}},
		{"log truncated", false, func(dir string) (string, error) {
			return logFile, os.Truncate(logPath(dir), 20000)
		}},
		{"log replaced", false, func(dir string) (string, error) {
			return logFile, os.WriteFile(logPath(dir), bytes.Repeat([]byte("nonsense"), 8192), 0o600)
		}},
		{"an entry missing", false, func(dir string) (string, error) {
			db, err := bbolt.Open(logPath(dir), 0o600, nil)
			if err != nil {
				return "", err
			}
			defer db.Close()
			return logFile, db.Update(func(tx *bbolt.Tx) error {
				b := tx.Bucket([]byte("logs"))
				k, _ := b.Cursor().Last()
				k = bytes.Clone(k)
				k[7]--
				return b.Delete(k)
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 1)
			if c.snapshot {
				g.cfg = func(_ int, c *Config) {
					c.Timing.SnapshotEntries, c.Timing.TrailingEntries = 10, 1
					c.Timing.SnapshotInterval = 10 * time.Millisecond
				}
			}
			n := g.form()
			for i := range 30 {
				mustPut(t, n, "needle", int64(i))
			}
			if c.snapshot {
				testbed.Until(t, "a snapshot and a compacted log", func() bool {
					first, err := n.logs.FirstIndex()
					return err == nil && first > 5
				})
			}
			g.close(0)
			names, err := c.damage(g.dirs[0])
			if err != nil {
				t.Fatal(err)
			}
			n, err = g.open(0)
			if err == nil {
				t.Fatalf("opened with %d", value(n.Store().View(), "needle"))
			}
			if !errors.Is(err, ErrCorrupt) || !contains(err.Error(), names) {
				t.Errorf("%v is not ErrCorrupt naming %s", err, names)
			}
			t.Log(err)
		})
	}
}

// faulty is a log store whose disk can become full.
type faulty struct {
	storage
	full *atomic.Bool
}

var errFull = &os.PathError{Op: "write", Path: logFile, Err: syscall.ENOSPC}

func (f faulty) StoreLogs(l []*raft.Log) error {
	if f.full.Load() {
		return errFull
	}
	return f.storage.StoreLogs(l)
}

func (f faulty) Set(k, v []byte) error {
	if f.full.Load() {
		return errFull
	}
	return f.storage.Set(k, v)
}

func (f faulty) SetUint64(k []byte, v uint64) error {
	if f.full.Load() {
		return errFull
	}
	return f.storage.SetUint64(k, v)
}

func TestFullDiskStopsTheReplica(t *testing.T) {
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			g := newGroup(t, 3)
			full := [3]atomic.Bool{}
			g.hooks = func(i int, h *hooks) {
				h.storage = func(s storage) storage { return faulty{s, &full[i]} }
			}
			leader := g.form()
			victim := leader
			if who == "follower" {
				victim = g.follower(leader)
			}
			full[g.index(victim)].Store(true)
			_, err := leader.Propose(timeout(t, 5*time.Second), put("w", 1))
			if who == "leader" && !errors.Is(err, ErrUnknownOutcome) || who == "follower" && err != nil {
				t.Errorf("propose: %v", err)
			}
			select {
			case <-victim.Halted():
			case <-time.After(patience):
				t.Fatal("it goes on")
			}
			if err := victim.Err(); !errors.Is(err, ErrStorage) || !errors.Is(err, syscall.ENOSPC) || !contains(err.Error(), logFile) {
				t.Errorf("stopped because of %v", err)
			}
			if _, err := victim.Propose(timeout(t, time.Second), put("w", 2)); !errors.Is(err, ErrClosed) {
				t.Errorf("propose to the stopped: %v", err)
			}
			if v, err := victim.Read(timeout(t, time.Second), Stale, 0); err != nil || v.Info().ClusterID == "" {
				t.Errorf("stale read of the stopped: %v", err)
			}
			if victim.Status().Halted == nil {
				t.Error("Status does not tell")
			}
			testbed.Until(t, "the others go on", func() bool {
				for _, n := range g.snapshot() {
					if n == victim || !n.IsLeader() {
						continue
					}
					_, err := n.Propose(timeout(t, time.Second), put("w", 3))
					return err == nil
				}
				return false
			})
		})
	}
}

func TestAnUnknownCommandStopsTheReplica(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	mustPut(t, n, "w", 1)
	// A command with field 99, as a later version may send: length-delimited, empty.
	next := append([]byte{}, 0x0a, 0x03, 0x9a, 0x06, 0x00)
	f := n.raft.Apply(next, time.Second)
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.Halted():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if err := n.Err(); !errors.Is(err, fsm.ErrUnknownCommand) || !contains(err.Error(), fmt.Sprint(f.Index())) {
		t.Errorf("stopped because of %v", err)
	}
	if value(n.Store().View(), "w") != 1 {
		t.Error("the state before it is gone")
	}
}

func TestDivergedMinorityIsQuarantinedAndRejoins(t *testing.T) {
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			g := newGroup(t, 3)
			g.cfg = func(_ int, c *Config) { c.Timing.Compare = 50 * time.Millisecond }
			leader := g.form()
			for _, n := range g.snapshot() {
				testbed.Until(t, "addresses remembered", func() bool { return len(n.remembered()) == 2 })
			}
			victim := leader
			if who == "follower" {
				victim = g.follower(leader)
			}
			i, old := g.index(victim), victim.ID()
			r := mustPut(t, leader, "w", 1)
			testbed.Until(t, "applied", func() bool { return victim.Store().View().Info().Index >= r.Index })
			victim.machine.digests.mu.Lock()
			s := &victim.machine.digests.slots
			for k := range s {
				s[k].digest ^= 1
			}
			victim.machine.digests.mu.Unlock()
			select {
			case <-victim.Halted():
			case <-time.After(patience):
				t.Fatal("it goes on")
			}
			if !errors.Is(victim.Err(), ErrDiverged) {
				t.Fatalf("stopped because of %v", victim.Err())
			}
			if aside, _ := filepath.Glob(filepath.Join(g.dirs[i], quarantined+"*")); len(aside) != 1 {
				t.Errorf("set aside: %v", aside)
			}
			for j, n := range g.snapshot() {
				if j != i && n.Err() != nil {
					t.Errorf("replica %d of the majority stopped: %v", j, n.Err())
				}
			}
			g.close(i)
			g.cfg = func(_ int, c *Config) { c.Join, c.BootstrapExpect = nil, 0 }
			n := g.start(i)
			if n.ID() == old {
				t.Fatal("it kept its id")
			}
			testbed.Until(t, "it votes under its new id", func() bool {
				for _, p := range n.Status().Peers {
					if p.ID == n.ID() && (p.Role == RoleVoter || p.Role == RoleLeader) {
						return true
					}
				}
				return false
			})
		})
	}
}

func TestLogStoreCache(t *testing.T) {
	s, err := openLogStore(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	entry := func(i, term uint64, size int) *raft.Log {
		return &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(i)}, size)}
	}
	var batch []*raft.Log
	for i := uint64(1); i <= 300; i++ {
		batch = append(batch, entry(i, 1, 200<<10))
	}
	if err := s.StoreLogs(batch); err != nil {
		t.Fatal(err)
	}
	if s.bytes > cacheBytes || s.next != 301 || s.first < 100 {
		t.Errorf("cache holds [%d, %d) with %d bytes", s.first, s.next, s.bytes)
	}
	for _, i := range []uint64{1, 299, 300} { // from disk, then from memory
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil || l.Index != i || l.Data[0] != byte(i) || l.Extensions != nil {
			t.Errorf("entry %d: %+v, %v", i, l.Index, err)
		}
	}
	// A suffix that another leader replaced must not come from memory.
	if err := s.DeleteRange(250, 300); err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLogs([]*raft.Log{entry(250, 2, 10)}); err != nil {
		t.Fatal(err)
	}
	var l raft.Log
	if err := s.GetLog(250, &l); err != nil || l.Term != 2 {
		t.Errorf("entry 250 is of term %d, %v", l.Term, err)
	}
	if err := s.GetLog(251, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("entry 251: %v", err)
	}
	if err := s.DeleteRange(1, 200); err != nil {
		t.Fatal(err)
	}
	if first, err := s.FirstIndex(); err != nil || first != 201 {
		t.Errorf("first index %d, %v", first, err)
	}
}
