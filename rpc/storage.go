package rpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// Time limits of calls to agents. Garbage collection takes longest: it reads from the engine of every kind of
// workload, and may wait until workloads have stopped, for up to their grace period.
const (
	volumesDeadline = 5 * time.Second
	garbageDeadline = 5 * time.Minute
)

// asked returns the record of a node, and the epoch (number of the leader) that a call to the node's agent must carry.
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

// atAgent calls the agent of a node with a request that changes something on the node. what names the function that is
// called; it appears in the error if the agent is too old to have this function.
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
		err = s.audited(ctx, clip(req.GetNodeId(), 128), "garbage", collect)
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

// volumesOf asks the agent of a node for its volumes, and for the volume drivers that the node lacks.
func (s *Server) volumesOf(ctx context.Context, n *fsm.Node) ([]*agentv1.VolumeInfo, []*clusterv1.StorageProblem, error) {
	c, e, err := s.agents.reader(n)
	if err != nil {
		return nil, nil, err
	}
	defer e.Leave()
	ctx, cancel := context.WithTimeout(ctx, volumesDeadline)
	defer cancel()
	// The request carries no epoch, because it only reads, so any replica may make it.
	resp, err := c.ListVolumes(ctx, &agentv1.ListVolumesRequest{})
	if err != nil {
		return nil, nil, tooOld(n, err, "list volumes")
	}
	var problems []*clusterv1.StorageProblem
	for driver, why := range resp.GetMissingDrivers() {
		problems = append(problems, &clusterv1.StorageProblem{NodeId: n.ID, Driver: driver, Reason: why})
	}
	return resp.GetVolumes(), problems, nil
}
