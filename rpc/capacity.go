package rpc

import (
	"fmt"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/sched"
)

// What a node says that it uses is shown, and nothing is decided by it. So a
// figure that cannot be costs the node nothing: a heartbeat is its lease, and is
// not refused for that. It is taken as the nearest that can be. What it offers, on
// the other hand, is refused by name: see reserves, and fsm for the totals.
func usageOf(u *controlv1.NodeUsage) sched.NodeUsage {
	within := func(v, most int64) int64 { return max(0, min(v, most)) }
	cpu, memory, disk := within(u.GetCpuUsedMillicores(), bounds.MaxCPU), within(u.GetMemoryUsedMb(), bounds.MaxMemory), within(u.GetDiskUsedGb(), bounds.MaxDisk)
	return sched.NodeUsage{CPU: cpu, Memory: memory, Disk: disk, NetReceived: max(0, u.GetNetRxBytes()), NetSent: max(0, u.GetNetTxBytes())}
}

// poolsUsed is what the pools that a node registered hold; nil if it says nothing of them.
func poolsUsed(n *fsm.Node, u *controlv1.NodeUsage) map[string]int64 {
	if len(u.GetStoragePools()) == 0 {
		return nil
	}
	out := make(map[string]int64, len(n.Facts.Pools))
	for _, used := range u.GetStoragePools() {
		for _, p := range n.Facts.Pools {
			if p.Name == used.GetName() {
				out[p.Name] = max(0, min(used.GetUsedGb(), bounds.MaxDisk))
			}
		}
	}
	return out
}

// offered is what may be promised of a total: what the machine keeps for itself goes off, and of the rest
// the node's threshold counts, rounded down. A refusable total is passed on as it is, to be refused by name.
func offered(c *controlv1.NodeCapabilities, total, reserved int64) int64 {
	rest := total - reserved
	if total < 0 || reserved < 0 {
		return rest
	}
	percent := int64(c.GetResourceThresholdPercent())
	if percent == 0 || percent >= 100 {
		return max(0, rest)
	}
	return max(0, rest)/100*percent + max(0, rest)%100*percent/100
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
		{"cpu_reserved_millicores", c.GetCpuReservedMillicores(), c.GetCpuTotalMillicores(), "cpu_total_millicores", bounds.MaxCPU},
		{"memory_reserved_mb", c.GetMemoryReservedMb(), c.GetMemoryTotalMb(), "memory_total_mb", bounds.MaxMemory},
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
	if percent := c.GetResourceThresholdPercent(); percent > 100 {
		return fmt.Sprintf("capabilities.resource_threshold_percent %d must be 0 (all) to 100", percent)
	}
	// A disk that is smaller than what is kept of it offers nothing, and is no mistake: it is measured.
	if kept := c.GetDiskReservedGb(); kept < 0 || kept > bounds.MaxDisk {
		return fmt.Sprintf("capabilities.disk_reserved_gb %d must be 0 to %d", kept, int64(bounds.MaxDisk))
	}
	return ""
}
