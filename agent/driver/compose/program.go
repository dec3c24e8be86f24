package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/goccy/go-yaml"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	stackservice "github.com/persys/compute/stack/service"
)

// program runs Compose as a command, `docker-compose` or `docker compose`. The command reads the stack, which
// we have loaded and checked, from its standard input.
type program struct {
	words []string
	host  string
	dir   string
	list  func(ctx context.Context, labels ...string) ([]member, error)
	grace func(ctx context.Context, container string) (time.Duration, error)
}

// find returns an error if the Compose command is not found in the PATH.
func (c *program) find() error {
	if _, err := exec.LookPath(c.words[0]); err != nil {
		return fmt.Errorf("PERSYS_COMPOSE_BINARY %q: %w", strings.Join(c.words, " "), err)
	}
	return nil
}

func (c *program) up(ctx context.Context, s *stack, running bool) error {
	text, err := render(s.project, hasOptional(s.project) && c.refusesOptional(ctx))
	if err != nil {
		return invalid("compose: %w", err)
	}
	args := []string{"up", "-d", "--remove-orphans"}
	if !running {
		args = []string{"up", "--no-start", "--remove-orphans"}
	}
	return c.exec(ctx, s.project.Name, s.project.WorkingDir, text, args...)
}

// hasOptional reports whether a service has an optional dependency (required: false).
func hasOptional(p *types.Project) bool {
	for _, s := range p.Services {
		for _, on := range s.DependsOn {
			if !on.Required {
				return true
			}
		}
	}
	return false
}

// refusesOptional reports whether the Compose command refuses a stack in which a dependency has the key
// "required".
func (c *program) refusesOptional(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, c.words[0], append(slices.Clone(c.words[1:]), "version", "--short")...).Output()
	return err == nil && beforeOptional(string(out))
}

// beforeOptional reports whether version is older than Compose 2.20, the first version that knows the key
// "required" of a dependency. Some commands write a v before the number.
func beforeOptional(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(strings.TrimSpace(version), "v"), "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major < 2 || major == 2 && minor < 20
}

func (c *program) start(ctx context.Context, project string, _ []member, done map[string]bool) error {
	return c.known(ctx, project, done, "start")
}

func (c *program) stop(ctx context.Context, project string, grace time.Duration) error {
	if grace == driver.OwnGrace {
		return c.known(ctx, project, nil, "stop")
	}
	return c.known(ctx, project, nil, "stop", "--timeout", seconds(grace))
}

// down removes the containers and, with volumes set, the anonymous volumes. Named volumes carry our labels
// and are removed by the driver.
func (c *program) down(ctx context.Context, project string, volumes bool) error {
	args := []string{"down", "--remove-orphans"}
	if volumes {
		args = append(args, "--volumes")
	}
	return c.known(ctx, project, nil, args...)
}

// known runs a Compose command, such as start or stop, on the project's existing containers, except those of
// the services in done. docker-compose v1 needs a Compose file for such commands too, so known passes a file
// made from the containers' labels.
func (c *program) known(ctx context.Context, project string, done map[string]bool, args ...string) error {
	members, err := c.list(ctx, api.ProjectLabel+"="+project)
	if err != nil {
		return err
	}
	if len(members) == 0 {
		return nil
	}
	services := map[string]map[string]any{}
	members = slices.DeleteFunc(members, func(m member) bool { return done[m.service] })
	for _, m := range members {
		grace, err := c.grace(ctx, m.ID)
		if err != nil {
			return err
		}
		// docker-compose v1 takes the grace period from the Compose file; newer commands use the grace period
		// of the container.
		services[m.service] = map[string]any{"image": m.Image, "stop_grace_period": seconds(grace) + "s"}
	}
	for _, m := range members {
		var after []string
		for name := range m.dependencies() {
			if services[name] != nil {
				after = append(after, name)
			}
		}
		slices.Sort(after)
		if len(after) > 0 {
			services[m.service]["depends_on"] = after
		}
	}
	text, err := yaml.Marshal(map[string]any{"version": "3.8", "services": services})
	if err != nil {
		return err
	}
	return c.exec(ctx, project, c.dir, text, args...)
}

func (c *program) exec(ctx context.Context, project, dir string, stdin []byte, args ...string) error {
	all := slices.Concat(c.words[1:], []string{"--project-name", project, "--project-directory", dir, "--file", "-"}, args)
	cmd := exec.CommandContext(ctx, c.words[0], all...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Dir = c.dir
	// Only these variables are passed: Compose would use the agent's whole environment for interpolation.
	for _, name := range []string{"PATH", "HOME", "DOCKER_CONFIG", "DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	if c.host != "" {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+c.host)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, exec.ErrNotFound) {
		return driver.Errorf(driver.RuntimeUnhealthy, "compose", "PERSYS_COMPOSE_BINARY: %w", err)
	}
	if hook := hookText(strings.TrimSpace(said.String())); hook != "" {
		return driver.Errorf(driver.RuntimeError, args[0], "%s %s: %w: %w", c.words[0], args[0], err, moby.HookError(hook))
	}
	return fmt.Errorf("%s %s: %w: %s", c.words[0], args[0], err, driver.Bound(strings.TrimSpace(said.String())))
}

func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// changing are our labels whose values change with every version of a stack.
var changing = []string{driver.LabelContent, driver.LabelRevision, driver.LabelGeneration}

// lasting returns the labels of a resource without the labels in changing. Compose replaces a container whose labels changed, but a service that did
// not change must keep its container. The record file stores the values of the dropped labels. A label that a new version
// of the agent adds changes all containers, so the next update of a stack recreates each of them once.
func lasting(all types.Labels) types.Labels {
	out := types.Labels{}
	for k, v := range all {
		if strings.HasPrefix(k, stackservice.ComposeLabels) || slices.Contains(changing, k) {
			continue
		}
		out[k] = v
	}
	return out
}

// render writes a stack as YAML that old and new Compose commands can read. With requireAll set, the
// command does not know optional dependencies. Then render turns each optional dependency into one that
// only has to be started, because the failure of a required dependency would fail the command.
func render(p *types.Project, requireAll bool) ([]byte, error) {
	mark := func(labels, ours types.Labels) types.Labels {
		out := types.Labels{}
		maps.Copy(out, labels)
		maps.Copy(out, lasting(ours))
		return out
	}
	for name, s := range p.Services {
		s.Labels = mark(s.Labels, s.CustomLabels)
		for _, key := range changing { // set an empty value, because otherwise the container would inherit the label of its image
			s.Labels[key] = ""
		}
		s.PullPolicy = "" // the driver has already pulled the images
		p.Services[name] = s
	}
	for name, n := range p.Networks {
		if !n.External {
			n.Labels = mark(n.Labels, n.CustomLabels)
			p.Networks[name] = n
		}
	}
	for name, v := range p.Volumes {
		if !v.External {
			v.Labels = mark(v.Labels, v.CustomLabels)
			p.Volumes[name] = v
		}
	}
	raw, err := p.MarshalYAML()
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	// Drop the keys that docker-compose v1 refuses. Newer commands do not need them.
	delete(doc, "name")
	services, _ := doc["services"].(map[string]any)
	for _, s := range services {
		service, _ := s.(map[string]any)
		deps, _ := service["depends_on"].(map[string]any)
		for _, d := range deps {
			if dep, ok := d.(map[string]any); ok {
				delete(dep, "restart")
				switch {
				case dep["required"] != false:
					delete(dep, "required")
				case requireAll:
					delete(dep, "required")
					dep["condition"] = types.ServiceConditionStarted
				}
			}
		}
	}
	doc["version"] = "3.8"
	out, err := yaml.Marshal(doc)
	// The variables in the text are already replaced, so escape each $ that is left.
	return bytes.ReplaceAll(out, []byte("$"), []byte("$$")), err
}
