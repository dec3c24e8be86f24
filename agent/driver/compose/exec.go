package compose

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
)

var (
	_ driver.Execer   = (*Driver)(nil)
	_ driver.Consoler = (*Driver)(nil)
)

// Exec implements driver.Execer. It uses the first running container of a service.
func (d *Driver) Exec(ctx context.Context, id driver.ID, options driver.ExecOptions) (driver.Session, error) {
	m, err := d.one(ctx, "exec", id, options.Service)
	if err != nil {
		return nil, err
	}
	return d.eng.Exec(ctx, m.ID, options)
}

// Console implements driver.Consoler.
func (d *Driver) Console(ctx context.Context, id driver.ID, options driver.ConsoleOptions) (driver.Session, error) {
	m, err := d.one(ctx, "console", id, options.Service)
	if err != nil {
		return nil, err
	}
	return d.eng.Console(ctx, m.ID, options.Size)
}

// one returns the running container of a service. service may be empty if the stack has only one service. op is
// the name of the operation for error texts.
func (d *Driver) one(ctx context.Context, op string, id driver.ID, service string) (member, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return member{}, err
	}
	var names []string // names of the project's services
	var fits []member
	for _, some := range have {
		for _, m := range some {
			names = append(names, m.service)
			if m.State == container.StateRunning && (service == "" || m.service == service) {
				fits = append(fits, m)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(names) == 0:
		return member{}, driver.Errorf(driver.RuntimeResourceMissing, op, "no container of workload %q found", id)
	case service != "" && !slices.Contains(names, service):
		return member{}, driver.Errorf(driver.InvalidSpecification, op, "workload %[2]q has no service %[1]q; it has %[3]s", service, id, strings.Join(names, ", "))
	case service == "" && len(names) > 1:
		return member{}, driver.Errorf(driver.InvalidSpecification, op, "service: workload %q has several services; choose one with --service: %s", id, strings.Join(names, ", "))
	case len(fits) == 0:
		return member{}, driver.Errorf(driver.RuntimeResourceMissing, op, "no container of service %q of workload %q runs", cmp.Or(service, names[0]), id)
	}
	return slices.MinFunc(fits, func(a, b member) int { return strings.Compare(short(a), short(b)) }), nil
}
