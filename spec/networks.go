package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// maxAliases is the maximum number of aliases of a container in one network.
const maxAliases = 16

// networks reads the networks of a container in the forms that Compose allows: a list of names, or a mapping of names
// to settings. An entry of the list may also be a mapping with name and aliases.
func (d *decoder) networks(n *node, here where) (out []*controlv1.ContainerNetwork) {
	settings := func(c *controlv1.ContainerNetwork, n *node, at where, fields ...field) {
		d.object(n, at, append(fields, field{"aliases", at.wire + ".aliases", func(_ string, n *node, at where) { c.Aliases = d.words(n, at) }}))
	}
	if n.kind == mapping {
		d.table(n, here, func(name string, n *node, at where) {
			c := &controlv1.ContainerNetwork{Name: name}
			if n.probe == nil {
				index := here.index(len(out))
				d.places[index.wire] = place{n.line, n.col, at.shown}
			}
			out = append(out, c)
			if n.kind != null {
				settings(c, n, at)
			}
		})
		return out
	}
	d.list(n, here, func(n *node, at where) {
		c := &controlv1.ContainerNetwork{}
		if out = append(out, c); n.kind == scalar {
			c.Name = d.str(n, at)
			return
		}
		settings(c, n, at, field{"name", at.wire + ".name", func(_ string, n *node, at where) { c.Name = d.str(n, at) }})
	})
	return out
}

// networks checks the names and aliases of a container's networks. Only the schedulers know whether the
// networks exist.
func (e *Errors) networks(c *controlv1.ContainerSpec) {
	const at = "spec.container.networks"
	list := c.GetNetworks()
	switch mode := strings.TrimSpace(c.GetEndpointMode()); {
	case len(list) == 0 && len(ingressPorts(c)) > 0:
		if mode := strings.TrimSpace(c.GetNetworkMode()); mode != "" {
			e.add("spec.container.network_mode", "cannot be set with ports of mode ingress, which lead through a network: leave it out", mode)
		}
	case len(list) == 0 && mode != "":
		e.add("spec.container.endpoint_mode", "is only for containers with networks", mode)
		return
	case len(list) == 0:
		return
	case len(list) > bounds.MaxNetworksOf:
		e.addf(at, "", "has %d entries, at most %d", len(list), bounds.MaxNetworksOf)
		return
	case strings.TrimSpace(c.GetNetworkMode()) != "":
		e.add("spec.container.network_mode", "cannot be set with networks: give one of them", c.GetNetworkMode())
	case c.GetMacAddress() != "":
		e.add("spec.container.mac_address", "cannot be set with networks, in which the addresses follow from the network: leave it out", c.GetMacAddress())
	}
	var names []string
	for i, n := range list {
		where, name := fmt.Sprintf("%s[%d]", at, i), strings.TrimSpace(n.GetName())
		switch {
		case !bounds.ValidID(name):
			e.add(where, "must be the name of a network, which matches "+bounds.IDRule, n.GetName())
		case slices.Contains(names, name):
			e.add(where, "is listed twice", name)
		}
		names = append(names, name)
		if len(n.GetAliases()) > maxAliases {
			e.addf(where+".aliases", "", "has %d entries, at most %d", len(n.GetAliases()), maxAliases)
			continue
		}
		for j, a := range n.GetAliases() {
			if rule := engine.Hostname(a); rule != "" {
				e.add(fmt.Sprintf("%s.aliases[%d]", where, j), rule, a)
			}
		}
	}
}

// UnknownNetworks returns an error for each network that the container of s names and for which known returns false. The
// workload is in the given namespace, and so are the networks that it can join.
func UnknownNetworks(s *controlv1.WorkloadSpec, namespace string, known func(name string) bool) error {
	var e Errors
	for i, n := range s.GetContainer().GetNetworks() {
		if name := strings.TrimSpace(n.GetName()); !known(name) {
			e.add(fmt.Sprintf("spec.container.networks[%d]", i),
				"does not exist in namespace "+namespace+": persysctl network create "+name+namespaceFlag(namespace)+", or persysctl network list", name)
		}
	}
	return e.asError()
}

func namespaceFlag(namespace string) string {
	if namespace == "default" {
		return ""
	}
	return " -n " + namespace
}

// Endpoint modes, as Compose files name them.
const (
	endpointVIP   = "vip"
	endpointDNSRR = "dnsrr"
)

var endpointModes = []string{endpointVIP, endpointDNSRR}

// hasServiceAddress reports whether the service of a workload gets an address of its own in its networks. Jobs get
// none, because no clients connect to their runs.
func hasServiceAddress(s *controlv1.WorkloadSpec) bool {
	return len(s.GetContainer().GetNetworks()) > 0 && s.GetContainer().GetEndpointMode() != endpointDNSRR && jobDemand(s) == nil
}

// IngressNetwork is the network of a container that has ports in mode ingress and names no network. Schedulers create it
// in each namespace that needs it.
const IngressNetwork = fsm.IngressNetwork

// ingressPorts returns the ports of a container that have mode ingress.
func ingressPorts(c *controlv1.ContainerSpec) (out []*controlv1.Port) {
	for _, p := range c.GetPorts() {
		if portMode(p) == portIngress {
			out = append(out, p)
		}
	}
	return out
}

// ingressDemand returns the ports of a normalised container that every node publishes for its service (mode ingress),
// sorted.
func ingressDemand(c *controlv1.ContainerSpec) (out []*commandv1.IngressPort) {
	for _, p := range ingressPorts(c) {
		out = append(out, &commandv1.IngressPort{Port: uint32(p.GetHostPort()), Protocol: protocolOf(p.GetProtocol()), Target: uint32(p.GetContainerPort())})
	}
	slices.SortFunc(out, func(a, b *commandv1.IngressPort) int {
		return cmp.Or(cmp.Compare(a.GetPort(), b.GetPort()), strings.Compare(a.GetProtocol(), b.GetProtocol()))
	})
	return out
}

func normaliseNetworks(c *controlv1.ContainerSpec) {
	if len(c.Networks) == 0 && len(ingressPorts(c)) > 0 {
		c.Networks = []*controlv1.ContainerNetwork{{Name: IngressNetwork}}
	}
	c.EndpointMode = strings.ToLower(strings.TrimSpace(c.EndpointMode))
	if c.EndpointMode == endpointVIP {
		c.EndpointMode = ""
	}
	for _, n := range c.Networks {
		n.Name = strings.TrimSpace(n.Name)
		slices.Sort(n.Aliases)
		n.Aliases = slices.Compact(n.Aliases)
	}
}

// networkNames returns the names of the networks that a workload joins.
func networkNames(s *controlv1.WorkloadSpec) (names []string) {
	for _, n := range s.GetContainer().GetNetworks() {
		names = append(names, n.GetName())
	}
	return names
}

func (e *encoder) networks(list []*controlv1.ContainerNetwork) {
	e.number("container_networks.#", int64(len(list)))
	for _, n := range list {
		e.text("container_networks.name", n.GetName())
		e.words("container_networks.aliases", n.GetAliases())
	}
}

// agentNetworks translates the networks of a container for the agent. The caller adds the network numbers
// from the state.
func agentNetworks(c *controlv1.ContainerSpec) (out []*agentv1.NetworkAttachment) {
	for _, n := range c.GetNetworks() {
		out = append(out, &agentv1.NetworkAttachment{Name: n.GetName(), Aliases: n.GetAliases()})
	}
	return out
}
