package compose

import (
	"context"

	"github.com/persys/compute/agent/driver"
)

var (
	_ driver.Meter     = (*Driver)(nil)
	_ driver.DiskMeter = (*Driver)(nil)
)

// Occupied implements driver.DiskMeter. The disk usage of a Compose stack is the total size of the files that its
// containers wrote, in bytes.
func (d *Driver) Occupied(ctx context.Context, of []driver.Observed) (map[driver.ID]int64, error) {
	var ids []string
	for _, o := range of {
		ids = append(ids, o.Parts...)
	}
	written, err := d.eng.Written(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := make(map[driver.ID]int64, len(of))
	for _, o := range of {
		for _, id := range o.Parts {
			if n, ok := written[id]; ok {
				out[o.ID] += n
			}
		}
	}
	return out, nil
}

// Usage implements driver.Meter: a stack's usage is the sum over its containers. Usage reads the kernel's
// counters and does not call the engine.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	// Measure failed stacks too: some of their services may still run.
	return d.groups.All(ctx, of, func(o driver.Observed) []string { return o.Parts })
}
