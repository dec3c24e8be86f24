package rpc

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

const (
	// checksAtOnce is the number of nodes that send packets at a time during a check of a network.
	checksAtOnce = 256
	// checkTime is the time limit of a check. It is shorter than the time after which clients try another replica
	// (dial.Options.ReadPatience).
	checkTime = 7 * time.Second
	// checkedPeers is the number of nodes to which one node sends packets. They are the nodes that follow it in the
	// list ordered by name.
	checkedPeers = 16
)

// CheckNetwork implements the call of cluster.v1. The agents of the nodes that hold addresses of the network send
// packets to each other through the network.
func (s *Server) CheckNetwork(ctx context.Context, req *clusterv1.CheckNetworkRequest) (*clusterv1.CheckNetworkResponse, error) {
	v, err := s.viewFor(ctx)
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(req.GetNamespace(), fsm.DefaultNamespace)
	if err := s.mayEnter(ctx, namespace); err != nil {
		return nil, err
	}
	n, ok := v.Network(namespace, req.GetName())
	if !ok {
		return nil, errorf(KindNotFound, "network %q not found in namespace %s; `persysctl network list` shows them", clip(req.GetName(), 128), clip(namespace, 128))
	}
	entry, err := s.enterCheck(ctx)
	if err != nil {
		return nil, err
	}
	defer entry.Leave()
	if s.checking.Add(1) > checksAtATime {
		s.checking.Add(-1)
		return nil, errorf(KindUnavailable, "%d other checks of networks run: try again in a few seconds", checksAtATime)
	}
	defer s.checking.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var nodes []string
	for _, slice := range n.Slices {
		if slice.Node != "" {
			nodes = append(nodes, slice.Node)
		}
	}
	slices.Sort(nodes)
	out := &clusterv1.CheckNetworkResponse{Mtu: n.MTU}
	found := make([][]*clusterv1.NetworkPath, len(nodes))
	var group errgroup.Group
	group.SetLimit(checksAtOnce)
	for i, from := range nodes {
		to := following(nodes, i)
		out.LeftOut += uint32(len(nodes) - 1 - len(to))
		if len(to) == 0 {
			continue
		}
		group.Go(func() error {
			found[i] = s.checkFrom(ctx, v, n, from, to)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, list := range found {
		out.Paths = append(out.Paths, list...)
	}
	return out, nil
}

// following returns the nodes to which the ith node sends packets: at most checkedPeers nodes that follow it, where the
// first node follows the last. So each node receives packets from as many nodes as it sends packets to.
func following(nodes []string, i int) (out []string) {
	for k := 1; k < len(nodes) && k <= checkedPeers; k++ {
		out = append(out, nodes[(i+k)%len(nodes)])
	}
	slices.Sort(out)
	return out
}

// checkFrom makes one node send packets to other nodes. If the agent of that node does not answer, each returned path
// has the error of that call in its field problem.
func (s *Server) checkFrom(ctx context.Context, v fsm.View, n *fsm.Network, from string, to []string) (out []*clusterv1.NetworkPath) {
	problem := ""
	var probes []*agentv1.NetworkProbe
	switch node, ok := v.Node(from); {
	case !ok:
		problem = "node " + from + " is not registered any more"
	case !node.Up:
		problem = "node " + from + " is lost, so it sent no packets"
	default:
		var err error
		if probes, err = s.agents.probe(ctx, node, &agentv1.ProbeNetworkRequest{Network: n.ID, Nodes: to}); err != nil {
			problem = "the agent of " + from + " sent no packets: " + status.Convert(err).Message()
		}
	}
	for _, name := range to {
		p := &clusterv1.NetworkPath{Network: n.Name, From: from, To: name, Problem: problem}
		if i := slices.IndexFunc(probes, func(x *agentv1.NetworkProbe) bool { return x.GetNode() == name }); i >= 0 {
			x := probes[i]
			p.Reached, p.LatencyMicroseconds, p.Mtu, p.Problem = x.GetReached(), x.GetLatencyMicroseconds(), x.GetMtu(), clip(x.GetProblem(), 512)
		} else if problem == "" {
			p.Problem = "the agent of " + from + " did not try this path: try again"
		}
		out = append(out, p)
	}
	return out
}
