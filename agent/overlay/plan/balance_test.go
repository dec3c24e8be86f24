package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/persys/compute/agent/workload"
)

// serviceView generates random services of the network 10.216.0.0/20. The addresses of some are outside of the
// blocks that the network reserves for services.
func serviceView(t *rapid.T, name string) (s workload.ServiceView) {
	for i := range rapid.IntRange(0, 6).Draw(t, name) {
		x := workload.NetworkService{Address: addr(fmt.Sprintf("10.216.15.%d", 190+i))}
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(2, 80), 0, 4, rapid.ID).Draw(t, "instances") {
			x.Endpoints = append(x.Endpoints, addr(fmt.Sprintf("10.216.0.%d", n)))
		}
		slices.SortFunc(x.Endpoints, netip.Addr.Compare)
		s.Services = append(s.Services, x)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, name+" ports") {
		x := workload.NetworkIngress{IngressPort: workload.IngressPort{Port: uint16(80 + i/2), UDP: i%2 == 1}}
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(2, 80), 0, 4, rapid.ID).Draw(t, "instances of the port") {
			x.Endpoints = append(x.Endpoints, netip.AddrPortFrom(addr(fmt.Sprintf("10.216.0.%d", n)), uint16(8080+n%2)))
		}
		slices.SortFunc(x.Endpoints, netip.AddrPort.Compare)
		s.Ingress = append(s.Ingress, x)
	}
	return s
}

func serviceNetworks(t *rapid.T) (v workload.NetworkView) {
	n := workload.Network{ID: 7, CIDR: netip.MustParsePrefix("10.216.0.0/20"), Slice: netip.MustParsePrefix("10.216.0.0/26")}
	if rapid.Bool().Draw(t, "block") {
		n.Services = []netip.Prefix{netip.MustParsePrefix("10.216.15.192/26")}
	}
	v.Networks = []workload.Network{n}
	return v
}

// TestBalanceChanges: the change that To returns turns one content of the nftables maps into the other. A
// change removes only elements that exist, and adds only elements that do not.
func TestBalanceChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := BalanceOf(serviceNetworks(t), serviceView(t, "from")), BalanceOf(serviceNetworks(t), serviceView(t, "to"))
		type content struct {
			sizes  map[netip.Addr]int
			slots  map[string]netip.Addr
			blocks map[Block]bool
			own    map[netip.Addr]bool
			ports  map[workload.IngressPort]int
			inside map[netip.Addr]bool
			lead   map[string]netip.AddrPort // content of the map port_slots: the instance in each slot of a port
		}
		of := func(b Balance) content {
			c := content{map[netip.Addr]int{}, map[string]netip.Addr{}, map[Block]bool{}, map[netip.Addr]bool{}, map[workload.IngressPort]int{}, map[netip.Addr]bool{}, map[string]netip.AddrPort{}}
			for _, s := range b.Services {
				a, list := s.Address, s.Endpoints
				if !b.Has(a) {
					t.Fatalf("BalanceOf kept the service with address %s, which is in none of the blocks %v", a, b.Blocks)
				}
				c.sizes[a] = len(list)
				for i, x := range list {
					c.slots[fmt.Sprint(a, i)] = x
				}
			}
			for _, x := range b.Blocks {
				c.blocks[x] = true
			}
			for _, x := range b.Own {
				c.own[x] = true
			}
			for _, x := range b.Inside {
				c.inside[x] = true
			}
			for _, p := range b.Ports {
				c.ports[p.IngressPort] = len(p.Endpoints)
				for i, x := range p.Endpoints {
					c.lead[fmt.Sprint(p.IngressPort, i)] = x
				}
			}
			return c
		}
		have, want, change := of(from), of(to), from.To(to)
		for _, x := range change.DropSizes {
			drop(t, have.sizes, x.Front)
		}
		for _, x := range change.DropSlots {
			drop(t, have.slots, fmt.Sprint(x.Front, x.Number))
		}
		for _, x := range change.DropBlocks {
			drop(t, have.blocks, x)
		}
		for _, x := range change.DropOwn {
			drop(t, have.own, x)
		}
		for _, x := range change.DropPorts {
			drop(t, have.ports, x.Front)
		}
		for _, x := range change.DropPortSlots {
			drop(t, have.lead, fmt.Sprint(x.Front, x.Number))
		}
		for _, x := range change.DropInside {
			drop(t, have.inside, x)
		}
		for _, x := range change.AddPorts {
			add(t, have.ports, x.Front, x.Slots)
		}
		for _, x := range change.AddPortSlots {
			add(t, have.lead, fmt.Sprint(x.Front, x.Number), x.Instance)
		}
		for _, x := range change.AddInside {
			add(t, have.inside, x, true)
		}
		for _, x := range change.AddSizes {
			add(t, have.sizes, x.Front, x.Slots)
		}
		for _, x := range change.AddSlots {
			add(t, have.slots, fmt.Sprint(x.Front, x.Number), x.Instance)
		}
		for _, x := range change.AddBlocks {
			add(t, have.blocks, x, true)
		}
		for _, x := range change.AddOwn {
			add(t, have.own, x, true)
		}
		if !maps.Equal(have.sizes, want.sizes) || !maps.Equal(have.slots, want.slots) || !maps.Equal(have.blocks, want.blocks) || !maps.Equal(have.own, want.own) ||
			!maps.Equal(have.ports, want.ports) || !maps.Equal(have.lead, want.lead) || !maps.Equal(have.inside, want.inside) {
			t.Fatalf("the change from %v to %v is %+v; applied to the maps it gives %+v, want the content of the second", from, to, change, have)
		}
		if c := to.To(to); !c.Empty() {
			t.Fatalf("the change from a content to the same content is %+v, want an empty change", c)
		}
	})
}

func drop[K comparable, V any](t *rapid.T, m map[K]V, key K) {
	if _, ok := m[key]; !ok {
		t.Fatalf("the change removes the map element %v, which the map does not have", key)
	}
	delete(m, key)
}

func add[K comparable, V any](t *rapid.T, m map[K]V, key K, value V) {
	if _, ok := m[key]; ok {
		t.Fatalf("the change adds the map element %v, which the map has already", key)
	}
	m[key] = value
}

// TestBalanceChangeIsSmall: if one instance replaces another, one map element changes.
func TestBalanceChangeIsSmall(t *testing.T) {
	service := func(at string, instances ...netip.Addr) workload.NetworkService {
		return workload.NetworkService{Address: addr(at), Endpoints: instances}
	}
	other := service("10.216.15.194", addr("10.216.0.3"))
	b := Balance{Services: []workload.NetworkService{service("10.216.15.193", addr("10.216.0.2"), addr("10.216.0.66")), other}}
	next := Balance{Services: []workload.NetworkService{service("10.216.15.193", addr("10.216.0.2"), addr("10.216.0.70")), other}}
	if got, want := b.To(next).String(), "services -0 +0, slots -1 +1, blocks -0 +0, ports -0 +0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestStale checks which connection tracking entries of a service are deleted when its instances change.
func TestStale(t *testing.T) {
	v := workload.ServiceView{
		Services: []workload.NetworkService{{Address: addr("10.216.15.193"), Endpoints: []netip.Addr{addr("10.216.0.2"), addr("10.216.0.70")}}, {Address: addr("10.216.15.194")}},
		Lost:     []netip.Prefix{netip.MustParsePrefix("10.216.0.64/26")},
	}
	for _, c := range []struct {
		name, service, instance string
		tcp, want               bool
	}{
		{"a present instance of the service", "10.216.15.193", "10.216.0.2", false, false},
		{"TCP to an instance that left the service", "10.216.15.193", "10.216.0.9", true, false},
		{"UDP to an instance that left the service", "10.216.15.193", "10.216.0.9", false, true},
		{"TCP to an instance on a lost node", "10.216.15.193", "10.216.0.70", true, true},
		{"UDP to the last instance, which left the service", "10.216.15.194", "10.216.0.2", false, true},
		{"UDP to a service that was removed", "10.216.15.200", "10.216.0.2", false, true},
		{"TCP to a service that was removed", "10.216.15.200", "10.216.0.2", true, false},
	} {
		if got := Stale(v, addr(c.service), addr(c.instance), c.tcp); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestStalePort checks which connection tracking entries of a port in ingress mode are deleted when
// instances change.
func TestStalePort(t *testing.T) {
	v := workload.ServiceView{Lost: []netip.Prefix{netip.MustParsePrefix("10.216.0.64/26")}}
	tcp, udp := workload.IngressPort{Port: 53}, workload.IngressPort{Port: 53, UDP: true}
	has := []netip.AddrPort{netip.MustParseAddrPort("10.216.0.2:5353"), netip.MustParseAddrPort("10.216.0.70:5353")}
	b := Balance{Ports: []workload.NetworkIngress{{IngressPort: tcp, Endpoints: has}, {IngressPort: udp, Endpoints: has}}}
	for _, c := range []struct {
		name, instance string
		at             workload.IngressPort
		want           bool
	}{
		{"UDP to a present instance of the port", "10.216.0.2:5353", udp, false},
		{"TCP to an instance that left the port", "10.216.0.9:5353", tcp, false},
		{"UDP to an instance that left the port", "10.216.0.9:5353", udp, true},
		{"UDP to an instance at a container port that has changed", "10.216.0.2:53", udp, true},
		{"TCP to an instance on a lost node", "10.216.0.70:5353", tcp, true},
		{"UDP from before the port had an instance", "192.0.2.1:53", udp, true},
		{"UDP to an ingress port that was removed", "10.216.0.2:5353", workload.IngressPort{Port: 54, UDP: true}, true},
	} {
		if got := StalePort(v, b, c.at, netip.MustParseAddrPort(c.instance)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestPortsOfPrograms: BalanceOf leaves out a port in ingress mode that a program of the machine uses. It also
// leaves out instances in networks that the machine does not have.
func TestPortsOfPrograms(t *testing.T) {
	n := workload.Network{ID: 7, CIDR: netip.MustParsePrefix("10.216.0.0/20"), Slice: netip.MustParsePrefix("10.216.0.0/26")}
	has, other := netip.MustParseAddrPort("10.216.0.2:80"), netip.MustParseAddrPort("10.217.0.2:80")
	s := workload.ServiceView{Ingress: []workload.NetworkIngress{
		{IngressPort: workload.IngressPort{Port: 22}, Endpoints: []netip.AddrPort{has}},
		{IngressPort: workload.IngressPort{Port: 80}, Endpoints: []netip.AddrPort{has, other}},
		{IngressPort: workload.IngressPort{Port: 81}, Endpoints: []netip.AddrPort{other}},
	}}
	b := BalanceOf(workload.NetworkView{Networks: []workload.Network{n}}, s, workload.IngressPort{Port: 22})
	if len(b.Ports) != 1 || b.Ports[0].Port != 80 || !slices.Equal(b.Ports[0].Endpoints, []netip.AddrPort{has}) || !slices.Equal(b.Own, []netip.Addr{has.Addr()}) {
		t.Errorf("BalanceOf returned the ports %v and the instances %v of this machine, want only port 80 with %s", b.Ports, b.Own, has)
	}
}
