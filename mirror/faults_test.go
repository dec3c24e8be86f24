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

// mirrored returns a cluster whose state is completely in etcd.
func mirrored(t *testing.T, e *etcd, o Options) (*cluster, *run) {
	c := newCluster(t, "c1")
	c.do(register("a"), register("b"))
	for i := range 20 {
		c.do(put(fmt.Sprintf("w%d", i)))
	}
	r := c.start(e.client, o)
	r.awaitEqual(e)
	r.awaitState(Healthy)
	if _, ok := c.Attached(); !ok {
		t.Fatal("the full mirror was not recorded as attached")
	}
	testbed.Within(t, testbed.Patience, "the mirror has nothing left to do", func() error {
		if n := r.Stats().Transactions; n < 3 { // claim, comparison, trim
			return fmt.Errorf("%d transactions", n)
		}
		return nil
	})
	return c, r
}

func TestEtcdStopped(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c, r := mirrored(t, e, quick)
	e.kill()
	r.awaitState(Unreachable)
	c.random(rand.New(rand.NewPCG(3, 4)), 50)
	testbed.Within(t, testbed.Patience, "the lag shows", func() error {
		if s := r.Stats(); s.LagIndex == 0 || s.Lag == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	e.start()
	r.awaitEqual(e)
	r.awaitState(Healthy)
	if got, want := r.told(), []State{Healthy, Unreachable, Healthy}; !slices.Equal(got, want) {
		t.Errorf("the leader was told of %v, want %v", got, want)
	}
	if s := r.Stats(); s.Comparisons != 1 {
		t.Errorf("%d full comparisons: an etcd that kept its data needs none", s.Comparisons)
	}
	testbed.Within(t, testbed.Patience, "the lag is gone", func() error {
		if s := r.Stats(); s.LagIndex != 0 || s.Lag != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// A new leader writes the changes that were made while etcd was down and the old leader
// stopped.
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

// The mirror is unreachable while etcd hangs, and recovers afterwards.
func TestEtcdHangs(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c, r := mirrored(t, e, quick)
	e.signal(syscall.SIGSTOP)
	c.random(rand.New(rand.NewPCG(9, 10)), 50)
	r.awaitState(Unreachable)
	e.signal(syscall.SIGCONT)
	r.awaitEqual(e)
	r.awaitState(Healthy)
}

// One failed probe does not make the mirror unreachable, and one successful probe does not
// make it healthy.
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
		{func() bool { return j.probed(nil) }, Failing}, // etcd answers, but no write has succeeded yet
		{j.caughtUp, Failing},                           // one probe is not enough
		{func() bool { return j.probed(nil) }, Healthy},
		{func() bool { return j.found(ErrEmptied) }, Emptied},
		{func() bool { return j.probed(nil) }, Emptied},
		{func() bool { return j.probed(down) }, Emptied},
		{func() bool { return j.probed(down) }, Unreachable},
		{func() bool { return j.probed(nil) }, Emptied}, // the last known contents of etcd
		{func() bool { return j.found(fmt.Errorf("%w: c2", ErrForeignData)) }, Foreign},
		{j.caughtUp, Healthy},
		{func() bool { return j.failed(down) }, Failing},
		{func() bool { return j.probed(nil) }, Failing},
		{j.caughtUp, Healthy},
		{func() bool { return j.probed(down) }, Healthy},
		{func() bool { return j.probed(down) }, Unreachable},
		{func() bool { return j.failed(context.DeadlineExceeded) }, Unreachable},
		{func() bool { return j.probed(nil) }, Unreachable}, // the write failed because etcd was unreachable
		{func() bool { return j.probed(nil) }, Unreachable},
		{j.caughtUp, Healthy},
	} {
		was := j.health
		changed := step.do()
		if j.health.State != step.want {
			t.Fatalf("step %d: %s, want %s", i, j.health.State, step.want)
		}
		if changed != (was.State != step.want) || changed && !j.health.Since.After(was.Since) {
			t.Errorf("step %d: changed %v, since %v", i, changed, j.health.Since)
		}
	}
}

// The mirror is failing while etcd is out of space, and healthy again after space was freed.
func TestNoSpace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		binary func(testing.TB) string
	}{{"current", currentEtcd}, {"Debian", debian}} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, tt.binary(t), "--quota-backend-bytes=4194304")
			c, r := mirrored(t, e, quick)
			e.fill()
			c.do(put("too-much"))
			r.awaitState(Failing)
			if reason := r.Stats().Health.Reason; !strings.Contains(reason, "space exceeded") {
				t.Errorf("the reason does not say it: %s", reason)
			}
			c.random(rand.New(rand.NewPCG(11, 12)), 30)
			e.makeRoom()
			r.awaitEqual(e)
			r.awaitState(Healthy)
			if got, want := r.told(), []State{Healthy, Failing, Healthy}; !slices.Equal(got, want) {
				t.Errorf("the leader was told of %v, want %v", got, want)
			}
		})
	}
}

// fill writes until etcd raises the NOSPACE alarm.
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
	e.t.Fatal("the server took everything")
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

// An etcd that was attached and is empty now is not written until Restore is called.
func TestEtcdWiped(t *testing.T) {
	for _, tt := range []struct {
		name string
		wipe func(*etcd)
	}{
		{"its disk was lost", func(e *etcd) { e.replaceBy("") }},
		{"somebody deleted all keys", func(e *etcd) { e.delete("", clientv3.WithPrefix()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c, r := mirrored(t, e, quick)
			tt.wipe(e)
			r.awaitState(Emptied)
			c.random(rand.New(rand.NewPCG(13, 14)), 10)
			if all, err := e.contents("/"); err != nil || len(all) > 0 {
				t.Errorf("something was written before anybody asked for it: %v %v", all, err)
			}
			p, err := r.Preview(t.Context())
			if err != nil || p.Create < 40 || p.Equal != 0 || p.Change != 0 || p.Remove != 0 || !p.Listed() {
				t.Errorf("the preview says %d equal, %d to create, %d to change, %d to remove, %v", p.Equal, p.Create, p.Change, p.Remove, err)
			}
			if err := r.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.awaitEqual(e)
			r.awaitState(Healthy)
			if got := r.told(); got[len(got)-1] != Healthy || !slices.Contains(got, Emptied) {
				t.Errorf("the leader was told of %v", got)
			}
			if id, _ := c.Attached(); id != r.etcdCluster.Load() {
				t.Errorf("attached to %x, this is %x", id, r.etcdCluster.Load())
			}
		})
	}
}

// The mirror repairs an etcd that was restored from an older backup without an operator.
func TestEtcdRestoredFromAnOlderSnapshot(t *testing.T) {
	for _, tt := range []struct {
		name string
		kill bool // also stop the leader
	}{{"under the same leader", false}, {"and the leader was killed", true}} {
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

// An etcd that was never attached is filled if it is empty and refused if it holds data.
func TestEtcdNeverAttached(t *testing.T) {
	t.Run("empty", func(t *testing.T) {
		e := startEtcd(t, currentEtcd(t))
		_, r := mirrored(t, e, quick)
		if got := r.told(); !slices.Equal(got, []State{Healthy}) {
			t.Errorf("the leader was told of %v", got)
		}
	})
	for _, key := range []string{"/nodes/n1", "/workloads/x", "/workloads-spec/x", "/assignments/x"} {
		t.Run("data under "+key, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			e.put(key, "{}")
			c := newCluster(t, "c1")
			c.do(register("a"))
			r := c.start(e.client, quick)
			r.awaitState(Foreign)
			if all, err := e.contents("/"); err != nil || len(all) != 1 {
				t.Errorf("something was written: %v %v", all, err)
			}
			if err := r.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.awaitEqual(e)
		})
	}
}

// Restore fails on a replica that does not run Run.
func TestRestoreNeedsTheWriter(t *testing.T) {
	c := newCluster(t, "c1")
	m, err := New(quick, Deps{Store: c.st, Etcd: clientv3.NewKVFromKVClient(nil, nil), Attachment: c, Confirm: func(context.Context) error { return nil }, Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(t.Context()); !errors.Is(err, errNotRunning) {
		t.Errorf("Restore returned %v", err)
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
	}{{"before a session took it", 0}, {"during its session", o.WriteBound + 2*o.CallLimit}} {
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
					t.Errorf("Restore returned %v", err)
				}
			})
		})
	}
}
