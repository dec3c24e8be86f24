package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

// TestTheEndOfAFormerInstanceIsNoSuccess: an order has given a job another specification. The agent has
// stopped the job's former instance and has not made the new one yet. The stopped former instance must not
// count as the success of the job.
func TestTheEndOfAFormerInstanceIsNoSuccess(t *testing.T) {
	for content, want := range map[string]bool{"c1:new": true, "c1:former": false} {
		in := &Intent{ID: "pack", EngineContent: "c1:new", DesiredState: "running"}
		in.Traits.RestartPolicy = "no"
		w := &Workload{ID: "pack", Intent: in, Observed: &workload.Observed{State: workload.Stopped, Content: content}, Failure: Failure{Ended: "its end"}}
		if got := w.completed(); got != want {
			t.Errorf("the instance with content %q has ended, and the order asks for content \"c1:new\": the job counts as completed: %t, want %t", content, got, want)
		}
	}
}

// TestTheEndOfAFormerInstanceKeepsTheFailedStart: the agent has stopped the former instance of a workload,
// and has then failed to start the new one. When it observes the end of the former instance, it must keep the
// record of the failed start, with its failure class and the time of the next attempt.
func TestTheEndOfAFormerInstanceKeepsTheFailedStart(t *testing.T) {
	now := time.Unix(1000, 0)
	start := Failure{Class: workload.ImagePullTimeout, Message: "no route", At: now, Attempts: 1, Next: now.Add(5 * time.Second)}
	for content, kept := range map[string]bool{"c1:new": false, "c1:former": true} {
		in := &Intent{ID: "pack", EngineContent: "c1:new", DesiredState: "running"}
		in.Traits.Job, in.Traits.RestartPolicy = true, "no"
		ended := &workload.Observed{
			State: workload.Failed, Content: content, RuntimeID: "r", StartedAt: now.Add(-time.Minute), FinishedAt: now, ExitCode: 143, KeepEnded: true,
		}
		x := with(now, nil, &Workload{ID: "pack", Intent: in, Observed: ended, Failure: start})
		w := x.edit(x.Get("pack"))
		x.evaluate(w)
		if got := w.Failure.Attempts == 1 && w.Failure.Class == start.Class && w.Failure.Next.Equal(start.Next) && w.Failure.Ended != ""; got != kept {
			t.Errorf("after the end of the instance with content %q the workload's failure record is %+v; the failed start is kept: %t, want %t", content, w.Failure, got, kept)
		}
	}
}

// pending sets a one-time request of an order: a forced restart, or a new instance after a delete that was not carried out.
var pending = map[string]func(*Intent){
	"":         func(*Intent) {},
	"restart":  func(in *Intent) { in.Restart = true },
	"recreate": func(in *Intent) { in.Recreate = true },
}

// TestTheEndBeforeARestartDoesNotCount: an instance has ended, and a restart is pending.
func TestTheEndBeforeARestartDoesNotCount(t *testing.T) {
	for name, set := range pending {
		in := &Intent{ID: "pack", EngineContent: "c1:a", DesiredState: "running", Traits: Traits{RestartPolicy: "no", Job: true}}
		set(in)
		restart := name != ""
		o := &workload.Observed{State: workload.Stopped, Content: "c1:a", RuntimeID: "r", FinishedAt: time.Unix(1000, 0)}
		w := &Workload{ID: "pack", Intent: in, Observed: o, Failure: Failure{Ended: mark(o)}}
		if w.completed() == restart || w.ended() == restart || w.finished() == restart {
			t.Errorf("with the pending request %q the job has completed: %t, ended: %t, finished: %t", name, w.completed(), w.ended(), w.finished())
		}
	}
}

// restoredJob returns an agent that starts with the finished order of a job. set sets a pending request of the order.
func restoredJob(t *testing.T, kind workload.Kind, set func(*Intent), f Failure) *history {
	in := &Intent{
		ID: "pack", Type: kind, DesiredState: "running", EngineContent: "c1:a", Content: "c1:a",
		Generation: workload.Generation{Incarnation: 1, Sequence: 6}, Traits: Traits{RestartPolicy: "no", Job: true},
	}
	set(in)
	ordered := time.Unix(900, 0)
	saved := Saved{
		Intents: []*Intent{in}, Meta: Meta{InstanceID: "i1"}, Tasks: []*Task{NewTask(ActionApply, "pack", ordered).Ended(f.Message, f.Attempts > 0, ordered)},
		Status: map[string]SavedStatus{"pack": {Status: &Status{ID: "pack", State: workload.Running}, Failure: f}},
	}
	h := &history{t: t, now: time.Unix(1000, 0), clock: 1000 * time.Second}
	h.s = Restore(Settings{Node: "a", Policy: policy, Concurrency: 8}, saved, h.now)
	return h.step(Engines{Cluster: "c1", Kinds: []workload.Kind{kind}})
}

// lists passes a list of the engine to the core, in which the instance of the job has ended with an exit code. partly: the
// instance is a stack of which another service still runs.
func (h *history) lists(code int, partly bool) *Status {
	o := workload.Observed{
		ID: "pack", State: workload.Stopped, Content: "c1:a", Generation: workload.Generation{Incarnation: 1, Sequence: 5}, RuntimeID: "r1",
		ExitCode: code, StartedAt: h.now.Add(-20 * time.Second), FinishedAt: h.now.Add(-time.Second),
	}
	if code != 0 {
		o.State, o.PartlyRunning = workload.Failed, partly
	}
	h.step(Listed{Kind: h.s.engines[0].Kind, Bound: h.s.engines[0].Bound, Began: h.now, Seen: []workload.Observed{o}})
	return h.s.Get("pack").Status
}

// TestStepReportsTheExitOfAJobThatIsBeingInspected: a job ended while the agent was down. The agent inspects
// it, and lists the instances meanwhile. The next report must already contain the exit of the job: without
// the exit, the schedulers would count a failure.
func TestStepReportsTheExitOfAJobThatIsBeingInspected(t *testing.T) {
	for code, state := range map[int]workload.State{0: workload.Stopped, 3: workload.Failed} {
		h := restoredJob(t, workload.Container, pending[""], Failure{})
		if a := h.step(Start{}).act(); a == nil || a.Verb != Look {
			t.Fatalf("at its start the core's action is %+v, want a Look (an inspection of the instance)", a)
		}
		if st := h.lists(code, false); st.State != state || (st.Reason == ReasonCompleted) != (code == 0) || st.Exit.EndedAt.IsZero() || st.Exit.Code != code {
			t.Errorf("the job is reported as %+v, want that it ended with exit code %d", st, code)
		}
	}
}

// TestStepRestartsAJobThatEndedBeforeItsRestart: a person has asked for a restart of a running job, or the job was deleted and
// ordered again, and the first attempt of the agent to start it again has failed. The instance ends, for example because the
// failed attempt stops it after all. This end is not that of the run that was asked for.
func TestStepRestartsAJobThatEndedBeforeItsRestart(t *testing.T) {
	busy := Failure{Class: workload.RuntimeUnhealthy, Message: "busy", At: time.Unix(999, 0), Attempts: 1, Next: time.Unix(1004, 0)}
	for _, c := range []struct {
		kind   workload.Kind
		set    string
		code   int
		partly bool
		verb   Verb
	}{
		{workload.Container, "restart", 0, false, Ensure},
		{workload.Container, "restart", 143, false, Ensure},
		{workload.Container, "recreate", 0, false, Recreate},
		{workload.Container, "recreate", 143, false, Recreate},
		{workload.Compose, "restart", 0, false, Ensure},
		{workload.Compose, "restart", 143, false, Ensure},
		{workload.Compose, "restart", 143, true, Ensure},
		{workload.Compose, "recreate", 143, false, Recreate},
	} {
		for _, f := range []Failure{{}, busy} {
			h := restoredJob(t, c.kind, pending[c.set], f)
			if st := h.lists(c.code, c.partly); st.State != workload.Pending || st.Reason == ReasonCompleted || !st.Exit.EndedAt.IsZero() {
				t.Errorf("%+v: after the failure %+v the job is reported as %+v, want Pending without an exit", c, f, st)
			}
			a := h.act()
			for h.now.Before(time.Unix(1060, 0)) && (a == nil || a.Verb == Look) {
				if a != nil {
					h.step(Done{Act: a, Observed: h.s.Get("pack").Observed, Began: h.now})
				} else {
					h.step(Tick{})
				}
				a = h.act()
			}
			if a == nil || a.Verb != c.verb {
				t.Errorf("%+v: after the failure %+v the core's action is %+v, want %s", c, f, a, c.verb)
			}
		}
	}
}
