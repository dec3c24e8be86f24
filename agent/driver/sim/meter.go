package sim

import (
	"context"
	"time"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Meter = (*Driver)(nil)

// The simulated usage of a workload. In each second it uses a hundredth of a processor (more with the image
// sim/busy), and reads, writes, receives and sends one page each. Its memory use is always 8 MiB.
const (
	simShare  = 100
	simMemory = 8 << 20
	simDisk   = 4 << 10
)

// Usage implements driver.Meter. It computes the usage of a workload from its run time.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := time.Now()
	var out []driver.Usage
	for _, o := range of {
		if o.State != driver.Running {
			continue
		}
		cpu := max(0, now.Sub(o.StartedAt)) / simShare
		if b, err := ofImage(o.Metadata["container.image"]); err == nil && b.busy > 0 {
			cpu *= time.Duration(b.busy)
		}
		out = append(out, driver.Usage{
			ID: o.ID, Instance: o.RuntimeID + "@" + o.StartedAt.String(), At: now, CPU: cpu,
			Memory: simMemory, Disk: simDisk, DiskRead: simDisk, DiskWrite: simDisk, NetReceived: simDisk, NetSent: simDisk, Source: "sim",
		})
	}
	return out, nil
}
