package driver

import (
	"context"
	"time"
)

// Meter is what a driver also is when it can say what its workloads use. The agent asks every few
// seconds, beside its other work and never inside a heartbeat.
type Meter interface {
	// Usage measures those of the observed workloads that run. It is cheap: it reads counters that
	// somebody keeps anyway, and does not wait for a second sample. What cannot be measured now is
	// left out; an error means that nothing could be. A Compose project is the sum of its services,
	// a virtual machine what its guest was given.
	Usage(ctx context.Context, of []Observed) ([]Usage, error)
}

// DiskMeter is what a driver also is when its engine does not keep the size of instances, but can find
// it out. The agent asks every minute or so, beside its other work.
type DiskMeter interface {
	// Occupied is how many bytes each of the observed workloads occupies beyond its image and its
	// volumes, whether it runs or not. The engine may have to walk files for it. What cannot be told is
	// left out; an error means that nothing could be.
	Occupied(ctx context.Context, of []Observed) (map[ID]int64, error)
}

// Usage is what one workload uses. Counters only grow while Instance stays the same; who reads them
// takes the difference of two readings.
type Usage struct {
	ID ID
	// Instance changes when the counters begin anew; usually Observed.RuntimeID and the time of the
	// start.
	Instance string
	// At is when the counters were read.
	At time.Time
	// CPU is the processor time consumed so far.
	CPU time.Duration
	// Memory is in bytes, without page cache that could be dropped at once. MemoryLimit is 0 without
	// a limit.
	Memory, MemoryLimit int64
	// DiskRead and DiskWrite are bytes that reached block devices, NetReceived and NetSent bytes on
	// the workload's own interfaces; all so far.
	DiskRead, DiskWrite  int64
	NetReceived, NetSent int64
	// Disk is the bytes that the workload occupies beyond its image and its volumes; -1 where nobody
	// measured them.
	Disk int64
	// Source is where the figures come from: cgroup1, cgroup2, libvirt, sim.
	Source string
}

// Add sums up the parts of one workload. Instance and At are those of the receiver.
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
