package agentd

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/persys/compute/agent"
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
	acfg.Overlay = func(p agent.Parts) (network.Overlay, error) {
		return overlay.New(overlay.Config{Node: acfg.NodeID, DockerHost: cfg.DockerHost, Store: p.Store, Metrics: p.Metrics, Logger: log.With("part", "networks")})
	}
	acfg.Networking = func(advertise string) *controlv1.NodeNetworking {
		ctx, cancel := context.WithTimeout(context.Background(), probeTime)
		defer cancel()
		address, problem := underlay(ctx, advertise)
		out := &controlv1.NodeNetworking{Problem: problem}
		if problem != "" {
			return out
		}
		out.Address = address.String()
		mtu, problem := overlay.Probe(ctx, address)
		out.Mtu, out.Problem = uint32(max(0, mtu)), problem
		return out
	}
}

// underlay returns the IP address of the host:port that schedulers dial. Other nodes send the packets of networks to
// this address. problem says why there is none.
func underlay(ctx context.Context, advertise string) (address netip.Addr, problem string) {
	host, _, err := net.SplitHostPort(advertise)
	if err != nil {
		return address, "the address " + advertise + " is not host:port: set PERSYS_AGENT_GRPC_ENDPOINT"
	}
	if address, err = netip.ParseAddr(host); err == nil {
		return address.Unmap().WithZone(""), ""
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	if err != nil || len(found) == 0 {
		return address, "the name " + host + " has no address: set PERSYS_AGENT_GRPC_ENDPOINT to an IP address"
	}
	return found[0].Unmap(), ""
}
