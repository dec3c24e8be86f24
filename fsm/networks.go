package fsm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// Networks span nodes. Each node that has a member of a network owns one slice of the network's prefix, and
// assigns addresses of this slice to its containers, so that no two nodes can assign the same address. The state
// machine gives a node its slice in the log entry that binds the first member to the node
// (docs/adr/0065-networks.md).

// Limits of networks. Times are in nanoseconds.
const (
	SliceBits   = 26 // prefix length of a slice: 62 addresses
	MaxNetworks = 1000
	// NetworkBits is the prefix length of a network whose prefix is taken from the cluster's pool
	// of addresses.
	NetworkBits = 20
	// minNetworkBits and SliceBits are the lowest and the highest prefix length of a network.
	// SliceBits is also the prefix length of a slice, the part of a network that one node has.
	minNetworkBits = 14
	// SliceIdle is how long a node keeps its slice (part of the addresses) of a network after its
	// last workload in that network has left.
	SliceIdle = 24 * 3600 * int64(1e9)
	// SliceRest is how long a slice (a node's part of a network's addresses) that was taken back is given to
	// no other node. Nodes that were cut off may still send packets for its addresses to the former node.
	SliceRest  = 3600 * int64(1e9)
	DefaultMTU = 1450 // fits into VXLAN over IPv4 over Ethernet
	minMTU     = 576
	// maxConfined limits users who may act only in certain namespaces: in a namespace with this
	// number of networks they cannot create another.
	maxConfined = 16
	maxMTU      = 65485
)

// Networking says what a node can do for networks. It is zero for agents that do not support
// networks.
type Networking struct {
	Address string // IP address to which other nodes send packets of networks
	MTU     uint32 // largest MTU of a network on the node, in bytes
	Problem string // why the node cannot take part in networks; "" if it can
	Ingress bool   // the node can answer at ports in ingress mode
	Held    string // ports in ingress mode at which the machine does not answer, for example "22/tcp, 80/tcp"
	// Forbidden has the ports of Held that the PERSYS_POLICY of the node forbids. Programs of the machine use the
	// other ones. Agents of former versions do not report it.
	Forbidden string
}

// Lacks returns why a node cannot take part in any network; "" if it can.
func (n Networking) Lacks() string {
	switch {
	case n.Problem != "":
		return n.Problem
	case n.Address == "":
		return "its agent does not support networks; update it"
	}
	return ""
}

// Network is the record of one network. A record in the state is never modified; a change stores a new record.
type Network struct {
	ID          uint32 // number of the network, from 1; never given to another network
	Name        string
	Namespace   string // "" = the default namespace
	CIDR        netip.Prefix
	MTU         uint32
	CreatedAt   int64 // Unix nanoseconds
	CreatedBy   string
	CreateIndex uint64
	ModifyIndex uint64
	Slices      []Slice          // sorted by Number; a node has at most one
	Services    []ServiceAddress // sorted by Name
	Ingress     bool             // a workload publishes a port in ingress mode through the network, so all nodes that can have a slice
}

// Slice is the part of a network that belongs to one node, or that belonged to one until it was taken back.
type Slice struct {
	Number     uint32 // place within the network: the first slice has number 0
	Node       string // "" = taken back, or Services
	EmptySince int64  // since when the node has no member, Unix nanoseconds; 0 = it has some
	FreeAt     int64  // if it was taken back: the time from which it may be given away
	Services   bool   // the slice holds addresses of services
}

// freeAt reports whether the slice (a part of a network's addresses) was taken back and may be
// given to a node at time at.
func (s Slice) freeAt(at int64) bool { return s.Node == "" && !s.Services && s.FreeAt <= at }

// Idle reports whether slice s may be taken back at time at, because its node has had no workload
// in the network for a day and does not answer at ports in ingress mode.
func (n *Network) Idle(s Slice, at int64) bool {
	return !n.Ingress && s.Node != "" && s.EmptySince != 0 && at >= s.EmptySince+SliceIdle
}

// In returns the name of the network's namespace.
func (n *Network) In() string { return cmp.Or(n.Namespace, DefaultNamespace) }

func (n *Network) key() string { return pair(n.In(), n.Name) }

// Capacity returns the number of slices of the network, that is, the number of nodes that can take part in
// it.
func (n *Network) Capacity() int { return 1 << (SliceBits - n.CIDR.Bits()) }

// Prefix returns the addresses of a slice.
func (n *Network) Prefix(s Slice) netip.Prefix {
	a := n.CIDR.Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += s.Number << (32 - SliceBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), SliceBits)
}

// SliceOf returns the slice of a node.
func (n *Network) SliceOf(node string) (Slice, bool) {
	for _, s := range n.Slices {
		if s.Node == node && node != "" {
			return s, true
		}
	}
	return Slice{}, false
}

// free returns the number of the lowest slice (part of the addresses) that may be given to a node
// at time at; false if there is none.
func (n *Network) free(at int64) (number uint32, ok bool) {
	for _, s := range n.Slices {
		if s.Number > number {
			break
		}
		if s.freeAt(at) {
			return s.Number, true
		}
		number = s.Number + 1
	}
	return number, int(number) < n.Capacity()
}

// Room returns how many further nodes can get a slice (a part of the addresses) of the network at
// time at, in Unix nanoseconds.
func (n *Network) Room(at int64) int {
	room := n.Capacity()
	for _, s := range n.Slices {
		if !s.freeAt(at) {
			room--
		}
	}
	return room
}

// with returns a copy of the network with the slice s added (a part of the network's addresses, and the node that owns
// it). If the network has a slice with the same number, s replaces that slice.
func (n *Network) with(s Slice) *Network {
	next := *n
	next.Slices = slices.Clone(n.Slices)
	i, found := slices.BinarySearchFunc(next.Slices, s.Number, func(s Slice, number uint32) int { return cmp.Compare(s.Number, number) })
	if found {
		next.Slices[i] = s
	} else {
		next.Slices = slices.Insert(next.Slices, i, s)
	}
	return &next
}

// Network returns one network of a namespace.
func (s State) Network(namespace, name string) (*Network, bool) {
	return s.r.networks.Get(pair(cmp.Or(namespace, DefaultNamespace), name))
}

// Networks calls fn for each network, by namespace and name.
func (s State) Networks(fn func(*Network) bool) {
	s.r.networks.Scan(func(_ string, n *Network) bool { return fn(n) })
}

// networkIn returns the name of any network of a namespace; "" if the namespace has none.
func (s State) networkIn(namespace string) (name string) {
	eachUnder(s.r.networks, namespace+"/", func(_ string, n *Network) bool {
		name = n.Name
		return false
	})
	return name
}

// UsedBy reports whether the specification of a workload names the network.
func (n *Network) UsedBy(w *Workload) bool {
	return w.In() == n.In() && slices.Contains(w.Demand.Networks, n.Name)
}

// MembersOn returns the number of workloads on a node that use a network. Instances that the node
// must still remove (residuals) are included.
func MembersOn(v interface {
	WorkloadsOn(node string, fn func(*Workload) bool)
	Residuals(node string, fn func(*Residual) bool)
}, n *Network, node string) (count int) {
	v.WorkloadsOn(node, func(w *Workload) bool {
		if n.UsedBy(w) {
			count++
		}
		return true
	})
	// A residual is an instance that the node must still remove. Its record has no namespace, so residuals in a
	// network with the same name in another namespace are included. The only effect is that the node keeps its slice
	// (part of the addresses) longer than needed.
	v.Residuals(node, func(r *Residual) bool {
		if slices.Contains(r.Demand.Networks, n.Name) {
			count++
		}
		return true
	})
	return count
}

// putNetwork creates a network.
func (t *Tx) putNetwork(b *commandv1.PutNetwork) Result {
	n := t.networkOf(b)
	if res, ok := t.fitsNetwork(n, b); !ok {
		return res
	}
	t.addNetwork(n)
	return Result{}
}

// networkOf returns the record of a new network, without id and, if b names none, without subnet.
func (t *Tx) networkOf(b *commandv1.PutNetwork) *Network {
	return &Network{
		Name: strings.Clone(b.GetName()), Namespace: strings.Clone(stored(b.GetNamespace())), MTU: cmp.Or(b.GetMtu(), DefaultMTU),
		CreatedAt: t.r.info.Clock, CreatedBy: t.by, CreateIndex: t.meta.Index,
	}
}

// fitsNetwork decides whether a new network is accepted, and gives it a part of the pool if it has no subnet.
func (t *Tx) fitsNetwork(n *Network, b *commandv1.PutNetwork) (Result, bool) {
	if res, ok := t.mayUse("network", n.Name, n.In()); !ok {
		return res, false
	}
	if !bounds.ValidID(n.Name) {
		return refuse(Invalid, "name: %s does not match %s", quoted(n.Name), bounds.IDRule), false
	}
	if n.MTU < minMTU || n.MTU > maxMTU {
		return refuse(Invalid, "mtu: %d is not in %d..%d", n.MTU, minMTU, maxMTU), false
	}
	switch _, known := t.r.networks.Get(n.key()); {
	case !t.state().HasNamespace(n.In()):
		return refuse(NotFound, "namespace %q does not exist: persysctl namespace list shows them", clip(n.In())), false
	case known:
		return refuse(Conflict, "network %q exists already in namespace %q; a network cannot be changed", n.Name, n.In()), false
	case t.r.networks.Len() >= MaxNetworks:
		return refuse(Conflict, "there are %d networks, at most %d: remove some (persysctl network rm)", t.r.networks.Len(), MaxNetworks), false
	}
	if t.unprivileged && b.GetCidr() != "" { // the subnet may be one of the company's networks, which the nodes would no longer reach
		return refuse(Denied, "cidr: %s: a subnet can be chosen with the permission policies in all namespaces; leave it out to get a part of the pool, or ask an admin", quoted(b.GetCidr())), false
	}
	if len(t.confined) > 0 {
		if count := countUnder(t.r.networks, n.In()+"/"); count >= maxConfined {
			return refuse(Denied, "namespace %q has %d networks, and users who are confined to namespaces may make at most %d: remove some, or ask an admin", n.In(), count, maxConfined), false
		}
	}
	if b.GetCidr() == "" {
		pool, fault := ParsePool(b.GetPool())
		if fault != "" {
			return refuse(Invalid, "pool: %s", fault), false
		}
		if n.CIDR = t.freeIn(pool); !n.CIDR.IsValid() {
			return refuse(Conflict, "the pool %s has no free /%d left: choose a subnet outside of it (--subnet), remove networks, or enlarge SCHEDULER_NETWORK_POOL", pool, NetworkBits), false
		}
	} else {
		var fault string
		if n.CIDR, fault = ParseSubnet(b.GetCidr()); fault != "" {
			return refuse(Invalid, "cidr: %s", fault), false
		}
		if other := t.overlapping(n.CIDR); other != nil {
			return refuse(Conflict, "cidr: %s overlaps %s of network %q in namespace %q: choose another subnet", n.CIDR, other.CIDR, other.Name, other.In()), false
		}
	}
	if node, address := t.nodeWithin(n.CIDR); node != "" {
		return refuse(Conflict, "cidr: %s contains %s, the address of node %q, which would lose its connection: choose another subnet, or another SCHEDULER_NETWORK_POOL", n.CIDR, address, node), false
	}
	return Result{}, true
}

// addNetwork stores a new network.
func (t *Tx) addNetwork(n *Network) {
	t.r.info.NetworkID++
	n.ID = t.r.info.NetworkID
	t.storeNetwork(nil, n)
	t.state().Workloads("", func(w *Workload) bool { // after a restore, workloads may name a network that is created only now
		if n.serves(w) {
			t.serve(nil, w)
		}
		if w.In() == n.In() && w.IngressNetwork() == n.Name {
			t.publish(nil, w)
		}
		return true
	})
	t.event(Event{Type: EventNetworkCreated, Namespace: n.In(), Message: n.Name, Details: []Label{{"cidr", n.CIDR.String()}}})
}

// nodeWithin returns a node whose address is in prefix p, and that address; "" if there is no such
// node.
func (t *Tx) nodeWithin(p netip.Prefix) (node, address string) {
	t.r.nodes.Scan(func(id string, n *Node) bool {
		if a, err := netip.ParseAddr(n.Facts.Networking.Address); err == nil && p.Contains(a) {
			node, address = id, n.Facts.Networking.Address
		}
		return node == ""
	})
	return node, address
}

// ParseSubnet parses the prefix of a network. fault says what is wrong with it.
func ParseSubnet(text string) (p netip.Prefix, fault string) {
	p, fault = parseIPv4(text)
	switch {
	case fault != "":
	case p.Bits() > SliceBits:
		fault = fmt.Sprintf("%s is too small: a network has at least one slice of /%d", p, SliceBits)
	case p.Bits() < minNetworkBits:
		fault = fmt.Sprintf("%s is too large: at most /%d", p, minNetworkBits)
	}
	return p, fault
}

// ParsePool parses the prefix from which networks are taken. fault says what is wrong with it.
func ParsePool(text string) (p netip.Prefix, fault string) {
	p, fault = parseIPv4(text)
	if fault == "" && p.Bits() > NetworkBits {
		fault = fmt.Sprintf("%s is too small: a network takes a /%d of it", p, NetworkBits)
	}
	if fault == "" && p.Bits() < 8 {
		fault = fmt.Sprintf("%s is too large: at most /8", p)
	}
	return p, fault
}

func parseIPv4(text string) (p netip.Prefix, fault string) {
	p, err := netip.ParsePrefix(text)
	switch a := p.Addr(); {
	case err != nil:
		fault = quoted(text) + " is not a prefix like 10.216.0.0/20"
	case !a.Is4():
		fault = quoted(text) + " is not an IPv4 prefix"
	case p.Masked() != p:
		fault = fmt.Sprintf("%s has host bits; its prefix is %s", p, p.Masked())
	case a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.As4()[0] == 0 || a.As4()[0] >= 240:
		fault = p.String() + " is not a prefix of addresses for hosts"
	}
	return p, fault
}

// overlapping returns a network whose addresses overlap a prefix; nil if there is none.
func (t *Tx) overlapping(p netip.Prefix) (found *Network) {
	t.r.networks.Scan(func(_ string, n *Network) bool {
		if n.CIDR.Overlaps(p) {
			found = n
		}
		return found == nil
	})
	return found
}

// freeIn returns the lowest prefix of NetworkBits in a pool that overlaps no network; an invalid prefix if there is none.
func (t *Tx) freeIn(pool netip.Prefix) netip.Prefix {
	blocks := &Network{CIDR: pool}
	for i := range uint32(1) << (NetworkBits - pool.Bits()) {
		p := netip.PrefixFrom(blocks.Prefix(Slice{Number: i << (SliceBits - NetworkBits)}).Addr(), NetworkBits)
		if t.overlapping(p) == nil {
			return p
		}
	}
	return netip.Prefix{}
}

func (t *Tx) deleteNetwork(b *commandv1.DeleteNetwork) Result {
	want := &Network{Name: b.GetName(), Namespace: stored(b.GetNamespace())}
	if res, ok := t.mayUse("network", want.Name, want.In()); !ok {
		return res
	}
	n, ok := t.r.networks.Get(want.key())
	if !ok {
		return refuse(NotFound, "network %q does not exist in namespace %q: persysctl network list shows them", clip(want.Name), clip(want.In()))
	}
	users, count := "", 0
	t.state().Workloads("", func(w *Workload) bool {
		if n.UsedBy(w) {
			if count++; count <= 3 {
				users += " " + w.ID
			}
		}
		return true
	})
	if count > 0 {
		return refuse(Conflict, "network %q is used by %d workloads, such as%s: delete them first, or remove the network from their specifications", n.Name, count, users)
	}
	if group, why := t.awaits(n); b.GetIfNotAwaited() && group != "" {
		return refuse(Conflict, "network %q is needed by %s of the unfinished update of group %q: try again when it is finished (persysctl rollout status %s)", n.Name, why, group, clip(group))
	}
	for _, s := range n.Slices {
		if s.Node != "" && MembersOn(t.state(), n, s.Node) > 0 {
			return refuse(Conflict, "network %q is used on node %q by an instance that is not yet removed: try again when it is gone", n.Name, s.Node)
		}
	}
	t.storeNetwork(n, nil)
	t.event(Event{Type: EventNetworkDeleted, Namespace: n.In(), Message: n.Name, Details: []Label{{"cidr", n.CIDR.String()}}})
	return Result{}
}

// awaits returns a group whose unfinished update needs network n, because a waiting or a previous
// specification of the update names n; "" if no group does. why names the kind of these specifications, for
// the error text.
func (t *Tx) awaits(n *Network) (group, why string) {
	needs := func(p *commandv1.WorkloadPut) bool {
		return cmp.Or(p.GetNamespace(), DefaultNamespace) == n.In() && slices.Contains(p.GetDemand().GetNetworks(), n.Name)
	}
	t.r.rollouts.Scan(func(_ string, r *rollout.Rollout) bool {
		switch {
		case r.Phase == rollout.Completed:
		case slices.ContainsFunc(r.Members, func(m rollout.Member) bool { return m.Put != nil && needs(m.Put) }):
			group, why = r.Group, "waiting specifications"
		case slices.ContainsFunc(r.Former, needs):
			group, why = r.Group, "the previous specifications"
		}
		return group == ""
	})
	return group, why
}

// storeNetwork stores n in place of old. Either may be nil.
func (t *Tx) storeNetwork(old, n *Network) {
	m := own(t, &t.r.networks, ownNetworks)
	c := Change{Table: TableNetwork, Old: old, New: n}
	if n != nil {
		n.ModifyIndex = t.meta.Index
		c.Key = n.key()
		m.Set(c.Key, n)
	} else {
		c.Key = old.key()
		m.Delete(c.Key)
	}
	if old == nil || n == nil || !sameOwners(old, n) {
		t.r.info.NetworkIndex = t.meta.Index
	}
	t.changes = append(t.changes, c)
}

// sameOwners reports whether in two versions of a network the same nodes have the same slices
// (parts of the addresses). No other part of a network that can change is sent to agents.
func sameOwners(a, b *Network) bool {
	return a.Ingress == b.Ingress && slices.EqualFunc(a.Slices, b.Slices, func(x, y Slice) bool { return x.Number == y.Number && x.Node == y.Node && x.Services == y.Services })
}

// UnknownNetwork is the text of the refusal of a workload whose i-th network does not exist.
func UnknownNetwork(workload string, i int, name, namespace string) string {
	return fmt.Sprintf("workload %s: container.networks[%d]: network %s does not exist in namespace %s: create it first (persysctl network create %s)",
		workload, i, quoted(name), namespace, clip(name))
}

// networkFault returns why a node cannot take a workload because of its networks; "" if it can.
func (t *Tx) networkFault(w *Workload, node *Node) string {
	if len(w.Demand.Networks) == 0 {
		return ""
	}
	if lacks := node.Facts.Networking.Lacks(); lacks != "" {
		return fmt.Sprintf("node %q cannot take part in networks: %s", node.ID, lacks)
	}
	for _, name := range w.Demand.Networks {
		n, ok := t.state().Network(w.In(), name)
		if !ok {
			return fmt.Sprintf("network %q does not exist in namespace %q", name, w.In())
		}
		if n.MTU > node.Facts.Networking.MTU {
			return fmt.Sprintf("network %q needs an MTU of %d, node %q allows at most %d", name, n.MTU, node.ID, node.Facts.Networking.MTU)
		}
		if _, has := n.SliceOf(node.ID); !has && n.Room(t.r.info.Clock) == 0 {
			return fmt.Sprintf("network %q has no slice left for node %q", name, node.ID)
		}
	}
	return ""
}

// slicesFor gives node a slice (a part of the addresses) of each network of w in which node has no
// slice yet, as long as slices are free.
func (t *Tx) slicesFor(w *Workload, node *Node) {
	for _, name := range w.Demand.Networks {
		n, ok := t.state().Network(w.In(), name)
		if !ok {
			continue // the restored state has no such network
		}
		s, has := n.SliceOf(node.ID)
		switch {
		case has && s.EmptySince == 0:
			continue
		case has:
			s.EmptySince = 0
		default:
			number, free := n.free(t.r.info.Clock)
			if !free || node.Facts.Networking.Lacks() != "" {
				continue
			}
			s = Slice{Number: number, Node: node.ID}
		}
		t.storeNetwork(n, n.with(s))
	}
}

// releaseSlices takes back slices whose nodes had no member for a day, and gives slices that have become free to nodes that
// can answer at ports in ingress mode.
func (t *Tx) releaseSlices(b *commandv1.ReleaseSlices) (res Result) {
	for _, e := range b.GetSlices() {
		n := t.networkByID(e.GetNetwork())
		if n == nil {
			res.skip(fmt.Sprintf("network %d does not exist", e.GetNetwork()))
			continue
		}
		if e.GetGive() {
			t.giveSlice(n, e.GetNode(), &res)
			continue
		}
		s, has := n.SliceOf(e.GetNode())
		if !has || !n.Idle(s, t.r.info.Clock) {
			res.skip(fmt.Sprintf("node %q has no idle slice of network %q", clip(e.GetNode()), n.Name))
			continue
		}
		t.takeBack(n, s)
	}
	return res
}

// emptied records that a node has no member of some networks any more. The names are those of the networks of a
// workload that has left the node.
func (t *Tx) emptied(node string, names []string) {
	if len(names) == 0 {
		return
	}
	for _, n := range t.r.networks.Values() {
		if s, has := n.SliceOf(node); has && s.EmptySince == 0 && slices.Contains(names, n.Name) && MembersOn(t.state(), n, node) == 0 {
			s.EmptySince = t.r.info.Clock
			t.storeNetwork(n, n.with(s))
		}
	}
}

// joined records that a node may have members of some networks again. names lists the networks of a
// residual, whose namespace is not recorded; see MembersOn.
func (t *Tx) joined(node string, names []string) {
	if len(names) == 0 {
		return
	}
	for _, n := range t.r.networks.Values() {
		if s, has := n.SliceOf(node); has && s.EmptySince != 0 && slices.Contains(names, n.Name) {
			s.EmptySince = 0
			t.storeNetwork(n, n.with(s))
		}
	}
}

// networkByID returns the network whose number is id; nil if there is none.
func (t *Tx) networkByID(id uint32) (found *Network) {
	t.r.networks.Scan(func(_ string, n *Network) bool {
		if n.ID == id {
			found = n
		}
		return found == nil
	})
	return found
}

func (t *Tx) takeBack(n *Network, s Slice) { t.storeNetwork(n, n.with(t.takenBack(s))) }

// takenBack returns the record of slice s after it was taken back from its node at the present
// time.
func (t *Tx) takenBack(s Slice) Slice {
	return Slice{Number: s.Number, FreeAt: t.r.info.Clock + SliceRest}
}

// dropSlicesOf takes back all slices (parts of the addresses of networks) of a node that is
// removed.
func (t *Tx) dropSlicesOf(node string) {
	for _, n := range t.r.networks.Values() {
		if s, ok := n.SliceOf(node); ok {
			t.takeBack(n, s)
		}
	}
}

// networkingChanged makes all agents fetch the list of networks and nodes again if a node that takes part in
// a network has another address.
func (t *Tx) networkingChanged(old, n *Node) {
	if old == nil || old.Facts.Networking.Address == n.Facts.Networking.Address {
		return
	}
	t.r.networks.Scan(func(_ string, w *Network) bool {
		if _, has := w.SliceOf(n.ID); has {
			t.r.info.NetworkIndex = t.meta.Index
			return false
		}
		return true
	})
}

// restoreNetworks merges the networks of a backup and of the present state. If both have a network, the present
// record is kept, because nodes have set it up. Networks that overlap present ones are left out: their workloads
// wait until a person creates another network.
func (t *Tx) restoreNetworks(backup, present State, fresh bool) {
	b, p := backup.Info(), present.Info()
	t.r.info.NetworkID, t.r.info.NetworkIndex = max(b.NetworkID, p.NetworkID), t.meta.Index
	if fresh {
		// Networks that were made after the backup are unknown, and machines may still have them: do not give these
		// numbers to new networks.
		t.r.info.NetworkID += MaxNetworks
	}
	t.r.networks = duplicate(present.r.networks)
	backup.Networks(func(old *Network) bool {
		if _, known := t.r.networks.Get(old.key()); known || t.overlapping(old.CIDR) != nil || t.r.networks.Len() >= MaxNetworks || !t.state().HasNamespace(old.In()) {
			return true
		}
		n := *old
		if t.networkByID(n.ID) != nil { // both clusters have given this number since the backup was made
			t.r.info.NetworkID++
			n.ID = t.r.info.NetworkID
		}
		n.ModifyIndex, n.Slices = t.meta.Index, slices.Clone(old.Slices)
		if fresh {
			t.restUnknown(&n)
		}
		for i, s := range n.Slices {
			if _, ok := t.r.nodes.Get(s.Node); s.Node != "" && (!ok || !fresh) {
				n.Slices[i] = t.takenBack(s)
			}
		}
		t.r.networks.Set(n.key(), &n)
		return true
	})
	if t.r.networks.Len() == 0 && t.r.info.NetworkID == 0 {
		t.r.info.NetworkIndex = 0
	}
}

// maxUnknown is the maximum number of free slices (parts of the addresses) of a network that no
// node gets for SliceRest after a restore, because they may have been given away after the backup
// was made.
const maxUnknown = 256

// restUnknown is called after a restore. It withholds the lower half of a network's free slices
// (parts of its addresses) from all nodes for SliceRest. Nodes may have got these slices after the
// backup was made, because the lowest free slice is always given first. The upper half is for nodes
// that get members after the restore.
func (t *Tx) restUnknown(n *Network) {
	count := min(n.Room(t.r.info.Clock)/2, maxUnknown)
	for range count {
		number, ok := n.free(t.r.info.Clock)
		if !ok {
			return
		}
		*n = *n.with(t.takenBack(Slice{Number: number}))
	}
}

// settleSlices gives, in a restored state, each node with workloads in a network its slice (part of the addresses)
// and each service its address, and records which nodes have members. It takes back the slices of nodes that the
// state does not know.
func (t *Tx) settleSlices() {
	for _, n := range t.r.networks.Values() {
		for _, s := range n.Slices {
			was := s
			if _, ok := t.r.nodes.Get(s.Node); s.Node != "" && !ok {
				s = t.takenBack(s)
			} else if members := s.Node != "" && MembersOn(t.state(), n, s.Node) > 0; members {
				s.EmptySince = 0
			} else if s.Node != "" && s.EmptySince == 0 {
				s.EmptySince = t.r.info.Clock
			}
			if s != was {
				n = n.with(s)
				t.storeNetwork(nil, n)
			}
		}
	}
	for _, w := range t.r.workloads.Values() {
		if n := t.nodeOf(w); n != nil {
			t.slicesFor(w, n)
		}
	}
	t.settleServices()
	t.settleIngress()
}

func (c *checker) networks() {
	r := c.s.r
	var all []*Network
	var ids []uint32
	r.networks.Scan(func(key string, n *Network) bool {
		_, fault := ParseSubnet(n.CIDR.String())
		c.must(n.key() == key && bounds.ValidID(n.Name) && fault == "" && n.MTU >= minMTU && n.MTU <= maxMTU, "network %q of %s, MTU %d, is stored under %q", clip(n.Name), n.CIDR, n.MTU, clip(key))
		c.must(n.ID > 0 && n.ID <= r.info.NetworkID && !slices.Contains(ids, n.ID), "network %s has number %d, the newest is %d", key, n.ID, r.info.NetworkID)
		ids = append(ids, n.ID)
		for _, o := range all {
			c.must(!o.CIDR.Overlaps(n.CIDR), "network %s of %s overlaps network %s of %s", key, n.CIDR, o.key(), o.CIDR)
		}
		all = append(all, n)
		if fault != "" {
			return true
		}
		var nodes []string
		for i, s := range n.Slices {
			_, ok := r.nodes.Get(s.Node)
			c.must(int(s.Number) < n.Capacity() && (i == 0 || n.Slices[i-1].Number < s.Number), "network %s: the number %d of a slice is not below %d, or is not above the number of the slice before it", key, s.Number, n.Capacity())
			c.must(s.Services && s == (Slice{Number: s.Number, Services: true}) || !s.Services && s.Node == "" && s.FreeAt > 0 && s.EmptySince == 0 || s.FreeAt == 0 && ok && !slices.Contains(nodes, s.Node), "network %s: slice %d has the invalid owner %q, or the invalid time %d at which it is free", key, s.Number, clip(s.Node), s.FreeAt)
			if s.Node != "" {
				nodes = append(nodes, s.Node)
				members := MembersOn(c.s, n, s.Node)
				c.must((members > 0) == (s.EmptySince == 0), "network %s: node %s has %d members, but its slice is empty since %d", key, clip(s.Node), members, s.EmptySince)
			}
		}
		c.services(key, n)
		c.must(n.Ingress == c.s.publishedThrough(n), "network %s: the field Ingress is %t, but the workloads that publish ports in ingress mode say the opposite", key, n.Ingress)
		return true
	})
}

func networkPB(n *Network) *commandv1.NetworkRecord {
	return &commandv1.NetworkRecord{
		Id: n.ID, Name: n.Name, Namespace: n.Namespace, Cidr: n.CIDR.String(), Mtu: n.MTU, CreatedAt: n.CreatedAt, CreatedBy: n.CreatedBy,
		CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
		Slices: convert(n.Slices, func(s Slice) *commandv1.SliceRecord {
			return &commandv1.SliceRecord{Number: s.Number, Node: s.Node, EmptySince: s.EmptySince, FreeAt: s.FreeAt, Services: s.Services}
		}),
		Services: convert(n.Services, servicePB), Ingress: n.Ingress,
	}
}

func networkOf(m *commandv1.NetworkRecord) (*Network, error) {
	p, fault := ParseSubnet(m.GetCidr())
	if fault != "" {
		return nil, fmt.Errorf("network %q: %s", clip(m.GetName()), fault)
	}
	return &Network{
		ID: m.GetId(), Name: m.GetName(), Namespace: stored(m.GetNamespace()), CIDR: p, MTU: m.GetMtu(), CreatedAt: m.GetCreatedAt(), CreatedBy: m.GetCreatedBy(),
		CreateIndex: m.GetCreateIndex(), ModifyIndex: m.GetModifyIndex(),
		Slices: convert(m.GetSlices(), func(s *commandv1.SliceRecord) Slice {
			return Slice{Number: s.GetNumber(), Node: s.GetNode(), EmptySince: s.GetEmptySince(), FreeAt: s.GetFreeAt(), Services: s.GetServices()}
		}),
		Services: convert(m.GetServices(), serviceOf), Ingress: m.GetIngress(),
	}, nil
}

func networkingOf(m *commandv1.NodeNetworking) Networking {
	return Networking{Address: m.GetAddress(), MTU: m.GetMtu(), Problem: m.GetProblem(), Ingress: m.GetIngress(), Held: m.GetHeldPorts(), Forbidden: m.GetForbiddenPorts()}
}

func networkingPB(n Networking) *commandv1.NodeNetworking {
	if n == (Networking{}) {
		return nil
	}
	return &commandv1.NodeNetworking{Address: n.Address, Mtu: n.MTU, Problem: n.Problem, Ingress: n.Ingress, HeldPorts: n.Held, ForbiddenPorts: n.Forbidden}
}

func (e *encoder) network(n *Network) {
	e.u64(uint64(n.ID))
	for _, s := range [...]string{n.Name, n.Namespace, n.CIDR.String(), n.CreatedBy} {
		e.str(s)
	}
	e.u64(uint64(n.MTU))
	e.i64(n.CreatedAt)
	e.u64(n.CreateIndex)
	e.u64(n.ModifyIndex)
	e.u64(uint64(len(n.Slices)))
	for _, s := range n.Slices {
		e.u64(uint64(s.Number))
		e.str(s.Node)
		e.i64(s.EmptySince)
		e.i64(s.FreeAt)
	}
	e.services(n)
	if n.Ingress {
		e.str("ingress")
	}
}
