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
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/names"
	"github.com/persys/compute/agent/network"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/session"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/volume"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// Names for types of the agent's packages, so that a program that creates an agent imports only this package.
type (
	// Control is the schedulers' API.
	Control = session.Control
	// Binding describes the agent to its drivers.
	Binding = runner.Binding
	// Factory makes the drivers of the engines: Docker, Compose, libvirt.
	Factory = runner.Factory
	// Fencer sends messages to the fencer, a separate process that stops exclusive workloads when the lease
	// ends.
	Fencer = runner.Fencer
	// Ceiling limits the rights that workloads have on this machine, even if the schedulers allow more.
	Ceiling = runner.Ceiling
	// GC configures garbage collection.
	GC = garbage.Config
	// SessionState is the state of the agent's connection to the schedulers.
	SessionState = session.State
	// Epoch identifies one leadership term of the schedulers of one cluster.
	Epoch = core.Epoch
)

// Unbound is the cluster id in the labels of instances while no scheduler has told the agent its cluster.
const Unbound = runner.Unbound

// Parts are the components of an agent that New passes to the function Config.Overlay. Metrics may be nil.
type Parts struct {
	Store   *store.Store
	Metrics *metrics.Metrics
}

// DefaultFencerGrace is how long a fencer (the process that stops exclusive workloads when the lease ends)
// waits for a workload to stop before it kills the workload.
const DefaultFencerGrace = core.DefaultGrace

// Config configures an agent. The zero value of a field selects its default.
type Config struct {
	// NodeID is the id of the node; required. The function NodeID derives it from PERSYS_NODE_ID.
	NodeID string
	// StatePath is the path of the bbolt state file; required. A missing folder is created. The key file is
	// <StatePath>.key.
	StatePath string
	// Volatile means that writes do not wait for the disk. Use Volatile only in simulations, because an
	// acknowledged order may be lost if the machine fails.
	Volatile bool
	// ClusterID, if set, is the only cluster that this node joins. If it is empty, the node joins the first
	// cluster whose schedulers answer.
	ClusterID string
	// Shard, if set, is the only shard whose schedulers this node obeys. If it is empty, it becomes the shard
	// of the first cluster whose schedulers answer.
	Shard string
	// Version is reported to schedulers; default "dev".
	Version string
	// FeatureLevel is the highest feature level (the set of commands in the schedulers' Raft log) that this
	// release supports.
	FeatureLevel uint32

	// Control is the API of the schedulers. Nil means standalone: the agent does not register or send
	// heartbeats, and always accepts orders without epoch.
	Control Control
	// Discovered is called with the addresses of all scheduler replicas and of the leader, as listed in
	// a scheduler's response. leader may be empty. Discovered must not block, and may be nil.
	Discovered func(addresses []string, leader string)

	// Listener, if set, serves the agent's API. Run closes it. ServerOptions are the options of the gRPC
	// server on it (credentials, interceptors).
	Listener      net.Listener
	ServerOptions []grpc.ServerOption
	// Limits are the limits on connections and calls to the agent's API. If clients have certificates, calls
	// are counted for each client host.
	Limits limits.Limits
	// Tracer creates the spans in which the agent carries an order out; nil = no tracing.
	Tracer trace.Tracer
	// Authorize, if set, maps client certificates to identities and limits the calls of each role
	// (server.Permit). Schedulers may make every call. Gateways, and clients with a certificate of another
	// authority that Authorize maps, may only read. Other agents and users may only call HealthCheck. If
	// Authorize is nil (flag -insecure), every caller may make every call.
	Authorize *pki.Mapping
	// Identify, if set, takes the place of the mapping in Authorize. It also refuses certificates that have
	// expired or were revoked since the handshake.
	Identify func(tls.ConnectionState) (pki.Identity, error)
	// Self returns the identity in this agent's certificate. A caller's certificate must name the same
	// cluster. The cluster in certificates may differ from the cluster's id, because certificates are issued
	// before the cluster has an id. If Self is nil, a caller's certificate must name the cluster's id.
	Self func() pki.Identity
	// Advertise is the host:port at which schedulers call this agent; required if Control is set.
	Advertise string
	// MetricsPort is the port on which the program that runs the agent serves /metrics over plain HTTP; 0 = none.
	// The schedulers list the port among the targets that Prometheus scrapes.
	MetricsPort int

	// NotOffered holds the reason for each kind of workload that has no driver on this machine. Late makes
	// drivers for engines that were installed after the agent started; later calls of Factory make these
	// drivers too. Late is called at every sweep (the periodic list of all engines), and may be nil.
	NotOffered map[driver.Kind]string
	Late       Factory

	// Labels are the labels of the node; the agent always adds the labels os and arch.
	Labels map[string]string
	Taints []*controlv1.Taint
	// Devices are the numbers of devices by name that workloads can reserve on this node. They take precedence over the
	// devices that the engine reports.
	Devices map[string]int64
	// GC configures garbage collection.
	GC GC
	// Ceiling limits the rights that workloads have on this machine, even if the schedulers allow more. The
	// agent adds its state file and the key of that file to the paths that no workload may mount.
	Ceiling Ceiling
	// Storage configures managed volumes. Without Pools, local volumes are stored in the folder of the
	// state file.
	Storage volume.Config
	// ReservedCPU (millicores), ReservedMemory (MiB) and ReservedDisk (GiB of the default pool) are the
	// resources that the machine itself needs; the node does not offer them to workloads.
	ReservedCPU, ReservedMemory, ReservedDisk int64
	// Threshold is the percentage (1 to 100) of the unreserved resources that may be reserved for
	// workloads. An order that would exceed this limit is refused. Existing workloads are not affected. 0:
	// no order is refused.
	Threshold int
	// Fencer stops workloads with on_lost_lease: stop when the lease ends, even if this process is dead. If
	// Fencer is nil, orders for such workloads are refused.
	Fencer Fencer
	// Overlay makes the subsystem that sets up networks that span nodes. If it is nil, the node ignores the
	// networks that schedulers send, and containers with networks are refused. Networking says which networks
	// the node can set up; the agent calls it with the address Advertise before each registration; it may be
	// nil. Names answers the DNS queries of containers on these networks; it may be nil. The agent closes the
	// subsystem.
	Overlay    func(Parts) (network.Overlay, error)
	Names      *names.Resolver
	Networking func(advertise string) *controlv1.NodeNetworking
	// HeldPorts returns the ports in ingress mode at which the machine does not answer. When the list changes, the agent
	// registers again, because the result of Networking contains these ports. It may be nil.
	HeldPorts func() string
	// Peer returns a connection to the agent of another node, from which volumes move to this node. If it is nil, no
	// volumes move to or from this node.
	Peer func(endpoint, node string) (*grpc.ClientConn, error)
	// Host measures the machine; default host.New("/").
	Host host.Host

	// ReconcileInterval is the time between two sweeps, which list all engines; default 30 s.
	ReconcileInterval time.Duration
	// Concurrency is the maximum number of workloads that the agent starts, stops or changes at the same
	// time; default 32. Most of a start is waiting: an engine needs three seconds to start a container that
	// is limited to ten millicores.
	Concurrency int
	// StepTimeout limits an action on a workload: the agent ends an action whose driver has reported no
	// progress for this time; default 15 min.
	StepTimeout time.Duration
	// ListTimeout bounds one call of List or Probe of a driver; default 30 s.
	ListTimeout time.Duration
	// UsageInterval is the time between two measurements of CPU, memory and traffic; default 10 s.
	UsageInterval time.Duration
	// DiskInterval is the time between two measurements of disk use by engines that have to read a
	// workload's files for it; default 1 min.
	DiskInterval time.Duration
	// RetryBase, RetryMax and RetryLimit set the retries of a failed action. The delay before retry n is
	// RetryBase·2^(n-1), at most RetryMax. There are at most RetryLimit attempts. The defaults are 5 s for
	// RetryBase, 2 min for RetryMax and 3 for RetryLimit.
	RetryBase, RetryMax time.Duration
	RetryLimit          int
	// StableAfter is the run time after which the failures of a workload are forgotten; default 30 s.
	StableAfter time.Duration

	// NoSessions makes the agent refuse the calls that run a command in a workload or open its console.
	// SessionIdle is the time without input and output after which such a session ends; 0 = never.
	NoSessions  bool
	SessionIdle time.Duration

	// Metrics, if set, is the registry in which the agent registers its persys_agent_* metrics.
	Metrics prometheus.Registerer
	// Logger is used by all parts of the agent; default slog.Default().
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
	if c.Control != nil && c.Advertise == "" {
		return errors.New("Advertise: must not be empty if Control is set, because schedulers dial this address")
	}
	return nil
}

// core returns those settings in c that package core needs.
func (c *Config) core() core.Settings {
	return core.Settings{
		Node: c.NodeID, Standalone: c.Control == nil, Fencer: c.Fencer != nil, Threshold: c.Threshold,
		Concurrency: c.Concurrency,
		Policy:      core.Policy{Base: c.RetryBase, Max: c.RetryMax, Limit: c.RetryLimit, Stable: c.StableAfter, Endless: c.Control == nil},
	}
}

// NodeID resolves the setting PERSYS_NODE_ID. Empty means the host name. "auto" is for machines that share
// a host name: it means the host name followed by the first 12 digits of the machine id, or of a hash of
// the first hardware address if there is no machine id.
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
