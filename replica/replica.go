package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cluster"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
	"github.com/persys/compute/replica/coredns"
	"github.com/persys/compute/replica/keyring"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/sched/control"
	"github.com/persys/compute/sched/leader"
	"github.com/persys/compute/telemetry"
)

// Replica is a running scheduler.
type Replica struct {
	cfg     Config
	log     *slog.Logger
	version string

	grpcLis, httpLis net.Listener
	node             *cluster.Node
	adapter          *raftAdapter
	keys             *keyring.Keyring
	loop             *leader.Loop
	agents           *rpc.Agents
	server           *rpc.Server
	dns              *dnsserver.Server // nil = off
	mirror           *mirror.Mirror    // nil = off
	etcd             *mirror.Client    // nil = off
	modes            *modes
	coredns          *coredns.Watch // nil = no server to watch
	registry         *prometheus.Registry
	http             *http.Server
	tls              *pki.Files
	metrics          *metrics
	traces           *telemetry.Traces // nil = off
	trust            *trust            // nil = certificates from files, or -insecure
	vault            *vault.Source     // nil = certificate not from Vault
	keyFile          pki.KeyFile
	gossip           gossipKeys
}

// Start opens the ports and the Raft node. Its errors name the setting. Call Run next: it ends everything
// that Start began.
func Start(ctx context.Context, cfg Config, version string, log *slog.Logger) (_ *Replica, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	log = log.With("scheduler", cfg.Name)
	r := &Replica{cfg: cfg, log: log, version: version, metrics: newMetrics(), registry: prometheus.NewRegistry()}
	if r.traces, err = telemetry.StartTraces(ctx, telemetry.TraceConfig{
		Endpoint: cfg.OTLPEndpoint, Insecure: cfg.OTLPInsecure, Service: "persys-scheduler", Version: version, Instance: cfg.Name, Log: log,
	}); err != nil {
		return nil, err
	}
	if r.keyFile, err = cfg.keyFile(); err != nil {
		return nil, err
	}
	if r.vault, err = cfg.vault(ctx, log); err != nil {
		return nil, err
	}
	if r.vault == nil {
		if r.trust, err = r.cfg.identity(ctx, r.keyFile, log); err != nil {
			return nil, err
		}
	}
	cfg = r.cfg
	if r.tls, err = cfg.files(); err != nil {
		return nil, cfg.adviseStart(err)
	}
	if cfg.Insecure {
		log.Warn("running with -insecure: plaintext, and every caller is an anonymous admin", "bind", cfg.BindAddr)
	}
	defer func() {
		if err != nil {
			r.abandon()
		}
	}()
	if r.grpcLis, err = listen("GRPC_PORT", cfg.BindAddr, cfg.GRPCPort); err != nil {
		return nil, err
	}
	if r.httpLis, err = listen("METRICS_PORT", cfg.BindAddr, cfg.MetricsPort); err != nil {
		return nil, err
	}
	if err := r.openDNS(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR %q: %w", cfg.DataDir, err)
	}
	if err := r.openNode(ctx); err != nil {
		return nil, err
	}
	if r.keys, err = keyring.Open(r.keyFile, r.node.Store(), log); err != nil {
		return nil, fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	return r, r.openServer()
}

func (r *Replica) openNode(ctx context.Context) error {
	cfg := &r.cfg
	gossipKey, gossipKeys, err := r.gossipKey()
	if err != nil {
		return err
	}
	nc := cluster.Config{
		Name:            cfg.Name,
		DataDir:         cfg.DataDir,
		RaftBind:        cfg.RaftAddr,
		GossipBind:      cfg.GossipAddr,
		RaftAdvertise:   cfg.advertiseOf(cfg.RaftAddr),
		GossipAdvertise: cfg.advertiseOf(cfg.GossipAddr),
		GRPCAdvertise:   cfg.grpcAdvertise(r.grpcLis.Addr()),
		HTTPAdvertise:   cfg.advertise(r.httpLis.Addr()),
		DNSAdvertise:    r.dnsAdvertise(),
		Join:            cfg.Join,
		BootstrapExpect: cfg.BootstrapExpect,
		AllowSolo:       cfg.Insecure || cfg.Init,
		ClusterID:       cfg.ClusterID,
		Shard:           cfg.Shard,
		GossipKey:       gossipKey,
		GossipKeys:      gossipKeys,
		Timing:          cluster.Timing{Heartbeat: cfg.RaftHeartbeat},
		Logger:          r.log,
		Version:         r.version,
		FeatureLevel:    fsm.FeatureLevel,
		Metrics:         r.metrics,
	}
	if r.tls != nil {
		nc.TLS = cluster.TLSFromFiles(r.tls)
	}
	r.node, err = cluster.Open(ctx, nc)
	return cfg.advise(err)
}

// gossipKey returns the key that encrypts gossip and all keys that decrypt it. Gossip is only a hint: every
// replica that it names is verified on the Raft port.
func (r *Replica) gossipKey() (seals []byte, all [][]byte, err error) {
	if r.cfg.Insecure {
		return nil, nil, nil
	}
	key, err := r.keyFile.Load()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE %q does not exist: copy that of another scheduler, or, for a new cluster, make one with `persysctl cluster-key create FILE` and copy it to every scheduler", r.cfg.ClusterKey)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	ring, err := r.gossipRing(key)
	if err != nil {
		return nil, nil, err
	}
	r.gossip.ids = ringIDs(ring)
	seals, all = ring.Raw(key)
	return seals, all, nil
}

func (r *Replica) openServer() error {
	cfg := &r.cfg
	self := rpc.Peer{ID: r.node.ID(), Name: cfg.Name, GRPCAddr: cfg.grpcAdvertise(r.grpcLis.Addr())}
	r.adapter = newRaftAdapter(r.node, self, r.metrics.leaderChanges.Inc)
	r.adapter.from, r.adapter.gossip = newTracer(r.traces), r.gossip.installed
	agentTLS := r.tls
	if cfg.AgentTLS == "false" {
		agentTLS = nil
	} else if cfg.AgentTLS == "true" && r.tls == nil {
		return errors.New("SCHEDULER_AGENT_TLS_ENABLED is true, but -insecure loads no certificates")
	}
	tuning := sched.Tuning{
		Policy:           sched.Policy(cfg.Policy),
		UnavailableGrace: int64(cfg.UnavailableGrace),
		MissingGrace:     int64(cfg.MissingGrace),
		FailureGrace:     int64(cfg.FailureGrace),
		ApplyTimeout:     int64(cfg.ApplyTimeout),
		VMApplyTimeout:   int64(cfg.VMApplyTimeout),
		DeleteTimeout:    int64(cfg.DeleteTimeout),
	}
	r.agents = rpc.NewAgents(r.node.Store(), agentTLS, r.keys, append(r.traces.DialOptions(),
		grpc.WithChainUnaryInterceptor(r.metrics.agentUnary), grpc.WithChainStreamInterceptor(r.metrics.agentStream))...)
	lcfg := leader.Config{
		Settings: control.Settings{
			Tuning:            tuning,
			HeartbeatInterval: cfg.HeartbeatInterval,
			NodeLease:         cfg.NodeLease,
			OrderDeadline:     cfg.AgentRPCTimeout,
			DriftInterval:     cfg.DriftInterval,
		},
		Inspector: r.agents,
		Logger:    r.log,
		Metrics:   r.metrics,
	}
	if err := lcfg.Validate(); err != nil {
		return err
	}
	var agents leader.Agents = r.agents
	if t := r.adapter.from; t != nil {
		agents = tracedAgents{agents, t}
	}
	r.loop = leader.New(lcfg, r.adapter, agents, r.node.Store())
	var err error
	r.server, err = rpc.NewServer(rpc.Config{
		Replica:      r.adapter,
		Leader:       r.loop,
		Agents:       r.agents,
		Keys:         r.keys,
		Mirror:       r.control(),
		TLS:          r.tls,
		Enrol:        r.trust != nil,
		CertLife:     cfg.CertLife,
		Gossip:       r.gossips,
		Limits:       cfg.limits(),
		Limited:      r.metrics.limited,
		Tuning:       tuning,
		Shard:        cfg.Shard,
		Version:      r.version,
		Server:       r.traces.ServerOptions(),
		PeerDial:     r.traces.DialOptions(),
		Interceptors: []grpc.UnaryServerInterceptor{r.metrics.unary},
		StreamInts:   []grpc.StreamServerInterceptor{r.metrics.stream},
		Logger:       r.log,
	})
	if err != nil {
		return err
	}
	if err := r.openMirror(); err != nil {
		return err
	}
	r.http = &http.Server{Handler: r.mux(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	return nil
}

// GRPCAddr is the published gRPC address.
func (r *Replica) GRPCAddr() string { return r.cfg.grpcAdvertise(r.grpcLis.Addr()) }

// GossipAddr is the address that another replica can put in its Join.
func (r *Replica) GossipAddr() string { return r.node.GossipAddr() }

// HTTPAddr is the address of /health and /metrics.
func (r *Replica) HTTPAddr() string { return r.httpLis.Addr().String() }

// Node returns the Raft node.
func (r *Replica) Node() *cluster.Node { return r.node }

// abandon closes everything that a failed Start opened.
func (r *Replica) abandon() {
	for _, l := range []net.Listener{r.grpcLis, r.httpLis} {
		if l != nil {
			_ = l.Close()
		}
	}
	if r.dns != nil {
		_ = r.dns.Close()
	}
	if r.agents != nil {
		r.agents.Close()
	}
	if r.etcd != nil {
		_ = r.etcd.Close()
	}
	if r.node != nil {
		_ = r.node.Close()
	}
}

// Run serves until ctx ends or the replica halts. Then it transfers leadership, stops serving and closes
// the node. It returns nil if ctx ended, or if this replica left the cluster on request.
func (r *Replica) Run(ctx context.Context) error {
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var g errgroup.Group
	g.Go(func() error {
		r.adapter.watch(stop)
		return nil
	})
	g.Go(func() error {
		if err := r.server.GRPC().Serve(limits.Listen(r.grpcLis, r.cfg.limits(), r.metrics.limited)); err != nil && stop.Err() == nil {
			cancel(fmt.Errorf("gRPC on %s: %w", r.grpcLis.Addr(), err))
		}
		return nil
	})
	g.Go(func() error {
		if err := r.http.Serve(limits.Listen(r.httpLis, limits.Limits{Connections: 1024, PerHost: 256}, r.metrics.limited)); err != nil && !errors.Is(err, http.ErrServerClosed) && stop.Err() == nil {
			cancel(fmt.Errorf("HTTP on %s: %w", r.httpLis.Addr(), err))
		}
		return nil
	})
	g.Go(func() error {
		err := r.node.Lead(stop, func(ctx context.Context, s cluster.LeadershipTerm) error {
			return r.lead(ctx, s.Epoch)
		})
		if err != nil && stop.Err() == nil {
			cancel(err)
		}
		return nil
	})
	g.Go(func() error {
		r.keys.Run(stop, r.node.IsLeader, r.node.Propose, r.otherKeys)
		return nil
	})
	g.Go(func() error {
		r.modes.watch(stop)
		return nil
	})
	if r.tls != nil {
		g.Go(func() error {
			r.runTrust(stop)
			return nil
		})
	}
	if r.trust != nil {
		g.Go(func() error {
			if err := r.keepIdentity(stop); err != nil && stop.Err() == nil {
				cancel(fmt.Errorf("renewing the certificate: %w", err))
			}
			return nil
		})
	}
	if r.vault != nil {
		g.Go(func() error {
			r.vault.Run(stop)
			return nil
		})
	}
	if r.dns != nil {
		g.Go(func() error {
			if err := r.dns.Run(stop, r.node.Store(), r.hints); err != nil && stop.Err() == nil {
				cancel(fmt.Errorf("DNS on %s: %w", r.dns.Addr(), err))
			}
			return nil
		})
	}
	g.Go(func() error {
		select {
		case <-stop.Done():
		case <-r.node.Halted():
			err := r.node.Err()
			if errors.Is(err, cluster.ErrLeft) {
				r.log.Info("left the cluster", "name", r.cfg.Name, "raft_id", r.node.ID())
				cancel(err)
			}
			cancel(r.cfg.advise(err))
		}
		return nil
	})
	r.server.SetServing(true)
	r.log.Info("serving", "name", r.cfg.Name, "grpc", r.GRPCAddr(), "http", r.HTTPAddr(), "raft_id", r.node.ID(), "data", r.cfg.DataDir)
	<-stop.Done()
	err := context.Cause(stop)
	if ctx.Err() != nil || errors.Is(err, cluster.ErrLeft) {
		err = nil
	}
	return errors.Join(err, r.shutdown(&g, err == nil))
}

// shutdown transfers leadership first, so that callers find another leader at once, then stops the servers,
// then the node.
func (r *Replica) shutdown(g *errgroup.Group, graceful bool) error {
	r.server.SetServing(false)
	if graceful && r.node.IsLeader() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := r.node.TransferLeadership(ctx, ""); err != nil {
			r.log.Debug("leadership was not transferred", "err", err)
		}
		cancel()
	}
	r.server.Close(2 * time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.http.Shutdown(ctx); err != nil {
		_ = r.http.Close()
	}
	_ = g.Wait()
	r.agents.Close()
	var err error
	if r.etcd != nil {
		err = r.etcd.Close()
	}
	err = errors.Join(err, r.node.Close())
	flush, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	return errors.Join(err, r.traces.Close(flush))
}

// otherKeys asks the leader, or all other replicas in parallel, for the cluster key.
func (r *Replica) otherKeys(ctx context.Context, leader bool) []keyring.Offer {
	var mu sync.Mutex
	var out []keyring.Offer
	var wg sync.WaitGroup
	lead, _ := r.adapter.Leader()
	r.node.Store().View().Replicas(func(p *fsm.Replica) bool {
		if p.ID == r.node.ID() || p.GRPCAddr == "" || leader && p.ID != lead.ID {
			return true
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			key, err := r.askKey(ctx, p.GRPCAddr)
			if err != nil {
				r.log.Debug("no cluster key from another scheduler", "addr", p.GRPCAddr, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, key)
		})
		return true
	})
	wg.Wait()
	return out
}

func (r *Replica) askKey(ctx context.Context, addr string) (keyring.Offer, error) {
	cc, err := dial.To(r.tls, addr, pki.Peer{Role: pki.RoleScheduler})
	if err != nil {
		return keyring.Offer{}, err
	}
	defer cc.Close()
	resp, err := clusterv1.NewClusterClient(cc).ClusterKey(ctx, &clusterv1.ClusterKeyRequest{})
	return keyring.Offer{Text: resp.GetExported(), Candidate: resp.GetCandidate()}, err
}
