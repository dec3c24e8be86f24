package driver

import (
	"context"
	"net/netip"
)

// Networks gives containers their places on networks that span nodes.
type Networks interface {
	// Join waits, at most until ctx ends, until the networks are set up on this machine. It returns the workload's
	// places on them, in the order of the ids. A workload keeps its addresses.
	Join(ctx context.Context, id ID, networks []uint32) ([]Place, error)
	// Leave frees the addresses of a workload on all networks except those given. No other workload gets a freed
	// address for some minutes.
	Leave(id ID, except ...uint32) error
}

// Place is a container's place on a network.
type Place struct {
	Network string // the engine's name of the network
	Address netip.Addr
	// Resolver is the address of this machine's DNS server on the network; invalid if it does not work there.
	Resolver netip.Addr
}
