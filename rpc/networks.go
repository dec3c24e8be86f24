package rpc

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// DefaultNetworkPool is the prefix from which networks get their subnets. It was chosen because common programs (such
// as Docker and Kubernetes distributions) do not use it by default.
const DefaultNetworkPool = "10.216.0.0/14"

// maxVNI is the largest network identifier of VXLAN, which has 24 bits.
const maxVNI = 1<<24 - 1

// vniOf derives the VXLAN network identifier of a cluster from its id, so that nodes drop the packets of another
// cluster on the same machines or network.
func vniOf(cluster string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // writing to a hash never fails
	return h.Sum32()%(maxVNI-1) + 1 // agents probe with maxVNI
}

// netmap returns the networks that a node has to set up. The result depends only on the state; netmap does not set the
// message's epoch (number of the leader).
func netmap(v fsm.View, n *fsm.Node, port uint32) *agentv1.NetworkView {
	info := v.Info()
	out := &agentv1.NetworkView{Index: info.NetworkIndex, Port: port, Vni: vniOf(info.ClusterID), Address: n.Facts.Networking.Address}
	if out.Address == "" {
		return out // the node takes part in no network any more, for example because its agent is an old one
	}
	peers := map[string]bool{}
	v.Networks(func(w *fsm.Network) bool {
		own, has := w.SliceOf(n.ID)
		if !has {
			return true
		}
		m := &agentv1.Network{
			Id: w.ID, Namespace: w.In(), Name: w.Name, Cidr: w.CIDR.String(), Mtu: w.MTU, Slice: w.Prefix(own).String(), Ingress: w.Ingress,
		}
		for _, s := range w.Slices {
			if s.Services {
				m.Services = append(m.Services, w.Prefix(s).String())
			}
			if s.Node == "" || s.Node == n.ID {
				continue
			}
			peer, ok := v.Node(s.Node)
			if !ok || peer.Facts.Networking.Address == "" || peer.Facts.Networking.Address == out.Address {
				continue
			}
			m.Peers = append(m.Peers, &agentv1.NetworkSlice{Node: s.Node, Cidr: w.Prefix(s).String()})
			if !peers[s.Node] {
				peers[s.Node] = true
				out.Peers = append(out.Peers, &agentv1.NetworkPeer{Node: s.Node, Address: peer.Facts.Networking.Address})
			}
		}
		slices.SortFunc(m.Peers, func(a, b *agentv1.NetworkSlice) int { return cmp.Compare(a.Node, b.Node) })
		out.Networks = append(out.Networks, m)
		return true
	})
	slices.SortFunc(out.Networks, func(a, b *agentv1.Network) int { return cmp.Compare(a.Id, b.Id) })
	slices.SortFunc(out.Peers, func(a, b *agentv1.NetworkPeer) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// networksFor returns the networks that a node has to set up; nil if the agent has their present version already,
// or if the cluster never had a network.
func (s *Server) networksFor(n *fsm.Node, epoch fsm.Epoch, req *controlv1.HeartbeatRequest) *agentv1.NetworkView {
	v := s.store.View()
	info := v.Info()
	if info.NetworkIndex == 0 || n.Facts.Networking == (fsm.Networking{}) ||
		req.GetNetworkIndex() == info.NetworkIndex && req.GetNetworkIncarnation() == epoch.Incarnation {
		return nil
	}
	now, ok := v.Node(n.ID)
	if !ok {
		return nil
	}
	out := netmap(v, now, fsm.NetworkPort)
	out.Epoch = &agentv1.Epoch{ClusterId: info.ClusterID, Shard: info.Shard, Incarnation: epoch.Incarnation, Term: epoch.Term}
	return out
}

// joins adds to an order all networks that the node has to set up, and adds to the container the ids of the networks
// that it joins.
func (a *Agents) joins(req *agentv1.ApplyWorkloadRequest, w *fsm.Workload, n *fsm.Node, e *agentv1.Epoch) error {
	list := req.GetSpec().GetContainer().GetNetworks()
	if len(list) == 0 {
		return nil
	}
	v := a.store.View()
	for i, m := range list {
		net, ok := v.Network(w.In(), m.GetName())
		if !ok {
			return fmt.Errorf("container.networks[%d]: network %q does not exist in namespace %s: create it (persysctl network create)", i, m.GetName(), w.In())
		}
		if _, has := net.SliceOf(n.ID); !has {
			return fmt.Errorf("container.networks[%d]: node %s has no slice of network %q", i, n.ID, m.GetName())
		}
		m.Id = net.ID
	}
	n, ok := v.Node(n.ID) // the caller's record may be older than the view
	if !ok {
		return fmt.Errorf("node %s is not registered any more", w.Node)
	}
	req.Networks = netmap(v, n, fsm.NetworkPort)
	req.Networks.Epoch = e
	return nil
}

// unknownNetworks returns an error for each network of a specification that does not exist.
func (s *Server) unknownNetworks(ctx context.Context, of *controlv1.WorkloadSpec, put *commandv1.PutWorkloads) error {
	if len(of.GetContainer().GetNetworks()) == 0 || len(put.GetWorkloads()) == 0 {
		return nil
	}
	v, err := s.latest(ctx)
	if err != nil {
		return err
	}
	in := fsm.NamespaceOf(v, put.GetWorkloads()[0])
	return spec.UnknownNetworks(of, in, func(name string) bool {
		_, ok := v.Network(in, name)
		return ok
	})
}

// withIngressNetwork sets the network pool in a command if it contains a container with ports in ingress mode
// and without a network of its own. Such containers join the network "ingress" of their namespace. The state
// machine makes this network from the pool if the namespace has none.
func (s *Server) withIngressNetwork(put *commandv1.PutWorkloads) {
	if slices.ContainsFunc(put.GetWorkloads(), fsm.NeedsIngressNetwork) {
		put.NetworkPool = s.networkPool()
	}
}

// networkPool returns the prefix from which networks get their subnets.
func (s *Server) networkPool() string { return cmp.Or(s.cfg.NetworkPool, DefaultNetworkPool) }

// ListNetworks implements the call of cluster.v1: it lists the networks, each with the number of workloads in it.
func (s *Server) ListNetworks(ctx context.Context, req *clusterv1.ListNetworksRequest) (*clusterv1.ListNetworksResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	in, out := s.scopeOf(ctx), &clusterv1.ListNetworksResponse{Index: r.index}
	only := strings.TrimSpace(req.GetNamespace())
	users := networkUsers(r)
	r.Networks(func(n *fsm.Network) bool {
		if in.Has(n.In()) && (only == "" || only == n.In()) {
			out.Networks = append(out.Networks, networkView(r, n, users, false))
		}
		return true
	})
	return out, nil
}

// GetNetwork implements the call of cluster.v1: it returns one network with its nodes, services and members.
func (s *Server) GetNetwork(ctx context.Context, req *clusterv1.GetNetworkRequest) (*clusterv1.GetNetworkResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(strings.TrimSpace(req.GetNamespace()), fsm.DefaultNamespace)
	if err := s.mayEnter(ctx, namespace); err != nil {
		return nil, err
	}
	n, ok := r.Network(namespace, req.GetName())
	if !ok {
		return nil, errorf(KindNotFound, "network %q not found in namespace %s; `persysctl network list` shows them", clip(req.GetName(), 128), clip(namespace, 128))
	}
	out := networkView(r, n, networkUsers(r), true)
	names := s.names.at(r)
	out.Members, out.Services = names.members[n.ID], names.services[n.ID]
	out.Ingress = names.ingress[n.ID]
	return &clusterv1.GetNetworkResponse{Network: out, Index: r.index}, nil
}

// networkID is the namespace and the name of a network.
type networkID struct{ namespace, name string }

// networkUsers returns the number of workloads that use each network. It scans the workloads once.
func networkUsers(v fsm.View) map[networkID]int32 {
	out := map[networkID]int32{}
	v.Workloads("", func(w *fsm.Workload) bool {
		for i, name := range w.Demand.Networks {
			if !slices.Contains(w.Demand.Networks[:i], name) {
				out[networkID{w.In(), name}]++
			}
		}
		return true
	})
	return out
}

// networkView returns a network as callers see it. users has the number of workloads in each network. If withSlices is
// set, the view lists the slices: the parts of the network's addresses, each with its node and the number of workloads
// there.
func networkView(v fsm.View, n *fsm.Network, users map[networkID]int32, withSlices bool) *clusterv1.Network {
	out := &clusterv1.Network{
		Id: n.ID, Name: n.Name, Namespace: n.In(), Cidr: n.CIDR.String(), Mtu: n.MTU, CreatedBy: n.CreatedBy,
		CreatedAt: timestamppb.New(time.Unix(0, n.CreatedAt)), Capacity: int32(n.Capacity()),
		Workloads: users[networkID{n.In(), n.Name}],
	}
	for _, s := range n.Slices {
		if s.Node != "" {
			out.Nodes++
		}
		if s.Services {
			out.Capacity--
		}
		if !withSlices {
			continue
		}
		m := &clusterv1.NetworkSlice{NodeId: s.Node, Cidr: n.Prefix(s).String(), Services: s.Services}
		if node, ok := v.Node(s.Node); ok {
			m.Answers, m.HeldPorts = n.Answers(node), node.Facts.Networking.Held
		}
		if s.Node != "" {
			m.Workloads = int32(fsm.MembersOn(v, n, s.Node))
		}
		if s.EmptySince != 0 {
			m.EmptySince = timestamppb.New(time.Unix(0, s.EmptySince))
		}
		out.Slices = append(out.Slices, m)
	}
	return out
}

// CreateNetwork implements the call of cluster.v1. If the request names no subnet, the network gets one from the
// configured pool.
func (s *Server) CreateNetwork(ctx context.Context, req *clusterv1.CreateNetworkRequest) (*clusterv1.CreateNetworkResponse, error) {
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutNetwork{PutNetwork: &commandv1.PutNetwork{
		Name: req.GetName(), Namespace: strings.TrimSpace(req.GetNamespace()), Cidr: strings.TrimSpace(req.GetSubnet()), Pool: s.networkPool(), Mtu: req.GetMtu(),
	}}})
	if err != nil {
		return nil, err
	}
	out := &clusterv1.CreateNetworkResponse{Index: r.Index}
	v := s.store.View()
	if n, ok := v.Network(strings.TrimSpace(req.GetNamespace()), req.GetName()); ok {
		out.Network = networkView(v, n, nil, false) // no workload can use it yet
	}
	return out, nil
}

// DeleteNetwork implements the call of cluster.v1. The state machine refuses it while a workload uses the network.
func (s *Server) DeleteNetwork(ctx context.Context, req *clusterv1.DeleteNetworkRequest) (*clusterv1.DeleteNetworkResponse, error) {
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteNetwork{DeleteNetwork: &commandv1.DeleteNetwork{
		Name: req.GetName(), Namespace: strings.TrimSpace(req.GetNamespace()), IfNotAwaited: true,
	}}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.DeleteNetworkResponse{Index: r.Index}, nil
}
