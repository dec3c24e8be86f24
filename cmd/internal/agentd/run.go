// Package agentd builds an agent from settings: drivers, the connection to the schedulers, the agent API
// and the HTTP endpoints. Main runs one; `persys dev` runs one beside its schedulers. Package agent is
// the part that can be embedded, with drivers of the embedder's choice.
package agentd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/persys/compute/agent"
	store "github.com/persys/compute/agent/credentials"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/libvirt"
	"github.com/persys/compute/agent/driver/sim"
	"github.com/persys/compute/agent/nodenet"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/config"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/enrol"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/stack"
	"github.com/persys/compute/telemetry"
)

// Run runs an agent until ctx ends. The workloads keep running. Errors name the invalid setting.
func Run(ctx context.Context, cfg Config, version string, log *slog.Logger) error {
	node, version, err := cfg.begin(version)
	if err != nil {
		return err
	}
	devices, err := cfg.devices()
	if err != nil {
		return err
	}
	taints, err := cfg.taints()
	if err != nil {
		return err
	}
	switch {
	case cfg.Insecure:
		log.Warn("running with -insecure: plaintext, and every caller may do everything", "bind", cfg.GRPCAddr)
	case !cfg.TLSEnabled: // legacy v1 installations use PERSYS_TLS_ENABLED=false, and other machines connect to such agents
		log.Warn("running with PERSYS_TLS_ENABLED=false: plaintext, and every caller may do everything", "bind", cfg.GRPCAddr)
	}
	if err := os.MkdirAll(filepath.Dir(cfg.StatePath), 0o700); err != nil {
		return fmt.Errorf("PERSYS_STATE_PATH %q: %w", cfg.StatePath, err)
	}
	keeps, err := cfg.identity(ctx, node, log)
	if err != nil {
		return err
	}
	fromVault, err := cfg.vault(ctx, node, log)
	if err != nil {
		return err
	}
	if fromVault != nil {
		defer alongside(ctx, fromVault.Run)()
	}
	var files *pki.Files
	if cfg.TLSEnabled || !cfg.SchedulerInsecure {
		if files, err = cfg.files(log); err != nil {
			return err
		}
	}
	lis, err := config.Listen("PERSYS_GRPC_PORT", cfg.GRPCAddr, cfg.GRPCPort)
	if err != nil {
		return err
	}
	defer lis.Close() // Run closes the listener too; a second Close does no harm
	httpLis, err := config.Listen("PERSYS_METRICS_PORT", cfg.GRPCAddr, cfg.MetricsPort)
	if err != nil {
		return err
	}
	defer httpLis.Close()

	traces, err := telemetry.StartTraces(ctx, telemetry.TraceConfig{
		Endpoint: cfg.OTLPEndpoint, Insecure: cfg.OTLPInsecure, Service: cfg.OTelService, Version: version, Instance: node, Log: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := traces.Close(flush); err != nil {
			log.Debug("the last traces were not sent", "err", err)
		}
	}()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	acfg := agent.Config{
		NodeID:            node,
		StatePath:         cfg.StatePath,
		ClusterID:         cfg.ClusterID,
		Shard:             cfg.Shard,
		Version:           version,
		FeatureLevel:      1,
		Listener:          lis,
		Advertise:         cfg.Endpoint,
		MetricsPort:       httpLis.Addr().(*net.TCPAddr).Port,
		Labels:            cfg.labels(),
		Taints:            taints,
		Devices:           devices,
		Limits:            cfg.limits(),
		ReconcileInterval: cfg.ReconcileInterval,
		Storage:           cfg.storage(),
		NoSessions:        !cfg.Exec,
		SessionIdle:       cfg.ExecIdle,
		GC:                cfg.gc(),
		Threshold:         cfg.Threshold,
		ReservedCPU:       int64(cfg.ReservedCPU),
		ReservedMemory:    int64(cfg.ReservedMemory),
		ReservedDisk:      int64(cfg.ReservedDisk),
		Metrics:           reg,
		Logger:            log,
		// Schedulers send pings on idle connections; see package rpc.
		ServerOptions: []grpc.ServerOption{
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: dial.KeepaliveMinTime, PermitWithoutStream: true}),
			grpc.KeepaliveParams(pings()),
		},
	}
	acfg.ServerOptions = append(acfg.ServerOptions, traces.ServerOptions()...)
	acfg.Tracer = traces.Tracer("agent")
	if err := secure(&acfg, &cfg, files); err != nil {
		return err
	}
	acfg.Peer = func(endpoint, of string) (*grpc.ClientConn, error) {
		if !cfg.TLSEnabled {
			return dial.To(nil, endpoint, pki.Peer{Role: pki.RoleAgent, Node: of})
		}
		return dial.To(files, endpoint, pki.Peer{Role: pki.RoleAgent, Node: of})
	}
	if !cfg.Standalone {
		conn, err := schedulers(ctx, &cfg, files, log)
		if err != nil {
			return err
		}
		defer conn.Close()
		if files != nil && !cfg.SchedulerInsecure {
			keeper := enrol.Keeper{Files: files, Conn: conn, Hosts: cfg.hosts(), Log: log, RevokedOnly: !keeps}
			if keeps {
				keeper.Identity = cfg.identityStore()
			}
			defer alongside(ctx, keeper.Run)()
		}
		acfg.Control = controlv1.NewAgentControlClient(conn)
		if acfg.Advertise == "" {
			if acfg.Advertise, err = cfg.advertised(lis.Addr()); err != nil {
				return err
			}
		}
		acfg.Discovered = func(addrs []string, _ string) { conn.Learn(addrs) }
	}
	if err := (&store.Store{File: cfg.CredsFile}).Check(); err != nil {
		return err
	}
	if acfg.Ceiling, err = cfg.ceiling(); err != nil {
		return err
	}
	if acfg.Fencer, err = cfg.fencerFor(version, log); err != nil {
		return err
	}
	if cfg.Docker && cfg.Simulate == "" && !cfg.Standalone {
		nodenet.Configure(&acfg, cfg.DockerHost, log)
	}
	vms := machines{
		offered: func() error { return offersVMs(&cfg) },
		open:    func(b agent.Binding) (driver.Driver, error) { return machineDriver(&cfg, b, log) },
		log:     log,
	}
	vms.away = vms.offered()
	if vms.away != nil && cfg.VM {
		log.Info("virtual machines are not offered", "reason", vms.away.Error())
		acfg.NotOffered, acfg.Late = map[driver.Kind]string{driver.VM: vms.away.Error()}, vms.late
	}
	a, err := agent.New(acfg, func(b agent.Binding) ([]driver.Driver, error) { return drivers(&cfg, vms.away == nil, log)(b) })
	if err != nil {
		return err
	}
	defer a.Close()
	return serve(ctx, a, httpLis, reg, log.With("node", node))
}

// alongside runs the function run in a goroutine. The returned function end stops run and waits for its
// return.
func alongside(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { run(ctx) })
	return func() {
		stop()
		wg.Wait()
	}
}

// advertised returns the address at which schedulers reach a listener: the listener's own address, or, if
// that is a wildcard such as 0.0.0.0, the address from which this machine sends packets to the schedulers.
func (c *Config) advertised(bound net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", fmt.Errorf("address %q: %w", bound, err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return bound.String(), nil
	}
	if host, err = config.Outward("PERSYS_AGENT_GRPC_ENDPOINT", "IP:"+port, c.dialled()); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

// dialled returns the addresses of the schedulers, or of the DNS servers that resolve the schedulers' names; none if
// neither is configured.
func (c *Config) dialled() []string {
	list := strings.Join(c.Schedulers, ",")
	if list == "" {
		list = c.Discovery
	}
	t, err := dial.ParseTarget(list)
	if err != nil {
		return nil // if the lookup fails here, the connection to the schedulers will report it
	}
	return append(t.Addrs, t.DNS...)
}

func (c *Config) files(log *slog.Logger) (*pki.Files, error) {
	mapping, err := c.mapping()
	if err != nil {
		return nil, err
	}
	return pki.LoadFiles(pki.FilesConfig{CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey, Mapping: mapping, Log: log,
		Settings: pki.Settings{Insecure: "-insecure"}})
}

func (c *Config) mapping() (pki.Mapping, error) {
	return pki.PeerMapping(c.TLSLegacyNames, c.TLSPeers)
}

// strangerLife is how long a connection to the agent may live whose client has shown no certificate.
const strangerLife = 10 * time.Second

// limits returns the limits of the agent's API. Clients that have shown no certificate have a quarter of all
// connections, and an eighth of this quarter from one /24 or /64 network, so that strangers cannot keep schedulers out.
func (c *Config) limits() limits.Limits {
	out := limits.Limits{Calls: c.LimitCalls, Concurrent: c.LimitConcurrent, Streams: c.LimitStreams, Connections: c.LimitConnections, PerHost: c.LimitPerHost}
	if c.TLSEnabled && c.LimitConnections > 0 {
		out.Strangers = max(1, c.LimitConnections/4)
		out.StrangersPerNetwork, out.StrangerLife = max(1, out.Strangers/8), strangerLife
	}
	return out
}

// secure configures in acfg that the agent API is served with mutual TLS, with the certificate in files.
func secure(acfg *agent.Config, cfg *Config, files *pki.Files) error {
	if !cfg.TLSEnabled {
		return nil
	}
	mapping, err := cfg.mapping()
	if err != nil {
		return err
	}
	acfg.Authorize, acfg.Identify, acfg.Self = &mapping, files.Identify, files.Identity
	tls := files.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}})
	connections := pings()
	connections.MaxConnectionAge = dial.ConnectionAge(pki.Life(files.Leaf()))
	acfg.ServerOptions = append(acfg.ServerOptions, grpc.Creds(limits.Identifying(dial.Credentials(files, tls))),
		// Connections are closed regularly, so that both sides soon use renewed certificates.
		grpc.KeepaliveParams(connections))
	return nil
}

// pings end the calls of a machine that has died, such as a node that copies a volume from this one: it would keep one of the
// few places of package mover.
func pings() keepalive.ServerParameters {
	return keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}
}

// schedulers prepares the connection to the schedulers.
func schedulers(ctx context.Context, cfg *Config, files *pki.Files, log *slog.Logger) (*dial.Conn, error) {
	opt := dial.Options{
		Addrs:     cfg.Schedulers,
		Discovery: cfg.Discovery,
		Insecure:  cfg.SchedulerInsecure,
		UserAgent: "persys-agent",
		CacheFile: cfg.StatePath + ".schedulers",
		// After one second without an answer the agent tries another scheduler, long before the lease of
		// this node ends. A lease can be as short as three seconds, and the agent must reach the next
		// leader in that time to renew it.
		StallAfter:   time.Second,
		ProbeTimeout: time.Second,
		Log:          log,
	}
	if !cfg.SchedulerInsecure {
		opt.TLS = files
	}
	return dial.Dial(ctx, opt)
}

// drivers returns a function that makes the drivers of all kinds of workloads. The agent calls the function when it
// knows the id of its cluster, which the drivers need.
func drivers(cfg *Config, vms bool, log *slog.Logger) agent.Factory {
	engine := engineDrivers(cfg, log)
	return func(b agent.Binding) ([]driver.Driver, error) {
		all, err := engine(b)
		if err != nil || !vms {
			return all, err
		}
		vm, err := machineDriver(cfg, b, log)
		if err != nil {
			errs := []error{err}
			for _, d := range all {
				if c, ok := d.(io.Closer); ok {
					errs = append(errs, c.Close())
				}
			}
			return nil, errors.Join(errs...)
		}
		return append(all, vm), nil
	}
}

// machineDriver makes the driver of virtual machines.
func machineDriver(cfg *Config, b agent.Binding, log *slog.Logger) (driver.Driver, error) {
	vm, err := libvirt.New(libvirt.Options{
		URI: cfg.LibvirtURI, ClusterID: b.ClusterID, NodeID: b.NodeID, Content: b.Content,
		Owns:   func(id driver.ID) bool { return b.Taken(driver.VM, id) },
		Images: cfg.VMImages, VNC: cfg.VMScreens, Acceleration: cfg.VMAccel, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("PERSYS_LIBVIRT_URI %q: %w", cfg.LibvirtURI, err)
	}
	return vm, nil
}

// machines adds the driver of virtual machines to a running agent when libvirt is installed or started after the
// agent.
type machines struct {
	offered func() error // returns why virtual machines cannot be offered, nil if they can
	open    func(agent.Binding) (driver.Driver, error)
	away    error // why virtual machines are not offered now; nil once they are
	log     *slog.Logger
}

// late is the function Late of an agent.Config: the first call after libvirt has become available returns the driver of
// virtual machines, and all other calls return no driver.
func (m *machines) late(b agent.Binding) ([]driver.Driver, error) {
	if m.away == nil || m.offered() != nil {
		return nil, nil
	}
	vm, err := m.open(b)
	if err != nil {
		return nil, err
	}
	m.away = nil
	m.log.Info("libvirt is available: virtual machines are offered from now on")
	return []driver.Driver{vm}, nil
}

// offersVMs returns nil if this agent offers virtual machines, and otherwise the reason why not. If the socket of a
// libvirt daemon exists but the daemon is down, virtual machines are offered and their driver reports the daemon.
func offersVMs(cfg *Config) error {
	switch {
	case !cfg.VM:
		return errors.New("PERSYS_VM_ENABLED is false")
	case cfg.Simulate != "":
		return errors.New("PERSYS_SIMULATE is set")
	}
	return libvirt.Available(cfg.LibvirtURI)
}

// engineDrivers returns a function that makes the drivers of the Docker engine or, if the settings ask for it, of
// simulated engines.
func engineDrivers(cfg *Config, log *slog.Logger) agent.Factory {
	creds := &store.Store{File: cfg.CredsFile, Docker: cfg.DockerConf}
	return func(b agent.Binding) ([]driver.Driver, error) {
		if cfg.Simulate != "" {
			return simulated(cfg, b)
		}
		if !cfg.Docker {
			return nil, nil
		}
		devices, err := cfg.devices()
		if err != nil {
			return nil, err
		}
		d, err := docker.New(docker.Options{
			Host: cfg.DockerHost, ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns, Content: b.Content,
			Credentials: creds.Registry, Progress: b.Progress, Pulled: b.Pulled, Networks: b.Networks, Sealer: b.Sealer, Logger: log, Devices: devices,
		})
		if err != nil {
			return nil, fmt.Errorf("DOCKER_HOST %q: %w", cfg.DockerHost, err)
		}
		if !cfg.Compose {
			return []driver.Driver{d}, nil
		}
		stacks, err := compose.New(compose.Options{
			Host: cfg.DockerHost, Dir: cfg.ComposeDir, ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns,
			Credentials: creds.Registry, GitCredentials: creds.Git, Progress: b.Progress, Pulled: b.Pulled,
			Binary: strings.Fields(cfg.ComposeBin), Loader: stack.NewLoader(stack.Options{}), Sealer: b.Sealer, Logger: log,
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("PERSYS_COMPOSE_DIR %q: %w", cfg.ComposeDir, err), d.Close())
		}
		return []driver.Driver{d, stacks}, nil
	}
}

// simulated returns drivers of engines that only simulate workloads, one engine for each kind of workload.
func simulated(cfg *Config, b agent.Binding) ([]driver.Driver, error) {
	var out []driver.Driver
	for _, e := range []struct {
		kind driver.Kind
		dir  string
	}{{driver.Container, cfg.Simulate}, {driver.Compose, cfg.Simulate + "-compose"}, {driver.VM, cfg.Simulate + "-vm"}} {
		engine, err := sim.NewEngine(sim.Options{Dir: e.dir, Kind: e.kind})
		if err != nil {
			return nil, fmt.Errorf("PERSYS_SIMULATE %q: %w", cfg.Simulate, err)
		}
		out = append(out, engine.Driver(driver.Identity{ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns}))
	}
	return out, nil
}

// serve runs the agent and its HTTP endpoints until ctx ends.
func serve(ctx context.Context, a *agent.Agent, lis net.Listener, reg *prometheus.Registry, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.Handle("GET /health", a.Health())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	err := a.Run(ctx)
	stop, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if serr := srv.Shutdown(stop); serr != nil {
		_ = srv.Close()
	}
	if herr := <-done; herr != nil && !errors.Is(herr, http.ErrServerClosed) {
		log.Warn("the HTTP server ended early", "err", herr)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}
