package persysctl

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestDrainWaitsForJobs: drain --wait waits until the last time at which a running job may still be on the node. A
// job that has ended, even with a failure, counts as off the node.
func TestDrainWaitsForJobs(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stays := func(d time.Duration) *clusterv1.PlannedMove {
		return &clusterv1.PlannedMove{StaysUntil: timestamppb.New(now.Add(d))}
	}
	if got := untilJobsLeave([]*clusterv1.PlannedMove{{}, stays(time.Hour), stays(time.Minute)}, now); got != time.Hour {
		t.Errorf("drain waits %s for running jobs, want 1h", got)
	}
	if got := untilJobsLeave([]*clusterv1.PlannedMove{{}}, now); got != 0 {
		t.Errorf("drain waits %s for running jobs although none stays, want 0", got)
	}
	failed := &controlv1.WorkloadView{WorkloadId: "report", AssignedNodeId: "node-a", DesiredState: "Running", Status: "Failed", JobResult: &controlv1.JobResult{}}
	if !goalOff("node-a").met(failed) {
		t.Error("a job that has failed for good still counts as being on the node that is drained")
	}
	failed.JobResult = nil
	if goalOff("node-a").met(failed) {
		t.Error("a failed service counts as off the node that is drained")
	}
}
