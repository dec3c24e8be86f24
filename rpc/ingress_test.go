package rpc

import (
	"fmt"
	"strings"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// TestIngress: the first container with a port in ingress mode creates the network of its namespace. Also nodes without
// an instance get the network, and the port with its ready instances. A second service with the same port is refused.
// Why and GetNetwork show that node n2 does not answer on the port, which another program uses there.
func TestIngress(t *testing.T) {
	g := newGroup(t, 1)
	answering := func(id, address, held string) {
		t.Helper()
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: address + ":50051", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
			Networking: &commandv1.NodeNetworking{Address: address, Mtu: 1450, Ingress: true, HeldPorts: held},
		}}})
	}
	answering("n1", "10.0.0.1", "")
	answering("n2", "10.0.0.2", "8080/tcp")
	publishing := func(id string) *controlv1.ApplyWorkloadRequest {
		r := joining(id)
		r.GetSpec().GetContainer().Ports = []*controlv1.Port{{HostPort: 8080, ContainerPort: 80, Mode: "ingress"}}
		return r
	}
	// A refused container leaves no network behind, neither alone nor with others.
	absent := publishing("absent")
	absent.IfRevision = "1-1-1"
	if resp, err := g.control(0).ApplyWorkload(ctxFor(t), absent); err == nil && resp.GetSuccess() {
		t.Error("a container was applied, although the revision that its condition names does not exist")
	}
	ok(t, second(g.cluster(0).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{absent, joining("plain")}})))
	if _, found := g.view().Network("default", "ingress"); found {
		t.Error("a container that was refused has left the network \"ingress\" in the state")
	}
	g.put(t, publishing("web"), "n1")
	g.reports("web", "n1", "", "10.216.0.2")
	names := namesOf(g.view()).forNode(g.view(), "n2")
	if list := names.GetIngress(); len(list) != 1 || list[0].GetPort() != 8080 || list[0].GetService() != "web" || strings.Join(list[0].GetEndpoints(), " ") != "10.216.0.2:80" {
		t.Errorf("a node without an instance gets the ports %v in ingress mode, want 8080 of web at 10.216.0.2:80", list)
	}
	n, _ := g.view().Node("n2")
	if list := netmap(g.view(), n, 4790).GetNetworks(); len(list) != 1 || !list[0].GetIngress() || list[0].GetName() != "ingress" {
		t.Errorf("a node without an instance gets the networks %v, want only network \"ingress\"", list)
	}
	resp, err := g.control(0).ApplyWorkload(ctxFor(t), publishing("other"))
	ok(t, err)
	if text := resp.GetErrorMessage(); resp.GetSuccess() || !strings.Contains(text, `8080/tcp in mode ingress is already the port of service "web" of namespace "default"`) {
		t.Errorf("the apply of a second service with port 8080 returned success %t, error %q; want a refusal that names service web", resp.GetSuccess(), text)
	}
	why, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web"})
	ok(t, err)
	if text := why.GetReasonMessage(); !strings.Contains(text, "port 8080/tcp does not answer on node n2: a program of the machine uses it (ss") || strings.Contains(text, "PERSYS_POLICY") {
		t.Errorf("Why returned the reason %q, want that a program uses the port on node n2", text)
	}
	forbidding := &commandv1.RegisterNode{
		Id: "n2", Endpoint: "10.0.0.2:50051", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
		Networking: &commandv1.NodeNetworking{Address: "10.0.0.2", Mtu: 1450, Ingress: true, HeldPorts: "8080/tcp", ForbiddenPorts: "8080/tcp"},
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: forbidding}})
	why, err = g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web"})
	ok(t, err)
	if text := why.GetReasonMessage(); !strings.Contains(text, "port 8080/tcp does not answer on node n2: the PERSYS_POLICY of the node forbids it") || strings.Contains(text, "program") {
		t.Errorf("Why returned the reason %q, want that the policy of node n2 forbids the port", text)
	}
	shown, err := g.cluster(0).GetNetwork(ctxFor(t), &clusterv1.GetNetworkRequest{Name: "ingress"})
	ok(t, err)
	if list := shown.GetNetwork().GetIngress(); len(list) != 1 || list[0].GetService() != "web" {
		t.Errorf("GetNetwork shows the ports %v in ingress mode, want one of service web", list)
	}
	for _, s := range shown.GetNetwork().GetSlices() {
		if s.GetNodeId() != "" && !s.GetAnswers() || s.GetNodeId() == "n2" && s.GetHeldPorts() != "8080/tcp" {
			t.Errorf("GetNetwork shows the slice %v, want that the slice's node answers at ports in ingress mode, and node n2 not at 8080/tcp", s)
		}
	}
	ok(t, second(g.control(0).ApplyWorkload(ctxFor(t), func() *controlv1.ApplyWorkloadRequest {
		r := publishing("web")
		r.DesiredState = "Stopped"
		return r
	}())))
	if list := namesOf(g.view()).forNode(g.view(), "n2").GetIngress(); len(list) != 1 || len(list[0].GetEndpoints()) != 0 {
		t.Errorf("the port of a service that shall stop is %v, want the port without instances", list)
	}
}

// TestPoliciesOfNodesForbidIngressPorts: a node whose policy forbids a port does not answer there, although the instances
// run on other nodes. `why` names the node and the policy.
func TestPoliciesOfNodesForbidIngressPorts(t *testing.T) {
	g := newGroup(t, 1)
	for i, id := range []string{"n1", "n2"} {
		address := fmt.Sprintf("10.0.0.%d", i+1)
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: address + ":50051", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
			Labels: []*commandv1.Label{{Key: "node", Value: id}}, Networking: &commandv1.NodeNetworking{Address: address, Mtu: 1450, Ingress: true},
		}}})
	}
	r := joining("web")
	r.GetSpec().GetContainer().Ports = []*controlv1.Port{{HostPort: 8080, ContainerPort: 80, Mode: "ingress"}}
	g.put(t, r, "n1")
	ports := func(node string) int { return len(namesOf(g.view()).forNode(g.view(), node).GetIngress()) }
	is(t, "number of ports of node n2 before a policy is bound to it", ports("n2"), 1)
	before := namesOf(g.view()).forNode(g.view(), "n2").GetDigest()
	g.do(&commandv1.Command{Body: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: &commandv1.Policy{Name: "dmz", Ports: []string{"443"}}}}})
	g.do(&commandv1.Command{Body: &commandv1.Command_BindPolicy{BindPolicy: &commandv1.BindPolicy{Policy: "dmz", NodeLabel: &commandv1.Label{Key: "node", Value: "n2"}}}})
	is(t, "number of ports of the node whose policy forbids the port", ports("n2"), 0)
	is(t, "number of ports of node n1, which has no policy", ports("n1"), 1)
	is(t, "whether the digest of the names that node n2 gets has changed", namesOf(g.view()).forNode(g.view(), "n2").GetDigest() != before, true)
	why, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web"})
	ok(t, err)
	if text := why.GetReasonMessage(); !strings.Contains(text, "port 8080/tcp does not answer on node n2") || !strings.Contains(text, "dmz") {
		t.Errorf("Why returned the reason %q, want that node n2 does not answer because of policy dmz", text)
	}
}

// TestIngressOfTwoServices: after a rollback two services publish the same port in ingress mode. The port must lead to
// the service with the oldest workload, in whatever order the services are read.
func TestIngressOfTwoServices(t *testing.T) {
	n := &fsm.Network{ID: 1, Name: "back"}
	workload := func(id, group string, created uint64) *fsm.Workload {
		return &fsm.Workload{ID: id, CreateIndex: created, Actual: &fsm.Observation{}, Demand: &fsm.Demand{Group: group, Networks: []string{"back"}, Ingress: []fsm.IngressPort{{Port: 80, Protocol: "tcp", Target: 80}}}}
	}
	a, b, c := workload("a", "x", 50), workload("b", "", 10), workload("c", "x", 5)
	for _, order := range [][]*fsm.Workload{{a, b, c}, {c, b, a}, {b, a, c}} {
		ports, by := ingressPorts{}, map[uint32][]*agentv1.NetworkIngress{}
		for _, w := range order {
			ports.add(w, n)
		}
		ports.list(by)
		if list := by[1]; len(list) != 1 || list[0].GetService() != "x" {
			t.Errorf("the port belongs to %v, want service x, which has the oldest workload", list)
		}
	}
}

// TestTakenPorts: two services publish the same port in ingress mode, and the port leads to the older one. The text
// about the younger service must say this. It must not name the older service if that is in another namespace.
func TestTakenPorts(t *testing.T) {
	workload := func(id, namespace string, created uint64, port uint16) *fsm.Workload {
		return &fsm.Workload{ID: id, Namespace: namespace, CreateIndex: created, Actual: &fsm.Observation{}, Demand: &fsm.Demand{Ingress: []fsm.IngressPort{{Port: port, Protocol: "tcp", Target: 80}}}}
	}
	old, young, shop := workload("old", "", 5, 80), workload("young", "", 9, 80), workload("shop", "shop", 7, 80)
	gone := workload("gone", "", 1, 80)
	gone.Desired = fsm.DesiredDeleted
	v := claims{list: []*fsm.Workload{young, gone, shop, old, workload("other", "", 2, 81)}}
	for _, c := range []struct {
		w    *fsm.Workload
		want string
	}{
		{old, ""},
		{young, "port 80/tcp leads to the older service old, which publishes it too: publish another port"},
		{shop, "port 80/tcp leads to an older service of another namespace: publish another port"},
	} {
		if got := strings.Join(taken(v, c.w), "; "); got != c.want {
			t.Errorf("the text about the ports of workload %q is %q, want %q", c.w.ID, got, c.want)
		}
	}
}

// claims is a fake view of the state that contains only workloads, those that publish (claim) the ports.
type claims struct {
	fsm.View
	list []*fsm.Workload
}

func (c claims) Workloads(_ string, fn func(*fsm.Workload) bool) {
	for _, w := range c.list {
		if !fn(w) {
			return
		}
	}
}
