package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// back returns a build function for Restore that makes an older state newer than the present one.
func back(old fsm.State) func(fsm.State) (fsm.State, error) {
	return func(present fsm.State) (fsm.State, error) {
		return fsm.Restored(old, present, fsm.RestoreInfo{At: time.Now().UnixNano(), By: "test"})
	}
}

func TestRestoreReachesEveryReplica(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	mustPut(t, leader, "w", 1)
	old := leader.Store().State()
	before := old.Info()
	mustPut(t, leader, "w", 2)
	mustPut(t, leader, "younger", 1)

	// The leadership term of the former state ends, and one of the new epoch begins.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	epochs := make(chan fsm.Epoch, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = leader.Lead(ctx, func(ctx context.Context, s LeadershipTerm) error {
			epochs <- s.Epoch
			<-ctx.Done()
			return nil
		})
	}()
	first := <-epochs
	index, err := leader.Restore(timeout(t, patience), back(old))
	if err != nil {
		t.Fatal(err)
	}
	second := <-epochs
	if !first.Less(second) || second.Incarnation == first.Incarnation {
		t.Errorf("epoch %s follows %s: not a new incarnation", second, first)
	}
	cancel()
	<-ended
	for i, n := range g.snapshot() {
		testbed.Until(t, "the restored state everywhere", func() bool {
			v := n.Store().View()
			_, younger := v.Workload("younger")
			return value(v, "w") == 1 && !younger && v.Info().Index >= index && v.Info().Incarnation > before.Incarnation
		})
		if got := n.Status().ClusterID; got != before.ClusterID {
			t.Errorf("replica %d is of cluster %q, was %q", i, got, before.ClusterID)
		}
	}
	mustPut(t, leader, "after", 3)

	// The restored state is still there after a restart of all replicas.
	for i := range 3 {
		g.close(i)
	}
	for i := range 3 {
		g.start(i)
	}
	leader = g.settled(3)
	mustPut(t, leader, "after", 4)
	for _, n := range g.snapshot() {
		testbed.Until(t, "the same after a restart", func() bool {
			v := n.Store().View()
			return value(v, "w") == 1 && value(v, "after") == 4
		})
		if err := n.Err(); err != nil {
			t.Error(err)
		}
	}
}

func TestFailedRestoreChangesNothing(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	mustPut(t, leader, "w", 1)
	old := leader.Store().State()
	for _, n := range g.snapshot() {
		if n == leader {
			continue
		}
		if _, err := n.Restore(timeout(t, patience), back(old)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower answered %v", err)
		}
	}
	no := errors.New("no")
	var refused atomic.Int32
	_, err := leader.Restore(timeout(t, patience), func(s fsm.State) (fsm.State, error) {
		if _, err := leader.Propose(timeout(t, patience), put("late", 1)); err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("a proposal meanwhile: %v", err)
		} else if err != nil {
			refused.Add(1)
		}
		if _, err := leader.Restore(timeout(t, patience), back(old)); !errors.Is(err, ErrBusy) {
			t.Errorf("a second restore meanwhile: %v", err)
		}
		if !leader.Restoring() {
			t.Error("it does not say that it is restoring")
		}
		return s, no
	})
	if leader.Restoring() {
		t.Error("it says that it is restoring still")
	}
	if !errors.Is(err, no) || refused.Load() != 1 {
		t.Errorf("error %v, %d proposals refused", err, refused.Load())
	}
	if got := leader.Store().View().Info().Incarnation; got != old.Info().Incarnation {
		t.Errorf("incarnation %d, was %d", got, old.Info().Incarnation)
	}
	mustPut(t, leader, "w", 2)
}

func TestASurvivorIsRecovered(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	mustPut(t, leader, "w", 1)
	before := leader.Store().View().Info()
	last := 0
	for i, n := range g.snapshot() {
		testbed.Until(t, "the write everywhere", func() bool { return value(n.Store().View(), "w") == 1 })
		if n != leader {
			last = i
		}
	}
	dir := g.dirs[last]
	if _, err := Survey(dir, leader.log); !errors.Is(err, ErrInUse) {
		t.Errorf("a running replica was surveyed: %v", err)
	}
	id := g.snapshot()[last].ID()
	for i := range 3 {
		g.close(i)
		if i != last {
			g.empty(i)
		}
	}
	look, err := Survey(dir, leader.log)
	if err != nil {
		t.Fatal(err)
	}
	if look.ID != id || look.ClusterID != before.ClusterID || len(look.Servers) != 3 || len(look.Lost) != 2 {
		t.Errorf("survivor %+v", look)
	}
	got, err := Recover(t.Context(), dir, "operator", leader.log)
	if err != nil {
		t.Fatal(err)
	}
	if got.State.Info().Incarnation <= before.Incarnation {
		t.Errorf("incarnation %d, was %d", got.State.Info().Incarnation, before.Incarnation)
	}
	// Repeating the command changes nothing: it may have been interrupted.
	if got, err = Recover(t.Context(), dir, "operator", leader.log); err != nil || len(got.Lost) != 0 {
		t.Fatalf("recovered again: %v, lost %v", err, got.Lost)
	}

	alone := g.start(last)
	leader = g.settled(1)
	if leader != alone || leader.ID() != id {
		t.Fatalf("%s leads as %s, not the survivor %s", leader.cfg.Name, leader.ID(), id)
	}
	if v := leader.Store().View(); value(v, "w") != 1 || v.Info().Incarnation != got.State.Info().Incarnation {
		t.Errorf("w is %d in incarnation %d", value(v, "w"), v.Info().Incarnation)
	}
	mustPut(t, leader, "w", 2)
	for i := range 3 {
		if i != last {
			g.start(i)
		}
	}
	g.settled(3)
	for _, n := range g.snapshot() {
		testbed.Until(t, "the others have it", func() bool { return value(n.Store().View(), "w") == 2 })
	}
}

func TestCancelledRestoreChangesNothing(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	old := n.Store().State()
	mustPut(t, n, "w", 1)
	before := n.Store().View().Info().Incarnation
	ctx, cancel := context.WithCancel(t.Context())
	_, err := n.Restore(ctx, func(present fsm.State) (fsm.State, error) {
		cancel()
		return back(old)(present)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("got %v", err)
	}
	mustPut(t, n, "w", 2)
	if got := n.Store().View().Info().Incarnation; got != before {
		t.Errorf("incarnation %d, was %d", got, before)
	}
}

// TestARecoveryByRootKeepsTheOwner: the scheduler runs as its own user. root recovers it, and the files
// that root creates must be readable for that user.
func TestARecoveryByRootKeepsTheOwner(t *testing.T) {
	const service = 65534
	g := newGroup(t, 1)
	n := g.form()
	mustPut(t, n, "w", 1)
	g.close(0)
	each := func(do func(path string) error) {
		t.Helper()
		testbed.Need(t, "a user who may give files away", filepath.WalkDir(g.dirs[0],
			func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, do(path)) }))
	}
	each(func(path string) error { return os.Chown(path, service, service) })
	if err := os.Remove(filepath.Join(g.dirs[0], lockFile)); err != nil { // so that root creates it
		t.Fatal(err)
	}
	if _, err := Recover(t.Context(), g.dirs[0], "root", n.log); err != nil {
		t.Fatal(err)
	}
	each(func(path string) error {
		st, err := os.Stat(path)
		if err == nil && st.Sys().(*syscall.Stat_t).Uid != service {
			t.Errorf("%s is not the service's", path)
		}
		return err
	})
}

func TestUnusableDataDirectoriesAreNamed(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	log := n.log
	if _, err := Recover(t.Context(), t.TempDir(), "operator", log); err == nil {
		t.Error("an empty folder was recovered")
	}
	g.close(0)
	if s, err := Recover(t.Context(), g.dirs[0], "operator", log); err != nil || len(s.Lost) != 0 {
		t.Errorf("a cluster of one: %v", err)
	}
}

// A replica that is closed while its state is replaced stops after the replacement.
func TestStopWhileAStateIsReplaced(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	begun, goOn := make(chan struct{}), make(chan struct{})
	replace := n.machine.restoring
	n.machine.restoring = func() error {
		close(begun)
		<-goOn
		return replace()
	}
	old := n.Store().State()
	answer := make(chan error, 1)
	go func() {
		_, err := n.Restore(timeout(t, patience), back(old))
		answer <- err
	}()
	<-begun
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		g.close(0)
	}()
	<-n.ctx.Done()
	select {
	case <-n.port.done: // Raft is stopping
		t.Error("it does not wait for the state")
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	<-closed
	if err := <-answer; err != nil && !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("the restore: %v", err)
	}
	if got := g.start(0).Store().View().Info().Incarnation; got <= old.Info().Incarnation {
		t.Errorf("incarnation %d after a restore of %d", got, old.Info().Incarnation)
	}
}

// Commands that were accepted before a restore and have not reached Raft yet are in the state that the
// restore gets.
func TestARestoreSeesAcceptedCommands(t *testing.T) {
	n := newGroup(t, 1).form()
	testbed.Until(t, "its own commands", func() bool { return n.prop.settle(timeout(t, time.Second)) == nil })
	calls, err := n.prop.encode([]fsm.Command{put("early", 1)})
	if err != nil {
		t.Fatal(err)
	}
	n.prop.mu.Lock()
	n.prop.queue, n.prop.bytes = append(n.prop.queue, calls...), n.prop.bytes+len(calls[0].frames) // without waking the coalescer
	n.prop.mu.Unlock()
	go func() {
		for !n.Restoring() {
			runtime.Gosched()
		}
		time.AfterFunc(50*time.Millisecond, n.prop.rouse) // a restore that does not wait has ended by then
	}()
	if _, err := n.Restore(timeout(t, patience), func(present fsm.State) (fsm.State, error) {
		n.prop.rouse()
		if err := calls[0].wait(timeout(t, patience)); err != nil || calls[0].err != nil {
			t.Error(err, calls[0].err)
		}
		return fsm.Restored(present, present, fsm.RestoreInfo{At: time.Now().UnixNano(), By: "test"})
	}); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Store().View().Workload("early"); !ok {
		t.Error("what was answered as done is gone")
	}
}
