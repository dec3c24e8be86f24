package fsm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

const testPool = "10.216.0.0/14"

func putNetwork(name, cidr string, opts ...func(*commandv1.PutNetwork)) Command {
	b := &commandv1.PutNetwork{Name: name, Cidr: cidr, Pool: testPool}
	for _, o := range opts {
		o(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutNetwork{PutNetwork: b}}
}

func deleteNetwork(name, namespace string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteNetwork{DeleteNetwork: &commandv1.DeleteNetwork{Name: name, Namespace: namespace}}}
}

func releaseSlices(slices ...*commandv1.IdleSlice) Command {
	return &commandv1.Command{Body: &commandv1.Command_ReleaseSlices{ReleaseSlices: &commandv1.ReleaseSlices{Slices: slices}}}
}

func inNetworks(names ...string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Networks = names })
}

// networked makes a node able to take part in networks.
func networked(address string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) {
		n.Networking = &commandv1.NodeNetworking{Address: address, Mtu: 1450}
	}
}

// slice returns, as text, the slice that a node has of a network's addresses; "" if it has none.
func (w *world) slice(network, node string) string {
	w.t.Helper()
	n, ok := w.s.Network("", network)
	if !ok {
		w.t.Fatalf("the state must have network %s, but does not", network)
	}
	s, has := n.SliceOf(node)
	if !has {
		return ""
	}
	return n.Prefix(s).String()
}

// networksScenario creates, refuses and deletes networks, and nodes get, keep and lose slices
// (parts of the addresses) of them, which other nodes then get.
func networksScenario(w *world) {
	w.do(register("a", networked("10.0.0.1")))
	w.do(register("b", networked("10.0.0.2")))
	w.do(register("old"))
	w.do(putNetwork("back", ""))
	w.do(putNetwork("back", ""))
	w.do(putNetwork("clash", "10.216.8.0/24"))
	w.do(putNetwork("small", "192.168.7.0/25"))
	w.do(putNetwork("tiny", "192.168.8.0/27"))
	w.do(put("web", inNetworks("back")))
	w.do(put("api", inNetworks("back", "small")))
	w.do(put("lost", inNetworks("none")))
	w.do(w.assign("web", "old"))
	w.do(w.assign("web", "a"))
	w.do(w.assign("api", "b"))
	w.do(deleteNetwork("back", ""))
	w.do(w.evict("web", CodeDraining, false))
	w.do(gone("web", "a", nil))
	w.do(releaseSlices(&commandv1.IdleSlice{Network: 1, Node: "a"}))
	w.now += SliceIdle
	w.do(releaseSlices(&commandv1.IdleSlice{Network: 1, Node: "a"}, &commandv1.IdleSlice{Network: 1, Node: "b"}, &commandv1.IdleSlice{Network: 9, Node: "b"}))
	w.do(w.assign("web", "a"))
	w.do(removeNode("b", true))
	w.do(register("b", networked("10.0.0.3")))
	w.do(w.assign("api", "b"))
	w.do(register("b", networked("10.0.0.4")))
	w.do(remove("web", true))
	w.do(remove("api", true))
	w.do(gone("web", "a", nil))
	w.do(gone("api", "b", nil))
	w.do(deleteNetwork("small", ""))
	w.do(putNetwork("small", ""))
}

func TestPutNetwork(t *testing.T) {
	for _, c := range []struct {
		name    string
		command Command
		kind    Kind
		names   []string // words that the refusal must contain
	}{
		{"a subnet of its own is accepted", putNetwork("n", "10.50.0.0/20"), OK, nil},
		{"a network without a subnet gets a part of the pool", putNetwork("n", ""), OK, nil},
		{"the name of an existing network is refused", putNetwork("back", ""), Conflict, []string{"back", "exists already"}},
		{"the subnet of another network is refused", putNetwork("n", "10.216.0.0/20"), Conflict, []string{"10.216.0.0/20", "back"}},
		{"a part of another network is refused", putNetwork("n", "10.216.4.0/24"), Conflict, []string{"10.216.4.0/24", "10.216.0.0/20", "back"}},
		{"a subnet around another network is refused", putNetwork("n", "10.216.0.0/16"), Conflict, []string{"back"}},
		{"a subnet with the address of a node is refused", putNetwork("n", "10.70.0.0/20"), Conflict, []string{"10.70.0.9", `node "a"`}},
		{"a subnet that is too small for one slice is refused", putNetwork("n", "10.50.0.0/27"), Invalid, []string{"10.50.0.0/27", "too small", "/26"}},
		{"a subnet larger than /14 is refused", putNetwork("n", "10.0.0.0/8"), Invalid, []string{"too large", "/14"}},
		{"a prefix with host bits is refused", putNetwork("n", "10.50.0.1/20"), Invalid, []string{"host bits", "10.50.0.0/20"}},
		{"an address without a prefix length is refused", putNetwork("n", "10.50.0.0"), Invalid, []string{"10.50.0.0", "not a prefix"}},
		{"an IPv6 prefix is refused", putNetwork("n", "fd00::/64"), Invalid, []string{"IPv4"}},
		{"loopback addresses are refused", putNetwork("n", "127.0.0.0/20"), Invalid, []string{"for hosts"}},
		{"multicast addresses are refused", putNetwork("n", "224.0.0.0/20"), Invalid, []string{"for hosts"}},
		{"an invalid name is refused", putNetwork("-", ""), Invalid, []string{"name"}},
		{"an MTU that is too small is refused", putNetwork("n", "", func(b *commandv1.PutNetwork) { b.Mtu = 100 }), Invalid, []string{"mtu", "100", "576"}},
		{"a namespace that does not exist is refused", putNetwork("n", "", func(b *commandv1.PutNetwork) { b.Namespace = "none" }), NotFound, []string{"none"}},
		{"a pool that is too small is refused", putNetwork("n", "", func(b *commandv1.PutNetwork) { b.Pool = "10.9.0.0/24" }), Invalid, []string{"pool", "10.9.0.0/24", "too small"}},
		{"a pool that is used up is refused", putNetwork("n", "", func(b *commandv1.PutNetwork) { b.Pool = "10.216.0.0/20" }), Conflict, []string{"no free /20", "SCHEDULER_NETWORK_POOL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			w.ok(register("a", networked("10.70.0.9")))
			w.ok(putNetwork("back", ""))
			if res := w.do(c.command); c.kind == OK {
				is(t, "verdict on the command", res.Kind, OK)
			} else {
				refused(t, res, c.kind, c.names...)
			}
		})
	}
	w := formed(t)
	w.ok(putNetwork("one", ""))
	w.ok(putNetwork("two", ""))
	two, _ := w.s.Network("default", "two")
	is(t, "subnet of the second network, taken from the pool", two.CIDR.String(), "10.216.16.0/20")
	w.ok(deleteNetwork("one", ""))
	w.ok(putNetwork("three", ""))
	three, _ := w.s.Network("", "three")
	is(t, "subnet of the third network, which is that of the deleted one", three.CIDR.String(), "10.216.0.0/20")
	is(t, "number of the third network, which must not be that of the deleted one", three.ID, 3)
}

func TestConfinedCallersActOnNetworksOfTheirNamespaces(t *testing.T) {
	w := formed(t)
	w.ok(putNamespace("a"))
	w.ok(putNamespace("b"))
	in := func(name string) func(*commandv1.PutNetwork) {
		return func(b *commandv1.PutNetwork) { b.Namespace = name }
	}
	as := func(c Command) Result {
		c.Head = &commandv1.Head{At: w.now, By: "ada", Namespaces: []string{"a"}}
		return w.do(c)
	}
	is(t, "verdict on a network in the namespace of the caller", as(putNetwork("n", "", in("a"))).Kind, OK)
	refused(t, as(putNetwork("m", "10.50.0.0/20", in("a"))), Denied, "10.50.0.0/20", "pool")
	for i := range maxConfined - 1 {
		is(t, "verdict on one more network in the namespace of the caller", as(putNetwork(fmt.Sprint("n", i), "", in("a"))).Kind, OK)
	}
	refused(t, as(putNetwork("m", "", in("a"))), Denied, "16 networks")
	refused(t, w.do(unprivileged(putNetwork("m", "10.50.0.0/20", in("a")))), Denied, "10.50.0.0/20", "pool", "permission policies")
	is(t, "verdict on a network that an operator of all namespaces creates", w.do(unprivileged(putNetwork("m", "", in("a")))).Kind, OK)
	refused(t, as(putNetwork("n", "", in("b"))), Denied, `"b"`)
	w.ok(putNetwork("n", "", in("b")))
	refused(t, as(deleteNetwork("n", "b")), Denied, `"b"`)
	is(t, "verdict on the deletion of a network in the caller's namespace", as(deleteNetwork("n", "a")).Kind, OK)
	refused(t, w.do(dropNamespace("b")), Conflict, `network "n"`)
}

func TestSlices(t *testing.T) {
	start := func(t *testing.T) *world {
		w := formed(t)
		w.ok(register("a", networked("10.0.0.1")))
		w.ok(register("b", networked("10.0.0.2")))
		w.ok(putNetwork("back", "10.50.0.0/25")) // two slices
		return w
	}
	t.Run("the node of a first member gets the lowest free slice", func(t *testing.T) {
		w := start(t)
		w.place("web", "b", inNetworks("back"))
		w.place("api", "b", inNetworks("back"))
		w.place("db", "a", inNetworks("back"))
		is(t, `slice of node "b" in network back`, w.slice("back", "b"), "10.50.0.0/26")
		is(t, `slice of node "a" in network back`, w.slice("back", "a"), "10.50.0.64/26")
	})
	t.Run("a third node finds no slice", func(t *testing.T) {
		w := start(t)
		w.place("web", "a", inNetworks("back"))
		w.place("api", "b", inNetworks("back"))
		w.ok(register("c", networked("10.0.0.3")))
		w.ok(put("db", inNetworks("back")))
		skipped(t, w.do(w.assign("db", "c")), `network "back" has no slice left for node "c"`)
		is(t, "number of skipped items for a node that has a slice", w.do(w.assign("db", "a")).Skipped, 0)
	})
	t.Run("a node that does not support the network gets no member", func(t *testing.T) {
		w := start(t)
		w.ok(register("old"))
		w.ok(register("broken", func(n *commandv1.RegisterNode) {
			n.Networking = &commandv1.NodeNetworking{Address: "10.0.0.4", Mtu: 1450, Problem: "the kernel has no VXLAN"}
		}))
		w.ok(register("narrow", func(n *commandv1.RegisterNode) {
			n.Networking = &commandv1.NodeNetworking{Address: "10.0.0.5", Mtu: 1350}
		}))
		w.ok(put("web", inNetworks("back")))
		skipped(t, w.do(w.assign("web", "old")), "old", "does not support networks")
		skipped(t, w.do(w.assign("web", "broken")), "broken", "the kernel has no VXLAN")
		skipped(t, w.do(w.assign("web", "narrow")), "MTU of 1450", "1350")
	})
	t.Run("a workload with an unknown network is refused", func(t *testing.T) {
		w := start(t)
		refused(t, w.do(put("web", inNetworks("back", "none"))), NotFound, "web", "container.networks[1]", `"none"`, "persysctl network create none")
		w.ok(putNamespace("a"))
		refused(t, w.do(put("web", inNamespace("a"), inNetworks("back"))), NotFound, `"back"`, "namespace a")
	})
	t.Run("a network that is used cannot be deleted", func(t *testing.T) {
		w := start(t)
		w.place("web", "a", inNetworks("back"))
		refused(t, w.do(deleteNetwork("back", "")), Conflict, "web", "1 workloads")
		w.run("web")
		w.ok(remove("web", true)) // the node may still have the instance
		refused(t, w.do(deleteNetwork("back", "")), Conflict, `node "a"`, "not yet removed")
		w.ok(gone("web", "a", nil))
		w.ok(deleteNetwork("back", ""))
		refused(t, w.do(deleteNetwork("back", "")), NotFound, "back")
	})
	t.Run("a slice returns after a day without member, and rests for an hour", func(t *testing.T) {
		w := start(t)
		w.place("web", "a", inNetworks("back"))
		idle := releaseSlices(&commandv1.IdleSlice{Network: 1, Node: "a"})
		w.now += SliceIdle
		skipped(t, w.do(releaseSlices(idle.GetReleaseSlices().Slices...)), `"a"`, "no idle slice")
		w.ok(w.evict("web", CodeDraining, true))
		skipped(t, w.do(releaseSlices(idle.GetReleaseSlices().Slices...)), "no idle slice")
		is(t, `slice of node "a" in network back before it is idle for a day`, w.slice("back", "a"), "10.50.0.0/26")
		w.now += SliceIdle
		w.ok(releaseSlices(idle.GetReleaseSlices().Slices...))
		is(t, `slice of node "a" in network back after it was taken back`, w.slice("back", "a"), "")
		w.ok(w.assign("web", "b"))
		is(t, `slice of node "b", which must not be the one that rests`, w.slice("back", "b"), "10.50.0.64/26")
		w.now += SliceRest
		w.ok(put("api", inNetworks("back")))
		w.ok(w.assign("api", "a"))
		is(t, `slice of node "a" in network back after it was given again`, w.slice("back", "a"), "10.50.0.0/26")
	})
	t.Run("the slices of a removed node rest", func(t *testing.T) {
		w := start(t)
		w.place("web", "a", inNetworks("back"))
		w.ok(removeNode("a", true))
		n, _ := w.s.Network("", "back")
		is(t, "number of slices in the record of the network", len(n.Slices), 1)
		is(t, "owner of the slice after its node was removed", n.Slices[0].Node, "")
		is(t, "time until which the slice rests", n.Slices[0].FreeAt, w.s.Info().Clock+SliceRest)
	})
	t.Run("if a new specification adds a network to a placed workload, its node gets a slice", func(t *testing.T) {
		w := start(t)
		w.place("web", "a")
		is(t, `slice of node "a" in network back before the change`, w.slice("back", "a"), "")
		w.ok(put("web", content("c1:changed"), inNetworks("back")))
		is(t, `slice of node "a" in network back`, w.slice("back", "a"), "10.50.0.0/26")
	})
	t.Run("the network index grows only when the agents' view of the networks changes", func(t *testing.T) {
		w := start(t)
		index := func() uint64 { return w.s.Info().NetworkIndex }
		created := index()
		w.place("web", "a", inNetworks("back"))
		given := index()
		w.place("api", "a", inNetworks("back"))
		is(t, "network index after a second member", index(), given)
		w.ok(w.evict("web", CodeDraining, true))
		w.ok(w.evict("api", CodeDraining, true))
		w.ok(w.assign("api", "a"))
		is(t, "network index after the last member left and another one came to the same node", index(), given)
		w.ok(register("b", networked("10.0.0.9")))
		is(t, "network index after a node without a slice got a new address", index(), given)
		w.ok(register("a", networked("10.0.0.8")))
		if created >= given || index() != w.index {
			t.Errorf("the network index is %d after the creation, %d after the first slice and %d after the new address; want it to grow with the slice and with the address, and to be %d after the address", created, given, index(), w.index)
		}
	})
}

// TestSlicesNeverOverlap: whatever happens to nodes and members, no two nodes own overlapping
// slices (parts of a network's addresses), and no slice is given to another node within SliceRest
// after it was taken back.
func TestSlicesNeverOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := formed(t)
		nodes := []string{"a", "b", "c", "d"}
		for i, n := range nodes {
			w.do(register(n, networked(fmt.Sprintf("10.0.0.%d", i+1))))
		}
		w.do(putNetwork("n1", "10.50.0.0/25"))
		w.do(putNetwork("n2", ""))
		rests := map[netip.Prefix]int64{} // until when a slice must be given to no node
		owner := map[netip.Prefix]string{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			id, node := fmt.Sprintf("w%d", rapid.IntRange(0, 5).Draw(rt, "id")), rapid.SampledFrom(nodes).Draw(rt, "node")
			switch rapid.IntRange(0, 7).Draw(rt, "command") {
			case 0:
				w.do(put(id, inNetworks([][]string{{"n1"}, {"n2"}, {"n1", "n2"}, nil}[rapid.IntRange(0, 3).Draw(rt, "networks")]...), demand(func(d *commandv1.Demand) { d.ServiceAddress = rapid.Bool().Draw(rt, "serves") })))
			case 1, 2:
				if _, ok := w.s.Workload(id); ok {
					w.do(w.assign(id, node))
				}
			case 3:
				if _, ok := w.s.Workload(id); ok {
					w.do(w.evict(id, CodeDraining, rapid.Bool().Draw(rt, "gone")))
				}
			case 4:
				w.do(gone(id, node, nil))
			case 5:
				w.do(removeNode(node, true))
				w.do(register(node, networked("10.0.1."+fmt.Sprint(slices.Index(nodes, node)+1))))
			case 6:
				w.do(releaseSlices(&commandv1.IdleSlice{Network: uint32(rapid.IntRange(1, 2).Draw(rt, "network")), Node: node}))
			case 7:
				w.now += rapid.SampledFrom([]int64{minute, SliceRest, SliceIdle}).Draw(rt, "later")
			}
			clock := w.s.Info().Clock
			now := map[netip.Prefix]string{}
			w.s.Networks(func(n *Network) bool {
				for _, s := range n.Slices {
					p := n.Prefix(s)
					for other, of := range now {
						if s.Node != "" && of != "" && other.Overlaps(p) {
							rt.Fatalf("slice %s of node %s overlaps slice %s of node %s", p, s.Node, other, of)
						}
					}
					if !n.CIDR.Contains(p.Addr()) {
						rt.Fatalf("slice %s is outside of network %s", p, n.CIDR)
					}
					if s.Node != "" {
						now[p] = s.Node
					}
				}
				return true
			})
			for p, of := range now {
				if until := rests[p]; owner[p] != of && until > clock {
					rt.Fatalf("slice %s was given to node %s at %d, but rests until %d", p, of, clock, until)
				}
			}
			for p, of := range owner {
				if now[p] != of {
					rests[p] = clock + SliceRest
				}
			}
			owner = now
		}
	})
}

// TestNetworksOfUnfinishedUpdatesStay: a command does not delete a network that only the waiting or the previous
// specifications of a group's unfinished update name. A command that an older scheduler recorded still deletes it.
func TestNetworksOfUnfinishedUpdatesStay(t *testing.T) {
	in := func(c Command, networks ...string) Command {
		for _, p := range c.GetPutWorkloads().GetWorkloads() {
			p.Demand.Networks = networks
		}
		return c
	}
	w := formed(t)
	w.ok(register("a", networked("10.0.0.1")))
	w.ok(putNetwork("old", ""))
	w.ok(putNetwork("new", ""))
	w.ok(in(group(1, 2, 1, false), "old"))
	w.everybodyRuns()
	w.ok(in(group(2, 2, 1, false), "new"))
	careful := func(name string) Command {
		c := deleteNetwork(name, "")
		c.GetDeleteNetwork().IfNotAwaited = true
		return c
	}
	refused(t, w.do(careful("new")), Conflict, "new", "waiting specifications", "web", "persysctl rollout status web")
	before := w.s
	is(t, "verdict on a deletion by a command of an older scheduler", w.do(deleteNetwork("new", "")).Kind, OK)
	w.s = before
	for range 10 { // until both members have the new specification
		w.step()
		if strings.HasPrefix(w.versions(), "2 2 ") {
			break
		}
		w.everybodyRuns()
		w.wait(5 * second)
	}
	is(t, "versions of the members and phase of the update before its end", w.versions(), "2 2 "+string(rollout.Running))
	refused(t, w.do(careful("old")), Conflict, "old", "previous specifications", "web")
	for range 6 {
		w.proceed()
	}
	is(t, "phase of the update", w.rolled().Phase, rollout.Completed)
	for i := range 2 {
		w.ok(gone(fmt.Sprint("web-", i), "a", nil))
	}
	w.ok(careful("old"))
}

// TestRestoredNetworks: a restore keeps the networks that nodes have set up, and brings back those that only the
// backup has.
func TestRestoredNetworks(t *testing.T) {
	w := formed(t)
	w.ok(register("a", networked("10.0.0.1")))
	w.ok(putNetwork("gone", "10.50.0.0/20"))
	w.ok(putNetwork("kept", ""))
	w.place("web", "a", inNetworks("gone", "kept"))
	backup := w.s
	w.ok(remove("web", true))
	w.ok(gone("web", "a", nil))
	w.ok(deleteNetwork("gone", ""))
	w.ok(putNetwork("clash", "10.60.0.0/20"))
	back, err := Restored(backup, w.s, RestoreInfo{At: w.now, By: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	back.Networks(func(n *Network) bool { names = append(names, fmt.Sprint(n.Name, " ", n.CIDR, " ", n.ID)); return true })
	want := []string{"clash 10.60.0.0/20 3", "gone 10.50.0.0/20 1", "kept 10.216.0.0/20 2"}
	if !slices.Equal(names, want) {
		t.Errorf("the restored state has the networks %q (name, subnet, number), want %q", names, want)
	}
	if i := back.Info(); i.NetworkIndex != i.Index || i.NetworkID != 3 {
		t.Errorf("after the restore, Info.NetworkIndex is %d, the index is %d, and Info.NetworkID is %d; want NetworkIndex equal to the index, and NetworkID 3", i.NetworkIndex, i.Index, i.NetworkID)
	}

	fresh := uninitialised(t)
	fresh.ok(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 2000}}})
	fresh.ok(register("a", networked("10.0.0.1")))
	if back, err = Restored(backup, fresh.s, RestoreInfo{At: w.now, By: "ada"}); err != nil {
		t.Fatal(err)
	}
	n, ok := back.Network("", "gone")
	if !ok {
		t.Fatal("a new cluster must get the networks of the backup")
	}
	if n.Room(w.now) != 32 {
		t.Errorf("network gone has room for %d nodes, want 32: the lower half of its 63 free slices rests, because nodes may have got them after the backup", n.Room(w.now))
	}
	if number, free := n.free(w.now); !free || number != 32 {
		t.Errorf("the next slice that a node gets is number %d (one is free: %t), want number 32", number, free)
	}
	if n.Room(w.now+SliceRest) != 63 {
		t.Errorf("when the slices have rested for an hour, network gone has room for %d nodes, want 63", n.Room(w.now+SliceRest))
	}
	if s, has := n.SliceOf("a"); !has || s.EmptySince != 0 {
		t.Errorf("in a new cluster node a has the slice %+v (found: %t), want its slice of the backup with EmptySince 0, because it has a member", s, has)
	}
}
