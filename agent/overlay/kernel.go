package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
)

// kernel is the network stack of the machine: the VXLAN device with its entries, and our nftables rules.
// Only one goroutine at a time calls its methods.
type kernel struct {
	links *netlink.Handle
	rules *rules
}

// openKernel returns a kernel. It opens the netlink sockets in the network namespace of the calling thread.
func openKernel() (*kernel, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for interfaces and routes: %w", err)
	}
	rules, err := openRules()
	if err != nil {
		links.Close()
		return nil, err
	}
	return &kernel{links: links, rules: rules}, nil
}

func (k *kernel) Close() {
	k.links.Close()
	k.rules.Close()
}

// dumpAttempts is the maximum number of attempts to read a list that the kernel changes during the reading.
const dumpAttempts = 3

// dump calls list until the result is consistent, at most dumpAttempts times.
func dump[T any](list func() ([]T, error)) (out []T, err error) {
	for range dumpAttempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// Observe reads all fields of plan.Observed except those about the engine. address is the node's underlay
// address: its address on the network between the nodes.
func (k *kernel) Observe(address netip.Addr) (seen plan.Observed, err error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return k.links.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return seen, fmt.Errorf("reading the addresses of interfaces: %w", err)
	}
	for _, a := range addrs {
		ip := toAddr(a.IP)
		if ip == address && seen.Underlay == nil {
			link, err := k.links.LinkByIndex(a.LinkIndex)
			if err != nil {
				return seen, fmt.Errorf("reading the interface that has the address %s: %w", address, err)
			}
			seen.Underlay = &plan.Link{Name: link.Attrs().Name, Index: a.LinkIndex, MTU: link.Attrs().MTU}
		}
		seen.Addresses = append(seen.Addresses, ip)
	}
	slices.SortFunc(seen.Addresses, netip.Addr.Compare)
	seen.Addresses = slices.Compact(seen.Addresses)
	if err := k.device(&seen); err != nil {
		return seen, err
	}
	if seen.Table, err = k.rules.Table(); err != nil {
		return seen, fmt.Errorf("reading our nftables table: %w", err)
	}
	if seen.UserChain, seen.HasUserChain, err = k.rules.UserChain(); err != nil {
		return seen, fmt.Errorf("reading the nftables chain %s: %w", plan.UserChain, err)
	}
	return seen, nil
}

// device reads the VXLAN device, its forwarding entries, its neighbour entries and its routes.
func (k *kernel) device(seen *plan.Observed) error {
	link, err := k.link(plan.Device)
	if err != nil {
		return fmt.Errorf("reading the interface %s: %w", plan.Device, err)
	}
	if link == nil {
		return nil
	}
	x, ok := link.(*netlink.Vxlan)
	if !ok {
		seen.Taken = link.Type()
		return nil
	}
	seen.Device = &plan.VXLAN{
		Alias: x.Alias, VNI: uint32(x.VxlanId), Port: uint16(x.Port), Local: toAddr(x.SrcAddr), Under: x.VtepDevIndex,
		MTU: x.MTU, Up: x.Flags&net.FlagUp != 0, Learning: x.Learning,
	}
	copy(seen.Device.MAC[:], x.HardwareAddr)
	index := x.Index
	if raw, err := os.ReadFile(reversePath(plan.Device)); err == nil {
		seen.ReversePath, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
	}
	fdb, err := dump(func() ([]netlink.Neigh, error) { return k.links.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("reading the forwarding entries of %s: %w", plan.Device, err)
	}
	for _, n := range fdb {
		if f := (plan.Forward{Peer: toAddr(n.IP)}); len(n.HardwareAddr) == len(f.MAC) {
			copy(f.MAC[:], n.HardwareAddr)
			seen.Forwards = append(seen.Forwards, f)
		}
	}
	neighbours, err := dump(func() ([]netlink.Neigh, error) { return k.links.NeighList(index, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("reading the neighbours of %s: %w", plan.Device, err)
	}
	for _, n := range neighbours {
		if n.State&(netlink.NUD_PERMANENT) == 0 {
			continue // the kernel made this entry, for example for an address that it could not resolve
		}
		entry := plan.Neighbour{Address: toAddr(n.IP)}
		copy(entry.MAC[:], n.HardwareAddr)
		seen.Neighbours = append(seen.Neighbours, entry)
	}
	routes, err := dump(func() ([]netlink.Route, error) {
		return k.links.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return fmt.Errorf("reading the routes over %s: %w", plan.Device, err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		seen.Routes = append(seen.Routes, plan.Route{Slice: netip.PrefixFrom(toAddr(r.Dst.IP), ones), Via: toAddr(r.Gw), Source: toAddr(r.Src), MTU: r.MTU})
	}
	plan.SortForwards(seen.Forwards)
	plan.SortNeighbours(seen.Neighbours)
	plan.SortRoutes(seen.Routes)
	return nil
}

// reversePath returns the path of the sysctl rp_filter of a device, which sets how strictly the kernel
// checks the source addresses of received packets.
func reversePath(device string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", device, "rp_filter")
}

// proxyARP returns the path of the sysctl that makes a bridge answer ARP requests for addresses behind
// other interfaces. proxyDelay is the sysctl for the maximum delay of such an answer, in hundredths of a
// second.
func proxyARP(bridge string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", bridge, "proxy_arp")
}

func proxyDelay(bridge string) string {
	return filepath.Join("/proc/sys/net/ipv4/neigh", bridge, "proxy_delay")
}

// filterBridge turns on connection tracking for packets between the ports of a bridge.
func (k *kernel) filterBridge(name string) error {
	link, err := k.links.LinkByName(name)
	if err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_BR_NF_CALL_IPTABLES, []byte{1})
	req.AddData(msg)
	req.AddData(info)
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Reflect turns on hairpin mode for the ports of bridges: a port may send a packet back to where it came
// from. So an instance that calls its own service can reach itself. The map ports holds the interface indexes
// of the bridge ports for which earlier calls turned the mode on. Reflect skips these ports and adds the new
// ones.
func (k *kernel) Reflect(bridges map[int]bool, ports map[int]bool) error {
	links, err := dump(k.links.LinkList)
	if err != nil {
		return fmt.Errorf("listing the interfaces of this machine: %w", err)
	}
	seen := map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		if !bridges[a.MasterIndex] {
			continue
		}
		seen[a.Index] = true
		if ports[a.Index] {
			continue
		}
		if err := k.links.LinkSetHairpin(l, true); gone(err) != nil {
			return fmt.Errorf("turning on hairpin mode for the bridge port %s: %w", a.Name, err)
		}
		ports[a.Index] = true
	}
	maps.DeleteFunc(ports, func(index int, _ bool) bool { return !seen[index] })
	return nil
}

// bridgeFiltered reports whether filterBridge has already set its option on a bridge. It also returns true if
// the kernel lacks the option, so that nobody tries to set it.
func bridgeFiltered(index int) (bool, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return false, err
	}
	inside := func(raw []byte, kind uint16) ([]byte, bool) {
		attrs, err := nl.ParseRouteAttr(raw)
		i := slices.IndexFunc(attrs, func(a syscall.NetlinkRouteAttr) bool { return a.Attr.Type&nl.NLA_TYPE_MASK == kind })
		if err != nil || i < 0 {
			return nil, false
		}
		return attrs[i].Value, true
	}
	for _, raw := range replies {
		if info, ok := inside(raw[min(len(raw), unix.SizeofIfInfomsg):], unix.IFLA_LINKINFO); ok {
			if data, ok := inside(info, nl.IFLA_INFO_DATA); ok {
				if value, ok := inside(data, nl.IFLA_BR_NF_CALL_IPTABLES); ok && len(value) == 1 {
					return value[0] == 1, nil
				}
			}
		}
	}
	return true, nil
}

// Bridge returns the index of a bridge, 0 if the kernel has none with the name, and whether the operation
// plan.SetUpBridge was applied to it.
func (k *kernel) Bridge(name string) (index int, set bool, err error) {
	link, err := k.link(name)
	if err != nil || link == nil {
		return 0, false, err
	}
	index = link.Attrs().Index
	filtered, err := bridgeFiltered(index)
	if err != nil {
		return index, false, err
	}
	is := func(path, want string) bool {
		raw, err := os.ReadFile(path)
		return err == nil && strings.TrimSpace(string(raw)) == want
	}
	return index, filtered && is(proxyARP(name), "1") && is(proxyDelay(name), "0"), nil
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func toNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Apply carries out one operation on the kernel. Operations on the networks of the container engine are
// carried out by the engine and not here.
func (k *kernel) Apply(op plan.Op) error {
	switch op := op.(type) {
	case plan.CreateDevice:
		return k.create(op)
	case plan.DeleteDevice:
		return k.remove()
	case plan.ReplaceTable:
		return k.rules.Replace(op.Table)
	case plan.DropTable:
		return k.rules.Replace(nil)
	case plan.AcceptInto:
		return k.rules.Accept(op.UserRule)
	case plan.DropAccept:
		return k.rules.DropAccept(op.UserRule)
	case plan.SetReversePath:
		return os.WriteFile(reversePath(plan.Device), []byte(strconv.Itoa(op.Value)), 0o600)
	case plan.SetUpBridge:
		return errors.Join(k.filterBridge(op.Bridge), os.WriteFile(proxyDelay(op.Bridge), []byte("0"), 0o600), os.WriteFile(proxyARP(op.Bridge), []byte("1"), 0o600))
	}
	link, err := k.links.LinkByName(plan.Device)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	switch op := op.(type) {
	case plan.AdjustDevice:
		return k.adjust(link, op.MTU, op.Alias)
	case plan.PutForward:
		return k.links.NeighSet(forward(index, op.Forward))
	case plan.DropForward:
		return gone(k.links.NeighDel(forward(index, op.Forward)))
	case plan.PutNeighbour:
		return k.links.NeighSet(neighbour(index, op.Neighbour))
	case plan.DropNeighbour:
		return gone(k.links.NeighDel(neighbour(index, plan.Neighbour{Address: op.Address})))
	case plan.PutRoute:
		r := &netlink.Route{
			LinkIndex: index, Dst: toNet(op.Slice), Scope: netlink.SCOPE_LINK, MTU: op.MTU, Protocol: unix.RTPROT_STATIC,
		}
		if op.Via.IsValid() {
			r.Gw, r.Flags, r.Scope = op.Via.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
		}
		if op.Source.IsValid() {
			r.Src = op.Source.AsSlice()
		}
		return k.links.RouteReplace(r)
	case plan.DropRoute:
		return gone(k.links.RouteDel(&netlink.Route{LinkIndex: index, Dst: toNet(op.Slice)}))
	}
	return fmt.Errorf("unknown operation %T", op)
}

// create creates the VXLAN device. It replaces an existing interface of the same name.
func (k *kernel) create(op plan.CreateDevice) error {
	d := op.Device
	if err := k.remove(); err != nil {
		return err
	}
	x := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: plan.Device, MTU: d.MTU, HardwareAddr: d.MAC[:], TxQLen: -1},
		VxlanId:   int(d.VNI), Port: int(d.Port), VtepDevIndex: d.Under, SrcAddr: d.Local.AsSlice(), UDPCSum: true, NoAge: true,
	}
	if err := k.links.LinkAdd(x); err != nil {
		return err
	}
	link, err := k.links.LinkByName(plan.Device)
	if err != nil {
		return err
	}
	return k.adjust(link, d.MTU, d.Alias)
}

func (k *kernel) adjust(link netlink.Link, mtu int, alias string) error {
	if err := k.links.LinkSetAlias(link, alias); err != nil {
		return err
	}
	if err := k.links.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	return k.links.LinkSetUp(link)
}

// remove removes the VXLAN device if it exists.
func (k *kernel) remove() error {
	link, err := k.link(plan.Device)
	if err != nil || link == nil {
		return err
	}
	return gone(k.links.LinkDel(link))
}

func forward(index int, f plan.Forward) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: f.Peer.AsSlice(), HardwareAddr: f.MAC[:],
	}
}

func neighbour(index int, n plan.Neighbour) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: n.Address.AsSlice(), HardwareAddr: n.MAC[:]}
}

// gone ignores the error of a removal if it says that the object does not exist: it then returns nil, and
// otherwise err.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// HasLink reports whether the kernel has a network interface of this name.
func (k *kernel) HasLink(name string) (bool, error) {
	link, err := k.link(name)
	return link != nil, err
}

// link returns the interface with a name, or nil if there is none.
func (k *kernel) link(name string) (netlink.Link, error) {
	link, err := k.links.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return link, nil
}
