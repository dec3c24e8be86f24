package agentd

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
	controlv1 "github.com/persys/compute/api/control/v1"
)

// probeTime is how long an agent looks what its machine can do for networks, before each registration.
const probeTime = 3 * time.Second

// networks lets the node take part in networks that span nodes.
func networks(acfg *agent.Config, cfg *Config, log *slog.Logger) {
	if !cfg.Docker || cfg.Simulate != "" || cfg.Standalone {
		return
	}
	var running *overlay.Overlay // set before the first registration
	log = log.With("part", "networks")
	resolver := names.New(func(a netip.Addr) []uint32 { return running.NetworksAt(a) }, "/etc/resolv.conf", log)
	acfg.Names = resolver
	acfg.Overlay = func(p agent.Parts) (o network.Overlay, err error) {
		running, err = overlay.New(overlay.Config{Node: acfg.NodeID, DockerHost: cfg.DockerHost, Store: p.Store, Names: resolver, Metrics: p.Metrics, Logger: log})
		return running, err
	}
	acfg.Networking = func(advertise string) *controlv1.NodeNetworking {
		ctx, cancel := context.WithTimeout(context.Background(), probeTime)
		defer cancel()
		return networking(ctx, advertise, running.Address(), net.DefaultResolver.LookupNetIP, overlay.Probe)
	}
}

// networking returns what the node can do for networks. present is the node's address in the networks that it has; it
// may be the zero address. lookup and probe are the functions of net.Resolver and of package overlay. With a problem
// there is no address; schedulers then keep the former one.
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

// underlay returns the IP address of the host:port that schedulers dial. Other nodes send the packets of networks to
// this address. If the look-up of a name fails, the present address stays. problem says why there is no address.
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
	case slices.Contains(found, present): // the order of several addresses changes
		return present, ""
	case err == nil && len(found) > 0:
	case present.IsValid():
		return present, ""
	default:
		return address, "the name " + host + " has no address: set PERSYS_AGENT_GRPC_ENDPOINT to an IP address"
	}
	return found[0].Unmap(), ""
}
