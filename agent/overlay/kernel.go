package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
)

// kernel is the network stack of the machine: the VXLAN device, its entries, and our nftables rules. Its methods are
// called by one goroutine at a time.
type kernel struct {
	links *netlink.Handle
	rules *rules
}

// openKernel opens the sockets, in the network namespace of the calling thread.
func openKernel() (*kernel, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
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

// dumpAttempts is how often a list is asked for again that the kernel changed while it was read.
const dumpAttempts = 3

// dump calls list, and again while the result is inconsistent.
func dump[T any](list func() ([]T, error)) (out []T, err error) {
	for range dumpAttempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// Observe reads everything of plan.Observed but the engine's part. address is the node's underlay address.
func (k *kernel) Observe(address netip.Addr) (seen plan.Observed, err error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return k.links.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return seen, fmt.Errorf("addresses of interfaces: %w", err)
	}
	for _, a := range addrs {
		ip := toAddr(a.IP)
		if ip == address && seen.Underlay == nil {
			link, err := k.links.LinkByIndex(a.LinkIndex)
			if err != nil {
				return seen, fmt.Errorf("interface of %s: %w", address, err)
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
		return seen, fmt.Errorf("nftables: %w", err)
	}
	if seen.UserChain, seen.HasUserChain, err = k.rules.UserChain(); err != nil {
		return seen, fmt.Errorf("chain %s: %w", plan.UserChain, err)
	}
	return seen, nil
}

// device reads the VXLAN device and its entries.
func (k *kernel) device(seen *plan.Observed) error {
	link, err := k.link(plan.Device)
	if err != nil {
		return fmt.Errorf("interface %s: %w", plan.Device, err)
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
		return fmt.Errorf("forwarding entries of %s: %w", plan.Device, err)
	}
	for _, n := range fdb {
		if f := (plan.Forward{Peer: toAddr(n.IP)}); len(n.HardwareAddr) == len(f.MAC) {
			copy(f.MAC[:], n.HardwareAddr)
			seen.Forwards = append(seen.Forwards, f)
		}
	}
	neighbours, err := dump(func() ([]netlink.Neigh, error) { return k.links.NeighList(index, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("neighbours of %s: %w", plan.Device, err)
	}
	for _, n := range neighbours {
		if n.State&(netlink.NUD_PERMANENT) == 0 {
			continue // of the kernel, for example one that it could not resolve
		}
		entry := plan.Neighbour{Address: toAddr(n.IP)}
		copy(entry.MAC[:], n.HardwareAddr)
		seen.Neighbours = append(seen.Neighbours, entry)
	}
	routes, err := dump(func() ([]netlink.Route, error) {
		return k.links.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return fmt.Errorf("routes over %s: %w", plan.Device, err)
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

// reversePath is the sysctl that says how strictly the source of packets from a device is checked.
func reversePath(device string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", device, "rp_filter")
}

// proxyARP is the sysctl that makes a bridge answer for addresses behind other interfaces. proxyDelay is the longest time
// for which it waits before such an answer, in hundredths of a second.
func proxyARP(bridge string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", bridge, "proxy_arp")
}

func proxyDelay(bridge string) string {
	return filepath.Join("/proc/sys/net/ipv4/neigh", bridge, "proxy_delay")
}

// Bridge returns whether the kernel has a bridge, and whether it answers at once for addresses behind other interfaces.
func (k *kernel) Bridge(name string) (exists, answers bool, err error) {
	if exists, err = k.HasLink(name); err != nil || !exists {
		return exists, false, err
	}
	is := func(path, want string) bool {
		raw, err := os.ReadFile(path)
		return err == nil && strings.TrimSpace(string(raw)) == want
	}
	return true, is(proxyARP(name), "1") && is(proxyDelay(name), "0"), nil
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func toNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Apply carries out one operation. Operations on the engine's networks are not the kernel's.
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
		return k.rules.Accept(op.Bridge)
	case plan.DropAccept:
		return k.rules.DropAccept(op.Bridge)
	case plan.SetReversePath:
		return os.WriteFile(reversePath(plan.Device), []byte(strconv.Itoa(op.Value)), 0o600)
	case plan.SetProxyARP:
		return errors.Join(os.WriteFile(proxyDelay(op.Bridge), []byte("0"), 0o600), os.WriteFile(proxyARP(op.Bridge), []byte("1"), 0o600))
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
			LinkIndex: index, Dst: toNet(op.Slice), Gw: op.Via.AsSlice(), Flags: int(netlink.FLAG_ONLINK), MTU: op.MTU, Protocol: unix.RTPROT_STATIC,
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

// create creates the VXLAN device, in the place of one with its name.
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

// remove removes the VXLAN device, if there is one.
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

// gone turns the error of removing what does not exist into nil.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// HasLink reports whether the kernel has an interface.
func (k *kernel) HasLink(name string) (bool, error) {
	link, err := k.link(name)
	return link != nil, err
}

// link returns an interface; nil if there is none with the name.
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
