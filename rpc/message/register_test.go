package message

import (
	"math"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// TestOfferedSubtractsTheReservation: the capacity that a node offers to workloads is its total minus its reservation
// for the system, times the node's utilization threshold in percent, rounded down. An invalid (negative) total must
// not become valid by this.
func TestOfferedSubtractsTheReservation(t *testing.T) {
	for _, c := range []struct {
		total, reserved int64
		percent         uint32
		want            int64
	}{
		{4000, 0, 0, 4000}, {4000, 500, 0, 3500}, {4000, 500, 100, 3500}, {4000, 500, 80, 2800}, {99, 0, 80, 79}, {1, 0, 80, 0},
		{100, 200, 80, 0}, {math.MaxInt64, 0, 50, math.MaxInt64 / 2}, {-5, 0, 80, -5}, {0, 0, 80, 0},
	} {
		if got := offered(&controlv1.NodeCapabilities{ResourceThresholdPercent: c.percent}, c.total, c.reserved); got != c.want {
			t.Errorf("a node with the capacity %+v offers %d to workloads, want %d", c, got, c.want)
		}
	}
	cmd, _ := Registration(fsm.New(), "", "node-a", "h:1", &controlv1.RegisterNodeRequest{Capabilities: &controlv1.NodeCapabilities{
		CpuTotalMillicores: 4000, MemoryTotalMb: 1000, CpuReservedMillicores: 1000, DiskReservedGb: 20, ResourceThresholdPercent: 80,
		StoragePools: []*controlv1.StoragePool{{Name: "root", TotalGb: 100}, {Name: "fast", TotalGb: 100}},
	}})
	if cmd.CpuMillicores != 2400 || cmd.MemoryMib != 800 || cmd.Pools[0].TotalGb != 64 || cmd.Pools[1].TotalGb != 80 {
		t.Errorf("the command is %v, want the totals minus the reservations, times the threshold", cmd)
	}
}

// The usage of a storage pool that the node did not register must be ignored.
func TestUsageOfUnknownPoolsIsIgnored(t *testing.T) {
	n := &fsm.Node{Facts: fsm.NodeFacts{Pools: []fsm.Pool{{Name: "root"}, {Name: "fast"}}}}
	got := poolsUsed(n, &controlv1.NodeUsage{StoragePools: []*controlv1.StoragePoolUsage{
		{Name: "root", UsedGb: 7}, {Name: "fast", UsedGb: -1}, {Name: "nobody's", UsedGb: 9}, {Name: "root", UsedGb: 8},
	}})
	if len(got) != 2 || got["root"] != 8 || got["fast"] != 0 {
		t.Errorf("the usage of the storage pools is %v, want 8 GB in pool root and 0 in pool fast", got)
	}
	if got := poolsUsed(n, &controlv1.NodeUsage{}); got != nil {
		t.Errorf("a node that reports no pools must have none, but has %v", got)
	}
}

// TestDiskLimitOfAReport: agents report the disk limit of each workload. A possible limit must be taken over; an
// impossible limit must be treated as if the workload had none.
func TestDiskLimitOfAReport(t *testing.T) {
	got := used([]*controlv1.WorkloadUsageSnapshot{{DiskLimitBytes: 5, DiskCapped: true}, {DiskLimitBytes: -5}})
	if got[0].DiskLimit != 5 || !got[0].DiskCapped || got[1].DiskLimit != 0 || got[1].DiskCapped {
		t.Errorf("the disk limits are %+v, want 5 GB with its cap for the possible limit, and no limit for the impossible one", got)
	}
}
