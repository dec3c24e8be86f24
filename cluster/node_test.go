package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

func contains(s, sub string) bool { return strings.Contains(s, sub) }

func TestLeaderKilledAnotherTakesOver(t *testing.T) {
	for _, c := range []struct {
		name string
		slow bool
		most time.Duration
	}{{"a refused connection starts the election", false, 400 * time.Millisecond}, {"without fast failover a timeout starts it", true, 5 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			const attempts = 3
			for k := range attempts {
				gap := takeover(t, c.slow)
				t.Logf("from the kill of the leader to the next acknowledged write it took %s", gap)
				if gap <= c.most {
					return
				}
				if k == attempts-1 {
					t.Errorf("in none of %[2]d attempts did a new leader accept a write within %[1]s", c.most, attempts)
				}
			}
		})
	}
}

// takeover kills the leader of a new group of replicas and returns the time until the next acknowledged write.
// If slow is true, fast failover is off.
func takeover(t *testing.T, slow bool) time.Duration {
	g := newGroup(t, 3)
	g.cfg = func(_ int, cfg *Config) { cfg.Timing.NoFastFailover = slow }
	g.form()
	leader, _ := g.put("w", 1)
	start := time.Now()
	leader.port.Close() // close the port first, as the operating system does when a process dies
	i := g.index(leader)
	g.mu.Lock()
	delete(g.nodes, i)
	g.mu.Unlock()
	go leader.Close()
	defer func() {
		if err := leader.Close(); err != nil {
			t.Error(err)
		}
	}()
	for {
		next := g.follower(leader)
		if l := g.leader(); l != nil {
			next = l
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := next.Propose(ctx, put("w", 2))
		cancel()
		if err == nil {
			break
		}
		if time.Since(start) > patience {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Microsecond)
	}
	return time.Since(start)
}

func TestLeadershipIsTransferred(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	to := g.follower(leader)
	start := time.Now()
	if err := leader.TransferLeadership(timeout(t, 5*time.Second), to.cfg.Name); err != nil {
		t.Fatal(err)
	}
	t.Logf("transfer took %s", time.Since(start))
	testbed.Until(t, "the replica that was named in the transfer leads", func() bool { return g.leader() == to })
	if err := leader.TransferLeadership(timeout(t, time.Second), ""); !errors.Is(err, ErrNotLeader) {
		t.Errorf("TransferLeadership on a follower returned %v, want ErrNotLeader", err)
	}
}

func TestLeadershipTermsNeverOverlap(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	var running, terms atomic.Int32
	var mu sync.Mutex
	var last fsm.Epoch
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, n := range g.snapshot() {
		var own atomic.Int32
		wg.Add(1)
		go func() {
			defer wg.Done()
			err := n.Lead(ctx, func(ctx context.Context, s LeadershipTerm) error {
				if own.Add(1) != 1 {
					t.Error("two leadership terms of one replica overlap")
				}
				running.Add(1)
				mu.Lock()
				if !last.Less(s.Epoch) {
					t.Errorf("a leadership term has epoch %s, and the leadership term before had %s; want a higher epoch", s.Epoch, last)
				}
				last = s.Epoch
				mu.Unlock()
				if info := n.Store().View().Info(); info.Term != s.Epoch.Term || info.ClusterID == "" {
					t.Errorf("leadership term %s began before its state was ready: %+v; want the Raft term of the leadership term, and a cluster id", s.Epoch, info)
				}
				terms.Add(1)
				<-ctx.Done()
				time.Sleep(20 * time.Millisecond) // this leadership term ends slowly, and the next term must wait for its end
				running.Add(-1)
				own.Add(-1)
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Lead returned %v, want that its context was cancelled", err)
			}
		}()
	}
	for range 6 {
		before := terms.Load()
		testbed.Until(t, "a leadership term has begun", func() bool { return running.Load() >= 1 })
		l := g.waitLeader()
		if err := l.TransferLeadership(timeout(t, 5*time.Second), ""); err != nil && !errors.Is(err, ErrNotLeader) {
			t.Log(err)
			continue
		}
		testbed.Until(t, "the next leadership term has begun", func() bool { return terms.Load() > before })
	}
	cancel()
	wg.Wait()
}

func TestALeaderThatFailsTransfersLeadership(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	broken := errors.New("broken")
	err := leader.Lead(timeout(t, patience), func(context.Context, LeadershipTerm) error { return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("Lead returned %v, want the error that the function of the leadership term returned", err)
	}
	if leader.IsLeader() {
		t.Error("a replica whose leadership term failed must give up leadership, but still leads")
	}
}

func TestLeaderChangesAreReported(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	leader := g.form()
	ctx, cancel := context.WithCancel(context.Background())
	watching := g.follower(leader).LeaderChanges(ctx)
	if l := <-watching; l.ID != leader.ID() {
		t.Fatalf("LeaderChanges first sent %+v, want the present leader", l)
	}
	if err := leader.TransferLeadership(timeout(t, 5*time.Second), ""); err != nil {
		t.Fatal(err)
	}
	for l := range watching {
		if l.ID != "" && l.ID != leader.ID() {
			break
		}
	}
	cancel()
	testbed.Until(t, "the channel of LeaderChanges is closed", func() bool { _, ok := <-watching; return !ok })
}

func TestUnknownOutcomeInAPartition(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	leader, _ := g.put("w", 1)
	g.nw.isolate(leader.cfg.Name, g.names(), true)
	_, err := leader.Propose(timeout(t, 5*time.Second), put("w", 2))
	if !errors.Is(err, ErrUnknownOutcome) {
		t.Fatalf("a proposal in a minority partition returned %v, want ErrUnknownOutcome", err)
	}
	testbed.Until(t, "the former leader knows that it no longer leads", func() bool { return !leader.IsLeader() })
	if _, err := leader.Propose(timeout(t, time.Second), put("w", 3)); !errors.Is(err, ErrNotLeader) {
		t.Errorf("Propose on the former leader returned %v, want ErrNotLeader", err)
	}
	testbed.Until(t, "the replica in the minority is in mode degraded", func() bool { m, _ := leader.LocalMode(); return m == fsm.ModeDegraded })
	g.put("w", 4)
	g.nw.isolate(leader.cfg.Name, g.names(), false)
	testbed.Until(t, "the former leader has the write of the new leader", func() bool { return value(leader.Store().View(), "w") == 4 })
	if m, why := leader.LocalMode(); m != fsm.ModeNormal {
		t.Errorf("the reconnected replica must be in mode normal, but is in mode %s: %s", m, why)
	}
}

func TestProposalsEndAtTheirDeadline(t *testing.T) {
	g := newGroup(t, 3)
	leader := g.form()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := leader.Propose(ended, put("w", 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("Propose with a context that has ended returned %v, want ErrBusy", err)
	}
	g.nw.isolate(leader.cfg.Name, g.names(), true)
	if _, err := leader.Propose(timeout(t, 20*time.Millisecond), put("w", 2)); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("Propose whose deadline passed while a leader without a quorum waited returned %v, want ErrUnknownOutcome", err)
	}
	g.nw.isolate(leader.cfg.Name, g.names(), false)
}

func TestLinearizableReadsSeeEveryAcknowledgedWrite(t *testing.T) {
	g := newGroup(t, 3)
	g.form()
	var acked atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Add(2)
	go func() { // the only writer, which increases the value again and again
		defer wg.Done()
		for v := int64(1); ctx.Err() == nil; v++ {
			for ctx.Err() == nil {
				l := g.leader()
				if l == nil {
					time.Sleep(time.Millisecond)
					continue
				}
				pctx, done := context.WithTimeout(ctx, time.Second)
				_, err := l.Propose(pctx, put("w", v))
				done()
				if err == nil {
					acked.Store(v)
					break
				}
			}
		}
	}()
	var reads, wrong atomic.Int64
	go func() {
		defer wg.Done()
		for ctx.Err() == nil {
			for _, n := range g.snapshot() {
				floor := acked.Load()
				rctx, done := context.WithTimeout(ctx, time.Second)
				v, err := n.Read(rctx, Linearizable, 0)
				done()
				if err != nil {
					continue
				}
				reads.Add(1)
				if got := value(v, "w"); floor > 0 && got < floor {
					wrong.Add(1)
				}
			}
		}
	}()
	for range 3 {
		l := g.waitLeader()
		before := acked.Load()
		g.nw.isolate(l.cfg.Name, g.names(), true)
		testbed.Until(t, "another leader has accepted writes", func() bool { n := g.leader(); return n != nil && n != l && acked.Load() > before+5 })
		g.nw.isolate(l.cfg.Name, g.names(), false)
		testbed.Until(t, "the replica that was cut off has contact again", func() bool { ll, ok := l.Leader(); return ok && ll.ID != l.ID() })
		if err := g.waitLeader().TransferLeadership(timeout(t, 5*time.Second), ""); err != nil {
			t.Log(err)
		}
	}
	cancel()
	wg.Wait()
	if wrong.Load() > 0 || reads.Load() == 0 {
		t.Fatalf("%d of %d linearizable reads were stale, want none of at least one", wrong.Load(), reads.Load())
	}
}

func TestReadLevelsKeepTheirPromise(t *testing.T) {
	g := newGroup(t, 3)
	g.also(calm)
	g.form()
	leader, r := g.put("w", 5)
	f := g.follower(leader)
	v, err := f.Read(timeout(t, 5*time.Second), Session, r.Index)
	if err != nil || value(v, "w") != 5 {
		t.Errorf("the session read shows the value %d of workload w (error %v), want 5 and no error", value(v, "w"), err)
	}
	if _, err := f.Read(timeout(t, 5*time.Second), Linearizable, 0); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a linearizable read on a follower returned %v, want ErrNotLeader", err)
	} else {
		var hint *NotLeaderError
		if !errors.As(err, &hint) || hint.Leader.GRPCAddr != leader.cfg.GRPCAdvertise {
			t.Errorf("the error of a linearizable read on a follower must name the leader's gRPC address, but is %v", err)
		}
	}
	if v, err := f.Read(context.Background(), Stale, 0); err != nil || v == nil {
		t.Errorf("a stale read on a follower returned error %v, want none", err)
	}
	if _, err := f.Read(timeout(t, 20*time.Millisecond), Session, 1<<40); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a session read for an index far ahead returned %v, want DeadlineExceeded", err)
	}
}

func TestConfirmsShareBarriersThatFollowTheCalls(t *testing.T) {
	g := newGroup(t, 1)
	n := g.form()
	before := n.prop.commands.Load()
	var wg sync.WaitGroup
	start := time.Now()
	const callers, rounds = 64, 20
	for range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range rounds {
				floor := n.Store().View().Info().Index
				index, err := n.Confirm(timeout(t, 5*time.Second))
				if err != nil || index <= floor {
					t.Errorf("Confirm returned index %d, which is below index %d that was committed when Confirm was called (error %v)", index, floor, err)
				}
			}
		}()
	}
	wg.Wait()
	used := n.prop.commands.Load() - before
	if limit := uint64(time.Since(start)/confirmEvery) + 2; used > limit {
		t.Errorf("the replica proposed %d barriers in %s for %d calls of Confirm, want at most %d", used, time.Since(start), callers*rounds, limit)
	}
}
