package workload

import "net/netip"

// NetworkView is what one node needs to know about the networks that span nodes: its own slices, and the
// addresses and slices of the nodes with which it shares a network.
type NetworkView struct {
	Cluster  string     // id of the cluster
	Index    uint64     // log index of the newest change in any view of this cluster
	Port     uint16     // UDP port of VXLAN
	VNI      uint32     // VXLAN network identifier, 1 to 2^24-1
	Address  netip.Addr // the node's own address between nodes
	Peers    []NetworkPeer
	Networks []Network
	// Problems says which networks and peers of the schedulers' view this node leaves out, and why.
	Problems []string
}

// NetworkPeer is a node that shares a network with this node.
type NetworkPeer struct {
	Node    string
	Address netip.Addr
}

// Network is one network that has members on this node.
type Network struct {
	ID              uint32
	Namespace, Name string
	CIDR            netip.Prefix
	MTU             int
	Slice           netip.Prefix // the part of CIDR from which this node gives addresses
	Peers           []NetworkSlice
}

// NetworkSlice is the slice of another node.
type NetworkSlice struct {
	Node string
	CIDR netip.Prefix
}

// NetworkBridge is the bridge of a network on this machine.
type NetworkBridge struct {
	Network uint32
	Address netip.Addr
	Slice   netip.Prefix // the addresses of the containers on it
}
