package plan

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/persys/compute/agent/workload"
)

var update = flag.Bool("update", false, "write the golden files")

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

const alias = "persys c1 a"

// view returns the schedulers' view for a node with two peers and two networks; the peers (other nodes) have
// slices (parts of the network's addresses) only in network 7.
func view() workload.NetworkView {
	return workload.NetworkView{
		Cluster: "c1", Index: 9, Port: 4790, VNI: 7001, Address: addr("10.99.0.11"),
		Peers: []workload.NetworkPeer{{Node: "b", Address: addr("10.99.0.12")}, {Node: "c", Address: addr("10.99.0.13")}},
		Networks: []workload.Network{
			{ID: 7, Namespace: "shop", Name: "back", CIDR: prefix("10.216.0.0/20"), MTU: 1450, Slice: prefix("10.216.0.0/26"),
				Peers: []workload.NetworkSlice{{Node: "b", CIDR: prefix("10.216.0.64/26")}, {Node: "c", CIDR: prefix("10.216.0.128/26")}}, Services: []netip.Prefix{prefix("10.216.15.192/26")}},
			{ID: 12, Namespace: "default", Name: "web", CIDR: prefix("10.216.16.0/20"), MTU: 1400, Slice: prefix("10.216.16.0/26")},
		},
	}
}

// machine returns a machine whose engine runs and which has no device, table or network of ours.
func machine() Observed {
	return Observed{Underlay: &Link{Name: "eth0", Index: 2, MTU: 1500}, HasUserChain: true, Answers: true}
}

// carryOut returns the state of a machine after the kernel and the engine carried out ops. It fails the
// test for an operation that the kernel would refuse.
func carryOut(t interface{ Fatalf(string, ...any) }, seen Observed, ops []Op) Observed {
	key := func(f Forward) string { return f.MAC.String() }
	for _, op := range ops {
		needsDevice := seen.Device == nil
		switch op := op.(type) {
		case CreateDevice:
			needsDevice = false
			d := op.Device
			d.Learning = false
			seen.Device, seen.Routes, seen.Neighbours, seen.Forwards, seen.ReversePath = &d, nil, nil, nil, 0
		case DeleteDevice:
			seen.Device, seen.Routes, seen.Neighbours, seen.Forwards = nil, nil, nil, nil
			needsDevice = false
		case AdjustDevice:
			d := *seen.Device
			d.MTU, d.Alias, d.Up = op.MTU, op.Alias, true
			seen.Device = &d
		case SetReversePath:
			seen.ReversePath = op.Value
		case PutForward:
			seen.Forwards = append(slices.DeleteFunc(slices.Clone(seen.Forwards), func(f Forward) bool { return key(f) == key(op.Forward) }), op.Forward)
		case DropForward:
			seen.Forwards = slices.DeleteFunc(slices.Clone(seen.Forwards), func(f Forward) bool { return f == op.Forward })
		case PutNeighbour:
			seen.Neighbours = append(slices.DeleteFunc(slices.Clone(seen.Neighbours), func(n Neighbour) bool { return n.Address == op.Address }), op.Neighbour)
		case DropNeighbour:
			seen.Neighbours = slices.DeleteFunc(slices.Clone(seen.Neighbours), func(n Neighbour) bool { return n.Address == op.Address })
		case PutRoute:
			if op.Source.IsValid() && !slices.Contains(seen.Addresses, op.Source) {
				t.Fatalf("%s: the operation sets a source address that no interface has, which the kernel would refuse", op)
			}
			if !seen.Device.Up {
				t.Fatalf("%s: the operation adds a route over a device that is down, which the kernel would refuse", op)
			}
			seen.Routes = append(slices.DeleteFunc(slices.Clone(seen.Routes), func(r Route) bool { return r.Slice == op.Slice }), op.Route)
		case DropRoute:
			seen.Routes = slices.DeleteFunc(slices.Clone(seen.Routes), func(r Route) bool { return r.Slice == op.Slice })
		default:
			needsDevice = false
		}
		if needsDevice {
			t.Fatalf("%s: the operation changes the VXLAN device, but there is no such device", op)
		}
		switch op := op.(type) {
		case ReplaceTable:
			seen.Table = op.Table.Stored()
		case DropTable:
			seen.Table = nil
		case AcceptInto:
			seen.UserChain = append(slices.Clone(seen.UserChain), op.UserRule)
		case DropAccept:
			seen.UserChain = slices.DeleteFunc(slices.Clone(seen.UserChain), func(r UserRule) bool { return r == op.UserRule })
		case CreateNetwork:
			if slices.ContainsFunc(seen.Engine, func(n ObservedNetwork) bool { return n.ID == op.ID }) {
				t.Fatalf("%s: the operation creates an engine network that exists already", op)
			}
			seen.Engine = append(slices.Clone(seen.Engine), ObservedNetwork{EngineNetwork: op.EngineNetwork, Link: true})
			seen.Addresses = append(slices.Clone(seen.Addresses), Gateway(op.Slice))
		case SetUpBridge:
			seen.Engine = slices.Clone(seen.Engine)
			for i := range seen.Engine {
				if n := &seen.Engine[i]; Bridge(n.ID) == op.Bridge {
					if !n.Link {
						t.Fatalf("%s: the operation sets up a bridge that does not exist", op)
					}
					n.Set = true
				}
			}
		case RemoveNetwork:
			seen.Engine = slices.DeleteFunc(slices.Clone(seen.Engine), func(n ObservedNetwork) bool {
				if n.ID == op.ID && n.Used {
					t.Fatalf("%s: the operation removes a network that a container uses", op)
				}
				return n.ID == op.ID
			})
		}
	}
	SortForwards(seen.Forwards)
	SortNeighbours(seen.Neighbours)
	SortRoutes(seen.Routes)
	slices.Sort(seen.UserChain)
	slices.SortFunc(seen.Addresses, netip.Addr.Compare)
	seen.Addresses = slices.Compact(seen.Addresses)
	slices.SortFunc(seen.Engine, func(a, b ObservedNetwork) int { return int(a.ID) - int(b.ID) })
	return seen
}

// TestPlan compares, for several states of a machine, the operations that each call of Plan returns with the
// golden files in testdata.
func TestPlan(t *testing.T) {
	settled := func(v workload.NetworkView, seen Observed) Observed {
		for range 4 {
			seen = carryOut(t, seen, Plan(Input{v, alias, seen}).Ops)
		}
		return seen
	}
	for _, c := range []struct {
		name string
		make func() (workload.NetworkView, Observed)
	}{
		{"first view", func() (workload.NetworkView, Observed) { return view(), machine() }},
		{"a port in ingress mode", func() (workload.NetworkView, Observed) {
			m, v := settled(view(), machine()), view()
			v.Networks[0].Ingress = true
			return v, m
		}},
		{"the last port in ingress mode goes", func() (workload.NetworkView, Observed) {
			v := view()
			v.Networks[0].Ingress = true
			return view(), settled(v, machine())
		}},
		{"engine down", func() (workload.NetworkView, Observed) {
			m := machine()
			m.Answers, m.HasUserChain = false, false
			return view(), m
		}},
		{"peer leaves", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			v := view()
			v.Peers, v.Networks[0].Peers = v.Peers[1:], v.Networks[0].Peers[1:]
			return v, m
		}},
		{"peer changes address", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			v := view()
			v.Peers[0].Address = addr("10.99.0.22")
			return v, m
		}},
		{"ruleset flushed", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Table, m.UserChain, m.HasUserChain = nil, nil, false
			return view(), m
		}},
		{"device deleted", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			return view(), carryOut(t, m, []Op{DeleteDevice{}})
		}},
		{"last network goes while a container is on its bridge", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Engine[0].Used = true
			v := view()
			v.Networks, v.Peers = nil, nil
			return v, m
		}},
		{"everything goes", func() (workload.NetworkView, Observed) {
			v := view()
			v.Networks, v.Peers = nil, nil
			return v, settled(view(), machine())
		}},
		{"another slice while a container is on the bridge", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Engine[0].Used = true
			v := view()
			v.Networks[0].Slice = prefix("10.216.0.192/26")
			return v, m
		}},
		{"device of another agent", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Device.Alias = "persys c1 z"
			v := view()
			v.Networks, v.Peers = nil, nil
			return v, m
		}},
		{"device gone, table of another agent", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Device, m.Table = nil, table("persys c1 z", view(), []string{"ps7"}).Stored()
			v := view()
			v.Networks, v.Peers = nil, nil
			return v, m
		}},
		{"restarted while the engine does not answer", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Engine, m.Answers = nil, false
			v := view()
			v.Networks = v.Networks[:1] // network 12 has left the view, but containers may still be on its bridge
			return v, m
		}},
		{"a peer of another address family", func() (workload.NetworkView, Observed) {
			v := view()
			v.Peers[0].Address = addr("fd00::12")
			return v, machine()
		}},
		{"containers of a former network with the same number", func() (workload.NetworkView, Observed) {
			v := view()
			v.Networks[0].Name = "old"
			m := settled(v, machine())
			m.Engine[0].Used = true
			return view(), m
		}},
		{"a used bridge with the slice as its subnet", func() (workload.NetworkView, Observed) {
			m := settled(view(), machine())
			m.Engine[0].Used, m.Engine[0].CIDR = true, m.Engine[0].Slice
			return view(), m
		}},
		{"a problem of the view", func() (workload.NetworkView, Observed) {
			v := view()
			v.Problems = []string{"node d is left out"}
			return v, settled(view(), machine())
		}},
		{"address on no interface", func() (workload.NetworkView, Observed) {
			m := machine()
			m.Underlay = nil
			return view(), m
		}},
		{"IPv6 underlay", func() (workload.NetworkView, Observed) {
			v := view()
			v.Address, v.Peers[0].Address, v.Peers[1].Address = addr("fd00::11"), addr("fd00::12"), addr("fd00::13")
			return v, machine()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, seen := c.make()
			var b strings.Builder
			for pass := 1; ; pass++ {
				res := Plan(Input{v, alias, seen})
				fmt.Fprintf(&b, "pass %d, ready %v\n", pass, res.Ready)
				for _, p := range res.Problems {
					fmt.Fprintf(&b, "problem: %s\n", p)
				}
				for _, op := range res.Ops {
					fmt.Fprintln(&b, op)
				}
				if len(res.Ops) == 0 {
					break
				}
				if pass == 4 {
					t.Fatalf("Plan still returns operations after 4 passes:\n%s", &b)
				}
				seen = carryOut(t, seen, res.Ops)
			}
			path := filepath.Join("testdata", strings.ReplaceAll(c.name, " ", "-")+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("got:\n%s\nwant (%s; -update writes it):\n%s", &b, path, want)
			}
		})
	}
}

// TestAnyDamageIsRepaired: the test starts with a random state of the machine, and carries out the operations
// of Plan a few times. Then the networks work and Plan returns no operation. Networks with containers are never
// removed.
func TestAnyDamageIsRepaired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		seen := drawMachine(t, v)
		used := map[uint32]bool{}
		for _, n := range seen.Engine {
			used[n.ID] = n.Used
		}
		var res Result
		for range 4 {
			res = Plan(Input{v, alias, seen})
			seen = carryOut(t, seen, res.Ops)
		}
		if res = Plan(Input{v, alias, seen}); len(res.Ops) > 0 {
			t.Fatalf("after four passes Plan still returns operations: %v", res.Ops)
		}
		for _, n := range v.Networks {
			for _, p := range n.Peers {
				if !slices.ContainsFunc(seen.Routes, func(r Route) bool { return r.Slice == p.CIDR && r.MTU == n.MTU }) && !foreign(seen, n) {
					t.Fatalf("after the operations of Plan the route to the slice %s of a peer is missing", p.CIDR)
				}
			}
			if !slices.Contains(res.Ready, n.ID) && len(res.Problems) == 0 {
				t.Fatalf("after the operations of Plan network %d is not in Result.Ready, and no problem says why", n.ID)
			}
			if !slices.Contains(seen.UserChain, FromPeersTo(Bridge(n.ID))) && seen.HasUserChain && !foreign(seen, n) {
				t.Fatalf("the rules in DOCKER-USER lack one that accepts packets to the bridge %s", Bridge(n.ID))
			}
		}
		if len(v.Networks) == 0 && (seen.Device != nil || len(seen.UserChain) > 0) {
			t.Fatalf("the view has no networks, but the VXLAN device %v or the rules %v in DOCKER-USER are left", seen.Device, seen.UserChain)
		}
		for _, n := range seen.Engine {
			if used[n.ID] && !slices.Contains(seen.Table.Sets[0].Elements, Bridge(n.ID)) {
				t.Fatalf("containers are on the bridge %s, but the nftables table does not contain the bridge", Bridge(n.ID))
			}
			delete(used, n.ID)
		}
		for id, was := range used {
			if was {
				t.Fatalf("Plan removed the engine's network %d, which a container uses", id)
			}
		}
	})
}

// foreign reports whether containers of another network are on a network's bridge.
func foreign(seen Observed, n workload.Network) bool {
	return slices.ContainsFunc(seen.Engine, func(have ObservedNetwork) bool {
		return have.ID == n.ID && have.Used && have.Network != n.Namespace+"/"+n.Name
	})
}

func drawView(t *rapid.T) workload.NetworkView {
	v := workload.NetworkView{Cluster: "c1", Port: 4790, VNI: 7, Address: addr("10.99.0.1")}
	nodes := rapid.IntRange(0, 3).Draw(t, "peers")
	for i := range nodes {
		v.Peers = append(v.Peers, workload.NetworkPeer{Node: fmt.Sprint("n", i), Address: netip.AddrFrom4([4]byte{10, 99, 0, byte(i + 2)})})
	}
	for id := range rapid.IntRange(0, 3).Draw(t, "networks") {
		n := workload.Network{
			ID: uint32(id + 1), Namespace: "default", Name: fmt.Sprint("net", id), MTU: rapid.SampledFrom([]int{1450, 1400}).Draw(t, "mtu"),
			CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 216, byte(16 * id), 0}), 20), Slice: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 216, byte(16 * id), 0}), 26),
		}
		for i := range nodes {
			if rapid.Bool().Draw(t, "member") {
				n.Peers = append(n.Peers, workload.NetworkSlice{Node: fmt.Sprint("n", i), CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 216, byte(16 * id), byte(64 * (i + 1))}), 26)})
			}
		}
		v.Networks = append(v.Networks, n)
	}
	return v
}

// drawMachine returns a random state of a machine: networks of earlier views may be left, the setup may be
// incomplete, and other programs may have made entries.
func drawMachine(t *rapid.T, v workload.NetworkView) Observed {
	seen := machine()
	seen.HasUserChain = rapid.Bool().Draw(t, "user chain")
	if rapid.Bool().Draw(t, "worked before") {
		other := v
		if rapid.Bool().Draw(t, "with another view") {
			other = drawView(t)
		}
		for range 4 {
			seen = carryOut(t, seen, Plan(Input{other, alias, seen}).Ops)
		}
	}
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(t, what) == 0 }
	if some("device") {
		seen.Device = nil
		seen.Routes, seen.Neighbours, seen.Forwards = nil, nil, nil
		if some("foreign device") {
			seen.Device = &VXLAN{VNI: rapid.Uint32Range(6, 8).Draw(t, "vni"), Port: 4790, Local: v.Address, Under: 2, MAC: MACOf(v.Address), MTU: 1280, Up: rapid.Bool().Draw(t, "up"), Learning: rapid.Bool().Draw(t, "learning")}
		}
	}
	if seen.Device != nil {
		if d := *seen.Device; some("down") {
			d.Up = false
			seen.Device, seen.Routes = &d, nil
		}
		drop := func(what string, n int) (from, to int) {
			if n == 0 {
				return 0, 0
			}
			from = rapid.IntRange(0, n).Draw(t, what)
			return from, n
		}
		from, to := drop("routes", len(seen.Routes))
		seen.Routes = slices.Delete(slices.Clone(seen.Routes), from, to)
		from, to = drop("forwards", len(seen.Forwards))
		seen.Forwards = slices.Delete(slices.Clone(seen.Forwards), from, to)
		from, to = drop("neighbours", len(seen.Neighbours))
		seen.Neighbours = slices.Delete(slices.Clone(seen.Neighbours), from, to)
		if some("foreign entries") {
			seen.Forwards = append(seen.Forwards, Forward{MACOf(addr("10.99.0.2")), addr("10.1.1.1")}, Forward{MACOf(addr("10.99.0.2")), addr("10.1.1.2")})
			seen.Neighbours = append(seen.Neighbours, Neighbour{addr("10.216.0.77"), MAC{1}})
			if seen.Device.Up {
				seen.Routes = append(seen.Routes, Route{Slice: prefix("10.250.0.0/24")})
			}
			SortForwards(seen.Forwards)
			SortNeighbours(seen.Neighbours)
			SortRoutes(seen.Routes)
		}
		seen.ReversePath = rapid.IntRange(0, 2).Draw(t, "rp_filter")
	}
	switch {
	case some("table"):
		seen.Table = nil
	case seen.Table != nil && some("rule"):
		damaged := seen.Table.Stored()
		c := rapid.IntRange(0, len(damaged.Chains)-1).Draw(t, "chain")
		if n := len(damaged.Chains[c].Rules); n > 0 {
			damaged.Chains[c].Rules = damaged.Chains[c].Rules[:n-1]
		}
		seen.Table = damaged
	}
	if seen.HasUserChain && some("accepts") {
		seen.UserChain = []UserRule{FromPeersTo("ps1"), FromPeersTo("ps1"), FromPeersTo("ps9")}
	}
	if some("bridges removed") {
		seen.Engine = nil
	}
	for i := range seen.Engine {
		seen.Engine[i].Used = rapid.Bool().Draw(t, "used")
		seen.Engine[i].Link = rapid.Bool().Draw(t, "link")
		seen.Engine[i].Set = seen.Engine[i].Link && rapid.Bool().Draw(t, "proxy_arp")
		if some("another name") {
			seen.Engine[i].Network = "default/former"
		}
		if some("slice as subnet") {
			seen.Engine[i].CIDR = seen.Engine[i].Slice
		}
	}
	return seen
}

// TestEachDifferenceIsSeen: Plan replaces the nftables table if it differs in any detail from the one that the
// machine must have.
func TestEachDifferenceIsSeen(t *testing.T) {
	want := table(alias, view(), []string{"ps12", "ps7"})
	for _, c := range []struct {
		name   string
		damage func(*Table)
	}{
		{"a rule is missing", func(t *Table) { t.Chains[1].Rules = t.Chains[1].Rules[1:] }},
		{"a rule is added", func(t *Table) { t.Chains[1].Rules = append([]Rule{{}}, t.Chains[1].Rules...) }},
		{"rules are exchanged", func(t *Table) { r := t.Chains[1].Rules; r[0], r[1] = r[1], r[0] }},
		{"a peer is missing", func(t *Table) { t.Sets[2].Elements = t.Sets[2].Elements[1:] }},
		{"the kernel's table lacks a chain", func(t *Table) { t.Chains = t.Chains[1:] }},
		{"another priority", func(t *Table) { t.Chains[0].Priority++ }},
		{"a chain has another hook", func(t *Table) { t.Chains[0].Hook = "input" }},
		{"a chain has another policy", func(t *Table) { t.Chains[0].Type += " policy drop" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := want.Stored()
			seen.Sets = slices.Clone(seen.Sets)
			if !want.same(seen) {
				t.Fatal("same reports that a table differs from itself")
			}
			c.damage(seen)
			if want.same(seen) {
				t.Error("not seen")
			}
		})
	}
}

// TestChoose checks which address Choose gives to a workload, depending on the addresses that are in use or
// were freed.
func TestChoose(t *testing.T) {
	slice, now := prefix("10.216.0.64/28"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	held := func(last int, id string, freed time.Duration) workload.NetworkAddress {
		r := workload.NetworkAddress{Network: 7, Address: addr(fmt.Sprintf("10.216.0.%d", last)), Workload: id}
		if freed > 0 {
			r.FreedAt = now.Add(-freed)
		}
		return r
	}
	var full []workload.NetworkAddress
	for last := 66; last < 76; last++ {
		full = append(full, held(last, fmt.Sprint("w", last), 0))
	}
	freed := slices.Clone(full)
	freed[3], freed[5], freed[7] = held(69, "x", 4*time.Minute), held(71, "y", 6*time.Minute), held(73, "z", 7*time.Minute)
	young := slices.Clone(full)
	young[3] = held(69, "x", 4*time.Minute)
	for _, c := range []struct {
		name  string
		slice netip.Prefix
		have  []workload.NetworkAddress
		id    string
		want  string
		err   string
	}{
		{"the first workload gets the first address after the bridge's", slice, nil, "a", "10.216.0.66", ""},
		{"a new workload gets the next address that was never used", slice, full[:1], "a", "10.216.0.67", ""},
		{"a workload keeps the address that it has", slice, full, "w70", "10.216.0.70", ""},
		{"a workload gets back its own address, freed a moment ago", slice, young, "x", "10.216.0.69", ""},
		{"if no address was never used, a workload gets the one that was freed first", slice, freed, "a", "10.216.0.73", ""},
		{"no other workload gets an address that was freed a moment ago", slice, young, "a", "", "the slice 10.216.0.64/28 has no free address: 9 are in use, 1 were freed less than 5m0s ago"},
		{"a slice that is too small for the engine's part gives no address", prefix("10.216.0.64/29"), nil, "a", "", "the slice 10.216.0.64/29 is too small: at least 16 addresses are needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.slice, c.have, c.id, now)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("Choose returned the error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || got != addr(c.want) {
				t.Errorf("Choose returned the address %s (error %v), want %s", got, err, c.want)
			}
		})
	}
	if part, ok := EnginePart(slice); !ok || part != prefix("10.216.0.76/30") {
		t.Errorf("EnginePart returned %s, want 10.216.0.76/30, the last quarter of the slice", part)
	}
}
