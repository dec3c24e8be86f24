package rpc

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// Time limits of calls to agents. Garbage collection asks every runtime, and may wait for workloads to stop
// within their grace period.
const (
	volumesDeadline = 5 * time.Second
	garbageDeadline = 5 * time.Minute
	volumesAtOnce   = 16
)

// asked returns a node, and the epoch that a call to its agent must carry.
func (s *Server) asked(id string) (*fsm.Node, *agentv1.Epoch, error) {
	if strings.TrimSpace(id) == "" {
		return nil, nil, errBlankNode
	}
	view := s.store.View()
	n, ok := view.Node(id)
	if !ok {
		return nil, nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", id)
	}
	e := s.epoch(view.Info().Epoch())
	return n, &agentv1.Epoch{ClusterId: e.GetClusterId(), Shard: e.GetShard(), Incarnation: e.GetIncarnation(), Term: e.GetTerm()}, nil
}

// tooOld returns the error for a call that an agent of an older version does not have. what names the missing
// function.
func tooOld(n *fsm.Node, err error, what string) error {
	if status.Code(err) == codes.Unimplemented {
		return errorf(KindPrecondition, "the agent of node %s (version %s) cannot %s", n.ID, n.Facts.AgentVersion, what)
	}
	return agentError(n.ID, err)
}

// atAgent calls the agent of a node with a request that changes something on the node. what names the function of the
// call, for the error if an older agent does not have it.
func (s *Server) atAgent(ctx context.Context, node, what string, call func(context.Context, agentv1.AgentServiceClient, *fsm.Node, *agentv1.Epoch) error) error {
	n, epoch, err := s.asked(node)
	if err != nil {
		return err
	}
	c, err := s.agents.fresh(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, garbageDeadline)
	defer cancel()
	if err := call(ctx, c, n, epoch); err != nil {
		return tooOld(n, err, what)
	}
	return nil
}

// CollectGarbage implements the call of cluster.v1: it removes unused resources on a node.
func (s *Server) CollectGarbage(ctx context.Context, req *clusterv1.CollectGarbageRequest) (*clusterv1.CollectGarbageResponse, error) {
	if !req.GetDryRun() {
		if err := s.refuseFrozen(); err != nil {
			return nil, err
		}
	}
	var resp *agentv1.CollectGarbageResponse
	collect := func() error {
		return s.atAgent(ctx, req.GetNodeId(), "look for garbage", func(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, epoch *agentv1.Epoch) (err error) {
			resp, err = c.CollectGarbage(ctx, &agentv1.CollectGarbageRequest{
				Epoch: epoch, NodeId: n.ID, DryRun: req.GetDryRun(), Orphans: req.GetOrphans(), By: callOf(ctx).who(),
			})
			return err
		})
	}
	var err error
	if req.GetDryRun() {
		err = collect()
	} else {
		err = s.noted(ctx, clip(req.GetNodeId(), 128), "garbage", collect)
	}
	if err != nil {
		return nil, err
	}
	out := &clusterv1.CollectGarbageResponse{Skipped: resp.GetSkipped()}
	for _, g := range resp.GetItems() {
		out.Items = append(out.Items, &clusterv1.Garbage{
			Kind: g.GetKind(), Name: g.GetName(), WorkloadId: g.GetWorkloadId(), Reason: g.GetReason(), Bytes: g.GetBytes(),
			Removed: g.GetRemoved(), Error: g.GetError(),
		})
	}
	return out, nil
}

// ListVolumes implements the call of cluster.v1. If the caller asks for all nodes, the call succeeds even if
// a node does not answer; that node is then listed as a problem.
func (s *Server) ListVolumes(ctx context.Context, req *clusterv1.ListVolumesRequest) (*clusterv1.ListVolumesResponse, error) {
	var nodes []*fsm.Node
	if id := req.GetNodeId(); id != "" {
		n, _, err := s.asked(id)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	} else {
		s.store.View().Nodes("", func(n *fsm.Node) bool {
			nodes = append(nodes, n)
			return true
		})
	}
	out := &clusterv1.ListVolumesResponse{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(volumesAtOnce)
	for _, n := range nodes {
		group.Go(func() error {
			volumes, problems, err := s.volumesOf(ctx, n)
			if err != nil && req.GetNodeId() != "" {
				return err
			}
			if err != nil {
				problems = []*clusterv1.StorageProblem{{NodeId: n.ID, Reason: err.Error()}}
			}
			mu.Lock()
			defer mu.Unlock()
			out.Volumes = append(out.Volumes, volumes...)
			out.Problems = append(out.Problems, problems...)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(out.Volumes, func(a, b *clusterv1.Volume) int {
		return cmp.Or(strings.Compare(a.GetNodeId(), b.GetNodeId()), strings.Compare(a.GetId(), b.GetId()))
	})
	slices.SortFunc(out.Problems, func(a, b *clusterv1.StorageProblem) int {
		return cmp.Or(strings.Compare(a.GetNodeId(), b.GetNodeId()), strings.Compare(a.GetDriver(), b.GetDriver()))
	})
	return out, nil
}

func (s *Server) volumesOf(ctx context.Context, n *fsm.Node) ([]*clusterv1.Volume, []*clusterv1.StorageProblem, error) {
	c, err := s.agents.fresh(n)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, volumesDeadline)
	defer cancel()
	// The request carries no epoch, because it only reads, so any replica may make it.
	resp, err := c.ListVolumes(ctx, &agentv1.ListVolumesRequest{})
	if err != nil {
		return nil, nil, tooOld(n, err, "list volumes")
	}
	var out []*clusterv1.Volume
	for _, v := range resp.GetVolumes() {
		out = append(out, &clusterv1.Volume{
			NodeId: n.ID, Id: v.GetId(), Driver: v.GetDriver(), SizeGb: v.GetSizeGb(), Pool: v.GetPool(), Form: v.GetForm(), Phase: v.GetPhase(),
			RetainPolicy: v.GetRetainPolicy(), LastError: v.GetLastError(), WorkloadIds: v.GetWorkloadIds(), Owner: v.GetOwner(),
			CreatedAt: unix(v.GetCreatedAt()), ReleasedAt: unix(v.GetReleasedAt()),
		})
	}
	var problems []*clusterv1.StorageProblem
	for driver, why := range resp.GetMissingDrivers() {
		problems = append(problems, &clusterv1.StorageProblem{NodeId: n.ID, Driver: driver, Reason: why})
	}
	return out, problems, nil
}

// DeleteVolume implements the call of cluster.v1.
func (s *Server) DeleteVolume(ctx context.Context, req *clusterv1.DeleteVolumeRequest) (*clusterv1.DeleteVolumeResponse, error) {
	if err := s.refuseFrozen(); err != nil {
		return nil, err
	}
	if strings.TrimSpace(req.GetId()) == "" {
		return nil, errorf(KindInvalid, "id must not be blank; `persysctl volume list` shows them")
	}
	err := s.noted(ctx, clip(req.GetNodeId(), 128), "volume "+req.GetId(), func() error {
		return s.atAgent(ctx, req.GetNodeId(), "delete volumes", func(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, epoch *agentv1.Epoch) error {
			_, err := c.DeleteVolume(ctx, &agentv1.DeleteVolumeRequest{Epoch: epoch, NodeId: n.ID, Id: req.GetId(), By: callOf(ctx).who()})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return &clusterv1.DeleteVolumeResponse{}, nil
}
