package driver

import (
	"context"
	"net/netip"
)

// Networks connects containers to networks that span nodes.
type Networks interface {
	// Join waits, at most until ctx ends, until the networks are set up on this machine. It returns the
	// workload's address on each of them, in the order of the ids. A workload keeps its addresses.
	Join(ctx context.Context, id ID, networks []uint32) ([]Place, error)
	// Withdraw is called before a workload stops. It waits until nodes no longer send the workload new connections
	// through its services, but at most one second, or until ctx ends.
	Withdraw(ctx context.Context, id ID)
	// Leave frees the addresses of a workload on all networks except those given. No other workload gets a freed
	// address for some minutes.
	Leave(id ID, except ...uint32) error
}

// Place is the connection of a container to one network.
type Place struct {
	Network string // the engine's name of the network
	Address netip.Addr
	// Resolver is the address of this machine's DNS server on the network. It is the invalid address if the
	// server does not answer on this network.
	Resolver netip.Addr
}
