package plan

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"

	"github.com/persys/compute/agent/workload"
)

// Names of the kernel objects on a machine.
const (
	Device    = "pvx0"   // the VXLAN device
	TableName = "persys" // nftables table of the family inet
	UserChain = "DOCKER-USER"

	bridgePrefix = "ps"
)

// Bridge returns the name of a network's bridge, which is also part of the engine's name for the network.
func Bridge(id uint32) string { return bridgePrefix + strconv.FormatUint(uint64(id), 10) }

// Overheads of VXLAN: the outer IP, UDP, VXLAN and inner Ethernet headers.
const (
	overhead4 = 50
	overhead6 = 70
)

// Overhead returns by how many bytes the MTU of a network must be smaller than the MTU of the network between
// the nodes (the underlay).
func Overhead(underlay netip.Addr) int {
	if underlay.Is4() {
		return overhead4
	}
	return overhead6
}

// MAC is an Ethernet address.
type MAC [6]byte

// MACOf returns the Ethernet address of a node's VXLAN device. It is computed from the node's underlay address
// (its address on the network between the nodes), so every other node can compute it too.
func MACOf(a netip.Addr) MAC {
	if a.Is4() {
		b := a.As4()
		return MAC{2, 0x70, b[0], b[1], b[2], b[3]}
	}
	h := fnv.New64a()
	_, _ = h.Write(a.AsSlice()) // writing to a hash never fails
	hash := h.Sum64()
	return MAC{2, byte(hash >> 32), byte(hash >> 24), byte(hash >> 16), byte(hash >> 8), byte(hash)}
}

// Gateway returns the address of a network's bridge on a node: the first host address of the node's slice (its
// part of the network's addresses).
func Gateway(slice netip.Prefix) netip.Addr { return slice.Addr().Next() }

// EnginePart returns the last quarter of a node's slice of a network. The container engine takes addresses from
// this quarter for containers to which the agent gave no address. ok is false if the slice is too small to be
// divided.
func EnginePart(slice netip.Prefix) (part netip.Prefix, ok bool) {
	if !slice.Addr().Is4() || slice.Bits() > 28 {
		return netip.Prefix{}, false
	}
	b := slice.Addr().As4()
	quarter := uint32(1) << (32 - slice.Bits() - 2)
	n := (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) + 3*quarter
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), slice.Bits()+2), true
}

// Link is the network interface that has the node's underlay address, over which the VXLAN packets are sent.
type Link struct {
	Name  string
	Index int
	MTU   int
}

// VXLAN is the VXLAN device.
type VXLAN struct {
	Alias string // names cluster and node, so that two agents on one machine do not share the device
	VNI   uint32
	Port  uint16
	Local netip.Addr
	Under int // index of the underlay's interface
	MAC   MAC
	MTU   int
	Up    bool
	// Learning is true if the device learns addresses from packets. Our device has static entries and never
	// learns.
	Learning bool
}

// Route sends the packets for the addresses that another node (a peer) uses in a network, its slice, through
// the VXLAN device. Via is the slice's first address. No interface has that address; the neighbour entry for it
// holds the peer's Ethernet address.
type Route struct {
	Slice  netip.Prefix
	Via    netip.Addr
	Source netip.Addr // source address of packets that the machine itself sends; the invalid address if not set
	MTU    int
}

// Neighbour is a permanent neighbour entry of the VXLAN device: the Ethernet address for an IP address.
type Neighbour struct {
	Address netip.Addr
	MAC     MAC
}

// Forward is a static forwarding entry of the VXLAN device: the node to which frames for an Ethernet address
// are sent.
type Forward struct {
	MAC  MAC
	Peer netip.Addr
}

// EngineNetwork is a network of the container engine with this agent's labels.
type EngineNetwork struct {
	ID      uint32
	Network string // namespace/name, for people
	// CIDR is the subnet that the containers see: the whole network. So a container sends packets to every
	// member directly, also on its second network, and the bridge answers ARP requests for members on other
	// nodes (see SetUpBridge).
	CIDR  netip.Prefix
	Slice netip.Prefix
	MTU   int
}

// ObservedNetwork is a network as the engine reports it.
type ObservedNetwork struct {
	EngineNetwork
	Used bool // a container, running or stopped, is connected to it
	Link bool // the kernel has the network's bridge
	// Set is true if the settings that the operation SetUpBridge makes are present on the bridge.
	Set bool
}

// Observed is the observed state of the machine.
type Observed struct {
	// Underlay is the interface with the node's address on the network between the nodes; nil if no interface
	// has this address.
	Underlay *Link
	// Device is nil if there is no VXLAN device with our name. Taken is set if another kind of interface has
	// the name of our VXLAN device; it is the type of that interface.
	Device *VXLAN
	Taken  string
	// Routes, Neighbours and Forwards are the entries of the device, sorted.
	Routes     []Route
	Neighbours []Neighbour
	Forwards   []Forward
	// ReversePath is the sysctl rp_filter of the device.
	ReversePath int
	// Addresses holds the IP addresses of all interfaces of the machine, sorted. If a bridge's address is
	// missing, the engine has not created the bridge yet.
	Addresses []netip.Addr
	// Table is our nftables table; nil if there is none.
	Table *Table
	// UserChain holds our rules in DOCKER-USER, sorted. HasUserChain is false if there is no such
	// chain.
	UserChain    []UserRule
	HasUserChain bool
	// Engine holds the engine's networks with our labels, sorted by id. If the engine does not answer,
	// Answers is false and Engine is its last answer.
	Engine  []ObservedNetwork
	Answers bool
}

// Input is the input of Plan.
type Input struct {
	View  workload.NetworkView
	Alias string // alias for the VXLAN device, see VXLAN
	Seen  Observed
}

// OurInterface reports whether name is the name of our VXLAN device, or can be that of the bridge of a network.
func OurInterface(name string) bool {
	digits, ok := strings.CutPrefix(name, bridgePrefix)
	if !ok {
		return name == Device
	}
	_, err := strconv.ParseUint(digits, 10, 32)
	return err == nil
}

// UserRule is one of our rules in DOCKER-USER. It accepts packets by their interfaces alone. The agent's own table
// has checked the packets before. The text of a UserRule is the incoming interface, ">", and the outgoing interface;
// an empty name means any interface.
type UserRule string

// FromPeersTo returns the rule that accepts packets from other nodes to a bridge.
func FromPeersTo(bridge string) UserRule { return Device + ">" + UserRule(bridge) }

// AllTo returns the rule that accepts all packets to an interface, and AllFrom the rule that
// accepts all packets from an interface.
func AllTo(name string) UserRule   { return ">" + UserRule(name) }
func AllFrom(name string) UserRule { return UserRule(name) + ">" }

// Interfaces returns the interfaces of the rule.
func (r UserRule) Interfaces() (in, out string) {
	in, out, _ = strings.Cut(string(r), ">")
	return in, out
}

func (r UserRule) text() string {
	in, out := r.Interfaces()
	return strings.TrimSpace(in + " to " + cmp.Or(out, "any interface"))
}
