package rpc

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// networkNode registers a node that can take part in networks.
func (g *group) networkNode(id, address string) {
	g.t.Helper()
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: id, Endpoint: address + ":50051", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
		Networking: &commandv1.NodeNetworking{Address: address, Mtu: 1450},
	}}})
}

// joining returns a request for a container that joins networks.
func joining(id string, networks ...string) *controlv1.ApplyWorkloadRequest {
	r := web(id)
	c := r.GetSpec().GetContainer()
	c.Ports = nil
	for _, n := range networks {
		c.Networks = append(c.Networks, &controlv1.ContainerNetwork{Name: n, Aliases: []string{id}})
	}
	return r
}

// TestNetworkCalls: an admin creates, lists, shows and deletes networks. The error of each invalid call must name the
// invalid field.
func TestNetworkCalls(t *testing.T) {
	g := newGroup(t, 2)
	g.networkNode("n1", "10.0.0.1")
	c := g.cluster(1)
	made, err := c.CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back", RequestId: requestID(t)})
	ok(t, err)
	is(t, "subnet from the pool", made.GetNetwork().GetCidr(), "10.216.0.0/20")
	is(t, "largest number of nodes that can join the network", made.GetNetwork().GetCapacity(), 64)
	_, err = c.CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "bad", Subnet: "10.216.0.0/24"})
	says(t, err, codes.FailedPrecondition, `overlaps 10.216.0.0/20 of network "back"`)
	_, err = c.CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "bad", Subnet: "10.0.0.0/27"})
	says(t, err, codes.InvalidArgument, "too small")
	_, err = c.GetNetwork(ctxFor(t), &clusterv1.GetNetworkRequest{Name: "none"})
	says(t, err, codes.NotFound, "persysctl network list")

	g.put(t, joining("web", "back"), "n1")
	shown, err := c.GetNetwork(ctxFor(t), &clusterv1.GetNetworkRequest{Name: "back"})
	ok(t, err)
	is(t, "slices", len(shown.GetNetwork().GetSlices()), 2)
	is(t, "slice", shown.GetNetwork().GetSlices()[0].GetCidr(), "10.216.0.0/26")
	is(t, "slice that holds the addresses of services", shown.GetNetwork().GetSlices()[1].GetCidr(), "10.216.15.192/26")
	is(t, "whether the last slice is marked as holding addresses of services", shown.GetNetwork().GetSlices()[1].GetServices(), true)
	is(t, "members", shown.GetNetwork().GetSlices()[0].GetWorkloads(), 1)
	list, err := c.ListNetworks(ctxFor(t), &clusterv1.ListNetworksRequest{})
	ok(t, err)
	is(t, "networks", len(list.GetNetworks()), 1)
	is(t, "nodes", list.GetNetworks()[0].GetNodes(), 1)
	_, err = c.DeleteNetwork(ctxFor(t), &clusterv1.DeleteNetworkRequest{Name: "back"})
	says(t, err, codes.FailedPrecondition, "used by 1 workloads, such as web")
}

// TestUnknownNetworkIsRefusedAtApply: the refusal names the field, so that persysctl can add the line
// number.
func TestUnknownNetworkIsRefusedAtApply(t *testing.T) {
	g := newGroup(t, 1)
	ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
	r, err := g.control(0).ApplyWorkload(ctxFor(t), joining("web", "back", "front"))
	ok(t, err)
	for _, word := range []string{"container.networks[1]", `"front"`, "does not exist in namespace default", "persysctl network create front"} {
		if r.GetSuccess() || !strings.Contains(r.GetErrorMessage(), word) {
			t.Errorf("the refusal must contain %q, but is %q", word, r.GetErrorMessage())
		}
	}
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{joining("web", "front")}})
	ok(t, err)
	is(t, "plan", plan.GetWorkloads()[0].GetAction(), "refused")
	r, err = g.control(0).ApplyWorkload(ctxFor(t), joining("web", "back"))
	ok(t, inBand(r, err))
}

// TestHeartbeatsCarryNetworks: the answer to a heartbeat carries the networks of the node if the agent has an
// older version of them.
func TestHeartbeatsCarryNetworks(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	g.networkNode("n2", "10.0.0.2")
	beat := func(node string, index, incarnation uint64) *agentv1.NetworkView {
		t.Helper()
		r, err := g.control(0).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: node, NetworkIndex: index, NetworkIncarnation: incarnation})
		ok(t, err)
		return r.GetNetworks()
	}
	if v := beat("n1", 0, 0); v != nil {
		t.Errorf("a cluster that never had a network sent the networks %v, want none", v)
	}
	ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
	if v := beat("n1", 0, 0); v == nil || len(v.GetNetworks()) > 0 {
		t.Errorf("a node without a member of a network got the networks %v, want none", v)
	}
	g.put(t, joining("web", "back"), "n1")
	g.put(t, joining("api", "back"), "n2")
	v := beat("n1", 0, 0)
	index := g.view().Info().NetworkIndex
	want := &agentv1.NetworkView{
		Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1, Term: 1}, Index: index, Port: 4790, Vni: vniOf("c1"), Address: "10.0.0.1",
		Peers: []*agentv1.NetworkPeer{{Node: "n2", Address: "10.0.0.2"}},
		Networks: []*agentv1.Network{{
			Id: 1, Namespace: "default", Name: "back", Cidr: "10.216.0.0/20", Mtu: 1450, Slice: "10.216.0.0/26",
			Peers: []*agentv1.NetworkSlice{{Node: "n2", Cidr: "10.216.0.64/26"}}, Services: []string{"10.216.15.192/26"},
		}},
	}
	want.Epoch.Shard = v.GetEpoch().GetShard()
	if !proto.Equal(v, want) {
		t.Errorf("node n1 got the networks\n%v, want\n%v", v, want)
	}
	if v := beat("n1", index, 1); v != nil {
		t.Errorf("an agent that has the newest version of its networks got them again: %v", v)
	}
	if v := beat("n1", index, 9); v == nil {
		t.Error("an agent whose networks are of another incarnation must get its networks again, but did not")
	}
	if v := beat("a", 0, 0); v != nil {
		t.Errorf("an agent without networks must get none, but got %v", v)
	}
}

// TestRegistrationKeepsTheNetworks: a node registers again and reports that it cannot set up networks, or has an
// address inside the subnet of a network. It must keep its networks and its former address, because its running
// members need them, but no further members may be placed on it.
func TestRegistrationKeepsTheNetworks(t *testing.T) {
	for _, c := range []struct {
		name       string
		networking *controlv1.NodeNetworking
		problem    string
	}{
		{"the node reports that it cannot set up networks", &controlv1.NodeNetworking{Problem: "the name a.example has no address"}, "the name a.example has no address"},
		{"the node has an address inside the network's subnet", &controlv1.NodeNetworking{Address: "10.216.3.3", Mtu: 1450}, "its address 10.216.3.3 is in the subnet 10.216.0.0/20 of network default/back"},
		{"the node has an IPv4 address inside the network's subnet, in IPv6 form", &controlv1.NodeNetworking{Address: "::ffff:10.216.3.3", Mtu: 1450}, "in the subnet 10.216.0.0/20 of network default/back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 1)
			g.networkNode("n1", "10.0.0.1")
			g.networkNode("n2", "10.0.0.2")
			ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
			g.put(t, joining("web", "back"), "n1")
			g.put(t, joining("api", "back"), "n2")
			caps := &controlv1.NodeCapabilities{CpuTotalMillicores: 8000, MemoryTotalMb: 8192, SupportedWorkloadTypes: []string{"container"}, Protocol: 1, Networking: c.networking}
			r, err := g.control(0).RegisterNode(ctxFor(t), &controlv1.RegisterNodeRequest{NodeId: "n1", GrpcEndpoint: "10.0.0.1:50051", Capabilities: caps})
			ok(t, err)
			is(t, "accepted", r.GetAccepted(), true)
			n, _ := g.view().Node("n1")
			is(t, "address of the node, which must stay as before", n.Facts.Networking.Address, "10.0.0.1")
			is(t, "MTU of the node, which must stay as before", n.Facts.Networking.MTU, 1450)
			if p := n.Facts.Networking.Lacks(); !strings.Contains(p, c.problem) {
				t.Errorf("the state says that the node cannot set up networks because of %q, want %q", p, c.problem)
			}
			for _, id := range []string{"n1", "n2"} {
				n, _ := g.view().Node(id)
				if v := netmap(g.view(), n, 4790); len(v.GetNetworks()) != 1 || len(v.GetPeers()) != 1 {
					t.Errorf("node %q gets the networks %v and peers %v, want one of each", id, v.GetNetworks(), v.GetPeers())
				}
			}
			index := g.view().Info().Index
			ok(t, second(g.control(0).RegisterNode(ctxFor(t), &controlv1.RegisterNodeRequest{NodeId: "n1", GrpcEndpoint: "10.0.0.1:50051", Capabilities: caps})))
			is(t, "number of log entries of a repeated registration", g.view().Info().Index-index, 0)
		})
	}
}

// TestOrdersCarryNetworks: the order of a container has the numbers of the container's networks, and everything
// that the node must know to set them up. A legacy v1 agent gets no such order.
func TestOrdersCarryNetworks(t *testing.T) {
	for _, protocol := range []uint32{1, 0} {
		g := newGroup(t, 1)
		f := g.agent(t, protocol)
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: protocol,
			Networking: &commandv1.NodeNetworking{Address: "10.0.0.1", Mtu: 1450},
		}}})
		f.apply = func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}
		ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "front"})))
		ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
		g.put(t, joining("web", "back"), "n")
		w, _ := g.view().Workload("web")
		ack, err := g.replicas[0].server.agents.Deliver(ctxFor(t), fsm.Epoch{Incarnation: 1, Term: 3}, orderOf(w))
		ok(t, err)
		if protocol == 0 {
			is(t, "an order for a legacy v1 agent is refused", ack.Refused && strings.Contains(ack.Message, "container.networks"), true)
			continue
		}
		is(t, "accepted", ack.Accepted, true)
		got := f.applies[0]
		at := got.GetSpec().GetContainer().GetNetworks()
		if len(at) != 1 || at[0].GetId() != 2 || at[0].GetName() != "back" || at[0].GetAliases()[0] != "web" {
			t.Errorf("the container joins the networks %v, want network 2 (back) with the alias web", at)
		}
		if v := got.GetNetworks(); len(v.GetNetworks()) != 1 || v.GetNetworks()[0].GetId() != 2 || v.GetEpoch().GetTerm() != 3 || v.GetIndex() == 0 {
			t.Errorf("the order has the networks %v, want only network 2, with the term of the order's epoch", v)
		}
	}
}

// TestNetmap: the views of all nodes agree. A node's slice (its part of a network's addresses) is the same in its
// own view and in the views of the other nodes. No node sees a network in which it holds no slice.
func TestNetmap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, index, now := fsm.New(), uint64(0), int64(1)
		do := func(c *commandv1.Command) {
			index++
			now += 1e9
			c.Head = &commandv1.Head{At: now, By: "rapid", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}}
			s, _, _ = s.Apply(fsm.Meta{Index: index, Term: 1}, c)
		}
		do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
		for i := range 3 {
			do(&commandv1.Command{Body: &commandv1.Command_PutNetwork{PutNetwork: &commandv1.PutNetwork{Name: fmt.Sprint("n", i), Pool: DefaultNetworkPool}}})
		}
		for i := range rapid.IntRange(2, 4).Draw(rt, "nodes") {
			do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
				Id: fmt.Sprint("node-", i), Endpoint: "127.0.0.1:1", CpuMillicores: 8000, MemoryMib: 8192, Protocol: 1,
				Networking: &commandv1.NodeNetworking{Address: fmt.Sprint("10.0.0.", i+1), Mtu: 1450},
			}}})
		}
		for i := range rapid.IntRange(0, 12).Draw(rt, "workloads") {
			id := fmt.Sprint("w", i)
			do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
				Id: id, Content: "c1:aa", Desired: "Running",
				Demand: &commandv1.Demand{Type: "container", Networks: []string{fmt.Sprint("n", rapid.IntRange(0, 2).Draw(rt, "network"))}},
			}}}}})
			w, _ := s.Workload(id)
			do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{{
				Workload: id, Node: fmt.Sprint("node-", rapid.IntRange(0, 3).Draw(rt, "node")), IfGeneration: fsm.GenerationPB(w.Generation),
			}}}}})
		}
		views := map[string]*agentv1.NetworkView{}
		s.Nodes("", func(n *fsm.Node) bool { views[n.ID] = netmap(s, n, 4790); return true })
		own := map[string]string{} // network and node -> slice
		for id, v := range views {
			for _, n := range v.GetNetworks() {
				own[fmt.Sprint(n.GetId(), id)] = n.GetSlice()
				if !netip.MustParsePrefix(n.GetCidr()).Contains(netip.MustParsePrefix(n.GetSlice()).Addr()) {
					rt.Fatalf("node %s has slice %s, which is outside of its network's subnet %s", id, n.GetSlice(), n.GetCidr())
				}
			}
		}
		seen := 0
		for id, v := range views {
			for _, n := range v.GetNetworks() {
				members := 0
				s.WorkloadsOn(id, func(w *fsm.Workload) bool {
					if w.Demand.Networks[0] == n.GetName() {
						members++
					}
					return true
				})
				if members == 0 {
					rt.Fatalf("node %s sees network %s without a member", id, n.GetName())
				}
				for _, p := range n.GetPeers() {
					seen++
					if own[fmt.Sprint(n.GetId(), p.GetNode())] != p.GetCidr() {
						rt.Fatalf("node %s sees slice %s of node %s, which owns %q", id, p.GetCidr(), p.GetNode(), own[fmt.Sprint(n.GetId(), p.GetNode())])
					}
				}
				if len(n.GetPeers()) > len(v.GetPeers()) {
					rt.Fatalf("node %s has %d peers in network %s, but %d addresses", id, len(n.GetPeers()), n.GetName(), len(v.GetPeers()))
				}
			}
		}
		pairs := 0
		s.Networks(func(n *fsm.Network) bool { pairs += len(n.Slices) * (len(n.Slices) - 1); return true })
		if seen != pairs {
			rt.Fatalf("the views have %d slices of other nodes, want %d", seen, pairs)
		}
	})
}

func orderOf(w *fsm.Workload) sched.Order {
	return sched.Order{Op: sched.OpApply, Node: w.Node, Workload: w.ID, Generation: w.Generation}
}
