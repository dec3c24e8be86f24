package compose

import (
	"context"

	"github.com/persys/compute/agent/driver"
)

var _ driver.Meter = (*Driver)(nil)

// Usage is driver.Meter's: a stack is the sum of its containers. It reads the kernel's counters and
// asks the engine nothing.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	out := make([]driver.Usage, 0, len(of))
	for _, o := range of {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// Of one that failed the other services still run.
		if u, ok := d.groups.Usage(o, o.Parts...); ok {
			out = append(out, u)
		}
	}
	return out, nil
}
