package mirror

import (
	"testing"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// The settings of the autoscaler are unchanged after they were written to a mirror record and read back. The field
// Surge, which marks an extra member of a group that exists only during an update, is unchanged too.
func TestAutoscaleSurvivesTheMirror(t *testing.T) {
	want := &commandv1.Autoscale{Min: 2, Max: 6, Cpu: 70}
	d := fsm.Intended(&commandv1.WorkloadPut{Demand: &commandv1.Demand{Type: "container", CpuMillicores: 500, Group: "web", Autoscale: want}}).Demand
	put, err := putOf(&Workload{ID: "web-0", Type: "container", DesiredState: "Running", Extension: &WorkloadExtension{Content: "c1:x", Demand: demandRecord(d)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d = fsm.Intended(&commandv1.WorkloadPut{Demand: &commandv1.Demand{Type: "container", Group: "web", Surge: true}}).Demand
	surge, err := putOf(&Workload{ID: "web-1", Type: "container", DesiredState: "Running", Extension: &WorkloadExtension{Content: "c1:x", Demand: demandRecord(d)}}, nil)
	if err != nil || !surge.GetDemand().GetSurge() || put.GetDemand().GetSurge() {
		t.Errorf("the field Surge of an extra member is lost: the record has %v (error %v)", surge, err)
	}
	if got := put.GetDemand().GetAutoscale(); !proto.Equal(got, want) {
		t.Errorf("after reading the mirror record back the autoscaler has the settings %v, want %v", got, want)
	}
}
