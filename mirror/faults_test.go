package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/persys/compute/testbed"
)

// mirrored returns a cluster, and its running mirror that has already written the whole state to
// etcd.
func mirrored(t *testing.T, e *etcd, o Options) (*cluster, *run) {
	c := newCluster(t, "c1")
	c.do(register("a"), register("b"))
	for i := range 20 {
		c.do(put(fmt.Sprintf("w%d", i)))
	}
	r := c.start(e.client, o)
	r.awaitEqual(e)
	r.awaitState(Healthy)
	testbed.Within(t, testbed.Patience, "the full mirror is recorded as attached", func() error {
		if _, ok := c.Attached(); !ok {
			return errors.New("no etcd is recorded as attached")
		}
		return nil
	})
	testbed.Within(t, testbed.Patience, "the mirror has sent the transactions of its start", func() error {
		if n := r.Stats().Transactions; n < 3 { // the three transactions write the first cursor, the compared records, and the removal of old events
			return fmt.Errorf("%d transactions were sent so far, want 3", n)
		}
		return nil
	})
	return c, r
}

func TestMirrorResumesAfterEtcdStopped(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c, r := mirrored(t, e, quick)
	e.kill()
	r.awaitState(Unreachable)
	c.random(rand.New(rand.NewPCG(3, 4)), 50)
	testbed.Within(t, testbed.Patience, "the statistics show a lag", func() error {
		if s := r.Stats(); s.LagIndex == 0 || s.Lag == 0 {
			return fmt.Errorf("while etcd is down the mirror's statistics are %+v, want a lag", s)
		}
		return nil
	})
	e.start()
	r.awaitEqual(e)
	r.awaitState(Healthy)
	if got, want := r.told(), []State{Healthy, Unreachable, Healthy}; !slices.Equal(got, want) {
		t.Errorf("OnHealth received %v, want %v", got, want)
	}
	if s := r.Stats(); s.Comparisons != 1 {
		t.Errorf("the mirror made %d full comparisons, want 1 at its start: an etcd that kept its data needs none after an outage", s.Comparisons)
	}
	testbed.Within(t, testbed.Patience, "the statistics show no lag", func() error {
		if s := r.Stats(); s.LagIndex != 0 || s.Lag != 0 {
			return fmt.Errorf("after the outage the mirror's statistics are %+v, want no lag", s)
		}
		return nil
	})
}

// Changes are made while etcd is down, and the old leader stops. When etcd is back, the new leader
// must write these changes.
func TestEtcdAndLeaderStopped(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c, r := mirrored(t, e, quick)
	e.kill()
	c.random(rand.New(rand.NewPCG(5, 6)), 20)
	r.stop()
	c.term++
	r = c.start(e.client, quick)
	c.random(rand.New(rand.NewPCG(7, 8)), 20)
	r.awaitState(Unreachable)
	e.start()
	r.awaitEqual(e)
	r.awaitState(Healthy)
}

// The mirror has the state Unreachable while etcd hangs, and Healthy afterwards.
func TestMirrorRecoversAfterEtcdHung(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c, r := mirrored(t, e, quick)
	e.signal(syscall.SIGSTOP)
	c.random(rand.New(rand.NewPCG(9, 10)), 50)
	r.awaitState(Unreachable)
	e.signal(syscall.SIGCONT)
	r.awaitEqual(e)
	r.awaitState(Healthy)
}

// The mirror becomes unreachable only after two failed probes in a row, and healthy again only after two
// successful ones.
func TestStateChangesAfterTwoProbes(t *testing.T) {
	now := time.Unix(0, 0)
	j := newJudge(func() time.Time { now = now.Add(time.Second); return now })
	down := errors.New("down")
	for i, step := range []struct {
		do   func() bool
		want State
	}{
		{func() bool { return j.probed(nil) }, Starting},
		{j.caughtUp, Healthy},
		{func() bool { return j.probed(down) }, Healthy},
		{func() bool { return j.probed(nil) }, Healthy},
		{func() bool { return j.probed(down) }, Healthy},
		{func() bool { return j.probed(down) }, Unreachable},
		{func() bool { return j.failed(down) }, Unreachable},
		{func() bool { return j.probed(nil) }, Failing}, // etcd answers the probe, but no write has succeeded yet, so the mirror is still failing
		{j.caughtUp, Failing},                           // the mirror is still failing: two successful probes in a row are needed
		{func() bool { return j.probed(nil) }, Healthy},
		{func() bool { return j.found(ErrEmptied) }, Emptied},
		{func() bool { return j.probed(nil) }, Emptied},
		{func() bool { return j.probed(down) }, Emptied},
		{func() bool { return j.probed(down) }, Unreachable},
		{func() bool { return j.probed(nil) }, Emptied}, // a probe does not change what is known about the contents of etcd
		{func() bool { return j.found(fmt.Errorf("%w: c2", ErrForeignData)) }, Foreign},
		{j.caughtUp, Healthy},
		{func() bool { return j.failed(down) }, Failing},
		{func() bool { return j.probed(nil) }, Failing},
		{j.caughtUp, Healthy},
		{func() bool { return j.probed(down) }, Healthy},
		{func() bool { return j.probed(down) }, Unreachable},
		{func() bool { return j.failed(context.DeadlineExceeded) }, Unreachable},
		{func() bool { return j.probed(nil) }, Unreachable}, // the last write failed because etcd was unreachable, so the state stays unreachable
		{func() bool { return j.probed(nil) }, Unreachable},
		{j.caughtUp, Healthy},
	} {
		was := j.health
		changed := step.do()
		if j.health.State != step.want {
			t.Fatalf("after step %d of the test the mirror has the state %s, want %s", i, j.health.State, step.want)
		}
		if changed != (was.State != step.want) || changed && !j.health.Since.After(was.Since) {
			t.Errorf("in step %d of the test the judge reported whether the state changed as %v (state since %v); want true only if it changed", i, changed, j.health.Since)
		}
	}
}

// The mirror has the state Failing while etcd is out of space, and Healthy again after space was
// freed.
func TestMirrorRecoversAfterEtcdWasFull(t *testing.T) {
	for _, tt := range []struct {
		name   string
		binary func(testing.TB) string
	}{{"current", currentEtcd}, {"Debian", debian}} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, tt.binary(t), "--quota-backend-bytes=4194304")
			c, r := mirrored(t, e, quick)
			e.fill()
			c.do(put("too-much"))
			r.awaitReason(Failing, "space exceeded")
			c.random(rand.New(rand.NewPCG(11, 12)), 30)
			e.makeRoom()
			r.awaitEqual(e)
			r.awaitState(Healthy)
			if got, want := r.told(), []State{Healthy, Failing, Healthy}; !slices.Equal(got, want) {
				t.Errorf("OnHealth received %v, want %v", got, want)
			}
		})
	}
}

// fill writes keys until etcd is full and raises its NOSPACE alarm.
func (e *etcd) fill() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 20*time.Second)
	defer cancel()
	value := strings.Repeat("x", 100<<10)
	for i := range 1000 {
		if _, err := e.admin().Put(ctx, fmt.Sprintf("/filler/%d", i), value); err != nil {
			if !strings.Contains(err.Error(), "space exceeded") {
				e.t.Fatal(err)
			}
			return
		}
	}
	e.t.Fatal("the server never ran out of space")
}

// makeRoom frees space as an operator does: delete, compact, defragment, disarm the alarm.
func (e *etcd) makeRoom() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 20*time.Second)
	defer cancel()
	r, err := e.admin().Delete(ctx, "/filler/", clientv3.WithPrefix())
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.client.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.admin().Defragment(ctx, e.url); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.admin().AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		e.t.Fatal(err)
	}
}

// If the attached etcd has lost all its data, the mirror writes nothing to it until an operator
// calls Restore.
func TestWipedEtcdIsNotWrittenBeforeRestore(t *testing.T) {
	for _, tt := range []struct {
		name string
		wipe func(*etcd)
	}{
		{"the disk of etcd was lost", func(e *etcd) { e.replaceBy("") }},
		{"a person deleted all keys", func(e *etcd) { e.delete("", clientv3.WithPrefix()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c, r := mirrored(t, e, quick)
			tt.wipe(e)
			r.awaitState(Emptied)
			c.random(rand.New(rand.NewPCG(13, 14)), 10)
			if all, err := e.contents("/"); err != nil || len(all) > 0 {
				t.Errorf("etcd must be empty before an operator calls Restore, but has the keys %v (error %v)", all, err)
			}
			p, err := r.Preview(t.Context())
			if err != nil || p.Create < 40 || p.Equal != 0 || p.Change != 0 || p.Remove != 0 || !p.Listed() {
				t.Errorf("the preview has %d equal keys, %d to create, %d to change and %d to remove (error %v); want only keys to create", p.Equal, p.Create, p.Change, p.Remove, err)
			}
			if err := r.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.awaitEqual(e)
			r.awaitState(Healthy)
			if got := r.told(); got[len(got)-1] != Healthy || !slices.Contains(got, Emptied) {
				t.Errorf("OnHealth received the states %v, want Emptied and then Healthy", got)
			}
			if id, _ := c.Attached(); id != r.etcdCluster.Load() {
				t.Errorf("after the restore the attached etcd is %x, want the etcd that was written, %x", id, r.etcdCluster.Load())
			}
		})
	}
}

// The mirror repairs an etcd that was restored from an older backup; no operator has to act.
func TestEtcdRestoredFromAnOlderSnapshot(t *testing.T) {
	for _, tt := range []struct {
		name string
		kill bool // whether the test also stops the leader
	}{{"the leader stays the same", false}, {"the leader is killed meanwhile", true}} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c, r := mirrored(t, e, quick)
			old := filepath.Join(t.TempDir(), "old")
			e.copyTo(old)
			rnd := rand.New(rand.NewPCG(15, 16))
			c.random(rnd, 60)
			c.do(remove("w19", true), put("new"))
			r.awaitEqual(e)
			e.replaceBy(old)
			if tt.kill {
				r.stop()
				c.term++
				r = c.start(e.client, quick)
			}
			r.awaitEqual(e)
			r.awaitState(Healthy)
		})
	}
}

// If another etcd answers than the attached one, the mirror does not write to it, not even by Restore, until
// that etcd is attached.
func TestAnotherEtcdIsNotWritten(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	c.mu.Lock()
	c.attached, c.isAttached = 0xbad, true
	c.mu.Unlock()
	r := c.start(e.client, quick)
	r.awaitState(Other)
	if err := r.Restore(t.Context()); !errors.Is(err, ErrOtherEtcd) || !strings.Contains(err.Error(), "attached to bad") || !strings.Contains(err.Error(), "persysctl mirror detach") {
		t.Errorf("Restore returned %v, want ErrOtherEtcd with the attached id and the command to detach", err)
	}
	if all, err := e.contents("/"); err != nil || len(all) > 0 {
		t.Errorf("another etcd than the attached one must stay empty, but has the keys %v (error %v)", all, err)
	}
	c.mu.Lock()
	c.attached, c.isAttached = 0, false
	c.mu.Unlock()
	r.awaitEqual(e)
	r.awaitState(Healthy)
}

func TestProbeTellsWhoseRecordsEtcdHolds(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	id, err := Probe(t.Context(), e.client, "", "c1", time.Second)
	if err != nil || id == 0 {
		t.Fatalf("Probe of an empty etcd returned the cluster id %x and error %v; want the id and no error", id, err)
	}
	mirrored(t, e, quick)
	if again, err := Probe(t.Context(), e.client, "", "c1", time.Second); err != nil || again != id {
		t.Errorf("Probe of an etcd with the cluster's own records returned the cluster id %x and error %v; want the id and no error", again, err)
	}
	if again, err := Probe(t.Context(), e.client, "", "c2", time.Second); !errors.Is(err, ErrForeignData) || again != id {
		t.Errorf("Probe of an etcd with records of another cluster returned the cluster id %x and error %v; want the id and ErrForeignData", again, err)
	}
	e.put("/old/workloads/x", "{}")
	if again, err := Probe(t.Context(), e.client, "/old", "c1", time.Second); !errors.Is(err, ErrForeignData) || again != id {
		t.Errorf("Probe of an etcd with records without owner returned the cluster id %x and error %v; want the id and ErrForeignData", again, err)
	}
	e.kill()
	if again, err := Probe(t.Context(), e.client, "", "c1", 200*time.Millisecond); err == nil || again != 0 {
		t.Errorf("Probe of an unreachable etcd returned the cluster id %x and error %v; want 0 and an error", again, err)
	}
}

// The mirror has never written to this etcd. If it is empty, the mirror fills it; if it holds data,
// the mirror refuses to write to it.
func TestEtcdNeverAttached(t *testing.T) {
	t.Run("an empty etcd is filled", func(t *testing.T) {
		e := startEtcd(t, currentEtcd(t))
		_, r := mirrored(t, e, quick)
		if got := r.told(); !slices.Equal(got, []State{Healthy}) {
			t.Errorf("OnHealth received the states %v, want only Healthy", got)
		}
	})
	for _, key := range []string{"/nodes/n1", "/workloads/x", "/workloads-spec/x", "/assignments/x"} {
		t.Run("an etcd with data is refused, under "+key, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			e.put(key, "{}")
			c := newCluster(t, "c1")
			c.do(register("a"))
			r := c.start(e.client, quick)
			r.awaitState(Foreign)
			if all, err := e.contents("/"); err != nil || len(all) != 1 {
				t.Errorf("a refused etcd must keep its content, but has the keys %v (error %v)", all, err)
			}
			if err := r.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.awaitEqual(e)
		})
	}
}

// Restore fails on a replica on which Run is not running.
func TestRestoreNeedsTheWriter(t *testing.T) {
	c := newCluster(t, "c1")
	m, err := New(quick, Deps{Store: c.st, Etcd: clientv3.NewKVFromKVClient(nil, nil), Attachment: c, Confirm: func(context.Context) error { return nil }, Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(t.Context()); !errors.Is(err, errNotRunning) {
		t.Errorf("Restore on a replica without a running mirror returned %v, want errNotRunning", err)
	}
}

// hung is an etcd client whose calls block until their deadline.
type hung struct{ Etcd }

type hungTxn struct {
	clientv3.Txn
	ctx context.Context
}

func (hung) Get(ctx context.Context, _ string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hung) Txn(ctx context.Context) clientv3.Txn        { return hungTxn{ctx: ctx} }
func (x hungTxn) If(...clientv3.Cmp) clientv3.Txn        { return x }
func (x hungTxn) Then(...clientv3.Op) clientv3.Txn       { return x }
func (x hungTxn) Else(...clientv3.Op) clientv3.Txn       { return x }
func (x hungTxn) Commit() (*clientv3.TxnResponse, error) { <-x.ctx.Done(); return nil, x.ctx.Err() }

// Restore returns an error when the leadership term ends.
func TestRestoreEndsWithTheLeadershipTerm(t *testing.T) {
	o := quick
	o.ProbeEvery = time.Hour
	for _, tt := range []struct {
		name string
		wait time.Duration
	}{{"the leadership term ends before a session has taken the request", 0}, {"the leadership term ends while a session carries out the request", o.WriteBound + 2*o.CallLimit}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
				defer cancel()
				r := newCluster(t, "c1").start(hung{}, o)
				synctest.Wait()
				done := make(chan error, 1)
				go func() { done <- r.Restore(ctx) }()
				time.Sleep(tt.wait)
				synctest.Wait()
				r.stop()
				if err := <-done; !errors.Is(err, errNotRunning) {
					t.Errorf("Restore whose leadership term ended returned %v, want errNotRunning", err)
				}
			})
		})
	}
}
