package sim

import (
	"context"
	"time"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Meter = (*Driver)(nil)

// Usage of a simulated workload: a hundredth of a processor, 8 MiB, and one page of disk reads, disk writes,
// received and sent bytes.
const (
	simShare  = 100
	simMemory = 8 << 20
	simDisk   = 4 << 10
)

// Usage implements driver.Meter, computed from the run time of a workload.
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
		out = append(out, driver.Usage{
			ID: o.ID, Instance: o.RuntimeID + "@" + o.StartedAt.String(), At: now, CPU: max(0, now.Sub(o.StartedAt)) / simShare,
			Memory: simMemory, Disk: simDisk, DiskRead: simDisk, DiskWrite: simDisk, NetReceived: simDisk, NetSent: simDisk, Source: "sim",
		})
	}
	return out, nil
}
