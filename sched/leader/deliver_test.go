package leader

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
)

func on(node string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Demand.Constraints = []*commandv1.Constraint{{Key: "node", Op: "=", Values: []string{node}}}
	}
}

func named(id string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "node", Value: id}} }
}

// crowd issues n orders for node a, which is slow to answer, so that as many orders are in flight
// as a node may have (4).
func (w *world) crowd(n int) {
	w.t.Helper()
	w.agents.on("a", func(ctx context.Context, _ sched.Order) (sched.Ack, error) {
		sleep(ctx, 2*time.Second)
		return sched.Ack{Accepted: true}, nil
	})
	for i := range n {
		w.put(fmt.Sprintf("a%d", i), on("a"))
	}
	w.pass(500 * time.Millisecond)
}

func TestOrdersAreDelivered(t *testing.T) {
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"a placed workload is ordered once and acknowledged", func(t *testing.T, w *world) {
			w.put("web", on("a"))
			w.pass(3 * time.Second)
			got := w.agents.got("a")
			is(t, "number of deliveries to the agent", len(got), 1)
			is(t, "epoch of the delivery", got[0].epoch, w.epoch())
			is(t, "generation of the delivery", got[0].Generation, w.workload("web").Generation)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
		}},
		{"nothing is delivered without a Confirm", func(t *testing.T, w *world) {
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			w.put("web", on("a"))
			w.pass(3 * time.Second)
			is(t, "number of deliveries to agent a", len(w.agents.got("a")), 0)
			w.log.set(func(l *fakeLog) { l.deaf = nil })
			w.pass(time.Second)
			is(t, "number of deliveries to agent a after a Confirm", len(w.agents.got("a")), 1)
		}},
		{"nothing is delivered again without a Confirm", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.settle()
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			before := len(w.agents.got("a"))
			w.pass(5 * time.Second)
			is(t, "number of new deliveries to agent a", len(w.agents.got("a"))-before, 0)
		}},
		{"a refusal is final and recorded", func(t *testing.T, w *world) {
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				return sched.Ack{Refused: true, Code: "INVALID_SPECIFICATION", Message: "no such thing"}, nil
			})
			w.put("web", on("a"))
			w.pass(2 * time.Second)
			is(t, "number of deliveries to agent a", len(w.agents.got("a")), 1)
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusFailed)
		}},
		{"an order that could not be delivered is given again with a growing pause", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.pass(3 * time.Second)
			got := w.agents.got("a")
			// Expected deliveries: after 0, 100, 300, 700 and 1500 ms. Each planning step adds some time, so
			// the last one may be missing.
			if len(got) < 4 || len(got) > 5 {
				t.Fatalf("the order that fails was delivered %d times in 3 s, want 4 or 5", len(got))
			}
			for i := 2; i < len(got); i++ {
				if a, b := got[i-1].at.Sub(got[i-2].at), got[i].at.Sub(got[i-1].at); b < a*3/2 {
					t.Errorf("pause %d between two deliveries is %s and the one before it %s, want it about twice as long", i, b, a)
				}
			}
		}},
		{"the pause between tries is bounded, and the workload has the reason", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.alive(60*time.Second, "a")
			got := w.agents.got("a")
			if n := len(got); n < 12 {
				t.Errorf("the order was delivered %d times in a minute, want one try in 5 s", n)
			}
			is(t, `reason code of workload "web"`, w.workload("web").Reason.Code, fsm.CodeDispatchFailed)
		}},
		{"an order is delivered once its agent is back", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.pass(time.Second)
			w.agents.on("a", nil)
			w.pass(2 * time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
		}},
		{"an order that the agent refused because of a newer epoch is given again", func(t *testing.T, w *world) {
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				return sched.Ack{Fenced: true, Accepted: true, Message: "a newer epoch was seen"}, nil
			})
			w.put("web", on("a"))
			w.pass(2 * time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, false)
			is(t, "the order is delivered again", len(w.agents.got("a")) > 1, true)
		}},
		{"only one order for a workload is in flight at a time, and a newer one follows it", func(t *testing.T, w *world) {
			release := make(chan bool)
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				<-release
				return sched.Ack{Accepted: true}, nil
			})
			w.put("web", on("a"))
			w.settle()
			first := w.workload("web").Generation
			w.put("web", on("a"))
			w.pass(500 * time.Millisecond)
			is(t, "number of deliveries to agent a", len(w.agents.got("a")), 1)
			close(release)
			w.pass(500 * time.Millisecond)
			got := w.agents.got("a")
			is(t, "number of deliveries to the agent", len(got), 2)
			is(t, "generation of the first delivery", got[0].Generation, first)
			is(t, "generation of the second delivery", got[1].Generation, w.workload("web").Generation)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
		}},
		{"a newer order does not wait for the backoff of an older one", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.alive(20*time.Second, "a") // by now, the wait before the next try is 5 s
			w.agents.on("a", nil)
			before := len(w.agents.got("a"))
			w.put("web", on("a"))
			w.pass(300 * time.Millisecond)
			is(t, "number of deliveries of the newer order within 300 ms", len(w.agents.got("a"))-before, 1)
		}},
		{"a withdrawn order is not given again", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.pass(300 * time.Millisecond)
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web", Force: true}}})
			w.pass(100 * time.Millisecond)
			before := len(w.agents.got("a"))
			w.pass(20 * time.Second)
			for _, d := range w.agents.got("a")[before:] {
				if d.Op == sched.OpApply {
					t.Errorf("an order that the state no longer needs must not be given again, but was: %v", d.Order)
				}
			}
		}},
		{"no order is given, or given again, in a frozen mode", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("web", on("a"))
			w.pass(300 * time.Millisecond)
			w.mode(fsm.ModeDegraded)
			w.settle()
			before := len(w.agents.got("a"))
			w.alive(20*time.Second, "a")
			is(t, "number of new deliveries to agent a", len(w.agents.got("a"))-before, 0)
			w.mode(fsm.ModeNormal)
			w.pass(time.Second)
			is(t, "agent a gets deliveries after the frozen mode", len(w.agents.got("a")) > before, true)
		}},
		{"a dead node delays no other node", func(t *testing.T, w *world) {
			w.agents.on("a", dead)
			for i := range 100 {
				w.put(fmt.Sprintf("a%d", i), on("a"))
			}
			w.pass(500 * time.Millisecond)
			w.put("web", on("b"))
			w.pass(500 * time.Millisecond)
			is(t, `the order of workload "web" for node "b" is acknowledged`, w.workload("web").Acknowledged, true)
			w.agents.mu.Lock()
			defer w.agents.mu.Unlock()
			is(t, `largest number of orders in flight to node "a"`, w.agents.most["a"], 4)
		}},
		{"a node whose deliveries fail gets one order at a time", func(t *testing.T, w *world) {
			w.agents.on("a", dead)
			for i := range 20 {
				w.put(fmt.Sprintf("a%d", i), on("a"))
			}
			w.alive(15*time.Second, "a") // the first four orders have reached their deadline
			w.agents.mu.Lock()
			defer w.agents.mu.Unlock()
			is(t, `number of orders in flight to node "a"`, w.agents.flying["a"], 1)
		}},
		{"an order that waited in a queue needs another Confirm", func(t *testing.T, w *world) {
			w.crowd(10)
			w.log.set(func(l *fakeLog) { l.deaf = errNotLeader })
			w.pass(5 * time.Second)
			is(t, "number of deliveries to agent a", len(w.agents.got("a")), 4)
			w.log.set(func(l *fakeLog) { l.deaf = nil })
			w.alive(30*time.Second, "a")
			is(t, "number of workloads whose order was not acknowledged", w.view().StatusCount(fsm.StatusScheduled), 0)
		}},
		{"an order that waited in a queue is not delivered in a frozen mode", func(t *testing.T, w *world) {
			w.crowd(10)
			w.mode(fsm.ModeDegraded)
			w.pass(5 * time.Second)
			is(t, "number of deliveries to agent a", len(w.agents.got("a")), 4)
		}},
		{"every delivery has a deadline", func(t *testing.T, w *world) {
			var took atomic.Int64
			w.agents.on("a", func(ctx context.Context, _ sched.Order) (sched.Ack, error) {
				began := time.Now()
				<-ctx.Done()
				took.Store(max(took.Load(), int64(time.Since(began))))
				return sched.Ack{}, ctx.Err()
			})
			w.put("web", on("a"))
			w.alive(12*time.Second, "a")
			is(t, "longest time that one delivery took", time.Duration(took.Load()), 10*time.Second)
		}},
		{"a delete is ordered again until the node reports the workload gone", func(t *testing.T, w *world) {
			w.put("web", on("a"))
			w.pass(time.Second)
			var gone atomic.Bool
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				return sched.Ack{Accepted: true, Gone: gone.Load()}, nil
			})
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
			w.pass(2500 * time.Millisecond)
			n := 0
			for _, d := range w.agents.got("a") {
				if d.Op == sched.OpDelete {
					n++
				}
			}
			if n < 2 || n > 3 {
				t.Errorf("the delete was ordered %d times in 2.5 s, want once a second", n)
			}
			gone.Store(true)
			w.pass(2 * time.Second)
			is(t, "number of workloads in the state", w.view().WorkloadCount(), 0)
		}},
		{"deletes that do not end delay no other order and are sent with growing pauses", func(t *testing.T, w *world) {
			for i := range 8 {
				w.put(fmt.Sprintf("stuck-%d", i), on("a"))
			}
			w.pass(2 * time.Second)
			w.agents.on("a", func(_ context.Context, o sched.Order) (sched.Ack, error) {
				return sched.Ack{Accepted: true, State: fsm.ActualPending}, nil
			})
			for i := range 8 {
				w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: fmt.Sprintf("stuck-%d", i), Force: i%2 == 0}}})
			}
			w.alive(30*time.Second, "a")
			deletes := func() (n int) {
				for _, d := range w.agents.got("a") {
					if d.Op == sched.OpDelete {
						n++
					}
				}
				return n
			}
			before := deletes()
			w.alive(30*time.Second, "a")
			if n := deletes() - before; n < 8*5 || n > 8*7 {
				t.Errorf("in the second half minute, deletes of 8 workloads were ordered %d times, want one order every 5 s for each", n)
			}
			w.put("web", on("a"))
			w.pass(500 * time.Millisecond)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
			w.put("stuck-0", on("a")) // the workload stuck-0 was deleted with --force
			w.pass(500 * time.Millisecond)
			is(t, `the order of workload "stuck-0" is acknowledged, although its former instance is not removed`, w.workload("stuck-0").Acknowledged, true)
			w.put("stuck-1", on("a"))
			w.pass(500 * time.Millisecond)
			is(t, `reason code of workload "stuck-1", which was applied again while its former instance is not removed`, w.workload("stuck-1").Reason.Code, fsm.CodeAwaitStop)
		}},
		{"an order lost with its leadership term is given by the next leader", func(t *testing.T, w *world) {
			w.agents.on("a", dead)
			w.put("web", on("a"))
			w.settle()
			w.resign()
			w.agents.on("a", nil)
			w.log.set(func(l *fakeLog) { l.term++ })
			w.lead()
			w.pass(time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
			got := w.agents.got("a")
			is(t, "epoch of the last delivery", got[len(got)-1].epoch, fsm.Epoch{Incarnation: 1, Term: 2})
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			inWorld(t, nil, func(w *world) {
				w.register("a", named("a"))
				w.register("b", named("b"))
				w.settle()
				c.fn(t, w)
			})
		})
	}
}

func TestQueuesAreBounded(t *testing.T) {
	inWorld(t, []string{"a"}, func(w *world) {
		w.agents.on("a", dead)
		for i := range 50 {
			w.put(fmt.Sprintf("a%d", i))
		}
		w.pass(time.Second)
		is(t, "number of orders that the dispatcher holds", w.loop.Stats().Orders, 10)
		w.agents.on("a", nil)
		w.alive(20*time.Second, "a")
		w.view().Workloads("", func(wl *fsm.Workload) bool {
			if !wl.Acknowledged {
				t.Errorf("workload %s must have been ordered and acknowledged, but was not", wl.ID)
			}
			return true
		})
	}, func(c *Config) { c.NodeQueue = 10 })
}

func TestFlightsAreBoundedInAll(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		for _, n := range []string{"a", "b", "c"} {
			w.agents.on(n, func(ctx context.Context, _ sched.Order) (sched.Ack, error) {
				sleep(ctx, 10*time.Millisecond)
				return sched.Ack{Accepted: true}, nil
			})
		}
		for i := range 60 {
			w.put(fmt.Sprintf("w%d", i))
		}
		w.pass(3 * time.Second)
		w.agents.mu.Lock()
		defer w.agents.mu.Unlock()
		is(t, "largest number of orders in flight at the same time", w.agents.peak, 5)
	}, func(c *Config) { c.Parallel = 5 })
}

func TestStatsCountOrdersAndReports(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.register("a", named("a"))
		w.crowd(10)
		if s := w.loop.Stats(); s.Orders != 10 || s.InFlight != w.loop.cfg.NodeParallel {
			t.Errorf("the leader's Stats are %+v, want 10 orders, NodeParallel of them in flight", s)
		}
		w.alive(10*time.Second, "a")
		for i, id := range []string{"a0", "a1"} {
			r := w.running(id)
			r.Observation.State = fsm.ActualFailed
			go w.beat(sched.Heartbeat{Node: "a", Sequence: uint64(i + 1), Reports: []sched.Reported{r}})
			w.pass(time.Millisecond)
		}
		if s := w.loop.Stats(); s.Reports != 1 {
			t.Errorf("Stats after two reports in a row are %+v, want 1 waiting report", s)
		}
		w.pass(time.Second)
		w.resign()
		if s := w.loop.Stats(); s != (control.Stats{}) {
			t.Errorf("Stats after the term are %+v, want zero values", s)
		}
	})
}

func TestLoopPlansAgainWhenNeeded(t *testing.T) {
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"after a command with an unknown outcome the state is read again", func(t *testing.T, w *world) {
			w.log.set(func(l *fakeLog) { l.fail = errUnknown })
			w.put("web")
			w.pass(300 * time.Millisecond)
			is(t, `node of workload "web", whose placement was applied although its outcome was unknown`, w.workload("web").Node, "a")
			w.log.set(func(l *fakeLog) { l.fail = nil })
			w.pass(time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
			is(t, "number of assign commands in the log", w.log.count("assign"), 1)
		}},
		{"a command that was not committed is proposed again", func(t *testing.T, w *world) {
			w.log.set(func(l *fakeLog) { l.fail = errors.New("busy") })
			w.put("web")
			w.pass(300 * time.Millisecond)
			is(t, `node of workload "web" while no command can be committed`, w.workload("web").Node, "")
			w.log.set(func(l *fakeLog) { l.fail = nil })
			w.pass(300 * time.Millisecond)
			is(t, `node of workload "web" once commands can be committed`, w.workload("web").Node, "a")
		}},
		{"the leader plans again at the WakeAt of the step", func(t *testing.T, w *world) {
			w.put("web")
			w.pass(time.Second)
			r := w.running("web")
			r.Observation.State, r.Observation.Code = fsm.ActualFailed, "RUNTIME_ERROR"
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{r}})
			w.pass(200 * time.Millisecond)
			next := time.Duration(w.workload("web").Retry.NextAt - time.Now().UnixNano())
			is(t, `a retry of workload "web" is scheduled`, next > 0, true)
			w.beat(sched.Heartbeat{Node: "a"})
			before := w.workload("web").Generation
			w.pass(next + 50*time.Millisecond)
			is(t, `the retry gives workload "web" a newer generation`, before.Less(w.workload("web").Generation), true)
		}},
		{"after the feed was lost, the leader starts again from a view", func(t *testing.T, w *world) {
			w.log.st.Restore(w.log.last)
			w.settle()
			w.put("web")
			w.settle()
			w.log.st.Restore(w.log.last)
			w.pass(time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
		}},
		{"nodes registered while the feed was lost have a lease, removed ones have none", func(t *testing.T, w *world) {
			w.log.set(func(l *fakeLog) {
				tx := l.last.Begin()
				for _, c := range []*commandv1.Command{
					{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "a", Force: true}}},
					{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{Id: "z", Endpoint: "h:1", CpuMillicores: 1, MemoryMib: 1, Protocol: 1}}},
				} {
					l.index++
					if r, _ := tx.Apply(fsm.Meta{Index: l.index, Term: 1}, c); r.Err() != nil {
						t.Fatal(r.Err())
					}
				}
				l.last = tx.Commit()
				l.st.Restore(l.last)
			})
			w.settle()
			_, _, ok := w.loop.LeaseOf("a")
			is(t, `the removed node "a" has a lease`, ok, false)
			about(t, "time to the end of the new node's lease", w.expires("z"), 10*time.Second)
		}},
		{"an idle leader proposes and confirms nothing", func(t *testing.T, w *world) {
			w.put("web")
			w.pass(2 * time.Second)
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{w.running("web")}})
			w.pass(2 * time.Second)
			index, confirms := w.view().Info().Index, w.log.confirmed()
			w.pass(5 * time.Second)
			is(t, "log index of the state", w.view().Info().Index, index)
			is(t, "number of confirmations of the leadership", w.log.confirmed(), confirms)
		}},
		{"the term ends promptly while all calls hang", func(t *testing.T, w *world) {
			w.agents.on("a", dead)
			w.put("web")
			w.settle()
			w.log.set(func(l *fakeLog) { l.slow = time.Hour })
			w.put("api")
			w.pass(time.Second)
			began := time.Now()
			w.resign()
			is(t, "time that the end of the term took", time.Since(began), 0)
			is(t, "the replica leads", w.loop.Leading(), false)
		}},
		{"the term ends after the store was closed", func(t *testing.T, w *world) {
			w.log.st.Close()
			w.pass(time.Second)
			w.resign()
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			inWorld(t, []string{"a"}, func(w *world) { c.fn(t, w) })
		})
	}
}
