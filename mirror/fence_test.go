package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// gate is an etcd client that delays transactions, as if the writing process were paused, and can
// drop their responses.
type gate struct {
	Etcd
	hold    atomic.Pointer[chan struct{}] // if hold is set, transactions wait until the channel is closed
	held    chan struct{}                 // held receives a value when a transaction begins to wait
	lose    atomic.Int64                  // number of further transactions whose responses are dropped
	limited atomic.Bool
	allow   atomic.Int64 // number of transactions that may still pass if limited is set
	dropped atomic.Int64
}

type gatedTxn struct {
	clientv3.Txn
	g      *gate
	writes bool
}

func (g *gate) Txn(ctx context.Context) clientv3.Txn { return &gatedTxn{Txn: g.Etcd.Txn(ctx), g: g} }

func (x *gatedTxn) If(cs ...clientv3.Cmp) clientv3.Txn { x.Txn = x.Txn.If(cs...); return x }
func (x *gatedTxn) Else(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(o...); return x }
func (x *gatedTxn) Then(o ...clientv3.Op) clientv3.Txn {
	for _, op := range o {
		x.writes = x.writes || op.IsPut() || op.IsDelete()
	}
	x.Txn = x.Txn.Then(o...)
	return x
}

func (x *gatedTxn) Commit() (*clientv3.TxnResponse, error) {
	if !x.writes {
		return x.Txn.Commit()
	}
	if ch := x.g.hold.Load(); ch != nil {
		x.g.held <- struct{}{}
		<-*ch
	}
	if x.g.limited.Load() && x.g.allow.Add(-1) < 0 {
		return nil, errors.New("cut off")
	}
	r, err := x.Txn.Commit()
	if err == nil && x.g.lose.Add(-1) >= 0 {
		x.g.dropped.Add(1)
		return nil, context.DeadlineExceeded
	}
	return r, err
}

// A deposed leader with a delayed transaction writes nothing, although it believes that it
// still leads.
func TestDeposedWriterWritesNothing(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	o := quick
	o.CallLimit = 10 * quick.CallLimit // the delayed transaction must not time out
	g := &gate{Etcd: e.client, held: make(chan struct{}, 10)}
	sleeper := c.start(g, o)
	sleeper.awaitEqual(e)

	wake := make(chan struct{})
	g.hold.Store(&wake)
	c.do(put("of-the-old-term"))
	<-g.held

	successor := c.fork()
	successor.term++
	successor.do(remove("of-the-old-term", true), put("of-the-new-term"))
	r := successor.start(e.client, quick)
	r.awaitEqual(e)
	r.stop() // stop the new leader, so that its later writes are not taken for writes of the deposed leader
	before, err := e.contents("/")
	if err != nil {
		t.Fatal(err)
	}

	sleeper.deposed()
	g.hold.Store(nil)
	close(wake)
	if err := <-sleeper.done; !errors.Is(err, ErrDeposed) {
		t.Errorf("the deposed leader's Run returned %v, want ErrDeposed", err)
	} else {
		sleeper.done <- err
	}
	after, err := e.contents("/")
	if err != nil {
		t.Fatal(err)
	}
	if d := differ(before, after); d != "" {
		t.Errorf("the deposed leader must write nothing, but changed etcd:\n%s", d)
	}
	successor.term++
	successor.start(e.client, quick).awaitEqual(e)
}

// A leader that cannot confirm its leadership does not write the cursor.
func TestUnconfirmedLeaderDoesNotWrite(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(put("web"))
	r := c.start(e.client, quick)
	r.awaitEqual(e)
	r.stop()
	cursor := e.value("/persys/mirror/c1/cursor")

	c.term++
	c.do(put("late"))
	r = c.startAs(e.client, quick, false)
	testbed.Within(t, testbed.Patience, "some sessions", func() error {
		if n := r.Stats().Sessions; n < 3 {
			return fmt.Errorf("the mirror began %d sessions so far, want 3", n)
		}
		return nil
	})
	if now := e.value("/persys/mirror/c1/cursor"); now != cursor {
		t.Errorf("a leader that cannot confirm its leadership must not write the cursor, but wrote %s", now)
	}
	if h := r.Stats().Health; h.State != Starting {
		t.Errorf("the health of the mirror is %+v, want Starting: the missing leadership is no fault of etcd", h)
	}
}

// The mirror stays correct when transactions take effect but their responses are lost.
func TestLostResponsesOfEtcd(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	g := &gate{Etcd: e.client}
	r := c.start(g, quick)
	r.awaitEqual(e)
	for i := range 20 {
		g.lose.Store(int64(1 + i%2))
		c.do(put(fmt.Sprintf("w%d", i)))
		r.awaitEqual(e)
		// The transaction takes effect in etcd before the writer gets its response. Wait for the response;
		// otherwise the next change would be sent with the retry.
		testbed.Within(t, testbed.Patience, "the writer receives the response", func() error {
			if heard, at := r.Stats().Index, c.st.View().Info().Index; heard < at {
				return fmt.Errorf("etcd has the state up to index %d, want index %d", heard, at)
			}
			return nil
		})
	}
	if s := r.Stats(); g.dropped.Load() < 20 || s.Fenced != 0 || s.Comparisons != 1 {
		t.Errorf("%d responses of etcd were lost, want 20; etcd refused %d transactions because of another cursor, want none; the mirror made %d full comparisons, want one", g.dropped.Load(), s.Fenced, s.Comparisons)
	}
}

// A leader stops between two transactions of a batch. The first transaction wrote a retry record, and the
// next log entry reverts that change. The new leader reads both entries as one batch, in which the retry
// record seems unchanged. It must write the record anyway, because etcd holds the value of the first
// transaction.
func TestSuccessorRepairsHalfWrittenBatch(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	c := newCluster(t, "c1")
	c.do(register("a"), put("web"))
	c.do(c.assign("web", "a"))
	g := &gate{Etcd: e.client}
	r := c.start(g, quick)
	r.awaitEqual(e)

	list := []fsm.Command{c.retry("web", 3, 0, true)}
	for i := range 150 {
		list = append(list, put(fmt.Sprintf("w%03d", i)))
	}
	g.allow.Store(1)
	g.limited.Store(true)
	c.do(list...)
	key := "/persys/mirror/c1/cursor"
	testbed.Within(t, testbed.Patience, "etcd has the first transaction of the batch", func() error {
		cur, err := parseCursor(e.value(key))
		if err == nil && cur.Upto == 0 {
			err = errors.New(cur.raw)
		}
		return err
	})
	r.stop()
	half := e.value("/retries/web")
	if half != `{"attempts":3,"maxAttempts":5,"nextRetryAt":"0001-01-01T00:00:00Z"}` {
		t.Fatalf("the first transaction of the batch must contain the retry record, but etcd has %s", half)
	}

	c.do(c.says("web", "Running", "")) // the reported success resets the number of attempts
	c.term++
	r = c.start(e.client, quick)
	r.awaitEqual(e)
	if s := r.Stats(); s.Comparisons != 0 {
		t.Error("the new leader has made a full comparison, want none, because this test checks the resuming after the cursor")
	}
}
