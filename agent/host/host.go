// Package host measures the machine of an agent, and finds a name and an address for it.
package host

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"

	"github.com/persys/compute/agent/usage"
)

// Totals are the sizes of a machine's CPU, memory and disks, whether in use or not.
type Totals struct {
	CPUMillicores int64
	MemoryMB      int64
	DiskGB        int64
}

// Usage is how much of a machine all of its programs use. Percentages are 0 to 100.
type Usage struct {
	CPUMillicores                          int64
	MemoryMB                               int64
	DiskGB                                 int64
	CPUPercent, MemoryPercent, DiskPercent float64
	NetReceived, NetSent                   int64 // bytes since the machine started
}

// Host measures the machine. Totals and Usage return the results of the last measurement. Run, which the
// agent calls once, measures again and again until ctx ends.
type Host interface {
	Totals() Totals
	Usage() Usage
	Run(ctx context.Context) error
}

// New returns a Host that measures this machine. It measures the disk of the file system that contains path,
// and reports it as storage pool "root". New returns an error if the first measurement fails.
func New(path string) (Host, error) {
	h := &machine{path: path}
	memory, err := mem.VirtualMemory()
	if err != nil {
		return nil, err
	}
	space, err := disk.Usage(path)
	if err != nil {
		return nil, err
	}
	h.totals = Totals{
		CPUMillicores: int64(runtime.NumCPU()) * 1000,
		MemoryMB:      int64(memory.Total >> 20),
		DiskGB:        int64(space.Total >> 30),
	}
	h.sample(context.Background())
	return h, nil
}

type machine struct {
	path   string
	totals Totals

	mu    sync.Mutex
	usage Usage
	last  cpu.TimesStat
}

func (h *machine) Totals() Totals { return h.totals }

func (h *machine) Usage() Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.usage
}

// Run measures the machine every 5 s. A measurement takes well below a millisecond.
func (h *machine) Run(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.sample(ctx)
		}
	}
}

// sample makes one measurement. If a number cannot be read, its previous value is kept.
func (h *machine) sample(ctx context.Context) {
	times, timesErr := cpu.TimesWithContext(ctx, false)
	memory, memoryErr := mem.VirtualMemoryWithContext(ctx)
	space, spaceErr := disk.UsageWithContext(ctx, h.path)
	received, sent, netErr := usage.Network(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if timesErr == nil && len(times) == 1 {
		now := times[0]
		total := busy(now) + idle(now) - busy(h.last) - idle(h.last)
		if total > 0 {
			share := max(0, min(1, (busy(now)-busy(h.last))/total))
			h.usage.CPUPercent = share * 100
			h.usage.CPUMillicores = int64(share * float64(h.totals.CPUMillicores))
		}
		h.last = now
	}
	if memoryErr == nil {
		h.usage.MemoryPercent = memory.UsedPercent
		h.usage.MemoryMB = int64(memory.Used >> 20)
	}
	if spaceErr == nil {
		h.usage.DiskPercent = space.UsedPercent
		h.usage.DiskGB = int64(space.Used >> 30)
	}
	if netErr == nil {
		h.usage.NetReceived, h.usage.NetSent = received, sent
	}
}

// Leave out the time of guests (of virtual machines), because the user time already includes it.
func busy(t cpu.TimesStat) float64 {
	return t.User + t.System + t.Nice + t.Irq + t.Softirq + t.Steal
}

func idle(t cpu.TimesStat) float64 { return t.Idle + t.Iowait }

// Fixed is a machine of constant size and usage, for simulations.
type Fixed struct {
	Total Totals
	Used  Usage
}

// Totals returns Total.
func (h Fixed) Totals() Totals { return h.Total }

// Usage returns Used.
func (h Fixed) Usage() Usage { return h.Used }

// Run returns at once: the values of Fixed never change.
func (h Fixed) Run(context.Context) error { return nil }
