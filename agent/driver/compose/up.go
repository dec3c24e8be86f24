package compose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/compose/v5/pkg/api"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// dependencyFailed sets Error.Started if Compose failed because a service on which others depend has failed or is
// unhealthy. Compose starts containers after it has created all of them, so the stack is then complete. If it were not
// recorded as complete, the next Ensure would run up again, and the failed service with it, whatever its restart policy
// says. The error of a hook is not changed, because the output of the hook in it may contain any text.
func dependencyFailed(err error) error {
	if errors.As(err, new(moby.HookError)) {
		return err
	}
	var typed *driver.Error
	if errors.As(err, &typed) && (strings.Contains(typed.Err.Error(), "didn't complete successfully") || strings.Contains(typed.Err.Error(), "dependency failed to start")) {
		return &driver.Error{Class: typed.Class, Op: typed.Op, Err: typed.Err, Started: true}
	}
	return err
}

// up runs Compose's up. It does not abort at once when ctx ends, because the engine would still carry out
// the requests that it has received. If up fails because a container name is taken, an earlier aborted
// call may have created that container, and the engine may not list it yet.
func (d *Driver) up(ctx context.Context, s *stack, running bool) error {
	deadline := time.Now().Add(d.eng.CallTimeout())
	for {
		bounded, cancel := outlive(ctx)
		err := d.run.up(bounded, s, running)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.As(err, new(*driver.Error)) {
			return err // the error of a hook, which may repeat any text
		}
		conflict := cerrdefs.IsConflict(err) || strings.Contains(err.Error(), "is already in use by container")
		if !conflict {
			return classify(err)
		}
		if holder := d.heldByOthers(ctx, s); holder != "" {
			return driver.Errorf(driver.NameConflict, "up", "%s: %w", holder, err)
		}
		if time.Now().After(deadline) || !moby.Pause(ctx) {
			return driver.Errorf(driver.NameConflict, "up", "%w", err)
		}
	}
}

// heldByOthers looks for a container of another project whose name the stack needs. It returns a text that
// names the container's owner, or "" if there is no such container.
func (d *Driver) heldByOthers(ctx context.Context, s *stack) string {
	for _, name := range slices.Sorted(maps.Keys(s.project.Services)) {
		service := s.project.Services[name]
		want := service.ContainerName
		if want == "" {
			want = s.project.Name + api.Separator + name + api.Separator + "1"
		}
		in, err := d.eng.Inspect(ctx, want)
		if err == nil && in.Config != nil && in.Config.Labels[api.ProjectLabel] != s.project.Name {
			owner := "a container that is not of this cluster"
			if id := in.Config.Labels[driver.LabelWorkload]; id != "" {
				owner = "workload " + id
			}
			return fmt.Sprintf("the container name %s of service %s is used by %s", want, name, owner)
		}
	}
	return ""
}

// lastWord is how long a call of Compose may continue after its context has ended.
const lastWord = 3 * time.Second

func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, func() { time.AfterFunc(lastWord, cancel) })
	return bounded, func() {
		unlink()
		cancel()
	}
}

// classify returns an error of Compose as a *driver.Error with a class. It derives the class from the engine's
// error that Compose wraps, or else from the text of Compose.
func classify(err error) error {
	if errors.As(err, new(*driver.Error)) {
		return err // it may be the error of a hook, whose output may contain any text
	}
	text := err.Error()
	for _, p := range []struct {
		text  string
		class driver.Class
	}{
		{"dependency failed to start", driver.RuntimeError},
		{"external volume", driver.RuntimeResourceMissing},
		{"declared as external, but could not be found", driver.RuntimeResourceMissing},
		{"depends on undefined", driver.InvalidSpecification},
	} {
		if strings.Contains(text, p.text) {
			return &driver.Error{Class: p.class, Op: "up", Err: err}
		}
	}
	return moby.Classify("start", err)
}
