package rpc

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// Steps of a trace.
const (
	stepStart     = "start"
	stepName      = "name"
	stepAddress   = "address"
	stepPort      = "port"
	stepInstance  = "instance"
	stepNode      = "node"
	stepContainer = "container"
)

// maxUnready is the maximum number of instances that a trace lists because the service sends them no connections.
const maxUnready = 16

// Trace implements the call of cluster.v1. A trace shows the path of a connection. The agent of the node where the
// connection starts resolves the name and opens the connection, because what that node sees of the networks decides
// whether it succeeds. The nodes and containers behind the addresses come from the state.
func (s *Server) Trace(ctx context.Context, req *clusterv1.TraceRequest) (*clusterv1.TraceResponse, error) {
	v, err := s.viewFor(ctx)
	if err != nil {
		return nil, err
	}
	host := strings.ToLower(strings.TrimSuffix(strings.TrimSpace(req.GetHost()), "."))
	switch {
	case host == "" || len(host) > 253:
		return nil, errorf(KindInvalid, "host must have 1 to 253 bytes: a name in a network, an address in a network or of a node, or the id of a node")
	case req.GetPort() < 1 || req.GetPort() > 65535:
		return nil, errorf(KindInvalid, "port: %d is not between 1 and 65535", req.GetPort())
	}
	entry, err := s.enterCheck(ctx)
	if err != nil {
		return nil, err
	}
	defer entry.Leave()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	t := &trace{s: s, ctx: ctx, v: v, names: s.names.at(v), port: uint16(req.GetPort()), namespace: cmp.Or(req.GetNamespace(), fsm.DefaultNamespace)}
	if err := t.startAt(req.GetFrom()); err != nil {
		return nil, err
	}
	if err := s.mayEnter(ctx, t.namespace); err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		t.toAddress(a.Unmap())
	} else {
		t.toName(host)
	}
	return t.out(), nil
}

// trace is one call of Trace.
type trace struct {
	s         *Server
	ctx       context.Context
	v         fsm.View
	names     *networkNames
	port      uint16
	namespace string

	start    *fsm.Node     // node at which the connection starts; nil until one is chosen
	workload *fsm.Workload // container at which it starts; nil = the node itself
	hops     []*clusterv1.TraceHop
	leftOut  uint32
}

func (t *trace) hop(step, subject, text, problem string) *clusterv1.TraceHop {
	h := &clusterv1.TraceHop{Step: step, Subject: clip(subject, 256), Text: clip(text, 512), Problem: clip(problem, 1024)}
	t.hops = append(t.hops, h)
	return h
}

// out returns the response. The hop of the start is put first, although the start may be chosen after other hops were
// found.
func (t *trace) out() *clusterv1.TraceResponse {
	r := &clusterv1.TraceResponse{LeftOut: t.leftOut}
	if t.start != nil {
		h := &clusterv1.TraceHop{Step: stepStart, Subject: t.start.ID, Text: "node"}
		if t.workload != nil {
			h.Subject, h.Text = t.workload.ID, "container on node "+t.start.ID
		}
		r.Hops = append(r.Hops, h)
	}
	r.Hops = append(r.Hops, t.hops...)
	return r
}

// startAt sets the start of the connection: the container of a workload or, if there is no such workload, a node. If
// id is empty, the function begin chooses the start later.
func (t *trace) startAt(id string) error {
	if id == "" {
		return nil
	}
	if w, ok := t.v.Workload(id); ok {
		if err := t.s.within(t.ctx, w); err != nil {
			return err
		}
		node, ok := t.v.Node(w.Node)
		switch {
		case w.Demand.Type != "container":
			return errorf(KindPrecondition, "workload %q is no container: start at its node instead (--from %s)", id, cmp.Or(w.Node, "NODE"))
		case !ok || w.Status != fsm.StatusRunning:
			return errorf(KindPrecondition, "workload %q does not run: it is %s; `persysctl why %s` says more", id, w.Status, id)
		}
		t.start, t.workload, t.namespace = node, w, w.In()
		return nil
	}
	node, ok := t.v.Node(id)
	if !ok {
		return errorf(KindNotFound, "from: no workload and no node is called %q; `persysctl list` and `persysctl nodes` show them", clip(id, 128))
	}
	t.start = node
	return nil
}

// begin chooses a node that holds a part of a network's addresses as the start of the connection, unless the start is
// known. The node except is chosen only if there is no other such node.
func (t *trace) begin(n *fsm.Network, except string) bool {
	if t.start != nil {
		return true
	}
	var last *fsm.Node
	t.v.Nodes("", func(node *fsm.Node) bool {
		if n != nil {
			if _, has := n.SliceOf(node.ID); !has {
				return true
			}
		}
		if node.Up && node.ID != except {
			t.start = node
		} else if node.Up || last == nil {
			last = node
		}
		return t.start == nil
	})
	if t.start == nil {
		t.start = last
	}
	return t.start != nil
}

// networks returns the networks in which the name is looked up: those of the container or node where the connection
// starts.
func (t *trace) networks() (out []*fsm.Network) {
	t.v.Networks(func(n *fsm.Network) bool {
		if n.In() != t.namespace || t.workload != nil && !slices.Contains(t.workload.Demand.Networks, n.Name) {
			return true
		}
		if t.start != nil {
			if _, has := n.SliceOf(t.start.ID); !has {
				return true
			}
		}
		out = append(out, n)
		return true
	})
	return out
}

func namesText(list []*fsm.Network) string {
	names := make([]string, len(list))
	for i, n := range list {
		names[i] = n.Name
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// toName follows a name.
func (t *trace) toName(host string) {
	home := t.networkWith(host)
	if node, ok := t.v.Node(host); ok && home == nil {
		if a, ok := nodeAddress(node); ok {
			t.hop(stepName, host, "node with address "+a.String(), "")
			t.toAddress(a)
			return
		}
	}
	if home != nil {
		t.begin(home, "")
	}
	list := t.networks()
	switch {
	case home == nil && len(list) == 0:
		t.hop(stepName, host, "", "the name is unknown: namespace "+t.namespace+" has no network here; `persysctl network list` shows the networks")
		return
	case t.start == nil && !t.begin(list[0], ""):
		t.hop(stepName, host, "", "the name is unknown on network "+namesText(list)+", and no node has a slice of it")
		return
	}
	list = t.networks()
	ids := make([]uint32, len(list))
	for i, n := range list {
		ids[i] = n.ID
	}
	r := t.ask(&agentv1.TraceConnectionRequest{Name: host, Networks: ids})
	if r == nil {
		return
	}
	if r.GetProblem() != "" {
		h := t.hop(stepName, host, "looked up on network "+cmp.Or(namesText(list), "-"), r.GetProblem())
		switch {
		case home != nil && !slices.Contains(list, home) && t.workload != nil:
			h.Problem = fmt.Sprintf("%s; it is a name of network %s, which the container does not join", r.GetProblem(), home.Name)
		case home != nil && !slices.Contains(list, home):
			h.Problem = fmt.Sprintf("%s; it is a name of network %s, of which node %s has no slice: start at a node with a member", r.GetProblem(), home.Name, t.start.ID)
		}
		t.unready(host)
		return
	}
	var to []string
	for _, x := range r.GetAddresses() {
		to = append(to, portOf(x.GetConnection()).Addr().String())
	}
	t.hop(stepName, host, strings.Join(to, ", "), "")
	t.follow(r)
}

// networkWith returns a network of the namespace in which a name exists; nil if there is none.
func (t *trace) networkWith(host string) (out *fsm.Network) {
	host = strings.TrimPrefix(host, "tasks.")
	label, in, _ := strings.Cut(host, ".")
	if in != "" && in != bounds.DNSLabel(t.namespace) {
		return nil
	}
	t.v.Networks(func(n *fsm.Network) bool {
		if n.In() == t.namespace && slices.ContainsFunc(t.names.members[n.ID], func(m *agentv1.NetworkMember) bool { return m.GetName() == label || m.GetGroup() == label }) {
			out = n
		}
		return out == nil
	})
	return out
}

// toAddress adds the hops of a connection to an address, which is either in a network or a node's own address.
func (t *trace) toAddress(a netip.Addr) {
	var network *fsm.Network
	t.v.Networks(func(n *fsm.Network) bool {
		if n.CIDR.Contains(a) {
			network = n
		}
		return network == nil
	})
	if network != nil && t.s.scopeOf(t.ctx).Has(network.In()) {
		t.inNetwork(a, network)
		return
	}
	var node *fsm.Node
	t.v.Nodes("", func(n *fsm.Node) bool {
		if at, ok := nodeAddress(n); ok && at == a {
			node = n
		}
		return node == nil
	})
	if node == nil {
		t.hop(stepAddress, a.String(), "", "no network that you may see has the address, and no node is registered with it")
		return
	}
	t.onNode(a, node)
}

// inNetwork adds the hops of a connection to an address in network n. No agent is asked for an address that belongs to
// no service and no workload, because it may be the address of a node's bridge: callers who may only read must not
// find out which ports the programs of a node listen at.
func (t *trace) inNetwork(a netip.Addr, n *fsm.Network) {
	name := n.In() + "/" + n.Name
	if service, _ := t.serviceAt(a); service == "" && t.memberAt(n, a) == nil {
		t.hop(stepAddress, a.String(), "in network "+name, "no workload and no service of the network has the address (`persysctl network inspect "+n.Name+"` lists them)")
		return
	}
	if !t.begin(n, "") {
		t.hop(stepAddress, a.String(), "in network "+name, "no node has a slice of the network")
		return
	}
	switch _, has := n.SliceOf(t.start.ID); {
	case t.workload != nil && (n.In() != t.workload.In() || !slices.Contains(t.workload.Demand.Networks, n.Name)):
		t.hop(stepAddress, a.String(), "in network "+name, "the container does not join the network: it joins "+cmp.Or(strings.Join(t.workload.Demand.Networks, ", "), "none"))
		return
	case !has:
		t.hop(stepAddress, a.String(), "in network "+name, "node "+t.start.ID+" has no slice of the network: start at a node with a member (`persysctl network inspect "+n.Name+"`)")
		return
	}
	if r := t.ask(&agentv1.TraceConnectionRequest{Addresses: []string{a.String()}}); r != nil {
		t.follow(r)
	}
}

// nodeAddress returns the IPv4 address of a node.
func nodeAddress(n *fsm.Node) (netip.Addr, bool) {
	text := n.Facts.Networking.Address
	if text == "" {
		text, _, _ = net.SplitHostPort(n.Facts.Endpoint)
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Unmap().Is4()
}

// onNode adds the hops of a connection to a port that is published on a node.
func (t *trace) onNode(a netip.Addr, node *fsm.Node) {
	down := ""
	if !node.Up {
		down = "node " + node.ID + " is lost"
	}
	t.hop(stepAddress, a.String(), "node "+node.ID, down)
	key := fmt.Sprintf("%d/tcp", t.port)
	scope := t.s.scopeOf(t.ctx)
	var network *fsm.Network
	var port *agentv1.NetworkIngress
	t.v.Networks(func(n *fsm.Network) bool {
		for _, p := range t.names.ingress[n.ID] {
			if scope.Has(n.In()) && p.GetPort() == uint32(t.port) && p.GetProtocol() == "tcp" {
				network, port = n, p
			}
		}
		return port == nil
	})
	if port == nil {
		t.hostPort(a, node, key)
		return
	}
	problem := ""
	switch facts := node.Facts.Networking; {
	case facts.Holds(key):
		problem = heldText(node, key, "the port")
	case !network.Answers(node) && facts.Lacks() != "":
		problem = "node " + node.ID + " cannot take part in networks: " + facts.Lacks()
	case !network.Answers(node):
		problem = "node " + node.ID + " does not answer at ports in mode ingress: it has no slice of network " + network.Name
	case len(port.GetEndpoints()) == 0:
		problem = "no instance of the service is ready"
	}
	h := t.hop(stepPort, key, fmt.Sprintf("service %s.%s by network %s", port.GetService(), port.GetNamespace(), network.Name), problem)
	t.begin(nil, node.ID)
	if r := t.ask(&agentv1.TraceConnectionRequest{Addresses: []string{a.String()}}); r != nil && len(r.GetAddresses()) > 0 {
		c := r.GetAddresses()[0].GetConnection()
		h.LatencyMicroseconds = c.GetLatencyMicroseconds()
		if h.Problem = cmp.Or(problem, c.GetProblem()); problem != "" && c.GetProblem() == "" {
			h.Problem += "; it did accept the connection"
		}
	}
	if _, has := network.SliceOf(node.ID); has && node.Up && len(port.GetEndpoints()) > 0 {
		start, workload := t.start, t.workload
		t.start, t.workload = node, nil // trace the further path from the node that answers at the port
		endpoints := port.GetEndpoints()
		if len(endpoints) > maxUnready {
			t.leftOut += uint32(len(endpoints) - maxUnready)
			endpoints = endpoints[:maxUnready]
		}
		if r := t.ask(&agentv1.TraceConnectionRequest{Addresses: endpoints}); r != nil {
			for _, x := range r.GetAddresses() {
				t.instance(x.GetConnection())
			}
			t.leftOut += r.GetLeftOut()
		}
		t.start, t.workload = start, workload
	}
	t.unready(port.GetService())
}

// hostPort adds the hops of a connection to a port that a workload publishes on its own node only.
func (t *trace) hostPort(a netip.Addr, node *fsm.Node, key string) {
	var found *fsm.Workload
	scope := t.s.scopeOf(t.ctx)
	t.v.Workloads("", func(w *fsm.Workload) bool {
		if w.Node == node.ID && scope.Has(w.In()) && slices.ContainsFunc(w.Actual.Ports, func(p fsm.PortBinding) bool {
			return p.HostPort == t.port && cmp.Or(p.Protocol, "tcp") == "tcp" && !p.Loopback()
		}) {
			found = w
		}
		return found == nil
	})
	if found == nil {
		t.hop(stepPort, key, "", "no service that you may see publishes the port in mode ingress, and no workload publishes it on node "+node.ID)
		return
	}
	h := t.hop(stepPort, key, "of workload "+found.ID, "")
	t.begin(nil, node.ID)
	if r := t.ask(&agentv1.TraceConnectionRequest{Addresses: []string{a.String()}}); r != nil && len(r.GetAddresses()) > 0 {
		c := r.GetAddresses()[0].GetConnection()
		h.LatencyMicroseconds, h.Problem = c.GetLatencyMicroseconds(), c.GetProblem()
	}
	t.container(found)
}

// ask calls the agent of the node where the connection starts. If that agent does not answer, it adds a hop with the
// reason and returns nil.
func (t *trace) ask(req *agentv1.TraceConnectionRequest) *agentv1.TraceConnectionResponse {
	req.Port = uint32(t.port)
	if t.workload != nil {
		req.WorkloadId = t.workload.ID
	}
	var problem string
	if t.start.Up {
		r, err := t.s.agents.traceConnection(t.ctx, t.start, req)
		if err == nil {
			return r
		}
		problem = "the agent of " + t.start.ID + " opened no connection: " + status.Convert(err).Message()
	} else {
		problem = "node " + t.start.ID + " is lost, so its agent opened no connection"
	}
	t.hop(stepNode, t.start.ID, "", problem)
	return nil
}

func portOf(c *agentv1.TracedConnection) netip.AddrPort {
	a, _ := netip.ParseAddrPort(c.GetAddress())
	return a
}

// follow adds the hops after the start: the service addresses, instances, nodes and containers to which the agent's
// connections led.
func (t *trace) follow(r *agentv1.TraceConnectionResponse) {
	t.leftOut += r.GetLeftOut()
	for _, x := range r.GetAddresses() {
		c := x.GetConnection()
		if !x.GetService() {
			t.instance(c)
			continue
		}
		service, network := t.serviceAt(portOf(c).Addr())
		ready := len(x.GetInstances())
		h := t.hop(stepAddress, portOf(c).Addr().String(), fmt.Sprintf("service %s, network %s, %d ready", service, network, ready), c.GetProblem())
		h.LatencyMicroseconds = c.GetLatencyMicroseconds()
		if ready == 0 {
			h.Problem = "no instance of the service is ready"
		}
		for _, i := range x.GetInstances() {
			t.instance(i)
		}
		t.unready(service)
	}
}

// serviceAt returns the names of the service with an address, and of its network.
func (t *trace) serviceAt(a netip.Addr) (service, network string) {
	t.v.Networks(func(n *fsm.Network) bool {
		for _, s := range t.names.services[n.ID] {
			if s.GetAddress() == a.String() {
				service, network = s.GetName()+"."+s.GetNamespace(), n.Name
			}
		}
		return service == ""
	})
	return service, network
}

// memberAt returns the workload that has an address in network n; nil if there is none. The address must be in the slice
// of the workload's node, as an agent could report any address.
func (t *trace) memberAt(n *fsm.Network, a netip.Addr) (found *fsm.Workload) {
	t.v.Workloads("", func(w *fsm.Workload) bool {
		slice, placed := n.SliceOf(w.Node)
		if placed && n.Prefix(slice).Contains(a) && w.In() == n.In() && slices.Contains(w.Demand.Networks, n.Name) && slices.Contains(w.Actual.Addresses, a.String()) {
			found = w
		}
		return found == nil
	})
	return found
}

// instance adds the hops of one instance: itself, its node and its container.
func (t *trace) instance(c *agentv1.TracedConnection) {
	at := portOf(c)
	var found *fsm.Workload
	var network *fsm.Network
	t.v.Networks(func(n *fsm.Network) bool {
		if n.CIDR.Contains(at.Addr()) {
			network = n
		}
		return network == nil
	})
	if network != nil {
		found = t.memberAt(network, at.Addr())
	}
	if found == nil {
		t.hop(stepInstance, at.String(), "", cmp.Or(c.GetProblem(), "no workload has the address: it may belong to a container of another program")).LatencyMicroseconds = c.GetLatencyMicroseconds()
		return
	}
	h := t.hop(stepInstance, found.ID, at.String(), c.GetProblem())
	h.LatencyMicroseconds = c.GetLatencyMicroseconds()
	t.node(found, network, c.GetSilent())
	t.container(found)
}

// node adds the hop of the node of an instance. If the instance did not answer (silent), the node of the start sends
// test packets to this node, to find out whether the network between them works.
func (t *trace) node(w *fsm.Workload, n *fsm.Network, silent bool) {
	node, ok := t.v.Node(w.Node)
	switch {
	case !ok:
		t.hop(stepNode, cmp.Or(w.Node, "-"), "", "the workload has no node")
	case !node.Up:
		t.hop(stepNode, node.ID, "", "the node is lost: "+cmp.Or(node.Reason, "it sends no heartbeats"))
	default:
		h := t.hop(stepNode, node.ID, string(node.Status()), "")
		if !silent || node.ID == t.start.ID {
			return
		}
		list, err := t.s.agents.probe(t.ctx, t.start, &agentv1.ProbeNetworkRequest{Network: n.ID, Nodes: []string{node.ID}})
		switch {
		case err != nil:
			h.Text += "; the network path to it could not be checked: " + status.Convert(err).Message()
		case len(list) == 1 && list[0].GetProblem() != "":
			h.Problem = list[0].GetProblem()
		default:
			h.Text += "; packets of the network reach it"
		}
	}
}

// container adds the hop of the container of an instance.
func (t *trace) container(w *fsm.Workload) {
	text, problem := statusText(w)
	t.hop(stepContainer, w.ID, text, problem)
}

// statusText returns what a workload does, and why it gets no connections; problem is "" if it gets some.
func statusText(w *fsm.Workload) (text, problem string) {
	text = string(w.Status)
	if w.Actual.Health != "" {
		text += ", " + w.Actual.Health
	}
	switch {
	case w.Desired != fsm.DesiredRunning:
		return text, "it gets no new connections, because it is about to stop"
	case w.Status != fsm.StatusRunning:
		return text, strings.TrimSuffix("it does not run: "+cmp.Or(w.Reason.Message, w.Actual.Message), ": ")
	case w.Actual.Health != "" && w.Actual.Health != fsm.Healthy:
		return text, "it gets no new connections until its health check passes"
	}
	return text, ""
}

// unready adds a hop for each instance of a service that gets no connections. name is the service's name with or
// without its namespace. If other instances of the service are ready, the hop is not marked as a problem.
func (t *trace) unready(name string) {
	label, in, _ := strings.Cut(strings.TrimPrefix(name, "tasks."), ".")
	if in != "" && in != bounds.DNSLabel(t.namespace) {
		if !t.s.scopeOf(t.ctx).Has(in) {
			return
		}
	}
	in = cmp.Or(in, bounds.DNSLabel(t.namespace))
	shown := 0
	t.v.Workloads("", func(w *fsm.Workload) bool {
		if bounds.DNSLabel(w.In()) != in || w.IsTemplate() || len(w.Demand.Networks) == 0 ||
			bounds.DNSLabel(w.ServiceName()) != label && bounds.DNSLabel(w.ID) != label {
			return true
		}
		if text, problem := statusText(w); problem != "" {
			t.hop(stepInstance, w.ID, text, problem).Idle = true
			shown++
		}
		return shown < maxUnready
	})
}
