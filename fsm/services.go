package fsm

import (
	"cmp"
	"net/netip"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A service is a group, or a workload without a group, under its name in a network. If one of its
// workloads asks for a service address (Demand.ServiceAddress), the service has one address of its
// own in the network. Agents balance connections to this address over the instances of the service.
// The state machine assigns the address in the log entry that stores the first such workload
// (docs/adr/0074-service-addresses.md).

const (
	// maxServiceSlices is the largest number of slices (blocks of 64 addresses) of a network that are used for
	// addresses of services: 11,904 addresses.
	maxServiceSlices = 192
	// ServiceRest is how long the address of a service without workloads is given to no other
	// service, in nanoseconds. If the service gets a workload again within this time, it gets the
	// same address.
	ServiceRest = SliceRest
	// sliceSize is the number of addresses of a slice (a block of a network's addresses). The first and the last
	// address of a slice are given to no service.
	sliceSize = 1 << (32 - SliceBits)
)

// ServiceAddress is the address of one service.
type ServiceAddress struct {
	Name   string
	Number uint32 // place of the address within the network: the first address has number 0
	FreeAt int64  // time from which another service may get the address, Unix nanoseconds; 0 = the service uses it
}

// ServiceName returns the name under which the instances of the workload have one address.
func (w *Workload) ServiceName() string { return cmp.Or(w.Demand.Group, w.ID) }

// serves reports whether the workload belongs to a service of the network.
func (n *Network) serves(w *Workload) bool { return w.Demand.ServiceAddress && n.UsedBy(w) }

// Service returns the address of a service. ok is false if no workload belongs to it, or if the network had no address
// left.
func (n *Network) Service(name string) (address netip.Addr, ok bool) {
	i, found := n.service(name)
	if !found || n.Services[i].FreeAt != 0 {
		return address, false
	}
	return n.At(n.Services[i]), true
}

func (n *Network) service(name string) (int, bool) {
	return slices.BinarySearchFunc(n.Services, name, func(s ServiceAddress, name string) int { return cmp.Compare(s.Name, name) })
}

// At returns an address of the network.
func (n *Network) At(s ServiceAddress) netip.Addr {
	a := n.Prefix(Slice{Number: s.Number / sliceSize}).Addr().As4()
	a[3] += byte(s.Number % sliceSize)
	return netip.AddrFrom4(a)
}

// withService returns a copy of the network in which a service has an address. It returns the
// network itself if the service has an address already, or if no address is free at time at.
func (n *Network) withService(name string, at int64) *Network {
	if i, found := n.service(name); found {
		if n.Services[i].FreeAt == 0 {
			return n
		}
		next := *n
		next.Services = slices.Clone(n.Services)
		next.Services[i].FreeAt = 0
		return &next
	}
	n = n.rested(at)
	count := 0
	for _, s := range n.Slices {
		if !s.Services {
			continue
		}
		count++
		var used [sliceSize]bool
		for _, a := range n.Services {
			if a.Number/sliceSize == s.Number {
				used[a.Number%sliceSize] = true
			}
		}
		for i := uint32(1); i < sliceSize-1; i++ {
			if !used[i] {
				return n.putService(ServiceAddress{Name: name, Number: s.Number*sliceSize + i})
			}
		}
	}
	number, ok := n.highest(at)
	if !ok || count >= min(n.Capacity()/2, maxServiceSlices) {
		return n
	}
	return n.with(Slice{Number: number, Services: true}).putService(ServiceAddress{Name: name, Number: number*sliceSize + 1})
}

// putService returns a copy of the network to whose services s is added. The network must not have
// a service of this name yet.
func (n *Network) putService(s ServiceAddress) *Network {
	next := *n
	i, _ := n.service(s.Name)
	next.Services = slices.Insert(slices.Clone(n.Services), i, s)
	return &next
}

// highest returns the highest slice (block of addresses) that is free at time at. Services use the
// highest slices, nodes the lowest.
func (n *Network) highest(at int64) (uint32, bool) {
	i := len(n.Slices) - 1
	for number := n.Capacity() - 1; number >= 0; number-- {
		if i < 0 || int(n.Slices[i].Number) != number || n.Slices[i].freeAt(at) {
			return uint32(number), true
		}
		i--
	}
	return 0, false
}

// rested returns the network without the services that have lost their last workload long enough
// before time at: their addresses may be given to other services. It also frees the slices (blocks
// of addresses) in which no service has an address any more.
func (n *Network) rested(at int64) *Network {
	over := func(s ServiceAddress) bool { return s.FreeAt != 0 && s.FreeAt <= at }
	if !slices.ContainsFunc(n.Services, over) {
		return n
	}
	next := *n
	next.Services = slices.DeleteFunc(slices.Clone(n.Services), over)
	next.Slices = slices.Clone(n.Slices)
	for i, s := range next.Slices {
		if s.Services && !slices.ContainsFunc(next.Services, func(a ServiceAddress) bool { return a.Number/sliceSize == s.Number }) {
			next.Slices[i] = Slice{Number: s.Number, FreeAt: at + SliceRest}
		}
	}
	return &next
}

// withoutService returns a copy of the network in which the address of a service becomes free
// ServiceRest after time at.
func (n *Network) withoutService(name string, at int64) *Network {
	i, found := n.service(name)
	if !found || n.Services[i].FreeAt != 0 {
		return n
	}
	next := *n
	next.Services = slices.Clone(n.Services)
	next.Services[i].FreeAt = at + ServiceRest
	return &next
}

// serve is called when record w of a workload replaces record old. It gives the services of w their
// addresses. If a service of old has no workload any more, its address becomes free after
// ServiceRest. old or w may be nil. The indexes must contain w already.
func (t *Tx) serve(old, w *Workload) {
	if old != nil && w != nil && old.Demand == w.Demand && old.In() == w.In() {
		return
	}
	if w != nil && w.Demand.ServiceAddress {
		for _, name := range w.Demand.Networks {
			if n, ok := t.state().Network(w.In(), name); ok {
				t.storeIfOther(n, n.withService(w.ServiceName(), t.r.info.Clock))
			}
		}
	}
	if old == nil || !old.Demand.ServiceAddress {
		return
	}
	for _, name := range old.Demand.Networks {
		if n, ok := t.state().Network(old.In(), name); ok && !t.state().hasService(n, old.ServiceName()) {
			t.storeIfOther(n, n.withoutService(old.ServiceName(), t.r.info.Clock))
		}
	}
}

func (t *Tx) storeIfOther(old, n *Network) {
	if n != old {
		t.storeNetwork(old, n)
	}
}

// hasService reports whether a workload belongs to a service of a network.
func (s State) hasService(n *Network, name string) (found bool) {
	if w, ok := s.r.workloads.Get(name); ok && w.ServiceName() == name && n.serves(w) {
		return true
	}
	s.Group(name, func(w *Workload) bool {
		found = n.serves(w)
		return !found
	})
	return found
}

// settleServices gives the services of all workloads their addresses. The addresses of services
// without workloads become free after ServiceRest.
func (t *Tx) settleServices() {
	for _, w := range t.r.workloads.Values() {
		t.serve(nil, w)
	}
	for _, n := range t.r.networks.Values() {
		next := n
		for _, s := range n.Services {
			if !t.state().hasService(n, s.Name) {
				next = next.withoutService(s.Name, t.r.info.Clock)
			}
		}
		t.storeIfOther(n, next)
	}
}

// services checks the service addresses of a network.
func (c *checker) services(key string, n *Network) {
	for i, s := range n.Services {
		in := slices.ContainsFunc(n.Slices, func(x Slice) bool { return x.Services && x.Number == s.Number/sliceSize })
		edge := s.Number%sliceSize == 0 || s.Number%sliceSize == sliceSize-1
		twice := slices.ContainsFunc(n.Services[:i], func(o ServiceAddress) bool { return o.Number == s.Number })
		c.must(in && !edge && !twice, "network %s: the address %d of service %s is not free for it", key, s.Number, clip(s.Name))
		c.must(i == 0 || n.Services[i-1].Name < s.Name, "network %s: service %s is not in order", key, clip(s.Name))
		c.must(c.s.hasService(n, s.Name) == (s.FreeAt == 0), "network %s: the address of service %s is free at %d", key, clip(s.Name), s.FreeAt)
	}
}

func serviceOf(m *commandv1.ServiceAddressRecord) ServiceAddress {
	return ServiceAddress{Name: m.GetName(), Number: m.GetNumber(), FreeAt: m.GetFreeAt()}
}

func servicePB(s ServiceAddress) *commandv1.ServiceAddressRecord {
	return &commandv1.ServiceAddressRecord{Name: s.Name, Number: s.Number, FreeAt: s.FreeAt}
}

// services encodes the service addresses of a network. A network without service addresses has the
// same encoding as before they existed.
func (e *encoder) services(n *Network) {
	if len(n.Services) == 0 && !slices.ContainsFunc(n.Slices, func(s Slice) bool { return s.Services }) {
		return
	}
	e.str("services")
	for _, s := range n.Slices {
		if s.Services {
			e.u64(uint64(s.Number) + 1)
		}
	}
	e.u64(0)
	e.u64(uint64(len(n.Services)))
	for _, s := range n.Services {
		e.str(s.Name)
		e.u64(uint64(s.Number))
		e.i64(s.FreeAt)
	}
}
