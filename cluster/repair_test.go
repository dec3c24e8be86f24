package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// waits collects the reasons that Repair gave for waiting.
type waits struct {
	mu  sync.Mutex
	why []string
}

func (w *waits) add(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = append(w.why, err.Error())
}

func (w *waits) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.why)
}

// repairing is a call of Repair in the background.
type repairing struct {
	waits
	done chan error
	stop context.CancelFunc
}

func (g *group) repair(i int, damage error) *repairing {
	ctx, cancel := context.WithCancel(context.Background())
	r := &repairing{done: make(chan error, 1), stop: cancel}
	g.t.Cleanup(cancel)
	c := g.config(i)
	h := hooks{dial: g.nw.dialer(c.Name, g.nameOf)}
	if g.hooks != nil {
		g.hooks(i, &h)
	}
	go func() { r.done <- repair(ctx, c, damage, r.add, h) }()
	return r
}

func (r *repairing) ends(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(patience):
		t.Fatalf("the repair must end, but still waits for the reasons %v", r.all())
		return nil
	}
}

// waitsFor waits until the repair has given this reason for waiting at least n times.
func (r *repairing) waitsFor(t *testing.T, n int, reason string) {
	t.Helper()
	testbed.Until(t, "waiting because of "+reason, func() bool {
		select {
		case err := <-r.done:
			t.Fatalf("the repair ended with error %v, but must wait because of %q", err, reason)
		default:
		}
		why := r.all()
		count := 0
		for _, w := range why {
			if strings.Contains(w, reason) {
				count++
			}
		}
		return count >= n
	})
}

// formRepairable forms a cluster in which the peers.json of each replica names all replicas.
func (g *group) formRepairable() *Node {
	g.t.Helper()
	leader := g.form()
	for i := range g.snapshot() {
		testbed.Until(g.t, "peers.json names all replicas", func() bool {
			t := loadNote(g.dirs[i])
			return t != nil && len(t.Servers) == g.size && !slices.ContainsFunc(t.Servers, func(s knownServer) bool { return s.Gossip == "" })
		})
	}
	return leader
}

// damaged stops replica i, damages its data with damage, and returns the error of Open.
func (g *group) damaged(i int, damage func(dir string) error) error {
	g.t.Helper()
	g.close(i)
	if damage == nil {
		// Damage every copy of the entry in the file, because the first copy found may be in an unused page, which Open
		// does not check.
		damage = func(dir string) error {
			b, err := os.ReadFile(logPath(dir))
			if err != nil || !bytes.Contains(b, []byte("needle")) {
				return fmt.Errorf("there is no entry to damage: %w", err)
			}
			return os.WriteFile(logPath(dir), bytes.ReplaceAll(b, []byte("needle"), []byte("NEEDLE")), 0o600)
		}
	}
	if err := damage(g.dirs[i]); err != nil {
		g.t.Fatal(err)
	}
	_, err := g.open(i)
	if !errors.Is(err, ErrCorrupt) {
		g.t.Fatalf("Open with damaged data returned %v, want ErrCorrupt", err)
	}
	return err
}

func asides(t testing.TB, dir string) []string {
	t.Helper()
	names, err := asideFolders(dir)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func eventsOf(n *Node, kind string) (out []*fsm.Event) {
	n.Store().View().Events(0, func(e *fsm.Event) bool {
		if e.Type == kind {
			out = append(out, e)
		}
		return true
	})
	return out
}

func detailOf(e *fsm.Event, key string) string {
	for _, d := range e.Details {
		if d.Key == key {
			return d.Value
		}
	}
	return ""
}

func TestADamagedReplicaRepairsItself(t *testing.T) {
	stable := func(key []byte, bit byte) func(string) error {
		return func(dir string) error {
			_, err := changeStable(key, func(v []byte) []byte { v[3] ^= bit; return v })(dir)
			return err
		}
	}
	for _, c := range []struct {
		name             string
		damage           func(dir string) error
		snapshot, leader bool
		tls              bool
	}{
		{name: "one byte of a follower's log entry is damaged"},
		{name: "one byte of the leader's log entry is damaged", leader: true},
		{name: "one byte of a follower's log entry is damaged, with TLS", tls: true},
		{name: "the log file has other content", damage: func(dir string) error {
			return os.WriteFile(logPath(dir), bytes.Repeat([]byte("nonsense"), 8192), 0o600)
		}},
		{name: "the log file is truncated", damage: func(dir string) error { return os.Truncate(logPath(dir), 20000) }},
		{name: "the stored term is damaged", damage: stable(keyTerm, 0x10)},
		{name: "the stored replica id is damaged", damage: stable(keyReplicaID, 1)},
		{name: "the snapshots are damaged", snapshot: true, damage: func(dir string) error {
			all, err := filepath.Glob(filepath.Join(dir, RaftDir, "snapshots", "*-*", "state.bin"))
			for _, path := range all {
				err = errors.Join(err, flip(path, nil))
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 3)
			var files *pki.Files
			if c.tls {
				set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Schedulers: []string{"s0"}})
				if err != nil {
					t.Fatal(err)
				}
				p := set.Leaf["scheduler/s0"]
				if files, err = pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.Mapping{Cluster: "dev"}}); err != nil {
					t.Fatal(err)
				}
			}
			g.cfg = func(_ int, conf *Config) {
				if c.snapshot {
					conf.Timing.SnapshotEntries, conf.Timing.TrailingEntries, conf.Timing.SnapshotInterval = 10, 1, 10*time.Millisecond
				}
				if files != nil {
					conf.TLS = TLSFromFiles(files)
				}
			}
			leader := g.formRepairable()
			for i := range 30 {
				leader, _ = g.put("needle", int64(i))
			}
			victim := g.follower(leader)
			if c.leader {
				victim = leader
			}
			if c.snapshot {
				testbed.Until(t, "a snapshot", func() bool { return victim.trans.history.size.Load() > 0 })
			}
			i, old, cluster := g.index(victim), victim.ID(), victim.clusterID()
			testbed.Until(t, "the damaged replica has all entries", func() bool { return value(victim.Store().View(), "needle") == 29 })
			damage := g.damaged(i, c.damage)
			before, err := os.ReadFile(logPath(g.dirs[i]))
			if err != nil {
				t.Fatal(err)
			}
			if err := g.repair(i, damage).ends(t); err != nil {
				t.Fatal(err)
			}
			kept := asides(t, g.dirs[i])
			if len(kept) != 1 {
				t.Fatalf("the data directory has these folders with damaged data: %v, want one", kept)
			}
			if after, err := os.ReadFile(filepath.Join(g.dirs[i], kept[0], logFile)); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the damaged log must be kept unchanged in the folder that was moved aside, but is changed or cannot be read: %v", err)
			}
			back := g.start(i)
			testbed.Until(t, "the repaired replica is a voter again", func() bool { return back.Status().Role == RoleVoter })
			leader = g.settled(3)
			if back.ID() == old || back.clusterID() != cluster {
				t.Errorf("the repaired replica has id %s in cluster %s, and had id %s in cluster %s; want a new id in the same cluster", back.ID(), back.clusterID(), old, cluster)
			}
			if _, there := leader.find(old); there {
				t.Errorf("the old id %s must be removed from the configuration, but is still there", old)
			}
			testbed.Until(t, "the repaired replica has the writes again", func() bool { return value(back.Store().View(), "needle") == 29 })
			testbed.Until(t, "the events of the repair are recorded", func() bool { return len(eventsOf(back, fsm.EventReplicaRepaired)) == 1 })
			e := eventsOf(back, fsm.EventReplicaDamaged)
			if len(e) != 1 || e[0].Message != back.cfg.Name || detailOf(e[0], "previous") != old || detailOf(e[0], "aside") != kept[0] || !contains(detailOf(e[0], "damage"), ErrCorrupt.Error()) {
				t.Errorf("the events about the damage are %+v, want one event that names the old id, the folder and the damage", e)
			}
			g.put("after", 1)
			if again := asides(t, g.dirs[i]); len(again) != 1 {
				t.Errorf("after a restart the folders with damaged data are %v, want still one", again)
			}
		})
	}
}

// Of three replicas one is down and one has damaged data. The damaged one does not move its data
// aside, because there is no majority without it.
func TestARepairWaitsForAMajority(t *testing.T) {
	g := newGroup(t, 3)
	g.formRepairable()
	leader, _ := g.put("needle", 1)
	a := g.follower(leader)
	i := g.index(a)
	testbed.Until(t, "the follower has all entries", func() bool { return value(a.Store().View(), "needle") == 1 })
	damage := g.damaged(i, nil)
	var away int
	for j, n := range g.snapshot() {
		if n != leader {
			away = j
		}
	}
	g.close(away)
	r := g.repair(i, damage)
	r.waitsFor(t, 3, "")
	if kept := asides(t, g.dirs[i]); len(kept) != 0 {
		t.Fatalf("without a majority the damaged data must stay in place, but was moved to the folders %v", kept)
	}
	g.start(away)
	if err := r.ends(t); err != nil {
		t.Fatal(err)
	}
	g.start(i)
	testbed.Until(t, "the repaired replica has the writes again", func() bool {
		n := g.snapshot()[i]
		return value(n.Store().View(), "needle") == 1
	})
	g.settled(3)
}

// Two of three replicas have damaged data. Neither of the two moves its data aside, because the third
// replica alone is no majority.
func TestTwoOfThreeDamagedWait(t *testing.T) {
	g := newGroup(t, 3)
	g.formRepairable()
	leader, _ := g.put("needle", 1)
	found := map[int]error{}
	for i, n := range g.snapshot() {
		testbed.Until(t, "all replicas have all entries", func() bool { return value(n.Store().View(), "needle") == 1 })
		if n != leader {
			found[i] = g.damaged(i, nil)
		}
	}
	for i, damage := range found {
		r := g.repair(i, damage)
		r.waitsFor(t, 3, "no leader answers")
		defer func() {
			r.stop()
			if err := r.ends(t); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCorrupt) {
				t.Errorf("the repair that waits ended with %v, want that its context was cancelled", err)
			}
			if kept := asides(t, g.dirs[i]); len(kept) != 0 {
				t.Errorf("replica %d must not move its damaged data aside, but moved it to the folders %v", i, kept)
			}
		}()
	}
}

// Two of five replicas have damaged data. Both repair themselves, because the other three are a majority.
func TestTwoOfFiveDamagedRepairThemselves(t *testing.T) {
	g := newGroup(t, 5)
	g.formRepairable()
	leader, _ := g.put("needle", 1)
	found := map[int]error{}
	for i, n := range g.snapshot() {
		testbed.Until(t, "all replicas have all entries", func() bool { return value(n.Store().View(), "needle") == 1 })
		if n != leader && len(found) < 2 {
			found[i] = g.damaged(i, nil)
		}
	}
	runs := map[int]*repairing{}
	for i, damage := range found {
		runs[i] = g.repair(i, damage)
	}
	for i, r := range runs {
		if err := r.ends(t); err != nil {
			t.Fatal(err)
		}
		g.start(i)
	}
	g.settled(5)
	for i := range found {
		n := g.snapshot()[i]
		testbed.Until(t, "the repaired replicas have the writes again", func() bool { return value(n.Store().View(), "needle") == 1 })
	}
	g.put("after", 1)
}

// If the process ends during a repair, the next start continues the repair, and the damaged data is
// moved aside only once.
func TestAnInterruptedRepairIsTakenUpAgain(t *testing.T) {
	g := newGroup(t, 3)
	g.formRepairable()
	leader, _ := g.put("needle", 1)
	victim := g.follower(leader)
	i, old := g.index(victim), victim.ID()
	testbed.Until(t, "the follower has all entries", func() bool { return value(victim.Store().View(), "needle") == 1 })
	damage := g.damaged(i, nil)

	// First interruption: the process ends after it has written peers.json and before it renames
	// the Raft directory.
	g.hooks = func(j int, h *hooks) {
		if j == i {
			h.rename = func(_, _ string) error { return errors.New("the process ends here") }
		}
	}
	r := g.repair(i, damage)
	r.waitsFor(t, 1, "the process ends here")
	r.stop()
	if err := r.ends(t); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	g.hooks = nil
	if note := loadNote(g.dirs[i]); note.Repair == nil || note.Repair.Of != old || note.Repair.As != "" {
		t.Fatalf("peers.json has the content %+v, want the record of the begun repair", note)
	}
	if _, err := g.open(i); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("Open with damaged data returned %v, want ErrCorrupt", err)
	}
	if err := g.repair(i, damage).ends(t); err != nil {
		t.Fatal(err)
	}

	// Second interruption: the process ends after it has renamed the Raft directory, and all other
	// replicas are down at the next start. The replica must not form a cluster by itself, although
	// its settings allow that.
	others := []int{}
	for j := range g.snapshot() {
		others = append(others, j)
	}
	for _, j := range others {
		g.close(j)
	}
	g.cfg = func(j int, c *Config) {
		if j == i {
			c.BootstrapExpect, c.Join = 1, nil
		}
	}
	for range 2 {
		back := g.start(i)
		if !back.knows() || back.clusterID() == "" {
			t.Error("after the interrupted repair the replica must know the id of its cluster, but does not")
		}
		time.Sleep(5 * fastTiming().Reconcile) // wait long enough for the replica to form a cluster, which it must not do
		if len(back.servers()) != 0 || back.Store().View().Info().ClusterID != "" {
			t.Fatalf("after the interrupted repair the replica must not form a new cluster, but its Raft configuration has the servers %+v", back.servers())
		}
		g.close(i)
	}
	for _, j := range others {
		g.start(j)
	}
	back := g.start(i)
	testbed.Until(t, "the repaired replica is a voter again", func() bool { return back.Status().Role == RoleVoter })
	if value(back.Store().View(), "needle") != 1 {
		t.Error("the repaired replica must have the data of the cluster, but lacks it")
	}
	if kept := asides(t, g.dirs[i]); len(kept) != 1 {
		t.Errorf("the folders with damaged data are %v, want one", kept)
	}
}

func TestARepairIsRefused(t *testing.T) {
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	aside := func(dir string, at time.Time) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, damaged+at.UTC().Format(asideTime)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		size    int
		prepare func(g *group, i int, leader *Node)
		want    string
	}{
		{"the only replica of its cluster", 1, nil, "the only replica of its cluster"},
		{"a replica without peers.json", 3, func(g *group, i int, _ *Node) { _ = os.Remove(filepath.Join(g.dirs[i], peersFile)) }, "peers.json"},
		{"a replica with a damaged peers.json", 3, func(g *group, i int, _ *Node) { write(filepath.Join(g.dirs[i], peersFile), []byte(`{"cluster":`)) }, "peers.json"},
		{"a replica that is configured for another cluster", 3, func(g *group, i int, _ *Node) {
			g.cfg = func(j int, c *Config) {
				if j == i {
					c.ClusterID = "other"
				}
			}
		}, `SCHEDULER_CLUSTER_ID is "other"`},
		{"a replica that was repaired less than an hour ago", 3, func(g *group, i int, _ *Node) { aside(g.dirs[i], time.Now().Add(-59*time.Minute)) }, "59m"},
		{"a replica with the damaged data of three repairs", 3, func(g *group, i int, _ *Node) {
			for h := range maxAside {
				aside(g.dirs[i], time.Now().Add(-time.Duration(2+h)*time.Hour))
			}
		}, "3 folders"},
		{"a replica that the cluster has removed", 3, func(g *group, i int, _ *Node) {
			g.remove(loadNote(g.dirs[i]).Replica)
		}, "it was removed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, c.size)
			g.formRepairable()
			leader, _ := g.put("needle", 1)
			victim := leader
			if c.size > 1 {
				victim = g.follower(leader)
			}
			i := g.index(victim)
			testbed.Until(t, "the damaged replica has all entries", func() bool { return value(victim.Store().View(), "needle") == 1 })
			damage := g.damaged(i, nil)
			if c.prepare != nil {
				c.prepare(g, i, leader)
			}
			before := asides(t, g.dirs[i])
			err := g.repair(i, damage).ends(t)
			if !errors.Is(err, ErrNoRepair) || !errors.Is(err, ErrCorrupt) || !contains(err.Error(), c.want) {
				t.Errorf("Repair returned %v, want ErrNoRepair and ErrCorrupt with the text %q", err, c.want)
			}
			if after := asides(t, g.dirs[i]); len(after) != len(before) {
				t.Errorf("after the refused repair the folders with damaged data are %v, want as many as before", after)
			}
		})
	}
}

// Three folders with damaged data prevent a repair, and so does one folder that is younger than an hour. One older
// folder does not.
func TestARepairWaits(t *testing.T) {
	g := newGroup(t, 3)
	g.formRepairable()
	leader, _ := g.put("needle", 1)
	victim := g.follower(leader)
	i := g.index(victim)
	testbed.Until(t, "the damaged replica has all entries", func() bool { return value(victim.Store().View(), "needle") == 1 })
	dir := g.dirs[i]
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, RaftDir), os.DirFS(filepath.Join(dir, RaftDir))); err != nil {
		t.Fatal(err)
	}
	damage := g.damaged(i, nil)
	if err := os.Mkdir(filepath.Join(dir, damaged+time.Now().UTC().Add(-61*time.Minute).Format(asideTime)), 0o700); err != nil {
		t.Fatal(err)
	}

	t.Run("a repair waits while the disk has no room for new data", func(t *testing.T) {
		g.hooks = func(_ int, h *hooks) { h.free = func(string) (uint64, error) { return 4096, nil } }
		r := g.repair(i, damage)
		r.waitsFor(t, 2, "has 0 MiB free")
		r.stop()
		_ = r.ends(t)
		g.hooks = nil
	})
	t.Run("a repair waits while peers.json has the addresses of another cluster", func(t *testing.T) {
		other := newGroup(t, 1)
		stranger := other.form()
		note := loadNote(dir)
		changed := *note
		changed.Servers = []knownServer{{ID: "x", Name: "x", Raft: stranger.RaftAddr()}}
		if err := changed.store(dir); err != nil {
			t.Fatal(err)
		}
		r := g.repair(i, damage)
		r.waitsFor(t, 2, ErrWrongCluster.Error())
		r.stop()
		_ = r.ends(t)
		if err := note.store(dir); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a repair waits while another process runs on a copy of the data", func(t *testing.T) {
		c := g.config(i)
		c.DataDir = copied
		twin, err := open(timeout(t, patience), c, hooks{})
		if err != nil {
			t.Fatal(err)
		}
		defer twin.Close()
		testbed.Until(t, "the leader hears the copy of the replica", func() bool { return g.waitLeader().healthy(raft.ServerID(twin.id)) })
		r := g.repair(i, damage)
		r.waitsFor(t, 2, "another process uses a copy of its data")
		r.stop()
		_ = r.ends(t)
	})
	if kept := asides(t, dir); len(kept) != 1 {
		t.Errorf("the folders with damaged data are %v, want one", kept)
	}
	t.Run("a repair that waits ends when somebody has changed the data", func(t *testing.T) {
		g.hooks = func(_ int, h *hooks) { h.free = func(string) (uint64, error) { return 4096, nil } }
		r := g.repair(i, damage)
		r.waitsFor(t, 1, "has 0 MiB free")
		if err := os.Remove(logPath(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, RaftDir), os.DirFS(filepath.Join(copied, RaftDir))); err != nil {
			t.Log(err) // these folders with damaged data exist already
		}
		if err := r.ends(t); err != nil {
			t.Fatal(err)
		}
		g.hooks = nil
		back := g.start(i)
		testbed.Until(t, "the replica is back under its old id", func() bool { return back.ID() == victim.ID() && back.Status().Role == RoleVoter })
	})
}

func TestTheMissingPartOfAQuorumIsNamed(t *testing.T) {
	others := func(states ...string) (q *quorum, reached map[string]error) {
		q, reached = &quorum{Voters: 1}, map[string]error{}
		for i, s := range states {
			m := member{knownServer: knownServer{ID: fmt.Sprint(i), Name: fmt.Sprint("s", i)}, Voter: s != "non-voter", Healthy: s != "silent"}
			if m.Voter {
				q.Voters++
			}
			switch s {
			case "ok", "non-voter":
				reached[m.ID] = nil
			case "unreachable":
				reached[m.ID] = errors.New("no route")
			}
			q.Others = append(q.Others, m)
		}
		return q, reached
	}
	for _, c := range []struct {
		others []string
		want   string // expected text of the error; "" for no error
	}{
		{[]string{"ok", "ok"}, ""},
		{[]string{"ok", "ok", "non-voter"}, ""},
		{[]string{"ok", "silent"}, "s1 does not answer the leader"},
		{[]string{"ok", "unreachable"}, "s1: no route"},
		{[]string{"ok", "non-voter", "silent"}, "2 of 3 voters must be healthy without this replica, and 1 are"},
		{[]string{"ok"}, "cannot work without this replica"},
		{[]string{"ok", "ok", "silent"}, "3 of 4 voters"},
		{[]string{"ok", "ok", "ok", "silent"}, ""},
		{[]string{"ok", "ok", "silent", "silent"}, "3 of 5 voters"},
	} {
		q, reached := others(c.others...)
		err := q.lacks(reached)
		if (err == nil) != (c.want == "") || err != nil && !contains(err.Error(), c.want) {
			t.Errorf("with the other replicas in the states %v, lacks returned %v, want an error that contains %q, or none if it is empty", c.others, err, c.want)
		}
	}
}
