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
		calm(c) // this test counts writes to the leader's log, so prevent other writes
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
	// Wait until the leader's log no longer has the entries that the absent follower lacks, so that
	// the follower needs a snapshot.
	gone := away.raft.LastIndex()
	testbed.Until(t, "the leader's log no longer has the entries that the follower lacks", func() bool {
		first, err := leader.logs.FirstIndex()
		return err == nil && first > gone+1
	})
	back := g.start(i)
	testbed.Until(t, "the follower has installed a snapshot", func() bool { return back.Store().View().Info().Index > gone })
	cancel()
	total := <-load
	leader, end := g.put("end", 1)
	for _, n := range g.snapshot() {
		v, err := n.Read(timeout(t, 10*time.Second), Session, end.Index)
		if err != nil {
			t.Fatal(err)
		}
		if v.Info().Digest != leader.Store().View().Info().Digest {
			t.Errorf("the restored replica has digest %x, want the leader's digest %x", v.Info().Digest, leader.Store().View().Info().Digest)
		}
	}
	// A replica that restarts must load the snapshot first.
	g.close(i)
	back = g.start(i)
	testbed.Until(t, "the restarted replica has all writes", func() bool { return value(back.Store().View(), "end") == 1 })
	t.Logf("%d writes", total)
	if back.Err() != nil {
		t.Error(back.Err())
	}
}

func newestSnapshot(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, RaftDir, "snapshots", "*-*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("the replica must have a snapshot, but has none: %v", err)
	}
	// The snapshot names are term-index-milliseconds as decimal text, so sorting them as text does not sort
	// them by index.
	return slices.MaxFunc(all, func(a, b string) int { return cmp.Compare(snapshotIndex(t, a), snapshotIndex(t, b)) })
}

func snapshotIndex(t *testing.T, path string) (index uint64) {
	t.Helper()
	var term, at uint64
	if _, err := fmt.Sscanf(filepath.Base(path), "%d-%d-%d", &term, &index, &at); err != nil {
		t.Fatalf("the name of snapshot %s cannot be parsed: %v", path, err)
	}
	return index
}

// flip changes one byte of a file: a byte in the last occurrence of find, or the byte in the middle of the file if
// find is empty.
func flip(path string, find []byte) error {
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

func TestCorruptDataIsNamed(t *testing.T) {
	for _, c := range []struct {
		name     string
		snapshot bool
		damage   func(dir string) (string, error)
	}{
		{"the state in a snapshot is damaged", true, func(dir string) (string, error) {
			path := newestSnapshot(t, dir)
			return filepath.Base(path), flip(filepath.Join(path, "state.bin"), nil)
		}},
		{"the metadata of a snapshot is damaged", true, func(dir string) (string, error) {
			path := newestSnapshot(t, dir)
			return filepath.Base(path), os.WriteFile(filepath.Join(path, "meta.json"), []byte("{"), 0o600)
		}},
		{"the folder of snapshots is missing", true, func(dir string) (string, error) {
			return logFile, os.RemoveAll(filepath.Join(dir, RaftDir, "snapshots"))
		}},
		{"one byte of a log entry is damaged", false, func(dir string) (string, error) {
			return logFile, flip(logPath(dir), []byte("needle"))
		}},
		{"the log file is truncated", false, func(dir string) (string, error) {
			return logFile, os.Truncate(logPath(dir), 20000)
		}},
		{"the log file has other content", false, func(dir string) (string, error) {
			return logFile, os.WriteFile(logPath(dir), bytes.Repeat([]byte("nonsense"), 8192), 0o600)
		}},
		{"the stored term is damaged", false, changeStable(keyTerm, func(v []byte) []byte { v[1] ^= 0x10; return v })},
		{"the stored term of the last vote is damaged", false, changeStable(keyLastVote, func(v []byte) []byte { v[7] ^= 1; return v })},
		{"the stored candidate of the last vote is damaged", false, changeStable(keyCandidate, func(v []byte) []byte { v[0] ^= 1; return v })},
		{"the checksum of the stored term is damaged", false, changeStable(keyTerm, func(v []byte) []byte { v[15] ^= 0x80; return v })},
		{"the stored term is missing", false, changeStable(keyTerm, func([]byte) []byte { return nil })},
		{"the stored term is older than the terms of the log entries", false, changeStable(keyTerm, func([]byte) []byte { return seal(keyTerm, make([]byte, 8)) })},
		{"the stored replica id is damaged", false, changeStable(keyReplicaID, func(v []byte) []byte { v[3] ^= 4; return v })},
		{"the stable store has an unknown key", false, changeStable([]byte("CurrentTesm"), func([]byte) []byte { return seal([]byte("CurrentTesm"), make([]byte, 8)) })},
		{"an entry in the middle of the log is missing", false, func(dir string) (string, error) {
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
				g.put("needle", int64(i))
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
				t.Fatalf("Open must refuse the damaged data, but opened it with the value %d", value(n.Store().View(), "needle"))
			}
			if !errors.Is(err, ErrCorrupt) || !contains(err.Error(), names) {
				t.Errorf("Open returned error %v, want ErrCorrupt that names %s", err, names)
			}
			t.Log(err)
		})
	}
}

// An error of the machine, such as a full disk or a missing permission, does not mean that the data
// is damaged. The data must not be moved aside.
func TestErrorsOfTheMachineAreNoDamage(t *testing.T) {
	for _, e := range []error{syscall.EMFILE, syscall.ENOSPC, syscall.ENOMEM, syscall.EACCES} {
		if err := corrupt(&os.PathError{Op: "open", Path: "log.db", Err: e}, "raft log %s", "log.db"); errors.Is(err, ErrCorrupt) || !errors.Is(err, e) {
			t.Errorf("corrupt of %v, an error of the machine, returned %v, want only that error", e, err)
		}
	}
	for _, e := range []error{syscall.EIO, errors.New("invalid database")} {
		if err := corrupt(e, "raft log"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("corrupt of %v, an error of reading the data, returned %v, want ErrCorrupt", e, err)
		}
	}
	g := newGroup(t, 1)
	g.form()
	g.close(0)
	db, err := bbolt.Open(logPath(g.dirs[0]), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := g.open(0); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("opening a log file that another program has locked returned %v, want an error that is not ErrCorrupt", err)
	}
}

// changeStable returns a function that changes the value of a key in the stable store on disk. If change
// returns nil, the key is removed.
func changeStable(key []byte, change func([]byte) []byte) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		db, err := bbolt.Open(logPath(dir), 0o600, nil)
		if err != nil {
			return "", err
		}
		defer db.Close()
		return logFile, db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(stableBucket)
			v := change(bytes.Clone(b.Get(key)))
			if v == nil {
				return b.Delete(key)
			}
			return b.Put(key, v)
		})
	}
}

// Every single flipped bit in a value of the stable store must be detected.
func TestEveryFlippedBitOfTheStableStoreIsNoticed(t *testing.T) {
	for _, v := range [][]byte{{0, 0, 0, 0, 0, 0, 0, 7}, []byte("127.0.0.1:7000")} {
		sealed := seal(keyTerm, v)
		if got, err := unseal(keyTerm, sealed); err != nil || !bytes.Equal(got, v) {
			t.Fatalf("the sealed value %x was read as %x, error %v", v, got, err)
		}
		for bit := range 8 * len(sealed) {
			bad := bytes.Clone(sealed)
			bad[bit/8] ^= 1 << (bit % 8)
			if got, err := unseal(keyTerm, bad); err == nil {
				t.Errorf("with bit %d flipped, the value %x must be refused, but was read as %x", bit, v, got)
			}
		}
		if _, err := unseal(keyLastVote, sealed); err == nil {
			t.Error("a value that was stored under another key must be refused, but was read")
		}
	}
}

// If the Raft term in the memory of one replica is damaged, the other replicas do not adopt that term and keep running.
func TestAnImplausibleTermIsNotAdopted(t *testing.T) {
	var m counted
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Metrics = &m }
	leader := g.form()
	damaged := g.follower(leader)
	term := leader.raft.CurrentTerm()
	const far = uint64(1) << 62
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(damaged.id), Addr: []byte(damaged.port.advertise)}
	to, at := raft.ServerID(leader.id), raft.ServerAddress(leader.port.advertise)
	for name, call := range map[string]func() error{
		"vote": func() error {
			return damaged.trans.RequestVote(to, at, &raft.RequestVoteRequest{RPCHeader: header, Term: far, LeadershipTransfer: true}, &raft.RequestVoteResponse{})
		},
		"pre-vote": func() error {
			return damaged.trans.RequestPreVote(to, at, &raft.RequestPreVoteRequest{RPCHeader: header, Term: far}, &raft.RequestPreVoteResponse{})
		},
		"append": func() error {
			return damaged.trans.NetworkTransport.AppendEntries(to, addressed(to, at), &raft.AppendEntriesRequest{RPCHeader: header, Term: far}, &raft.AppendEntriesResponse{})
		},
	} {
		if err := call(); err == nil || !contains(err.Error(), ErrTermLeap.Error()) {
			t.Errorf("message %s with an implausible term returned error %v, want ErrTermLeap", name, err)
		}
	}
	if n := m.of("refused term"); n < 3 {
		t.Errorf("%d refused terms were reported to Metrics, want one for each message", n)
	}
	if err := damaged.trans.leap("x", term+maxTermLeap); err != nil {
		t.Errorf("a plausible term must be accepted, but was refused: %v", err)
	}
	g.put("w", 1)
	if now := leader.raft.CurrentTerm(); now > term+maxTermLeap {
		t.Errorf("the replica's term is %d after the refused messages, want %d as before", now, term)
	}
}

// faulty is a log store for tests whose writes can fail as on a full disk.
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
			g.also(calm)
			g.hooks = func(i int, h *hooks) {
				h.storage = func(s storage) storage { return faulty{s, &full[i]} }
			}
			leader := g.form()
			victim := leader
			if who == "follower" {
				victim = g.follower(leader)
			}
			full[g.index(victim)].Store(true)
			_, err := leader.Propose(timeout(t, patience), put("w", 1))
			if who == "leader" && !errors.Is(err, ErrUnknownOutcome) || who == "follower" && err != nil {
				t.Errorf("Propose returned error %v, want ErrUnknownOutcome if the disk of the leader is full, otherwise none", err)
			}
			select {
			case <-victim.Halted():
			case <-time.After(patience):
				t.Fatal("the replica with the full disk must halt, but still runs")
			}
			if err := victim.Err(); !errors.Is(err, ErrStorage) || !errors.Is(err, syscall.ENOSPC) || !contains(err.Error(), logFile) {
				t.Errorf("the replica with the full disk halted because of %v, want ErrStorage with ENOSPC and the name of the log file", err)
			}
			if _, err := victim.Propose(timeout(t, 10*time.Second), put("w", 2)); !errors.Is(err, ErrClosed) {
				t.Errorf("Propose on the halted replica returned %v, want ErrClosed", err)
			}
			if v, err := victim.Read(timeout(t, 10*time.Second), Stale, 0); err != nil || v.Info().ClusterID == "" {
				t.Errorf("a stale read of the halted replica returned %v, want the last state", err)
			}
			if victim.Status().Halted == nil {
				t.Error("Status must show that the replica has halted, but does not")
			}
			testbed.Until(t, "the other replicas still accept writes", func() bool {
				for _, n := range g.snapshot() {
					if n == victim || !n.IsLeader() {
						continue
					}
					_, err := n.Propose(timeout(t, 10*time.Second), put("w", 3))
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
	g.put("w", 1)
	// The bytes of a protobuf command with an empty field 99, as a later version may send it.
	next := append([]byte{}, 0x0a, 0x03, 0x9a, 0x06, 0x00)
	f := n.raft.Apply(next, time.Second)
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.Halted():
	case <-time.After(patience):
		t.Fatal("the replica with an unknown command in its log must halt, but still runs")
	}
	if err := n.Err(); !errors.Is(err, fsm.ErrUnknownCommand) || !contains(err.Error(), fmt.Sprint(f.Index())) {
		t.Errorf("the replica halted because of %v, want ErrUnknownCommand with the index of the entry", err)
	}
	if value(n.Store().View(), "w") != 1 {
		t.Error("the state from before the damaged snapshot must be kept, but is lost")
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
			_, r := g.put("w", 1)
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
				t.Fatal("the replica with the diverged state must halt, but still runs")
			}
			if !errors.Is(victim.Err(), ErrDiverged) {
				t.Fatalf("the replica with the diverged state halted because of %v, want ErrDiverged", victim.Err())
			}
			if aside, _ := filepath.Glob(filepath.Join(g.dirs[i], quarantined+"*")); len(aside) != 1 {
				t.Errorf("the Raft directories that were moved aside are %v, want one", aside)
			}
			for j, n := range g.snapshot() {
				if j != i && n.Err() != nil {
					t.Errorf("replica %d of the majority must keep running, but halted because of %v", j, n.Err())
				}
			}
			g.close(i)
			g.cfg = func(_ int, c *Config) { c.Join, c.BootstrapExpect = nil, 0 }
			n := g.start(i)
			if n.ID() == old {
				t.Fatal("the diverged replica must get a new Raft id, but kept its old one")
			}
			testbed.Until(t, "the diverged replica is a voter under its new id", func() bool {
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

func TestTheLogStoreCachesEntries(t *testing.T) {
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
		t.Errorf("the log cache has the entries from %d to below %d with %d bytes, want at most cacheBytes, and the newest entry 300", s.first, s.next, s.bytes)
	}
	for _, i := range []uint64{1, 299, 300} { // first read an entry that is only on disk, then entries in the cache
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil || l.Index != i || l.Data[0] != byte(i) || l.Extensions != nil {
			t.Errorf("GetLog of entry %d returned index %d, error %v; want the stored entry", i, l.Index, err)
		}
	}
	// Entries that a new leader has replaced must not be read from the cache.
	if err := s.DeleteRange(250, 300); err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLogs([]*raft.Log{entry(250, 2, 10)}); err != nil {
		t.Fatal(err)
	}
	var l raft.Log
	if err := s.GetLog(250, &l); err != nil || l.Term != 2 {
		t.Errorf("the replaced entry 250 has term %d (error %v), want term 2 and no error", l.Term, err)
	}
	if err := s.GetLog(251, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("GetLog of the deleted entry 251 returned error %v, want ErrLogNotFound", err)
	}
	if err := s.DeleteRange(1, 200); err != nil {
		t.Fatal(err)
	}
	if first, err := s.FirstIndex(); err != nil || first != 201 {
		t.Errorf("after DeleteRange of entries 1 to 200 the first index of the log is %d (error %v), want 201", first, err)
	}
}
