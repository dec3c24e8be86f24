package cluster

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/testbed"
)

func TestThreeReplicasFormWithOneConfiguration(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	leader, _ := g.put("w", 7)
	id := leader.Status().ClusterID
	for i, n := range g.snapshot() {
		testbed.Until(t, "the write is on every replica", func() bool { return value(n.Store().View(), "w") == 7 })
		if got := n.Status().ClusterID; got != id || id == "" {
			t.Errorf("replica %d has the cluster id %q and the leader has %q, want the same id and not an empty one", i, got, id)
		}
		testbed.Until(t, "every replica knows the leader", func() bool {
			leader := g.leader()
			l, ok := n.Leader()
			return leader != nil && ok && l.GRPCAddr == leader.cfg.GRPCAdvertise && l.Name == leader.cfg.Name
		})
	}
	if info := leader.Store().View().Info(); info.Incarnation < 1e12 {
		t.Errorf("the incarnation of the new cluster is %d, want the present time in Unix milliseconds", info.Incarnation)
	}
}

func TestFewerThanExpectedDoNotForm(t *testing.T) {
	g := newGroup(t, 3)
	a, b := g.start(0), g.start(1)
	testbed.Until(t, "both replicas are in gossip", func() bool { return len(a.gossip.alive()) == 1 && len(b.gossip.alive()) == 1 })
	for _, n := range []*Node{a, b} {
		if formed, err := n.members.form(); formed || err != nil {
			t.Fatalf("with two of three expected replicas, form returned formed %v and error %v; want no cluster and no error", formed, err)
		}
	}
	g.start(2)
	g.settled(3)
}

func TestScaleOutToFive(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	g.put("w", 1)
	g.start(3)
	g.start(4)
	g.settled(5)
	g.put("w", 2)
	for _, n := range g.snapshot() {
		testbed.Until(t, "the write is on all five replicas", func() bool { return value(n.Store().View(), "w") == 2 })
	}
}

// TestAJoinerHasNoVoteFirst reads every configuration in the log: a replica that joins a cluster is a
// non-voter before it becomes a voter.
func TestAJoinerHasNoVoteFirst(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	formed := leader.raft.LastIndex()
	joiner := g.start(5)
	g.settled(4)
	var was []raft.ServerSuffrage
	for i := formed + 1; i <= leader.raft.LastIndex(); i++ {
		var l raft.Log
		if err := leader.logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type != raft.LogConfiguration {
			continue
		}
		for _, s := range raft.DecodeConfiguration(l.Data).Servers {
			if string(s.ID) == joiner.ID() && (len(was) == 0 || was[len(was)-1] != s.Suffrage) {
				was = append(was, s.Suffrage)
			}
		}
	}
	if len(was) != 2 || was[0] != raft.Nonvoter || was[1] != raft.Voter {
		t.Fatalf("the new replica had these roles, one after the other: %v; want Nonvoter, Voter", was)
	}
}

func TestRestartFromDisk(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	for i := range 50 {
		g.put("w", int64(i))
	}
	ids := map[int]string{}
	for i, n := range g.snapshot() {
		ids[i] = n.ID()
	}
	for i := range 3 {
		g.close(i)
	}
	for i := range 3 {
		if n := g.start(i); n.ID() != ids[i] {
			t.Errorf("replica %d has the Raft id %s after the restart and had %s before, want the same id", i, n.ID(), ids[i])
		}
	}
	g.settled(3)
	g.atLeader("a read", func(l *Node) error {
		v, err := l.Read(timeout(t, 5*time.Second), Linearizable, 0)
		if err == nil && value(v, "w") != 49 {
			t.Fatalf("after the restart the value of workload w is %d, want 49", value(v, "w"))
		}
		return err
	})
}

// A follower that was down gets new entries at once. The Raft library doubles its pause after every failed append, so
// only a few appends may fail while the follower is down.
func TestAReturningFollowerIsServedAtOnce(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	away := g.index(g.follower(leader))
	g.put("w", 0)
	before := leader.trans.failed.Load()
	g.close(away)
	// Without the wait in transport.waitForContact, seven appends to an absent follower fail within
	// a second.
	wrote := int64(0)
	for until := time.Now().Add(time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		wrote++
		g.put("w", wrote)
	}
	n := g.start(away)
	testbed.Until(t, "the follower that was away has the entries that it missed", func() bool { return value(n.Store().View(), "w") == wrote })
	if more := leader.trans.failed.Load() - before; more > 2 {
		t.Errorf("%d appends to the follower failed while it was away, want at most 2", more)
	}
}

// A leader that waits for an absent follower can still transfer leadership, lose leadership, and stop.
func TestWaitingForAFollowerBlocksNothingElse(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	gone := g.follower(leader)
	away := g.index(gone)
	g.close(away)
	g.put("w", 1)
	g.missed(gone)
	for range 3 { // the Raft library allows only one transfer at a time
		leader = g.waitLeader()
		if err := leader.TransferLeadership(timeout(t, patience), gone.ID()); err == nil {
			t.Fatal("a transfer of leadership to a dead replica must fail, but succeeded")
		}
		testbed.Until(t, "the leader accepts proposals again", g.writable)
	}
	testbed.Until(t, "another leader", func() bool {
		leader = g.waitLeader()
		return leader.TransferLeadership(timeout(t, patience), "") == nil
	})
	next, _ := g.put("w", 2)
	g.close(g.index(next)) // this returns only when all goroutines of the replica have ended
	g.start(away)
	testbed.Until(t, "one of the two remaining replicas leads", g.writable)
}

// remove makes the leader remove the replica with this id from the cluster.
func (g *group) remove(id string) {
	g.t.Helper()
	g.atLeader("remove replica "+id, func(l *Node) error {
		if _, there := l.find(id); !there { // an earlier attempt, whose answer was lost, has removed the replica
			return nil
		}
		return l.RemoveReplica(timeout(g.t, patience), id, false)
	})
}

// missed waits until the leader has noticed that the replica gone does not answer.
func (g *group) missed(gone *Node) {
	g.t.Helper()
	testbed.Until(g.t, "the leader notices that the replica is lost", func() bool {
		l := g.leader()
		return l != nil && !l.healthy(raft.ServerID(gone.ID()))
	})
}

func (g *group) writable() bool {
	for _, n := range g.snapshot() {
		if n.IsLeader() {
			_, err := n.Propose(timeout(g.t, time.Second), put("w", 3))
			return err == nil
		}
	}
	return false
}

func TestEmptiedVoterIsReplaced(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	lost := g.follower(leader)
	i, old := g.index(lost), lost.ID()
	g.close(i)
	g.empty(i)
	g.put("w", 1)
	n := g.start(i)
	if n.ID() == old {
		t.Fatal("the replica whose disk was emptied must get a new Raft id, but kept its old one")
	}
	testbed.Until(t, "the old id is removed, and the new id is a voter", func() bool {
		found := false
		for _, p := range leader.Status().Peers {
			if p.ID == old {
				return false
			}
			found = found || p.ID == n.ID() && p.Role == RoleVoter
		}
		return found
	})
	testbed.Until(t, "the replica with the new id has the write", func() bool { return value(n.Store().View(), "w") == 1 })
}

// The leader remembers the introduction of a replica for ten periods of its reconcile loop. A replica that
// returns with an empty disk within that time must not be added under its old id again.
func TestAReplicaThatComesBackEmptyAtOnceIsReplacedOnce(t *testing.T) {
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.Reconcile = time.Second }
	leader := g.form()
	gone := g.follower(leader)
	i := g.index(gone)
	g.close(i)
	g.empty(i)
	back := g.start(i)
	testbed.Until(t, "the replica is a voter under its new id", func() bool { return back.Status().Role == RoleVoter })
	first, last, err := leader.logs.ends()
	if err != nil {
		t.Fatal(err)
	}
	joined, in := 0, false
	for index := first; index <= last; index++ {
		var l raft.Log
		if err := leader.logs.GetLog(index, &l); err != nil {
			t.Fatal(err)
		}
		if l.Type == raft.LogConfiguration {
			was := in
			in = slices.ContainsFunc(raft.DecodeConfiguration(l.Data).Servers, func(s raft.Server) bool { return string(s.ID) == gone.ID() })
			if in && !was {
				joined++
			}
		}
	}
	if joined != 1 {
		t.Errorf("the replica joined %d times under its old id, want once", joined)
	}
}

func TestAnEmptiedMachineRefusesItsOldId(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	other := g.follower(leader)
	conn, err := leader.port.connect(timeout(t, time.Second), kindRaft, "00000000-gone", other.RaftAddr())
	if err == nil {
		conn.Close()
		t.Fatal("a connection that is meant for another replica must be refused, but was accepted")
	}
	// Also send a request for a vote through Raft's transport: the vote must not be granted.
	var resp raft.RequestVoteResponse
	err = leader.trans.RequestVote("00000000-gone", raft.ServerAddress(other.RaftAddr()), &raft.RequestVoteRequest{Term: 99}, &resp)
	if err == nil || resp.Granted {
		t.Fatalf("a vote was requested from a replica that no longer exists and must not be granted, but the answer is %v, error %v", resp.Granted, err)
	}
}

func TestAReplicaOfAnotherClusterIsRefused(t *testing.T) {
	a, b := newGroup(t, 1), newGroup(t, 1)
	na, nb := a.form(), b.form()
	_, err := na.greetPeer(timeout(t, time.Second), nb.RaftAddr())
	if !errors.Is(err, ErrWrongCluster) {
		t.Fatalf("the greeting of a replica of another cluster returned %v, want ErrWrongCluster", err)
	}
	// Even if gossip connects two clusters, neither cluster adds the other's replica.
	if k, _ := na.gossip.join([]string{nb.GossipAddr()}); k != 1 {
		t.Fatalf("gossip reached %d replicas of the other cluster, want 1", k)
	}
	testbed.Until(t, "both replicas see each other in gossip", func() bool { return len(na.gossip.alive()) == 1 && len(nb.gossip.alive()) == 1 })
	testbed.Until(t, "a leader has asked the replica of the other cluster who it is", func() bool {
		na.once.mu.Lock()
		defer na.once.mu.Unlock()
		_, told := na.once.seen["stranger:"+nb.RaftAddr()]
		return told
	})
	if len(na.servers()) != 1 || len(nb.servers()) != 1 {
		t.Fatalf("the two clusters have %d and %d servers, want one server in each", len(na.servers()), len(nb.servers()))
	}
}

func TestRestartOnAnotherAddress(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	n := g.follower(leader)
	i, id, before := g.index(n), n.ID(), n.RaftAddr()
	g.close(i)
	g.mu.Lock()
	g.raft[i], g.goss[i] = "", ""
	g.mu.Unlock()
	n = g.start(i)
	if n.RaftAddr() == before || n.ID() != id {
		t.Fatalf("the restarted replica has address %s (before: %s) and id %s (before: %s), want a new address and the same id", n.RaftAddr(), before, n.ID(), id)
	}
	g.settled(3)
	g.put("w", 3)
	testbed.Until(t, "the replica has the write at its new address", func() bool { return value(n.Store().View(), "w") == 3 })

	// The library reads a server's address without a lock, so it may still send appends to the former address. They
	// must fail, although the replica at the former address answers.
	leader = g.waitLeader()
	var last raft.Log
	if err := leader.logs.GetLog(n.raft.AppliedIndex(), &last); err != nil {
		t.Fatal(err)
	}
	args := raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.ID()), Addr: []byte(leader.RaftAddr())},
		Term:      leader.raft.CurrentTerm(), PrevLogEntry: last.Index, PrevLogTerm: last.Term,
	}
	testbed.Until(t, "the leader has the replica's new address in gossip and in the Raft configuration", func() bool {
		return leader.port.gossipAddrOf(id) == n.RaftAddr() &&
			slices.ContainsFunc(leader.servers(), func(s raft.Server) bool { return string(s.Address) == n.RaftAddr() })
	})
	for _, c := range []struct {
		to    string
		fails bool
	}{{before, true}, {n.RaftAddr(), false}} {
		var resp raft.AppendEntriesResponse
		if err := leader.trans.AppendEntries(raft.ServerID(id), raft.ServerAddress(c.to), &args, &resp); (err != nil) != c.fails || !resp.Success {
			t.Errorf("an append to the follower at address %s returned success %v and error %v; whether it must return an error: %v", c.to, resp.Success, err, c.fails)
		}
		pipe, err := leader.trans.AppendEntriesPipeline(raft.ServerID(id), raft.ServerAddress(c.to))
		if (err != nil) != c.fails {
			t.Errorf("opening an append pipeline to the follower at %s returned error %v, want an error only for the follower's former address", c.to, err)
		}
		if err == nil {
			pipe.Close()
		}
	}
}

// All replicas restart at other addresses at once, for example with new DHCP leases after a power failure, and some of
// them get the former address of another replica. They must find each other before they can elect a leader.
func TestAllRestartOnOtherAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		size int
		move func(raft map[int]string)
	}{
		"a single replica":                  {1, func(raft map[int]string) { clear(raft) }},
		"three replicas":                    {3, func(raft map[int]string) { clear(raft) }},
		"replicas exchange their addresses": {3, func(raft map[int]string) { raft[0], raft[1], raft[2] = raft[1], raft[2], raft[0] }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, c.size)
			g.form()
			for i := range c.size {
				g.close(i)
			}
			g.mu.Lock()
			c.move(g.raft)
			g.mu.Unlock()
			at := map[string]string{}
			for i := range c.size {
				n := g.start(i)
				at[n.ID()] = n.RaftAddr()
			}
			testbed.Until(t, "the configuration has the new addresses", func() bool {
				n := g.leader()
				return n != nil && !slices.ContainsFunc(n.servers(), func(s raft.Server) bool { return string(s.Address) != at[string(s.ID)] })
			})
			g.settled(c.size)
		})
	}
}

func TestRemovedReplicaStopsAndStaysOut(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	n := g.follower(leader)
	i := g.index(n)
	g.remove(n.ID())
	select {
	case <-n.Halted():
	case <-time.After(patience):
		t.Fatal("the removed replica must halt, but still runs")
	}
	if !errors.Is(n.Err(), ErrRemoved) {
		t.Errorf("the removed replica halted because of %v, want ErrRemoved", n.Err())
	}
	g.close(i)
	if _, err := g.open(i); !errors.Is(err, ErrRemoved) {
		t.Errorf("Open of the removed replica returned %v, want ErrRemoved", err)
	}
	g.settled(2)
	g.empty(i)
	g.start(i)
	g.settled(3)
}

func TestRemovalThatWouldLoseTheQuorumIsRefused(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	dead := g.follower(leader)
	g.close(g.index(dead))
	g.missed(dead)
	leader = g.waitLeader()
	other := g.follower(leader)
	if err := leader.RemoveReplica(timeout(t, patience), other.ID(), false); err == nil {
		t.Fatal("RemoveReplica must refuse to remove the only other healthy voter, but removed it")
	}
}

func TestALeaderLeaves(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	i := g.index(leader)
	if err := leader.Leave(timeout(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	g.close(i)
	g.settled(2)
	now, _ := g.put("w", 1)
	if len(now.servers()) != 2 {
		t.Fatalf("after the leader left the cluster, the Raft configuration has the servers %v, want two", now.servers())
	}
}

// Depart succeeds if the replica learns of its removal from the log before the leader answers.
func TestLeaveWhileAThirdIsAway(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	leaver := g.follower(leader)
	third := g.snapshot()[3-g.index(leader)-g.index(leaver)]
	cut := func(off bool) { g.nw.isolate(third.cfg.Name, g.names(), off) }
	var err error
	testbed.Until(t, "the leader removes the replica that leaves", func() bool {
		cut(true) // cut the network before the leader learns of the removal; otherwise the replica stays
		err = leaver.Depart(timeout(t, 2*time.Second))
		cut(false)
		return err == nil || !strings.Contains(err.Error(), "stays")
	})
	testbed.Until(t, "the replica that leaves halts", func() bool { return leaver.Err() != nil })
	if !errors.Is(leaver.Err(), ErrLeft) && !errors.Is(leaver.Err(), ErrRemoved) {
		t.Errorf("the replica that leaves halted because of %v after Depart returned %v, want ErrLeft or ErrRemoved", leaver.Err(), err)
	}
}

// If the removal of a replica fails and the same leader leads again, the leader does not repeat the removal.
func TestFailedRemovalIsNotRepeated(t *testing.T) {
	g := newGroup(t, 3)
	g.cfg = func(i int, c *Config) {
		if i == 3 {
			c.BootstrapExpect = 0
		}
	}
	leader := g.form()
	stays := g.follower(leader)
	g.nw.isolate(leader.cfg.Name, g.names(), true)
	if err := leader.RemoveReplica(timeout(t, patience), stays.ID(), true); err == nil {
		t.Fatal("a leader without contact to the others must not remove a replica, but did")
	}
	testbed.Until(t, "another replica leads", func() bool { l := g.leader(); return l != nil && l != leader })
	g.nw.isolate(leader.cfg.Name, g.names(), false)
	testbed.Until(t, "the former leader leads again", func() bool {
		l := g.settled(3)
		return l == leader || l.TransferLeadership(timeout(t, patience), leader.ID()) == nil && leader.IsLeader()
	})
	g.start(3)
	g.settled(4) // in a settled group every replica has been introduced and checked
	if err := stays.Err(); err != nil {
		t.Errorf("a replica whose removal failed must stay a member, but halted because of %v", err)
	}
}

// The replica that formed the cluster joins the others again after its state has diverged.
func TestFirstReplicaDivergesAndRejoins(t *testing.T) {
	g := newGroup(t, 1)
	g.cfg = func(i int, c *Config) {
		if i == 0 {
			c.Join = nil
		} else {
			c.BootstrapExpect = 0
		}
	}
	first := g.start(0)
	g.settled(1)
	g.start(1)
	g.start(2)
	g.settled(3)
	id := first.Status().ClusterID
	testbed.Until(t, "the addresses of the other replicas are stored", func() bool { return len(first.remembered()) == 2 })
	first.halt(ErrDiverged)
	<-first.Halted()
	g.close(0)
	again := g.start(0)
	testbed.Until(t, "the replica that rejoins is a member of a cluster", func() bool { return again.Status().ClusterID != "" })
	if now := again.Status().ClusterID; now != id {
		t.Fatalf("the replica that rejoins is in cluster %s and the other replicas are in %s, want the same cluster", now, id)
	}
	g.settled(3)
}

// TestTheLeaderMakesReplicasLeave: Dismiss on the leader makes another replica, or the leader itself, leave
// the cluster.
func TestTheLeaderMakesReplicasLeave(t *testing.T) {
	for _, c := range []struct {
		name string
		who  func(*group, *Node) *Node
	}{
		{"a follower", func(g *group, leader *Node) *Node { return g.follower(leader) }},
		{"the leader itself", func(_ *group, leader *Node) *Node { return leader }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 3)
			g.also(calm)
			leader := g.form()
			n := c.who(g, leader)
			i := g.index(n)
			if err := leader.Dismiss(timeout(t, 10*time.Second), n.cfg.Name); err != nil {
				t.Fatal(err)
			}
			select {
			case <-n.Halted():
			case <-time.After(patience):
				t.Fatal("the dismissed replica must halt, but still runs")
			}
			if !errors.Is(n.Err(), ErrLeft) {
				t.Errorf("the dismissed replica halted because of %v, want ErrLeft", n.Err())
			}
			g.close(i)
			if _, err := g.open(i); !errors.Is(err, ErrRemoved) {
				t.Errorf("Open of the replica that left returned %v, want ErrRemoved", err)
			}
			g.settled(2)
			g.put("w", 1)
		})
	}
	t.Run("a dismissal that would lose the quorum is refused", func(t *testing.T) {
		g := newGroup(t, 3)
		g.also(calm)
		leader := g.form()
		dead := g.follower(leader)
		g.close(g.index(dead))
		g.missed(dead)
		leader = g.waitLeader()
		other := g.follower(leader)
		if err := leader.Dismiss(timeout(t, patience), other.ID()); err == nil || !strings.Contains(err.Error(), "stays") {
			t.Fatalf("Dismiss of a replica that the quorum needs returned %v, want a refusal that says that the replica stays", err)
		}
		g.put("w", 1)
		if err := other.Err(); err != nil {
			t.Fatalf("the replica whose dismissal was refused must keep running, but halted because of %v", err)
		}
	})
}

func TestLongDeadServerIsRemovedOnlyWithAReplacement(t *testing.T) {
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.DeadAfter = 300 * time.Millisecond }
	leader := g.form()
	dead := g.follower(leader)
	g.close(g.index(dead))
	g.missed(dead)
	time.Sleep(time.Second) // long enough for several passes of the reconcile loop; none may remove the replica
	if len(leader.servers()) != 3 {
		t.Fatalf("the dead server must stay in the configuration without a replacement, but was removed: %v", leader.servers())
	}
	g.start(7)
	g.settled(3)
	for _, s := range leader.servers() {
		if string(s.ID) == dead.ID() {
			t.Fatal("the dead server must be removed from the configuration, but is still a member")
		}
	}
}

func TestOpenErrorsNameTheSetting(t *testing.T) {
	base := func() Config {
		return Config{Name: "a", DataDir: t.TempDir(), RaftBind: "127.0.0.1:0", GossipBind: "127.0.0.1:0", BootstrapExpect: 1, Timing: fastTiming()}
	}
	busy, err := Open(timeout(t, patience), base())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string
		is     error
	}{
		"neither Join nor BootstrapExpect is set":       {func(c *Config) { c.BootstrapExpect = 0 }, []string{"SCHEDULER_BOOTSTRAP_EXPECT", "SCHEDULER_JOIN", "-insecure"}, ErrNoWayIn},
		"the Raft port is in use":                       {func(c *Config) { c.RaftBind = busy.RaftAddr() }, []string{"SCHEDULER_RAFT_ADDR", busy.RaftAddr()}, nil},
		"the gossip port is in use":                     {func(c *Config) { c.GossipBind = busy.GossipAddr() }, []string{"SCHEDULER_GOSSIP_ADDR", busy.GossipAddr()}, nil},
		"the data directory is in use":                  {func(c *Config) { c.DataDir = busy.cfg.DataDir }, []string{"SCHEDULER_DATA_DIR", busy.cfg.DataDir}, ErrInUse},
		"the data directory is a file":                  {func(c *Config) { c.DataDir = file }, []string{"SCHEDULER_DATA_DIR", file}, nil},
		"the replica's name has a blank":                {func(c *Config) { c.Name = "a b" }, []string{"SCHEDULER_NAME", `"a b"`}, nil},
		"an address in Join has no port":                {func(c *Config) { c.Join = []string{"nohost"} }, []string{"SCHEDULER_JOIN", "nohost"}, nil},
		"Join has both a join token and an address":     {func(c *Config) { c.Join = []string{"persys-join-1.secret", "s1:8088"} }, []string{"SCHEDULER_JOIN", "token"}, nil},
		"BootstrapExpect is above its maximum":          {func(c *Config) { c.BootstrapExpect = 99 }, []string{"SCHEDULER_BOOTSTRAP_EXPECT", "99"}, nil},
		"the leader lease is longer than the heartbeat": {func(c *Config) { c.Timing.LeaderLease = time.Second }, []string{"LeaderLease"}, nil},
		"the advertised address is a wildcard":          {func(c *Config) { c.RaftAdvertise = "0.0.0.0:1" }, []string{"SCHEDULER_ADVERTISE_IP", "0.0.0.0:1"}, nil},
		"the heartbeat is below its minimum":            {func(c *Config) { c.Timing.Heartbeat = time.Millisecond }, []string{"SCHEDULER_RAFT_HEARTBEAT", "1ms"}, nil},
		"the cluster id has a blank":                    {func(c *Config) { c.ClusterID = "a b" }, []string{"SCHEDULER_CLUSTER_ID", `"a b"`}, nil},
		"the gossip key has a wrong length":             {func(c *Config) { c.GossipKey = []byte("short") }, []string{"gossip key", "5 bytes"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := base()
			c.change(&cfg)
			n, err := Open(timeout(t, patience), cfg)
			if err == nil {
				n.Close()
				t.Fatal("Open must refuse this configuration, but accepted it")
			}
			for _, w := range c.want {
				if !contains(err.Error(), w) {
					t.Errorf("Open returned error %q, want an error that contains %q", err, w)
				}
			}
			if contains(err.Error(), "secret") {
				t.Errorf("the error of Open must not contain the secret of the join token, but is %q", err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("Open returned error %v, want an error that wraps %v", err, c.is)
			}
		})
	}
}

// If gossip shows a replica that does not answer on its Raft port, that replica may belong to a cluster. So
// the other replicas form no second cluster, and log the reason repeatedly.
func TestNoClusterBesideAnUnreachableReplica(t *testing.T) {
	g := newGroup(t, 1)
	first := g.form()
	g.nw.isolate("s1", []string{"s0"}, true) // this cuts the Raft port, not gossip
	var log testbed.Output
	g.cfg = func(_ int, c *Config) {
		c.Timing.Reconcile = 10 * time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}
	second := g.start(1)
	testbed.Until(t, "the log names the replica that does not answer", func() bool {
		_, still, _ := strings.Cut(log.String(), "still looking for a cluster")
		return strings.Contains(still, "s0 is in gossip, but does not answer at "+first.RaftAddr())
	})
	if second.knows() {
		t.Fatal("the second replica must not form a cluster, but did")
	}
	g.nw.isolate("s1", []string{"s0"}, false)
	g.settled(2)
}

func TestWrongClusterIDInTheConfiguration(t *testing.T) {
	g := newGroup(t, 1)
	g.form()
	g.close(0)
	g.cfg = func(_ int, c *Config) { c.ClusterID = "other" }
	if _, err := g.open(0); !errors.Is(err, ErrWrongCluster) || !contains(err.Error(), "other") {
		t.Fatalf("Open with another cluster id than that of the data returned %v, want ErrWrongCluster with the configured id", err)
	}
}

// The shard of a cluster never changes. A replica that is configured for another shard cannot start with its
// data, and cannot join.
func TestWrongShardInTheConfiguration(t *testing.T) {
	g := newGroup(t, 1)
	shard := "east"
	g.cfg = func(i int, c *Config) {
		if c.Shard = shard; i > 0 {
			c.BootstrapExpect = 0 // with an expected size of 0 the replica joins instead of forming a cluster
		}
	}
	n := g.form()
	shard = "west"
	g.start(1)
	testbed.Until(t, "the replica sees the replica of the other shard in gossip", func() bool {
		n.once.mu.Lock()
		defer n.once.mu.Unlock()
		for key := range n.once.seen {
			if strings.HasPrefix(key, "shard:") {
				return true
			}
		}
		return false
	})
	if peers := n.Status().Peers; len(peers) != 1 {
		t.Errorf("a replica of shard west must not join a cluster of shard east, but the cluster has the peers %+v", peers)
	}
	g.close(1)
	g.close(0)
	again, err := g.open(0)
	if err == nil {
		select {
		case <-again.Halted():
			err = again.Err()
		case <-time.After(patience):
		}
	}
	if !errors.Is(err, ErrWrongCluster) || !contains(err.Error(), `shard "east"`) || !contains(err.Error(), `"west"`) {
		t.Fatalf("the replica of another shard ended with %v, want ErrWrongCluster with both shards", err)
	}
}

// If the data has a snapshot, Open finds the wrong shard before Raft starts.
func TestWrongShardInASnapshot(t *testing.T) {
	g := newGroup(t, 1)
	shard := "east"
	g.cfg = func(_ int, c *Config) { c.Shard = shard }
	if err := g.form().raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	g.close(0)
	shard = "west"
	if _, err := g.open(0); !errors.Is(err, ErrWrongCluster) || !contains(err.Error(), `shard "east"`) || !contains(err.Error(), `"west"`) {
		t.Fatalf("Open with another shard than that of the snapshot returned %v, want ErrWrongCluster with both shards", err)
	}
}

func TestASingleReplicaFormsTheConfiguredCluster(t *testing.T) {
	g := newGroup(t, 0)
	g.cfg = func(_ int, c *Config) { c.AllowSolo, c.ClusterID, c.Shard = true, "lab", "east" }
	g.start(0)
	n := g.settled(1)
	if info := n.Store().View().Info(); info.ClusterID != "lab" || info.Shard != "east" {
		t.Fatalf("the new cluster has id %q and shard %q, want lab and east", info.ClusterID, info.Shard)
	}
}

// A configured cluster id does not mean that a replica knows a cluster: three replicas with the same
// configured id form a new cluster with that id.
func TestThreeFormWithAGivenClusterID(t *testing.T) {
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.ClusterID = "lab" }
	n := g.form()
	if id := n.Store().View().Info().ClusterID; id != "lab" {
		t.Fatalf("the replicas formed cluster %q, want lab", id)
	}
}
