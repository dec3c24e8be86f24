package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/usage"
)

// A workload that has been Failed for more than an hour is counted by the gauge of old failures.
func TestFailuresOlderThanAnHourAreCounted(t *testing.T) {
	now := time.Now()
	saved := core.Saved{Status: map[string]core.SavedStatus{}}
	for id, since := range map[string]time.Duration{"old": 2 * oldFailure, "new": time.Minute} {
		saved.Intents = append(saved.Intents, &core.Intent{ID: id, Type: driver.Container})
		saved.Status[id] = core.SavedStatus{Status: &core.Status{ID: id, Kind: driver.Container, State: driver.Failed, UpdatedAt: now.Add(-since)}}
	}
	state := core.Restore(core.Settings{}, saved, now)
	reg := prometheus.NewRegistry()
	if _, err := New(reg, Source{State: func() core.State { return state }, Used: &usage.Table{}, Host: host.Fixed{}}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "persys_agent_garbage_collection_old_failed_workloads_found" {
			if n := f.Metric[0].GetGauge().GetValue(); n != 1 {
				t.Errorf("the metric counts %v old failures, want 1", n)
			}
			return
		}
	}
	t.Error("the agent exports no metric of old failures")
}
