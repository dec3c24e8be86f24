package core

import (
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

// checked returns a history (a sequence of calls of Step) in which workload db was ordered with a health check
// and now runs.
func checked(t *testing.T, change ...func(*Order)) *history {
	h := newHistory(t, nil)
	change = append([]func(*Order){func(o *Order) { o.OnUnhealthy, o.Traits.HealthCheck = OnUnhealthyRestart, "tcp 80" }}, change...)
	h.step(order(5, 7, change...)).look(workload.Absent)
	h.step(Done{Act: h.act()}).look(workload.Running)
	return h
}

// unhealthy makes the health check of db fail, and returns the restart that Step then begins; nil if Step
// begins none.
func (h *history) unhealthy() *Act {
	h.t.Helper()
	h.step(Checked{ID: "db", State: string(workload.Unhealthy), Detail: "connection refused"})
	if h.act() == nil {
		return nil
	}
	o := *h.s.Get("db").Observed
	h.step(Done{Act: h.act(), Observed: &o, Began: h.now})
	return h.act()
}

// restarted reports to Step that the restart a is done. The instance then runs, and its health
// check has no result yet.
func (h *history) restarted(a *Act) *history {
	h.t.Helper()
	return h.step(Done{Act: a}).look(workload.Running)
}

func TestUnhealthyWorkloadIsRestarted(t *testing.T) {
	h := checked(t)
	started := h.s.Get("db").Observed.StartedAt
	running := func() *workload.Observed {
		o := *h.s.Get("db").Observed
		o.StartedAt = started
		return &o
	}
	lookAgain := func() {
		t.Helper()
		a := h.act()
		if a == nil || a.Verb != Look {
			t.Fatalf("the core's action is %+v, want a Look", a)
		}
		h.step(Done{Act: a, Observed: running(), Began: h.now})
	}
	h.step(Checked{ID: "db", State: string(workload.Unhealthy), Detail: "connection refused"})
	lookAgain()
	a := h.act()
	if a == nil || a.Verb != Restart || !a.Heals {
		t.Fatalf("the core's action on an unhealthy workload is %+v", a)
	}
	st := h.s.Get("db").Status
	if st.State != workload.Pending || st.Reason != ReasonWorking || !strings.Contains(st.Message, "unhealthy: connection refused") || st.RestartCount != 1 {
		t.Fatalf("during the restart the report is %+v", st)
	}
	started = h.now
	h.step(Done{Act: a})
	lookAgain()
	if w := h.s.Get("db"); w.Status.State != workload.Running || w.Failure.Attempts != 0 || h.act() != nil {
		t.Fatalf("after the restart the report is %+v, the failure %+v, the core's action %+v", w.Status, w.Failure, h.act())
	}
	// The workload becomes unhealthy again. The second restart happens only after the back-off.
	h.step(Checked{ID: "db", State: string(workload.Unhealthy)})
	lookAgain()
	if h.act() != nil {
		t.Fatalf("the second restart came at once: %+v", h.act())
	}
	h.now = h.now.Add(policy.Base)
	h.step(Tick{})
	lookAgain()
	if a = h.act(); a == nil || a.Verb != Restart {
		t.Fatalf("after the back-off the core's action is %+v", a)
	}
	started = h.now
	h.step(Done{Act: a})
	lookAgain()
	if w := h.s.Get("db"); w.Healing.Row != 2 || w.Status.RestartCount != 2 {
		t.Fatalf("%+v", w.Healing)
	}
	// The workload then runs long enough for earlier restarts to be forgotten. The next restart happens
	// without delay.
	h.now = h.now.Add(policy.Stable + policy.Max)
	h.step(Checked{ID: "db", State: string(workload.Unhealthy)})
	lookAgain()
	if a = h.act(); a == nil || h.s.Get("db").Healing.Row != 1 {
		t.Fatalf("the core's action is %+v, the count of restarts %+v", a, h.s.Get("db").Healing)
	}
}

func TestUnhealthyWorkloadsThatAreNotRestarted(t *testing.T) {
	t.Run("a workload without on_unhealthy: restart", func(t *testing.T) {
		h := checked(t, func(o *Order) { o.OnUnhealthy = "" })
		if a := h.unhealthy(); a != nil {
			t.Fatalf("%+v", a)
		}
	})
	t.Run("a run of the instance that has no result yet", func(t *testing.T) {
		h := checked(t)
		a := h.unhealthy()
		h.now = h.now.Add(time.Minute) // the stop takes longer than the back-off
		h.restarted(a)
		if h.act() != nil {
			t.Fatalf("the result about the former run caused %+v", h.act())
		}
	})
}

// An unhealthy result of the engine's own health check (of an image, or of a service of a stack) also
// restarts the workload.
func TestHealthCheckOfTheEngineCounts(t *testing.T) {
	h := checked(t, func(o *Order) { o.Traits.HealthCheck = "" })
	o := *h.s.Get("db").Observed
	o.Health = workload.Unhealthy
	h.step(Listed{Kind: workload.Container, Bound: h.s.engines[0].Bound, Began: h.now, Seen: []workload.Observed{o}})
	a := h.act()
	if a == nil || a.Verb != Look {
		t.Fatalf("the core's action is %+v, want a Look", a)
	}
	h.step(Done{Act: a, Observed: &o, Began: h.now})
	if a := h.act(); a == nil || a.Verb != Restart || !a.Heals {
		t.Fatalf("the core's action is %+v", a)
	}
}

func TestRestartsForHealthSurviveTheAgent(t *testing.T) {
	h := checked(t)
	h.restarted(h.unhealthy())
	w := h.s.Get("db")
	saved := Saved{Intents: []*Intent{w.Intent}, Status: map[string]SavedStatus{"db": {Status: w.Status, Healing: w.Healing}}}
	again := Restore(h.s.Settings, saved, h.now).Get("db")
	if again.Healing != w.Healing || w.Healing.Restarts != 1 || again.Intent.OnUnhealthy != OnUnhealthyRestart {
		t.Fatalf("%+v, restored %+v", w.Healing, again.Healing)
	}
}

// The restart of an unhealthy workload stops its instance, and is interrupted before the start. The restart policy does
// not start an instance again that ended, but the agent stopped this one, so the restart is continued.
func TestInterruptedRestartForHealthIsContinued(t *testing.T) {
	kept := func(o *Order) { o.Traits.RestartPolicy = "on-failure" }
	stopped := func(h *history, started time.Time) *workload.Observed {
		return &workload.Observed{ID: "db", State: workload.Stopped, Content: "c1:a", RuntimeID: h.s.Get("db").Observed.RuntimeID,
			StartedAt: started, FinishedAt: h.now}
	}
	t.Run("the agent was restarted", func(t *testing.T) {
		h := checked(t, kept)
		h.now = h.now.Add(time.Minute)
		o := stopped(h, h.s.Get("db").Observed.StartedAt)
		if a := h.unhealthy(); a == nil || a.Verb != Restart || !a.Repeats {
			t.Fatalf("the core's action on an unhealthy workload is %+v, want a Restart that no order asks for", a)
		}
		h.s = Restore(h.s.Settings, Saved{Intents: []*Intent{h.s.Intent("db")}, Meta: h.s.Meta}, h.now)
		h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{workload.Container}})
		e, _ := h.s.Engine(workload.Container)
		h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{*o}})
		if h.act() == nil {
			t.Fatal("after the restart of the agent the core does not inspect the instance")
		}
		h.step(Done{Act: h.act(), Observed: o, Began: h.now})
		if a := h.act(); a == nil || a.Verb != Ensure || !a.Repeats {
			t.Fatalf("after the restart of the agent the core's action is %+v, want an Ensure that no order asks for", a)
		}
	})
	t.Run("the restart failed", func(t *testing.T) {
		h := checked(t, kept)
		h.now = h.now.Add(time.Minute)
		o := stopped(h, h.s.Get("db").Observed.StartedAt)
		h.step(Done{Act: h.unhealthy(), Failed: &Failed{Class: workload.RuntimeError, Message: "no device"}})
		h.now = h.now.Add(time.Minute)
		h.step(Tick{})
		h.step(Done{Act: h.act(), Observed: o, Began: h.now})
		if a := h.act(); a == nil || a.Verb != Ensure {
			t.Fatalf("after the failed action the core's action is %+v, want an Ensure", a)
		}
	})
	t.Run("not continued: the instance was started again", func(t *testing.T) {
		h := checked(t, kept)
		h.now = h.now.Add(time.Minute)
		h.step(Done{Act: h.unhealthy()})
		o := stopped(h, h.now.Add(time.Second))
		o.FinishedAt = h.now.Add(time.Minute)
		h.step(Done{Act: h.act(), Observed: o, Began: h.now})
		if a := h.act(); a != nil {
			t.Fatalf("the instance ended after the restart, and the core's action is %+v, want none", a)
		}
	})
	t.Run("not continued: a newer order has on_unhealthy: keep", func(t *testing.T) {
		h := checked(t, kept)
		h.now = h.now.Add(time.Minute)
		o := stopped(h, h.s.Get("db").Observed.StartedAt)
		h.step(Done{Act: h.unhealthy(), Failed: &Failed{Class: workload.RuntimeError, Message: "no device"}})
		h.step(order(6, 7, kept, func(o *Order) { o.OnUnhealthy, o.Traits.HealthCheck = "keep", "tcp 80" }))
		h.now = h.now.Add(time.Minute)
		h.step(Tick{})
		o.State, o.FinishedAt = workload.Running, time.Time{}
		h.step(Done{Act: h.act(), Observed: o, Began: h.now})
		if a := h.act(); a != nil || h.s.Intent("db").Heal {
			t.Fatalf("after an order with on_unhealthy: keep the core's action is %+v, Heal %t; want no action and no pending restart", a, h.s.Intent("db").Heal)
		}
	})
	t.Run("not continued: an order arrived during the restart", func(t *testing.T) {
		h := checked(t, kept)
		h.now = h.now.Add(time.Minute)
		a := h.unhealthy()
		h.step(order(6, 7, kept, func(o *Order) { o.OnUnhealthy, o.Traits.HealthCheck = OnUnhealthyRestart, "tcp 80" }))
		h.restarted(a).look(workload.Running) // the order requires a comparison of its own
		if h.act() != nil || h.s.Intent("db").Heal {
			t.Fatalf("after the restart the core's action is %+v, Heal %t; want no action and no pending restart", h.act(), h.s.Intent("db").Heal)
		}
	})
}

// After a restart for health, an older service of the stack fails for good. The start of that service lies before the
// restart, also if the clock of the engine is behind the clock of the agent. The failure is final.
func TestAFailureAfterARestartForHealthIsFinal(t *testing.T) {
	h := checked(t)
	h.now = h.now.Add(time.Minute)
	started := h.s.Get("db").Observed.StartedAt
	h.restarted(h.unhealthy())
	h.now = h.now.Add(time.Minute)
	e, _ := h.s.Engine(workload.Container)
	o := &workload.Observed{ID: "db", State: workload.Failed, Content: "c1:a", RuntimeID: h.s.Get("db").Observed.RuntimeID,
		StartedAt: started, FinishedAt: h.now, ExitCode: 1, KeepEnded: true, PartlyRunning: true}
	h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{*o}})
	if h.act() != nil {
		h.step(Done{Act: h.act(), Observed: o, Began: h.now})
	}
	if w := h.s.Get("db"); h.act() != nil || !w.Failure.Final {
		t.Fatalf("the core's action is %+v and the failure %+v, want no action and a final failure", h.act(), w.Failure)
	}
}

// After a restart of the agent, an exclusive stack waits for an order. The fencer must stop it at the end of the lease if one
// of its services runs, also if another one has failed.
func TestTheFencerStopsTheServicesOfAFailedStackThatRun(t *testing.T) {
	for _, partly := range []bool{true, false} {
		in := &Intent{ID: "db", Type: workload.Compose, DesiredState: "running", EngineContent: "x", Exclusive: true, OnLostLease: "stop"}
		o := &workload.Observed{ID: "db", State: workload.Failed, Content: "x", PartlyRunning: partly}
		x := with(time.Unix(1000, 0), nil, &Workload{Intent: in, Observed: o})
		w := x.edit(x.Get("db"))
		w.memory.waits, w.Seen = true, x.now
		if got := x.leasedWorkloads(); (len(got) == 1) != partly {
			t.Errorf("a failed stack of which services run: %t; the fencer must stop %v", partly, got)
		}
	}
}

// A service of a stack has failed for good, and other services run. A stop of the stack stops them, and the stack is reported
// as stopped only when none of them runs.
func TestAStopStopsTheServicesOfAFailedStackThatRun(t *testing.T) {
	h := checked(t)
	seen := func(partly bool) *workload.Observed {
		return &workload.Observed{ID: "db", State: workload.Failed, Class: workload.RuntimeError, Content: "c1:a", RuntimeID: "r1",
			StartedAt: h.now.Add(-time.Minute), FinishedAt: h.now.Add(-time.Second), ExitCode: 3, KeepEnded: true, PartlyRunning: partly}
	}
	looked := func(o *workload.Observed) {
		if a := h.act(); a != nil && a.Verb == Look {
			h.step(Done{Act: a, Observed: o, Began: h.now})
		}
	}
	e, _ := h.s.Engine(workload.Container)
	failed := seen(true)
	h.step(Listed{Kind: workload.Container, Bound: e.Bound, Began: h.now, Seen: []workload.Observed{*failed}})
	looked(failed)
	if w := h.s.Get("db"); h.act() != nil || w.Status.State != workload.Failed {
		t.Fatalf("the core's action is %+v and the report %+v, want no action and Failed", h.act(), w.Status)
	}
	h.step(order(6, 7, func(o *Order) { o.Running = false }))
	looked(failed)
	for range policy.Limit {
		if a := h.act(); a == nil || a.Verb != Halt {
			t.Fatalf("after the order to stop, the core's action is %+v, want halt", a)
		}
		h.step(Done{Act: h.act(), Failed: &Failed{Class: workload.RuntimeError, Message: "busy"}})
		looked(failed)
		if st := h.s.Get("db").Status; st.State == workload.Stopped {
			t.Fatalf("a service still runs, but the stack is reported as %+v", st)
		}
		h.now = h.now.Add(policy.Max)
		h.step(Tick{})
		looked(failed)
	}
	if st := h.s.Get("db").Status; st.State != workload.Running || st.Message != "busy" {
		t.Fatalf("the stop has failed for good, and the report is %+v, want Running with the failure", st)
	}
	h.step(order(7, 7, func(o *Order) { o.Running = false }))
	looked(failed)
	if a := h.act(); a == nil || a.Verb != Halt {
		t.Fatalf("after another order to stop, the core's action is %+v, want halt", a)
	}
	h.step(Done{Act: h.act()})
	looked(seen(false))
	if st := h.s.Get("db").Status; h.act() != nil || st.State != workload.Stopped {
		t.Fatalf("after the stop the core's action is %+v and the report %+v, want no action and Stopped", h.act(), st)
	}
}
