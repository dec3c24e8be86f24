package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// copied is a test fixture: three replicas, and a further process that runs on a copy of the data
// directory of one of them.
type copied struct {
	*group
	i, copy int // indexes, in the group, of the stopped original replica and of its copy, which has not started
	id      string
	addr    string // Raft address of the original replica
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	return copyIn(newGroup(t, 3))
}

func copyIn(g *group) *copied {
	t := g.t
	t.Helper()
	leader := g.form()
	first := g.follower(leader)
	c := &copied{group: g, i: g.index(first), copy: 3, id: first.ID(), addr: first.RaftAddr()}
	testbed.Until(t, "addresses remembered", func() bool { return len(first.remembered()) == 2 })
	g.close(c.i)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(g.dirs[c.i])); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.dirs[c.copy] = dir
	g.mu.Unlock()
	name, rest := first.cfg.Name, g.cfg
	g.cfg = func(j int, cfg *Config) {
		if rest != nil {
			rest(j, cfg)
		}
		if j == c.copy {
			cfg.Name = name
		}
	}
	return c
}

// forgetPlace removes the stored boot id, path and address from the copy's directory, as if an older version had
// written the directory.
func (c *copied) forgetPlace() {
	c.t.Helper()
	o, err := openOffline(c.dirs[c.copy], slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := errors.Join(o.logs.setOwn(keyLocation, ""), o.close()); err != nil {
		c.t.Fatal(err)
	}
}

// refused waits until the copy has halted. It checks that the original replica stays a member, and that the
// status, the mode and the events show the copy.
func (c *copied) refused() {
	t := c.t
	t.Helper()
	twin := c.snapshot()[c.copy]
	select {
	case <-twin.Halted():
	case <-time.After(patience):
		t.Fatalf("the replica on the copy must halt, but still runs; the group is: %s", c.describe())
	}
	if err := twin.Err(); !errors.Is(err, ErrCopied) || !contains(err.Error(), c.addr) || !contains(err.Error(), twin.RaftAddr()) {
		t.Errorf("the replica on the copy halted because of %v, want ErrCopied with the addresses of the original and of the copy", err)
	}
	if mode, why := twin.LocalMode(); mode != fsm.ModeDegraded || !contains(why, c.addr) {
		t.Errorf("the copy is in mode %s: %s, want degraded with the address of the original", mode, why)
	}
	first := c.snapshot()[c.i]
	testbed.Until(t, "the original replica stays a member at its address", func() bool {
		l := c.leader()
		if l == nil {
			return false
		}
		s, ok := l.find(c.id)
		return ok && string(s.Address) == c.addr && first.Err() == nil
	})
	want := []string{twin.RaftAddr()}
	testbed.Until(t, "the leader and the original replica report the copy", func() bool {
		return slices.Equal(shownCopies(first, c.id), want) && slices.Equal(shownCopies(c.waitLeader(), c.id), want)
	})
	events := func() (found []string) {
		c.waitLeader().Store().View().EventsBack(func(e *fsm.Event) bool {
			if e.Type == fsm.EventReplicaCopied {
				found = append(found, e.Message)
			}
			return true
		})
		return found
	}
	testbed.Until(t, "an event", func() bool { return len(events()) > 0 })
	if e := events(); len(e) != 1 || !contains(e[0], c.addr) || !contains(e[0], twin.RaftAddr()) {
		t.Errorf("the events about copies are %q, want one with the addresses of the original and of the copy", e)
	}
}

func shownCopies(n *Node, id string) []string {
	for _, p := range n.Status().Peers {
		if p.ID == id {
			return p.Copies
		}
	}
	return nil
}

// A replica that starts with a copy of another replica's data directory halts with an error that names the
// addresses of both. The original replica stays a member, even if the copy starts first.
func TestACopiedMachineIsStopped(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before bool // true: the copy starts before the original
	}{{"the copy starts after the original", false}, {"the original and the copy restart, and the copy starts first", true}} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCopied(t)
			order := []int{c.i, c.copy}
			if tt.before {
				order = []int{c.copy, c.i}
			}
			for _, j := range order {
				c.start(j)
			}
			c.refused()
			// The copy's directory records that it is a copy: at its next start the copy halts without asking the other
			// replicas.
			c.close(c.copy)
			c.start(c.copy)
			if err := c.snapshot()[c.copy].Err(); !errors.Is(err, ErrCopied) {
				t.Errorf("a replica on a known copy that starts again halted because of %v, want ErrCopied", err)
			}
			c.refused()
			c.close(c.copy)
			c.put("w", 1)
			first := c.snapshot()[c.i]
			testbed.Until(t, "the original replica has the newest write", func() bool { return value(first.Store().View(), "w") == 1 })
			if tt.before {
				return
			}
			testbed.Until(t, "the leader forgets the copy that has ended", func() bool {
				return shownCopies(first, c.id) == nil && shownCopies(c.waitLeader(), c.id) == nil
			})
		})
	}
}

// If all replicas restart at the same moment, and a copy starts before its original, the copy halts and the original
// stays a member.
func TestACopyAndTheWholeClusterRestart(t *testing.T) {
	c := newCopied(t)
	running := c.snapshot()
	for i := range running {
		c.close(i)
	}
	c.start(c.copy)
	for i := range running {
		c.start(i)
	}
	c.start(c.i)
	c.refused()
}

// The leader finds a copy whose directory stores no former address, even if the leader is the original.
func TestTheLeaderFindsACopy(t *testing.T) {
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprintf("original leads %t", leads), func(t *testing.T) {
			c := newCopied(t)
			c.forgetPlace()
			c.start(c.i)
			c.settled(3)
			if leads {
				c.makeLeader(c.id)
			}
			c.start(c.copy)
			c.refused()
		})
	}
}

// makeLeader transfers leadership to the replica with this id. It repeats the transfer until the replica leads,
// because a transfer may fail, or another replica may win the election.
func (g *group) makeLeader(id string) {
	g.t.Helper()
	testbed.Within(g.t, patience, "replica "+id+" leads", func() error {
		l := g.leader()
		switch {
		case l == nil:
			return errors.New("there is no leader")
		case l.ID() == id:
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return cmp.Or(l.TransferLeadership(ctx, id), errors.New("the leader has not answered as leader yet"))
	})
}

// A copy whose directory stores no former address may join gossip before the original starts. The record of the
// original in the state must not change.
func TestACopyDoesNotChangeTheRecordOfTheOriginal(t *testing.T) {
	g := newGroup(t, 3)
	// The leader waits moveGrace periods of Reconcile before it accepts a new address. Make these
	// periods long enough to start the original meanwhile.
	g.cfg = func(_ int, cfg *Config) { cfg.Timing.Reconcile = time.Second }
	c := copyIn(g)
	c.forgetPlace()
	watched := c.waitLeader().Store()
	feed, err := watched.Changes(watched.View().Info().Index)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	twin := c.start(c.copy)
	testbed.Until(t, "the copy appears in gossip", func() bool {
		return slices.ContainsFunc(c.waitLeader().gossip.alive(), func(s sighting) bool { return s.id == c.id && s.raftAddr == twin.RaftAddr() })
	})
	c.start(c.i)
	c.refused()
	c.put("last", 1)
	for last := false; !last; {
		b, err := feed.Next(timeout(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range b.Changes {
			if r := ch.NewReplica(); r != nil && r.ID == c.id && r.RaftAddr != c.addr {
				t.Errorf("the record of the original replica has the Raft address %s, want its own address", r.RaftAddr)
			}
			last = last || ch.NewWorkload() != nil && ch.Key == "last"
		}
	}
}

// If no process answers at the former address, the directory was moved, not copied. After the wait, the
// replica takes part in the cluster at its new address.
func TestAMovedDirectoryTakesPart(t *testing.T) {
	c := newCopied(t)
	n := c.start(c.copy)
	if why := n.Waiting(); !contains(why, c.addr) || !contains(why, n.RaftAddr()) {
		t.Errorf("the moved replica waits because of %q, want a reason with its old and its new address", why)
	}
	if mode, why := n.LocalMode(); mode != fsm.ModeDegraded || why != n.Waiting() {
		t.Errorf("the moved replica is in mode %s: %s, want degraded with the reason why it waits", mode, why)
	}
	testbed.Until(t, "the Raft configuration has the replica's new address", func() bool {
		s, ok := c.waitLeader().find(c.id)
		return ok && string(s.Address) == n.RaftAddr()
	})
	c.put("w", 1)
	testbed.Until(t, "the moved replica has the write", func() bool { return value(n.Store().View(), "w") == 1 })
	if n.Waiting() != "" {
		t.Errorf("the moved replica waits because of %q, want no reason", n.Waiting())
	}
	c.close(c.copy)
	if n = c.start(c.copy); n.Waiting() != "" {
		t.Errorf("after a restart the moved replica waits because of %q, want no reason", n.Waiting())
	}
}

// A replica that still waits for an answer at its former address can be closed.
func TestCloseWhileWaiting(t *testing.T) {
	c := newCopied(t)
	c.start(c.copy)
	began := time.Now()
	c.close(c.copy)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close of a waiting replica took %s, want at most 5 s", took)
	}
}

// A machine with two addresses answers at both. If only the advertised address changes, the replica is not a copy.
func TestASecondAddressIsNoCopy(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	const i = 1
	_, port, _ := splitAddr(g.raft[i])
	second := fmt.Sprintf("127.0.0.2:%d", port)
	g.cfg = func(j int, cfg *Config) {
		if j == i {
			cfg.RaftBind, cfg.RaftAdvertise = fmt.Sprintf("0.0.0.0:%d", port), second
		}
	}
	g.close(i)
	n := g.start(i)
	testbed.Until(t, "the Raft configuration has the replica's new address", func() bool {
		s, ok := g.waitLeader().find(n.ID())
		return ok && string(s.Address) == second
	})
	if n.Err() != nil {
		t.Error(n.Err())
	}
}

func TestMayBeCopy(t *testing.T) {
	was := location{Boot: "b1", Dir: "8:5", Addr: "a:1"}
	for _, tt := range []struct {
		name string
		now  location
		want bool
	}{
		{"a directory at the same address and path", was, false},
		{"a directory at the same address and path after a restart of the machine", location{"b2", "8:5", "a:1"}, false},
		{"the same directory with another address", location{"b1", "8:5", "b:1"}, false},
		{"another directory and another address, the same machine", location{"b1", "8:6", "b:1"}, true},
		{"another address on another machine", location{"b2", "8:5", "b:1"}, true},
		{"another directory at the same address", location{"b1", "8:6", "a:1"}, false},
	} {
		if got := tt.now.mayBeCopy(was); got != tt.want {
			t.Errorf("%s: whether the directory may be a copy is %t, want %t", tt.name, got, tt.want)
		}
		if tt.now.mayBeCopy(location{}) {
			t.Errorf("%s: a directory without a stored place must not count as a possible copy", tt.name)
		}
	}
}
