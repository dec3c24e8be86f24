package docker

import (
	"context"
	"net/netip"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// endpoint is the connection of a container to one network.
type endpoint struct {
	driver.Place
	aliases []string
}

func (e endpoint) settings() *network.EndpointSettings {
	return &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: e.Address}, Aliases: e.aliases}
}

// join gets the workload's addresses on its networks, and sets in want the first network, with which the
// container is created.
func (d *Driver) join(ctx context.Context, spec driver.Spec, want *settings) ([]endpoint, error) {
	places, err := d.places(ctx, spec)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	want.host.NetworkMode = container.NetworkMode(places[0].Network)
	if r := places[0].Resolver; r.IsValid() && len(want.host.DNS) == 0 {
		// Set only this DNS server. If there were a second one, the engine's resolver would ask it for
		// names that the first reports as missing.
		want.host.DNS = []netip.Addr{r}
	}
	return places, nil
}

// places returns one endpoint (network and address) for each network of the workload.
func (d *Driver) places(ctx context.Context, spec driver.Spec) ([]endpoint, error) {
	wanted := spec.Body.GetContainer().GetNetworks()
	if len(wanted) == 0 {
		return nil, nil
	}
	if d.opt.Networks == nil {
		return nil, driver.Errorf(driver.InvalidConfiguration, "create", "container.networks: this agent has no networks between nodes (workload %q)", spec.ID)
	}
	places, err := d.opt.Networks.Join(ctx, spec.ID, networkIDs(wanted))
	if err != nil {
		return nil, err
	}
	out := make([]endpoint, len(places))
	for i, p := range places {
		out[i] = endpoint{p, wanted[i].GetAliases()}
	}
	return out, nil
}

// networking returns the network with which a container is created. Engines before API 1.44 accept only one
// network at creation; connect adds the others.
func (s *settings) networking() *network.NetworkingConfig {
	if len(s.endpoints) == 0 {
		if len(s.mac) == 0 {
			return nil
		}
		return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{network.NetworkBridge: {MacAddress: s.mac}}}
	}
	first := s.endpoints[0]
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{first.Network: first.settings()}}
}

// connect connects a container that was not started yet to its networks: to all but the first or, after an
// interruption, to those that are still missing. It frees the workload's addresses on networks that the
// specification no longer names.
func (d *Driver) connect(ctx context.Context, spec driver.Spec, in *instance) error {
	wanted := spec.Body.GetContainer().GetNetworks()
	if in.State != container.StateCreated {
		return nil
	}
	if len(wanted) > 1 {
		places, err := d.places(ctx, spec)
		if err != nil {
			return err
		}
		seen, err := d.eng.Inspect(ctx, in.ID)
		if err != nil {
			return moby.Classify("create", err)
		}
		for _, p := range places {
			if seen.NetworkSettings != nil && seen.NetworkSettings.Networks[p.Network] != nil {
				continue
			}
			callCtx, cancel := d.eng.Call(ctx)
			_, err := d.eng.Client.NetworkConnect(callCtx, p.Network, client.NetworkConnectOptions{Container: in.ID, EndpointConfig: p.settings()})
			cancel()
			if err != nil {
				return moby.Classify("create", err)
			}
		}
	}
	return d.leave(spec.ID, networkIDs(wanted)...)
}

func networkIDs(list []*agentv1.NetworkAttachment) []uint32 {
	ids := make([]uint32, len(list))
	for i, n := range list {
		ids[i] = n.GetId()
	}
	return ids
}

// leave frees the workload's addresses on all networks except those given.
func (d *Driver) leave(id driver.ID, except ...uint32) error {
	if d.opt.Networks == nil {
		return nil
	}
	if err := d.opt.Networks.Leave(id, except...); err != nil {
		return driver.Errorf(driver.RuntimeError, "network", "storing that the workload gave up its addresses: %w", err)
	}
	return nil
}
