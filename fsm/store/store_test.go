package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writer plays the goroutine that applies the log: it changes the state and publishes it in the
// store.
type writer struct {
	t     testing.TB
	st    *Store
	index uint64
}

func open(t testing.TB) *writer {
	w := &writer{t: t, st: New(fsm.New())}
	w.apply(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	return w
}

func (w *writer) apply(c fsm.Command) uint64 {
	w.t.Helper()
	w.index++
	s, res, changes := w.st.State().Apply(fsm.Meta{Index: w.index, Term: 1}, c)
	if err := res.Err(); err != nil {
		w.t.Errorf("the log entry must be applied without error, but: %v", err)
	}
	w.st.Publish(s, changes)
	return w.index
}

func (w *writer) put(id string) uint64 {
	w.t.Helper()
	return w.apply(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
		Workloads: []*commandv1.WorkloadPut{{Id: id, Content: "c1:aa", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}},
	}}})
}

func (w *writer) barrier() uint64 {
	w.t.Helper()
	return w.apply(&commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}})
}

// ids returns the ids of the workloads that a batch created.
func ids(b Batch) (out []string) {
	for _, c := range b.Changes {
		if c.Table == fsm.TableWorkload && c.OldWorkload() == nil {
			out = append(out, c.Key)
		}
	}
	return out
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAtReturnsAPastIndexAtOnce(t *testing.T) {
	w := open(t)
	index := w.put("web")
	v, err := w.st.At(soon(t), index)
	if err != nil || v.Info().Index != index {
		t.Fatalf("At returned view %v with error %v, want a view at the requested index", v, err)
	}
}

func TestAtWakesAtItsIndexAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		got := make(chan uint64, 1)
		go func() {
			v, err := w.st.At(t.Context(), 4)
			if err != nil {
				t.Error(err)
			}
			got <- v.Info().Index
		}()
		w.put("one")
		w.put("two")
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("At must wait for index 4, but returned at index %d", <-got)
		}
		w.barrier() // index 4: a barrier changes no record, but must wake the call that waits for index 4
		synctest.Wait()
		if len(got) != 1 || <-got != 4 {
			t.Fatal("At must return when index 4 is published, but did not")
		}
	})
}

func TestAtErrorNamesTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.st.At(ctx, 99)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("At returned error %v, want DeadlineExceeded", err)
		}
		if want := "wait for index 99 (at 1)"; err == nil || err.Error()[:len(want)] != want {
			t.Errorf("At returned error %v, want one that begins with %q", err, want)
		}
		if len(w.st.waiters) != 0 {
			t.Errorf("no call of At must be left waiting, but %d are", len(w.st.waiters))
		}
	})
}

func TestEveryWaiterWakesAtItsIndex(t *testing.T) {
	w := open(t)
	const n = 5000
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			want := uint64(2 + i%50)
			v, err := w.st.At(soon(t), want)
			if err != nil || v.Info().Index < want {
				t.Errorf("At(%d) must return a view at that index or later, but returned error %v", want, err)
			}
		})
	}
	for i := range 50 {
		w.put(fmt.Sprint("w", i))
	}
	all.Wait()
}

func TestCloseEndsEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		c, err := w.st.Changes(1)
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 2)
		go func() { _, err := w.st.At(t.Context(), 99); errs <- err }()
		go func() { _, err := c.Next(t.Context()); errs <- err }()
		synctest.Wait()
		w.st.Close()
		w.st.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrClosed) {
				t.Errorf("a waiting call returned error %v, want ErrClosed", err)
			}
		}
		if _, err := w.st.At(t.Context(), 99); !errors.Is(err, ErrClosed) {
			t.Errorf("At of a closed store returned error %v, want ErrClosed", err)
		}
		if _, err := w.st.Changes(1); !errors.Is(err, ErrClosed) {
			t.Errorf("Changes of a closed store returned error %v, want ErrClosed", err)
		}
		if w.st.View().Info().Index != 1 {
			t.Error("View of a closed store must still return the newest state, at index 1")
		}
	})
}

func TestCursorReadsEverythingOnceAndInOrder(t *testing.T) {
	w := open(t)
	c, err := w.st.Changes(w.index)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const n = 500
	var want, got []string
	for i := range n {
		want = append(want, fmt.Sprintf("w%03d", i))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, id := range want {
			w.put(id)
		}
	}()
	last := uint64(0)
	for len(got) < n {
		b, err := c.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if b.Index < last || b.View.Info().Index != b.Index {
			t.Fatalf("the batch at index %d has a view at index %d and follows a batch at %d; want the view at the batch's index, and growing indexes", b.Index, b.View.Info().Index, last)
		}
		last = b.Index
		got = append(got, ids(b)...)
		for _, id := range ids(b) {
			if _, ok := b.View.Workload(id); !ok {
				t.Fatalf("the View of a batch must have workload %s, which the batch created", id)
			}
		}
	}
	<-done
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the cursor returned workloads %v, want all created workloads in order", got)
	}
}

func TestCursorStartsAfterItsIndex(t *testing.T) {
	w := open(t)
	w.put("one")
	after := w.put("two")
	w.put("three")
	c, err := w.st.Changes(after)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := c.Next(soon(t))
	if err != nil || fmt.Sprint(ids(b)) != "[three]" {
		t.Errorf("Next returned workloads %v, error %v; want only workload three", ids(b), err)
	}
}

func TestCursorWaitsForChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		c, err := w.st.Changes(w.index)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan Batch, 1)
		go func() {
			b, err := c.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
		w.barrier()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("Next must wait until there are changes, but returned")
		}
		w.put("web")
		if b := <-got; fmt.Sprint(ids(b)) != "[web]" {
			t.Errorf("Next of the cursor returned changes of the workloads %v, want only workload \"web\"", ids(b))
		}
	})
}

func TestCursorEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		c, err := w.st.Changes(w.index)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next returned error %v, want DeadlineExceeded", err)
		}
		w.put("web")
		if b, err := c.Next(t.Context()); err != nil || fmt.Sprint(ids(b)) != "[web]" {
			t.Errorf("after a timeout, Next returned workloads %v and error %v, want workload web", ids(b), err)
		}
	})
}

func TestClosedCursorReturnsErrClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t)
		c, err := w.st.Changes(w.index)
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 1)
		go func() { _, err := c.Next(t.Context()); errs <- err }()
		synctest.Wait()
		c.Close()
		c.Close()
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Errorf("Next of a closed cursor returned error %v, want ErrClosed", err)
		}
	})
}

// TestStatsFollowTheFeed: the figures of Stats agree with the content of the feed.
func TestStatsFollowTheFeed(t *testing.T) {
	w := open(t)
	cur, err := w.st.Changes(w.index)
	if err != nil {
		t.Fatal(err)
	}
	w.put("web")
	if s := w.st.Stats(); s.Cursors != 1 || s.Entries == 0 || s.Changes == 0 || s.Bytes == 0 || s.Dropped != 0 || s.Compacted != 0 {
		t.Errorf("Stats are %+v", s)
	}
	fill(w, MaxEntries+1)
	if _, err := cur.Next(soon(t)); !errors.Is(err, ErrCompacted) {
		t.Errorf("Next returned error %v, want a batch", err)
	}
	waiting, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = w.st.At(waiting, w.index+1000)
	}()
	testbed.Until(t, "one waiting call of At", func() bool { return w.st.Stats().Waiters == 1 })
	stop()
	<-done
	if n := w.st.Stats().Waiters; n != 0 {
		t.Errorf("no call of At must be left waiting, but %d are", n)
	}
	cur.Close()
	cur.Close()
	if s := w.st.Stats(); s.Cursors != 0 || s.Entries != MaxEntries || s.Dropped == 0 || s.Compacted != 1 {
		t.Errorf("Stats are %+v", s)
	}
}

func TestSlowCursorsGetErrCompacted(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(w *writer)
		want error
	}{
		{"a cursor within the bounds continues", func(w *writer) { fill(w, MaxEntries) }, nil},
		{"a cursor that falls behind by entries gets ErrCompacted", func(w *writer) { fill(w, MaxEntries+1) }, ErrCompacted},
		{"a cursor that falls behind by changes gets ErrCompacted", func(w *writer) {
			w.st.Publish(w.st.State(), make([]fsm.Change, 1))
			w.st.Publish(w.st.State(), make([]fsm.Change, MaxChanges))
		}, ErrCompacted},
		{"a cursor that falls behind by bytes gets ErrCompacted", func(w *writer) {
			big := []fsm.Change{{Table: fsm.TableWorkload, New: &fsm.Workload{Spec: make([]byte, MaxBytes/2)}}}
			w.st.Publish(w.st.State(), big)
			w.st.Publish(w.st.State(), big)
		}, ErrCompacted},
		{"a restore gives a cursor ErrCompacted", func(w *writer) { w.st.Restore(w.st.State()) }, ErrCompacted},
		{"a restore to an older index gives a cursor ErrCompacted", func(w *writer) {
			w.put("web")
			w.st.Restore(fsm.New())
		}, ErrCompacted},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			cur, err := w.st.Changes(w.index)
			if err != nil {
				t.Fatal(err)
			}
			defer cur.Close()
			c.run(w)
			if _, err := cur.Next(soon(t)); !errors.Is(err, c.want) {
				t.Errorf("Next returned error %v, want %v", err, c.want)
			}
		})
	}
	t.Run("subscribing before the oldest entry gives ErrCompacted", func(t *testing.T) {
		w := open(t)
		fill(w, MaxEntries+5)
		if _, err := w.st.Changes(1); !errors.Is(err, ErrCompacted) {
			t.Errorf("Changes returned error %v, want ErrCompacted", err)
		}
		if _, err := w.st.Changes(w.st.View().Info().Index); err != nil {
			t.Errorf("Changes from the present index must succeed, but returned error %v", err)
		}
	})
	t.Run("a restore gives a waiting cursor ErrCompacted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := open(t)
			cur, err := w.st.Changes(w.index)
			if err != nil {
				t.Fatal(err)
			}
			errs := make(chan error, 1)
			go func() { _, err := cur.Next(t.Context()); errs <- err }()
			synctest.Wait()
			w.st.Restore(w.st.State())
			if err := <-errs; !errors.Is(err, ErrCompacted) {
				t.Errorf("Next returned error %v, want ErrCompacted", err)
			}
		})
	})
	t.Run("after a restore to an older index new changes are read", func(t *testing.T) {
		w := open(t)
		old := w.st.State()
		w.put("lost")
		w.st.Restore(old)
		w.index = old.Info().Index
		c, err := w.st.Changes(w.index)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w.put("found")
		b, err := c.Next(soon(t))
		if err != nil || fmt.Sprint(ids(b)) != "[found]" {
			t.Errorf("Next returned workloads %v, error %v; want only workload found", ids(b), err)
		}
	})
}

// fill publishes n log entries with one change each.
func fill(w *writer, n int) {
	for range n {
		w.index++
		s, _, _ := w.st.State().Apply(fsm.Meta{Index: w.index, Term: 1}, &commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}})
		w.st.Publish(s, make([]fsm.Change, 1))
	}
}

func BenchmarkPublishWithWaiters(b *testing.B) {
	w := open(b)
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range 5000 {
		all.Go(func() { _, _ = w.st.At(ctx, 1<<60) }) // no state reaches this index, so these calls of At keep waiting
	}
	s, change := w.st.State(), make([]fsm.Change, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.st.Publish(s, change)
	}
	cancel()
	all.Wait()
}
