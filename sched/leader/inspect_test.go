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

// fakeInspector answers with the workloads and tasks that a test put into it.
type fakeInspector struct {
	mu      sync.Mutex
	has     map[string]map[string]sched.Reported // by node and workload
	fail    map[string]error                     // by node
	acts    []*commandv1.AgentAction
	looks   int
	lists   map[string][]time.Time
	flying  int
	most    int
	holding time.Duration // how long an answer takes
}

func newInspector() *fakeInspector {
	return &fakeInspector{has: map[string]map[string]sched.Reported{}, fail: map[string]error{}, lists: map[string][]time.Time{}}
}

// with makes the leader read agents through f.
func with(f *fakeInspector) func(*Config) { return func(c *Config) { c.Inspector = f } }

// put sets what a node reports of a workload.
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

func TestPolls(t *testing.T) {
	// old makes a world with one agent of protocol 0 that has accepted web.
	old := func(t *testing.T, f *fakeInspector, fn func(w *world)) {
		t.Helper()
		inWorld(t, nil, func(w *world) {
			w.register("old", legacy)
			w.beat(sched.Heartbeat{Node: "old"})
			w.put("web")
			w.pass(300 * time.Millisecond)
			if !w.workload("web").Acknowledged {
				t.Fatalf("not accepted: %+v", w.workload("web"))
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
				t.Errorf("asked %d times in 3 s", n)
			}
			f.put("old", is0(fsm.ActualRunning, "web"))
			w.pass(1500 * time.Millisecond)
			is(t, "status", w.workload("web").Status, fsm.StatusRunning)
			n := f.asked()
			w.pass(10 * time.Second)
			is(t, "asked after that", f.asked()-n, 0)
		})
	})
	t.Run("a polled workload that the agent does not have is missing", func(t *testing.T) {
		f := newInspector()
		old(t, f, func(w *world) {
			w.pass(1500 * time.Millisecond)
			is(t, "state", w.workload("web").Actual.State, fsm.ActualMissing)
		})
	})
	t.Run("an agent that does not answer is polled again", func(t *testing.T) {
		f := newInspector()
		f.fail["old"] = errors.New("connection refused")
		old(t, f, func(w *world) {
			w.pass(5 * time.Second)
			if n := f.asked(); n < 3 {
				t.Errorf("asked %d times in 5 s", n)
			}
			is(t, "state", w.workload("web").Actual.State, fsm.ActualPending)
		})
	})
	t.Run("a new leader goes on polling", func(t *testing.T) {
		f := newInspector()
		f.put("old", is0(fsm.ActualPending, "web"))
		old(t, f, func(w *world) {
			w.resign()
			n := f.asked()
			w.lead()
			w.pass(1500 * time.Millisecond)
			if f.asked() == n {
				t.Error("nobody asks")
			}
		})
	})
	t.Run("an agent of protocol 1 is not polled", func(t *testing.T) {
		f := newInspector()
		inWorld(t, []string{"a"}, func(w *world) {
			w.put("web")
			w.alive(5*time.Second, "a")
			is(t, "asked", f.asked(), 0)
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
		is(t, "kept early", len(w.workload("web").Actions), 0)
		w.alive(3*time.Second, "a")
		got := w.workload("web")
		is(t, "kept", len(got.Actions), 2)
		is(t, "attempts", got.Retry.Attempts, int32(1))
		var told []string
		w.view().EventsBack(func(e *fsm.Event) bool {
			if e.Type == fsm.EventAgentAction {
				told = append(told, e.Message)
			}
			return true
		})
		is(t, "told, the last first", strings.Join(told, ","), "no route to registry,still in use")
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
			t.Errorf("%d at a time, want 4", f.most)
		}
	}, with(f), func(c *Config) { c.Inspections = 4 })
}
