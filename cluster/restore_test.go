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

// back returns a build function for Restore that returns the state old with a higher incarnation than the
// present state.
func back(old fsm.State) func(fsm.State) (fsm.State, error) {
	return func(present fsm.State) (fsm.State, error) {
		return fsm.Restored(old, present, fsm.RestoreInfo{At: time.Now().UnixNano(), By: "test"})
	}
}

func TestRestoreReachesEveryReplica(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	g.put("w", 1)
	old := leader.Store().State()
	before := old.Info()
	g.put("w", 2)
	g.put("younger", 1)

	// A restore must end the leadership term that worked with the old state. Then a new leadership term with a higher
	// epoch begins.
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
		t.Errorf("the leadership term after the restore has epoch %s and the one before had epoch %s, want a higher epoch with a new incarnation", second, first)
	}
	cancel()
	<-ended
	for i, n := range g.snapshot() {
		testbed.Until(t, "all replicas have the restored state", func() bool {
			v := n.Store().View()
			_, younger := v.Workload("younger")
			return value(v, "w") == 1 && !younger && v.Info().Index >= index && v.Info().Incarnation > before.Incarnation
		})
		if got := n.Status().ClusterID; got != before.ClusterID {
			t.Errorf("after the restore replica %d has the cluster id %q, want %q as before", i, got, before.ClusterID)
		}
	}
	g.put("after", 3)

	// After all replicas have restarted, they still have the restored state.
	for i := range 3 {
		g.close(i)
	}
	for i := range 3 {
		g.start(i)
	}
	g.settled(3)
	g.put("after", 4)
	for _, n := range g.snapshot() {
		testbed.Until(t, "all replicas have the restored state after a restart", func() bool {
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
	g.also(calm)
	leader := g.form()
	g.put("w", 1)
	old := leader.Store().State()
	for _, n := range g.snapshot() {
		if n == leader {
			continue
		}
		if _, err := n.Restore(timeout(t, patience), back(old)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("Restore on a follower returned %v, want ErrNotLeader", err)
		}
	}
	no := errors.New("no")
	var refused atomic.Int32
	_, err := leader.Restore(timeout(t, patience), func(s fsm.State) (fsm.State, error) {
		if _, err := leader.Propose(timeout(t, patience), put("late", 1)); err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("a proposal during the restore returned %v, want success or ErrBusy", err)
		} else if err != nil {
			refused.Add(1)
		}
		if _, err := leader.Restore(timeout(t, patience), back(old)); !errors.Is(err, ErrBusy) {
			t.Errorf("a second restore during the first one returned %v, want ErrBusy", err)
		}
		if !leader.Restoring() {
			t.Error("Restoring must be true during a restore")
		}
		return s, no
	})
	if leader.Restoring() {
		t.Error("Restoring must be false after a restore")
	}
	if !errors.Is(err, no) || refused.Load() != 1 {
		t.Errorf("Restore returned %v, want the error that the build function returned; %d proposals were refused during the restore, want 1", err, refused.Load())
	}
	if got := leader.Store().View().Info().Incarnation; got != old.Info().Incarnation {
		t.Errorf("after the failed restore the incarnation of the state is %d, want %d as before", got, old.Info().Incarnation)
	}
	g.put("w", 2)
}

func TestASurvivorIsRecovered(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	leader, _ := g.put("w", 1)
	before := leader.Store().View().Info()
	last := 0
	for i, n := range g.snapshot() {
		testbed.Until(t, "all replicas have the write before the quorum is lost", func() bool { return value(n.Store().View(), "w") == 1 })
		if n != leader {
			last = i
		}
	}
	dir := g.dirs[last]
	if _, err := Survey(dir, leader.log); !errors.Is(err, ErrInUse) {
		t.Errorf("Survey of a running replica returned %v, want ErrInUse", err)
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
		t.Errorf("Survey returned %+v, want the surviving replica, three servers and two lost replicas", look)
	}
	got, err := Recover(t.Context(), dir, "operator", leader.log)
	if err != nil {
		t.Fatal(err)
	}
	if got.State.Info().Incarnation <= before.Incarnation {
		t.Errorf("the recovered state has incarnation %d and the state before had %d, want a higher incarnation", got.State.Info().Incarnation, before.Incarnation)
	}
	// Recover can be repeated, for example after an interruption. The second call must change nothing more.
	if got, err = Recover(t.Context(), dir, "operator", leader.log); err != nil || len(got.Lost) != 0 {
		t.Fatalf("a second Recover returned error %v and the lost replicas %v, want no error and no lost replicas", err, got.Lost)
	}

	alone := g.start(last)
	leader = g.settled(1)
	if leader != alone || leader.ID() != id {
		t.Fatalf("replica %s leads as %s, want the surviving replica %s", leader.cfg.Name, leader.ID(), id)
	}
	if v := leader.Store().View(); value(v, "w") != 1 || v.Info().Incarnation != got.State.Info().Incarnation {
		t.Errorf("after the recovery workload w has the value %d in incarnation %d, want the value 1 in the recovered incarnation", value(v, "w"), v.Info().Incarnation)
	}
	g.put("w", 2)
	for i := range 3 {
		if i != last {
			g.start(i)
		}
	}
	g.settled(3)
	for _, n := range g.snapshot() {
		testbed.Until(t, "the other replicas have the state of the survivor", func() bool { return value(n.Store().View(), "w") == 2 })
	}
}

func TestCancelledRestoreChangesNothing(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	old := n.Store().State()
	g.put("w", 1)
	before := n.Store().View().Info().Incarnation
	ctx, cancel := context.WithCancel(t.Context())
	_, err := n.Restore(ctx, func(present fsm.State) (fsm.State, error) {
		cancel()
		return back(old)(present)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("a cancelled Restore returned %v, want only that its context was cancelled", err)
	}
	g.put("w", 2)
	if got := n.Store().View().Info().Incarnation; got != before {
		t.Errorf("after the cancelled restore the incarnation of the state is %d, want %d as before", got, before)
	}
}

// TestARecoveryByRootKeepsTheOwner: the scheduler runs as its own user, and root recovers its data directory.
// That user must be able to read the files that root creates.
func TestARecoveryByRootKeepsTheOwner(t *testing.T) {
	const service = 65534
	g := newGroup(t, 1)
	n := g.form()
	g.put("w", 1)
	g.close(0)
	each := func(do func(path string) error) {
		t.Helper()
		testbed.Need(t, "this test needs a user who may change the owner of files", filepath.WalkDir(g.dirs[0],
			func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, do(path)) }))
	}
	each(func(path string) error { return os.Chown(path, service, service) })
	if err := os.Remove(filepath.Join(g.dirs[0], lockFile)); err != nil { // removed, so that root must create the lock file
		t.Fatal(err)
	}
	if _, err := Recover(t.Context(), g.dirs[0], "root", n.log); err != nil {
		t.Fatal(err)
	}
	each(func(path string) error {
		st, err := os.Stat(path)
		if err == nil && st.Sys().(*syscall.Stat_t).Uid != service {
			t.Errorf("after a recovery by root, file %s must belong to the user of the service, but does not", path)
		}
		return err
	})
}

func TestUnusableDataDirectoriesAreNamed(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	log := n.log
	if _, err := Recover(t.Context(), t.TempDir(), "operator", log); err == nil {
		t.Error("Recover of an empty folder must return an error, but returned none")
	}
	g.close(0)
	if s, err := Recover(t.Context(), g.dirs[0], "operator", log); err != nil || len(s.Lost) != 0 {
		t.Errorf("Recover of a cluster with one replica returned %v, want success without lost replicas", err)
	}
}

// A replica that is closed while its state is being replaced stops after the replacement.
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
	case <-n.port.done: // Close has begun: the Raft library is stopping
		t.Error("Close must wait for the end of the restore, but returned before it")
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	<-closed
	if err := <-answer; err != nil && !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("the restore ended with %v, want nil or ErrUnknownOutcome", err)
	}
	if got := g.start(0).Store().View().Info().Incarnation; got <= old.Info().Incarnation {
		t.Errorf("after the restore the incarnation of the state is %d and was %d before, want a higher incarnation", got, old.Info().Incarnation)
	}
}

// Commands that were accepted before a restore began, but have not reached Raft yet, are in the state that
// build gets.
func TestARestoreSeesAcceptedCommands(t *testing.T) {
	n := newGroup(t, 1).form()
	testbed.Until(t, "the proposer has answered all earlier calls", func() bool { return n.prop.settle(timeout(t, time.Second)) == nil })
	calls, err := n.prop.encode([]fsm.Command{put("early", 1)})
	if err != nil {
		t.Fatal(err)
	}
	n.prop.mu.Lock()
	// Add the calls to the queue without waking the goroutine that runs coalesce.
	n.prop.queue, n.prop.bytes = append(n.prop.queue, calls...), n.prop.bytes+len(calls[0].frames)
	n.prop.mu.Unlock()
	go func() {
		for !n.Restoring() {
			runtime.Gosched()
		}
		time.AfterFunc(50*time.Millisecond, n.prop.rouse) // by then, a restore that does not wait for the calls would have ended
	}()
	if _, err := n.Restore(timeout(t, patience), func(present fsm.State) (fsm.State, error) {
		n.prop.rouse()
		if err := calls[0].wait(timeout(t, patience), nil); err != nil || calls[0].err != nil {
			t.Error(err, calls[0].err)
		}
		return fsm.Restored(present, present, fsm.RestoreInfo{At: time.Now().UnixNano(), By: "test"})
	}); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.Store().View().Workload("early"); !ok {
		t.Error("a workload whose command was accepted before the restore is not in the restored state")
	}
}
