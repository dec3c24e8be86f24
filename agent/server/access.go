package server

import (
	"context"
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

// Permit decides whether a caller may use a method. Schedulers and the admin may use all. Gateways and
// mapped certificates of other authorities may only read. Other agents and users of the cluster may only
// ask for the health: an agent does not know namespaces, the schedulers do.
func (s *Server) Permit(ctx context.Context, method string, mapping pki.Mapping) error {
	if !strings.HasPrefix(method, "/"+agentv1.AgentService_ServiceDesc.ServiceName+"/") {
		return nil // health and reflection
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
		return status.Errorf(codes.PermissionDenied, "this node belongs to cluster %q, the caller to %q", cluster, id.Cluster)
	}
	if id.Role == pki.RoleScheduler || id.IsAdmin() {
		return nil
	}
	if id.Role == pki.RoleAgent && method != agentv1.AgentService_HealthCheck_FullMethodName {
		return status.Errorf(codes.PermissionDenied, "agent %q may not call %s: one agent has no business with another", id.ID, method)
	}
	if id.Role == pki.RoleUser && !id.Mapped && method != agentv1.AgentService_HealthCheck_FullMethodName {
		return status.Errorf(codes.PermissionDenied, "user %q may not call %s: an agent knows no namespaces, ask a scheduler", id.ID, method)
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

// Authorize are the options of a gRPC server that pass every call through Permit.
func (s *Server) Authorize(mapping pki.Mapping) []grpc.ServerOption {
	hosts := limits.NewPeers(s.cfg.Limits, s.cfg.Metrics.Limited)
	enter := func(ctx context.Context) (*limits.Entry, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return nil, nil
		}
		e, err := hosts.Enter(limits.Peer{Kind: "host", Name: limits.HostOf(p.Addr)})
		if err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		return e, nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			e, err := enter(ctx)
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
			e, err := enter(stream.Context())
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
