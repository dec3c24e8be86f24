package driver

import (
	"context"
	"time"
)

// Meter is implemented by drivers that can measure what workloads use. The agent asks every few
// seconds, apart from its other work and never inside a heartbeat.
type Meter interface {
	// Usage measures the running workloads among the observed ones. It only reads counters that the
	// kernel or engine keeps, and does not wait for a second sample. Workloads that cannot be measured
	// now are left out; an error means that none could be measured. The usage of a Compose project is
	// the sum over its services, that of a virtual machine is what its guest was given.
	Usage(ctx context.Context, of []Observed) ([]Usage, error)
}

// DiskMeter is implemented by drivers whose engine does not enforce the size of instances but can
// measure it. The agent asks about every minute, apart from its other work.
type DiskMeter interface {
	// Occupied returns how many bytes each observed workload, running or not, occupies beyond its image
	// and its volumes. The engine may have to walk files. Workloads that cannot be measured are left
	// out; an error means that none could be measured.
	Occupied(ctx context.Context, of []Observed) (map[ID]int64, error)
}

// Usage is the resource usage of one workload. Counters only grow while Instance stays the same;
// readers take the difference of two readings.
type Usage struct {
	ID ID
	// Instance changes when the counters start at zero again; usually Observed.RuntimeID and the
	// start time.
	Instance string
	// At is when the counters were read.
	At time.Time
	// CPU is the processor time consumed so far.
	CPU time.Duration
	// Memory is in bytes, without page cache that the kernel can drop at once. MemoryLimit is 0 if
	// there is no limit.
	Memory, MemoryLimit int64
	// DiskRead and DiskWrite count bytes on block devices, NetReceived and NetSent bytes on the
	// workload's own interfaces.
	DiskRead, DiskWrite  int64
	NetReceived, NetSent int64
	// Disk is how many bytes the workload occupies beyond its image and its volumes; -1 if not
	// measured.
	Disk int64
	// Source is the origin of the figures: cgroup1, cgroup2, libvirt, sim.
	Source string
}

// Add adds the usage of another part of the same workload. Instance and At stay those of u.
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
