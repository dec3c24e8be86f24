// Package compose runs Compose stacks on a Docker engine. One workload is one Compose project: its
// containers, networks and volumes. The driver has no queue and does not retry.
//
// Our containers, networks and volumes carry the labels of package driver besides Compose's own, because the
// engine may be shared with other agents and with people who use Compose. The project is named after the
// workload (ProjectName); if another agent on the same engine has a project of that name, the node's name is
// added.
//
// An update works like `docker compose up`: services with an unchanged configuration keep their containers, and
// named volumes stay. So the containers of one stack may come from different contents (hashes of a
// specification), and the labels of a container cannot be changed afterwards. A record in the project's folder
// (without secrets) therefore stores the content of the stack as a whole and the number of containers of each
// service. It is written as incomplete before the first step and as complete after the last. If the record is
// incomplete or a container is missing, the content of the stack counts as unknown, and the next Ensure
// completes the stack. Before the source of a new stack is fetched, the driver writes a record that only names
// the workload to which the folder belongs. If there is no record and all containers have the same content
// label, that label is the content of the stack.
//
// The text of a stack and its environment hold secrets, so neither is written to the disk.
//
// Package stack loads the stack in a child process with limits, from the stack's own folder only. Secrets,
// configs and seccomp profiles are mounted from a copy that no container can write to.
package compose

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/context/docker"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/docker/compose/v5/pkg/compose"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/cgroup"
	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/agent/driver/moby"
	"github.com/persys/compute/policy"
	stackfile "github.com/persys/compute/stack"
)

// LegacyDir is where legacy v1 agents keep the folders of their projects. Those projects do not carry our
// labels.
const LegacyDir = "/var/lib/persys/compose"

// Options configure a Driver. A duration of zero selects its default.
type Options struct {
	// Host is the engine's address; empty means DOCKER_HOST and the related variables, else the default
	// socket.
	Host string
	// Dir holds one folder for each project: its record, and the files of its Git source at the running
	// commit. Required. New creates it, accessible by the agent's user only.
	Dir string

	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store lists a workload. It decides whether a Compose project of a
	// legacy v1 agent, which carries none of our labels, belongs to this agent.
	Owns func(driver.ID) bool
	// Credentials returns the X-Registry-Auth value for an image of a workload's namespace, or "" for none. May be nil.
	Credentials func(namespace, ref string) (string, error)
	// Progress is called with the progress of an image pull or with the dependency that Compose waits for,
	// and with "" at the end of the pull or of the wait. Progress must not block, and may be nil.
	Progress func(id driver.ID, text string)
	// Pulled is called for each newly pulled image; ref is its name. If an older image on the engine had this
	// name before the pull, before is the id of that image; otherwise before is "". May be nil.
	Pulled func(ref, before string)
	// GitCredentials returns user and password for the Git repository of a workload. It looks them up by the
	// workload's namespace and the name of the credentials or, if name is empty, the host of the repository.
	// Empty strings mean none. May be nil.
	GitCredentials func(namespace, name, host string) (user, password string, err error)

	// Loader loads the stacks. Required.
	Loader *stackfile.Loader

	// Binary is a Compose command (it may have several words, such as "docker compose") to use instead of the
	// built-in Compose library.
	Binary []string

	// StopGrace is how long a container may take to stop before it is killed if its service has no
	// stop_grace_period. Default 30 s.
	StopGrace time.Duration
	// CallTimeout bounds one call to the engine; default 60 s. PullTimeout bounds the time without progress in
	// a pull; default 10 min. GitTimeout bounds one fetch from a Git server; default 5 min.
	CallTimeout, PullTimeout, GitTimeout time.Duration
	// DaemonConfig is the configuration file of an engine on this machine. Default /etc/docker/daemon.json.
	DaemonConfig string

	// Sealer seals the hooks in the labels of containers. If it is nil, workloads with hooks are refused.
	Sealer driver.Sealer

	// Logger receives problems that the driver does not return as errors. Nil means slog.Default.
	Logger *slog.Logger
}

// Driver implements driver.Driver for Compose on one Docker engine.
type Driver struct {
	eng      *moby.Engine
	run      runner
	git      *gitfetch.Fetcher
	identity driver.Identity
	opt      Options
	log      *slog.Logger

	// records caches the record files in Options.Dir by project name.
	recordsMu sync.Mutex
	records   map[string]cachedRecord

	groups *cgroup.Reader
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Leaver = (*Driver)(nil)

	_ driver.VolumeOwner = (*Driver)(nil)

	_ driver.Signaler = (*Driver)(nil)
)

// runner runs Compose: as the built-in Go library or as an external command.
type runner interface {
	// up creates and starts missing containers, replaces changed ones and removes services that are no
	// longer in the stack. If running is false, it creates the containers and starts none.
	up(ctx context.Context, p *stack, running bool) error
	// start starts the existing containers, dependencies first, except those of the services in done. stop
	// stops them, dependencies last. If grace is driver.OwnGrace, each container gets its own grace
	// period. Any other grace applies to all containers.
	start(ctx context.Context, project string, members []member, done map[string]bool) error
	stop(ctx context.Context, project string, grace time.Duration) error
	// down removes the containers and networks of a project, and its volumes if volumes is set.
	down(ctx context.Context, project string, volumes bool) error
}

// New does not contact the engine. While the engine is down, calls of the driver fail with class
// RuntimeUnhealthy.
func New(opt Options) (*Driver, error) {
	for _, required := range []struct{ name, value string }{
		{"ClusterID", opt.ClusterID}, {"NodeID", opt.NodeID}, {"Dir", opt.Dir},
	} {
		if required.value == "" {
			return nil, driver.Errorf(driver.InvalidConfiguration, "compose", "%s: must not be empty", required.name)
		}
	}
	if opt.Loader == nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "compose", "Loader: must be set")
	}
	if opt.StopGrace <= 0 {
		opt.StopGrace = policy.StopGrace
	}
	if opt.GitTimeout <= 0 {
		opt.GitTimeout = 5 * time.Minute
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	log := opt.Logger.With("node", opt.NodeID)
	dir, err := filepath.Abs(opt.Dir)
	if err != nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "compose", "Dir %q: %w", opt.Dir, err)
	}
	opt.Dir = dir
	engine, err := moby.Open(moby.Options{
		Host: opt.Host, Credentials: opt.Credentials, Progress: opt.Progress, Pulled: opt.Pulled, CallTimeout: opt.CallTimeout, PullTimeout: opt.PullTimeout,
		DaemonConfig: opt.DaemonConfig, Sealer: opt.Sealer, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	d := &Driver{
		eng:      engine,
		identity: driver.Identity{ClusterID: opt.ClusterID, NodeID: opt.NodeID, Owns: opt.Owns},
		opt:      opt,
		git:      gitfetch.New(opt.GitTimeout),
		log:      log,
		records:  map[string]cachedRecord{},
		groups:   cgroup.New("", ""),
	}
	if len(opt.Binary) > 0 {
		d.run = &program{words: opt.Binary, host: opt.Host, dir: opt.Dir, list: d.containers, grace: d.grace}
		return d, nil
	}
	if d.run, err = newLibrary(engine); err != nil {
		_ = engine.Close()
		return nil, err
	}
	return d, nil
}

// Close closes idle connections. Stacks keep running.
func (d *Driver) Close() error { return d.eng.Close() }

// Kind returns driver.Compose.
func (d *Driver) Kind() driver.Kind { return driver.Compose }

// Probe asks the engine whether it can run stacks, and checks that Options.Dir is writable.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) {
	out, err := d.eng.Probe(ctx)
	if err != nil || !out.Healthy {
		return out, err
	}
	if p, ok := d.run.(*program); ok {
		if err := p.find(); err != nil {
			out.Healthy, out.Reason = false, err.Error()
			return out, nil
		}
	}
	if err := os.MkdirAll(d.opt.Dir, 0o700); err != nil {
		out.Healthy, out.Reason = false, fmt.Sprintf("the folder of Compose projects cannot be used: %v", err)
	}
	return out, nil
}

// library runs Compose as a Go library. It is not interactive: where Compose asks for confirmation to
// destroy data, the answer is no.
type library struct {
	svc    api.Compose
	engine *moby.Engine
}

func newLibrary(engine *moby.Engine) (*library, error) {
	// Use only the output streams of DockerCli: some of its other methods exit the process if the engine does
	// not answer.
	base, err := command.NewDockerCli(command.WithInputStream(io.NopCloser(eof{})), command.WithCombinedStreams(io.Discard))
	if err != nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "compose", "Docker's configuration: %w", err)
	}
	cli := &engineCli{DockerCli: base, engine: engine, file: configfile.New("")}
	svc, err := compose.NewComposeService(cli, compose.WithPrompt(func(string, bool) (bool, error) { return false, nil }))
	if err != nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "compose", "the Compose library: %w", err)
	}
	return &library{svc: svc, engine: engine}, nil
}

// engineCli is the command.Cli that the Compose library requires. It uses our engine and ignores the
// Docker configuration of the user that the agent runs as.
type engineCli struct {
	*command.DockerCli
	engine *moby.Engine
	file   *configfile.ConfigFile
}

// CurrentVersion returns the API version that the client and the engine agreed on. While the engine does
// not answer, it returns the newest version that the client knows.
func (c *engineCli) CurrentVersion() string {
	v, _ := c.engine.APIVersion(context.Background()) // ignore the error: the next call to the engine fails too and returns it
	return v
}

func (c *engineCli) Client() client.APIClient           { return stacksOnly{c.engine.Client, c.engine} }
func (c *engineCli) ConfigFile() *configfile.ConfigFile { return c.file }
func (c *engineCli) CurrentContext() string             { return command.DefaultContextName }
func (c *engineCli) ServerInfo() command.ServerInfo     { return command.ServerInfo{OSType: "linux"} }
func (c *engineCli) BuildKitEnabled() (bool, error)     { return false, nil }
func (c *engineCli) DockerEndpoint() docker.Endpoint {
	return docker.Endpoint{EndpointMeta: docker.EndpointMeta{Host: c.engine.Client.DaemonHost()}}
}

// stacksOnly is the engine's API, except that lists of containers omit the containers of workloads
// that are not stacks (see otherKind), that pre_stop hooks run before a stop, and that post_start hooks are read from
// the labels of the container.
type stacksOnly struct {
	client.APIClient
	engine *moby.Engine
}

func (c stacksOnly) ContainerList(ctx context.Context, opt client.ContainerListOptions) (client.ContainerListResult, error) {
	res, err := c.APIClient.ContainerList(ctx, opt)
	res.Items = slices.DeleteFunc(res.Items, func(s container.Summary) bool { return otherKind(s.Labels) })
	return res, err
}

// ContainerStop runs the pre_stop hooks in the labels of the container, within its grace period. Compose itself would
// not stop a container of which a hook fails, and would wait for a hook without limit.
func (c stacksOnly) ContainerStop(ctx context.Context, id string, opt client.ContainerStopOptions) (client.ContainerStopResult, error) {
	in, err := c.engine.Inspect(ctx, id)
	if err != nil {
		return c.APIClient.ContainerStop(ctx, id, opt)
	}
	most := driver.OwnGrace
	if opt.Timeout != nil && *opt.Timeout >= 0 {
		most = time.Duration(*opt.Timeout) * time.Second
	}
	grace := moby.StopGrace(in, most, engineGrace)
	if left := c.engine.PreStop(ctx, in, grace); left != grace {
		seconds := int(math.Ceil(left.Seconds()))
		opt.Timeout = &seconds
	}
	return c.APIClient.ContainerStop(ctx, id, opt)
}

// ExecCreate runs the post_start hooks in the label of a container. Compose calls it only for the hook
// runHooks. The error of a hook is then the same as for a container that is no part of a stack, and
// moby.Engine.Unready returns true for the container if a hook failed.
func (c stacksOnly) ExecCreate(ctx context.Context, id string, _ client.ExecCreateOptions) (client.ExecCreateResult, error) {
	in, err := c.engine.Inspect(ctx, id)
	if err != nil {
		return client.ExecCreateResult{}, err
	}
	hooks, err := c.engine.HooksOf(in.Config.Labels)
	if err == nil {
		err = c.engine.PostStart(ctx, id, hooks.PostStart)
	}
	if typed := (*driver.Error)(nil); errors.As(err, &typed) {
		err = driver.Errorf(typed.Class, typed.Op, "service %s: %w", in.Config.Labels[api.ServiceLabel], typed.Err)
	}
	return client.ExecCreateResult{}, err
}

// ExecAttach returns the output of the hook runHooks, which is empty.
func (stacksOnly) ExecAttach(context.Context, string, client.ExecAttachOptions) (client.ExecAttachResult, error) {
	conn, _ := net.Pipe()
	return client.ExecAttachResult{HijackedResponse: client.HijackedResponse{Conn: conn, Reader: bufio.NewReader(eof{})}}, nil
}

// ExecInspect returns the exit code 0 of the hook runHooks.
func (stacksOnly) ExecInspect(context.Context, string, client.ExecInspectOptions) (client.ExecInspectResult, error) {
	return client.ExecInspectResult{}, nil
}

// runHooks returns the hooks that Compose gets in place of the post_start hooks of a service: a single hook.
// When Compose runs it, stacksOnly runs the hooks in the label of the container.
func runHooks(hooks []types.ServiceHook) []types.ServiceHook {
	if len(hooks) == 0 {
		return nil
	}
	return []types.ServiceHook{{Command: types.ShellCommand{"post_start"}}}
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func (l *library) up(ctx context.Context, p *stack, running bool) error {
	for name, s := range p.project.Services {
		s.PostStart = runHooks(s.PostStart)
		p.project.Services[name] = s
	}
	create := api.CreateOptions{
		RemoveOrphans: true, Inherit: true, QuietPull: true,
		Recreate: api.RecreateDiverged, RecreateDependencies: api.RecreateDiverged,
	}
	if !running {
		return l.svc.Create(ctx, p.project, create)
	}
	return hookOf(l.svc.Up(ctx, p.project, api.UpOptions{Create: create, Start: api.StartOptions{Project: p.project}}))
}

func (l *library) start(ctx context.Context, project string, members []member, done map[string]bool) error {
	p := &types.Project{Name: project, Services: types.Services{}}
	there := map[string]bool{}
	for _, m := range members {
		there[m.service] = !done[m.service]
	}
	for _, m := range members {
		if done[m.service] {
			continue
		}
		s, ok := p.Services[m.service]
		if !ok {
			hooks, err := l.engine.HooksOf(m.Labels)
			if err != nil {
				return driver.Errorf(driver.InvalidConfiguration, "start", "post_start of service %s: change the stack, so that the container is made again: %w", m.service, err)
			}
			s = types.ServiceConfig{Name: m.service, Image: m.Image, Labels: m.Labels, Scale: new(int), DependsOn: types.DependsOnConfig{}, PostStart: runHooks(hooks.PostStart)}
			for name, on := range m.dependencies() {
				if there[name] {
					s.DependsOn[name] = on
				}
			}
		}
		*s.Scale++
		p.Services[m.service] = s
	}
	return hookOf(l.svc.Start(ctx, project, api.StartOptions{Project: p}))
}

func (l *library) stop(ctx context.Context, project string, grace time.Duration) error {
	if grace == driver.OwnGrace {
		return l.svc.Stop(ctx, project, api.StopOptions{})
	}
	return l.svc.Stop(ctx, project, api.StopOptions{Timeout: &grace})
}

func (l *library) down(ctx context.Context, project string, volumes bool) error {
	return l.svc.Down(ctx, project, api.DownOptions{RemoveOrphans: true, Volumes: volumes})
}
