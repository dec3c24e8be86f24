// Package docker runs container workloads on a Docker engine. It is the only package that imports
// the Docker client, and it knows nothing of schedulers, tasks or retries.
//
// What belongs to us is told by labels (driver.Identity): the engine may be shared with other
// agents of the cluster, with other clusters and with people. The container is named after the
// workload; if a sibling agent's container has that name, it is <id>--<node>.
//
// A replacement never needs a rollback: the new container is created first, under a name of its
// own, because creating binds no port and makes the engine judge image, mounts and limits while
// the old one still runs. Then the old one is stopped and removed, the new one renamed and started.
// Whatever step is the last one reached, both containers carry the workload's label, and the next
// Ensure goes on from there.
package docker

import (
	"context"
	"log/slog"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/cgroup"
	"github.com/persys/compute/agent/driver/moby"
)

// Options configure a Driver. Zero durations mean the defaults named.
type Options struct {
	// Host is the engine's address (unix:///var/run/docker.sock, tcp://…); empty means DOCKER_HOST
	// and its companions, else the default socket.
	Host string

	ClusterID string
	NodeID    string
	// Owns says whether the agent's store claims a workload. It decides over containers made by
	// an agent that set no node label; see driver.Identity.
	Owns func(driver.ID) bool
	// Content says which content the store has noted for a container without content label (the
	// store's side of an adoption). Without a note, such a container counts as up to date while
	// its revision label equals the spec's, and is replaced otherwise. May be nil.
	Content func(id driver.ID, runtimeID string) (content string, ok bool)
	// Credentials returns the X-Registry-Auth value for an image reference, or "" for none;
	// moby.EncodeAuth makes one. May be nil.
	Credentials func(ref string) (string, error)
	// Progress is told how far a pull for a workload is, and "" at its end. It must not block. May be nil.
	Progress func(id driver.ID, text string)
	// Pulled is told of each image that was pulled and had not been here before; or of one that was
	// renewed, with the id of the image that had the name until then. May be nil.
	Pulled func(ref, before string)

	// StopGrace is how long a container may take to stop before it is killed when it is replaced,
	// removed or stopped by Ensure. Default 30 s.
	StopGrace time.Duration
	// CallTimeout bounds one call to the engine. Default 60 s: a busy engine is slow to start.
	CallTimeout time.Duration
	// PullTimeout bounds one pull. Default 10 min.
	PullTimeout time.Duration
	// RefreshTimeout bounds the attempt to renew a `latest` image of which a copy is here already.
	// Default 30 s.
	RefreshTimeout time.Duration

	// Logger is told what is not returned: a registry that did not answer while a local copy
	// served, and an event stream that broke. Nil means slog.Default.
	Logger *slog.Logger
}

// Driver is a driver.Driver on one Docker engine.
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

// New connects lazily: an engine that is down is no error here, but in every call, with class
// RuntimeUnhealthy. The API version is negotiated with the engine (1.40 or later).
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

// Close drops idle connections. Containers keep running.
func (d *Driver) Close() error { return d.eng.Close() }

// Kind is driver.Container.
func (d *Driver) Kind() driver.Kind { return driver.Container }

// Probe asks the engine for its facts: one call.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) { return d.eng.Probe(ctx) }

// of judges a container by its labels. Those of another kind carry our labels too, and belong to
// another driver.
func (d *Driver) of(labels map[string]string) driver.Ownership {
	if kind := labels[driver.LabelKind]; kind != "" && kind != string(driver.Container) {
		return driver.Stranger
	}
	return d.identity.Of(labels)
}
