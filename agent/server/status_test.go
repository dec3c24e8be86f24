package server

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/core"
)

func TestTasksThatHaveNotStartedHaveNoTimes(t *testing.T) {
	if p := action(core.NewTask(core.ActionApply, "w", time.Unix(5, 0))); p.StartedAt != 0 || p.EndedAt != 0 || p.CreatedAt != 5 {
		t.Errorf("got %v", p)
	}
}
