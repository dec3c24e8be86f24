package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// cursors records every value of the mirror's cursor in etcd, and so which leaders have written to etcd.
type cursors struct {
	t    *testing.T
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	seen []cursorText
}

func watchCursor(t *testing.T, kv *clientv3.Client, cluster string) *cursors {
	ctx, stop := context.WithCancel(t.Context())
	w := &cursors{t: t, stop: stop}
	w.wg.Go(func() {
		for r := range kv.Watch(ctx, cursorKey(cluster)) {
			for _, e := range r.Events {
				var c cursorText
				if err := json.Unmarshal(e.Kv.Value, &c); err != nil {
					t.Errorf("the cursor is %q", e.Kv.Value)
				}
				w.mu.Lock()
				w.seen = append(w.seen, c)
				w.mu.Unlock()
			}
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *cursors) last() cursorText {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == 0 {
		return cursorText{}
	}
	return w.seen[len(w.seen)-1]
}

// awaits waits until a leader with a later term than that in the cursor value after has written to etcd.
func (w *cursors) awaits(after cursorText) {
	w.t.Helper()
	must(w.t, testbed.Poll(w.t.Context(), settle, "another leader to write the mirror", func(context.Context) error {
		if now := w.last(); now.Term <= after.Term {
			return fmt.Errorf("the mirror's cursor was last written by the leader of term %d, want a later term", now.Term)
		}
		return nil
	}))
}

func (w *cursors) end() {
	w.stop()
	w.wg.Wait()
}

// onlyForward checks that no leader wrote to etcd after a later leader had written.
func (w *cursors) onlyForward() {
	w.t.Helper()
	w.end()
	terms := map[uint64]bool{}
	for i, c := range w.seen {
		terms[c.Term] = true
		if i > 0 && (c.Incarnation != w.seen[i-1].Incarnation || c.Term < w.seen[i-1].Term) {
			w.t.Errorf("the leader of term %d wrote to etcd after the later leader of term %d had written", c.Term, w.seen[i-1].Term)
		}
	}
	w.t.Logf("etcd has %d transactions of %d leaders, in the order of their terms", len(w.seen), len(terms))
}

// mirrorStory is a cluster with a mirror in an etcd, to which clients apply all the time. Each of its methods
// causes one kind of fault.
type mirrorStory struct {
	t    *testing.T
	c    *harness.Cluster
	etcd *harness.Part
	kv   *clientv3.Client
	tr   *traffic
	dir  string // data directory of etcd
}

// kill kills the leader and waits until another scheduler leads. It returns a function that starts the killed
// scheduler again.
func (s *mirrorStory) kill() (again func()) {
	s.t.Helper()
	leader := got[int](s.t)(s.c.WaitLeader(s.t.Context(), electionLimit))
	must(s.t, s.c.Schedulers[leader].Kill())
	got[int](s.t)(s.c.WaitLeader(s.t.Context(), electionLimit, leader))
	return func() {
		s.t.Helper()
		must(s.t, s.c.Schedulers[leader].Start())
		must(s.t, s.c.WaitReady(s.t.Context(), settle))
	}
}

// well waits until the mode is normal again after a fault, without the help of an operator, and then checks
// that etcd has the whole state. The text after names the fault.
func (s *mirrorStory) well(after string) {
	s.t.Helper()
	waitMode(s.t, s.c, "normal")
	s.tr.held.Store(false)
	s.tr.more(20, settle)
	s.tr.held.Store(true)
	equals(s.t, s.c, s.kv, after)
	s.tr.held.Store(false)
}

func (s *mirrorStory) startEtcd() {
	s.t.Helper()
	must(s.t, s.etcd.Start())
	must(s.t, harness.WaitEtcd(s.t.Context(), s.etcd, settle))
}

func (s *mirrorStory) stopped() {
	must(s.t, s.etcd.Kill())
	waitMode(s.t, s.c, "degraded")
	again := s.kill()
	waitMode(s.t, s.c, "degraded")
	s.startEtcd()
	again()
	s.well("after etcd was stopped")
}

// slow pauses etcd while the leader's requests are in flight, and kills the leader. When etcd continues, it
// carries out some of these requests, although their sender is dead.
func (s *mirrorStory) slow() {
	must(s.t, s.etcd.Pause())
	waitMode(s.t, s.c, "degraded")
	again := s.kill()
	must(s.t, s.etcd.Continue())
	again()
	s.well("after etcd was paused")
}

// deposed pauses the leader while it writes to etcd, and lets it continue when another replica leads.
func (s *mirrorStory) deposed(w *cursors) {
	leader := got[int](s.t)(s.c.WaitLeader(s.t.Context(), electionLimit))
	s.tr.more(20, settle)
	before := w.last()
	must(s.t, s.c.Schedulers[leader].Pause())
	got[int](s.t)(s.c.WaitLeader(s.t.Context(), electionLimit, leader))
	w.awaits(before)
	must(s.t, s.c.Schedulers[leader].Continue())
	must(s.t, s.c.WaitReady(s.t.Context(), settle))
	s.well("after the leader was paused")
}

// full fills etcd to its quota, so that it refuses every write.
func (s *mirrorStory) full() {
	t := s.t
	must(t, s.etcd.Kill())
	args := s.etcd.Args
	s.etcd.Args = append(args[:len(args):len(args)], "--quota-backend-bytes=67108864")
	s.startEtcd()
	waitMode(t, s.c, "normal")
	junk := strings.Repeat("x", 1<<20)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = s.kv.Put(t.Context(), fmt.Sprintf("/junk/%d", i), junk)
	}
	if err == nil || !strings.Contains(err.Error(), "space") {
		t.Fatalf("writing 100 MiB to an etcd with a quota of 64 MiB returned %v, want the error that its space is exceeded", err)
	}
	waitMode(t, s.c, "degraded")
	again := s.kill()
	waitMode(t, s.c, "degraded")

	// Repair the full etcd as an operator does: compact it, defragment it and clear its alarm.
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	r, err := s.kv.Delete(ctx, "/junk/", clientv3.WithPrefix())
	must(t, err)
	_, err = s.kv.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	must(t, err)
	_, err = s.kv.Defragment(ctx, s.etcd.Addr)
	must(t, err)
	_, err = s.kv.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	must(t, err)
	again()
	s.well("after etcd was full")
	must(t, s.etcd.Kill())
	s.etcd.Args = args
	s.startEtcd()
	s.well("after etcd had its former quota again")
}

// older replaces the data of etcd by a snapshot that was made before the last writes.
func (s *mirrorStory) older() {
	snapshot := filepath.Join(s.t.TempDir(), "older")
	s.tr.held.Store(true)
	must(s.t, s.etcd.Kill())
	must(s.t, os.CopyFS(snapshot, os.DirFS(s.dir)))
	s.startEtcd()
	s.well("before etcd is set back to a snapshot")
	s.tr.more(100, settle)
	must(s.t, s.etcd.Kill())
	must(s.t, os.RemoveAll(s.dir))
	must(s.t, os.Rename(snapshot, s.dir))
	s.startEtcd()
	s.kill()()
	s.well("after etcd was set back to a snapshot")
}

// wiped empties etcd. The schedulers then write nothing until an operator has decided whether the
// replicated state or the empty etcd is right.
func (s *mirrorStory) wiped() {
	must(s.t, s.etcd.Kill())
	must(s.t, os.RemoveAll(s.dir))
	s.startEtcd()
	waitMode(s.t, s.c, "recovery")
	again := s.kill()
	waitMode(s.t, s.c, "recovery")
	again()
	if out := ctl(s.t, s.c, "recovery", "restore", "--yes"); !strings.Contains(out, "mode is normal") {
		s.t.Errorf("persysctl recovery restore prints\n%s", out)
	}
	s.well("after etcd was wiped")
}

// TestMirrorSurvivesFaultsOfEtcd: etcd fails in many ways while clients apply and leaders die. No
// acknowledged write is lost. In the end etcd equals the state again, key by key. No former leader writes to
// etcd, every change of mode is in the logs, and workloads that run are not touched.
func TestMirrorSurvivesFaultsOfEtcd(t *testing.T) {
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: mirrored(etcd, nil)})
	ids := startAndKeep(t, c)
	s := &mirrorStory{t: t, c: c, etcd: etcd, kv: kv, tr: load(t, c), dir: filepath.Join(filepath.Dir(etcd.Log), "etcd")}
	s.tr.freezes.Store(true)
	s.well("at first")
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	admin, err := c.Admin(leader)
	must(t, err)
	w := watchCursor(t, kv, got[fsm.State](t)(stateOf(t.Context(), admin)).Info().ClusterID)
	story := func(name string, run func()) {
		began := time.Now()
		run()
		t.Logf("the fault %q took %s", name, time.Since(began).Round(100*time.Millisecond))
	}
	story("stopped", s.stopped)
	story("stands still", s.slow)
	story("a deposed leader", func() { s.deposed(w) })
	story("full", s.full)
	w.onlyForward() // check now which leaders have written, because the following steps set etcd back to older revisions
	story("older", s.older)
	story("wiped", s.wiped)
	s.tr.end()
	equals(t, c, kv, "at the end")
	untouched(t, c, ids...)
	logged(t, c)
}

// logged checks that the schedulers have logged every change of the mode, with the time in the committed
// command.
func logged(t *testing.T, c *harness.Cluster) {
	t.Helper()
	var logs strings.Builder
	for _, s := range c.Schedulers {
		logs.WriteString(got[string](t)(s.Output()))
	}
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	admin, err := c.Admin(leader)
	must(t, err)
	changes := 0
	got[fsm.State](t)(stateOf(t.Context(), admin)).Events(0, func(e *fsm.Event) bool {
		if e.Type != fsm.EventModeChanged {
			return true
		}
		changes++
		line := fmt.Sprintf("mode=%s reason=", e.Reason)
		at := "at=" + time.Unix(0, e.At).UTC().Format(time.RFC3339Nano)
		for _, l := range strings.Split(logs.String(), "\n") {
			if strings.Contains(l, "mode changed") && strings.Contains(l, line) && strings.Contains(l, at) {
				return true
			}
		}
		t.Errorf("no log has the change of mode with reason %s at %s", e.Reason, at)
		return true
	})
	if changes < 8 {
		t.Errorf("the history has %d changes of mode, want at least 8", changes)
	}
}
