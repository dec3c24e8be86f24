package core

import (
	"testing"

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
