package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cluster"
	"github.com/persys/compute/config"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
	"github.com/persys/compute/replica/auditsink"
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
	profiles         net.Listener // listener of the profiles; nil without SCHEDULER_PPROF
	node             *cluster.Node
	adapter          *raftAdapter
	keys             *keyring.Keyring
	loop             *leader.Loop
	agents           *rpc.Agents
	server           *rpc.Server
	dns              *dnsserver.Server            // DNS server; nil if DNS is turned off
	mirror           atomic.Pointer[openedMirror] // etcd mirror; nil if no etcd is attached
	modes            *modes
	coredns          *coredns.Watch // watch of CoreDNS servers; nil if there are none to watch
	registry         *prometheus.Registry
	http             *http.Server
	tls              *pki.Files
	metrics          *metrics
	traces           *telemetry.Traces // exporter of traces; nil if traces are turned off
	// Certificate from the cluster's own CA; nil if certificates come from files, or with -insecure.
	trust   *trust
	vault   *vault.Source // certificate from Vault; nil if it does not come from Vault
	keyFile pki.KeyFile
	// keyFault is the error of the last step of a rotation of the cluster key; empty if there was none.
	keyFault atomic.Pointer[string]
	gossip   gossipKeys
	audits   *auditsink.Exporter // exporter of the audit logs; nil if they are not exported
}

// Start opens the ports and the Raft node. An error names the setting that caused it. Call Run next: Run ends
// everything that Start began. If the data is damaged and the settings allow a repair, Start returns only
// after the repair, which may have to wait until the other replicas are back.
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
	if cfg.Init { // before a CA is made
		if err := r.cfg.chooseOutward(); err != nil {
			return nil, err
		}
	}
	if r.vault == nil {
		if r.trust, err = r.cfg.identity(ctx, r.keyFile, log); err != nil {
			return nil, err
		}
	}
	if err := r.cfg.chooseOutward(); err != nil {
		return nil, err
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
	if err := r.listen(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR %q: %w", cfg.DataDir, err)
	}
	err = r.openNode(ctx)
	if errors.Is(err, cluster.ErrCorrupt) && cfg.RepairsItself() {
		err = r.repair(ctx, err)
	}
	if err != nil {
		return nil, cfg.advise(err)
	}
	if r.keys, err = keyring.Open(r.keyFile, r.node.Store(), log); err != nil {
		return nil, fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	if cfg.AuditSink != "" {
		if r.audits, err = auditsink.New(auditsink.Config{
			Address: cfg.AuditSink, Token: cfg.AuditToken, Place: filepath.Join(cfg.DataDir, "audit.places"),
			View: func() fsm.View { return r.node.Store().View() }, Log: log, Metrics: r.metrics,
		}); err != nil {
			return nil, err
		}
	}
	return r, r.openServer()
}

// listen opens the gRPC, HTTP and DNS ports.
func (r *Replica) listen() (err error) {
	cfg := &r.cfg
	if r.grpcLis, err = config.Listen("GRPC_PORT", cfg.BindAddr, cfg.GRPCPort); err != nil {
		return err
	}
	if r.httpLis, err = config.Listen("METRICS_PORT", cfg.BindAddr, cfg.MetricsPort); err != nil {
		return err
	}
	return r.openDNS()
}

func (r *Replica) openNode(ctx context.Context) error {
	nc, err := r.nodeConfig()
	if err != nil {
		return err
	}
	r.node, err = cluster.Open(ctx, nc)
	return err
}

func (r *Replica) nodeConfig() (cluster.Config, error) {
	cfg := &r.cfg
	gossipKey, gossipKeys, err := r.gossipKey()
	if err != nil {
		return cluster.Config{}, err
	}
	nc := cluster.Config{
		Name:            cfg.Name,
		DataDir:         cfg.DataDir,
		RaftBind:        cfg.RaftAddr,
		GossipBind:      cfg.GossipAddr,
		RaftAdvertise:   cfg.advertiseOf(cfg.RaftAddr),
		GossipAdvertise: cfg.advertiseOf(cfg.GossipAddr),
		OutwardIP:       cfg.outward,
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
		Timing:          cluster.Timing{Heartbeat: cfg.RaftHeartbeat, DiskStall: cfg.DiskStall},
		Logger:          r.log,
		Version:         r.version,
		FeatureLevel:    fsm.FeatureLevel,
		Memory:          memoryMiB(),
		Metrics:         r.metrics,
	}
	if r.tls != nil {
		nc.TLS = cluster.TLSFromFiles(r.tls)
	}
	return nc, nil
}

// gossipKey returns the key that encrypts gossip, and all keys that decrypt it. Gossip is not used to authenticate
// replicas: a replica whose address comes from gossip is authenticated when it is called on the Raft port.
func (r *Replica) gossipKey() (seals []byte, all [][]byte, err error) {
	if r.cfg.Insecure {
		return nil, nil, nil
	}
	key, err := r.keyFile.LoadAll()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE %q does not exist: copy the key file of another scheduler, or, for a new cluster, make a key file with `persysctl cluster-key create FILE` and copy that file to every scheduler", r.cfg.ClusterKey)
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

		PreemptionCooldown: int64(cfg.PreemptionCooldown),
		PreemptionBudget:   cfg.PreemptionBudget,
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
		Scaler:    scaler{r},
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
		Replica:       r.adapter,
		Leader:        r.loop,
		Agents:        r.agents,
		Keys:          r.keys,
		KeyReport:     r.keyReport,
		KeyStatus:     r.keyStatus,
		ShareKey:      r.shareKey,
		Mirror:        r.control(),
		TLS:           r.tls,
		Enrol:         r.trust != nil,
		CertLife:      cfg.CertLife,
		UserCertLife:  cfg.UserCertLife,
		Gossip:        r.gossips,
		Limits:        cfg.limits(),
		NodeStreams:   cfg.LimitNodeStreams,
		AuditCommands: cfg.AuditCommands,
		Limited:       r.metrics.limited,
		Tuning:        tuning,
		Shard:         cfg.Shard,
		NetworkPool:   cfg.NetworkPool,
		Stacks:        cfg.Stacks,
		Version:       r.version,
		Server:        r.traces.ServerOptions(),
		PeerDial:      r.traces.DialOptions(),
		Interceptors:  []grpc.UnaryServerInterceptor{r.metrics.unary, r.ifNoCopy},
		StreamInts:    []grpc.StreamServerInterceptor{r.metrics.stream, r.streamIfNoCopy},
		Logger:        r.log,
	})
	if err != nil {
		return err
	}
	if err := r.openMirror(); err != nil {
		return err
	}
	r.http = httpServer(r.mux())
	if cfg := r.cfg; cfg.Pprof {
		if r.profiles, err = listenProfiles(cfg.DataDir); err != nil {
			return err
		}
	}
	return nil
}

// GRPCAddr returns the gRPC address that this replica publishes.
func (r *Replica) GRPCAddr() string { return r.cfg.grpcAdvertise(r.grpcLis.Addr()) }

// GossipAddr returns the address of this replica for the Join setting of another replica.
func (r *Replica) GossipAddr() string { return r.node.GossipAddr() }

// HTTPAddr returns the listen address of /health and /metrics.
func (r *Replica) HTTPAddr() string { return r.httpLis.Addr().String() }

// Node returns the Raft node.
func (r *Replica) Node() *cluster.Node { return r.node }

// abandon is called when Start fails. It closes everything that Start has opened.
func (r *Replica) abandon() {
	for _, l := range []net.Listener{r.grpcLis, r.httpLis, r.profiles} {
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
	if m := r.mirror.Load(); m != nil {
		_ = m.client.Close()
	}
	if r.node != nil {
		_ = r.node.Close()
	}
}

// Run serves until ctx ends or the replica halts. Then it transfers leadership, stops serving and closes the
// node. It returns nil if ctx ended, or if this replica left the cluster on request.
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
		if err := r.serveHTTP(r.http); err != nil && !errors.Is(err, http.ErrServerClosed) && stop.Err() == nil {
			cancel(fmt.Errorf("HTTP on %s: %w", r.httpLis.Addr(), err))
		}
		return nil
	})
	if r.profiles != nil {
		profiles := profileServer()
		defer context.AfterFunc(stop, func() { _ = profiles.Close() })()
		g.Go(func() error {
			if err := profiles.Serve(r.profiles); err != nil && !errors.Is(err, http.ErrServerClosed) && stop.Err() == nil {
				cancel(fmt.Errorf("profiles on %s: %w", r.profiles.Addr(), err))
			}
			return nil
		})
	}
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
		r.followKeys(stop)
		return nil
	})
	g.Go(func() error {
		r.modes.watch(stop)
		return nil
	})
	if r.audits != nil {
		g.Go(func() error {
			r.audits.Run(stop)
			return nil
		})
	}
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
	answers, stopAnswers := context.WithCancel(stop)
	defer stopAnswers()
	if r.dns != nil {
		g.Go(func() error {
			if err := r.dns.Run(answers, r.node.Store(), r.hints); err != nil && answers.Err() == nil {
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
			if errors.Is(err, cluster.ErrCopied) {
				// The replica has halted. Keep the process running, so that /health and `persysctl
				// status` show the error.
				r.log.Error("this scheduler does not take part in its cluster", "err", err)
				stopAnswers()
				r.server.SetServing(false)
				<-stop.Done()
				return nil
			}
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

// shutdown first transfers leadership, so that callers find another leader at once. Then it stops the
// servers, and then the node.
func (r *Replica) shutdown(g *errgroup.Group, graceful bool) error {
	r.server.SetServing(false)
	r.node.Stopping()
	if graceful && r.node.IsLeader() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := r.node.TransferLeadership(ctx, ""); err != nil {
			r.log.Debug("leadership was not transferred", "err", err)
		}
		cancel()
	}
	grace := 2 * time.Second
	if _, stalled := r.node.DiskPending(); stalled {
		grace = 100 * time.Millisecond // close at once: calls that wait for the hanging disk would not end
	}
	r.server.Close(grace)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.http.Shutdown(ctx); err != nil {
		_ = r.http.Close()
	}
	_ = g.Wait()
	r.agents.Close()
	var err error
	if m := r.mirror.Load(); m != nil {
		err = m.client.Close()
	}
	err = errors.Join(err, r.node.Close())
	flush, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	return errors.Join(err, r.traces.Close(flush))
}

// otherKeys asks the leader, or all other replicas in parallel, for their cluster key, and returns the
// answers.
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
				r.log.Debug("no other scheduler sent the cluster key", "addr", p.GRPCAddr, "err", err)
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
