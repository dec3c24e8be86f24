package rpc

import (
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/stack"
)

// TestPortsOfProgramsAreRefused: the state knows at which ports agents and schedulers listen. A port in ingress mode, which
// every node answers, is refused if one node's programs use it. A port in host mode is refused only if the programs of
// every node use it, because the planner chooses a node where it is free. Apply and plan name the field.
func TestPortsOfProgramsAreRefused(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	host := func(port, protocol, mode string) *controlv1.ApplyWorkloadRequest {
		r := web("w" + mode + port)
		p := &controlv1.Port{ContainerPort: 80, Mode: mode, Protocol: protocol}
		for _, d := range port {
			p.HostPort = p.HostPort*10 + (d - '0')
		}
		r.Spec.GetContainer().Ports = []*controlv1.Port{{HostPort: 9000, ContainerPort: 81}, p}
		if mode == "ingress" {
			r.Spec.GetContainer().Ports = r.Spec.GetContainer().Ports[1:]
		}
		return r
	}
	stack := composeRequest("stack", "services:\n  a:\n    image: a\n    ports: ['9000:80', '50051:81']\n")
	try := func(name string, r *controlv1.ApplyWorkloadRequest, want ...string) {
		t.Helper()
		planned, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{r}})
		ok(t, err)
		applied, err := g.control(0).ApplyWorkload(ctxFor(t), r)
		ok(t, err)
		for way, text := range map[string]string{"plan": planned.GetWorkloads()[0].GetReason(), "apply": applied.GetErrorMessage()} {
			if want == nil && way == "apply" && text != "" {
				t.Errorf("a workload that publishes %s must be accepted, but is refused: %s", name, text)
			}
			for _, word := range want {
				if !strings.Contains(text, word) {
					t.Errorf("a workload that publishes %s: the refusal by %s must contain %q, but is %q", name, way, word, text)
				}
			}
		}
	}
	for id, n := range map[string]*commandv1.RegisterNode{"a": {Endpoint: "10.0.0.1:50051", MetricsPort: 8089}, "b": {Endpoint: "10.0.0.2:50051", MetricsPort: 8090}} {
		n.Id, n.CpuMillicores, n.MemoryMib, n.Types, n.Protocol = id, 8000, 8192, []string{"container", "compose"}, 1
		n.Networking = &commandv1.NodeNetworking{Address: n.GetEndpoint()[:8], Mtu: 1450, Ingress: true}
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: n}})
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
		Id: "other", Name: "s2", GrpcAddr: "10.0.0.2:8085", RaftAddr: "10.0.0.2:8086", FeatureLevel: 1,
	}}})
	try("the port of every agent", host("50051", "tcp", "host"), "container.ports[1]", "50051/tcp", "no node", "the agent", "node a", "publish another port")
	try("the port of every agent, over UDP", host("50051", "udp", "host"))
	try("the port of one agent", host("8089", "tcp", "host"))
	try("the port of VXLAN, which every node uses for networks", host("4790", "udp", "host"), "container.ports[1]", "4790/udp", "networks")
	try("the port of one scheduler", host("8086", "tcp", "host"))
	try("the port of one scheduler on every node", host("8085", "tcp", "ingress"), "container.ports[0]", "8085/tcp", "mode ingress", "scheduler s2", "node b", "publish another port")
	try("the port of one agent on every node", host("8090", "tcp", "ingress"), "container.ports[0]", "the agent", "node b")
	try("a free port on every node", host("8091", "tcp", "ingress"))
	try("the port of every agent, in a stack", stack, "services.a.ports", "50051/tcp", "no node")
}
