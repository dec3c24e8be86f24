package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// disk is the simulated log disk of a replica. It can hang or be slow.
type disk struct {
	mu   sync.Mutex
	gate chan struct{} // closed when a hanging disk works again; nil while the disk works
	slow time.Duration // delay of each write
}

func (d *disk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate == nil {
		d.gate = make(chan struct{})
	}
}

func (d *disk) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		close(d.gate)
		d.gate = nil
	}
}

func (d *disk) set(slow time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = slow
}

func (d *disk) write() {
	d.mu.Lock()
	gate, slow := d.gate, d.slow
	d.mu.Unlock()
	if slow > 0 {
		<-time.After(slow)
	}
	if gate != nil {
		<-gate
	}
}

type hanging struct {
	storage
	d *disk
}

func (h hanging) StoreLogs(l []*raft.Log) error {
	h.d.write()
	return h.storage.StoreLogs(l)
}

func (h hanging) Set(k, v []byte) error {
	h.d.write()
	return h.storage.Set(k, v)
}

func (h hanging) DeleteRange(lo, hi uint64) error {
	h.d.write()
	return h.storage.DeleteRange(lo, hi)
}

// onDisks puts the data of the first replicas on disks that the test can make slow or hang. limit becomes
// Timing.DiskStall of these replicas.
func (g *group) onDisks(limit time.Duration) []*disk {
	disks := make([]*disk, 3)
	for i := range disks {
		disks[i] = &disk{}
	}
	g.hooks = func(i int, h *hooks) {
		h.storage = func(s storage) storage { return hanging{s, disks[i]} }
	}
	g.cfg = func(_ int, c *Config) { c.Timing.DiskStall = limit }
	g.t.Cleanup(func() { // before the replicas are closed, let the disks work again
		for _, d := range disks {
			d.work()
		}
	})
	return disks
}

const stallLimit = 400 * time.Millisecond

func TestALeaderWhoseDiskHangsIsReplaced(t *testing.T) {
	g := newGroup(t, 3)
	disks := g.onDisks(stallLimit)
	g.also(calm)
	g.form()
	old, _ := g.put("before", 1)
	i := g.index(old)
	disks[i].hang()
	began := time.Now()
	answer := make(chan error, 1)
	go func() {
		_, err := old.Propose(timeout(t, patience), put("held", 1))
		answer <- err
	}()
	var next *Node
	testbed.Until(t, "another replica leads and commits a write", func() bool {
		next = g.leader()
		if next == nil || next == old {
			return false
		}
		_, err := next.Propose(timeout(t, time.Second), put("after", 1))
		return err == nil
	})
	t.Logf("the next write was committed %s after the disk hung, want at most %s", time.Since(began), stallLimit)
	select {
	case err := <-answer:
		if !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("the write on the hanging disk ended with the error %v, want an unknown outcome", err)
		}
	case <-time.After(patience):
		t.Fatal("the write on the hanging disk must get an answer, but got none")
	}
	if old.IsLeader() {
		t.Error("the replica with the hanging disk must give up leadership, but still leads")
	}
	testbed.Until(t, "the replica with the hanging disk names the new leader", func() bool {
		l, ok := old.Leader()
		return ok && l.ID == next.ID()
	})
	if mode, why := old.LocalMode(); mode != fsm.ModeDegraded || !contains(why, "hangs") || !contains(why, logFile) {
		t.Errorf("the mode of the replica with the hanging disk is %s: %q, want degraded with the name of the log file", mode, why)
	}
	if _, err := old.Propose(timeout(t, time.Second), put("refused", 1)); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a further write on the replica with the hanging disk returned %v, want ErrNotLeader", err)
	}
	if err := old.TransferLeadership(timeout(t, time.Second), ""); !errors.Is(err, ErrNotLeader) {
		t.Errorf("TransferLeadership on the replica with the hanging disk returned %v, want ErrNotLeader", err)
	}
	disks[i].work()
	testbed.Until(t, "the replica follows the new leader and has every write", func() bool {
		mode, _ := old.LocalMode()
		return mode == fsm.ModeNormal && !old.IsLeader() && value(old.Store().View(), "after") == 1
	})
	if err := old.Err(); err != nil {
		t.Error(err)
	}
}

// keepsLeader checks that leader and term are the same before and after a call of attempt. It calls attempt several
// times and fails only if leader or term change in every call, because on a busy machine an election may happen at any
// time.
func (g *group) keepsLeader(attempt func(leader *Node)) {
	g.t.Helper()
	const attempts = 5
	for range attempts {
		leader := g.waitLeader()
		term := leader.raft.CurrentTerm()
		attempt(leader)
		now := leader.raft.CurrentTerm()
		if now == term && leader.IsLeader() {
			return
		}
		g.t.Logf("the Raft term rose from %d to %d", term, now)
	}
	g.t.Errorf("the leader and its Raft term must stay the same, but changed in each of %d attempts", attempts)
}

func TestAFollowerWhoseDiskHangsChangesNoLeader(t *testing.T) {
	g := newGroup(t, 3)
	disks := g.onDisks(stallLimit)
	g.also(calm)
	g.form()
	var v int64
	g.keepsLeader(func(leader *Node) {
		follower := g.follower(leader)
		d := disks[g.index(follower)]
		d.hang()
		v++
		g.put("w", v)
		testbed.Until(t, "the follower's disk hangs for longer than an election takes, and the follower reports that", func() bool {
			mode, why := follower.LocalMode()
			age, _ := follower.DiskPending()
			return mode == fsm.ModeDegraded && contains(why, "hangs") && age > 2*follower.cfg.Timing.Heartbeat
		})
		v++
		g.put("w", v)
		d.work()
		testbed.Until(t, "the follower's disk works again, and the follower has every write", func() bool {
			mode, _ := follower.LocalMode()
			return mode == fsm.ModeNormal && value(follower.Store().View(), "w") == v
		})
	})
}

// A disk that hangs for less than the limit causes no election.
func TestAShortStallChangesNoLeader(t *testing.T) {
	g := newGroup(t, 3)
	disks := g.onDisks(patience)
	g.also(calm)
	g.form()
	g.keepsLeader(func(leader *Node) {
		d := disks[g.index(leader)]
		d.hang()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = leader.Propose(timeout(t, patience), put("w", 1))
		}()
		testbed.Until(t, "a write takes longer than an election", func() bool {
			age, _ := leader.DiskPending()
			return age > 2*leader.cfg.Timing.Heartbeat || !leader.IsLeader()
		})
		d.work()
		<-done
	})
}

// The leader of a cluster of one replica stops acting as leader while its disk hangs. It begins a new leadership term
// when the disk works again.
func TestASingleReplicaLeadsAgainAfterADiskHang(t *testing.T) {
	g := newGroup(t, 1)
	disks := g.onDisks(stallLimit)
	n := g.form()
	terms := make(chan LeadershipTerm, 8)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = n.Lead(ctx, func(ctx context.Context, s LeadershipTerm) error {
			terms <- s
			<-ctx.Done()
			return nil
		})
	}()
	defer func() { cancel(); <-ended }()
	<-terms
	disks[0].hang()
	if _, err := n.Propose(timeout(t, patience), put("held", 1)); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("the write on the hanging disk returned %v, want ErrUnknownOutcome", err)
	}
	testbed.Until(t, "the replica with the hanging disk does not act as leader", func() bool { _, known := n.Leader(); return !known && !n.IsLeader() })
	disks[0].work()
	<-terms
	if v := value(n.Store().View(), "held"); v != 1 {
		t.Errorf("workload w has the value %d after the disk works again, want the 1 of the write that hung", v)
	}
	g.put("w", 2)
}

func TestCloseWithAHangingDiskEndsSoon(t *testing.T) {
	for _, c := range []struct {
		name  string
		known bool // wait until the replica has noticed the hanging disk, then close it
	}{{"the replica has noticed the hanging disk before it is closed", true}, {"the replica has not noticed the hanging disk when it is closed", false}} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 3)
			disks := g.onDisks(time.Second)
			leader := g.form()
			i := g.index(leader)
			disks[i].hang()
			_, _ = leader.Propose(timeout(t, 50*time.Millisecond), put("w", 1))
			if c.known {
				testbed.Until(t, "the replica notices that its disk hangs", func() bool { _, stalled := leader.DiskPending(); return stalled })
			}
			g.mu.Lock()
			delete(g.nodes, i)
			g.mu.Unlock()
			began := time.Now()
			err := leader.Close()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("Close of a replica with a hanging disk took %s, want at most 5 s", took)
			}
			if !errors.Is(err, errStalled) {
				t.Errorf("Close of a replica with a hanging disk returned %v, want errStalled", err)
			}
			disks[i].work()
		})
	}
}

// All three replicas have slow disks. After the leader has died, the other two elect a leader, because a candidate
// waits long enough for a vote from a slow disk. After a restart of all three, they elect a leader although they have
// not measured their disks yet.
func TestSlowDisksElectALeader(t *testing.T) {
	g := newGroup(t, 3)
	disks := g.onDisks(5 * time.Second)
	g.also(func(c *Config) { c.Timing.NoFastFailover = true })
	leader := g.form()
	const write = 160 * time.Millisecond // a disk with 12 fsyncs a second; each write of the log file makes two
	for _, d := range disks {
		d.set(write)
	}
	for k := range 2 * usualWeight {
		_, _ = leader.Propose(timeout(t, patience), put("w", int64(k)))
	}
	testbed.Until(t, "the replicas adapted their election timeouts to the disk", func() bool {
		for _, n := range g.snapshot() {
			if n.raft.ReloadableConfig().ElectionTimeout < 5*write {
				return false
			}
		}
		return true
	})
	// An election must take at most 10 s, because the election timeout follows the latency of the disks.
	// With a fixed timeout elections took up to a minute. A busy machine can delay one election, so the test
	// makes several attempts.
	elects := func(what string, fault, mend func()) {
		t.Helper()
		const attempts, most = 3, 10 * time.Second
		for range attempts {
			term := g.waitLeader().raft.CurrentTerm()
			began := time.Now()
			fault()
			next, _ := g.put("w", 1)
			took := time.Since(began)
			t.Logf("%s: a leader was elected after %s, %d Raft terms later", what, took, next.raft.CurrentTerm()-term)
			if took <= most {
				return
			}
			mend()
		}
		t.Errorf("%s: no leader was elected in any of %d elections within %s", what, attempts, most)
	}
	var dead int
	elects("after the leader has died", func() {
		dead = g.index(g.waitLeader())
		g.close(dead)
	}, func() {
		g.start(dead)
		g.settled(3)
	})
	elects("all restart", func() {
		for i := range g.snapshot() {
			g.close(i)
		}
		for i := range disks {
			g.start(i)
		}
	}, func() {})
	for _, d := range disks {
		d.set(0)
	}
}

// Each write of the log file makes two fsyncs, so a write takes twice the delay of the disk.
func TestASlowLeaderHandsOverToAFasterReplica(t *testing.T) {
	for _, c := range []struct {
		name  string
		write time.Duration
	}{{"4 fsyncs a second", 500 * time.Millisecond}, {"23 fsyncs a second", 87 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 3)
			disks := g.onDisks(5 * time.Second)
			const cooldown = time.Second
			g.also(func(c *Config) { calm(c); c.Timing.SlowCooldown = cooldown })
			old := g.form()
			slow := disks[g.index(old)]
			slow.set(c.write)
			var next *Node
			var term uint64
			var since time.Time
			testbed.Until(t, "the faster replica leads, and stays leader for longer than the cool-down", func() bool {
				l, _ := g.put("w", 1)
				if now := l.raft.CurrentTerm(); l != next || now != term {
					next, term, since = l, now, time.Now()
				}
				return l != old && time.Since(since) > 2*cooldown
			})
			slow.set(0)
		})
	}
}

// A new leader with a slow disk keeps leadership for Timing.SlowCooldown.
func TestASlowLeaderStaysForTheCooldown(t *testing.T) {
	const cooldown = 3 * time.Second
	g := newGroup(t, 3)
	disks := g.onDisks(5 * time.Second)
	g.also(func(c *Config) { calm(c); c.Timing.SlowCooldown = cooldown })
	leader := g.form()
	slow := g.follower(leader)
	disk := disks[g.index(slow)]
	disk.set(87 * time.Millisecond)
	testbed.Until(t, "the follower has measured that its disk is slow", func() bool {
		g.put("w", 1)
		return slow.logs.watch.typical() > slowWrite
	})
	// A busy machine may end a leadership term early, so the test makes several attempts.
	const attempts = 3
	stayed := false
	for k := 0; k < attempts && !stayed; k++ {
		began := time.Now()
		g.makeLeader(slow.ID())
		testbed.Until(t, "a faster replica leads", func() bool {
			l, _ := g.put("w", 2)
			return l != slow
		})
		took := time.Since(began)
		t.Logf("the leadership term of the slow leader ended after %s", took)
		stayed = took >= cooldown
	}
	if !stayed {
		t.Errorf("a slow leader must keep leadership for the cool-down of %s, but transferred it earlier, %d times", cooldown, attempts)
	}
	disk.set(0)
}

func TestLeadershipGoesToAFasterVoter(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		own    time.Duration
		others map[string]time.Duration
		want   string
	}{
		{"a leader with a fast disk keeps leadership", 5 * ms, map[string]time.Duration{"b": ms / 10}, ""},
		{"a leader with a slow disk chooses the voter with the fastest disk", 100 * ms, map[string]time.Duration{"b": 2 * ms, "c": ms}, "c"},
		{"a leader keeps leadership if all voters have slow disks", 100 * ms, map[string]time.Duration{"b": 90 * ms, "c": 40 * ms}, ""},
		{"a leader keeps leadership if the write durations of the other voters are not known", 100 * ms, map[string]time.Duration{"b": 0}, ""},
		{"of equally fast voters, the one with the lowest id is chosen", 100 * ms, map[string]time.Duration{"c": ms, "b": ms}, "b"},
		{"a leader without another voter keeps leadership", 100 * ms, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fasterVoter(c.own, c.others); got != c.want {
				t.Errorf("fasterVoter returned voter %q, want %q", got, c.want)
			}
		})
	}
}

func TestElectionTimeoutFollowsTheDisk(t *testing.T) {
	base := Timing{}.withDefaults()
	for _, c := range []struct{ write, want time.Duration }{
		{0, base.Election},
		{time.Millisecond, base.Election},
		{160 * time.Millisecond, 1600 * time.Millisecond},
		{10 * time.Second, 5 * time.Second},
	} {
		if got := base.electionTimeout(c.write); got != c.want {
			t.Errorf("for writes that usually take %s the election timeout is %s, want %s", c.write, got, c.want)
		}
	}
}

func TestTheStallThresholdFollowsTheUsualDuration(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		slowest time.Duration
		stops   bool
		want    time.Duration
	}{
		{"a fast disk", ms, false, 1000 * ms},
		{"a slow disk", 800 * ms, false, 1200 * ms},
		{"a disk that hung in the last minute", 20_000 * ms, false, 1500 * ms},
		{"a replica with a fast disk that is about to be closed", ms, true, 300 * ms},
		{"a replica with a slow disk that is about to be closed", 400 * ms, true, 600 * ms},
		{"a replica that is about to be closed and whose disk hung in the last minute", 20_000 * ms, true, 1000 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := stallThreshold(time.Second, c.slowest, c.stops); got != c.want {
				t.Errorf("the stall threshold is %s, want %s", got, c.want)
			}
		})
	}
}

func TestDiskWatchMeasuresWrites(t *testing.T) {
	var d diskWatch
	at := time.Unix(1000, 0)
	if d.pending(at) != 0 || d.slowest(at) != 0 || d.typical() != 0 {
		t.Error("the measurement of a disk without any write must report no durations, but does")
	}
	end := d.begin()
	later := time.Now().Add(time.Second)
	if age := d.pending(later); age < time.Second {
		t.Errorf("the measured age of the unfinished write is %s, want at least 1 s", age)
	}
	end()
	if age := d.pending(later); age != 0 {
		t.Errorf("a finished write still counts as unfinished, with an age of %s", age)
	}
	d = diskWatch{}
	for k, took := range []time.Duration{3, 900, 5, 4, 4, 4, 4, 4} {
		now := at.Add(time.Duration(k) * time.Second)
		d.finish(uint64(k), now.Add(-took*time.Millisecond), now)
	}
	if got := d.slowest(at.Add(30 * time.Second)); got != 900*time.Millisecond {
		t.Errorf("the measured slowest write of the last minute is %s, want 900 ms", got)
	}
	if got := d.slowest(at.Add(80 * time.Second)); got != 0 {
		t.Errorf("after a minute without writes the slowest write must be 0, but is %s", got)
	}
	if got := d.typical(); got < 4*time.Millisecond || got > 100*time.Millisecond {
		t.Errorf("the measured usual duration of a write is %s, want 4 to 100 ms", got)
	}
}

// BenchmarkDiskStall makes the leader's disk hang and measures the time until the next committed write on
// another replica, with the default timing.
func BenchmarkDiskStall(b *testing.B) {
	g := newGroup(b, 3)
	disks := g.onDisks(0)
	g.cfg = func(_ int, c *Config) { c.Timing = Timing{FastGossip: true} }
	leader := g.form()
	var all []time.Duration
	for k := 0; b.Loop(); k++ {
		i := g.index(leader)
		disks[i].hang()
		began := time.Now()
		go func(n *Node) { _, _ = n.Propose(timeout(b, patience), put("held", int64(k))) }(leader)
		var next *Node
		testbed.Until(b, "another replica has accepted a write", func() bool {
			for _, n := range g.snapshot() {
				if n != leader && n.IsLeader() {
					if _, err := n.Propose(timeout(b, time.Second), put("w", int64(k))); err == nil {
						next = n
						return true
					}
				}
			}
			return false
		})
		all = append(all, time.Since(began))
		disks[i].work()
		testbed.Until(b, fmt.Sprintf("replica %d follows a leader again", i), func() bool {
			_, stalled := leader.DiskPending()
			return !stalled && value(leader.Store().View(), "w") == int64(k)
		})
		leader = g.settledUnder(next)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2].Seconds(), "s/median")
	b.ReportMetric(all[len(all)-1].Seconds(), "s/max")
}

// settledUnder waits until all replicas follow n or the leader that succeeded n, and returns that leader.
func (g *group) settledUnder(n *Node) *Node {
	testbed.Until(g.t, "all replicas follow one leader", func() bool {
		l := g.leader()
		if l != nil {
			n = l
		}
		return l != nil && l.IsLeader()
	})
	return n
}
