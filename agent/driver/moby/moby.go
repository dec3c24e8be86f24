// Package moby holds the code that the Docker and Compose drivers share: a client with bounds on its calls,
// image pulls, inspection, event hints and logs. It knows nothing of workloads beyond the labels of package
// driver, and makes no decisions.
package moby

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// Options configure an Engine. Zero durations select the defaults.
type Options struct {
	// Host is the engine's address (unix:///var/run/docker.sock, tcp://…). Empty means DOCKER_HOST and
	// the related variables, else the default socket.
	Host string
	// Credentials returns the X-Registry-Auth value for an image reference, or "" for none;
	// EncodeAuth makes one. May be nil.
	Credentials func(ref string) (string, error)
	// Progress is called with the progress of a pull for a workload every few seconds, and with "" at its
	// end. It must not block. May be nil.
	Progress func(id driver.ID, text string)
	// Pulled is called for each newly pulled image. For a renewed image, before is the id of the image
	// that had the name until then; otherwise before is "". May be nil.
	Pulled func(ref, before string)
	// CallTimeout bounds one call to the engine. Default 60 s, because a busy engine starts containers slowly.
	CallTimeout time.Duration
	// PullTimeout bounds one pull. Default 10 min.
	PullTimeout time.Duration
	// RefreshTimeout bounds the attempt to renew a `latest` image that exists locally.
	// Default 30 s.
	RefreshTimeout time.Duration
	// Logger receives problems that are not returned as errors. Nil means slog.Default.
	Logger *slog.Logger
}

// Engine is a Docker engine. It is safe for concurrent use.
type Engine struct {
	Client *client.Client
	opt    Options
	log    *slog.Logger
	tails  tailCache
	layers struct {
		mu          sync.Mutex
		known, able bool
	}
}

// Open connects lazily: if the engine is down, every call fails with class RuntimeUnhealthy, but Open does
// not. The API version is negotiated with the engine (1.40 or later).
func Open(opt Options) (*Engine, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&opt.CallTimeout, time.Minute)
	def(&opt.PullTimeout, 10*time.Minute)
	def(&opt.RefreshTimeout, 30*time.Second)
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

// CallTimeout returns the time limit of one call.
func (e *Engine) CallTimeout() time.Duration { return e.opt.CallTimeout }

// PullTimeout returns the time limit of one pull.
func (e *Engine) PullTimeout() time.Duration { return e.opt.PullTimeout }

// Probe reads the engine's facts with one call.
func (e *Engine) Probe(ctx context.Context) (driver.Capacity, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.Info(ctx, client.InfoOptions{})
	if err != nil {
		err := Classify("probe", err)
		return driver.Capacity{Reason: err.Error()}, err
	}
	info := res.Info
	out := driver.Capacity{EngineID: info.ID, Version: info.ServerVersion, Healthy: true}
	if info.OSType != "" && info.OSType != "linux" {
		out.Healthy, out.Reason = false, "the engine runs "+info.OSType+" containers; linux is needed"
	}
	return out, nil
}

// Inspect inspects one container by id or name.
func (e *Engine) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return res.Container, err
}

// Call returns the context of one request to the engine.
func (e *Engine) Call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.opt.CallTimeout)
}

// lastWord is how long a creation may outlive its caller.
const lastWord = 10 * time.Second

// SeeThrough returns the context of a request that is not abandoned when ctx ends. The engine would execute
// it anyway, and a Remove right after would miss the object that is about to appear.
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
