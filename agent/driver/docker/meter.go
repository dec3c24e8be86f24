package docker

import (
	"context"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Meter = (*Driver)(nil)

// Usage is driver.Meter's. It reads the kernel's counters and asks the engine nothing.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	out := make([]driver.Usage, 0, len(of))
	for _, o := range of {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if o.State != driver.Running {
			continue
		}
		if u, ok := d.groups.Usage(o, o.RuntimeID); ok {
			out = append(out, u)
		}
	}
	return out, nil
}
