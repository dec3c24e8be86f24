package docker

import (
	"context"

	"github.com/persys/compute/agent/driver"
)

var (
	_ driver.Meter     = (*Driver)(nil)
	_ driver.DiskMeter = (*Driver)(nil)
)

// Occupied implements driver.DiskMeter. It asks the engine how many bytes each container wrote.
func (d *Driver) Occupied(ctx context.Context, of []driver.Observed) (map[driver.ID]int64, error) {
	ids := make([]string, 0, len(of))
	for _, o := range of {
		ids = append(ids, o.RuntimeID)
	}
	written, err := d.eng.Written(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := make(map[driver.ID]int64, len(of))
	for _, o := range of {
		if n, ok := written[o.RuntimeID]; ok {
			out[o.ID] = n
		}
	}
	return out, nil
}

// Usage implements driver.Meter. It reads the kernel's control groups and does not call the engine.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	return d.groups.All(ctx, of, func(o driver.Observed) []string {
		if o.State != driver.Running {
			return nil
		}
		return []string{o.RuntimeID}
	})
}
