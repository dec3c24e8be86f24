package gateway

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replicaServer is a scheduler with fixed answers.
type replicaServer struct {
	controlv1.UnimplementedAgentControlServer
	clusterv1.UnimplementedClusterServer
	id, addr string
	leader   atomic.Value // id of the replica that leads
	grpc     *grpc.Server

	ended  chan string        // ids of workloads whose sessions have ended
	gaveUp chan error         // context errors of the calls that this replica left without an answer
	given  chan time.Duration // time until the deadline of each unanswered call; 0 for a call without a deadline

	mu    sync.Mutex
	calls []string
	last  metadata.MD
	apply *controlv1.ApplyWorkloadRequest
}

func startReplica(t *testing.T, id string, files *pki.Files) *replicaServer {
	t.Helper()
	s := &replicaServer{id: id, ended: make(chan string, 16), gaveUp: make(chan error, 16), given: make(chan time.Duration, 16)}
	s.leader.Store(id)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	opts := []grpc.ServerOption{grpc.UnaryInterceptor(s.note)}
	if files != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(files.ServerConfig(pki.ServerOptions{NextProtos: []string{"h2"}}))))
	}
	s.grpc = grpc.NewServer(opts...)
	controlv1.RegisterAgentControlServer(s.grpc, s)
	clusterv1.RegisterClusterServer(s.grpc, s)
	served := make(chan struct{})
	go func() { _ = s.grpc.Serve(l); close(served) }()
	t.Cleanup(func() { s.grpc.Stop(); <-served })
	return s
}

func (s *replicaServer) note(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	s.mu.Lock()
	if info.FullMethod != clusterv1.Cluster_Status_FullMethodName {
		s.calls = append(s.calls, info.FullMethod)
		s.last, _ = metadata.FromIncomingContext(ctx)
	}
	s.mu.Unlock()
	_ = grpc.SetTrailer(ctx, metadata.Pairs(dial.KeyStale, "true", dial.KeyAgeMS, "42"))
	return next(ctx, req)
}

func (s *replicaServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *replicaServer) Status(context.Context, *clusterv1.StatusRequest) (*clusterv1.StatusResponse, error) {
	return &clusterv1.StatusResponse{SelfId: s.id, LeaderId: s.leader.Load().(string), Mode: "normal"}, nil
}

func (s *replicaServer) ApplyWorkload(_ context.Context, r *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadResponse, error) {
	s.mu.Lock()
	s.apply = r
	s.mu.Unlock()
	if r.GetWorkloadId() == "" {
		return nil, status.Error(codes.InvalidArgument, "workload_id must be set")
	}
	if r.GetWorkloadId() == "frozen" {
		return &controlv1.ApplyWorkloadResponse{ErrorMessage: "the mode is degraded"}, nil
	}
	return &controlv1.ApplyWorkloadResponse{Success: true}, nil
}

func (s *replicaServer) GetWorkload(ctx context.Context, r *controlv1.GetWorkloadRequest) (*controlv1.GetWorkloadResponse, error) {
	switch r.GetWorkloadId() {
	case "gone":
		return nil, status.Errorf(codes.NotFound, "workload %q not found", r.GetWorkloadId())
	case "noleader":
		// The client (package dial) must not try such a call at another replica, which could not reach the agent
		// either.
		return nil, dial.Error(codes.Unavailable, dial.ReasonNoAgent, "no agent")
	case "late":
		return nil, status.Error(codes.DeadlineExceeded, "too late")
	case "hang":
		var given time.Duration
		if end, ok := ctx.Deadline(); ok {
			given = time.Until(end)
		}
		s.given <- given
		<-ctx.Done()
		s.gaveUp <- ctx.Err()
		return nil, ctx.Err()
	case "panic":
		panic("a bug")
	}
	return &controlv1.GetWorkloadResponse{Workload: &controlv1.WorkloadView{WorkloadId: r.GetWorkloadId(), Status: "Running"}}, nil
}

func (s *replicaServer) ListWorkloads(_ context.Context, r *controlv1.ListWorkloadsRequest) (*controlv1.ListWorkloadsResponse, error) {
	if r.GetStatus() == "" && r.GetNodeId() == "" {
		return &controlv1.ListWorkloadsResponse{}, nil
	}
	return &controlv1.ListWorkloadsResponse{Workloads: []*controlv1.WorkloadView{{WorkloadId: "w", Status: r.GetStatus(), AssignedNodeId: r.GetNodeId()}}}, nil
}

func (s *replicaServer) DeleteWorkload(context.Context, *controlv1.DeleteWorkloadRequest) (*controlv1.DeleteWorkloadResponse, error) {
	return &controlv1.DeleteWorkloadResponse{Success: true}, nil
}

func (s *replicaServer) RetryWorkload(context.Context, *controlv1.RetryWorkloadRequest) (*controlv1.RetryWorkloadResponse, error) {
	return &controlv1.RetryWorkloadResponse{Accepted: true}, nil
}

func (s *replicaServer) ListNodes(_ context.Context, r *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	return &controlv1.ListNodesResponse{Nodes: []*controlv1.NodeView{{NodeId: "node-a", Status: r.GetStatus()}}}, nil
}

func (s *replicaServer) GetNode(_ context.Context, r *controlv1.GetNodeRequest) (*controlv1.GetNodeResponse, error) {
	return &controlv1.GetNodeResponse{Node: &controlv1.NodeView{NodeId: r.GetNodeId()}}, nil
}

func (s *replicaServer) GetClusterSummary(context.Context, *controlv1.GetClusterSummaryRequest) (*controlv1.GetClusterSummaryResponse, error) {
	return &controlv1.GetClusterSummaryResponse{TotalNodes: 3}, nil
}

func (s *replicaServer) SetMode(context.Context, *clusterv1.SetModeRequest) (*clusterv1.SetModeResponse, error) {
	return &clusterv1.SetModeResponse{Mode: "normal"}, nil
}

// CollectGarbage sends the time until the call's deadline to the channel s.given.
func (s *replicaServer) CollectGarbage(ctx context.Context, _ *clusterv1.CollectGarbageRequest) (*clusterv1.CollectGarbageResponse, error) {
	end, _ := ctx.Deadline()
	s.given <- time.Until(end)
	return &clusterv1.CollectGarbageResponse{}, nil
}

// Exec opens a session, prints the command and the caller, echoes input, and ends with exit code 7 at the
// end of the input. For the workload "stay" it ends only when the caller leaves.
func (s *replicaServer) Exec(stream clusterv1.Cluster_ExecServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	o := m.GetOpen()
	if o.GetWorkloadId() == "gone" {
		return status.Error(codes.NotFound, "workload gone")
	}
	defer func() { s.ended <- o.GetWorkloadId() }()
	if err := stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Opened{Opened: &clusterv1.ExecOpened{NodeId: "node-a", IdleSeconds: 900}}}); err != nil {
		return err
	}
	say := func(text string) error {
		return stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Output{Output: &clusterv1.LogChunk{Data: []byte(text)}}})
	}
	if err := say(fmt.Sprintf("%s in %s", strings.Join(o.GetCommand(), " "), o.GetWorkloadId())); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case err != nil:
			return err
		case m.GetEndInput():
			return stream.Send(&clusterv1.ExecResponse{Message: &clusterv1.ExecResponse_Exit{Exit: &clusterv1.ExecExit{Code: 7}}})
		case m.GetInput() != nil:
			err = say(string(m.GetInput()))
		}
		if err != nil {
			return err
		}
	}
}

// Events sends three events after the requested number. If the request has follow, the stream then stays open and
// silent.
func (s *replicaServer) Events(r *clusterv1.EventsRequest, out clusterv1.Cluster_EventsServer) error {
	if r.GetWorkloadId() == "gone" {
		return status.Error(codes.NotFound, "workload gone")
	}
	for i := uint64(1); i <= 3; i++ {
		if err := out.Send(&clusterv1.Event{Seq: r.GetAfterSeq() + i, Type: "Placed", Message: fmt.Sprint("event ", i)}); err != nil {
			return err
		}
	}
	if r.GetFollow() {
		<-out.Context().Done()
	}
	if r.GetNodeId() == "broken" {
		return status.Error(codes.DataLoss, "compacted")
	}
	return nil
}

// newGateway returns a gateway without TLS for some clusters.
func newGateway(t *testing.T, change func(*Options), clusters ...Cluster) *Gateway {
	t.Helper()
	opt := Options{
		Clusters: clusters, ProbeInterval: 20 * time.Millisecond, CallTimeout: 10 * time.Second,
		Dial: func(ctx context.Context, o dial.Options) (*dial.Conn, error) {
			o.Insecure = true
			return dial.Dial(ctx, o)
		},
	}
	if change != nil {
		change(&opt)
	}
	g, err := New(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done; g.Close() })
	return g
}

func clusterOf(id, strategy string, replicas ...*replicaServer) Cluster {
	c := Cluster{ID: id, Name: "the " + id, Strategy: strategy}
	for _, r := range replicas {
		c.Schedulers = append(c.Schedulers, Scheduler{ID: r.id, Address: r.addr})
	}
	return c
}
