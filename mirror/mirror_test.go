package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/testbed"
)

// After random commands and changes of the leader, etcd must hold exactly the keys and values that
// follow from the state.
func TestEqualsTheStateAfterRandomCommands(t *testing.T) {
	for _, tt := range []struct {
		name   string
		binary func(testing.TB) string
		o      Options
	}{
		{"layout whole on the current etcd version", currentEtcd, Options{}},
		{"layout both under a prefix on the current etcd version", currentEtcd, Options{Layout: LayoutBoth, Prefix: "/east/one/"}},
		{"layout both on Debian's etcd version", debian, Options{Layout: LayoutBoth}},
		{"at most 20 events are kept", currentEtcd, Options{MaxEvents: 20}},
		{"events are kept for 30 seconds", currentEtcd, Options{MaxAge: 30 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, tt.binary(t))
			o := tt.o
			o.ProbeEvery, o.CallLimit = quick.ProbeEvery, quick.CallLimit
			c := newCluster(t, "c1")
			rnd := rand.New(rand.NewPCG(1, 2))
			c.random(rnd, 40)
			for range 4 {
				r := c.start(e.client, o)
				c.random(rnd, 60)
				r.awaitEqual(e)
				c.random(rnd, 30)
				r.stop() // the leadership term ends while changes are being written
				c.term++
				c.random(rnd, 10)
			}
			r := c.start(e.client, o)
			r.awaitEqual(e)
			r.awaitState(Healthy)
			if n := r.Stats().Comparisons; n != 0 {
				t.Errorf("the last leader made %d full comparisons, want none, because it could resume after the cursor", n)
			}
		})
	}
}

// The node record shows the allocated resources after workloads come and go, although the record of the node
// in the state does not change.
func TestNodeRecordFollowsAllocation(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	for _, step := range []func() fsm.Command{
		func() fsm.Command { return c.assign("web", "a") },
		func() fsm.Command { return c.evict("web") },
		func() fsm.Command { return c.assign("web", "a") },
		func() fsm.Command { return remove("web", false) },
	} {
		c.do(step())
		r.awaitEqual(e)
	}
	if n := r.Stats().Comparisons; n != 1 {
		t.Errorf("the mirror made %d full comparisons, want 1: a further one would hide a missing write", n)
	}
}

// A change of an open drift makes no event. The mirror writes the changed record all the same, even
// after the event by which the drift was opened has expired.
func TestChangedDriftIsWritten(t *testing.T) {
	for _, events := range []int{1000, 1} {
		t.Run(fmt.Sprintf("keeping %d events", events), func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c := newCluster(t, "c1")
			c.do(register("a"))
			o := quick
			o.MaxEvents = events
			r := c.start(e.client, o)
			r.awaitEqual(e)
			drop := &commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: "a", Workload: "ghost"}}}
			for _, step := range []fsm.Command{
				setDriftAs("a", "ghost", fsm.DriftOrphan, "Running", true),
				setDriftAs("a", "ghost", fsm.DriftOrphan, "Failed", true),
				drop,
				setDriftAs("a", "ghost", fsm.DriftOrphan, "Stopped", false),
				setDriftAs("a", "ghost", fsm.DriftOrphan, "Stopped", true),
			} {
				c.do(step)
				r.awaitEqual(e)
			}
			c.do(setDriftAs("a", "ghost", fsm.DriftOrphan, "Failed", true), setDriftAs("a", "ghost", fsm.DriftOrphan, "", false))
			r.awaitEqual(e)
			if n := r.Stats().Comparisons; n != 1 {
				t.Errorf("the mirror made %d full comparisons, want 1: a further one would hide a missing write", n)
			}
		})
	}
}

// A drift whose event has expired changes. Its record is written once, in the transaction that also removes
// old events.
func TestChangedDriftIsWrittenOnceAfterItsEventExpired(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"))
	c.do(setDrift("a", "ghost", fsm.DriftOrphan, true))
	c.now += int64(8 * 24 * time.Hour)
	c.do(register("a")) // this command advances the clock of the state, as any command does
	o := quick
	o.ProbeEvery = time.Hour // so nothing is removed before the drift changes, and a failed session stays visible, because there is no retry
	o.CallLimit, o.WriteBound = 10*time.Second, testbed.Patience
	r := c.start(e.client, o)
	r.awaitEqual(e)
	c.do(setDriftAs("a", "ghost", fsm.DriftOrphan, "Failed", true))
	r.awaitEqual(e)
	if n := r.Stats().Sessions; n != 1 {
		t.Errorf("the mirror began %d sessions, want 1", n)
	}
}

// A full comparison repairs keys that another process changed.
func TestAuditRepairsForeignChanges(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	o := quick
	o.AuditEvery = 100 * time.Millisecond
	r := c.start(e.client, o)
	r.awaitEqual(e)
	e.put("/workloads/web", "{}")
	e.put("/assignments/ghost", "{}")
	e.delete("/retries/web")
	e.put("/skydns/local/persys/x", "not ours to touch")
	c.do(put("web-2"))
	r.awaitEqual(e)
	if e.value("/skydns/local/persys/x") == "" {
		t.Error("the full comparison has removed a key outside of the mirror's documented prefixes")
	}
}

// A new leader writes only the changes after the cursor.
func TestResumesAfterTheCursor(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"))
	for i := range 50 {
		c.do(put(fmt.Sprintf("w%d", i)))
	}
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	r.stop()
	c.term++
	c.do(put("late"))
	r = c.start(e.client, quick)
	r.awaitEqual(e)
	// The new leader must write only what the old one had not: the record, the retry and the event of workload
	// "late". It also removes old events once.
	if s := r.Stats(); s.Comparisons != 0 || s.Records > 10 {
		t.Errorf("the new leader wrote %d keys, want at most 10, and made %d full comparisons, want none", s.Records, s.Comparisons)
	}
}

// If the change feed of a replica begins after the index in the cursor, so that changes are
// missing, its mirror compares all keys.
func TestComparesIfTheFeedStartsLater(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("old"), put("web"))
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	r.stop()
	c.do(remove("old", true), put("new"))
	restored := c.fork()
	restored.term++
	r = restored.start(e.client, quick)
	r.awaitEqual(e)
	testbed.Until(t, "the mirror has made one full comparison", func() bool { return r.Stats().Comparisons == 1 })
}

// After a snapshot replaced the state in the store, the change feed has gaps, so the mirror must
// compare all keys.
func TestComparesAfterARestoredSnapshot(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	other := c.fork()
	other.do(put("from-snapshot"), remove("web", true))
	c.mu.Lock()
	c.index = other.index
	c.st.Restore(other.st.State())
	c.mu.Unlock()
	r.awaitEqual(e)
	testbed.Until(t, "the mirror has made a second full comparison", func() bool { return r.Stats().Comparisons == 2 })
}

// If the setting for the layout (which records are written for a workload) changes, the mirror removes the
// keys of the old layout and writes those of the new one.
func TestLayoutChange(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	for _, layout := range []Layout{LayoutBoth, LayoutWhole, LayoutBoth} {
		o := quick
		o.Layout = layout
		r := c.start(e.client, o)
		r.awaitEqual(e)
		r.stop()
		if got := e.value("/workloads-spec/web") != ""; got != (layout == LayoutBoth) {
			t.Errorf("with layout %s, whether a split record exists is %v; want one only with layout both", layout, got)
		}
	}
}

// The mirror of a second cluster writes nothing under the prefix of the first cluster, and works
// under another prefix.
func TestTwoClustersUnderOnePrefix(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	first, second := newCluster(t, "c1"), newCluster(t, "c2")
	first.do(register("a"), put("web"))
	second.do(register("b"), put("db"))
	r1 := first.start(e.client, quick)
	r1.awaitEqual(e)
	r2 := second.start(e.client, quick)
	r2.awaitReason(Foreign, "c1")
	r2.stop()
	o := quick
	o.Prefix = "two"
	r2 = second.start(e.client, o)
	r2.awaitEqual(e)
	first.do(put("web-2"))
	r1.awaitEqual(e)

	// While the first cluster still runs, an operator orders the second cluster to overwrite the first
	// cluster's prefix (Restore).
	r2.stop()
	r2 = second.start(e.client, quick)
	r2.awaitState(Foreign)
	if err := r2.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.do(put("web-3"))
	r1.awaitState(Foreign)
	r2.awaitEqual(e)
	if e.value("/persys/mirror/c1/cursor") != "" {
		t.Error("the former owner's cursor is still in etcd")
	}
}

// counted is an etcd client that records the largest number of operations and of bytes in a
// transaction.
type counted struct {
	Etcd
	maxOps, maxBytes atomic.Int64
}

type countedTxn struct {
	clientv3.Txn
	kv *counted
}

func (c *counted) Txn(ctx context.Context) clientv3.Txn { return countedTxn{c.Etcd.Txn(ctx), c} }

func (x countedTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return countedTxn{x.Txn.If(cs...), x.kv} }
func (x countedTxn) Else(o ...clientv3.Op) clientv3.Txn { return countedTxn{x.Txn.Else(o...), x.kv} }
func (x countedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	n := int64(0)
	for _, op := range ops {
		n += int64(len(op.KeyBytes()) + len(op.ValueBytes()))
	}
	raise(&x.kv.maxOps, int64(len(ops)))
	raise(&x.kv.maxBytes, n)
	return countedTxn{x.Txn.Then(ops...), x.kv}
}

func raise(a *atomic.Int64, to int64) {
	for {
		old := a.Load()
		if to <= old || a.CompareAndSwap(old, to) {
			return
		}
	}
}

// Transactions stay within their limits for many records and for very large records.
func TestTransactionsStayWithinLimits(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	kv := &counted{Etcd: e.client}
	r := c.start(kv, quick)
	large := bytes.Repeat([]byte("s"), 512<<10)
	for i := range 6 {
		c.do(putSpec(fmt.Sprintf("large-%d", i), large, "c1:aa"))
	}
	var many []fsm.Command
	for i := range 700 {
		many = append(many, put(fmt.Sprintf("small-%d", i)))
	}
	c.do(many...)
	r.awaitEqual(e)
	if ops, size := kv.maxOps.Load(), kv.maxBytes.Load(); ops > 100 || ops < 90 || size > 1<<20 || size < 600<<10 {
		t.Errorf("the largest transactions had %d operations and %d bytes; want them nearly full, and within 100 operations and 1 MiB", ops, size)
	}
}

// Fields are left out of a record that is too large, but never the sealed specification.
func TestLargeFieldIsOmitted(t *testing.T) {
	w := &fsm.Workload{ID: "big", Spec: bytes.Repeat([]byte("s"), 512<<10), Content: "c1:aa", Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}
	p := &Projection{layout: LayoutBoth, describe: func(*fsm.Workload) Fields {
		return Fields{Image: "image", ComposeYAML: strings.Repeat("y", 512<<10)}
	}}
	for _, kv := range p.records(w) {
		if len(kv.Value) > maxValue {
			t.Errorf("the record %s has %d bytes, want at most maxValue", kv.Key, len(kv.Value))
		}
	}
	if got := p.whole(w); got.ComposeYAML != "" || got.Image != "image" || len(got.Extension.Spec) != 512<<10 {
		t.Errorf("the large record has %d bytes of the Compose file, want none; image %q; and %d bytes of the sealed specification, want all", len(got.ComposeYAML), got.Image, len(got.Extension.Spec))
	}
}

// Every record fits into a transaction, even if JSON escapes each byte as six bytes. A record that does not
// fit would stop the mirror.
func TestEveryRecordFitsIntoATransaction(t *testing.T) {
	for _, size := range []int{60 << 10, 200 << 10, 512 << 10} {
		text := strings.Repeat("<", size)
		command, constraints := Fields{Command: []string{text}}, []fsm.Constraint{{Key: "zone", Op: "in", Values: []string{text}}}
		for _, c := range []struct {
			fields Fields
			demand fsm.Demand
		}{{command, fsm.Demand{}}, {Fields{}, fsm.Demand{Constraints: constraints}}} {
			w := &fsm.Workload{ID: "big", Spec: []byte(text), Content: "c1:aa", Demand: &c.demand, Actual: &fsm.Observation{}}
			p := &Projection{layout: LayoutBoth, describe: func(*fsm.Workload) Fields { return c.fields }}
			for _, kv := range p.records(w) {
				if len(kv.Value) > maxValue {
					t.Errorf("with a spec of %d bytes and %d constraints the record %s has %d bytes, more than fit into a transaction", size, len(c.demand.Constraints), kv.Key, len(kv.Value))
				}
			}
			// An import refuses a record whose constraints were left out because of its size.
			if r := p.whole(w); len(r.Extension.Demand.Constraints) != len(w.Demand.Constraints) {
				if _, err := putOf(r, nil); err == nil {
					t.Errorf("a record of %d bytes was imported without its constraints", size)
				}
			}
		}
	}
}

// Old revisions in etcd are compacted after a certain time, and after a certain number of written bytes.
func TestRevisionsAreCompacted(t *testing.T) {
	for _, tt := range []struct {
		name string
		tune func(*Options)
	}{
		{"compaction after the interval", func(o *Options) { o.CompactEvery = 50 * time.Millisecond }},
		{"compaction after a number of written bytes", func(o *Options) { o.CompactBytes = 10_000 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c := newCluster(t, "c1")
			o := quick
			tt.tune(&o)
			c.start(e.client, o)
			e.put("/other", "1")
			r, err := e.client.Get(t.Context(), "/other")
			if err != nil {
				t.Fatal(err)
			}
			first := r.Header.Revision
			testbed.Within(t, testbed.Patience, "etcd has compacted an old revision", func() error {
				c.do(put(fmt.Sprintf("w%d", c.index)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := e.client.Get(ctx, "/other", clientv3.WithRev(first-1)); err == nil {
					return errors.New("the old revision of the key can still be read from etcd")
				}
				return nil
			})
		})
	}
}

// Run returns the error that ended it.
func TestRunReturnsTheCause(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	t.Run("Run returns the error of its context", func(t *testing.T) {
		r := newCluster(t, "c1").start(e.client, Options{Prefix: "x"})
		r.awaitState(Healthy)
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want that its context was cancelled", err)
		}
		// A new leadership term must begin with the state Starting, not with the health that the
		// previous term found.
		if h := r.Stats().Health; h.State != Starting {
			t.Errorf("after the end of Run the mirror is %s, want Starting", h.State)
		}
	})
	t.Run("Run returns ErrClosed after the store was closed", func(t *testing.T) {
		c := newCluster(t, "c1")
		r := c.start(e.client, Options{Prefix: "y"})
		r.awaitState(Healthy)
		c.st.Close()
		if err := <-r.done; !errors.Is(err, store.ErrClosed) {
			t.Errorf("Run returned %v, want ErrClosed", err)
		} else {
			r.done <- err
		}
	})
	t.Run("a second Run returns an error", func(t *testing.T) {
		r := newCluster(t, "c1").start(e.client, Options{Prefix: "z"})
		r.awaitState(Healthy)
		if err := r.Run(t.Context(), r.c.epoch()); !errors.Is(err, errRunning) {
			t.Errorf("the second Run returned %v, want errRunning", err)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	c := newCluster(t, "c1")
	d := Deps{Store: c.st, Etcd: clientv3.NewKVFromKVClient(nil, nil), Attachment: c, Confirm: func(context.Context) error { return nil }}
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"an etcd prefix with a blank", Options{Prefix: "a b"}, "ETCD_PREFIX"},
		{"an etcd prefix with an empty segment", Options{Prefix: "a//b"}, "ETCD_PREFIX"},
		{"an unknown layout", Options{Layout: "split"}, "MIRROR_LAYOUT"},
		{"more events than the state keeps", Options{MaxEvents: fsm.MaxEvents + 1}, "MaxEvents"},
		{"dependencies without a log", Options{}, "Log"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.o, d); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New returned %v, want an error that names %s", err, tt.want)
			}
		})
	}
}
