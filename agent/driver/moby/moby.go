// Package moby holds the code that the Docker and Compose drivers share: a client with time limits, image
// pulls, inspection, events and logs. It reads the labels of package driver, but it does not decide about
// workloads.
package moby

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy"
)

// Options configure an Engine. A duration of zero selects its default.
type Options struct {
	// Host is the engine's address (unix:///var/run/docker.sock, tcp://…). Empty means DOCKER_HOST and
	// the related variables, else the default socket.
	Host string
	// Credentials returns the X-Registry-Auth value for an image of a workload's namespace, or "" for none;
	// EncodeAuth makes the value. May be nil.
	Credentials func(namespace, ref string) (string, error)
	// Progress is called with the progress of an image pull for a workload: every few seconds while the pull
	// makes progress, and with "" at its end. Progress must not block, and may be nil.
	Progress func(id driver.ID, text string)
	// Pulled is called for each newly pulled image; ref is its name. If an older image on the engine had this
	// name before the pull, before is the id of that image; otherwise before is "". May be nil.
	Pulled func(ref, before string)
	// CallTimeout bounds one call to the engine. Default 60 s, because a busy engine starts containers slowly.
	CallTimeout time.Duration
	// PullTimeout bounds the time in which a pull makes no progress. Default 10 min.
	PullTimeout time.Duration
	// RefreshTimeout bounds the time without progress in the renewal of an image that exists locally, such as
	// one with the tag latest. Default 30 s.
	RefreshTimeout time.Duration
	// DaemonConfig is the configuration file of an engine on this machine. Default /etc/docker/daemon.json.
	DaemonConfig string
	// Sealer seals the hooks in the labels of containers. If it is nil, containers with hooks are refused, and the hooks
	// of existing containers cannot be read.
	Sealer driver.Sealer
	// Logger receives problems that the Engine does not return as errors. Nil means slog.Default.
	Logger *slog.Logger
}

// Engine is a Docker engine. It is safe for concurrent use.
type Engine struct {
	Client *client.Client
	opt    Options
	log    *slog.Logger
	tails  tailCache
	ooms   ooms
	layers struct {
		mu          sync.Mutex
		known, able bool
	}
	known  atomic.Pointer[facts]
	api    atomic.Pointer[string] // API version that was agreed on with the engine
	signed signedImages
	// unready has the ids of containers whose post_start hooks have not succeeded since their last start.
	unready sync.Map
}

// Open does not contact the engine. While the engine is down, calls fail with class RuntimeUnhealthy. The
// API version is negotiated with the engine (1.40 or later).
func Open(opt Options) (*Engine, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&opt.CallTimeout, time.Minute)
	def(&opt.PullTimeout, 10*time.Minute)
	def(&opt.RefreshTimeout, 30*time.Second)
	opt.DaemonConfig = cmp.Or(opt.DaemonConfig, "/etc/docker/daemon.json")
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	opts := []client.Opt{client.FromEnv}
	if opt.Host != "" {
		opts = append(opts, client.WithHost(opt.Host))
	}
	cli, err := client.New(opts...)
	if err != nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "docker", "engine address %q: %w", opt.Host, err)
	}
	return &Engine{Client: cli, opt: opt, log: opt.Logger}, nil
}

// Close closes idle connections. Containers keep running.
func (e *Engine) Close() error { return e.Client.Close() }

// CallTimeout returns the time limit of one call to the engine.
func (e *Engine) CallTimeout() time.Duration { return e.opt.CallTimeout }

// PullTimeout returns how long a pull may make no progress.
func (e *Engine) PullTimeout() time.Duration { return e.opt.PullTimeout }

// Probe implements driver.Driver.Probe with one call to the engine.
func (e *Engine) Probe(ctx context.Context) (driver.Capacity, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.Info(ctx, client.InfoOptions{})
	if err != nil {
		err := Classify("probe", err)
		return driver.Capacity{Reason: err.Error()}, err
	}
	known := e.remember(res)
	info := res.Info
	out := driver.Capacity{EngineID: info.ID, Version: info.ServerVersion, Healthy: true}
	for kind, names := range known.devices {
		if out.Devices == nil {
			out.Devices = map[string]int64{}
		}
		out.Devices[kind] = int64(len(names))
	}
	if info.OSType != "" && info.OSType != "linux" {
		out.Healthy, out.Reason = false, "the engine runs "+info.OSType+" containers; linux is needed"
	}
	return out, nil
}

// APIVersion returns the version of the API that the client and the engine agreed on, for example 1.41. It asks
// the engine once; while the engine does not answer, it returns the newest version that the client knows and
// the error. The client's method ClientVersion must not be used instead: until the engine has answered once,
// another goroutine may be changing the version at the same time.
func (e *Engine) APIVersion(ctx context.Context) (string, error) {
	if v := e.api.Load(); v != nil {
		return *v, nil
	}
	ctx, cancel := e.Call(ctx)
	defer cancel()
	if _, err := e.Client.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return client.MaxAPIVersion, Classify("probe", err)
	}
	v := e.Client.ClientVersion()
	e.api.Store(&v)
	return v, nil
}

// Inspect inspects one container by id or name.
func (e *Engine) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return res.Container, err
}

// Signal sends a signal to the main process of a container, if it runs.
func (e *Engine) Signal(ctx context.Context, id, signal string) error {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	_, err := e.Client.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: signal})
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
		return nil // the container does not run
	}
	if err != nil {
		return Classify("signal", err)
	}
	return nil
}

// StopGrace returns how long a container may take to stop. If the container has its own grace period, StopGrace
// returns that period, but at most the value of most. It also limits the period to policy.MaxStopGrace, because
// another program may have made the container with a longer period. If the container has none, StopGrace
// returns most or, if most is driver.OwnGrace, the value of otherwise.
func StopGrace(in container.InspectResponse, most, otherwise time.Duration) time.Duration {
	switch {
	case in.Config != nil && in.Config.StopTimeout != nil:
		if own := *in.Config.StopTimeout; own >= 0 {
			return min(time.Duration(own)*time.Second, policy.MaxStopGrace, most)
		}
		return min(most, policy.MaxStopGrace) // containers of other programs may have no limit on their grace period
	case most == driver.OwnGrace:
		return otherwise
	}
	return most
}

// Call returns a context for one request to the engine, with the time limit CallTimeout.
func (e *Engine) Call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.opt.CallTimeout)
}

// lastWord is how long a create request may continue after the context of its caller has ended.
const lastWord = 10 * time.Second

// SeeThrough returns the context for a create request. When ctx ends, the request may continue for the time
// lastWord. Without this, the engine would still execute the request, and a Remove right afterwards would not
// find the object that the engine is creating.
func (e *Engine) SeeThrough(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return ctx, func() {}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.opt.CallTimeout)
	unlink := context.AfterFunc(ctx, func() { time.AfterFunc(lastWord, cancel) })
	return bounded, func() {
		unlink()
		cancel()
	}
}

// Pause waits between two polls of the engine; it returns false if ctx ended.
func Pause(ctx context.Context) bool {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Short returns the short form of a container's id, as the docker command prints it.
func Short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
