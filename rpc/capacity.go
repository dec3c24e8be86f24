package rpc

import (
	"fmt"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// What a node says that it uses is shown, and nothing is decided by it. So a
// figure that cannot be costs the node nothing: a heartbeat is its lease, and is
// not refused for that. It is taken as the nearest that can be. What it offers, on
// the other hand, is refused by name: see reserves, and fsm for the totals.
func usageOf(u *controlv1.NodeUsage) (cpu, memory, disk int64) {
	within := func(v, most int64) int64 { return max(0, min(v, most)) }
	return within(u.GetCpuUsedMillicores(), fsm.MaxCPU), within(u.GetMemoryUsedMb(), fsm.MaxMemory), within(u.GetDiskUsedGb(), fsm.MaxDisk)
}

// reserves says what is wrong with the totals and reservations of a node, "" if
// nothing is. A negative reservation would add to what there is.
func reserves(c *controlv1.NodeCapabilities) string {
	for _, r := range []struct {
		field           string
		reserved, total int64
		totalField      string
		most            int64
	}{
		{"cpu_reserved_millicores", c.GetCpuReservedMillicores(), c.GetCpuTotalMillicores(), "cpu_total_millicores", fsm.MaxCPU},
		{"memory_reserved_mb", c.GetMemoryReservedMb(), c.GetMemoryTotalMb(), "memory_total_mb", fsm.MaxMemory},
	} {
		switch {
		case r.total <= 0:
			return fmt.Sprintf("capabilities.%s %d must be above 0", r.totalField, r.total)
		case r.total > r.most:
			return fmt.Sprintf("capabilities.%s %d must be at most %d", r.totalField, r.total, r.most)
		case r.reserved < 0 || r.reserved >= r.total:
			return fmt.Sprintf("capabilities.%s %d must be from 0 to below %s %d", r.field, r.reserved, r.totalField, r.total)
		}
	}
	return ""
}
