package workload

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
)

// NetworkView is the part of the cluster's networks between nodes that one node has to set up, as the
// schedulers send it. It holds the slices of the node (the parts of the networks' subnets that it uses), and
// the addresses and slices of the nodes with which it shares a network.
type NetworkView struct {
	Cluster  string     // id of the cluster
	Index    uint64     // version of the view: the log index of the newest change to the networks of this cluster
	Port     uint16     // UDP port of VXLAN
	VNI      uint32     // VXLAN network identifier, 1 to 2^24-1
	Address  netip.Addr // the node's own underlay address, to which other nodes send VXLAN packets
	Peers    []NetworkPeer
	Networks []Network
	// Problems lists the networks and peers (other nodes) that the schedulers sent and that this node did not set up,
	// each with the reason.
	Problems []string
}

// NetworkPeer is a node that shares a network with this node.
type NetworkPeer struct {
	Node    string
	Address netip.Addr
}

// Network is one network between nodes that has members on this node.
type Network struct {
	ID              uint32
	Namespace, Name string
	CIDR            netip.Prefix
	MTU             int
	Slice           netip.Prefix // the range of CIDR from which this node gives addresses to its containers
	Peers           []NetworkSlice
	Services        []netip.Prefix // parts of CIDR that hold the addresses of services, sorted
	Ingress         bool           // ports in ingress mode lead into the network
}

// NetworkSlice is the part of a network's subnet that another node uses.
type NetworkSlice struct {
	Node string
	CIDR netip.Prefix
}

// ServiceView holds the services of one node's networks that have an address of their own, as the schedulers
// send them, and the ports in ingress mode.
type ServiceView struct {
	Services []NetworkService // sorted by address
	// Lost holds the slices of lost nodes (the parts of the networks' addresses that these nodes use). No
	// instance answers at an address in these slices.
	Lost []netip.Prefix
	// Ingress holds the ports in ingress mode, sorted by port and protocol.
	Ingress []NetworkIngress
}

// IngressPort is a port in ingress mode: a published port that answers on all addresses of every
// machine.
type IngressPort struct {
	Port uint16
	UDP  bool // true = UDP, false = TCP
}

// String returns the port as users write it, for example 8080/tcp.
func (p IngressPort) String() string { return strconv.Itoa(int(p.Port)) + "/" + p.Protocol() }

// Protocol returns tcp or udp.
func (p IngressPort) Protocol() string {
	if p.UDP {
		return "udp"
	}
	return "tcp"
}

// Compare returns a negative number, 0 or a positive number if p sorts before, equal to or after o: by number,
// then by protocol.
func (p IngressPort) Compare(o IngressPort) int {
	return cmp.Or(cmp.Compare(p.Port, o.Port), strings.Compare(p.String(), o.String()))
}

// NetworkIngress is a port in ingress mode, and the instances to which its connections are balanced.
type NetworkIngress struct {
	IngressPort
	Endpoints []netip.AddrPort // instances that get new connections, sorted
}

// NetworkService is a service with its own address. The address does not change while the service
// exists.
type NetworkService struct {
	Address   netip.Addr
	Endpoints []netip.Addr // addresses of the instances that get new connections, sorted
}

// NetworkBridge is the bridge of a network on this machine.
type NetworkBridge struct {
	Network uint32
	Address netip.Addr
	Slice   netip.Prefix // the range of addresses of the containers on the bridge
}
