package sim

import (
	"context"
	"time"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Meter = (*Driver)(nil)

// What a simulated workload uses: a hundredth of a processor, 8 MiB, and a page of disk, which it read and
// wrote once and got and sent over the network.
const (
	simShare  = 100
	simMemory = 8 << 20
	simDisk   = 4 << 10
)

// Usage is driver.Meter's, made up from how long a workload has run.
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
