package mirror

import (
	"testing"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// The placement rules of a workload are unchanged after they were written to a mirror record and read back.
func TestPlacementSurvivesTheMirror(t *testing.T) {
	want := &commandv1.Placement{
		Policy: "binpack",
		Spread: []*commandv1.Spread{{By: "zone", MaxSkew: 2, Must: true}},
		Affinities: []*commandv1.Affinity{
			{Node: &commandv1.Constraint{Key: "disk", Op: "in", Values: []string{"nvme", "ssd"}}, Weight: 80},
			{Anti: true, Tag: &commandv1.Label{Key: "tier", Value: "batch"}, By: "host", Must: true},
			{Workload: "db", By: "zone", Weight: 50},
			{Group: "web", By: "rack", Must: true},
		},
	}
	d := fsm.Intended(&commandv1.WorkloadPut{Demand: &commandv1.Demand{Placement: want}}).Demand
	if got := placementOf(placementRecord(d.Placement)); !proto.Equal(got, want) {
		t.Errorf("after reading the mirror record back the workload has the placement rules %v, want %v", got, want)
	}
}
