package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestNetworkViewLeavesOut: NetworkView leaves out networks and other nodes (peers) that cannot work because of
// the addresses of nodes, and names them in a problem. It keeps all other networks and peers.
func TestNetworkViewLeavesOut(t *testing.T) {
	for _, c := range []struct {
		name            string
		change          func(*agentv1.NetworkView)
		address         string
		peers, networks []string // peers with their addresses, networks with the peers that have slices
		problem         string   // text of the only problem; "" if there is none
	}{
		{"nothing", func(*agentv1.NetworkView) {}, "10.0.0.1", []string{"b 10.0.0.2", "c 10.0.0.3"}, []string{"back [b c]", "web [c]"}, ""},
		{"IPv4 addresses of nodes in IPv6 form are converted to IPv4", func(m *agentv1.NetworkView) { m.Address, m.Peers[0].Address = "::ffff:10.0.0.1", "::ffff:10.0.0.2" },
			"10.0.0.1", []string{"b 10.0.0.2", "c 10.0.0.3"}, []string{"back [b c]", "web [c]"}, ""},
		{"a peer whose address is in the subnet of a network is left out", func(m *agentv1.NetworkView) { m.Peers[1].Address = "10.216.7.7" }, "10.0.0.1", []string{"b 10.0.0.2"},
			[]string{"back [b]", "web []"}, "node c is left out of the networks: its address 10.216.7.7 is in the subnet 10.216.0.0/20 of network shop/back"},
		{"a network whose subnet contains this node's address is left out", func(m *agentv1.NetworkView) { m.Address = "10.216.7.7" }, "10.216.7.7", []string{"b 10.0.0.2", "c 10.0.0.3"},
			[]string{"web [c]"}, "network shop/back is left out on this node: its subnet 10.216.0.0/20 contains 10.216.7.7"},
		{"a peer with the address of this node is left out", func(m *agentv1.NetworkView) { m.Peers[0].Address = "::ffff:10.0.0.1" }, "10.0.0.1", []string{"c 10.0.0.3"},
			[]string{"back [c]", "web [c]"}, "node b is left out of the networks: it registered with 10.0.0.1, which is the address of this node"},
		{"a peer whose address is a host name is left out", func(m *agentv1.NetworkView) { m.Peers[0].Address = "b.example" }, "10.0.0.1", []string{"c 10.0.0.3"},
			[]string{"back [c]", "web [c]"}, `node b is left out of the networks: "b.example" is not the address of a host`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &agentv1.NetworkView{
				Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1, Term: 1}, Index: 9, Port: 4790, Vni: 7, Address: "10.0.0.1",
				Peers: []*agentv1.NetworkPeer{{Node: "b", Address: "10.0.0.2"}, {Node: "c", Address: "10.0.0.3"}},
				Networks: []*agentv1.Network{
					{Id: 1, Namespace: "shop", Name: "back", Cidr: "10.216.0.0/20", Mtu: 1450, Slice: "10.216.0.0/26",
						Peers: []*agentv1.NetworkSlice{{Node: "b", Cidr: "10.216.0.64/26"}, {Node: "c", Cidr: "10.216.0.128/26"}}},
					{Id: 2, Namespace: "default", Name: "web", Cidr: "10.216.16.0/20", Mtu: 1450, Slice: "10.216.16.0/26",
						Peers: []*agentv1.NetworkSlice{{Node: "c", Cidr: "10.216.16.64/26"}}},
				},
			}
			c.change(m)
			v, err := NetworkView(m)
			if err != nil {
				t.Fatal(err)
			}
			var peers, networks []string
			for _, p := range v.Peers {
				peers = append(peers, p.Node+" "+p.Address.String())
			}
			for _, n := range v.Networks {
				var with []string
				for _, s := range n.Peers {
					with = append(with, s.Node)
				}
				networks = append(networks, fmt.Sprint(n.Name, " ", with))
			}
			if v.Address.String() != c.address || !slices.Equal(peers, c.peers) || !slices.Equal(networks, c.networks) {
				t.Errorf("the view has address %s, peers %v and networks %v; want %s, %v and %v", v.Address, peers, networks, c.address, c.peers, c.networks)
			}
			if got := strings.Join(v.Problems, "\n"); (got == "") != (c.problem == "") || !strings.Contains(got, c.problem) || len(v.Problems) > 1 {
				t.Errorf("the problems of the view are %q, want at most one, with the text %q", v.Problems, c.problem)
			}
		})
	}
}

// TestServiceSlices: a block of service addresses must lie within its network, must be a /26, and must not
// overlap the parts of the network that nodes use.
func TestServiceSlices(t *testing.T) {
	for text, fault := range map[string]string{
		"10.216.15.192/26": "", "10.217.0.0/26": "is not within", "10.216.0.64/26": "overlaps", "10.216.15.128/25": "is not a /26", "here": "prefix",
	} {
		m := &agentv1.NetworkView{
			Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1, Term: 1}, Index: 9, Port: 4790, Vni: 7, Address: "10.0.0.1",
			Peers: []*agentv1.NetworkPeer{{Node: "b", Address: "10.0.0.2"}},
			Networks: []*agentv1.Network{{Id: 1, Namespace: "shop", Name: "back", Cidr: "10.216.0.0/20", Mtu: 1450, Slice: "10.216.0.0/26",
				Peers: []*agentv1.NetworkSlice{{Node: "b", Cidr: "10.216.0.64/26"}}, Services: []string{text}}},
		}
		v, err := NetworkView(m)
		switch {
		case fault == "" && (err != nil || fmt.Sprint(v.Networks[0].Services) != "["+text+"]"):
			t.Errorf("%s: %v, error %v", text, v.Networks, err)
		case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
			t.Errorf("for the service slice %s NetworkView returned the error %v, want %q", text, err, fault)
		}
	}
}
