package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// ListUsage implements the call of cluster.v1. The agent of the node keeps the measurements.
func (s *Server) ListUsage(ctx context.Context, req *clusterv1.ListUsageRequest) (*clusterv1.ListUsageResponse, error) {
	id, node := req.GetWorkloadId(), req.GetNodeId()
	if (id == "") == (node == "") {
		return nil, errorf(KindInvalid, "workload_id %q and node_id %q: exactly one of them must be given", clip(id, 128), clip(node, 128))
	}
	n, err := s.measuring(ctx, id, node)
	if err != nil {
		return nil, err
	}
	entry, err := s.enterRead(ctx)
	if err != nil {
		return nil, err
	}
	defer entry.Leave()
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	r, err := s.agents.usage(ctx, n, &agentv1.ListUsageRequest{WorkloadId: id, Day: req.GetDay()})
	if err != nil {
		return nil, agentError(n.ID, err)
	}
	out := &clusterv1.ListUsageResponse{NodeId: n.ID, StepSeconds: r.GetStepSeconds()}
	for _, m := range r.GetSamples() {
		out.Samples = append(out.Samples, &clusterv1.UsageSample{
			Start: timestamppb.New(time.Unix(m.GetStart(), 0)), CpuMillicores: m.GetCpuMillicores(), MemoryBytes: m.GetMemoryBytes(),
			NetRxBytesPerSecond: m.GetNetRxBytesPerSecond(), NetTxBytesPerSecond: m.GetNetTxBytesPerSecond(),
		})
	}
	return out, nil
}

// measuring returns the node whose agent must be asked for the measurements: the node of the workload or, if workload
// is "", the named node.
func (s *Server) measuring(ctx context.Context, workload, node string) (*fsm.Node, error) {
	if workload != "" {
		return s.holder(ctx, workload)
	}
	view, err := s.viewFor(ctx)
	if err != nil {
		return nil, err
	}
	n, ok := view.Node(node)
	if !ok {
		return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", clip(node, 128))
	}
	return n, nil
}
