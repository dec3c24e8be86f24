package leader

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

func TestLeasesOfNodes(t *testing.T) {
	for _, c := range []struct {
		fact  string
		nodes []string
		fn    func(*testing.T, *world)
	}{
		{"a new term grants every node one full lease", []string{"a", "b"}, func(t *testing.T, w *world) {
			w.pass(9500 * time.Millisecond)
			is(t, `node "a" is up before its lease ends`, w.node("a").Up, true)
			w.pass(600 * time.Millisecond)
			is(t, `node "a" is up after its lease has ended`, w.node("a").Up, false)
			is(t, `node "b" is up after its lease has ended`, w.node("b").Up, false)
		}},
		{"the next term grants a full lease again", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(9 * time.Second)
			w.resign()
			w.log.set(func(l *fakeLog) { l.term++ })
			w.lead()
			w.pass(9 * time.Second)
			is(t, `node "a" is up`, w.node("a").Up, true)
			w.pass(1200 * time.Millisecond)
			is(t, `node "a" is up after its lease has ended`, w.node("a").Up, false)
		}},
		{"a confirmed heartbeat extends the lease from its arrival", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(5 * time.Second)
			sent := time.Now()
			l := w.beat(sched.Heartbeat{Node: "a"})
			is(t, "duration of the lease", l.Duration, int64(10*time.Second))
			is(t, "end of the lease", l.ExpiresAt, sent.Add(10*time.Second).UnixNano())
			is(t, "heartbeat interval", l.Interval, int64(3*time.Second))
		}},
		{"without a Confirm the answer repeats the old end of the lease", []string{"a"}, func(t *testing.T, w *world) {
			first := w.beat(sched.Heartbeat{Node: "a"})
			w.pass(2 * time.Second)
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			l := w.beat(sched.Heartbeat{Node: "a"})
			is(t, "end of the lease", l.ExpiresAt, first.ExpiresAt)
			is(t, "duration of the lease", l.Duration, 0)
			w.pass(8200 * time.Millisecond)
			is(t, `node "a" is up after the end of its lease before the heartbeat`, w.node("a").Up, false)
		}},
		{"a Confirm that began before the heartbeat arrived does not count", []string{"a", "b"}, func(t *testing.T, w *world) {
			w.pass(time.Second)
			w.log.set(func(l *fakeLog) { l.slow = time.Second })
			done := make(chan sched.Lease)
			go func() { done <- w.beat(sched.Heartbeat{Node: "a"}) }()
			w.pass(500 * time.Millisecond) // the Confirm for the heartbeat of node a is under way
			go func() { done <- w.beat(sched.Heartbeat{Node: "b"}) }()
			l := <-done
			is(t, `the lease of node "a" is extended`, l.Duration > 0, true)
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			l = <-done
			is(t, `the lease of node "b" is extended`, l.Duration > 0, false)
		}},
		{"one Confirm serves all heartbeats of a window", []string{"a", "b"}, func(t *testing.T, w *world) {
			w.pass(time.Second)
			before := w.log.confirmed()
			done := make(chan bool)
			for i := range 50 {
				go func() {
					time.Sleep(time.Duration(i) * 4 * time.Millisecond)
					w.beat(sched.Heartbeat{Node: []string{"a", "b"}[i%2]})
					done <- true
				}()
			}
			for range 50 {
				<-done
			}
			if n := w.log.confirmed() - before; n > 3 {
				t.Errorf("the leader made %d Confirms for the heartbeats of 200 ms, want at most 3", n)
			}
		}},
		{"an unknown node gets ErrUnknownNode", nil, func(t *testing.T, w *world) {
			_, err := w.loop.Heartbeat(context.Background(), sched.Heartbeat{Node: "x"})
			var unknown *ErrUnknownNode
			is(t, "the error says that the node is unknown", errors.As(err, &unknown), true)
			_, err = w.loop.Registered(context.Background(), "x")
			is(t, "the error says that the node is unknown", errors.As(err, &unknown), true)
		}},
		{"a late heartbeat does not bring a fenced node back: it has to register", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(11 * time.Second)
			w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
			_, err := w.loop.Heartbeat(context.Background(), sched.Heartbeat{Node: "a", Sequence: 99})
			var unknown *ErrUnknownNode
			is(t, "the error says that the fenced node must register", errors.As(err, &unknown) && unknown.Fenced, true)
			w.pass(2 * time.Second)
			n, _ := w.view().Node("a")
			is(t, `node "a" is up after a late heartbeat`, n.Up, false)
			is(t, `node "a" is fenced after a late heartbeat`, n.Fenced, true)
			w.register("a")
			_, err = w.loop.Heartbeat(context.Background(), sched.Heartbeat{Node: "a", Sequence: 1})
			is(t, "error of a heartbeat after the node has registered", err, nil)
		}},
		{"outside a term a heartbeat gets ErrNotLeading", []string{"a"}, func(t *testing.T, w *world) {
			w.resign()
			_, err := w.loop.Heartbeat(context.Background(), sched.Heartbeat{Node: "a"})
			is(t, "the error is ErrNotLeading", errors.Is(err, ErrNotLeading), true)
			_, err = w.loop.Registered(context.Background(), "a")
			is(t, "the error is ErrNotLeading", errors.Is(err, ErrNotLeading), true)
			_, _, ok := w.loop.LeaseOf("a")
			is(t, `node "a" has a lease outside of a term`, ok, false)
		}},
		{"a heartbeat whose term ends while it waits gets ErrNotLeading", []string{"a"}, func(t *testing.T, w *world) {
			w.beat(sched.Heartbeat{Node: "a"})
			got := make(chan error)
			go func() {
				_, err := w.loop.Heartbeat(context.Background(), sched.Heartbeat{Node: "a"})
				got <- err
			}()
			synctest.Wait() // the heartbeat waits for the next Confirm
			w.resign()
			is(t, "the error is ErrNotLeading", errors.Is(<-got, ErrNotLeading), true)
		}},
		{"a node that registers gets its lease, and is asked for its complete list", []string{"a"}, func(t *testing.T, w *world) {
			w.register("b")
			l, err := w.loop.Registered(context.Background(), "b")
			is(t, "error of the call", err, nil)
			is(t, "duration of the lease", l.Duration, int64(10*time.Second))
			is(t, "the reply asks for a full report (SendFull)", l.SendFull, true)
			is(t, "epoch in the reply", l.Epoch, w.epoch())
			l = w.beat(sched.Heartbeat{Node: "b", Full: true, Sequence: 1})
			is(t, "the reply asks for a full report (SendFull) after one was sent", l.SendFull, false)
		}},
		{"the first lease of a node needs a Confirm", nil, func(t *testing.T, w *world) {
			w.register("b")
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			_, err := w.loop.Registered(context.Background(), "b")
			is(t, "the error is ErrNotLeading", errors.Is(err, ErrNotLeading), true)
		}},
		{"a legacy v1 peer gets a lease of 60 s and an interval of 10 s", nil, func(t *testing.T, w *world) {
			w.register("old", legacy)
			l, err := w.loop.Registered(context.Background(), "old")
			is(t, "error of the call", err, nil)
			is(t, "duration of the lease", l.Duration, int64(time.Minute))
			is(t, "heartbeat interval", l.Interval, int64(10*time.Second))
			w.pass(59 * time.Second)
			is(t, `node "old" is up 59 s after its last heartbeat`, w.node("old").Up, true)
			w.pass(2 * time.Second)
			is(t, `node "old" is up 61 s after its last heartbeat`, w.node("old").Up, false)
		}},
		{"a heartbeat that arrives after a later one changes nothing", []string{"a"}, func(t *testing.T, w *world) {
			w.beat(sched.Heartbeat{Node: "a", Sequence: 7, Used: sched.NodeUsage{CPU: 7}})
			w.pass(time.Second)
			l := w.beat(sched.Heartbeat{Node: "a", Sequence: 6, Used: sched.NodeUsage{CPU: 6}})
			is(t, "duration of the lease", l.Duration, 0)
			used, _ := w.loop.UsageOf("a")
			is(t, `CPU use of node "a" that the leader has stored`, used.CPU, 7)
			if _, err := w.loop.Registered(context.Background(), "a"); err != nil {
				t.Error(err)
			}
			l = w.beat(sched.Heartbeat{Node: "a", Sequence: 1})
			is(t, `the lease of node "a" is extended after it registered again`, l.Duration > 0, true)
		}},
		{"a lost node whose heartbeat arrives is marked as up again", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(11 * time.Second)
			is(t, `node "a" is up`, w.node("a").Up, false)
			w.beat(sched.Heartbeat{Node: "a"})
			w.settle()
			is(t, `node "a" is up after its heartbeat`, w.node("a").Up, true)
		}},
		{"a lost node whose heartbeat arrives is not marked as up without a Confirm", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(11 * time.Second)
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			w.beat(sched.Heartbeat{Node: "a"})
			w.pass(time.Second)
			is(t, `node "a" is up`, w.node("a").Up, false)
		}},
		{"unchanged heartbeats commit nothing", []string{"a"}, func(t *testing.T, w *world) {
			w.put("web")
			w.pass(time.Second)
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
			w.pass(time.Second)
			before := w.view().Info().Index
			for range 20 {
				w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
				w.pass(3 * time.Second)
			}
			is(t, "log index of the state", w.view().Info().Index, before)
		}},
		{"after a frozen mode no node expires before a full lease", []string{"a"}, func(t *testing.T, w *world) {
			w.mode(fsm.ModeDegraded)
			w.pass(9 * time.Second)
			w.mode(fsm.ModeNormal)
			w.settle()
			about(t, "time to the end of the lease", w.expires("a"), 10*time.Second)
		}},
		{"after changes were missed no node expires before a full lease", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(9 * time.Second)
			w.log.st.Restore(w.log.last)
			w.settle()
			about(t, "time to the end of the lease", w.expires("a"), 10*time.Second)
		}},
		{"the answer to a heartbeat in a frozen mode has Drain set", []string{"a"}, func(t *testing.T, w *world) {
			w.mode(fsm.ModeDegraded)
			l := w.beat(sched.Heartbeat{Node: "a"})
			is(t, "the reply tells the node that it takes no new workloads (Drain)", l.Drain, true)
			is(t, "the lease is extended", l.Duration > 0, true)
		}},
		{"a pause of this process moves every deadline", []string{"a", "b"}, func(t *testing.T, w *world) {
			w.pass(8 * time.Second)
			w.missed.Add(int64(time.Hour))
			w.pass(1800 * time.Millisecond)
			is(t, `node "a" is up before its deadline, which the pause has moved`, w.node("a").Up, true)
			w.pass(800 * time.Millisecond)
			is(t, `node "a" is up after its deadline`, w.node("a").Up, false)
		}},
		{"a clock that is set back changes no lease", []string{"a"}, func(t *testing.T, w *world) {
			w.pass(5 * time.Second)
			w.ahead.Add(-int64(time.Hour))
			w.pass(4500 * time.Millisecond)
			is(t, `node "a" is up before its deadline`, w.node("a").Up, true)
			w.pass(time.Second)
			is(t, `node "a" is up after its deadline`, w.node("a").Up, false)
		}},
		{"a clock that is set back prolongs the wait for a fencer by at most a third", []string{"b"}, func(t *testing.T, w *world) {
			fencing := func(n *commandv1.RegisterNode) {
				n.SelfFencing, n.FenceBoundSeconds, n.Types = true, 15, []string{"vm"}
			}
			w.register("a", fencing)
			w.put("x", func(p *commandv1.WorkloadPut) {
				p.Demand.Type, p.Demand.Exclusive, p.Demand.OnLostLease = "vm", true, fsm.OnLostLeaseStop
			})
			w.alive(11*time.Second, "b")
			is(t, `node of workload "x" after the lease has ended`, w.workload("x").Node, "a")
			is(t, `node "a" is up`, w.node("a").Up, false)
			w.ahead.Add(-int64(time.Hour))
			w.alive(10*time.Second, "b")
			is(t, `node of workload "x" while the leader waits for the fencer`, w.workload("x").Node, "a")
			w.alive(11*time.Second, "b")
			is(t, `node of workload "x" after the wait for the fencer`, w.workload("x").Node, "")
		}},
		{"the lease of a removed node is dropped, and the node is new when it registers again", []string{"a"}, func(t *testing.T, w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "a", Force: true}}})
			w.settle()
			_, _, ok := w.loop.LeaseOf("a")
			is(t, `the leader has a lease of the removed node "a"`, ok, false)
			w.register("a")
			w.settle()
			about(t, "time to the end of the lease", w.expires("a"), 10*time.Second)
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			inWorld(t, c.nodes, func(w *world) { c.fn(t, w) })
		})
	}
}

// TestTimesInTheFutureDelayNothing: the clock of a leader was ahead for a moment, so the state holds times in
// the future. Such times must not delay work, nor end a lease or the wait for a node's fencer (which stops
// exclusive workloads) early.
func TestTimesInTheFutureDelayNothing(t *testing.T) {
	const wrong = int64(2 * time.Hour)
	for _, c := range []struct {
		whose string
		write func(w *world)
	}{
		{"the leader's clock was ahead", func(w *world) {
			w.ahead.Store(wrong)
			w.put("other")
			w.pass(time.Second)
			w.ahead.Store(0)
		}},
		{"the clock of another replica was ahead", func(w *world) {
			w.do(&commandv1.Command{Head: &commandv1.Head{At: time.Now().UnixNano() + wrong}, Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}})
			w.put("other")
		}},
	} {
		t.Run(c.whose, func(t *testing.T) {
			inWorld(t, []string{"a", "b"}, func(w *world) {
				w.register("c", func(n *commandv1.RegisterNode) {
					n.SelfFencing, n.FenceBoundSeconds, n.Types = true, 15, []string{"vm"}
				})
				w.put("x", func(p *commandv1.WorkloadPut) {
					p.Demand.Type, p.Demand.Exclusive, p.Demand.OnLostLease = "vm", true, fsm.OnLostLeaseStop
				})
				w.put("web")
				w.pass(time.Second)
				node := w.workload("web").Node
				w.beat(sched.Heartbeat{Node: node, Full: true, Reports: []sched.Reported{w.running("web")}})
				w.alive(11*time.Second, "a", "b")
				is(t, `node "c", which sends no heartbeats, is up`, w.node("c").Up, false)
				is(t, `node of workload "x" while the leader waits for the fencer`, w.workload("x").Node, "c")
				c.write(w)
				w.alive(time.Second, "a", "b")
				is(t, `node of workload "x" one second after the clock was written`, w.workload("x").Node, "c")
				is(t, `nodes "a" and "b" are up`, w.node("a").Up && w.node("b").Up, true)
				w.beat(sched.Heartbeat{Node: node, Full: true})
				w.pass(time.Second)
				is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualMissing)
				before := w.workload("web").Generation
				w.alive(2*time.Minute, "a", "b")
				is(t, `workload "web" gets a newer order`, before.Less(w.workload("web").Generation), true)
				is(t, `node of workload "x" after the wait for the fencer`, w.workload("x").Node, "")
				w.alive(5*time.Second, "a")
				is(t, `node "b", which was silent for less than its lease, is up`, w.node("b").Up, true)
				w.alive(6*time.Second, "a")
				is(t, `node "b", which was silent for longer than its lease, is up`, w.node("b").Up, false)
			})
		})
	}
}
