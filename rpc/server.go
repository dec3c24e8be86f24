package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/sched"
)

// Peer is another replica, or this one, as calls are routed to it.
type Peer struct {
	ID       string
	Name     string
	GRPCAddr string
}

// Replica is the Raft node as this package needs it.
type Replica interface {
	// Propose commits commands; errors wrap ErrNotLeader, ErrBusy, ErrTooLarge
	// or ErrUnknownOutcome.
	Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error)
	// Confirm proves leadership at a moment after the call began.
	Confirm(ctx context.Context) (index uint64, err error)
	Store() *store.Store
	Self() Peer
	// Leader is who leads, as far as this replica knows.
	Leader() (Peer, bool)
	// LeaderChanged is closed when Leader's answer may have changed.
	LeaderChanged() <-chan struct{}
	// LastContact is when this replica last heard from a leader (or led).
	LastContact() time.Time
	// Frozen is why this replica alone cannot accept writes, "" if it can.
	Frozen() string
	// Describe fills in what only the Raft node knows of a status.
	Describe(*clusterv1.StatusResponse)
	TransferLeadership(ctx context.Context, to string) error
	RemoveReplica(ctx context.Context, id string, force bool) error
	// Dismiss has a live replica leave by itself.
	Dismiss(ctx context.Context, id string) error
	// Restore replaces the whole state by what build makes of the present one;
	// errors are Propose's, or build's.
	Restore(ctx context.Context, build func(present fsm.State) (fsm.State, error)) (index uint64, err error)
}

// Leader is the leader's loop as this package needs it; *leader.Loop is one.
type Leader interface {
	Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error)
	Registered(ctx context.Context, node string) (sched.Lease, error)
	LeaseOf(node string) (expires, heard int64, ok bool)
	UsageOf(node string) (sched.NodeUsage, bool)
	PoolsUsedOf(node string) map[string]int64 // GB by name; read only
	WorkloadUsageOf(node, workload string) (sched.WorkloadUsage, bool)
}

// Keys holds the cluster key that seals secrets.
type Keys interface {
	// Key returns the cluster key; the error says how to get one.
	Key() (*pki.Key, error)
	// Offered returns the key to hand over to another scheduler, and whether it is
	// one that was made by itself and is not the cluster's yet.
	Offered() (key *pki.Key, candidate bool, err error)
}

// Config of a Server. TLS nil means -insecure: every caller is an anonymous
// admin and forwarded identities are ignored.
type Config struct {
	Replica Replica
	Leader  Leader
	Agents  *Agents
	Keys    Keys
	Mirror  Mirror // nil = there is none
	TLS     *pki.Files
	// Enrol lets callers without a certificate in, for Trust.Enrol alone.
	Enrol bool
	// CertLife is how long the certificates live that are issued here; 7 days.
	CertLife time.Duration
	// Gossip lists the gossip addresses that a new scheduler joins.
	Gossip  func() []string
	Tuning  sched.Tuning // for explanations
	Shard   string
	Version string

	// Limits of each caller, schedulers aside, where there is TLS; Limited is told of
	// what was refused by them.
	Limits  limits.Limits
	Limited func(reason string)

	HoldWrites time.Duration // 3 s: how long a call waits for a leader
	HoldReads  time.Duration // 1 s: then a read that asked for no level is stale

	Interceptors []grpc.UnaryServerInterceptor // metrics and the like, outermost
	StreamInts   []grpc.StreamServerInterceptor
	Server       []grpc.ServerOption // whoever follows the calls that are answered
	PeerDial     []grpc.DialOption   // and those to other replicas

	Logger *slog.Logger
	Now    func() time.Time
}

// Server answers control.v1 and cluster.v1 on one replica.
type Server struct {
	controlv1.UnimplementedAgentControlServer
	clusterv1.UnimplementedClusterServer
	clusterv1.UnimplementedTrustServer

	cfg     Config
	replica Replica
	leader  Leader
	agents  *Agents
	store   *store.Store
	log     *slog.Logger
	now     func() time.Time
	peers   *peers
	health  *health.Server
	grpc    *grpc.Server
	started time.Time
	bundle  atomic.Pointer[bundle]
	// What strangers may have written into the log.
	joins, refusals, beats *rate.Limiter
	callers                *limits.Peers
}

// NewServer builds the gRPC server with every service registered; the caller
// serves it and calls Close.
func NewServer(cfg Config) (*Server, error) {
	if cfg.HoldWrites <= 0 {
		cfg.HoldWrites = 3 * time.Second
	}
	if cfg.HoldReads <= 0 {
		cfg.HoldReads = time.Second
	}
	if cfg.CertLife <= 0 {
		cfg.CertLife = DefaultCertLife
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg, replica: cfg.Replica, leader: cfg.Leader, agents: cfg.Agents,
		store: cfg.Replica.Store(), log: cfg.Logger, now: cfg.Now,
		peers: newPeers(cfg.TLS, cfg.PeerDial...), health: health.NewServer(), started: cfg.Now(),
		joins: rate.NewLimiter(joinRate, joinBurst), refusals: rate.NewLimiter(refusalRate, refusalBurst), beats: rate.NewLimiter(beatRate, beatBurst),
		callers: limits.NewPeers(cfg.Limits, cfg.Limited),
	}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(dial.Codec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(dial.MaxAnswer),
		grpc.MaxConcurrentStreams(4096),
		grpc.WriteBufferSize(64 << 10),
		grpc.ReadBufferSize(64 << 10),
		// Workers keep the stacks that a call grows; beyond them calls get goroutines.
		grpc.NumStreamWorkers(512),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.ChainUnaryInterceptor(append(cfg.Interceptors, limits.Unary(cfg.Logger), s.unary)...),
		grpc.ChainStreamInterceptor(append(cfg.StreamInts, limits.Stream(cfg.Logger), s.stream)...),
	}
	opts = append(append(opts, limits.ServerOptions()...), cfg.Server...)
	if cfg.TLS != nil {
		// Connections are made anew now and then, with the certificates of the day.
		opts = append(opts, grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionAge: dial.ConnectionAge(cfg.CertLife),
		}))
		opts = append(opts, grpc.Creds(credentials.NewTLS(serverTLS(cfg.TLS, cfg.Enrol))))
	}
	s.grpc = grpc.NewServer(opts...)
	controlv1.RegisterAgentControlServer(s.grpc, s)
	clusterv1.RegisterClusterServer(s.grpc, s)
	clusterv1.RegisterTrustServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

// maxMessage bounds one request: many workloads in one call, each at most
// 512 KiB, in one log command of at most 1 MiB.
const maxMessage = 8 << 20

func serverTLS(f *pki.Files, enrol bool) *tls.Config {
	return f.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}, Optional: enrol})
}

// GRPC is the underlying server, to Serve and to stop.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// SetServing flips the standard health service: serving while this replica can
// answer reads.
func (s *Server) SetServing(ok bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		st = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", controlv1.AgentControl_ServiceDesc.ServiceName, clusterv1.Cluster_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, st)
	}
}

// Close ends streams and connections: gracefully within d, then at once.
func (s *Server) Close(d time.Duration) {
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.grpc.Stop()
		<-done
	}
	s.peers.close()
}
