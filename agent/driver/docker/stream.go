package docker

import (
	"context"
	"io"
	"slices"

	"github.com/persys/compute/agent/driver"
)

// Events implements driver.Driver. If the engine's event stream breaks, for example at a restart of the
// engine, it is opened again until ctx ends.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	return d.eng.Events(ctx, func(labels map[string]string) bool {
		ownership := d.of(labels)
		return ownership == driver.Owned || ownership == driver.Claimed
	})
}

// Logs implements driver.Driver. Stdout and stderr are merged frame by frame, as the engine sends them.
func (d *Driver) Logs(ctx context.Context, id driver.ID, options driver.LogOptions) (io.ReadCloser, error) {
	if options.Service != "" {
		return nil, driver.Errorf(driver.InvalidSpecification, "logs", "service %q: a container has no services; leave the service empty", options.Service)
	}
	in, err := d.best(ctx, "logs", id)
	if err != nil {
		return nil, err
	}
	return d.eng.Logs(ctx, in.ID, options)
}

// Exec implements driver.Execer.
func (d *Driver) Exec(ctx context.Context, id driver.ID, options driver.ExecOptions) (driver.Session, error) {
	if options.Service != "" {
		return nil, driver.Errorf(driver.InvalidSpecification, "exec", "service %q: a container has no services; leave the service empty", options.Service)
	}
	in, err := d.best(ctx, "exec", id)
	if err != nil {
		return nil, err
	}
	return d.eng.Exec(ctx, in.ID, options)
}

// Console implements driver.Consoler. It connects to the terminal of the container's first process. Output
// from before the call is not shown.
func (d *Driver) Console(ctx context.Context, id driver.ID, options driver.ConsoleOptions) (driver.Session, error) {
	if options.Service != "" {
		return nil, driver.Errorf(driver.InvalidSpecification, "console", "service %q: a container has no services; leave the service empty", options.Service)
	}
	in, err := d.best(ctx, "console", id)
	if err != nil {
		return nil, err
	}
	return d.eng.Console(ctx, in.ID, options.Size)
}

// Process implements driver.ProcessFinder.
func (d *Driver) Process(ctx context.Context, id driver.ID) (int, error) {
	in, err := d.best(ctx, "process", id)
	if err != nil {
		return 0, err
	}
	full, err := d.eng.Inspect(ctx, in.ID)
	if err != nil {
		return 0, err
	}
	if full.State == nil || full.State.Pid == 0 {
		return 0, driver.Errorf(driver.RuntimeResourceMissing, "process", "container of workload %q does not run", id)
	}
	return full.State.Pid, nil
}

// best returns the container in which a user's command or console runs. op is the name of this operation for
// error texts. During a replacement a workload has two containers.
func (d *Driver) best(ctx context.Context, op string, id driver.ID) (instance, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return instance{}, err
	}
	if len(have.ours) == 0 {
		return instance{}, driver.Errorf(driver.RuntimeResourceMissing, op, "container of workload %q not found", id)
	}
	return slices.MaxFunc(have.ours, func(a, b instance) int { return rank(a) - rank(b) }), nil
}
