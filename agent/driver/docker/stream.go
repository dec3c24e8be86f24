package docker

import (
	"context"
	"io"
	"slices"

	"github.com/persys/compute/agent/driver"
)

// Events is driver.Driver's. It outlives the engine: the stream is opened again until ctx ends.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	return d.eng.Events(ctx, func(labels map[string]string) bool {
		ownership := d.of(labels)
		return ownership == driver.Ours || ownership == driver.Claimed
	})
}

// Logs is driver.Driver's. Stdout and stderr are merged frame by frame, as the engine sends them.
func (d *Driver) Logs(ctx context.Context, id driver.ID, options driver.LogOptions) (io.ReadCloser, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(have.ours) == 0 {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "logs", "container of workload %q not found", id)
	}
	in := slices.MaxFunc(have.ours, func(a, b instance) int { return rank(a) - rank(b) })
	return d.eng.Logs(ctx, in.ID, options)
}
