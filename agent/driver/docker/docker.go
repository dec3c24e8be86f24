// Package docker runs container workloads on a Docker engine. It knows nothing of schedulers, tasks or
// retries.
//
// Labels mark our containers (driver.Identity), because the engine may be shared with other agents of
// the cluster, with other clusters and with people. The container is named after the workload; if a
// sibling agent's container has that name, it is <id>--<node>.
//
// A replacement needs no rollback. The new container is created first, under a temporary name: creating
// binds no port and makes the engine check image, mounts and limits while the old container still runs.
// Then the old container is stopped and removed, and the new one renamed and started. Both containers
// carry the workload's label, so after an interruption the next Ensure continues.
package docker

import (
	"context"
	"log/slog"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/cgroup"
	"github.com/persys/compute/agent/driver/moby"
)

// Options configure a Driver. Zero durations select the defaults.
type Options struct {
	// Host is the engine's address (unix:///var/run/docker.sock, tcp://…). Empty means DOCKER_HOST and
	// the related variables, else the default socket.
	Host string

	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store claims a workload. It decides for containers without a
	// node label; see driver.Identity.
	Owns func(driver.ID) bool
	// Content returns the content that the store recorded when it adopted a container without a content
	// label. If the store has none, such a container counts as up to date while its revision label
	// equals the spec's, and is replaced otherwise. May be nil.
	Content func(id driver.ID, runtimeID string) (content string, ok bool)
	// Credentials returns the X-Registry-Auth value for an image reference, or "" for none;
	// moby.EncodeAuth makes one. May be nil.
	Credentials func(ref string) (string, error)
	// Progress is called with the progress of a pull for a workload, and with "" at its end. It must not block. May be nil.
	Progress func(id driver.ID, text string)
	// Pulled is called for each newly pulled image. For a renewed image, before is the id of the image
	// that had the name until then; otherwise before is "". May be nil.
	Pulled func(ref, before string)

	// StopGrace is how long a container may take to stop before it is killed, when Ensure replaces or
	// stops it, or Remove deletes it. Default 30 s.
	StopGrace time.Duration
	// CallTimeout bounds one call to the engine. Default 60 s, because a busy engine starts containers slowly.
	CallTimeout time.Duration
	// PullTimeout bounds one pull. Default 10 min.
	PullTimeout time.Duration
	// RefreshTimeout bounds the attempt to renew a `latest` image that exists locally.
	// Default 30 s.
	RefreshTimeout time.Duration

	// Logger receives problems that are not returned as errors: an unreachable registry while a local
	// image is used, and a broken event stream. Nil means slog.Default.
	Logger *slog.Logger
}

// Driver implements driver.Driver on one Docker engine.
type Driver struct {
	eng      *moby.Engine
	identity driver.Identity
	opt      Options
	groups   *cgroup.Reader
}

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Execer   = (*Driver)(nil)
	_ driver.Consoler = (*Driver)(nil)
)

// New connects lazily: if the engine is down, every call fails with class RuntimeUnhealthy, but New
// does not. The API version is negotiated with the engine (1.40 or later).
func New(opt Options) (*Driver, error) {
	if opt.ClusterID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "docker", "ClusterID: must not be empty")
	}
	if opt.NodeID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "docker", "NodeID: must not be empty")
	}
	if opt.StopGrace <= 0 {
		opt.StopGrace = 30 * time.Second
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	engine, err := moby.Open(moby.Options{
		Host: opt.Host, Credentials: opt.Credentials, Progress: opt.Progress, Pulled: opt.Pulled, CallTimeout: opt.CallTimeout, PullTimeout: opt.PullTimeout,
		RefreshTimeout: opt.RefreshTimeout, Logger: opt.Logger.With("node", opt.NodeID),
	})
	if err != nil {
		return nil, err
	}
	return &Driver{
		eng:      engine,
		identity: driver.Identity{ClusterID: opt.ClusterID, NodeID: opt.NodeID, Owns: opt.Owns},
		opt:      opt,
		groups:   cgroup.New("", ""),
	}, nil
}

// Close closes idle connections. Containers keep running.
func (d *Driver) Close() error { return d.eng.Close() }

// Kind returns driver.Container.
func (d *Driver) Kind() driver.Kind { return driver.Container }

// Probe reads the engine's facts with one call.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) { return d.eng.Probe(ctx) }

// of returns the owner of a container from its labels. Containers of another kind carry our labels too
// but belong to another driver.
func (d *Driver) of(labels map[string]string) driver.Ownership {
	if kind := labels[driver.LabelKind]; kind != "" && kind != string(driver.Container) {
		return driver.Stranger
	}
	return d.identity.Of(labels)
}
