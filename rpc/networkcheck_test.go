package rpc

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
)

// TestCheckNetwork: each node that holds addresses of the network must be asked to test its paths to the other nodes.
// The answer must show an error for each path from a lost node and from a node whose agent is too old. Only one check
// may run at a time.
func TestCheckNetwork(t *testing.T) {
	g, f, _, _ := agentWorld(t, 0)
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
		Networking: &commandv1.NodeNetworking{Address: "10.0.0.1", Mtu: 1450},
	}}})
	g.networkNode("other", "10.0.0.2")
	c := g.cluster(0)
	ok(t, second(c.CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
	g.put(t, joining("a", "back"), "n")
	g.put(t, joining("b", "back"), "other")
	g.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "other"}}}}})
	check := func() string {
		t.Helper()
		r, err := c.CheckNetwork(ctxFor(t), &clusterv1.CheckNetworkRequest{Name: "back"})
		ok(t, err)
		out := fmt.Sprintf("mtu %d, left out %d", r.GetMtu(), r.GetLeftOut())
		for _, p := range r.GetPaths() {
			out += fmt.Sprintf("; %s: %s to %s: %t %d %d %q", p.GetNetwork(), p.GetFrom(), p.GetTo(), p.GetReached(), p.GetLatencyMicroseconds(), p.GetMtu(), p.GetProblem())
		}
		return out
	}
	lost := `; back: other to n: false 0 0 "node other is lost, so it sent no packets"`
	is(t, "answer of the check if the agent is too old", check(), `mtu 1450, left out 0; back: n to other: false 0 0 "the agent of n sent no packets: its agent is too old to check networks: update it"`+lost)
	f.probe = func(r *agentv1.ProbeNetworkRequest) (*agentv1.ProbeNetworkResponse, error) {
		out := &agentv1.ProbeNetworkResponse{}
		for _, n := range r.GetNodes() {
			out.Probes = append(out.Probes, &agentv1.NetworkProbe{Node: n, Reached: true, LatencyMicroseconds: 70, Mtu: 1400, Problem: "small"})
		}
		return out, nil
	}
	is(t, "answer of the check", check(), `mtu 1450, left out 0; back: n to other: true 70 1400 "small"`+lost)
	_, err := c.CheckNetwork(ctxFor(t), &clusterv1.CheckNetworkRequest{Name: "none"})
	says(t, err, codes.NotFound, "persysctl network list")
}

// TestFollowing: in a large network each node sends packets to 16 other nodes and receives packets from 16
// other nodes.
func TestFollowing(t *testing.T) {
	var nodes []string
	for i := range 40 {
		nodes = append(nodes, fmt.Sprintf("n%02d", i))
	}
	asked := map[string]int{}
	for i, from := range nodes {
		to := following(nodes, i)
		if len(to) != checkedPeers || slices.Contains(to, from) {
			t.Fatalf("node %s sends packets to %v, want %d other nodes", from, to, checkedPeers)
		}
		for _, n := range to {
			asked[n]++
		}
	}
	for _, n := range nodes {
		if asked[n] != checkedPeers {
			t.Errorf("node %s receives packets from %d nodes, want %d", n, asked[n], checkedPeers)
		}
	}
	if got := following(nodes[:3], 1); !slices.Equal(got, []string{"n00", "n02"}) {
		t.Errorf("in a network of 3 nodes, n01 sends packets to %v, want both other nodes", got)
	}
}
