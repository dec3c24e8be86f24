// Package nodenet connects an agent to the networks between nodes: it sets the fields of agent.Config for the DNS
// resolver, for the overlay, and for the facts about networks that a node registers.
package nodenet

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/names"
	"github.com/persys/compute/agent/network"
	"github.com/persys/compute/agent/overlay"
	"github.com/persys/compute/agent/workload"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
)

// probeTime is the time limit for finding out, before each registration, whether this machine supports
// networks between nodes.
const probeTime = 3 * time.Second

// Configure sets the fields Names, Overlay, Networking and HeldPorts of an agent's configuration, so that the containers
// of the Docker engine at dockerHost ("" = the default address) can join networks that span nodes. NodeID and Ceiling
// must be set before.
func Configure(acfg *agent.Config, dockerHost string, log *slog.Logger) {
	running := &lateOverlay{}
	log = log.With("part", "networks")
	resolver := names.New(running, "/etc/resolv.conf", log)
	acfg.Names = resolver
	acfg.Overlay = func(p agent.Parts) (o network.Overlay, err error) {
		running.Overlay, err = overlay.New(overlay.Config{Node: acfg.NodeID, DockerHost: dockerHost, Store: p.Store, Names: resolver, Forbids: forbids(acfg.Ceiling.Policy), Metrics: p.Metrics, Logger: log})
		return running.Overlay, err
	}
	acfg.Networking = func(advertise string) *controlv1.NodeNetworking {
		ctx, cancel := context.WithTimeout(context.Background(), probeTime)
		defer cancel()
		out := networking(ctx, advertise, running.Address(), net.DefaultResolver.LookupNetIP, overlay.Probe)
		out.Ingress = true
		out.HeldPorts, out.ForbiddenPorts = running.HeldPorts()
		return out
	}
	acfg.HeldPorts = func() string {
		held, _ := running.HeldPorts()
		return held
	}
}

// forbids returns a function that reports whether a policy forbids a port in ingress mode. It returns nil for no policy.
func forbids(p *policy.Policy) func(workload.IngressPort) bool {
	if p == nil {
		return nil
	}
	return func(port workload.IngressPort) bool {
		bad := policy.Judge(p, policy.Workload{Asks: asks.IngressPort(int32(port.Port), port.Protocol(), "ports")})
		return slices.ContainsFunc(bad, func(v policy.Violation) bool { return v.Rule == policy.RulePort || v.Rule == policy.RuleAddress })
	}
}

// lateOverlay holds the overlay for the DNS resolver. The resolver and the overlay need each other. So the
// resolver is created first, with an empty lateOverlay. The overlay is put into it before the resolver is
// used.
type lateOverlay struct{ *overlay.Overlay }

// networking returns the address and the MTU with which the node takes part in networks, or the problem that prevents
// this. present is the address that the node uses in its networks now; it may be the zero address. lookup and probe
// are the functions of net.Resolver and of package overlay. If it returns a problem, it returns no address, and the
// schedulers keep the address that they have for the node.
func networking(ctx context.Context, advertise string, present netip.Addr, lookup lookupFunc, probe func(context.Context, netip.Addr) (int, string)) *controlv1.NodeNetworking {
	address, problem := underlay(ctx, advertise, present, lookup)
	if problem != "" {
		return &controlv1.NodeNetworking{Problem: problem}
	}
	mtu, problem := probe(ctx, address)
	if problem != "" {
		return &controlv1.NodeNetworking{Problem: problem}
	}
	return &controlv1.NodeNetworking{Address: address.String(), Mtu: uint32(max(0, mtu))}
}

type lookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

// underlay returns the IP address that belongs to advertise, the host:port at which schedulers reach this
// node. Other nodes send the packets of networks to this address. If the look-up of a host name fails,
// underlay returns present. problem is the reason if there is no address.
func underlay(ctx context.Context, advertise string, present netip.Addr, lookup lookupFunc) (address netip.Addr, problem string) {
	host, _, err := net.SplitHostPort(advertise)
	if err != nil {
		return address, "the address " + advertise + " is not host:port: set PERSYS_AGENT_GRPC_ENDPOINT"
	}
	if address, err = netip.ParseAddr(host); err == nil {
		return address.Unmap().WithZone(""), ""
	}
	found, err := lookup(ctx, "ip4", host)
	switch {
	case slices.Contains(found, present): // DNS returns the addresses of a name in varying order, so keep the present address if it is among them
		return present, ""
	case err == nil && len(found) > 0:
	case present.IsValid():
		return present, ""
	default:
		return address, "the name " + host + " has no address: set PERSYS_AGENT_GRPC_ENDPOINT to an IP address"
	}
	return found[0].Unmap(), ""
}
