package server

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/spec"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

const (
	// Limits of one TraceConnection.
	maxTracedNetworks, maxTracedAddresses = 64, 16
	// traceTime is the time limit of TraceConnection, and maxTraces the number of calls at a time. A
	// scheduler makes at most one call at a time for each person. So a person who uses three schedulers
	// cannot use up the limit.
	traceTime, maxTraces = 3 * time.Second, 8
)

// TraceConnection resolves a name and opens TCP connections.
func (s *Server) TraceConnection(ctx context.Context, req *agentv1.TraceConnectionRequest) (*agentv1.TraceConnectionResponse, error) {
	switch {
	case req.GetPort() < 1 || req.GetPort() > 65535:
		return nil, status.Errorf(codes.InvalidArgument, "port: %d is not between 1 and 65535", req.GetPort())
	case len(req.GetNetworks()) > maxTracedNetworks:
		return nil, status.Errorf(codes.InvalidArgument, "networks: has %d entries, at most %d", len(req.GetNetworks()), maxTracedNetworks)
	case len(req.GetAddresses()) > maxTracedAddresses:
		return nil, status.Errorf(codes.InvalidArgument, "addresses: has %d entries, at most %d", len(req.GetAddresses()), maxTracedAddresses)
	case (req.GetName() == "") == (len(req.GetAddresses()) == 0):
		return nil, status.Error(codes.InvalidArgument, "name, addresses: set exactly one of them")
	}
	if s.tracing.Add(1) > maxTraces {
		s.tracing.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d other connections are traced from this node: try again in a few seconds", maxTraces)
	}
	defer s.tracing.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, traceTime)
	defer cancel()
	pid := 0
	if id := req.GetWorkloadId(); id != "" {
		if err := spec.CheckID("workload_id", id); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		_, drv, err := s.onEngine(id)
		if err != nil {
			return nil, err
		}
		p, ok := drv.(driver.ProcessFinder)
		if !ok {
			return nil, status.Errorf(codes.FailedPrecondition, "workload %q is not a container: trace from the node of the workload instead (--from NODE)", id)
		}
		if pid, err = p.Process(ctx, driver.ID(id)); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	out := &agentv1.TraceConnectionResponse{}
	to, err := s.traced(req, out)
	if err != nil || out.GetProblem() != "" {
		return out, err
	}
	list, left, err := s.cfg.Networks.Trace(ctx, to, req.GetWorkloadId(), pid)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out.Addresses, out.LeftOut = list, uint32(left)
	return out, nil
}

// traced returns the addresses to which a request asks for connections. If the name in the request resolves to
// none, traced sets the problem in out.
func (s *Server) traced(req *agentv1.TraceConnectionRequest, out *agentv1.TraceConnectionResponse) (to []netip.AddrPort, err error) {
	port := uint16(req.GetPort())
	for _, text := range req.GetAddresses() {
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return nil, status.Errorf(codes.InvalidArgument, "addresses: %v", err)
			}
			at = netip.AddrPortFrom(a, port)
		}
		to = append(to, at)
	}
	if req.GetName() == "" {
		return to, nil
	}
	if s.cfg.Names == nil {
		out.Problem = "this node cannot take part in networks"
		return nil, nil
	}
	list, problem := s.cfg.Names.Lookup(req.GetName(), req.GetNetworks())
	for _, a := range list {
		to = append(to, netip.AddrPortFrom(a, port))
	}
	out.Problem = problem
	return to, nil
}
