package compose

import (
	"context"
	"errors"
	"sync"

	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/container"
)

// stopUnready stops the running containers of members whose post_start hooks failed or were interrupted, so that the next
// start runs the hooks again, and returns their services.
func (d *Driver) stopUnready(ctx context.Context, members []member) ([]string, error) {
	var services []string
	var all sync.WaitGroup
	errs := make([]error, len(members))
	for i := range members {
		m := &members[i]
		if m.State != container.StateRunning && m.State != container.StateRestarting || !d.eng.Unready(m.ID) {
			continue
		}
		services = append(services, m.service)
		all.Go(func() {
			errs[i] = d.eng.StopFailed(ctx, m.ID)
			m.State = container.StateExited
		})
	}
	all.Wait()
	return unique(services), errors.Join(errs...)
}

// hooksFailed stops the containers of a project whose post_start hooks failed, and returns their services. failed is the error of Compose. If no hook failed, hooksFailed returns dependencyFailed of it.
func (d *Driver) hooksFailed(ctx context.Context, project string, failed error) ([]string, error) {
	members, err := d.containers(ctx, api.ProjectLabel+"="+project)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	services, err := d.stopUnready(ctx, members)
	if len(services) == 0 {
		failed = dependencyFailed(failed)
	}
	return services, errors.Join(failed, err)
}
