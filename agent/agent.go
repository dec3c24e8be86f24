package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/garbage"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/memfile"
	"github.com/persys/compute/agent/message"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/mover"
	"github.com/persys/compute/agent/names"
	"github.com/persys/compute/agent/network"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/server"
	"github.com/persys/compute/agent/session"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/rpc/limits"
)

// Agent runs the workloads of one machine. New opens the state file, and Run does the work.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	store   *store.Store
	host    host.Host
	storage *volume.Manager
	metrics *metrics.Metrics
	used    usage.Table
	history usage.History
	runner  *runner.Runner
	garbage *garbage.Collector
	session *session.Session
	server  *server.Server
	overlay network.Overlay // nil if the node takes part in no networks
	moves   *mover.Mover    // nil if the node takes part in no moves of volumes
}

// New opens the state file and creates the agent. It starts nothing. An agent that is never run must be
// closed.
func New(cfg Config, factory Factory) (*Agent, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{cfg: cfg, log: cfg.Logger, host: cfg.Host}
	var err error
	if a.host == nil {
		if a.host, err = host.New("/"); err != nil {
			return nil, fmt.Errorf("agent: measuring the machine: %w", err)
		}
	}
	if a.store, err = store.Open(cfg.StatePath, cfg.Volatile); err != nil {
		return nil, err
	}
	if err := a.wire(factory); err != nil {
		return nil, errors.Join(err, a.store.Close())
	}
	return a, nil
}

// wire creates the parts of the agent (core, runner, session, server and others) and passes to each part those
// that it calls.
func (a *Agent) wire(factory Factory) error {
	cfg := &a.cfg
	saved, err := a.store.Load()
	if err == nil {
		err = a.identify(&saved)
	}
	if err == nil {
		err = a.openStorage()
	}
	if err != nil {
		return fmt.Errorf("state file %s: %w", cfg.StatePath, err)
	}
	source := metrics.Source{Host: a.host, State: func() core.State { return a.runner.State() }, Used: &a.used}
	if a.metrics, err = metrics.New(cfg.Metrics, source); err != nil {
		return fmt.Errorf("agent: registering the metrics: %w", err)
	}
	a.garbage = &garbage.Collector{
		Config: cfg.GC, Store: a.store, Storage: a.storage, Metrics: a.metrics, Logger: a.log,
		ListTimeout: cfg.ListTimeout, StepTimeout: cfg.StepTimeout,
	}
	var networks *network.Keeper
	if cfg.Overlay != nil {
		if a.overlay, err = cfg.Overlay(Parts{a.store, a.metrics}); err == nil {
			networks, err = network.New(a.store, a.overlay, saved.Meta.Epoch.ClusterID, a.log)
		}
		if err == nil && cfg.Names != nil {
			err = cfg.Names.Open(a.store, saved.Meta.Epoch.ClusterID)
		}
		if err != nil {
			return fmt.Errorf("state file %s: networks: %w", cfg.StatePath, err)
		}
	}
	files := memfile.Open(cfg.StatePath, memfile.Bases()...)
	known := map[string]bool{}
	for _, in := range saved.Intents {
		known[in.ID] = true
	}
	if err := files.Keep(func(workload string) bool { return known[workload] }); err != nil {
		return fmt.Errorf("agent: removing old secrets and configs from memory: %w", err)
	}
	ceiling := cfg.Ceiling
	ceiling.Private = append(slices.Clone(ceiling.Private), cfg.StatePath, cfg.StatePath+".key", files.Root())
	a.runner, err = runner.New(runner.Config{
		Core: cfg.core(), Store: a.store, Saved: saved, Storage: a.storage, Files: files, Host: a.host, Factory: factory, Late: cfg.Late,
		Fencer: cfg.Fencer, Metrics: a.metrics, Used: &a.used, Tracer: cfg.Tracer, Logger: a.log, Swept: a.garbage.Periodic, Ceiling: ceiling,
		ReconcileInterval: cfg.ReconcileInterval, UsageInterval: cfg.UsageInterval, DiskInterval: cfg.DiskInterval,
		StepTimeout: cfg.StepTimeout, ListTimeout: cfg.ListTimeout, Networks: a.overlay,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.garbage.Runner = a.runner
	if cfg.Peer != nil {
		a.moves = mover.New(mover.Config{Node: cfg.NodeID, Storage: a.storage, Workload: func(id string) *core.Workload { return a.runner.State().Get(id) }, Dial: cfg.Peer, Logger: a.log})
	}
	a.server = server.New(server.Config{
		Moves:  a.moves,
		Runner: a.runner, Garbage: a.garbage, Storage: a.storage, Host: a.host, Key: a.store.Key(), Metrics: a.metrics,
		Logger: a.log, NodeID: cfg.NodeID, Version: cfg.Version, NotOffered: cfg.NotOffered, Room: a.room,
		Limits: cfg.Limits, Authorize: cfg.Authorize, Identify: cfg.Identify, Self: cfg.Self,
		NoSessions: cfg.NoSessions, SessionIdle: cfg.SessionIdle, Networks: networks, Names: cfg.Names, History: &a.history,
	})
	a.session = session.New(session.Config{
		Moves:   a.moves,
		Control: cfg.Control, Runner: a.runner, Host: a.host, Storage: a.storage, Metrics: a.metrics, Logger: a.log,
		Discovered: cfg.Discovered, NodeID: cfg.NodeID, Version: cfg.Version, Advertise: cfg.Advertise, MetricsPort: cfg.MetricsPort, MemoryFiles: files.Root() != "",
		Labels: cfg.Labels, Taints: cfg.Taints, Devices: cfg.Devices, FeatureLevel: cfg.FeatureLevel, Threshold: cfg.Threshold,
		ReservedCPU: cfg.ReservedCPU, ReservedMemory: cfg.ReservedMemory, ReservedDisk: cfg.ReservedDisk,
		Networks: networks, Networking: cfg.Networking, HeldPorts: cfg.HeldPorts, Names: cfg.Names,
	})
	return nil
}

// identify checks that the state file was written for the configured node, cluster and shard. If the node id
// changed, the schedulers would consider the node with the old id lost, and start its workloads on other
// nodes too.
func (a *Agent) identify(s *core.Saved) error {
	m := &s.Meta
	known, now := m.Node, a.cfg.NodeID
	if known != now {
		if n := len(s.Intents); known != "" && n > 0 {
			return fmt.Errorf("the file holds %d workloads of node %q, but the node id is now %q (from PERSYS_NODE_ID, agent_config.yaml or the host name): set PERSYS_NODE_ID=%s, or drain node %s before you change its id",
				n, known, now, known, known)
		}
		m.Node = now
		if err := a.store.Write(core.Store{Meta: m}); err != nil {
			return err
		}
	}
	if want := a.cfg.ClusterID; want != "" {
		if known := m.Epoch.ClusterID; known != "" && known != want {
			return fmt.Errorf("the file belongs to cluster %q, but the configuration names cluster %q", known, want)
		}
		m.Epoch.ClusterID = want
	}
	if want := a.cfg.Shard; want != "" {
		if known := m.Epoch.Shard; known != "" && known != want {
			return fmt.Errorf("the file belongs to shard %q, but PERSYS_SCHEDULER_SHARD names shard %q", known, want)
		}
		m.Epoch.Shard = want
	}
	return nil
}

// openStorage creates the manager of this machine's volumes.
func (a *Agent) openStorage() error {
	have, err := a.store.Volumes()
	if err != nil {
		return err
	}
	cfg := a.cfg.Storage
	cfg.Node, cfg.Logger = a.cfg.NodeID, a.log
	if len(cfg.Pools) == 0 {
		dir, err := filepath.Abs(filepath.Dir(a.cfg.StatePath))
		if err != nil {
			return err
		}
		cfg.Pools = []volume.PoolConfig{{Name: volume.DefaultPool, Path: filepath.Join(dir, "volumes", "local")}}
	}
	a.storage, err = volume.New(cfg, a.store, have)
	return err
}

// Close closes the state file of an agent that was never run. After Run it does nothing.
func (a *Agent) Close() error { return errors.Join(a.runner.Close(), a.store.Close()) }

// Run runs the agent until ctx ends, and then returns nil. After a permanent failure Run returns an error. In
// both cases workloads keep running, and Run closes the state file and the listener. Run may be called only
// once.
func (a *Agent) Run(ctx context.Context) (err error) {
	stop := context.AfterFunc(ctx, a.runner.Stop)
	defer stop()
	defer func() { err = errors.Join(err, a.Close()) }()
	if err := a.runner.Start(); err != nil {
		if a.cfg.Listener != nil {
			err = errors.Join(err, a.cfg.Listener.Close())
		}
		return fmt.Errorf("agent: %w", err)
	}
	life := a.runner.Life()
	failed := make(chan error, 2)
	if a.cfg.Listener != nil {
		a.serve(life, a.cfg.Listener, failed)
	}
	a.runner.Spawn(func() {
		if err := a.host.Run(life); err != nil && life.Err() == nil {
			failed <- fmt.Errorf("agent: measuring the machine: %w", err)
		}
	})
	a.runner.Spawn(func() { a.recordUsage(life) })
	if a.overlay != nil {
		a.runner.Spawn(func() { a.overlay.Run(life) })
		if source, ok := a.cfg.Control.(names.Source); ok && a.cfg.Names != nil {
			a.runner.Spawn(func() {
				defer a.cfg.Names.Close()
				a.cfg.Names.Follow(life, source, a.cfg.NodeID, func() string { return a.runner.State().Meta.Epoch.ClusterID })
			})
		}
	}
	if a.moves != nil {
		a.runner.Spawn(func() { a.moves.Run(life) })
	}
	if a.cfg.Control != nil {
		a.runner.Spawn(func() { a.session.Run(life) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// recordUsage adds the resource usage of the machine and of its workloads to the history, at the interval of the
// measurements, until ctx ends.
func (a *Agent) recordUsage(ctx context.Context) {
	tick := time.NewTicker(a.cfg.UsageInterval)
	defer tick.Stop()
	var seen uint64
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			u := a.host.Usage()
			a.history.Add("", "", now, usage.Counters{
				Millicores: float64(u.CPUMillicores), Memory: u.MemoryMB << 20, NetReceived: u.NetReceived, NetSent: u.NetSent,
			})
			var fresh []usage.Reading
			fresh, seen = a.used.After(seen)
			for _, r := range fresh {
				a.history.Add(string(r.ID), r.Instance, r.At, usage.Counters{
					Millicores: r.Millicores, Memory: r.Memory, NetReceived: r.NetReceived, NetSent: r.NetSent,
				})
			}
			a.history.Forget(now)
		}
	}
}

// serve serves the API on l until ctx ends.
func (a *Agent) serve(ctx context.Context, l net.Listener, failed chan<- error) {
	options := append(limits.ServerOptions(), a.cfg.ServerOptions...)
	options = append(options, grpc.ChainUnaryInterceptor(limits.Unary(a.log)), grpc.ChainStreamInterceptor(limits.Stream(a.log)))
	if a.cfg.Authorize != nil {
		options = append(options, a.server.Authorize(*a.cfg.Authorize)...)
	}
	s := grpc.NewServer(options...)
	a.server.Register(s)
	a.runner.Spawn(func() {
		if err := s.Serve(limits.Listen(l, a.cfg.Limits, a.metrics.Limited)); err != nil && ctx.Err() == nil {
			failed <- fmt.Errorf("agent: serving %s: %w", l.Addr(), err)
		}
	})
	a.runner.Spawn(func() {
		<-ctx.Done()
		// An open log stream would block a graceful stop for ever, so a hard stop follows after a second.
		stop := time.AfterFunc(time.Second, s.Stop)
		s.GracefulStop()
		stop.Stop()
	})
}

// API returns the agent's gRPC service for callers in the same process.
func (a *Agent) API() agentv1.AgentServiceServer { return a.server }

// Register registers the agent's API, reflection and the standard health service on s. Run does that
// itself if Config.Listener is set.
func (a *Agent) Register(s *grpc.Server) { a.server.Register(s) }

// Session returns the state of the agent's connection to the schedulers: registration and heartbeats.
func (a *Agent) Session() SessionState { return a.session.State() }

// Epoch returns the highest epoch that this agent has seen. An epoch identifies a leadership term of the
// schedulers.
func (a *Agent) Epoch() Epoch { return a.runner.State().Meta.Epoch }

// Snapshot returns the status of every workload: the same list that the API call ListWorkloads returns.
func (a *Agent) Snapshot() []*agentv1.WorkloadStatus {
	return message.Statuses(a.runner.State(), agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED)
}

// offered returns how much of a resource the node offers to workloads: Threshold percent of the amount that
// is not reserved for the machine. Schedulers compute the same number from the registration.
func (c *Config) offered(total, reserved int64) int64 {
	rest := max(0, total-reserved)
	if c.Threshold == 0 {
		return rest
	}
	return rest/100*int64(c.Threshold) + rest%100*int64(c.Threshold)/100
}

// room returns the CPU, memory and disk that this node offers to workloads. Disk is the sum over all storage
// pools, because an order does not say which pool it uses. If Threshold is 0, room returns nil, and no order is
// refused for lack of resources.
func (a *Agent) room() *[3]core.Room {
	if a.cfg.Threshold == 0 {
		return nil
	}
	totals := a.host.Totals()
	disk := core.Room{Resource: "disk", Unit: "GB", Reserved: a.cfg.ReservedDisk}
	for i, p := range a.runner.Pools() {
		kept := int64(0)
		if i == 0 {
			kept = a.cfg.ReservedDisk
		}
		disk.Total += p.TotalGB
		disk.Offer += a.cfg.offered(p.TotalGB, kept)
	}
	return &[3]core.Room{
		{Resource: "CPU", Unit: "millicores", Total: totals.CPUMillicores, Reserved: a.cfg.ReservedCPU, Offer: a.cfg.offered(totals.CPUMillicores, a.cfg.ReservedCPU)},
		{Resource: "memory", Unit: "MiB", Total: totals.MemoryMB, Reserved: a.cfg.ReservedMemory, Offer: a.cfg.offered(totals.MemoryMB, a.cfg.ReservedMemory)},
		disk,
	}
}

// Health serves /health. The status code is 200 while the agent works, and the body lists problems. An
// unhealthy engine does not change the code, because a restart of the agent does not repair it.
func (a *Agent) Health() http.Handler {
	type answer struct {
		Status     string            `json:"status"` // "healthy" or "degraded"
		Node       string            `json:"node"`
		Cluster    string            `json:"cluster,omitempty"`
		Version    string            `json:"version"`
		Runtimes   map[string]string `json:"runtimes"`
		Registered bool              `json:"registered"`
		Draining   bool              `json:"draining"`
		Scheduler  string            `json:"scheduler,omitempty"` // last error of a call to the schedulers
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		state, talk := a.runner.State(), a.Session()
		out := answer{
			Status: "healthy", Node: a.cfg.NodeID, Cluster: state.Meta.Epoch.ClusterID, Version: a.cfg.Version,
			Runtimes: map[string]string{}, Registered: talk.Registered, Draining: talk.Draining, Scheduler: talk.Problem,
		}
		for _, e := range state.Engines() {
			out.Runtimes[string(e.Kind)] = "healthy"
			if !e.Works() {
				out.Runtimes[string(e.Kind)], out.Status = "unhealthy: "+e.Cause(), "degraded"
			}
		}
		if a.cfg.Control != nil && !out.Registered {
			out.Status = "degraded"
		}
		raw, err := json.Marshal(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(raw)
	})
}
