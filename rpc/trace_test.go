package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestTrace: a trace follows a connection from a container or node. The agent where it starts resolves the name and
// connects; the later hops come from the state. Each case says at which hop the connection must be shown to stop.
func TestTrace(t *testing.T) {
	g, f, _, _ := agentWorld(t, 0)
	register := func(id, endpoint, address, held string) {
		t.Helper()
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: endpoint, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1,
			Networking: &commandv1.NodeNetworking{Address: address, Mtu: 1450, Ingress: true, HeldPorts: held},
		}}})
	}
	register("n", f.addr, "10.0.0.1", "")
	register("other", "10.0.0.2:50051", "10.0.0.2", "8081/tcp")
	c := g.cluster(0)
	for _, name := range []string{"back", "side"} {
		ok(t, second(c.CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: name})))
	}
	g.put(t, joining("api", "back"), "n")
	g.put(t, joining("db", "back"), "other")
	g.put(t, joining("loner", "side"), "n")
	publishing := func(id string, port int32) *controlv1.ApplyWorkloadRequest {
		r := joining(id)
		r.GetSpec().GetContainer().Ports = []*controlv1.Port{{HostPort: port, ContainerPort: 80, Mode: "ingress"}}
		return r
	}
	g.put(t, publishing("web", 8080), "n")
	g.put(t, publishing("held", 8081), "n")
	g.reports("api", "n", "", "10.216.0.2")
	g.reports("db", "other", "", "10.216.0.66")
	g.reports("loner", "n", "", "10.216.16.2")
	g.reports("web", "n", "", "10.216.32.2")
	var asked *agentv1.TraceConnectionRequest
	trace := func(host string, port uint32, from string) string {
		t.Helper()
		asked = nil
		r, err := c.Trace(ctxFor(t), &clusterv1.TraceRequest{Host: host, Port: port, From: from})
		ok(t, err)
		var out []string
		for _, h := range r.GetHops() {
			text := h.GetStep() + " " + h.GetSubject()
			if h.GetIdle() {
				text += " (idle)"
			} else if h.GetProblem() != "" {
				text += ": " + h.GetProblem()
			}
			out = append(out, text)
		}
		return strings.Join(out, "; ")
	}
	is(t, "hops of a trace if the agent is too old", trace("10.216.0.66", 80, "n"), "start n; node n: the agent of n opened no connection: its agent is too old to trace connections: update it")

	connection := func(at, problem string) *agentv1.TracedConnection {
		return &agentv1.TracedConnection{Address: at, Problem: problem, LatencyMicroseconds: 9, Silent: strings.HasPrefix(problem, "no answer")}
	}
	answer, problem := []*agentv1.TracedAddress(nil), ""
	f.trace = func(r *agentv1.TraceConnectionRequest) (*agentv1.TraceConnectionResponse, error) {
		asked = r
		out := &agentv1.TraceConnectionResponse{Addresses: answer, Problem: problem}
		for _, text := range r.GetAddresses() {
			if answer == nil {
				out.Addresses = append(out.Addresses, &agentv1.TracedAddress{Connection: connection(strings.TrimSuffix(text, ":80")+":80", "")})
			}
		}
		return out, nil
	}
	f.probe = func(*agentv1.ProbeNetworkRequest) (*agentv1.ProbeNetworkResponse, error) {
		return &agentv1.ProbeNetworkResponse{Probes: []*agentv1.NetworkProbe{{Node: "other", Problem: "open UDP port 4790"}}}, nil
	}
	is(t, "hops of a trace to the address of an instance", trace("10.216.0.66", 80, "n"), "start n; instance db; node other; container db")
	is(t, "request to the agent about an address", fmt.Sprintf("%v %d %q", asked.GetAddresses(), asked.GetPort(), asked.GetWorkloadId()), `[10.216.0.66] 80 ""`)
	back, _ := g.view().Network("default", "back")
	service, found := back.Service("db")
	if !found {
		t.Fatal("service db must have a service address, but has none")
	}
	at := service.String() + ":80"
	answer = []*agentv1.TracedAddress{{Connection: connection(at, ""), Service: true, Instances: []*agentv1.TracedConnection{connection("10.216.0.66:80", "no answer within 1s")}}}
	is(t, "hops of a trace to a name, from a container", trace("DB.", 80, "api"), "start api; name db; address "+service.String()+"; instance db: no answer within 1s; node other: open UDP port 4790; container db")
	is(t, "request to the agent about a name", fmt.Sprintf("%s %v %s", asked.GetName(), asked.GetNetworks(), asked.GetWorkloadId()), "db [1] api")
	answer = []*agentv1.TracedAddress{{Connection: connection(at, "refused"), Service: true}}
	g.reports("db", "other", "unhealthy", "10.216.0.66")
	is(t, "hops of a trace to a service without a ready instance", trace("db", 80, ""), "start n; name db; address "+service.String()+": no instance of the service is ready; instance db (idle)")
	answer, problem = nil, "the name does not exist"
	is(t, "hops of a trace to a name in a network that the container does not join", trace("db", 80, "loner"), "start loner; name db: the name does not exist; it is a name of network back, which the container does not join; instance db (idle)")
	problem = ""
	is(t, "hops of a trace to an address in a network that the container does not join", trace("10.216.0.2", 80, "loner"), "start loner; address 10.216.0.2: the container does not join the network: it joins side")
	is(t, "hops of a trace to an address outside of the cluster", trace("192.0.2.1", 80, "n"), "start n; address 192.0.2.1: no network that you may see has the address, and no node is registered with it")
	is(t, "whether no agent was called for an address outside of the cluster", asked == nil, true)
	for what, a := range map[string]string{"the bridge of the node": "10.216.0.1", "the bridge of another node": "10.216.0.65", "a free address": "10.216.0.3", "an address between the slices": "10.216.8.1"} {
		is(t, "hops of a trace to "+what, trace(a, 22, "n"), "start n; address "+a+": no workload and no service of the network has the address (`persysctl network inspect back` lists them)")
		is(t, "whether no agent was called for "+what, asked == nil, true)
	}

	is(t, "hops of a trace to a port in ingress mode", trace("n", 8080, "n"), "start n; name n; address 10.0.0.1; port 8080/tcp; instance web; node n; container web")
	is(t, "address to which the node of the port was asked to connect", fmt.Sprint(asked.GetAddresses()), "[10.216.32.2:80]")
	if got := trace("10.0.0.2", 8081, "n"); !strings.Contains(got, "port 8081/tcp: a program of the machine uses the port") {
		t.Errorf("the trace to a port that another program of the machine uses is %s, want that the port's hop says so", got)
	}
	if got := trace("10.0.0.2", 9999, "n"); !strings.HasSuffix(got, "port 9999/tcp: no service that you may see publishes the port in mode ingress, and no workload publishes it on node other") {
		t.Errorf("the trace to a port that no workload publishes is %s, want that its last hop says so", got)
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "other"}}}}})
	g.reports("db", "other", "", "10.216.0.66")
	if got := trace("10.216.0.66", 80, "n"); !strings.Contains(got, "node other: the node is lost") {
		t.Errorf("the trace to an instance on a lost node is %s, want that the hop of the node says so", got)
	}

	for what, bad := range map[string]struct {
		req  *clusterv1.TraceRequest
		code codes.Code
		text string
	}{
		"no host":  {&clusterv1.TraceRequest{Port: 80}, codes.InvalidArgument, "host must have"},
		"no port":  {&clusterv1.TraceRequest{Host: "db"}, codes.InvalidArgument, "port: 0 is not between 1 and 65535"},
		"no start": {&clusterv1.TraceRequest{Host: "db", Port: 80, From: "none"}, codes.NotFound, `no workload and no node is called "none"`},
		"idle":     {&clusterv1.TraceRequest{Host: "db", Port: 80, From: "held"}, codes.FailedPrecondition, `workload "held" does not run`},
	} {
		_, err := c.Trace(ctxFor(t), bad.req)
		if err == nil {
			t.Errorf("a trace request with %q must be refused, but was accepted", what)
			continue
		}
		says(t, err, bad.code, bad.text)
	}
}
