package core

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

// TestTheEndOfAFormerInstanceIsNoSuccess: an order has given a job another specification. The agent has stopped the former
// instance, and the new one does not exist yet.
func TestTheEndOfAFormerInstanceIsNoSuccess(t *testing.T) {
	for content, want := range map[string]bool{"c1:new": true, "c1:former": false} {
		in := &Intent{ID: "pack", EngineContent: "c1:new", DesiredState: "running"}
		in.Traits.RestartPolicy = "no"
		w := &Workload{ID: "pack", Intent: in, Observed: &workload.Observed{State: workload.Stopped, Content: content}, Failure: Failure{Ended: "its end"}}
		if got := w.completed(); got != want {
			t.Errorf("an instance with content %s has ended; completed is %t, want %t", content, got, want)
		}
	}
}

// TestTheEndOfAFormerInstanceKeepsTheFailedStart: the agent has stopped the former instance of a workload, and has then
// failed to start the new one. When it observes the end of the former instance, it must keep the failure of the start,
// with its cause and the time of the next try.
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
			t.Errorf("after the end of an instance with content %s the failure is %+v; the failed start is kept: %t, want %t", content, w.Failure, got, kept)
		}
	}
}
