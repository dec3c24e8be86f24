package plan

import (
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"

	"github.com/persys/compute/agent/workload"
)

// Names of the things on a machine.
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

// Overhead returns how many bytes smaller than the underlay's MTU a network's MTU must be.
func Overhead(underlay netip.Addr) int {
	if underlay.Is4() {
		return overhead4
	}
	return overhead6
}

// MAC is an Ethernet address.
type MAC [6]byte

// MACOf returns the Ethernet address of the VXLAN device of the node with an underlay address. Every node computes
// it, so no node has to announce it.
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

// Gateway returns the address of the bridge of a slice: its first host address.
func Gateway(slice netip.Prefix) netip.Addr { return slice.Addr().Next() }

// EnginePart returns the last quarter of a slice. The engine chooses from it for containers that come without an
// address. A slice that is too small for quarters has no such part.
func EnginePart(slice netip.Prefix) (part netip.Prefix, ok bool) {
	if !slice.Addr().Is4() || slice.Bits() > 28 {
		return netip.Prefix{}, false
	}
	b := slice.Addr().As4()
	quarter := uint32(1) << (32 - slice.Bits() - 2)
	n := (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) + 3*quarter
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), slice.Bits()+2), true
}

// Link is the interface with the node's underlay address.
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
	// Learning is true if the device learns addresses from packets. Ours never does.
	Learning bool
}

// Route is a route of a peer's slice over the VXLAN device. Via is the slice's first address; it is on no
// interface, and the neighbour entry for it holds the peer's Ethernet address.
type Route struct {
	Slice  netip.Prefix
	Via    netip.Addr
	Source netip.Addr // source of packets that the host itself sends; invalid if not set
	MTU    int
}

// Neighbour is a permanent neighbour entry of the VXLAN device.
type Neighbour struct {
	Address netip.Addr
	MAC     MAC
}

// Forward is a static forwarding entry of the VXLAN device.
type Forward struct {
	MAC  MAC
	Peer netip.Addr
}

// EngineNetwork is a network of the container engine that carries our labels.
type EngineNetwork struct {
	ID      uint32
	Network string // namespace/name, for people
	// CIDR is the subnet in the containers: the whole network. Each container then reaches each member directly, also
	// over its second network, and the bridge answers for members on other nodes (see SetProxyARP).
	CIDR  netip.Prefix
	Slice netip.Prefix
	MTU   int
}

// ObservedNetwork is a network as the engine has it.
type ObservedNetwork struct {
	EngineNetwork
	Used bool // a container, also a stopped one, is on it
	Link bool // the kernel has the bridge
	// ProxyARP is true if the bridge answers at once for addresses that the machine reaches over another interface.
	ProxyARP bool
}

// Observed is the state of the machine.
type Observed struct {
	// Underlay is nil if no interface has the node's underlay address.
	Underlay *Link
	// Device is nil if there is no VXLAN device with our name. Taken holds an interface's kind if it is of another
	// kind.
	Device *VXLAN
	Taken  string
	// Routes, Neighbours and Forwards are those of the device, sorted.
	Routes     []Route
	Neighbours []Neighbour
	Forwards   []Forward
	// ReversePath is the sysctl rp_filter of the device.
	ReversePath int
	// Addresses holds the IP addresses of all interfaces of the machine, sorted. A bridge whose address is missing here
	// was not made yet.
	Addresses []netip.Addr
	// Table is nil if there is none with our name.
	Table *Table
	// UserChain holds the bridges with our rule in DOCKER-USER, sorted. HasUserChain is false if there is no such
	// chain.
	UserChain    []string
	HasUserChain bool
	// Engine holds the engine's networks with our labels, sorted by id. Answers is false if the engine does not
	// answer; then Engine is what it was before.
	Engine  []ObservedNetwork
	Answers bool
}

// Input is all that Plan needs.
type Input struct {
	View  workload.NetworkView
	Alias string // alias for the VXLAN device, see VXLAN
	Seen  Observed
}

// OurInterface reports whether an interface with a name can be the VXLAN device or the bridge of a network.
func OurInterface(name string) bool {
	digits, ok := strings.CutPrefix(name, bridgePrefix)
	if !ok {
		return name == Device
	}
	_, err := strconv.ParseUint(digits, 10, 32)
	return err == nil
}
