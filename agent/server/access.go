package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// Permit decides whether a caller may use a method. Schedulers may use all methods. Gateways may only read, and so may
// clients with a certificate of another authority that mapping maps. Other agents and users of the cluster, admins
// included, may only call HealthCheck: an agent knows neither roles nor namespaces, but the schedulers do.
func (s *Server) Permit(ctx context.Context, method string, mapping pki.Mapping) error {
	if !strings.HasPrefix(method, "/"+agentv1.AgentService_ServiceDesc.ServiceName+"/") {
		return nil // every caller may call the health and reflection services
	}
	id, err := s.callerIdentity(ctx, mapping)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	cluster := s.r.State().Meta.Epoch.ClusterID
	if s.cfg.Self != nil {
		cluster = s.cfg.Self().Cluster
	}
	if cluster != "" && id.Cluster != "" && id.Cluster != cluster {
		return status.Errorf(codes.PermissionDenied, "this node belongs to cluster %q, but the caller belongs to cluster %q", cluster, id.Cluster)
	}
	if id.Role == pki.RoleScheduler {
		return nil
	}
	if id.Role == pki.RoleAgent && method == agentv1.AgentService_ReadVolume_FullMethodName && !id.Mapped {
		return nil // ReadVolume checks that the schedulers named this node as the target of the move
	}
	if id.Role == pki.RoleAgent && method != agentv1.AgentService_HealthCheck_FullMethodName {
		return status.Errorf(codes.PermissionDenied, "agent %q may not call %s: agents call each other only to copy a volume", id.ID, method)
	}
	if id.Role == pki.RoleUser && !id.Mapped && method != agentv1.AgentService_HealthCheck_FullMethodName {
		return status.Errorf(codes.PermissionDenied, "user %q may not call %s: an agent knows neither roles nor namespaces, ask a scheduler", id.ID, method)
	}
	switch method {
	case agentv1.AgentService_GetWorkloadStatus_FullMethodName, agentv1.AgentService_ListWorkloads_FullMethodName,
		agentv1.AgentService_HealthCheck_FullMethodName, agentv1.AgentService_ListActions_FullMethodName:
		return nil
	case agentv1.AgentService_Logs_FullMethodName:
		if id.Role == pki.RoleGateway {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "%s %q may not call %s", id.Role, id.ID, method)
}

// isOrder reports whether a method changes something on the node.
func isOrder(method string) bool {
	switch method {
	case agentv1.AgentService_ApplyWorkload_FullMethodName, agentv1.AgentService_DeleteWorkload_FullMethodName,
		agentv1.AgentService_DeleteVolume_FullMethodName, agentv1.AgentService_CollectGarbage_FullMethodName:
		return true
	}
	return false
}

// Authorize returns the options of a gRPC server that checks every call with Permit and limits the calls
// of each host.
func (s *Server) Authorize(mapping pki.Mapping) []grpc.ServerOption {
	// The schedulers that send orders also relay the reads, log streams and sessions of users. Orders, reads and streams
	// are counted separately, so that reads and open streams cannot use up the limit and block orders.
	orders := limits.NewPeers(s.cfg.Limits, s.cfg.Metrics.Limited)
	reads := limits.NewPeers(s.cfg.Limits, s.cfg.Metrics.Limited)
	streams := limits.NewStreams(s.cfg.Limits, s.cfg.Metrics.Limited)
	enter := func(ctx context.Context, in *limits.Peers, most int, setting string) (*limits.Entry, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return nil, nil
		}
		host := limits.HostOf(p.Addr)
		e, err := in.Enter(limits.Peer{Kind: "host", Name: host})
		switch {
		case errors.Is(err, limits.ErrRate):
			return nil, status.Errorf(codes.ResourceExhausted, "%v: host %s may make at most %d calls a second (PERSYS_LIMIT_CALLS); try again in a moment", err, host, s.cfg.Limits.Calls)
		case err != nil:
			return nil, status.Errorf(codes.ResourceExhausted, "%v: host %s may have at most %d (%s)", err, host, most, setting)
		}
		return e, nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			calls := reads
			if isOrder(info.FullMethod) {
				calls = orders
			}
			e, err := enter(ctx, calls, s.cfg.Limits.Concurrent, "PERSYS_LIMIT_CONCURRENT")
			if err != nil {
				return nil, err
			}
			defer e.Leave()
			if err := s.Permit(ctx, info.FullMethod, mapping); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			e, err := enter(stream.Context(), streams, s.cfg.Limits.Streams, "PERSYS_LIMIT_STREAMS")
			if err != nil {
				return err
			}
			defer e.Leave()
			if err := s.Permit(stream.Context(), info.FullMethod, mapping); err != nil {
				return err
			}
			return next(srv, stream)
		}),
	}
}

func (s *Server) callerIdentity(ctx context.Context, mapping pki.Mapping) (pki.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return pki.Identity{}, pki.ErrNoIdentity
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return pki.Identity{}, pki.ErrNoIdentity
	}
	if s.cfg.Identify != nil {
		return s.cfg.Identify(info.State)
	}
	leaf := info.State.VerifiedChains[0][0]
	return pki.FromCertificate(leaf, mapping)
}
