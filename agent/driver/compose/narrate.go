package compose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/workload"
)

// narrateEvery is the interval of progress reports of a starting stack. It is several seconds, because the
// schedulers write each report to their Raft log.
const narrateEvery = 5 * time.Second

// needs holds the dependencies of a stack by service.
type needs map[string]types.DependsOnConfig

func needsOf(p *types.Project) needs {
	out := needs{}
	for name, s := range p.Services {
		out[name] = s.DependsOn
	}
	return out
}

// narrate runs work, which is a call of Compose that may wait for dependencies. Meanwhile it reports these
// dependencies through Options.Progress.
func (d *Driver) narrate(ctx context.Context, id driver.ID, project string, of needs, work func() error) error {
	if d.opt.Progress == nil {
		return work()
	}
	ctx, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		since := map[string]time.Time{}
		ticker := time.NewTicker(narrateEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if text := d.awaited(ctx, project, of, since); text != "" {
				d.opt.Progress(id, text)
			}
		}
	})
	defer func() {
		cancel()
		told.Wait()
		d.opt.Progress(id, "")
	}()
	return work()
}

// awaited describes what Compose waits for: the unmet dependencies of services that do not run yet. awaited
// stores in since when it first found each dependency unmet.
func (d *Driver) awaited(ctx context.Context, project string, of needs, since map[string]time.Time) string {
	members, err := d.containers(ctx, api.ProjectLabel+"="+project)
	if err != nil {
		return "" // ignore the error: Compose gets the same error and returns it
	}
	running, by := 0, map[string][]member{}
	for _, m := range members {
		by[m.service] = append(by[m.service], m)
		if m.State == container.StateRunning {
			running++
		}
	}
	waits := map[string]string{}
	for service, conditions := range of {
		if slices.ContainsFunc(by[service], func(m member) bool { return m.State == container.StateRunning }) {
			continue
		}
		for dep, on := range conditions {
			if goal := d.pending(ctx, on.Condition, by[dep]); goal != "" {
				waits[dep] = goal
			}
		}
	}
	var out []string
	for dep, goal := range waits {
		if since[dep].IsZero() {
			since[dep] = time.Now()
		}
		out = append(out, workload.WaitingFor+dep+" to "+goal+", "+waited(time.Since(since[dep])))
	}
	if len(out) == 0 {
		return fmt.Sprintf("Compose is starting the stack: %d of %d containers run", running, len(members))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// waited formats the time that a stack has waited for a dependency: in seconds below two minutes, then in
// minutes. A wait may take hours, and each new text is reported to the schedulers.
func waited(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Minutes()))
}

// pending returns what is still missing (such as "become healthy") before the containers of a dependency
// meet the condition; "" if nothing is missing.
func (d *Driver) pending(ctx context.Context, condition string, of []member) string {
	for _, m := range of {
		if m.State != container.StateRunning {
			continue
		}
		switch condition {
		case types.ServiceConditionCompletedSuccessfully:
			return "end with success"
		case types.ServiceConditionHealthy:
			in, err := d.eng.Inspect(ctx, m.ID)
			if err == nil && in.State != nil && in.State.Health != nil && in.State.Health.Status != container.Healthy {
				return "be healthy"
			}
		}
	}
	return ""
}
