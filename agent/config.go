package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/garbage"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/session"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/volume"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// Names of the packages below that callers need to make an agent.
type (
	// Control is the schedulers' API.
	Control = session.Control
	// Binding is what a driver must know of the agent that uses it.
	Binding = runner.Binding
	// Factory makes the drivers.
	Factory = runner.Factory
	// Fencer stops workloads when the lease ends.
	Fencer = runner.Fencer
	// GC is how an agent cleans up after itself.
	GC = garbage.Config
	// SessionState is how the conversation with the schedulers stands.
	SessionState = session.State
	// Epoch is one leadership of one cluster.
	Epoch = core.Epoch
)

// Unbound is the cluster id on labels while the agent has met no scheduler that names a cluster.
const Unbound = runner.Unbound

// DefaultGuardGrace is what a fencer gives a workload to end by itself.
const DefaultGuardGrace = core.DefaultGrace

// Config of an agent. Zero values mean the defaults named.
type Config struct {
	// NodeID: required; NodeID() makes one from PERSYS_NODE_ID.
	NodeID string
	// StatePath is the bbolt file; required. Its directory is made. The key file is
	// <StatePath>.key.
	StatePath string
	// Volatile does not wait for the disk: for simulations only, since an acknowledged order may
	// be lost with the machine.
	Volatile bool
	// ClusterID, when set, is the only cluster this node will belong to. Empty: the first one that
	// answers.
	ClusterID string
	// Shard, when set, is the only shard whose schedulers this node will obey. Empty: that of the
	// first cluster that answers.
	Shard string
	// Version is reported to schedulers; default "dev".
	Version string
	// FeatureLevel of the replicated log that this release knows; see RegisterNodeRequest.
	FeatureLevel uint32

	// Control reaches the schedulers. Nil means standalone: no session, and orders without epoch
	// are always taken.
	Control Control
	// Discovered is told of the schedulers that answers name: every replica's address and the
	// leader's (may be empty). It must not block. Optional.
	Discovered func(addresses []string, leader string)

	// Listener serves the agent's API when set; Run closes it. Its server is made with
	// ServerOptions (credentials, interceptors).
	Listener      net.Listener
	ServerOptions []grpc.ServerOption
	// Limits of the API's port; calls count by host, where there are certificates.
	Limits limits.Limits
	// Tracer makes the spans of what an order leads to; nil = none.
	Tracer trace.Tracer
	// Authorize, when set, maps client certificates to identities and lets schedulers and the
	// admin do everything, other identities only read. Nil: everybody may do everything, as under
	// -insecure.
	Authorize *pki.Mapping
	// Identify, when set, says who is at the other end of a connection instead of Authorize's
	// mapping; it refuses what has expired or was revoked since the handshake.
	Identify func(tls.ConnectionState) (pki.Identity, error)
	// Self is who this agent is by its own certificate. The cluster that certificates name is chosen
	// when they are made, before the cluster has an id: callers must name the same one. Nil: they
	// must name the cluster's id.
	Self func() pki.Identity
	// Advertise is the host:port that schedulers dial; default: derived from Listener, with the
	// source address towards SchedulerHint (host:port) for a wildcard.
	Advertise     string
	SchedulerHint string

	// NotOffered says of kinds without a driver why there is none. Late, asked at every sweep, makes drivers of
	// those whose runtime has come to the machine since; from then on the factory makes them, too. May be nil.
	NotOffered map[driver.Kind]string
	Late       Factory

	// Labels of the node; os and arch are always added.
	Labels map[string]string
	Taints []*controlv1.Taint
	// Garbage collection; see GC.
	GC GC
	// Storage of managed volumes. Without Pools, local ones are beside the state file.
	Storage volume.Config
	// Reserved for the machine itself, taken off what the node offers: millicores, MiB, and GiB of the
	// default pool.
	ReservedCPU, ReservedMemory, ReservedDisk int64
	// Threshold is the share of the rest, in percent, that may be promised to workloads: 1 to 100;
	// 0 is all of it, and nothing is refused here. Else work that would go beyond is; what is here
	// already never is.
	Threshold int
	// Guard stops workloads with on_lost_lease: stop when the lease ends, also without this process.
	// Nil: such workloads are refused.
	Guard Fencer
	// Host measures the machine; default host.New("/").
	Host host.Host

	// ReconcileInterval between looks at everything; default 30 s.
	ReconcileInterval time.Duration
	// Concurrency is how many workloads are worked on at a time; default 32. Most of a start is waiting: a
	// container of ten millicores takes the engine three seconds, nearly all of them held up by that limit.
	Concurrency int
	// StepTimeout bounds one driver call that changes something, pulls included; default 15 min.
	StepTimeout time.Duration
	// ListTimeout bounds one List or Probe; default 30 s.
	ListTimeout time.Duration
	// StopGrace is what a workload gets to end by itself; default 30 s.
	StopGrace time.Duration
	// UsageInterval between two measurements of what workloads use; default 10 s.
	UsageInterval time.Duration
	// DiskInterval between two measurements of what workloads occupy, where the engine has to look at
	// their files for it; default 1 min.
	DiskInterval time.Duration
	// RetryBase, RetryMax, RetryLimit: back-off RetryBase·2^(n-1), at most RetryMax, RetryLimit
	// attempts; defaults 5 s, 2 min, 3.
	RetryBase, RetryMax time.Duration
	RetryLimit          int
	// StableAfter forgives failures of a workload that ran this long; default 30 s.
	StableAfter time.Duration

	// NoSessions refuses commands in workloads and their consoles. SessionIdle ends a session that
	// nobody said anything in for so long; 0 never does.
	NoSessions  bool
	SessionIdle time.Duration

	// Metrics, when set, gets the persys_agent_* collectors.
	Metrics prometheus.Registerer
	// Logger; default slog.Default().
	Logger *slog.Logger
}

func (c *Config) complete() error {
	if err := spec.CheckID("NodeID", c.NodeID); err != nil {
		return err
	}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider().Tracer("agent")
	}
	if c.StatePath == "" {
		return errors.New("StatePath: must not be empty")
	}
	if c.ReservedCPU < 0 || c.ReservedMemory < 0 || c.ReservedDisk < 0 {
		return fmt.Errorf("ReservedCPU %d, ReservedMemory %d, ReservedDisk %d: must not be negative", c.ReservedCPU, c.ReservedMemory, c.ReservedDisk)
	}
	if c.Threshold < 0 || c.Threshold > 100 {
		return fmt.Errorf("Threshold: %d must be 0 to 100 percent", c.Threshold)
	}
	if c.Concurrency < 0 || c.RetryLimit < 0 {
		return fmt.Errorf("Concurrency %d, RetryLimit %d: must not be negative", c.Concurrency, c.RetryLimit)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"ReconcileInterval", &c.ReconcileInterval, 30 * time.Second},
		{"StepTimeout", &c.StepTimeout, 15 * time.Minute},
		{"ListTimeout", &c.ListTimeout, 30 * time.Second},
		{"StopGrace", &c.StopGrace, 30 * time.Second},
		{"UsageInterval", &c.UsageInterval, 10 * time.Second},
		{"DiskInterval", &c.DiskInterval, time.Minute},
		{"RetryBase", &c.RetryBase, 5 * time.Second},
		{"RetryMax", &c.RetryMax, 2 * time.Minute},
		{"StableAfter", &c.StableAfter, 30 * time.Second},
		{"GC.Every", &c.GC.Every, 0},
		{"GC.FailedAfter", &c.GC.FailedAfter, time.Hour},
		{"GC.Settled", &c.GC.Settled, time.Minute},
		{"GC.VolumesAfter", &c.GC.VolumesAfter, 72 * time.Hour},
	} {
		if *d.value < 0 {
			return fmt.Errorf("%s: %s must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.Concurrency == 0 {
		c.Concurrency = 32
	}
	if c.RetryLimit == 0 {
		c.RetryLimit = 3
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("node", c.NodeID)
	labels := maps.Clone(c.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["os"], labels["arch"] = runtime.GOOS, runtime.GOARCH
	c.Labels = labels
	if c.Advertise == "" && c.Listener != nil {
		var err error
		if c.Advertise, err = host.Advertised(c.Listener.Addr(), c.SchedulerHint); err != nil {
			return fmt.Errorf("Listener: %w", err)
		}
	}
	if c.Control != nil && c.Advertise == "" {
		return errors.New("Advertise: must not be empty with schedulers and without Listener")
	}
	return nil
}

// core is what the agent's core has to know of the settings.
func (c *Config) core() core.Settings {
	return core.Settings{
		Node: c.NodeID, Standalone: c.Control == nil, Fencer: c.Guard != nil, Threshold: c.Threshold,
		Concurrency: c.Concurrency, StopGrace: c.StopGrace,
		Policy: core.Policy{Base: c.RetryBase, Max: c.RetryMax, Limit: c.RetryLimit, Stable: c.StableAfter, Endless: c.Control == nil},
	}
}

// NodeID resolves the setting PERSYS_NODE_ID: empty means the host name, "auto" the host name and
// the first 12 digits of the machine id (of a hash of the first hardware address if there is
// none), for machines that share host names.
func NodeID(setting string) (string, error) {
	if setting != "" && setting != "auto" {
		return setting, spec.CheckID("PERSYS_NODE_ID", setting)
	}
	id, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("PERSYS_NODE_ID: not set, and the host name is unknown: %w", err)
	}
	if setting == "auto" {
		suffix := host.Suffix()
		if suffix == "" {
			return "", errors.New("PERSYS_NODE_ID: auto needs /etc/machine-id or a network card")
		}
		id += "-" + suffix
	}
	return id, spec.CheckID("host name as PERSYS_NODE_ID", id)
}
