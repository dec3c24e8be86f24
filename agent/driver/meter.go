package driver

import (
	"context"
	"time"
)

// Meter is implemented by drivers that can measure the resource usage of workloads. The agent calls Usage
// every few seconds, in a separate goroutine, so that heartbeats do not wait for it.
type Meter interface {
	// Usage measures the running workloads among the observed ones. It only reads counters that the kernel
	// or engine keeps, and does not wait for a second sample. Workloads that cannot be measured now are
	// left out; an error means that none could be measured. The usage of a Compose project is the sum over
	// its services. The usage of a virtual machine is that of its QEMU process as libvirt counts it.
	Usage(ctx context.Context, of []Observed) ([]Usage, error)
}

// DiskMeter is implemented by drivers whose engine does not limit the size of instances but can measure it.
// The agent calls Occupied about every minute, in a separate goroutine.
type DiskMeter interface {
	// Occupied returns how many bytes each observed workload, running or not, occupies beyond its image and
	// its volumes. The call can take long, because the engine may have to walk files. Workloads that cannot
	// be measured are left out; an error means that none could be measured.
	Occupied(ctx context.Context, of []Observed) (map[ID]int64, error)
}

// Usage is the resource usage of one workload. Counters only grow while Instance stays the same, so the
// difference of two readings is the usage between them.
type Usage struct {
	ID ID
	// Instance changes when the counters start at zero again. It usually consists of Observed.RuntimeID
	// and the start time.
	Instance string
	// At is when the counters were read.
	At time.Time
	// CPU is the processor time consumed so far.
	CPU time.Duration
	// Memory is the memory in use in bytes, without page cache that the kernel can drop at any time.
	// MemoryLimit is the limit in bytes, 0 if there is none.
	Memory, MemoryLimit int64
	// DiskRead and DiskWrite count bytes on block devices, NetReceived and NetSent count bytes on the
	// workload's own interfaces.
	DiskRead, DiskWrite  int64
	NetReceived, NetSent int64
	// Disk is how many bytes the workload occupies beyond its image and its volumes; -1 if not
	// measured.
	Disk int64
	// Source names the origin of the figures: cgroup1, cgroup2, libvirt, sim.
	Source string
}

// Add returns the sum of u and the usage of another part (container) of the same workload. Instance and At
// stay those of u.
func (u Usage) Add(part Usage) Usage {
	u.CPU += part.CPU
	u.Memory += part.Memory
	u.MemoryLimit += part.MemoryLimit
	u.DiskRead += part.DiskRead
	u.DiskWrite += part.DiskWrite
	u.NetReceived += part.NetReceived
	u.NetSent += part.NetSent
	if part.Disk >= 0 {
		u.Disk = max(u.Disk, 0) + part.Disk
	}
	return u
}
