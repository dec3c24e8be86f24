package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// memberText returns members as text.
func memberText(list []*agentv1.NetworkMember) (out []string) {
	for _, m := range list {
		text := fmt.Sprintf("%d %s.%s", m.GetNetwork(), m.GetName(), m.GetNamespace())
		if m.GetGroup() != "" {
			text += " of " + m.GetGroup()
		}
		if m.GetAddress() != "" {
			text += " at " + m.GetAddress()
		}
		for _, p := range m.GetPorts() {
			text += fmt.Sprintf(" %s/%s=%d", p.GetName(), p.GetProtocol(), p.GetPort())
		}
		out = append(out, text)
	}
	return out
}

// reports commits the report of an agent that workload id runs on the node, with these health and network addresses.
func (g *group) reports(id, node, health string, addresses ...string) {
	g.t.Helper()
	w, ok := g.view().Workload(id)
	if !ok {
		g.t.Fatalf("the state must have workload %s", id)
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
		Workload: id, Node: node, Generation: fsm.GenerationPB(w.Generation), State: "Running", Acknowledged: true, Health: health, Addresses: addresses,
	}}}}})
}

// TestNamesOfMembers: a member is listed with its address while it runs, is healthy, and has an address in the
// slice of its node (the part of the network's addresses that the node holds). A node gets the names of the
// networks in which it holds a slice.
func TestNamesOfMembers(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	g.networkNode("n2", "10.0.0.2")
	for _, name := range []string{"back", "side"} {
		ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: name})))
	}
	g.put(t, joining("web", "back", "side"), "n1")
	g.put(t, joining("api", "back"), "n2")
	g.put(t, joining("sick", "back"), "n2")
	g.put(t, joining("moved", "back"), "n2")
	g.put(t, joining("idle", "side"), "n1")
	g.reports("web", "n1", "", "10.216.0.2", "10.216.16.2", "172.17.0.2")
	g.reports("api", "n2", "healthy", "10.216.0.66")
	g.reports("sick", "n2", "unhealthy", "10.216.0.67")
	g.reports("moved", "n2", "", "10.216.0.9")
	for node, want := range map[string][]string{
		"n1": {"1 api.default at 10.216.0.66", "1 moved.default", "1 sick.default", "1 web.default at 10.216.0.2", "2 idle.default", "2 web.default at 10.216.16.2"},
		"n2": {"1 api.default at 10.216.0.66", "1 moved.default", "1 sick.default", "1 web.default at 10.216.0.2"},
	} {
		names := namesOf(g.view()).forNode(g.view(), node)
		if got := memberText(names.GetMembers()); !slices.Equal(got, want) {
			t.Errorf("node %s gets the names\n%q, want\n%q", node, got, want)
		}
		if !slices.Equal(names.GetNamespaces(), []string{"default"}) {
			t.Errorf("the namespaces are %q, want only default", names.GetNamespaces())
		}
	}
	shown, err := g.cluster(0).GetNetwork(ctxFor(t), &clusterv1.GetNetworkRequest{Name: "side"})
	ok(t, err)
	if got := memberText(shown.GetNetwork().GetMembers()); !slices.Equal(got, []string{"2 idle.default", "2 web.default at 10.216.16.2"}) {
		t.Errorf("GetNetwork shows the members %q of network side, want member idle without an address and member web with an address", got)
	}
	ok(t, second(g.control(0).ApplyWorkload(ctxFor(t), func() *controlv1.ApplyWorkloadRequest {
		r := joining("web", "back", "side")
		r.DesiredState = "Stopped"
		return r
	}())))
	if got := memberText(namesOf(g.view()).members[2]); !slices.Equal(got, []string{"2 idle.default", "2 web.default"}) {
		t.Errorf("a workload that shall stop still has an address among the members %q", got)
	}
}

// TestWatchNetworkNames: an agent with outdated names gets the present names at once; an agent that has the
// present names waits for a change, or gets an empty answer.
func TestWatchNetworkNames(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
	g.put(t, joining("web", "back"), "n1")
	have := &controlv1.WatchNetworkNamesRequest{NodeId: "n1", ClusterId: "c1"}
	watch := func() *agentv1.NetworkNames {
		t.Helper()
		r, err := g.control(0).WatchNetworkNames(ctxFor(t), have)
		ok(t, err)
		if m := r.GetNames(); m != nil {
			have.Index, have.Incarnation, have.Digest = m.GetIndex(), m.GetEpoch().GetIncarnation(), m.GetDigest()
		}
		return r.GetNames()
	}
	first := watch()
	if got := memberText(first.GetMembers()); !slices.Equal(got, []string{"1 web.default"}) || first.GetEpoch().GetClusterId() != "c1" || first.GetIndex() == 0 {
		t.Fatalf("the first call returned the names %v, want member web without an address, in cluster c1", first)
	}
	next := make(chan *agentv1.NetworkNames, 1)
	began := time.Now()
	go func() { next <- watch() }()
	g.reports("web", "n1", "", "10.216.0.2")
	if got := memberText((<-next).GetMembers()); !slices.Equal(got, []string{"1 web.default at 10.216.0.2"}) {
		t.Errorf("after the start of workload web the names are %q, want member web with its address", got)
	}
	if took := time.Since(began); took >= namesWait {
		t.Errorf("the agent got the change after %s, want it at once", took)
	}
	if m := watch(); m != nil {
		t.Errorf("without a change the agent got the names %v, want an empty answer", m)
	}
	_, err := g.control(0).WatchNetworkNames(ctxFor(t), &controlv1.WatchNetworkNamesRequest{})
	says(t, err, codes.InvalidArgument, "node_id must not be blank")
	_, err = g.control(0).WatchNetworkNames(ctxFor(t), &controlv1.WatchNetworkNamesRequest{NodeId: "none"})
	says(t, err, codes.NotFound, "not registered")
	_, err = g.control(0).WatchNetworkNames(ctxFor(t), &controlv1.WatchNetworkNamesRequest{NodeId: "n1", ClusterId: "c2"})
	says(t, err, codes.FailedPrecondition, "cluster c2")
}

// TestServicesOfNetworks: a node gets the addresses of the services in its networks, the slices (address ranges) from
// which these addresses come, and the slices of lost nodes. A service with endpoint_mode dnsrr has no address.
func TestServicesOfNetworks(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	g.networkNode("n2", "10.0.0.2")
	ok(t, second(g.cluster(0).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "back"})))
	g.put(t, joining("web", "back"), "n1")
	plain := joining("plain", "back")
	plain.GetSpec().GetContainer().EndpointMode = "dnsrr"
	g.put(t, plain, "n2")
	watch := func(have *agentv1.NetworkNames) *agentv1.NetworkNames {
		t.Helper()
		r, err := g.control(0).WatchNetworkNames(ctxFor(t), &controlv1.WatchNetworkNamesRequest{NodeId: "n1", ClusterId: "c1",
			Index: have.GetIndex(), Incarnation: have.GetEpoch().GetIncarnation(), Digest: have.GetDigest()})
		ok(t, err)
		return r.GetNames()
	}
	names := watch(nil)
	want := &agentv1.NetworkService{Network: 1, Namespace: "default", Name: "web", Address: "10.216.15.193"}
	if list := names.GetServices(); len(list) != 1 || !proto.Equal(list[0], want) || len(names.GetLost()) != 0 {
		t.Errorf("the services are %v and the slices of lost nodes %v; want only the service %v", list, names.GetLost(), want)
	}
	n, _ := g.view().Node("n1")
	if got := netmap(g.view(), n, 4790).GetNetworks()[0].GetServices(); !slices.Equal(got, []string{"10.216.15.192/26"}) {
		t.Errorf("the slices with addresses of services are %q, want only the last slice of the network", got)
	}
	shown, err := g.cluster(0).GetNetwork(ctxFor(t), &clusterv1.GetNetworkRequest{Name: "back"})
	ok(t, err)
	if s := shown.GetNetwork(); len(s.GetServices()) != 1 || s.GetCapacity() != 63 || s.GetNodes() != 2 {
		t.Errorf("GetNetwork shows the network as %v, want one service, 63 slices for nodes and 2 nodes", s)
	}
	next := make(chan *agentv1.NetworkNames, 1)
	go func() { next <- watch(names) }()
	g.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "n2"}}}}})
	if lost := (<-next).GetLost(); !slices.Equal(lost, []string{"10.216.0.64/26"}) {
		t.Errorf("the slices of lost nodes are %q, want the slice of node n2", lost)
	}
}
