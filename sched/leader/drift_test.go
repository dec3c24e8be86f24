package leader

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// each returns a setting: the leader compares every node with the state once in each interval d.
func each(d time.Duration) func(*Config) { return func(c *Config) { c.DriftInterval = d } }

// has makes a node list a workload with the values that the state expects; the functions set change
// them.
func (w *world) has(f *fakeInspector, node, id string, set ...func(*sched.Reported)) {
	r := w.running(id)
	r.Revision = w.workload(id).Revision()
	for _, fn := range set {
		fn(&r)
	}
	f.put(node, r)
}

func (w *world) drifts() (out []string) {
	w.view().Drifts("", func(d *fsm.Drift) bool {
		out = append(out, d.Node+" "+d.Workload+" "+d.Type)
		return true
	})
	return out
}

// obedient makes a node accept all orders and report their workloads as running.
func (w *world) obedient(node string) {
	w.agents.on(node, func(_ context.Context, o sched.Order) (sched.Ack, error) {
		return sched.Ack{Accepted: true, Gone: o.Op == sched.OpDelete, State: fsm.ActualRunning}, nil
	})
}

func TestDriftRounds(t *testing.T) {
	const interval = 10 * time.Second
	// steady runs fn in a world with a leader and a node a that runs workload web and reports that
	// it runs.
	steady := func(t *testing.T, f *fakeInspector, fn func(w *world)) {
		t.Helper()
		inWorld(t, []string{"a"}, func(w *world) {
			w.obedient("a")
			w.put("web")
			w.beat(sched.Heartbeat{Node: "a"})
			w.pass(300 * time.Millisecond)
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
			w.has(f, "a", "web")
			fn(w)
		}, with(f), each(interval))
	}
	t.Run("a node is read once in each interval, and nothing is committed", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			w.alive(interval, "a")
			entries := len(w.log.entries)
			w.alive(5*interval, "a")
			if n := len(f.listed("a")); n < 5 || n > 7 {
				t.Errorf("the node was read %d times in 6 drift intervals, want 5 to 7", n)
			}
			is(t, "number of new log entries", len(w.log.entries)-entries, 0)
			is(t, "number of open drifts", len(w.drifts()), 0)
		})
	})
	t.Run("an orphan is recorded after a second comparison, not touched, and closed when it is gone", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			f.put("a", is0(fsm.ActualRunning, "ghost"))
			orders := len(w.agents.got("a"))
			w.alive(interval+3*time.Second, "a")
			is(t, "open drifts", fmt.Sprint(w.drifts()), "[a ghost orphan_on_agent]")
			w.alive(10*interval, "a")
			is(t, "number of set_drifts commands in the log", w.log.count("set_drifts"), 1)
			is(t, "number of orders to the node because of the orphan", len(w.agents.got("a"))-orders, 0)
			f.drop("a", "ghost")
			w.alive(interval+3*time.Second, "a")
			is(t, "number of open drifts", len(w.drifts()), 0)
		})
	})
	t.Run("an orphan that a person deletes is deleted", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			f.put("a", is0(fsm.ActualRunning, "ghost"))
			w.alive(interval+3*time.Second, "a")
			w.agents.on("a", func(_ context.Context, o sched.Order) (sched.Ack, error) {
				f.drop("a", o.Workload)
				return sched.Ack{Accepted: true, Gone: true}, nil
			})
			w.do(&commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: "a", Workload: "ghost"}}})
			w.pass(time.Second)
			got := w.agents.got("a")
			is(t, "workload of the last order", got[len(got)-1].Workload, "ghost")
			w.alive(interval+3*time.Second, "a")
			is(t, "number of open drifts", len(w.drifts()), 0)
		})
	})
	t.Run("a missing workload is ordered again after the grace", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			f.drop("a", "web")
			w.alive(interval+3*time.Second, "a")
			is(t, "open drifts", fmt.Sprint(w.drifts()), "[a web missing_on_agent]")
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualMissing)
			is(t, `number of counted failures of workload "web"`, w.workload("web").Retry.Attempts, int32(0))
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				w.has(f, "a", "web")
				return sched.Ack{Accepted: true, State: fsm.ActualRunning}, nil
			})
			w.alive(15*time.Second+interval, "a")
			w.has(f, "a", "web")
			w.alive(interval+3*time.Second, "a")
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
			is(t, "number of open drifts", len(w.drifts()), 0)
		})
	})
	t.Run("a changed state is committed", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			w.has(f, "a", "web", func(r *sched.Reported) { r.Observation.State = fsm.ActualFailed })
			w.alive(interval+3*time.Second, "a")
			w.pass(time.Second)
			if got := w.workload("web"); got.Actual.State != fsm.ActualFailed && got.Retry.Attempts == 0 {
				t.Errorf("the state of workload web in the record is %+v, want the failure that the node lists", got)
			}
		})
	})
	t.Run("a workload with another revision is ordered again", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			before := w.workload("web").Generation
			w.has(f, "a", "web", func(r *sched.Reported) { r.Revision = "c1-other" })
			w.alive(interval+3*time.Second, "a")
			is(t, "open drifts", fmt.Sprint(w.drifts()), "[a web revision_mismatch]")
			is(t, "the workload has a newer generation than before", before.Less(w.workload("web").Generation), true)
			w.has(f, "a", "web")
			w.alive(interval+3*time.Second, "a")
			is(t, "number of open drifts", len(w.drifts()), 0)
		})
	})
	t.Run("a difference that ends before the second comparison is not recorded", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			f.put("a", is0(fsm.ActualRunning, "ghost"))
			for len(f.listed("a")) == 0 {
				w.alive(100*time.Millisecond, "a")
			}
			f.drop("a", "ghost")
			w.alive(2*interval, "a")
			is(t, "number of set_drifts commands in the log", w.log.count("set_drifts"), 0)
		})
	})
	t.Run("a node that does not answer closes no drift", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			f.put("a", is0(fsm.ActualRunning, "ghost"))
			w.alive(interval+3*time.Second, "a")
			f.mu.Lock()
			f.fail["a"] = errors.New("connection refused")
			f.mu.Unlock()
			w.alive(2*interval, "a")
			is(t, "number of open drifts", len(w.drifts()), 1)
		})
	})
	t.Run("no node is read in a frozen mode", func(t *testing.T) {
		f := newInspector()
		steady(t, f, func(w *world) {
			w.mode(fsm.ModeDegraded)
			n := len(f.listed("a"))
			w.alive(3*interval, "a")
			is(t, "number of reads of the node in a frozen mode", len(f.listed("a"))-n, 0)
		})
	})
	t.Run("each task of an agent becomes one event", func(t *testing.T) {
		f := newInspector()
		f.acts = []*commandv1.AgentAction{{TaskId: "t2", Workload: "web", Status: "running"}, {TaskId: "t1", Workload: "web", Status: "completed", EndedAt: 7}}
		steady(t, f, func(w *world) {
			w.alive(4*interval, "a")
			is(t, "number of record_actions commands in the log", w.log.count("record_actions"), 1)
		})
	})
	t.Run("tasks of agents become events whether or not there are differences", func(t *testing.T) {
		f := newInspector()
		f.acts = []*commandv1.AgentAction{{TaskId: "t1", Workload: "web", Status: "completed", EndedAt: 7}}
		steady(t, f, func(w *world) {
			for len(f.listed("a")) == 0 { // each comparison finds another orphan, so no second comparison confirms the first one
				f.put("a", is0(fsm.ActualRunning, "ghost"))
				w.alive(100*time.Millisecond, "a")
			}
			is(t, "number of open drifts", len(w.drifts()), 0)
			is(t, "number of record_actions commands in the log", w.log.count("record_actions"), 1)
		})
	})
	t.Run("more tasks of a busy node are read, and its events are in the order in which the tasks ended", func(t *testing.T) {
		const many = 700
		f := newInspector()
		f.acts = []*commandv1.AgentAction{{TaskId: "old", CreatedAt: 1, EndedAt: 2}}
		steady(t, f, func(w *world) {
			w.alive(interval, "a")
			is(t, "number of recorded tasks after the first round", w.told(), 1)
			f.mu.Lock()
			f.acts = nil
			for i := many; i > 0; i-- { // the task that was created first ends last
				f.acts = append(f.acts, &commandv1.AgentAction{TaskId: fmt.Sprint("t", i), CreatedAt: int64(10 + i), EndedAt: int64(5000 - i)})
			}
			f.mu.Unlock()
			w.alive(interval, "a")
			is(t, "number of recorded tasks after the second round", w.told(), 1+many)
			is(t, `AuditedUntil of node "a"`, w.view().AuditedUntil("a"), int64(4999))
			entries := len(w.log.entries)
			w.alive(2*interval, "a")
			is(t, "number of new log entries about tasks that are recorded already", len(w.log.entries)-entries, 0)
		})
	})
}

// told returns how many finished tasks of agents the leader has recorded as events.
func (w *world) told() (n int) {
	w.view().Events(0, func(e *fsm.Event) bool {
		if e.Type == fsm.EventAgentAction {
			n++
		}
		return true
	})
	return n
}

func TestDriftDetectionReadsEachNodeInItsOwnSlot(t *testing.T) {
	t.Run("nodes are read at different times", func(t *testing.T) {
		f := newInspector()
		var nodes []string
		for i := range 40 {
			nodes = append(nodes, fmt.Sprintf("n%d", i))
		}
		inWorld(t, nil, func(w *world) {
			for i, id := range nodes {
				w.register(id, func(n *commandv1.RegisterNode) { n.Endpoint = fmt.Sprintf("10.0.0.%d:1", i+1) })
			}
			w.alive(10*time.Second, nodes...)
			moments := map[int64]int{}
			for _, n := range nodes {
				if got := f.listed(n); len(got) != 1 {
					t.Fatalf("node %s was read %d times, want once", n, len(got))
				} else {
					moments[got[0].UnixNano()/int64(time.Millisecond)]++
				}
			}
			if len(moments) < 15 {
				t.Errorf("the nodes were read at only %d different times, want at least 15", len(moments))
			}
		}, with(f), each(10*time.Second))
	})
	t.Run("of nodes with the same endpoint, the last one heard is read", func(t *testing.T) {
		f := newInspector()
		inWorld(t, []string{"old", "new"}, func(w *world) { // both node records have the endpoint 10.0.0.1
			w.beat(sched.Heartbeat{Node: "old"})
			w.pass(time.Second)
			w.beat(sched.Heartbeat{Node: "new"})
			before := len(f.listed("old"))
			w.pass(6 * time.Second)
			is(t, `number of reads of node "old" after the last heartbeat of node "new"`, len(f.listed("old"))-before, 0)
			if len(f.listed("new")) < 2 {
				t.Error("the node with the newest heartbeat must be read at the shared endpoint, but is not")
			}
		}, with(f), each(2*time.Second))
	})
}
