package overlay

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
)

// Labels of the networks in the container engine. These networks also carry the labels for cluster
// and node.
const (
	labelID   = driver.LabelPrefix + "network_id"
	labelName = driver.LabelPrefix + "network" // namespace/name
)

// engine is the container engine, which makes the bridges.
type engine interface {
	// Networks lists the networks with our labels, and the addresses of containers on them.
	Networks(ctx context.Context) ([]plan.ObservedNetwork, []workload.NetworkAddress, error)
	Create(ctx context.Context, n plan.EngineNetwork) error
	// Remove removes a network. It returns an error while a container is connected to the network.
	Remove(ctx context.Context, id uint32) error
}

// engineName returns the name of a network in the container engine.
func engineName(id uint32) string { return "persys-" + plan.Bridge(id) }

// docker is a Docker engine.
type docker struct {
	cli           *client.Client
	cluster, node string
}

const callTimeout = 20 * time.Second

// Options of a bridge network. Docker must not translate addresses of the network's own traffic, and must not
// drop packets that come from other nodes. Engines from version 28 on drop such packets unless the gateway mode
// is nat-unprotected; older engines ignore that option. Packets are filtered by our own nftables table instead:
// it decides which machines and containers can reach the containers.
const (
	optionBridge     = "com.docker.network.bridge.name"
	optionMasquerade = "com.docker.network.bridge.enable_ip_masquerade"
	optionMTU        = "com.docker.network.driver.mtu"
	optionGateway    = "com.docker.network.bridge.gateway_mode_ipv4"
)

func (d *docker) filters() client.Filters {
	return make(client.Filters).Add("label", driver.LabelCluster+"="+d.cluster, driver.LabelNode+"="+d.node, labelID)
}

// Networks implements engine with two calls of the Docker API.
func (d *docker) Networks(ctx context.Context) ([]plan.ObservedNetwork, []workload.NetworkAddress, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := d.cli.NetworkList(ctx, client.NetworkListOptions{Filters: d.filters()})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the networks of the container engine: %w", err)
	}
	var out []plan.ObservedNetwork
	names := map[string]uint32{}
	for _, n := range res.Items {
		id, err := strconv.ParseUint(n.Labels[labelID], 10, 32)
		if err != nil || n.Options[optionBridge] != plan.Bridge(uint32(id)) {
			continue
		}
		seen := plan.ObservedNetwork{EngineNetwork: plan.EngineNetwork{ID: uint32(id), Network: n.Labels[labelName]}}
		if len(n.IPAM.Config) > 0 {
			c := n.IPAM.Config[0]
			seen.CIDR, seen.Slice = c.Subnet, c.Subnet
			if part := c.IPRange; part.IsValid() && c.Gateway.IsValid() {
				seen.Slice = netip.PrefixFrom(c.Gateway, part.Bits()-2).Masked() // see plan.EnginePart
			}
		}
		seen.MTU, _ = strconv.Atoi(n.Options[optionMTU])
		names[n.Name] = seen.ID
		out = append(out, seen)
	}
	if len(out) == 0 {
		return nil, nil, nil
	}
	filter := make(client.Filters)
	for name := range names {
		filter.Add("network", name)
	}
	list, err := d.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the containers on networks: %w", err)
	}
	var held []workload.NetworkAddress
	for _, c := range list.Items {
		if c.NetworkSettings == nil {
			continue
		}
		for name, e := range c.NetworkSettings.Networks {
			id, ours := names[name]
			if !ours || e == nil {
				continue
			}
			for i := range out {
				out[i].Used = out[i].Used || out[i].ID == id
			}
			address := e.IPAddress
			if e.IPAMConfig != nil && e.IPAMConfig.IPv4Address.IsValid() {
				address = e.IPAMConfig.IPv4Address
			}
			if who := c.Labels[driver.LabelWorkload]; who != "" && address.IsValid() {
				held = append(held, workload.NetworkAddress{Network: id, Address: address, Workload: who})
			}
		}
	}
	slices.SortFunc(out, func(a, b plan.ObservedNetwork) int { return cmp.Compare(a.ID, b.ID) })
	return out, held, nil
}

// Create implements engine.
func (d *docker) Create(ctx context.Context, n plan.EngineNetwork) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	part, ok := plan.EnginePart(n.Slice)
	if !ok {
		return fmt.Errorf("the slice %s is too small: at least 16 addresses are needed", n.Slice)
	}
	_, err := d.cli.NetworkCreate(ctx, engineName(n.ID), client.NetworkCreateOptions{
		Driver: "bridge",
		IPAM:   &network.IPAM{Config: []network.IPAMConfig{{Subnet: n.CIDR, Gateway: plan.Gateway(n.Slice), IPRange: part}}},
		Options: map[string]string{
			optionBridge: plan.Bridge(n.ID), optionMasquerade: "false", optionMTU: strconv.Itoa(n.MTU), optionGateway: "nat-unprotected",
		},
		Labels: map[string]string{
			driver.LabelCluster: d.cluster, driver.LabelNode: d.node, labelID: strconv.FormatUint(uint64(n.ID), 10), labelName: n.Network,
		},
	})
	return err
}

// Remove implements engine.
func (d *docker) Remove(ctx context.Context, id uint32) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := d.cli.NetworkRemove(ctx, engineName(id), client.NetworkRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
		return err
	}
	return nil
}
