package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// byHand is a leader whose appends the test writes, and its only follower, which is a full replica.
type byHand struct {
	t        *testing.T
	g        *group
	from     *Node
	follower *Node
	config   raft.Configuration
}

func newByHand(t *testing.T) *byHand {
	g := newGroup(t, 3) // two of three are started, so that no cluster is formed
	g.cfg = func(_ int, c *Config) { c.Timing.NoFastFailover = true }
	b := &byHand{t: t, g: g, from: g.start(0), follower: g.start(1)}
	for _, s := range []*Node{b.from, b.follower} {
		b.config.Servers = append(b.config.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.id), Address: raft.ServerAddress(s.RaftAddr())})
	}
	return b
}

func (b *byHand) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(b.from.id), Addr: []byte(b.from.RaftAddr())}
}

func (b *byHand) to() (raft.ServerID, raft.ServerAddress) {
	return raft.ServerID(b.follower.id), raft.ServerAddress(b.follower.RaftAddr())
}

// entries returns the leader's log entries from first to last, all of one term.
func entries(first, last, term uint64) (out []*raft.Log) {
	for i := first; i <= last; i++ {
		out = append(out, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return out
}

// appends sends an append that continues prev and reports whether it was accepted.
func (b *byHand) appends(term uint64, prev entryID, commit uint64, logs []*raft.Log) bool {
	b.t.Helper()
	id, addr := b.to()
	var resp raft.AppendEntriesResponse
	err := b.from.trans.AppendEntries(id, addr, &raft.AppendEntriesRequest{
		RPCHeader: b.header(), Term: term, PrevLogEntry: prev.index, PrevLogTerm: prev.term,
		Entries: logs, LeaderCommitIndex: commit,
	}, &resp)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.Term > term {
		b.t.Fatalf("the follower is of term %d, the append of %d", resp.Term, term)
	}
	return resp.Success
}

func (b *byHand) installs(term uint64, last entryID, state []byte) (resp raft.InstallSnapshotResponse, err error) {
	id, addr := b.to()
	err = b.from.trans.InstallSnapshot(id, addr, &raft.InstallSnapshotRequest{
		RPCHeader: b.header(), SnapshotVersion: raft.SnapshotVersionMax, Term: term,
		LastLogIndex: last.index, LastLogTerm: last.term,
		Configuration: raft.EncodeConfiguration(b.config), ConfigurationIndex: 1, Size: int64(len(state)),
	}, &resp, bytes.NewReader(state))
	return resp, err
}

// emptyState is the content of a snapshot.
func emptyState(t *testing.T) []byte {
	t.Helper()
	var state bytes.Buffer
	if err := fsm.New().WriteSnapshot(&state); err != nil {
		t.Fatal(err)
	}
	return state.Bytes()
}

func (b *byHand) mustInstall(term uint64, last entryID) {
	b.t.Helper()
	if resp, err := b.installs(term, last, emptyState(b.t)); err != nil || !resp.Success {
		b.t.Fatalf("the snapshot of entry %d was refused: %+v, %v", last.index, resp, err)
	}
}

// mustInstallWith installs a snapshot and sends the entries right after it.
func (b *byHand) mustInstallWith(last entryID, next []*raft.Log) {
	b.t.Helper()
	b.mustInstall(last.term, last)
	if !b.appends(last.term, last, 0, next) {
		b.t.Fatal("entries right after the snapshot were refused")
	}
}

func (b *byHand) holds(index, term uint64) {
	b.t.Helper()
	var l raft.Log
	if err := b.follower.logs.GetLog(index, &l); err != nil || l.Term != term {
		b.t.Errorf("entry %d of the follower: term %d, %v; the leader's is of term %d", index, l.Term, err, term)
	}
}

// lacks checks that the follower would send no entry at index as a leader.
func (b *byHand) lacks(index uint64) {
	b.t.Helper()
	var l raft.Log
	if err := b.follower.logs.GetLog(index, &l); !errors.Is(err, raft.ErrLogNotFound) {
		b.t.Errorf("the follower has an entry %d of term %d, which was never committed (%v)", index, l.Term, err)
	}
}

func (b *byHand) applied(index uint64) {
	b.t.Helper()
	testbed.Until(b.t, fmt.Sprintf("entry %d is applied", index), func() bool { return b.follower.raft.AppliedIndex() == index })
}

// A leader that did not receive an answer repeats an append. The follower has installed a snapshot since
// and accepts entries that continue it.
func TestAnAppendThatContinuesTheSnapshotIsAccepted(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61 // a term that the two do not reach by themselves
	for _, c := range []struct {
		name   string
		before func(b *byHand)
	}{
		{"a repeated append", func(b *byHand) {
			b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, last, term))
		}},
		{"a repeated append after a restart", func(b *byHand) {
			b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, last, term))
			b.g.close(1)
			b.follower = b.g.start(1)
			b.from.trans.CloseStreams() // closes the streams of the term before
		}},
		{"uncommitted entries across the snapshot's end", func(b *byHand) {
			if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
				t.Fatal("the first entries were refused")
			}
			b.mustInstall(term, entryID{snapshot, term})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newByHand(t)
			c.before(b)
			if !b.appends(term, entryID{snapshot, term}, last, entries(snapshot+1, last, term)) {
				t.Fatal("entries that continue the snapshot were refused: the leader would send the snapshot again, for ever")
			}
			b.holds(snapshot+1, term)
			b.holds(last, term)
			b.lacks(1)
			b.lacks(snapshot)
			b.applied(last)
		})
	}
}

// An append that does not continue the snapshot is compared with the log as usual.
func TestAnAppendThatContinuesNoSnapshotIsRefused(t *testing.T) {
	const term, snapshot = 1000, 50
	b := newByHand(t)
	next := entries(snapshot+1, snapshot+3, term)
	b.mustInstallWith(entryID{snapshot, term}, next)
	for _, prev := range []entryID{{snapshot - 1, term}, {snapshot + 9, term}} {
		if b.appends(term, prev, 0, next) {
			t.Errorf("an append after entry %d of term %d was accepted", prev.index, prev.term)
		}
	}
	// No append may continue a snapshot that cannot be restored: the replica still has to apply the entries
	// before it.
	if _, err := b.installs(term, entryID{snapshot + 20, term}, []byte("nonsense")); err == nil {
		t.Fatal("a broken snapshot was installed")
	}
	if b.appends(term, entryID{snapshot + 20, term}, 0, entries(snapshot+21, snapshot+22, term)) {
		t.Error("an append after a snapshot that was not restored was accepted")
	}
	if err := b.follower.Err(); err != nil {
		t.Error(err)
	}
}

// A replica stops if the leader contradicts its snapshot: the snapshot is a backup that only this replica
// restored and that was never committed.
func TestAContradictedSnapshotStopsTheReplica(t *testing.T) {
	const term, snapshot = 1000, 50
	b := newByHand(t)
	b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, snapshot+3, term))
	if !b.appends(term+1, entryID{snapshot, term}, 0, nil) {
		t.Fatal("a new leader was refused")
	}
	id, addr := b.to()
	other := func(by uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: b.header(), Term: by, PrevLogEntry: snapshot, PrevLogTerm: term - 1, Entries: entries(snapshot+1, snapshot+1, by)}
	}
	var resp raft.AppendEntriesResponse
	if err := b.from.trans.AppendEntries(id, addr, other(term), &resp); err != nil || resp.Success {
		t.Errorf("a former leader was answered %+v, %v", resp, err)
	}
	if err := b.follower.Err(); err != nil {
		t.Errorf("a former leader ended it: %v", err)
	}
	// It may answer, or be gone already.
	_ = b.from.trans.AppendEntries(id, addr, other(term+1), &resp)
	testbed.Until(t, "it ends", func() bool { return errors.Is(b.follower.Err(), ErrDiverged) })
}

// The leader's entries beyond those that it sends may differ from the entries here, which were never
// committed.
func TestOnlyEntriesThatAnAppendProvesAreApplied(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	b := newByHand(t)
	if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
		t.Fatal("the first entries were refused")
	}
	b.mustInstall(term, entryID{snapshot, term})
	if !b.appends(term, entryID{snapshot, term}, snapshot+1, nil) {
		t.Fatal("an append without entries was refused")
	}
	if got := b.follower.raft.CommitIndex(); got > snapshot {
		t.Errorf("entry %d of a leader that is gone counts as committed", got)
	}
	if !b.appends(term, entryID{snapshot, term}, snapshot+1, entries(snapshot+1, snapshot+1, term)) {
		t.Fatal("the entry after the snapshot was refused")
	}
	b.applied(snapshot + 1)
	b.holds(snapshot+1, term)
}

// A snapshot that the state contains changes nothing.
func TestASnapshotThatTheStateContainsIsNotInstalled(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	next := entries(snapshot+1, last, term)
	begin := func(t *testing.T) *byHand {
		b := newByHand(t)
		b.mustInstallWith(entryID{snapshot, term}, next)
		if !b.appends(term, entryID{last, term}, last, nil) {
			t.Fatal("the end of the log was refused")
		}
		b.applied(last)
		return b
	}
	stays := func(b *byHand) {
		b.t.Helper()
		if got := b.follower.raft.AppliedIndex(); got != last {
			b.t.Errorf("it has applied %d, before it was %d", got, last)
		}
		if err := b.follower.Err(); err != nil {
			b.t.Error(err)
		}
	}
	t.Run("a repeated snapshot", func(t *testing.T) {
		b := begin(t)
		for range 2 {
			b.mustInstall(term, entryID{snapshot, term})
			stays(b)
		}
		if !b.appends(term, entryID{snapshot, term}, last, next) {
			t.Error("what follows it was refused: the leader would send it again, for ever")
		}
		stays(b)
	})
	t.Run("a snapshot that ends in the log", func(t *testing.T) {
		b := begin(t)
		b.mustInstall(term, entryID{snapshot + 5, term})
		stays(b)
		if !b.appends(term, entryID{snapshot + 5, term}, last, next[5:]) {
			t.Error("what follows it was refused")
		}
	})
	t.Run("a snapshot of a former leader", func(t *testing.T) {
		b := begin(t)
		resp, err := b.installs(term-1, entryID{snapshot, term}, emptyState(t))
		if err != nil || resp.Success || resp.Term != term {
			t.Errorf("answered %+v, %v", resp, err)
		}
		stays(b)
	})
	t.Run("a snapshot of a new leader", func(t *testing.T) {
		b := begin(t)
		resp, err := b.installs(term+1, entryID{snapshot, term}, emptyState(t))
		if err != nil || !resp.Success || resp.Term != term+1 {
			t.Errorf("answered %+v, %v", resp, err)
		}
		stays(b)
	})
	t.Run("a snapshot that ends before the log", func(t *testing.T) {
		b := begin(t)
		if _, err := b.installs(term, entryID{snapshot - 9, term}, emptyState(t)); err == nil || !strings.Contains(err.Error(), "is behind the state") {
			t.Errorf("answered %v", err)
		}
		stays(b)
		b.from.trans.CloseStreams()
		if !b.appends(term, entryID{last, term}, last+1, entries(last+1, last+1, term)) {
			t.Error("the next entry was refused")
		}
	})
	t.Run("an older snapshot with an empty log", func(t *testing.T) {
		b := newByHand(t)
		b.mustInstall(term, entryID{snapshot, term}) // as a snapshot that only this replica restored
		b.mustInstall(term+1, entryID{snapshot - 9, term + 1})
		b.applied(snapshot - 9)
	})
	t.Run("a snapshot that contradicts the log", func(t *testing.T) {
		b := begin(t)
		b.mustInstall(term+1, entryID{snapshot + 5, term + 1})
		b.applied(snapshot + 5)
		b.lacks(snapshot + 1)
	})
}

// A replica may stop after it stored a snapshot and before it changed its log. At the next start it removes
// conflicting entries up to the end of the snapshot and keeps later ones.
func TestDropConflict(t *testing.T) {
	const term, last = 7, 10
	for _, c := range []struct {
		name        string
		snapshot    entryID
		first, upto uint64 // range of the remaining entries
	}{
		{"the log holds the snapshot's end", entryID{5, term}, 1, last},
		{"the log ends with the snapshot", entryID{last, term}, 1, last},
		{"another entry at the snapshot's end", entryID{5, term + 1}, 6, last},
		{"another entry at the snapshot's end, which is the end of the log", entryID{last, term + 1}, 0, 0},
		{"a log that ends before the snapshot", entryID{last + 5, term + 1}, 0, 0},
		{"a gap before the snapshot's end, and entries after it", entryID{15, term}, 16, 20},
		{"a gap, and entries that begin later", entryID{12, term}, 16, 20},
		{"a log without a snapshot", entryID{0, 0}, 1, last},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := logOf(t, entries(1, last, term))
			if c.first > last {
				if err := s.StoreLogs(entries(16, 20, term)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := s.dropConflict(c.snapshot); err != nil {
					t.Fatal(err)
				}
				if first, upto, err := s.ends(); err != nil || first != c.first || upto != c.upto {
					t.Errorf("%d to %d are left (%v), want %d to %d", first, upto, err, c.first, c.upto)
				}
			}
		})
	}
}

// endsBehind stops the follower between the last byte of a snapshot and its own log, which holds entries 1
// to last of the term before.
func (b *byHand) endsBehind(term, snapshot, last uint64) {
	b.t.Helper()
	if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
		b.t.Fatal("the first entries were refused")
	}
	b.g.close(1)
	files, err := raft.NewFileSnapshotStore(filepath.Join(b.g.dirs[1], RaftDir), keptSnaps, io.Discard)
	if err != nil {
		b.t.Fatal(err)
	}
	sink, err := files.Create(raft.SnapshotVersionMax, snapshot, term, b.config, 1, b.from.trans)
	if err == nil {
		_, err = sink.Write(emptyState(b.t))
	}
	if err := errors.Join(err, sink.Close()); err != nil {
		b.t.Fatal(err)
	}
}

func TestALogBehindTheSnapshotIsDroppedAtAStart(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	b := newByHand(t)
	b.endsBehind(term, snapshot, last)
	b.follower = b.g.start(1)
	b.from.trans.CloseStreams()
	for _, i := range []uint64{1, snapshot, snapshot + 1, last} {
		b.lacks(i)
	}
	if !b.appends(term, entryID{snapshot, term}, last, entries(snapshot+1, last, term)) {
		t.Error("what follows the snapshot was refused")
	}
	b.applied(last)
}

// A recovery of a lost quorum takes the remaining entries as committed, but not entries that contradict a
// snapshot. A survey does not change the log.
func TestALogBehindTheSnapshotCannotBeRecovered(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	b := newByHand(t)
	b.endsBehind(term, snapshot, last)
	o, err := openOffline(b.g.dirs[1], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	}()
	var s Survivor
	if _, err := o.replay(newMachine(), &s); err != nil || s.LastIndex != snapshot || s.LastTerm != term {
		t.Errorf("what is left ends with entry %d of term %d (%v), want %d of %d", s.LastIndex, s.LastTerm, err, snapshot, term)
	}
	if first, upto, err := o.logs.ends(); err != nil || first != 1 || upto != last {
		t.Errorf("looking left entries %d to %d (%v)", first, upto, err)
	}
}

// logOf is a log on disk.
func logOf(t *testing.T, entries []*raft.Log) *logStore {
	t.Helper()
	s, err := openLogStore(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
	return s
}

// Before Raft starts, entries after the snapshot that contradict it are removed as well.
func TestDropContradicted(t *testing.T) {
	const term, last = 7, 10
	for _, c := range []struct {
		name        string
		snapshot    entryID
		first, upto uint64
	}{
		{"the log holds the snapshot's end", entryID{5, term}, 1, last},
		{"entries of an earlier term after the snapshot", entryID{5, term + 1}, 0, 0},
		{"entries after the snapshot that its leader may have written", entryID{5, term - 1}, 6, last},
		{"a log that ends with the snapshot", entryID{last, term + 1}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := logOf(t, entries(1, last, term))
			if err := s.dropContradicted(c.snapshot); err != nil {
				t.Fatal(err)
			}
			if first, upto, err := s.ends(); err != nil || first != c.first || upto != c.upto {
				t.Errorf("%d to %d are left (%v), want %d to %d", first, upto, err, c.first, c.upto)
			}
		})
	}
}
