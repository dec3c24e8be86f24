package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
	enginerules "github.com/persys/compute/engine"
)

// Probe checks whether this machine can take part in networks between nodes. It returns the largest MTU that a
// network can have if packets between nodes use the given address, or a problem as text. To test the kernel, it
// creates a VXLAN device and removes it at once. It changes no nftables rules.
func Probe(ctx context.Context, address netip.Addr) (mtu int, problem string) {
	mtu, err := probe(ctx, address)
	if errors.Is(err, unix.EPERM) {
		return 0, "networks between nodes need the capability CAP_NET_ADMIN: run the agent as root"
	}
	if err != nil {
		return 0, err.Error()
	}
	return mtu, ""
}

// probeVNI is the VXLAN network identifier of the device that Probe makes. No cluster uses this identifier.
const probeVNI = 1<<24 - 1

func probe(ctx context.Context, address netip.Addr) (mtu int, err error) {
	if !address.IsValid() || address.IsUnspecified() || address.IsLoopback() {
		return 0, fmt.Errorf("the node registered with the address %s, which other machines cannot reach: set PERSYS_AGENT_GRPC_ENDPOINT", address)
	}
	k, err := openKernel()
	if err != nil {
		return 0, err
	}
	defer k.Close()
	seen, err := k.Observe(address)
	switch {
	case err != nil:
		return 0, err
	case seen.Underlay == nil:
		return 0, fmt.Errorf("no interface of this machine has the address %s, with which the node registered: set PERSYS_AGENT_GRPC_ENDPOINT", address)
	case enginerules.InsideInterface(seen.Underlay.Name):
		return 0, fmt.Errorf("the node registered with %s, the address of the bridge %s inside this machine, which other machines cannot reach: set PERSYS_AGENT_GRPC_ENDPOINT", address, seen.Underlay.Name)
	}
	x := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("pvx%d", os.Getpid()), TxQLen: -1},
		VxlanId:   probeVNI, Port: 1, VtepDevIndex: seen.Underlay.Index, SrcAddr: address.AsSlice(),
	}
	switch err := k.links.LinkAdd(x); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return 0, errors.New("the kernel has no VXLAN: load the module vxlan")
	case errors.Is(err, unix.EEXIST): // another agent probes at the same time
	case err != nil:
		return 0, fmt.Errorf("making a VXLAN device: %w", err)
	default:
		if err := k.links.LinkDel(x); err != nil {
			return 0, fmt.Errorf("removing the VXLAN device of the probe: %w", err)
		}
	}
	return seen.Underlay.MTU - plan.Overhead(address), ctx.Err()
}
