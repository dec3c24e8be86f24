package rpc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
)

// ingressPorts holds, by port and protocol, the services that publish this port in ingress mode (on every node).
// Several services can have the same port only after the rollback of an update.
type ingressPorts map[string][]*ingressPort

// ingressPort is a port in ingress mode (published on every node) together with the service to which it leads.
type ingressPort struct {
	*agentv1.NetworkIngress
	created uint64 // log index of the oldest workload of the service with this port
}

// add adds the workload's ports in ingress mode (ports that every node publishes); network n carries their traffic. It
// skips a workload that is being deleted.
func (ports ingressPorts) add(w *fsm.Workload, n *fsm.Network) {
	if w.Desired == fsm.DesiredDeleted {
		return
	}
	address := memberOf(w, n).GetAddress()
	for _, p := range w.Demand.Ingress {
		key := p.Key()
		i := slices.IndexFunc(ports[key], func(x *ingressPort) bool { return x.GetNetwork() == n.ID && x.GetService() == w.ServiceName() })
		if i < 0 {
			i = len(ports[key])
			ports[key] = append(ports[key], &ingressPort{created: w.CreateIndex, NetworkIngress: &agentv1.NetworkIngress{
				Network: n.ID, Port: uint32(p.Port), Protocol: p.Protocol, Namespace: w.In(), Service: w.ServiceName(),
			}})
		}
		x := ports[key][i]
		x.created = min(x.created, w.CreateIndex)
		if a, err := netip.ParseAddr(address); err == nil {
			x.Endpoints = append(x.Endpoints, netip.AddrPortFrom(a, p.Target).String())
		}
	}
}

// list adds each port to the map by, whose key is the id of the network that carries the port's traffic, and sorts the
// lists of ports. If several services claim a port, the port belongs to the service with the oldest workload.
func (ports ingressPorts) list(by map[uint32][]*agentv1.NetworkIngress) {
	for _, claims := range ports {
		x := slices.MinFunc(claims, func(a, b *ingressPort) int {
			return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.GetNetwork(), b.GetNetwork()), strings.Compare(a.GetService(), b.GetService()))
		})
		slices.Sort(x.Endpoints)
		by[x.GetNetwork()] = append(by[x.GetNetwork()], x.NetworkIngress)
	}
	for _, list := range by {
		slices.SortFunc(list, ingressOrder)
	}
}

func ingressOrder(a, b *agentv1.NetworkIngress) int {
	return cmp.Or(cmp.Compare(a.GetPort(), b.GetPort()), strings.Compare(a.GetProtocol(), b.GetProtocol()))
}

// forbidsPort returns why policies, those of a node, forbid a port in ingress mode; "" if they allow it. Every node answers at
// such a port, so a policy of a node decides about it wherever the instances run.
func forbidsPort(policies []*policy.Policy, port uint32, protocol string) string {
	for _, p := range policies {
		for _, bad := range policy.Judge(p, policy.Workload{Asks: asks.IngressPort(int32(port), protocol, "ports")}) {
			if bad.Rule == policy.RulePort {
				return bad.String()
			}
		}
	}
	return ""
}

// ingressText says where the ports in ingress mode of a workload do not answer; "" if they answer on all nodes or there
// are none.
func ingressText(v fsm.View, w *fsm.Workload) string {
	n, ok := v.Network(w.In(), w.IngressNetwork())
	if !ok {
		return ""
	}
	texts := taken(v, w)
	unable := 0
	v.Nodes("", func(node *fsm.Node) bool {
		if !n.Answers(node) {
			unable++
			return true
		}
		policies := v.NodePolicies(node)
		for _, p := range w.Demand.Ingress {
			if node.Facts.Networking.Holds(p.Key()) {
				texts = append(texts, fmt.Sprintf("port %s does not answer on node %s: %s", p.Key(), node.ID, heldText(node, p.Key(), "it")))
			} else if why := forbidsPort(policies, uint32(p.Port), p.Protocol); why != "" {
				texts = append(texts, fmt.Sprintf("port %s does not answer on node %s: %s", p.Key(), node.ID, why))
			}
		}
		return true
	})
	if unable > 0 {
		texts = append(texts, fmt.Sprintf("ports in ingress mode do not answer on %d nodes that cannot take part in network %s (persysctl network inspect %s)", unable, n.Name, n.Name))
	}
	return strings.Join(texts, "; ")
}

// heldText says why a node does not answer at a port in ingress mode: the PERSYS_POLICY of the node
// forbids the port, or another program uses it. key is the port and its protocol. The text calls the port
// by the word in the parameter it: "it" or "the port".
func heldText(n *fsm.Node, key, it string) string {
	if n.Facts.Networking.Forbids(key) {
		return "the PERSYS_POLICY of the node forbids " + it
	}
	port, _, _ := strings.Cut(key, "/")
	return "a program of the machine uses " + it + " (ss -lnp sport = :" + port + " shows it)"
}

// taken returns a text for each port in ingress mode (published on every node) of workload w that leads to another,
// older service. This happens only after an automatic rollback, because an apply with the port of another service is
// refused.
func taken(v fsm.View, w *fsm.Workload) (texts []string) {
	owners := map[string]*fsm.Workload{}
	older := func(a, b *fsm.Workload) bool { return b == nil || a.CreateIndex < b.CreateIndex }
	v.Workloads("", func(x *fsm.Workload) bool {
		if x.Desired == fsm.DesiredDeleted || x.IsTemplate() {
			return true
		}
		for _, p := range x.Demand.Ingress {
			if older(x, owners[p.Key()]) {
				owners[p.Key()] = x
			}
		}
		return true
	})
	for _, p := range w.Demand.Ingress {
		x := owners[p.Key()]
		switch {
		case x == nil || x.In() == w.In() && x.ServiceName() == w.ServiceName():
		case x.In() != w.In():
			texts = append(texts, fmt.Sprintf("port %s leads to an older service of another namespace: publish another port", p.Key()))
		default:
			texts = append(texts, fmt.Sprintf("port %s leads to the older service %s, which publishes it too: publish another port", p.Key(), x.ServiceName()))
		}
	}
	return texts
}
