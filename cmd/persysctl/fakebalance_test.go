package main

import (
	"context"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

func (f *fake) PreviewRebalance(_ context.Context, req *clusterv1.PreviewRebalanceRequest) (*clusterv1.PreviewRebalanceResponse, error) {
	out := &clusterv1.PreviewRebalanceResponse{
		Before: &clusterv1.Imbalance{DeviationPercent: 22.1, LowestPercent: 0, HighestPercent: 46.9}, Movable: 12, Index: 42,
		Immovable: []*clusterv1.ImmovableWorkloads{{Reason: "it has local data", Workloads: 3}, {Reason: "it is exclusive", Workloads: 1}},
	}
	if out.After = out.Before; req.GetMinGainPercent() > 50 {
		return out, nil
	}
	out.After = &clusterv1.Imbalance{DeviationPercent: 2.5, LowestPercent: 28, HighestPercent: 33.1}
	out.Moves = []*clusterv1.RebalanceMove{
		{WorkloadId: "web-2", FromNodeId: "node-a", ToNodeId: "node-c", GainPercent: 41.7,
			Reason: "load 46.9 % here, 0.0 % there"},
		{WorkloadId: "batch-worker-with-a-long-name-1", FromNodeId: "node-b", ToNodeId: "node-c", GainPercent: 86.5,
			Reason: "load 41.7 % here, 5.2 % there; +50.0 % for members of its group on the node"},
	}
	return out, nil
}
