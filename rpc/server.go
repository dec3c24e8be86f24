package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
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
	"github.com/persys/compute/stack"
)

// Peer is another replica to which calls can be forwarded.
type Peer struct {
	ID       string
	Name     string
	GRPCAddr string
}

// Replica is the part of the Raft node that this package uses.
type Replica interface {
	// Propose commits commands. Its errors wrap ErrNotLeader, ErrBusy, ErrTooLarge or ErrUnknownOutcome.
	Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error)
	// Confirm proves that this replica led at some moment after the call began.
	Confirm(ctx context.Context) (index uint64, err error)
	Store() *store.Store
	Self() Peer
	// Leader returns the leader according to this replica, which may be wrong for a moment; false if it knows none.
	Leader() (Peer, bool)
	// LeaderChanged returns a channel that is closed when the result of Leader may have changed.
	LeaderChanged() <-chan struct{}
	// LastContact returns the time at which this replica last heard from a leader or last led, whichever is later.
	LastContact() time.Time
	// Frozen returns the reason why this replica itself cannot accept writes; "" if it can.
	Frozen() string
	// Describe fills in the fields of a StatusResponse that only the Raft node knows.
	Describe(*clusterv1.StatusResponse)
	TransferLeadership(ctx context.Context, to string) error
	RemoveReplica(ctx context.Context, id string, force bool) error
	// Dismiss asks a running replica to leave the cluster and stop.
	Dismiss(ctx context.Context, id string) error
	// Restore replaces the whole state by the result of build, which is called with the present state. It returns the
	// errors that Propose returns, and the errors of build.
	Restore(ctx context.Context, build func(present fsm.State) (fsm.State, error)) (index uint64, err error)
}

// Leader is the part of the leader's loop that this package uses; *leader.Loop implements it.
type Leader interface {
	Heartbeat(ctx context.Context, hb sched.Heartbeat) (sched.Lease, error)
	Registered(ctx context.Context, node string) (sched.Lease, error)
	LeaseOf(node string) (expires, heard int64, ok bool)
	UsageOf(node string) (sched.NodeUsage, bool)
	PoolsUsedOf(node string) map[string]int64 // PoolsUsedOf returns the used GB of each storage pool, by name; the map must not be changed
	WorkloadUsageOf(node, workload string) (sched.WorkloadUsage, bool)
	MoveReportOf(node, workload string) (sched.MoveReport, bool)
	AutoscaleOf(group string) (sched.Autoscaled, bool)
}

// Keys gives access to the cluster key, which seals (encrypts) secrets.
type Keys interface {
	// Key returns the cluster key. If this replica has no key, the error says how to obtain it.
	Key() (*pki.Key, error)
	// Offered returns the key that this replica gives to another scheduler. candidate is true if this replica has
	// generated the key and the key's id is not committed as the cluster's key yet.
	Offered() (key *pki.Key, candidate bool, err error)
	// Held returns the key with an id if this replica has stored it, otherwise nil.
	Held(id string) *pki.Key
	// Prepare makes and stores a new key, and returns its id. Keep stores a further key. Discard deletes a key of
	// Prepare or Keep that the state does not name.
	Prepare() (id string, err error)
	Keep(key *pki.Key) error
	Discard(id string) error
}

// Config is the configuration of a Server. If TLS is nil (-insecure), every caller is the anonymous admin,
// and forwarded identities are ignored.
type Config struct {
	Replica Replica
	Leader  Leader
	Agents  *Agents
	Keys    Keys
	// KeyReport describes the keys that this replica holds, for other schedulers. KeyStatus describes the rotation of
	// the cluster key, and ShareKey stores a key on a majority of the replicas before the state names it; only the
	// leader calls these two.
	KeyReport func() *clusterv1.ClusterKeyResponse
	KeyStatus func(ctx context.Context) *clusterv1.ClusterKeyStatusResponse
	ShareKey  func(ctx context.Context, key *pki.Key) error
	Mirror    Mirror // the etcd mirror; nil if the cluster can have none
	TLS       *pki.Files
	// Enrol allows connections without a certificate, which can then only call Trust.Enrol.
	Enrol bool
	// CertLife is the validity of the certificates of programs, default 7 days. UserCertLife is the validity
	// of the certificates of people, default 24 hours.
	CertLife, UserCertLife time.Duration
	// Gossip returns the gossip addresses at which a new scheduler can join.
	Gossip  func() []string
	Tuning  sched.Tuning // settings of the planner, for explanations and plans of placements
	Shard   string
	Version string
	// NetworkPool is the IPv4 prefix from which networks get their subnets; empty means DefaultNetworkPool.
	NetworkPool string
	// Stacks loads Compose stacks when they are applied or planned. If it is nil, stacks are loaded only on
	// the nodes.
	Stacks *stack.Loader

	// Limits applies to each caller except schedulers, and only with TLS. NodeStreams is the maximum number
	// of concurrent log streams and sessions that this replica relays from one node; 0 means no limit.
	// Limited is called with the reason of each refusal.
	Limits      limits.Limits
	NodeStreams int
	Limited     func(reason string)

	// If AuditCommands is true, the audit log contains the command lines of sessions, and otherwise only a hash of each
	// command line.
	AuditCommands bool

	HoldWrites time.Duration // longest time for which a write waits for a leader; default 3 s
	HoldReads  time.Duration // longest time for which a read waits for a leader before it gets a stale answer; default 1 s

	Interceptors []grpc.UnaryServerInterceptor // interceptors that run before all others, for instance for metrics
	StreamInts   []grpc.StreamServerInterceptor
	Server       []grpc.ServerOption // further options of the gRPC server, for instance for traces of calls
	PeerDial     []grpc.DialOption   // options of the connections to other replicas

	Logger *slog.Logger
	Now    func() time.Time
}

// Server implements the services of control.v1 and cluster.v1 on one replica.
type Server struct {
	controlv1.UnimplementedAgentControlServer
	clusterv1.UnimplementedClusterServer
	clusterv1.UnimplementedTrustServer

	cfg      Config
	replica  Replica
	leader   Leader
	agents   *Agents
	store    *store.Store
	log      *slog.Logger
	now      func() time.Time
	peers    *peers
	health   *health.Server
	grpc     *grpc.Server
	started  time.Time
	bundle   atomic.Pointer[bundle]
	names    nameCache
	checking atomic.Int32 // number of calls of CheckNetwork
	// joins counts the joins from each network, and refusals the refused calls. They limit how many log entries can be
	// caused by callers without rights.
	joins    *limits.Peers
	refusals *refusals
	// recency records how recent this replica's state is. The rights of people are checked by that state.
	// unadmitted limits the requests to the leader that calls of callers without an admission can cause.
	recency    recency
	unadmitted *rate.Limiter
	// unknownAccounts limits the requests to the leader that wrong tokens of accounts can cause.
	unknownAccounts *rate.Limiter
	// Counters of the calls of each caller, of the streams of each person, and of the streams that are
	// relayed from each node.
	callers, streams, relays *limits.Peers
	// Counters per person: reads counts calls that agents must answer, checks counts checks of networks and traces of
	// connections (reads.go).
	reads, checks *limits.Peers
	// parsing limits the total size of the large requests that are being parsed to parseRoom bytes.
	parsing *semaphore.Weighted
	// balancing allows one search at a time for moves that balance the load of the nodes, because a search needs much
	// CPU time.
	balancing *semaphore.Weighted
}

// NewServer creates the gRPC server and registers every service. The caller serves it and calls Close in the
// end.
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
	if cfg.UserCertLife <= 0 {
		cfg.UserCertLife = DefaultUserCertLife
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg, replica: judging{cfg.Replica}, leader: cfg.Leader, agents: cfg.Agents,
		store: cfg.Replica.Store(), log: cfg.Logger, now: cfg.Now,
		peers: newPeers(cfg.TLS, cfg.PeerDial...), health: health.NewServer(), started: cfg.Now(),
		joins: limits.NewPeers(limits.Limits{Calls: joinRate}, cfg.Limited), refusals: newRefusals(),
		recency: recency{since: time.Now().Add(-time.Hour)}, unadmitted: rate.NewLimiter(unadmittedRate, unadmittedBurst),
		unknownAccounts: rate.NewLimiter(unadmittedRate, unadmittedBurst),
		callers:         limits.NewPeers(cfg.Limits, cfg.Limited), streams: limits.NewStreams(cfg.Limits, cfg.Limited),
		reads:   limits.NewPeers(limits.Limits{Concurrent: readsOfPerson, Calls: readsOfPersonRate}, cfg.Limited),
		checks:  limits.NewPeers(limits.Limits{Concurrent: 1}, cfg.Limited),
		relays:  limits.NewStreams(limits.Limits{Streams: cfg.NodeStreams}, cfg.Limited),
		parsing: semaphore.NewWeighted(parseRoom), balancing: semaphore.NewWeighted(1),
	}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(dial.Codec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(dial.MaxAnswer),
		grpc.MaxConcurrentStreams(4096),
		grpc.WriteBufferSize(64 << 10),
		grpc.ReadBufferSize(64 << 10),
		// Handle calls in worker goroutines, because a worker keeps its grown stack for later calls. If all workers are
		// busy, a call gets a goroutine of its own.
		grpc.NumStreamWorkers(512),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.ChainUnaryInterceptor(append(cfg.Interceptors, limits.Unary(cfg.Logger), s.unary)...),
		grpc.ChainStreamInterceptor(append(cfg.StreamInts, limits.Stream(cfg.Logger), s.stream)...),
	}
	opts = append(append(opts, limits.ServerOptions()...), cfg.Server...)
	if cfg.TLS != nil {
		// Close each connection after a while, so that both sides make a new handshake with their renewed certificates.
		opts = append(opts, grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionAge: dial.ConnectionAge(min(cfg.CertLife, cfg.UserCertLife)),
		}))
		opts = append(opts, grpc.Creds(limits.Identifying(credentials.NewTLS(serverTLS(cfg.TLS, cfg.Enrol)))))
	}
	s.grpc = grpc.NewServer(opts...)
	controlv1.RegisterAgentControlServer(s.grpc, s)
	clusterv1.RegisterClusterServer(s.grpc, s)
	clusterv1.RegisterTrustServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

// maxMessage is the maximum size of a request in bytes. One call may contain many workloads of up to 512 KiB
// each; one log command has at most 1 MiB.
const maxMessage = 8 << 20

func serverTLS(f *pki.Files, enrol bool) *tls.Config {
	return f.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}, Optional: enrol})
}

// GRPC returns the gRPC server, for example to serve a listener.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// SetServing sets the status in the standard gRPC health service. A replica is serving while it can answer
// reads.
func (s *Server) SetServing(ok bool) {
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		st = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", controlv1.AgentControl_ServiceDesc.ServiceName, clusterv1.Cluster_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, st)
	}
}

// Close stops the server gracefully. When the time d has passed, it closes all streams and connections that are still
// open.
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
	s.refusals.close()
	s.peers.close()
}
