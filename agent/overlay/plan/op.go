package plan

import (
	"fmt"
	"net/netip"
)

// Op is one operation on the kernel or the container engine. Its String is the text for logs and golden tests.
type Op interface {
	fmt.Stringer
	op()
}

// The operations that change a machine. An operation whose name begins with Put adds an entry, or replaces the entry
// with the same key.
type (
	// CreateDevice creates the VXLAN device and brings it up. An existing device of the same name is
	// removed first.
	CreateDevice struct {
		Device VXLAN
		Reason string // why an existing device is replaced; "" if there is none
	}
	// DeleteDevice removes the VXLAN device, and with it its routes, neighbours and forwarding entries.
	DeleteDevice struct{}
	// AdjustDevice sets MTU and alias of the VXLAN device and brings it up.
	AdjustDevice struct {
		MTU   int
		Alias string
	}
	SetReversePath struct{ Value int } // sysctl rp_filter of the VXLAN device
	PutForward     struct{ Forward }
	DropForward    struct{ Forward }
	PutNeighbour   struct{ Neighbour }
	DropNeighbour  struct{ Address netip.Addr }
	PutRoute       struct{ Route }
	DropRoute      struct{ Slice netip.Prefix }
	// ReplaceTable replaces our nftables table (inet persys) by another one, in one transaction.
	ReplaceTable struct{ Table *Table }
	DropTable    struct{}
	// AcceptInto puts a rule at the head of Docker's chain DOCKER-USER.
	AcceptInto struct{ UserRule }
	// DropAccept removes from DOCKER-USER a rule that AcceptInto added.
	DropAccept struct{ UserRule }
	// CreateNetwork creates a network in the container engine, which makes the bridge.
	CreateNetwork struct{ EngineNetwork }
	// SetUpBridge makes a bridge answer ARP requests for the addresses of services and of containers on other nodes
	// with its own Ethernet address, and without delay. It also turns on connection tracking for the packets between
	// containers on the bridge, so that the answers of an instance to a client on its own node come from the address
	// of the service.
	SetUpBridge struct{ Bridge string }
	// RemoveNetwork removes a network of the container engine, if no container is on it.
	RemoveNetwork struct{ ID uint32 }
)

func (CreateDevice) op()   {}
func (DeleteDevice) op()   {}
func (AdjustDevice) op()   {}
func (SetReversePath) op() {}
func (PutForward) op()     {}
func (DropForward) op()    {}
func (PutNeighbour) op()   {}
func (DropNeighbour) op()  {}
func (PutRoute) op()       {}
func (DropRoute) op()      {}
func (ReplaceTable) op()   {}
func (DropTable) op()      {}
func (AcceptInto) op()     {}
func (DropAccept) op()     {}
func (CreateNetwork) op()  {}
func (SetUpBridge) op()    {}
func (RemoveNetwork) op()  {}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func (o CreateDevice) String() string {
	d := o.Device
	text := fmt.Sprintf("create %s: vni %d port %d local %s interface %d mac %s mtu %d", Device, d.VNI, d.Port, d.Local, d.Under, d.MAC, d.MTU)
	if o.Reason != "" {
		text += " (" + o.Reason + ")"
	}
	return text
}
func (DeleteDevice) String() string   { return "delete " + Device }
func (o AdjustDevice) String() string { return fmt.Sprintf("set %s up, mtu %d", Device, o.MTU) }
func (o SetReversePath) String() string {
	return fmt.Sprintf("set rp_filter of %s to %d", Device, o.Value)
}
func (o PutForward) String() string    { return fmt.Sprintf("forward %s to %s", o.MAC, o.Peer) }
func (o DropForward) String() string   { return fmt.Sprintf("do not forward %s to %s", o.MAC, o.Peer) }
func (o PutNeighbour) String() string  { return fmt.Sprintf("neighbour %s is %s", o.Address, o.MAC) }
func (o DropNeighbour) String() string { return fmt.Sprintf("no neighbour %s", o.Address) }
func (o PutRoute) String() string {
	text := fmt.Sprintf("route %s via %s mtu %d", o.Slice, o.Via, o.MTU)
	if !o.Via.IsValid() {
		text = fmt.Sprintf("route %s mtu %d", o.Slice, o.MTU)
	}
	if o.Source.IsValid() {
		text += " src " + o.Source.String()
	}
	return text
}
func (o DropRoute) String() string    { return fmt.Sprintf("no route %s", o.Slice) }
func (o ReplaceTable) String() string { return "replace " + o.Table.String() }
func (DropTable) String() string      { return "drop table inet " + TableName }
func (o AcceptInto) String() string {
	return fmt.Sprintf("%s: accept %s", UserChain, o.UserRule.text())
}
func (o DropAccept) String() string {
	return fmt.Sprintf("%s: do not accept %s", UserChain, o.UserRule.text())
}
func (o CreateNetwork) String() string {
	return fmt.Sprintf("create network %s (%s): %s of %s mtu %d", Bridge(o.ID), o.Network, o.Slice, o.CIDR, o.MTU)
}
func (o SetUpBridge) String() string {
	return fmt.Sprintf("%s answers for members on other nodes", o.Bridge)
}
func (o RemoveNetwork) String() string { return "remove network " + Bridge(o.ID) }
