package agent

import (
	"context"
	"testing"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestUsageIsKept: the agent's API returns the history of resource usage, of the machine and of a
// workload, since the agent started.
func TestUsageIsKept(t *testing.T) {
	r := newRig(t, func(c *Config) { c.UsageInterval = 10 * time.Millisecond }).start()
	r.apply("web", "sim/run", by(1), at(1))
	r.reaches("web", running)
	for _, id := range []string{"", "web"} {
		var got *agentv1.ListUsageResponse
		r.until(func() bool {
			var err error
			if got, err = r.api.ListUsage(context.Background(), &agentv1.ListUsageRequest{WorkloadId: id}); err != nil {
				t.Fatal(err)
			}
			return len(got.GetSamples()) > 0
		}, func() string { return "the agent has recorded no usage sample of  " + id })
		if got.GetStepSeconds() != 60 || got.GetSamples()[0].GetMemoryBytes() == 0 {
			t.Errorf("the usage of %q is %v, want samples at steps of 60 s that contain the memory in use", id, got)
		}
	}
	day, err := r.api.ListUsage(context.Background(), &agentv1.ListUsageRequest{WorkloadId: "web", Day: true})
	if err != nil || day.GetStepSeconds() != 900 || len(day.GetSamples()) == 0 {
		t.Errorf("the usage history of one day is %v, error %v; want samples at steps of 900 s", day, err)
	}
	none, err := r.api.ListUsage(context.Background(), &agentv1.ListUsageRequest{WorkloadId: "none"})
	if err != nil || len(none.GetSamples()) > 0 {
		t.Errorf("the usage history of a workload that this agent does not have is %v, error %v; want no samples and no error", none, err)
	}
}
