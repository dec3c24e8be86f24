// Package server is the agent's API, persys.agent.v1.AgentService (contract/wire-agent.md).
//
//   - An order is answered once it is durable. It is carried out later.
//   - Reads are answered from the agent's memory, which events and periodic lists of the engines keep up to date.
//   - If Config.Authorize is set, each role may make the calls that Permit allows.
//   - Log streams and sessions end with the agent.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/garbage"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/message"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/mover"
	"github.com/persys/compute/agent/names"
	"github.com/persys/compute/agent/network"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/usage"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// Config configures a Server. Metrics, Authorize, Identify and Self may be nil.
type Config struct {
	Runner  *runner.Runner
	Garbage *garbage.Collector
	Storage *volume.Manager
	Host    host.Host
	History *usage.History // nil if the agent keeps none
	Key     *pki.Key       // key of the hash that identifies a specification
	Metrics *metrics.Metrics
	Logger  *slog.Logger

	NodeID, Version string
	NotOffered      map[driver.Kind]string
	// Room returns how much CPU, memory and disk this node offers to workloads. If it returns nil, orders are
	// not refused for lack of resources.
	Room func() *[3]core.Room
	// Standalone: the agent runs without schedulers.
	Standalone bool

	Limits    limits.Limits
	Authorize *pki.Mapping
	Identify  func(tls.ConnectionState) (pki.Identity, error)
	Self      func() pki.Identity

	NoSessions  bool
	SessionIdle time.Duration

	Moves    *mover.Mover    // may be nil
	Networks *network.Keeper // may be nil
	Names    *names.Resolver // may be nil
}

// Server is the agent's API.
type Server struct {
	agentv1.UnimplementedAgentServiceServer
	cfg      Config
	r        *runner.Runner
	log      *slog.Logger
	sessions atomic.Int32 // number of open sessions
	probing  atomic.Int32 // number of calls of ProbeNetwork
	tracing  atomic.Int32 // number of calls of TraceConnection
}

// New makes a Server.
func New(cfg Config) *Server { return &Server{cfg: cfg, r: cfg.Runner, log: cfg.Logger} }

// Sessions returns the number of open sessions: commands and consoles in workloads.
func (s *Server) Sessions() int { return int(s.sessions.Load()) }

// Register registers the API on a gRPC server, with reflection and the standard health service.
func (s *Server) Register(to *grpc.Server) {
	agentv1.RegisterAgentServiceServer(to, s)
	h := health.NewServer()
	h.SetServingStatus(agentv1.AgentService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(to, h)
	reflection.Register(to)
}

// storeFailed is the answer if an order could not be written to disk. It is an error and not a refusal,
// because the same order may be accepted later.
func storeFailed(err error) error {
	return status.Errorf(codes.Internal, "the order was not stored: %v", err)
}

// coverWait is how long the answer to an order waits until the fencer confirms that it will stop the workload
// when the lease ends.
const coverWait = 2 * time.Second

// ApplyWorkload stores and queues an order. The section "Behaviour" of contract/wire-agent.md specifies it.
func (s *Server) ApplyWorkload(ctx context.Context, req *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	s.r.Ordered(ctx, req.GetId())
	order, err := spec.Order(s.cfg.Key, req)
	if err != nil {
		return s.applied(req, core.Answer{Refusal: core.Refusedf("%v", err)}), nil
	}
	if s.cfg.Room != nil {
		order.Room = s.cfg.Room()
	}
	limited, cancel := context.WithTimeout(ctx, coverWait)
	defer cancel()
	answer, err := s.r.Offer(limited, core.Apply{Order: order})
	switch {
	case err != nil:
		return nil, storeFailed(err)
	case answer.Unavailable != "":
		return nil, status.Errorf(codes.Unavailable, "workload %q: %s", req.GetId(), answer.Unavailable)
	case answer.Refusal == nil && !answer.Skipped:
		s.cfg.Networks.Heard(req.GetNetworks())
	}
	return s.applied(req, answer), nil
}

func (s *Server) applied(req *agentv1.ApplyWorkloadRequest, answer core.Answer) *agentv1.ApplyWorkloadResponse {
	s.refused("apply refused", req.GetId(), answer.Refusal)
	return message.Applied(req, answer, s.r.State().Meta.Epoch)
}

// refused counts and logs a refused order. It does nothing if no is nil.
func (s *Server) refused(text, id string, no *core.Refusal) {
	if no != nil {
		s.cfg.Metrics.Refused(no)
		s.log.Warn(text, "workload", id, "reason", no.Message)
	}
}

// DeleteWorkload stores and queues a delete.
func (s *Server) DeleteWorkload(ctx context.Context, req *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
	s.r.Ordered(ctx, req.GetId())
	var answer core.Answer
	order, err := spec.Delete(req)
	if err != nil {
		answer.Refusal = core.Refusedf("%v", err)
	} else if answer, err = s.r.Do(order); err != nil {
		return nil, storeFailed(err)
	}
	s.refused("delete refused", req.GetId(), answer.Refusal)
	return message.Deleted(answer, s.r.State().Meta.Epoch), nil
}

// fence checks the epoch and the addressed node of a call that is not an order. A read without an epoch is
// accepted, because it changes nothing. A call with a lower epoch than the highest one seen is refused; so a
// deposed leader learns that it is deposed.
func (s *Server) fence(epoch *agentv1.Epoch, node string, changes bool) error {
	if epoch == nil && node == "" && !changes {
		return nil // the read changes nothing, so it need not wait for the disk
	}
	answer, err := s.r.Do(core.Call{Sender: core.Sender{Epoch: spec.Epoch(epoch), Node: node}, Changes: changes})
	if err != nil {
		return storeFailed(err)
	}
	if no := answer.Refusal; no != nil {
		s.cfg.Metrics.Refused(no)
		return status.Error(codes.FailedPrecondition, no.Message)
	}
	return nil
}

func notFound(id string) error {
	// Legacy v1 schedulers recognize this error by its text, not by its code.
	return status.Errorf(codes.NotFound, "status not found: workload %q", id)
}

// GetWorkloadStatus answers from the agent's memory, which is updated after events of the engines and by
// periodic lists.
func (s *Server) GetWorkloadStatus(_ context.Context, req *agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
	if err := spec.CheckID("id", req.GetId()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.fence(req.GetEpoch(), "", false); err != nil {
		return nil, err
	}
	w := s.r.State().Get(req.Id)
	if w == nil || w.Status == nil {
		return nil, notFound(req.Id)
	}
	st := message.Status(w.Status)
	if r, ok := s.r.Used().Get(driver.ID(req.Id)); ok {
		st.Usage = &agentv1.WorkloadUsageSnapshot{
			WorkloadId: req.Id, Type: spec.TypeOf(r.Kind), CpuPercent: r.Percent(), MemoryBytes: r.Memory,
			DiskReadBytes: r.DiskRead, DiskWriteBytes: r.DiskWrite, NetRxBytes: r.NetReceived, NetTxBytes: r.NetSent,
			CollectedAt: r.At.Unix(), Source: r.Source,
		}
	}
	return &agentv1.GetWorkloadStatusResponse{Status: st}, nil
}

// ListWorkloads answers from the agent's memory. The workloads are sorted by id.
func (s *Server) ListWorkloads(_ context.Context, req *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	if err := s.fence(req.GetEpoch(), "", false); err != nil {
		return nil, err
	}
	return &agentv1.ListWorkloadsResponse{Workloads: message.Statuses(s.r.State(), req.GetType())}, nil
}

// HealthCheck returns the health of the engines at the last probe.
func (s *Server) HealthCheck(context.Context, *agentv1.HealthCheckRequest) (*agentv1.HealthCheckResponse, error) {
	usage := s.cfg.Host.Usage()
	state := s.r.State()
	out := &agentv1.HealthCheckResponse{
		Healthy: true, Version: s.cfg.Version, RuntimeStatus: map[string]string{},
		MemoryUtilization: usage.MemoryPercent, CpuUtilization: usage.CPUPercent, DiskUtilization: usage.DiskPercent,
		NodeId: s.cfg.NodeID, ClusterId: state.Meta.Epoch.ClusterID, EngineId: state.EngineID(),
	}
	for kind, why := range s.cfg.NotOffered {
		out.RuntimeStatus[string(kind)] = "not offered: " + why
	}
	for _, e := range state.Engines() {
		out.RuntimeStatus[string(e.Kind)] = "healthy"
		if !e.Works() {
			out.Healthy = false
			out.RuntimeStatus[string(e.Kind)] = "unhealthy: " + core.Valid(e.Cause())
		}
	}
	return out, nil
}

// ListUsage answers from the measurements in the agent's memory.
func (s *Server) ListUsage(_ context.Context, req *agentv1.ListUsageRequest) (*agentv1.ListUsageResponse, error) {
	span := usage.Hour
	if req.GetDay() {
		span = usage.Day
	}
	out := &agentv1.ListUsageResponse{StepSeconds: uint32(span.Step.Seconds())}
	if s.cfg.History == nil {
		return out, nil
	}
	for _, m := range s.cfg.History.List(req.GetWorkloadId(), span, time.Now()) {
		out.Samples = append(out.Samples, &agentv1.UsageSample{
			Start: m.Start.Unix(), CpuMillicores: int64(m.Millicores), MemoryBytes: m.Memory,
			NetRxBytesPerSecond: m.NetReceived, NetTxBytesPerSecond: m.NetSent,
		})
	}
	return out, nil
}

const (
	// maxProbed is the maximum number of nodes of one ProbeNetwork, maxProbes the number of calls at a time, and probeTime
	// the time limit of a call.
	maxProbed, maxProbes = 64, 8
	probeTime            = 6 * time.Second
)

// ProbeNetwork sends packets to other nodes of a network.
func (s *Server) ProbeNetwork(ctx context.Context, req *agentv1.ProbeNetworkRequest) (*agentv1.ProbeNetworkResponse, error) {
	if n := len(req.GetNodes()); n > maxProbed {
		return nil, status.Errorf(codes.InvalidArgument, "nodes: has %d entries, at most %d", n, maxProbed)
	}
	if s.probing.Add(1) > maxProbes {
		s.probing.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d other checks of networks run on this node: try again in a few seconds", maxProbes)
	}
	defer s.probing.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	list, err := s.cfg.Networks.Probe(ctx, req.GetNetwork(), req.GetNodes())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &agentv1.ProbeNetworkResponse{Probes: list}, nil
}

// ListActions answers from the task history in the agent's memory.
func (s *Server) ListActions(_ context.Context, req *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	if req.GetLimit() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d must not be negative", req.GetLimit())
	}
	return &agentv1.ListActionsResponse{Actions: actions(s.r.State(), req)}, nil
}

// onEngine returns a workload and the driver that runs it. It returns an error, which the caller of the API
// gets, if there is no such workload or driver.
func (s *Server) onEngine(id string) (*core.Workload, driver.Driver, error) {
	w := s.r.State().Get(id)
	if w == nil {
		return nil, nil, notFound(id)
	}
	drv := s.r.Driver(w.Kind)
	if drv == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "runtime not available: %s", w.Kind)
	}
	return w, drv, nil
}

// Logs streams a workload's output as the driver gives it, stdout and stderr merged.
func (s *Server) Logs(req *agentv1.LogsRequest, stream grpc.ServerStreamingServer[agentv1.LogChunk]) error {
	if err := spec.CheckID("id", req.GetId()); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if req.TailLines < 0 || req.SinceUnixSeconds < 0 {
		return status.Errorf(codes.InvalidArgument, "tail_lines %d, since_unix_seconds %d: must not be negative", req.TailLines, req.SinceUnixSeconds)
	}
	_, drv, err := s.onEngine(req.Id)
	if err != nil {
		return err
	}
	options := driver.LogOptions{Follow: req.Follow, Tail: int(req.TailLines), Timestamps: req.Timestamps, Service: req.Service}
	if req.SinceUnixSeconds > 0 {
		options.Since = time.Unix(req.SinceUnixSeconds, 0)
	}
	var seen atomic.Int64
	options.Seen = func(at time.Time) { seen.Store(at.UnixNano()) }
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.r.Life(), cancel)()
	reader, err := drv.Logs(ctx, driver.ID(req.Id), options)
	if err != nil {
		return logError(req.Id, err)
	}
	defer reader.Close()
	// If a driver's Read blocks and ignores its context, only closing the reader ends it.
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	buffer := make([]byte, 32<<10)
	for {
		n, err := reader.Read(buffer)
		if n > 0 {
			at := seen.Load()
			if at == 0 {
				at = time.Now().UnixNano()
			}
			if err := stream.Send(&agentv1.LogChunk{Data: buffer[:n], Stream: "stdout", AtUnixNanos: at}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return logError(req.Id, err)
		}
	}
}

func logError(id string, err error) error {
	code := codes.Unknown
	switch driver.ClassOf(err) {
	case driver.RuntimeUnhealthy, driver.NetworkUnreachable, driver.NetworkTimeout:
		code = codes.Unavailable
	case driver.RuntimeResourceMissing:
		code = codes.NotFound
	case driver.InvalidSpecification:
		code = codes.InvalidArgument
	}
	return status.Error(code, fmt.Sprintf("logs of workload %q: %v", id, err))
}
