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

// Types of the packages below that a caller needs to make an agent.
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
	// Discovered is called with the addresses of all replicas and of the leader, as a scheduler's answer
	// names them. The leader's may be empty. It must not block; nil = not called.
	Discovered func(addresses []string, leader string)

	// Listener serves the agent's API when set; Run closes it. Its server is made with
	// ServerOptions (credentials, interceptors).
	Listener      net.Listener
	ServerOptions []grpc.ServerOption
	// Limits of the API's port. With certificates, calls are counted for each host.
	Limits limits.Limits
	// Tracer makes spans of the work on an order; nil = none.
	Tracer trace.Tracer
	// Authorize, when set, maps client certificates to identities. Schedulers and the admin may then do
	// everything, other identities may only read. Nil: every caller may do everything, as under -insecure.
	Authorize *pki.Mapping
	// Identify, when set, replaces the mapping of Authorize. It refuses certificates that have expired or
	// were revoked since the handshake.
	Identify func(tls.ConnectionState) (pki.Identity, error)
	// Self is the identity in this agent's certificate. Callers must name the same cluster as it does;
	// certificates are made before the cluster has an id. Nil: callers must name the cluster's id.
	Self func() pki.Identity
	// Advertise is the host:port that schedulers dial; default: derived from Listener, with the
	// source address towards SchedulerHint (host:port) for a wildcard.
	Advertise     string
	SchedulerHint string

	// NotOffered has the reason for each kind without a driver. Late is called at every sweep, and makes
	// drivers for runtimes that were installed since the start; after that the factory makes them as well.
	// Late may be nil.
	NotOffered map[driver.Kind]string
	Late       Factory

	// Labels of the node; os and arch are always added.
	Labels map[string]string
	Taints []*controlv1.Taint
	// Garbage collection; see GC.
	GC GC
	// Storage of managed volumes. Without Pools, local volumes are in the folder of the state file.
	Storage volume.Config
	// Reserved for the machine itself, and not offered to workloads: millicores, MiB, and GiB of the
	// default pool.
	ReservedCPU, ReservedMemory, ReservedDisk int64
	// Threshold is the share of what is not reserved, in percent, that may be promised to workloads: 1 to
	// 100. Orders beyond it are refused; workloads that are here already are not. 0: no order is refused.
	Threshold int
	// Guard is the fencer: it stops workloads with on_lost_lease: stop when the lease ends, even if this
	// process is dead. Nil: such workloads are refused.
	Guard Fencer
	// Host measures the machine; default host.New("/").
	Host host.Host

	// ReconcileInterval is the time between two sweeps, which list all engines; default 30 s.
	ReconcileInterval time.Duration
	// Concurrency is how many workloads are worked on at a time; default 32. Most of a start is waiting: an
	// engine needs three seconds to start a container that is limited to ten millicores.
	Concurrency int
	// StepTimeout bounds one driver call that changes something, pulls included; default 15 min.
	StepTimeout time.Duration
	// ListTimeout bounds one List or Probe; default 30 s.
	ListTimeout time.Duration
	// StopGrace is what a workload gets to end by itself; default 30 s.
	StopGrace time.Duration
	// UsageInterval is the time between two measurements of CPU, memory and traffic; default 10 s.
	UsageInterval time.Duration
	// DiskInterval is the time between two measurements of disk use, where an engine has to read the files
	// of a workload for it; default 1 min.
	DiskInterval time.Duration
	// RetryBase, RetryMax, RetryLimit: back-off RetryBase·2^(n-1), at most RetryMax, RetryLimit
	// attempts; defaults 5 s, 2 min, 3.
	RetryBase, RetryMax time.Duration
	RetryLimit          int
	// StableAfter: the failures of a workload that ran this long are forgotten; default 30 s.
	StableAfter time.Duration

	// NoSessions refuses commands in workloads, and consoles. SessionIdle ends a session without input and
	// output after this time; 0 = never.
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

// NodeID resolves the setting PERSYS_NODE_ID. Empty means the host name. "auto" is for machines that
// share a host name: it adds the first 12 digits of the machine id, or of a hash of the first hardware
// address if there is no machine id.
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
