package spec

import (
	"testing"

	"github.com/persys/compute/fsm"
)

// TestRestartWithANumber: on-failure:3 is stored as it is, and the agent gets the word and the number.
func TestRestartWithANumber(t *testing.T) {
	for given, want := range map[string]struct {
		stored, word string
		times        int32
	}{
		"on-failure:3":   {"on-failure:3", "on-failure", 3},
		"On-Failure:03":  {"on-failure:3", "on-failure", 3},
		"on-failure:0":   {"on-failure", "on-failure", 0},
		"on-failure":     {"on-failure", "on-failure", 0},
		"unless-stopped": {"unless-stopped", "unless-stopped", 0},
	} {
		r := parseOne(t, "id: web\ncontainer: {image: 'nginx:1', restart: '"+given+"'}\n")
		Normalise(r.Spec)
		if got := r.Spec.GetContainer().GetRestartPolicy(); got != want.stored {
			t.Errorf("the restart policy %s is stored as %s, want %s", given, got, want.stored)
		}
		p := ToAgent(&fsm.Workload{ID: "web"}, r.Spec).GetSpec().GetContainer().GetRestartPolicy()
		if p.GetPolicy() != want.word || p.GetMaxRetryCount() != want.times {
			t.Errorf("restart policy %s: the agent gets the policy %v, want %s with %d restarts", given, p, want.word, want.times)
		}
	}
}
