// Package docker runs container workloads on a Docker engine. The driver has no queue and does not retry.
//
// Labels mark our containers (driver.Identity), because the engine may be shared with other agents of the
// cluster, with other clusters and with people. The container is named after the workload; if a sibling
// agent's container has that name, it is <id>--<node>.
//
// A replacement needs no rollback. The new container is created first, under a temporary name: creating a
// container binds no host port, and the engine checks image, mounts and limits at this point, while the old
// container still runs. Then the old container is stopped and removed, and the new one renamed and started.
// Both containers carry the workload's label, so after an interruption the next Ensure continues.
package docker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/cgroup"
	"github.com/persys/compute/agent/driver/moby"
	"github.com/persys/compute/policy"
)

// Options configure a Driver. A duration of zero selects its default.
type Options struct {
	// Host is the engine's address (unix:///var/run/docker.sock, tcp://…). Empty means DOCKER_HOST and
	// the related variables, else the default socket.
	Host string

	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store lists a workload. A container without a node label belongs to
	// this agent if Owns returns true for its workload (see driver.Identity).
	Owns func(driver.ID) bool
	// Content returns the content (hash of the specification) that the agent's store recorded when it adopted
	// a container without a content label. If the store has recorded none, the driver treats the container as
	// up to date if its revision label equals the revision of the spec. May be nil.
	Content func(id driver.ID, runtimeID string) (content string, ok bool)
	// Credentials returns the X-Registry-Auth value for an image of a workload's namespace, or "" for none;
	// moby.EncodeAuth makes the value. May be nil.
	Credentials func(namespace, ref string) (string, error)
	// Progress is called with the current activity of a long step for a workload, such as a pull, and with ""
	// at its end. Progress must not block, and may be nil.
	Progress func(id driver.ID, text string)
	// Pulled is called for each newly pulled image; ref is its name. If an older image on the engine had this
	// name before the pull, before is the id of that image; otherwise before is "". May be nil.
	Pulled func(ref, before string)

	// Networks connects containers to networks that span nodes. If it is nil, containers with networks are
	// refused.
	Networks driver.Networks

	// Devices are the numbers of devices by CDI kind, for engines that do not report their devices.
	Devices map[string]int64

	// StopGrace is how long a container without a stop_grace_period of its own may take to stop before it is
	// killed. Default 30 s.
	StopGrace time.Duration
	// CallTimeout bounds one call to the engine. Default 60 s, because a busy engine starts containers slowly.
	CallTimeout time.Duration
	// PullTimeout and RefreshTimeout limit pulls of images, as the fields of moby.Options with these names do.
	PullTimeout, RefreshTimeout time.Duration
	// DaemonConfig is the configuration file of an engine on this machine. Default /etc/docker/daemon.json.
	DaemonConfig string

	// Sealer seals the hooks in the labels of containers. If it is nil, workloads with hooks are refused.
	Sealer driver.Sealer

	// Logger receives problems that the driver does not return as errors, such as an unreachable registry
	// while a local image is used, or a broken event stream. Nil means slog.Default.
	Logger *slog.Logger
}

// Driver implements driver.Driver on one Docker engine.
type Driver struct {
	eng      *moby.Engine
	identity driver.Identity
	opt      Options
	groups   *cgroup.Reader
	choosing sync.Mutex // held while devices are chosen for a container and it is created
}

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Execer   = (*Driver)(nil)
	_ driver.Consoler = (*Driver)(nil)
	_ driver.Signaler = (*Driver)(nil)
)

// New does not contact the engine. While the engine is down, calls of the driver fail with class
// RuntimeUnhealthy. The API version is negotiated with the engine (1.40 or later).
func New(opt Options) (*Driver, error) {
	if opt.ClusterID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "docker", "ClusterID: must not be empty")
	}
	if opt.NodeID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "docker", "NodeID: must not be empty")
	}
	if opt.StopGrace <= 0 {
		opt.StopGrace = policy.StopGrace
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	engine, err := moby.Open(moby.Options{
		Host: opt.Host, Credentials: opt.Credentials, Progress: opt.Progress, Pulled: opt.Pulled, CallTimeout: opt.CallTimeout, PullTimeout: opt.PullTimeout,
		RefreshTimeout: opt.RefreshTimeout, DaemonConfig: opt.DaemonConfig, Sealer: opt.Sealer, Logger: opt.Logger.With("node", opt.NodeID),
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

// Probe implements driver.Driver with one call to the engine.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) { return d.eng.Probe(ctx) }

// of returns the owner of a container from its labels. Containers of stacks carry our labels too, but belong to
// the Compose driver, so they are not ours here.
func (d *Driver) of(labels map[string]string) driver.Ownership {
	if kind := labels[driver.LabelKind]; kind != "" && kind != string(driver.Container) {
		return driver.Foreign
	}
	return d.identity.Of(labels)
}
