package rpc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// maxPage is the maximum page_size. Legacy v1 clients send no page_size and get the whole list.
const maxPage = 10_000

func pageSize(n int32) (int, error) {
	if n < 0 || n > maxPage {
		return 0, errorf(KindInvalid, "page_size %d must be 0 to %d", n, maxPage)
	}
	return int(n), nil
}

// ListNodes implements the call of control.v1. The list is ordered by id; page_token is the last id of the
// previous page.
func (s *Server) ListNodes(ctx context.Context, req *controlv1.ListNodesRequest) (*controlv1.ListNodesResponse, error) {
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(validToken(req.GetPageToken()), knownWord("status", req.GetStatus(), fsm.NodeStatuses(), "Active", "Unknown")); err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &controlv1.ListNodesResponse{Index: r.index, Stale: r.stale, AgeMs: r.ageMS}
	r.Nodes(req.GetPageToken(), func(n *fsm.Node) bool {
		if req.GetStatus() != "" && !strings.EqualFold(req.GetStatus(), string(n.Status())) {
			return true
		}
		if size > 0 && len(out.Nodes) == size {
			out.NextPageToken = out.Nodes[size-1].GetNodeId()
			return false
		}
		out.Nodes = append(out.Nodes, s.nodeView(r, n))
		return true
	})
	return out, nil
}

// GetNode implements the call of control.v1: it returns one node.
func (s *Server) GetNode(ctx context.Context, req *controlv1.GetNodeRequest) (*controlv1.GetNodeResponse, error) {
	if strings.TrimSpace(req.GetNodeId()) == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	n, ok := r.Node(req.GetNodeId())
	if !ok {
		return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", req.GetNodeId())
	}
	return &controlv1.GetNodeResponse{Node: s.nodeView(r, n), Index: r.index, Stale: r.stale, AgeMs: r.ageMS}, nil
}

// nodeView returns a node with the data that only the leader has: resource usage, lease and last heartbeat.
func (s *Server) nodeView(v fsm.View, n *fsm.Node) *controlv1.NodeView {
	out := spec.NodeView(n, v.Alloc(n.ID))
	if used, ok := s.leader.UsageOf(n.ID); ok && n.Up {
		out.Usage = &controlv1.NodeUsage{
			CpuAllocatedMillicores: out.GetReservedCpuMillicores(), CpuUsedMillicores: used.CPU,
			MemoryAllocatedMb: out.GetReservedMemoryMb(), MemoryUsedMb: used.Memory, DiskUsedGb: used.Disk,
			NetRxBytes: used.NetReceived, NetTxBytes: used.NetSent, NetworkNamesAgeSeconds: used.NamesAge,
		}
		held := s.leader.PoolsUsedOf(n.ID)
		for _, p := range out.GetStoragePools() {
			out.Usage.DiskAllocatedGb += p.GetReservedGb()
			p.UsedGb = held[p.GetName()]
		}
	}
	if expires, heard, ok := s.leader.LeaseOf(n.ID); ok {
		out.LeaseExpiresAt = timestamppb.New(time.Unix(0, expires))
		if heard > 0 {
			out.LastHeartbeat = timestamppb.New(time.Unix(0, heard))
		}
	}
	return out
}

var errBlankNode = errorf(KindInvalid, "node_id must not be blank")

// nodeAction commits one command about a node and returns the node's record after the command.
func (s *Server) nodeAction(ctx context.Context, id, request string, c *commandv1.Command) (*clusterv1.NodeActionResponse, error) {
	if id == "" {
		return nil, errBlankNode
	}
	r, err := s.mutate(ctx, request, c)
	if err != nil {
		return nil, err
	}
	view, err := s.store.At(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.NodeActionResponse{Index: r.Index}
	if n, ok := view.Node(id); ok {
		out.Node = s.nodeView(view, n)
	}
	return out, nil
}

// CordonNode implements the call of cluster.v1: it sets whether a node gets new workloads.
func (s *Server) CordonNode(ctx context.Context, req *clusterv1.CordonNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_CordonNode{
		CordonNode: &commandv1.CordonNode{Id: req.GetNodeId(), On: req.GetOn()},
	}})
}

// LabelNode implements the call of cluster.v1: it sets or removes labels of a node. They take precedence over the
// labels that the agent reports.
func (s *Server) LabelNode(ctx context.Context, req *clusterv1.LabelNodeRequest) (*clusterv1.NodeActionResponse, error) {
	c := &commandv1.LabelNode{Id: req.GetNodeId()}
	for _, k := range slices.Sorted(maps.Keys(req.GetLabels())) {
		c.Labels = append(c.Labels, &commandv1.NodeLabel{Key: k, Value: req.GetLabels()[k]})
	}
	for _, k := range req.GetRemove() {
		c.Labels = append(c.Labels, &commandv1.NodeLabel{Key: k, Removed: true})
	}
	if fault := bounds.LabelNodeFault(c); fault != "" {
		return nil, errorf(KindInvalid, "%s", fault)
	}
	if err := s.mayLabel(ctx, c); err != nil {
		return nil, err
	}
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_LabelNode{LabelNode: c}})
}

// mayLabel returns an error if the caller must not change these labels. If a policy is bound to a node label, a change
// of that label changes which policies apply to the node, so the change needs the permission for policies.
func (s *Server) mayLabel(ctx context.Context, c *commandv1.LabelNode) error {
	caller := callOf(ctx).caller
	if s.scopeOfCaller(caller, access.Policies).Everywhere() {
		return nil
	}
	var err error
	s.store.View().Policies(func(p *fsm.Policy) bool {
		for _, l := range c.GetLabels() {
			if slices.ContainsFunc(p.Nodes, func(n fsm.Label) bool { return n.Key == l.GetKey() }) {
				err = errorf(KindPermission, "policy %q is bound to nodes by label %q: %s needs the permission %s to change it", p.Name, l.GetKey(), caller.person(), access.Policies)
			}
		}
		return err == nil
	})
	return err
}

// TaintNode implements the call of cluster.v1: it sets or removes taints of a node. They take precedence over the
// taints that the agent reports.
func (s *Server) TaintNode(ctx context.Context, req *clusterv1.TaintNodeRequest) (*clusterv1.NodeActionResponse, error) {
	c := &commandv1.TaintNode{Id: req.GetNodeId()}
	for _, t := range req.GetTaints() {
		c.Taints = append(c.Taints, &commandv1.NodeTaint{Taint: message.Taint(t)})
	}
	for _, k := range req.GetRemove() {
		c.Taints = append(c.Taints, &commandv1.NodeTaint{Taint: &commandv1.Taint{Key: k}, Removed: true})
	}
	if fault := bounds.TaintNodeFault(c); fault != "" {
		return nil, errorf(KindInvalid, "%s", fault)
	}
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: c}})
}

// defaultDrainDeadline is how long running jobs may stay on a draining node if the request does not say, in seconds.
const defaultDrainDeadline = 3600

// drainFault returns why the deadline in a request is not valid; "" if it is.
func drainFault(req *clusterv1.DrainNodeRequest) string {
	switch {
	case req.DeadlineSeconds != nil && !req.GetOn():
		return "deadline_seconds must not be set if the drain ends (on: false)"
	case req.GetDeadlineSeconds() > bounds.MaxDrainDeadline:
		return fmt.Sprintf("deadline_seconds %d must be at most %d, 30 days", req.GetDeadlineSeconds(), bounds.MaxDrainDeadline)
	}
	return ""
}

// DrainNode implements the call of cluster.v1. If the request is a preview, it only returns the moves that a drain
// would make.
func (s *Server) DrainNode(ctx context.Context, req *clusterv1.DrainNodeRequest) (*clusterv1.NodeActionResponse, error) {
	if req.GetNodeId() == "" {
		return nil, errBlankNode
	}
	view := s.store.View()
	n, ok := view.Node(req.GetNodeId())
	if !ok {
		return nil, errorf(KindNotFound, "node %q not found; `persysctl nodes` lists them", req.GetNodeId())
	}
	if fault := drainFault(req); fault != "" {
		return nil, errorf(KindInvalid, "%s", fault)
	}
	deadline := req.DeadlineSeconds
	if deadline == nil && req.GetOn() && !n.Draining {
		deadline = new(uint32(defaultDrainDeadline))
	}
	var moves []*clusterv1.PlannedMove
	if req.GetOn() {
		jobsUntil := n.DrainedUntil(deadline, max(s.now().UnixNano(), view.Info().Clock))
		for _, m := range sched.PlanDrain(view, n.ID, req.GetDiscardData(), jobsUntil, s.cfg.Tuning) {
			move := &clusterv1.PlannedMove{WorkloadId: m.Workload, Reason: m.Message, LocalData: m.Data, Preempts: m.Preempts}
			if m.StaysUntil > 0 {
				move.StaysUntil = timestamppb.New(time.Unix(0, m.StaysUntil))
			}
			if m.To != n.ID {
				move.ToNodeId = m.To
			}
			moves = append(moves, move)
		}
	}
	if req.GetPreview() {
		return &clusterv1.NodeActionResponse{Node: s.nodeView(view, n), Index: view.Info().Index, Moves: moves}, nil
	}
	out, err := s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DrainNode{
		DrainNode: &commandv1.DrainNode{Id: req.GetNodeId(), On: req.GetOn(), DiscardData: req.GetDiscardData(), DeadlineSeconds: deadline},
	}})
	if err != nil {
		return nil, err
	}
	out.Moves = moves
	return out, nil
}

// RemoveNode implements the call of cluster.v1: it removes a node from the cluster.
func (s *Server) RemoveNode(ctx context.Context, req *clusterv1.RemoveNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_RemoveNode{
		RemoveNode: &commandv1.RemoveNode{Id: req.GetNodeId(), Force: req.GetForce(), DiscardData: req.GetDiscardData()},
	}})
}

// FenceNode implements the call of cluster.v1: the operator states that the machine is off, so that
// no workload runs on it.
func (s *Server) FenceNode(ctx context.Context, req *clusterv1.FenceNodeRequest) (*clusterv1.NodeActionResponse, error) {
	return s.nodeAction(ctx, req.GetNodeId(), req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_FenceNode{
		FenceNode: &commandv1.FenceNode{Id: req.GetNodeId(), DiscardData: req.GetDiscardData()},
	}})
}
