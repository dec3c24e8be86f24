package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/persys/compute/agent/workload"
)

// ServiceTable is the name of the nftables table (family ip) that translates the addresses of services. Its rules
// never change; only the elements of its maps do. A service is one map element, and each of its instances is another
// one. So the cost of a change does not depend on the number of services:
//
//	map services  address of a service : goto the chain for its number of slots
//	map slots     address of a service . slot : address of an instance
//	chain slots_K dnat to ip daddr . random number below K map @slots
//
// Ports in ingress mode are balanced in the same way, by the maps ports and port_slots and the chains ports_K.
const ServiceTable = "persys_services"

// Balance is the content of the nftables table that balances connections to services
// (ServiceTable).
type Balance struct {
	// Blocks holds, sorted, the prefixes from which services get their addresses, each with the bridge of the
	// containers that may use these services.
	Blocks []Block
	// Services holds the services that have instances, sorted by address. The nth instance of a service is
	// in slot n of the map.
	Services []workload.NetworkService
	// Own holds the instances on this machine, sorted. An instance that calls its own service and reaches itself gets
	// an answer only if the source address of the packet is translated to another one than its own.
	Own []netip.Addr
	// Ports holds the ports in ingress mode that have instances, sorted. The nth instance of a port is in
	// slot n of the map.
	Ports []workload.NetworkIngress
	// Inside holds the addresses of this machine in its networks, sorted. Ports in ingress mode do not answer at
	// these addresses.
	Inside []netip.Addr
}

// Block is a part of a network's address range that is reserved for the addresses of services.
type Block struct {
	Bridge string
	Prefix netip.Prefix
}

// BalanceOf returns the content that the table must have for the networks and services of a machine. A
// service is left out if no network in v has a block with its address: the service is new, and the network
// view with its block has not arrived yet. An instance is left out if its address is in no network of v.
// Ports that are held by programs of the machine are left out.
func BalanceOf(v workload.NetworkView, s workload.ServiceView, held ...workload.IngressPort) Balance {
	var out Balance
	var slice, cidrs []netip.Prefix
	for _, n := range v.Networks {
		slice = append(slice, n.Slice)
		cidrs = append(cidrs, n.CIDR)
		out.Inside = append(out.Inside, Gateway(n.Slice))
		for _, p := range n.Services {
			out.Blocks = append(out.Blocks, Block{Bridge(n.ID), p})
		}
	}
	SortBlocks(out.Blocks)
	within := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, x := range s.Services {
		if len(x.Endpoints) == 0 || !out.Has(x.Address) {
			continue
		}
		out.Services = append(out.Services, x)
		for _, a := range x.Endpoints {
			if within(slice, a) {
				out.Own = append(out.Own, a)
			}
		}
	}
	for _, x := range s.Ingress {
		x.Endpoints = slices.DeleteFunc(slices.Clone(x.Endpoints), func(a netip.AddrPort) bool { return !within(cidrs, a.Addr()) })
		if len(x.Endpoints) == 0 || slices.Contains(held, x.IngressPort) {
			continue
		}
		out.Ports = append(out.Ports, x)
		for _, a := range x.Endpoints {
			if within(slice, a.Addr()) {
				out.Own = append(out.Own, a.Addr())
			}
		}
	}
	slices.SortFunc(out.Inside, netip.Addr.Compare)
	slices.SortFunc(out.Own, netip.Addr.Compare)
	out.Own = slices.Compact(out.Own)
	return out
}

// Empty reports whether the machine has no services and no ports in ingress mode.
func (b Balance) Empty() bool { return len(b.Blocks)+len(b.Ports) == 0 }

// Has reports whether an address is in one of the blocks.
func (b Balance) Has(a netip.Addr) bool {
	return slices.ContainsFunc(b.Blocks, func(x Block) bool { return x.Prefix.Contains(a) })
}

// SlotOf is one element of a map of slots: the instance in one slot of a front. A front is a service or a port in
// ingress mode.
type SlotOf[F, I any] struct {
	Front    F
	Number   uint32
	Instance I
}

// SizeOf is one element of the maps services and ports: a front (a service or a port in ingress mode) and its
// number of slots. Each instance has one slot.
type SizeOf[F any] struct {
	Front F
	Slots int
}

// Elements of the maps services and slots, and of the maps ports and port_slots.
type (
	Size     = SizeOf[netip.Addr]
	Slot     = SlotOf[netip.Addr, netip.Addr]
	PortSize = SizeOf[workload.IngressPort]
	PortSlot = SlotOf[workload.IngressPort, netip.AddrPort]
)

// BalanceChange holds the map elements to remove, and those to add after that. An element that is added may
// have the key of an element that is removed.
type BalanceChange struct {
	DropSizes, AddSizes         []Size
	DropSlots, AddSlots         []Slot
	DropBlocks, AddBlocks       []Block
	DropOwn, AddOwn             []netip.Addr
	DropPorts, AddPorts         []PortSize
	DropPortSlots, AddPortSlots []PortSlot
	DropInside, AddInside       []netip.Addr
}

// Empty reports whether there is nothing to change.
func (c BalanceChange) Empty() bool {
	return len(c.DropSizes)+len(c.AddSizes)+len(c.DropSlots)+len(c.AddSlots)+len(c.DropBlocks)+len(c.AddBlocks)+len(c.DropOwn)+len(c.AddOwn)+
		len(c.DropPorts)+len(c.AddPorts)+len(c.DropPortSlots)+len(c.AddPortSlots)+len(c.DropInside)+len(c.AddInside) == 0
}

func (c BalanceChange) String() string {
	return fmt.Sprintf("services -%d +%d, slots -%d +%d, blocks -%d +%d, ports -%d +%d", len(c.DropSizes), len(c.AddSizes),
		len(c.DropSlots), len(c.AddSlots), len(c.DropBlocks), len(c.AddBlocks), len(c.DropPorts), len(c.AddPorts))
}

// To returns the change from b to another content.
func (b Balance) To(next Balance) (c BalanceChange) {
	services := frontChange[netip.Addr, netip.Addr]{&c.DropSizes, &c.AddSizes, &c.DropSlots, &c.AddSlots}
	eachPair(b.Services, next.Services, serviceOrder, func(have, want workload.NetworkService) {
		at := have.Address
		if !at.IsValid() {
			at = want.Address
		}
		services.change(at, have.Endpoints, want.Endpoints)
	})
	ports := frontChange[workload.IngressPort, netip.AddrPort]{&c.DropPorts, &c.AddPorts, &c.DropPortSlots, &c.AddPortSlots}
	eachPair(b.Ports, next.Ports, portOrder, func(have, want workload.NetworkIngress) {
		at := have.IngressPort
		if at.Port == 0 {
			at = want.IngressPort
		}
		ports.change(at, have.Endpoints, want.Endpoints)
	})
	c.DropBlocks, c.AddBlocks = difference(b.Blocks, next.Blocks, blockOrder), difference(next.Blocks, b.Blocks, blockOrder)
	c.DropOwn, c.AddOwn = difference(b.Own, next.Own, netip.Addr.Compare), difference(next.Own, b.Own, netip.Addr.Compare)
	c.DropInside, c.AddInside = difference(b.Inside, next.Inside, netip.Addr.Compare), difference(next.Inside, b.Inside, netip.Addr.Compare)
	return c
}

func serviceOrder(a, b workload.NetworkService) int { return a.Address.Compare(b.Address) }

func portOrder(a, b workload.NetworkIngress) int { return a.Compare(b.IngressPort) }

// eachPair calls fn for each key that occurs in one of two sorted lists, with the elements of both lists. If a
// list lacks the key, fn gets the zero value for it.
func eachPair[T any](a, b []T, order func(T, T) int, fn func(T, T)) {
	for len(a)+len(b) > 0 {
		var x, y T
		var which int
		switch {
		case len(a) == 0:
			which = 1
		case len(b) == 0:
			which = -1
		default:
			which = order(a[0], b[0])
		}
		if which <= 0 {
			x, a = a[0], a[1:]
		}
		if which >= 0 {
			y, b = b[0], b[1:]
		}
		fn(x, y)
	}
}

// frontChange collects the changed map elements of one kind of front: services, or ports in ingress
// mode.
type frontChange[F any, I comparable] struct {
	dropSizes, addSizes *[]SizeOf[F]
	dropSlots, addSlots *[]SlotOf[F, I]
}

// change adds to c the map elements that must change if the instances of one front (the service or port with
// the key at) change from the list have to the list want.
func (c frontChange[F, I]) change(at F, have, want []I) {
	if was, now := len(have), len(want); was != now {
		if was > 0 {
			*c.dropSizes = append(*c.dropSizes, SizeOf[F]{at, was})
		}
		if now > 0 {
			*c.addSizes = append(*c.addSizes, SizeOf[F]{at, now})
		}
	}
	for i := range max(len(have), len(want)) {
		if i < len(have) && i < len(want) && have[i] == want[i] {
			continue
		}
		if i < len(have) {
			*c.dropSlots = append(*c.dropSlots, SlotOf[F, I]{at, uint32(i), have[i]})
		}
		if i < len(want) {
			*c.addSlots = append(*c.addSlots, SlotOf[F, I]{at, uint32(i), want[i]})
		}
	}
}

func blockOrder(a, b Block) int {
	return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
}

// SortBlocks sorts blocks as Balance.Blocks requires.
func SortBlocks(list []Block) { slices.SortFunc(list, blockOrder) }

// difference returns the elements of the sorted list a that the sorted list b does not have.
func difference[T any](a, b []T, order func(T, T) int) (out []T) {
	for _, x := range a {
		if _, found := slices.BinarySearchFunc(b, x, order); !found {
			out = append(out, x)
		}
	}
	return out
}

// Stale reports whether a connection tracking entry of a service must be deleted, so that the next packet goes
// to another instance. The entry of a TCP connection is deleted only if the instance is lost with its node.
// Otherwise the connection may continue after the instance has left the service, and ends with the instance.
// Other protocols have no end of a connection, so without the deletion their clients would send to the old
// instance for ever.
func Stale(s workload.ServiceView, service, instance netip.Addr, tcp bool) bool {
	if lost(s, instance) {
		return true
	}
	if tcp {
		return false
	}
	i, found := slices.BinarySearchFunc(s.Services, service, func(x workload.NetworkService, a netip.Addr) int { return x.Address.Compare(a) })
	if !found {
		return true
	}
	_, serves := slices.BinarySearchFunc(s.Services[i].Endpoints, instance, netip.Addr.Compare)
	return !serves
}

func lost(s workload.ServiceView, instance netip.Addr) bool {
	return slices.ContainsFunc(s.Lost, func(p netip.Prefix) bool { return p.Contains(instance) })
}

// StalePort reports whether a connection tracking entry of a port in ingress mode must be deleted, as Stale does for
// services. If the connection began before the port had an instance, instance is the address of the machine to which
// the client sent its packet.
func StalePort(s workload.ServiceView, have Balance, at workload.IngressPort, instance netip.AddrPort) bool {
	if lost(s, instance.Addr()) {
		return true
	}
	if !at.UDP {
		return false
	}
	i, found := slices.BinarySearchFunc(have.Ports, at, func(x workload.NetworkIngress, p workload.IngressPort) int { return x.Compare(p) })
	return !found || !slices.Contains(have.Ports[i].Endpoints, instance)
}
