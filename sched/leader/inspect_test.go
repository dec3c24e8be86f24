package leader

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// fakeInspector returns the workloads and tasks that a test has set.
type fakeInspector struct {
	mu      sync.Mutex
	has     map[string]map[string]sched.Reported // workloads that an agent lists, by node and workload
	fail    map[string]error                     // error that each read of an agent returns, by node
	acts    []*commandv1.AgentAction
	looks   int
	lists   map[string][]time.Time
	flying  int
	most    int
	holding time.Duration // time that each answer takes
}

func newInspector() *fakeInspector {
	return &fakeInspector{has: map[string]map[string]sched.Reported{}, fail: map[string]error{}, lists: map[string][]time.Time{}}
}

// with makes the leader read agents through the fake inspector f.
func with(f *fakeInspector) func(*Config) { return func(c *Config) { c.Inspector = f } }

// put makes a node list a workload.
func (f *fakeInspector) put(node string, r sched.Reported) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has[node] == nil {
		f.has[node] = map[string]sched.Reported{}
	}
	f.has[node][r.Workload] = r
}

func (f *fakeInspector) drop(node, workload string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.has[node], workload)
}

func (f *fakeInspector) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

func (f *fakeInspector) listed(node string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists[node]
}

func (f *fakeInspector) enter(ctx context.Context) func() {
	f.mu.Lock()
	f.flying++
	f.most = max(f.most, f.flying)
	d := f.holding
	f.mu.Unlock()
	sleep(ctx, d)
	return func() {
		f.mu.Lock()
		f.flying--
		f.mu.Unlock()
	}
}

func (f *fakeInspector) List(ctx context.Context, node string) (out []sched.Reported, err error) {
	defer f.enter(ctx)()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists[node] = append(f.lists[node], time.Now())
	for _, r := range f.has[node] {
		out = append(out, r)
	}
	return out, f.fail[node]
}

func (f *fakeInspector) Look(ctx context.Context, node, workload string) (sched.Reported, bool, error) {
	defer f.enter(ctx)()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	r, ok := f.has[node][workload]
	return r, ok, f.fail[node]
}

func (f *fakeInspector) Actions(ctx context.Context, node, workload string, limit int) ([]*commandv1.AgentAction, error) {
	defer f.enter(ctx)()
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*commandv1.AgentAction
	for _, a := range f.acts {
		if len(out) < limit && (workload == "" || a.Workload == workload) {
			out = append(out, a)
		}
	}
	return out, f.fail[node]
}

func is0(state fsm.Actual, id string) sched.Reported {
	return sched.Reported{Workload: id, Observation: fsm.Observation{State: state}}
}

// TestHeartbeatsOfAFormerInstanceDoNotCount: a legacy v1 agent (protocol 0) accepts a new revision
// and shuts the previous instance down, which its heartbeats still report as Running. The leader must
// ignore these heartbeats for half of the apply limit.
func TestHeartbeatsOfAFormerInstanceDoNotCount(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		limit      time.Duration // SCHEDULER_AGENT_APPLY_TIMEOUT
	}{
		{"a virtual machine has its own apply limit", "vm", 45 * time.Second},
		{"without an apply limit such heartbeats never count", "container", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newInspector()
			f.put("old", is0(fsm.ActualRunning, "web"))
			kind := func(p *commandv1.WorkloadPut) { p.Demand.Type = c.kind }
			inWorld(t, nil, func(w *world) {
				w.register("old", legacy, func(b *commandv1.RegisterNode) { b.Types = append(b.Types, "vm") })
				w.beat(sched.Heartbeat{Node: "old"})
				w.put("web", kind)
				w.pass(1800 * time.Millisecond)
				is(t, `status of workload "web" before its specification changes`, w.workload("web").Status, fsm.StatusRunning)
				w.put("web", kind, func(p *commandv1.WorkloadPut) { p.Content = "c1:" + strings.Repeat("a", 64) })
				f.put("old", is0(fsm.ActualPending, "web"))
				for range 60 {
					w.pass(time.Second)
					w.beat(sched.Heartbeat{Node: "old", Full: true, Reports: []sched.Reported{is0(fsm.ActualRunning, "web")}})
					w.pass(100 * time.Millisecond)
					if got := w.workload("web"); got.Status == fsm.StatusRunning {
						t.Errorf("the new revision must not count as Running while the polls say Pending, but does %d s after the agent accepted it", (got.UpdatedAt-got.AcknowledgedAt)/1e9)
						return
					}
				}
			}, with(f), func(cfg *Config) {
				cfg.Tuning = sched.DefaultTuning()
				cfg.Tuning.ApplyTimeout = int64(c.limit)
			})
		})
	}
}

func TestLegacyAgentsArePolled(t *testing.T) {
	// old runs fn with a node whose legacy v1 agent (protocol 0) has accepted an order for workload web.
	old := func(t *testing.T, f *fakeInspector, fn func(w *world)) {
		t.Helper()
		inWorld(t, nil, func(w *world) {
			w.register("old", legacy)
			w.beat(sched.Heartbeat{Node: "old"})
			w.put("web")
			w.pass(300 * time.Millisecond)
			if !w.workload("web").Acknowledged {
				t.Fatalf("the agent must have accepted the order of workload web, but has not: %+v", w.workload("web"))
			}
			fn(w)
		}, with(f))
	}
	t.Run("an agent of protocol 0 is polled each second until the workload runs", func(t *testing.T) {
		f := newInspector()
		f.put("old", is0(fsm.ActualPending, "web"))
		old(t, f, func(w *world) {
			w.pass(3 * time.Second)
			if n := f.asked(); n < 2 || n > 4 {
				t.Errorf("the agent was polled %d times in 3 s, want 2 to 4", n)
			}
			f.put("old", is0(fsm.ActualRunning, "web"))
			w.pass(1500 * time.Millisecond)
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
			n := f.asked()
			w.pass(10 * time.Second)
			is(t, "number of polls after the workload was reported as running", f.asked()-n, 0)
		})
	})
	t.Run("a polled workload that the agent does not have is Missing", func(t *testing.T) {
		f := newInspector()
		old(t, f, func(w *world) {
			w.pass(1500 * time.Millisecond)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualMissing)
		})
	})
	t.Run("an agent that does not answer is polled again", func(t *testing.T) {
		f := newInspector()
		f.fail["old"] = errors.New("connection refused")
		old(t, f, func(w *world) {
			w.pass(5 * time.Second)
			if n := f.asked(); n < 3 {
				t.Errorf("the agent was polled %d times in 5 s, want at least 3", n)
			}
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualPending)
		})
	})
	t.Run("a new leader continues to poll", func(t *testing.T) {
		f := newInspector()
		f.put("old", is0(fsm.ActualPending, "web"))
		old(t, f, func(w *world) {
			w.resign()
			n := f.asked()
			w.lead()
			w.pass(1500 * time.Millisecond)
			if f.asked() == n {
				t.Error("the new leader must poll the agent, but does not")
			}
		})
	})
	t.Run("while the former instance stops, the new revision is not said to be Running", func(t *testing.T) {
		f := newInspector()
		f.put("old", is0(fsm.ActualRunning, "web"))
		runs := sched.Heartbeat{Node: "old", Full: true, Reports: []sched.Reported{is0(fsm.ActualRunning, "web")}}
		old(t, f, func(w *world) {
			w.pass(1500 * time.Millisecond)
			is(t, `status of workload "web" before its specification changes`, w.workload("web").Status, fsm.StatusRunning)
			former := is0(fsm.ActualRunning, "web")
			former.Revision = w.workload("web").Revision()
			f.put("old", former)
			w.put("web", func(p *commandv1.WorkloadPut) { p.Content = "c1:" + strings.Repeat("a", 64) })
			for range 5 {
				w.pass(500 * time.Millisecond)
				w.beat(runs) // a heartbeat of a legacy v1 agent names no revision
				w.pass(200 * time.Millisecond)
				if got := w.workload("web"); got.Revision() == former.Revision || got.Status == fsm.StatusRunning {
					t.Errorf("revision %s is %s while %s stops, want the new revision, and not Running", got.Revision(), got.Status, former.Revision)
					return
				}
			}
			f.put("old", is0(fsm.ActualPending, "web")) // the task of the agent is under way
			w.pass(1500 * time.Millisecond)
			w.beat(runs)
			w.pass(200 * time.Millisecond)
			is(t, `status of workload "web" while the agent's task runs`, w.workload("web").Status, fsm.StatusPending)
			now := is0(fsm.ActualRunning, "web")
			now.Revision = w.workload("web").Revision()
			f.put("old", now)
			w.pass(1500 * time.Millisecond)
			is(t, `status of workload "web" after the agent's task has ended`, w.workload("web").Status, fsm.StatusRunning)
		})
	})
	t.Run("a working order whose polls fail costs no attempt, because heartbeats count before its deadline", func(t *testing.T) {
		f := newInspector()
		f.fail["old"] = errors.New("connection refused")
		old(t, f, func(w *world) {
			for range 50 {
				w.pass(900 * time.Millisecond)
				w.beat(sched.Heartbeat{Node: "old", Full: true, Reports: []sched.Reported{is0(fsm.ActualRunning, "web")}})
			}
			w.pass(500 * time.Millisecond)
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
			is(t, `number of counted failures of workload "web"`, w.workload("web").Retry.Attempts, 0)
		})
	})
	t.Run("in a frozen mode, in which nobody polls, a heartbeat counts at once", func(t *testing.T) {
		f := newInspector()
		f.put("old", is0(fsm.ActualPending, "web"))
		old(t, f, func(w *world) {
			w.mode(fsm.ModeDegraded)
			w.beat(sched.Heartbeat{Node: "old", Full: true, Reports: []sched.Reported{is0(fsm.ActualRunning, "web")}})
			w.pass(500 * time.Millisecond)
			is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
		})
	})
	t.Run("an agent of protocol 1 is not polled", func(t *testing.T) {
		f := newInspector()
		inWorld(t, []string{"a"}, func(w *world) {
			w.put("web")
			w.alive(5*time.Second, "a")
			is(t, "number of polls of the agent", f.asked(), 0)
		}, with(f))
	})
}

func TestATimeoutReadsTheAgentsActions(t *testing.T) {
	f := newInspector()
	f.acts = []*commandv1.AgentAction{
		{TaskId: "apply-web-2", Workload: "web", ActionType: "apply_workload", Status: "running", CreatedAt: 20, StartedAt: 21},
		{TaskId: "apply-web-1", Workload: "web", ActionType: "apply_workload", Status: "failed", Error: "no route to registry", CreatedAt: 10, EndedAt: 12},
		{TaskId: "delete-db-1", Workload: "db", ActionType: "delete_workload", Status: "failed", Error: "still in use", CreatedAt: 9, EndedAt: 11},
	}
	inWorld(t, []string{"a"}, func(w *world) {
		w.put("web")
		w.alive(44*time.Second, "a")
		is(t, "number of recorded tasks before the apply timeout", len(w.workload("web").Actions), 0)
		w.alive(3*time.Second, "a")
		got := w.workload("web")
		is(t, "number of recorded tasks after the apply timeout", len(got.Actions), 2)
		is(t, `number of counted failures of workload "web"`, got.Retry.Attempts, int32(1))
		var told []string
		w.view().EventsBack(func(e *fsm.Event) bool {
			if e.Type == fsm.EventAgentAction {
				told = append(told, e.Message)
			}
			return true
		})
		is(t, "errors of the tasks in the events, newest first", strings.Join(told, ","), "no route to registry,still in use")
	}, with(f))
}

func TestInspectionsAreBounded(t *testing.T) {
	f := newInspector()
	f.holding = 500 * time.Millisecond
	inWorld(t, nil, func(w *world) {
		w.register("old", legacy)
		w.beat(sched.Heartbeat{Node: "old"})
		for i := range 20 {
			id := "w" + string(rune('a'+i))
			f.put("old", is0(fsm.ActualPending, id))
			w.put(id)
		}
		w.pass(5 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.most != 4 {
			t.Errorf("at most %d agents were read at the same time, want 4", f.most)
		}
	}, with(f), func(c *Config) { c.Inspections = 4 })
}
