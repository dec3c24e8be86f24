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

// byHand is a test fixture of two members: the test itself plays the leader and writes every append, and the only
// follower is a real replica.
type byHand struct {
	t        *testing.T
	g        *group
	from     *Node
	follower *Node
	config   raft.Configuration
}

func newByHand(t *testing.T) *byHand {
	g := newGroup(t, 3) // start only two of three expected replicas, so that they form no cluster
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

// entries returns the log entries with the indexes first to last, all in the same term.
func entries(first, last, term uint64) (out []*raft.Log) {
	for i := first; i <= last; i++ {
		out = append(out, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return out
}

// appends sends the follower an append: the entries logs, which follow entry prev, and the leader's commit
// index. It reports whether the follower accepted the append.
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
		b.t.Fatalf("the follower is in term %d, the append in term %d, want the same term", resp.Term, term)
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

// emptyState returns the content of a snapshot of an empty state.
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
		b.t.Fatalf("the snapshot that ends with entry %d must be accepted, but the answer is %+v, error %v", last.index, resp, err)
	}
}

// mustInstallWith installs the snapshot that ends with entry last, and sends the entries right after it.
func (b *byHand) mustInstallWith(last entryID, next []*raft.Log) {
	b.t.Helper()
	b.mustInstall(last.term, last)
	if !b.appends(last.term, last, 0, next) {
		b.t.Fatal("the follower must accept the entries right after the snapshot, but refused them")
	}
}

func (b *byHand) holds(index, term uint64) {
	b.t.Helper()
	var l raft.Log
	if err := b.follower.logs.GetLog(index, &l); err != nil || l.Term != term {
		b.t.Errorf("entry %d in the follower's log has term %d (error %v), want the term of the leader's entry, %d", index, l.Term, err, term)
	}
}

// lacks checks that the follower's log has no entry at this index.
func (b *byHand) lacks(index uint64) {
	b.t.Helper()
	var l raft.Log
	if err := b.follower.logs.GetLog(index, &l); !errors.Is(err, raft.ErrLogNotFound) {
		b.t.Errorf("the follower must not have entry %d of term %d, which was never committed (error %v)", index, l.Term, err)
	}
}

func (b *byHand) applied(index uint64) {
	b.t.Helper()
	testbed.Until(b.t, fmt.Sprintf("the follower has applied entry %d", index), func() bool { return b.follower.raft.AppliedIndex() == index })
}

// A leader that missed an answer repeats its append, and the follower has installed a snapshot meanwhile. The follower
// must accept the entries that continue the snapshot.
func TestAnAppendThatContinuesTheSnapshotIsAccepted(t *testing.T) {
	// Use a term so high that the follower does not reach it by its own elections.
	const term, snapshot, last = 1000, 50, 61
	for _, c := range []struct {
		name   string
		before func(b *byHand)
	}{
		{"the leader repeats its append", func(b *byHand) {
			b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, last, term))
		}},
		{"the leader repeats its append after a restart of the follower", func(b *byHand) {
			b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, last, term))
			b.g.close(1)
			b.follower = b.g.start(1)
			b.from.trans.CloseStreams() // this closes the streams that were opened in the previous term
		}},
		{"the follower's log has uncommitted entries before and after the snapshot's end", func(b *byHand) {
			if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
				t.Fatal("the follower must accept the leader's first entries, but refused them")
			}
			b.mustInstall(term, entryID{snapshot, term})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newByHand(t)
			c.before(b)
			if !b.appends(term, entryID{snapshot, term}, last, entries(snapshot+1, last, term)) {
				t.Fatal("the follower must accept entries that continue its snapshot, but refused them, so the leader would send the snapshot again without end")
			}
			b.holds(snapshot+1, term)
			b.holds(last, term)
			b.lacks(1)
			b.lacks(snapshot)
			b.applied(last)
		})
	}
}

// An append that does not continue the snapshot is compared with the log as usual, and refused if it does not
// match.
func TestAnAppendThatContinuesNoSnapshotIsRefused(t *testing.T) {
	const term, snapshot = 1000, 50
	b := newByHand(t)
	next := entries(snapshot+1, snapshot+3, term)
	b.mustInstallWith(entryID{snapshot, term}, next)
	for _, prev := range []entryID{{snapshot - 1, term}, {snapshot + 9, term}} {
		if b.appends(term, prev, 0, next) {
			t.Errorf("an append that continues entry %d of term %d must be refused, but was accepted", prev.index, prev.term)
		}
	}
	// If a snapshot cannot be restored, no append may continue it: the replica still has to apply the
	// entries up to the snapshot's end.
	if _, err := b.installs(term, entryID{snapshot + 20, term}, []byte("nonsense")); err == nil {
		t.Fatal("the follower has installed a broken snapshot, want an error")
	}
	if b.appends(term, entryID{snapshot + 20, term}, 0, entries(snapshot+21, snapshot+22, term)) {
		t.Error("an append that continues a snapshot that was not restored must be refused, but was accepted")
	}
	if err := b.follower.Err(); err != nil {
		t.Error(err)
	}
}

// A replica stops if the log of the leader contradicts its snapshot. That snapshot is a backup that only this
// replica restored, and it was never committed.
func TestAContradictedSnapshotStopsTheReplica(t *testing.T) {
	const term, snapshot = 1000, 50
	b := newByHand(t)
	b.mustInstallWith(entryID{snapshot, term}, entries(snapshot+1, snapshot+3, term))
	if !b.appends(term+1, entryID{snapshot, term}, 0, nil) {
		t.Fatal("the follower must accept an append of a new leader, but refused it")
	}
	id, addr := b.to()
	other := func(by uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: b.header(), Term: by, PrevLogEntry: snapshot, PrevLogTerm: term - 1, Entries: entries(snapshot+1, snapshot+1, by)}
	}
	var resp raft.AppendEntriesResponse
	if err := b.from.trans.AppendEntries(id, addr, other(term), &resp); err != nil || resp.Success {
		t.Errorf("an append of a former leader must be refused, but the answer is %+v, error %v", resp, err)
	}
	if err := b.follower.Err(); err != nil {
		t.Errorf("an append of a former leader made the follower halt because of %v, want it running", err)
	}
	// The call may succeed or fail: the replica may have halted already.
	_ = b.from.trans.AppendEntries(id, addr, other(term+1), &resp)
	testbed.Until(t, "the replica halts", func() bool { return errors.Is(b.follower.Err(), ErrDiverged) })
}

// The follower holds uncommitted entries after the last entry of an append. The leader may have other entries at these
// indexes, so the follower must not apply its own.
func TestOnlyEntriesThatAnAppendProvesAreApplied(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	b := newByHand(t)
	if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
		t.Fatal("the follower must accept the leader's first entries, but refused them")
	}
	b.mustInstall(term, entryID{snapshot, term})
	if !b.appends(term, entryID{snapshot, term}, snapshot+1, nil) {
		t.Fatal("the follower must accept an append without entries, but refused it")
	}
	if got := b.follower.raft.CommitIndex(); got > snapshot {
		t.Errorf("the follower has applied entry %d of a former leader, which is not committed", got)
	}
	if !b.appends(term, entryID{snapshot, term}, snapshot+1, entries(snapshot+1, snapshot+1, term)) {
		t.Fatal("the follower must accept the entry after the snapshot, but refused it")
	}
	b.applied(snapshot + 1)
	b.holds(snapshot+1, term)
}

// A snapshot that the state already contains is not installed, and changes nothing.
func TestASnapshotThatTheStateContainsIsNotInstalled(t *testing.T) {
	const term, snapshot, last = 1000, 50, 61
	next := entries(snapshot+1, last, term)
	begin := func(t *testing.T) *byHand {
		b := newByHand(t)
		b.mustInstallWith(entryID{snapshot, term}, next)
		if !b.appends(term, entryID{last, term}, last, nil) {
			t.Fatal("the follower must accept an append at the end of its log, but refused it")
		}
		b.applied(last)
		return b
	}
	stays := func(b *byHand) {
		b.t.Helper()
		if got := b.follower.raft.AppliedIndex(); got != last {
			b.t.Errorf("the follower has applied entry %d, want entry %d as before the snapshot", got, last)
		}
		if err := b.follower.Err(); err != nil {
			b.t.Error(err)
		}
	}
	t.Run("a repeated snapshot is not installed again", func(t *testing.T) {
		b := begin(t)
		for range 2 {
			b.mustInstall(term, entryID{snapshot, term})
			stays(b)
		}
		if !b.appends(term, entryID{snapshot, term}, last, next) {
			t.Error("the follower must accept entries after the snapshot, but refused them, so the leader would send the snapshot again without end")
		}
		stays(b)
	})
	t.Run("a snapshot that ends within the log is not installed", func(t *testing.T) {
		b := begin(t)
		b.mustInstall(term, entryID{snapshot + 5, term})
		stays(b)
		if !b.appends(term, entryID{snapshot + 5, term}, last, next[5:]) {
			t.Error("the follower must accept entries after the snapshot, but refused them")
		}
	})
	t.Run("a snapshot of a former leader is refused", func(t *testing.T) {
		b := begin(t)
		resp, err := b.installs(term-1, entryID{snapshot, term}, emptyState(t))
		if err != nil || resp.Success || resp.Term != term {
			t.Errorf("the snapshot of a former leader was answered with %+v, error %v; want a refusal with the present term", resp, err)
		}
		stays(b)
	})
	t.Run("a snapshot of a new leader is answered with its term", func(t *testing.T) {
		b := begin(t)
		resp, err := b.installs(term+1, entryID{snapshot, term}, emptyState(t))
		if err != nil || !resp.Success || resp.Term != term+1 {
			t.Errorf("the snapshot of a new leader was answered with %+v, error %v; want success with its term", resp, err)
		}
		stays(b)
	})
	t.Run("a snapshot that ends before the log begins is refused", func(t *testing.T) {
		b := begin(t)
		if _, err := b.installs(term, entryID{snapshot - 9, term}, emptyState(t)); err == nil || !strings.Contains(err.Error(), "is behind the state") {
			t.Errorf("the older snapshot was answered with error %v, want that it is behind the state", err)
		}
		stays(b)
		b.from.trans.CloseStreams()
		if !b.appends(term, entryID{last, term}, last+1, entries(last+1, last+1, term)) {
			t.Error("the follower must accept the next entry after the snapshot, but refused it")
		}
	})
	t.Run("an older snapshot is installed over a state that only this replica restored, with an empty log", func(t *testing.T) {
		b := newByHand(t)
		// Install a snapshot as if a backup had been restored on this replica only.
		b.mustInstall(term, entryID{snapshot, term})
		b.mustInstall(term+1, entryID{snapshot - 9, term + 1})
		b.applied(snapshot - 9)
	})
	t.Run("a snapshot that contradicts the log is installed, and the log's entries are removed", func(t *testing.T) {
		b := begin(t)
		b.mustInstall(term+1, entryID{snapshot + 5, term + 1})
		b.applied(snapshot + 5)
		b.lacks(snapshot + 1)
	})
}

// A replica may stop after it has stored a snapshot and before it has changed its log. At the next start it
// removes the conflicting entries up to the end of the snapshot and keeps later entries.
func TestConflictingEntriesAreRemovedAtTheStart(t *testing.T) {
	const term, last = 7, 10
	for _, c := range []struct {
		name        string
		snapshot    entryID
		first, upto uint64 // first and last log entry that must remain
	}{
		{"the log has the last entry of the snapshot", entryID{5, term}, 1, last},
		{"the log ends with the snapshot", entryID{last, term}, 1, last},
		{"the log has another entry at the snapshot's end", entryID{5, term + 1}, 6, last},
		{"the log has another entry at the snapshot's end and ends there", entryID{last, term + 1}, 0, 0},
		{"the log ends before the snapshot's end", entryID{last + 5, term + 1}, 0, 0},
		{"the log has a gap before the snapshot's end, and entries after the snapshot", entryID{15, term}, 16, 20},
		{"the log has a gap and continues after it", entryID{12, term}, 16, 20},
		{"there is a log and no snapshot", entryID{0, 0}, 1, last},
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
					t.Errorf("after the start the log has the entries %d to %d (error %v), want %d to %d", first, upto, err, c.first, c.upto)
				}
			}
		})
	}
}

// endsBehind stops the follower after it has stored a snapshot and before it has removed the conflicting log entries.
// The log holds entries 1 to last of the previous term.
func (b *byHand) endsBehind(term, snapshot, last uint64) {
	b.t.Helper()
	if !b.appends(term-1, entryID{}, 0, entries(1, last, term-1)) {
		b.t.Fatal("the follower must accept the leader's first entries, but refused them")
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
		t.Error("the follower must accept entries after the snapshot, but refused them")
	}
	b.applied(last)
}

// A recovery after a lost quorum treats the entries of the log as committed, but not entries that contradict
// a snapshot. A survey does not change the log.
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
		t.Errorf("Survey says that the log ends with entry %d of term %d (error %v), want entry %d of term %d", s.LastIndex, s.LastTerm, err, snapshot, term)
	}
	if first, upto, err := o.logs.ends(); err != nil || first != 1 || upto != last {
		t.Errorf("after Survey the log has entries %d to %d (error %v), want all entries from 1", first, upto, err)
	}
}

// logOf creates a log with these entries on disk.
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

// Before Raft starts, a replica also removes entries after the snapshot that contradict it.
func TestContradictingEntriesAreRemovedBeforeRaftStarts(t *testing.T) {
	const term, last = 7, 10
	for _, c := range []struct {
		name        string
		snapshot    entryID
		first, upto uint64
	}{
		{"the log has the last entry of the snapshot", entryID{5, term}, 1, last},
		{"the entries after the snapshot have an earlier term than the snapshot", entryID{5, term + 1}, 0, 0},
		{"the leader of the snapshot may have written the entries after the snapshot", entryID{5, term - 1}, 6, last},
		{"the log has another entry at the snapshot's end and ends there", entryID{last, term + 1}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := logOf(t, entries(1, last, term))
			if err := s.dropContradicted(c.snapshot); err != nil {
				t.Fatal(err)
			}
			if first, upto, err := s.ends(); err != nil || first != c.first || upto != c.upto {
				t.Errorf("before Raft starts the log has the entries %d to %d (error %v), want %d to %d", first, upto, err, c.first, c.upto)
			}
		})
	}
}
