package network

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// overlay is a fake Overlay that records the network views that it gets.
type overlay struct{ views []workload.NetworkView }

func (o *overlay) Set(v workload.NetworkView) { o.views = append(o.views, v) }
func (o *overlay) Run(context.Context)        {}
func (o *overlay) ProbePeers(context.Context, uint32, []string) ([]*agentv1.NetworkProbe, error) {
	return nil, nil
}
func (o *overlay) Trace(context.Context, []netip.AddrPort, string, int) ([]*agentv1.TracedAddress, int) {
	return nil, 0
}
func (o *overlay) Join(context.Context, driver.ID, []uint32) ([]driver.Place, error) {
	return nil, nil
}
func (o *overlay) Withdraw(context.Context, driver.ID) {}
func (o *overlay) Leave(driver.ID, ...uint32) error    { return nil }

func view(incarnation, term, index uint64) *agentv1.NetworkView {
	return &agentv1.NetworkView{
		Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: incarnation, Term: term}, Index: index, Port: 4790, Vni: 7, Address: "10.0.0.1",
		Peers: []*agentv1.NetworkPeer{{Node: "b", Address: "10.0.0.2"}},
		Networks: []*agentv1.Network{{
			Id: 1, Name: "back", Cidr: "10.216.0.0/20", Mtu: 1450, Slice: "10.216.0.0/26",
			Peers: []*agentv1.NetworkSlice{{Node: "b", Cidr: "10.216.0.64/26"}},
		}},
	}
}

func changed(change func(*agentv1.NetworkView)) *agentv1.NetworkView {
	m := view(1, 5, 21)
	change(m)
	return m
}

// TestOffer: the Keeper has a view of incarnation 1, term 5 and index 20. Only a newer view of the same cluster
// replaces it.
func TestOffer(t *testing.T) {
	for _, c := range []struct {
		name  string
		offer *agentv1.NetworkView
		taken bool
		fault string // text that the error of Offer contains; empty if there is no error
	}{
		{"a view with a higher index is taken", view(1, 5, 21), true, ""},
		{"a view with a higher index of a later term is taken", view(1, 6, 21), true, ""},
		{"a view with the same index is ignored", view(1, 6, 20), false, ""},
		{"a view with a lower index is refused", view(1, 6, 19), false, "index 19, which is older than index 20"},
		{"a view with a lower index of a later incarnation is taken", view(2, 1, 3), true, ""},
		{"a view with the same index of a later incarnation is taken", view(2, 1, 20), true, ""},
		{"a view of a lower term is refused", view(1, 4, 30), false, "epoch"},
		{"an earlier incarnation", view(0, 9, 30), false, "incarnation"},
		{"a view of another cluster is refused", changed(func(m *agentv1.NetworkView) { m.Epoch.ClusterId = "c2" }), false, "from cluster c2"},
		{"a view without epoch is refused", changed(func(m *agentv1.NetworkView) { m.Epoch = nil }), false, "epoch"},
		{"a newer view without networks is taken", changed(func(m *agentv1.NetworkView) { m.Networks, m.Peers = nil, nil }), true, ""},
		{"a view without the node's address is refused", changed(func(m *agentv1.NetworkView) { m.Address = "" }), false, "networks.address"},
		{"a view without the VXLAN port is refused", changed(func(m *agentv1.NetworkView) { m.Port = 0 }), false, "networks.port"},
		{"a view with a VNI of more than 24 bits is refused", changed(func(m *agentv1.NetworkView) { m.Vni = 1 << 24 }), false, "networks.vni"},
		{"a view in which a peer has this node's address is taken", changed(func(m *agentv1.NetworkView) { m.Peers[0].Address = "10.0.0.1" }), true, ""},
		{"a view in which a peer has no name is refused", changed(func(m *agentv1.NetworkView) { m.Peers[0].Node = "" }), false, "networks.peers[0]"},
		{"a view with a slice outside of its network is refused", changed(func(m *agentv1.NetworkView) { m.Networks[0].Slice = "10.217.0.0/26" }), false, "10.217.0.0/26 is not within 10.216.0.0/20"},
		{"a view with a slice of a node that is no peer is refused", changed(func(m *agentv1.NetworkView) { m.Networks[0].Peers[0].Node = "c" }), false, `node "c" is not among the peers`},
		{"overlapping slices", changed(func(m *agentv1.NetworkView) { m.Networks[0].Peers[0].Cidr = "10.216.0.0/25" }), false, "overlaps"},
		{"overlapping networks", changed(func(m *agentv1.NetworkView) {
			n := proto.CloneOf(m.Networks[0])
			n.Id = 2
			m.Networks = append(m.Networks, n)
		}), false, "overlaps"},
		{"a view with a network whose subnet contains the nodes' addresses is taken", changed(func(m *agentv1.NetworkView) { m.Networks[0].Cidr = "10.0.0.0/8" }), true, ""},
		{"a view with a subnet that has host bits is refused", changed(func(m *agentv1.NetworkView) { m.Networks[0].Cidr = "10.216.0.1/20" }), false, "host bits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			st, err := store.Open(path, true)
			if err != nil {
				t.Fatal(err)
			}
			o := &overlay{}
			k, err := New(st, o, "c1", slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if index, _ := k.Have(); index != 0 || len(o.views) != 0 {
				t.Fatalf("the Keeper of a new agent has a view with index %d, and its overlay got %d views; want no view", index, len(o.views))
			}
			if err := k.Offer(view(1, 5, 20)); err != nil || len(o.views) != 1 {
				t.Fatalf("the first view was answered with %v and given to the overlay %d times, want once", err, len(o.views))
			}
			err = k.Offer(c.offer)
			if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("Offer returned the error %v, want an error that contains %q, or none if that is empty", err, c.fault)
			}
			if (len(o.views) == 2) != c.taken {
				t.Errorf("the overlay got the offered view: %t, want %t", len(o.views) == 2, c.taken)
			}
			index, incarnation := k.Have()
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			// The agent restarts: a new Keeper on the same state file has the same view.
			if st, err = store.Open(path, true); err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			again := &overlay{}
			k, err = New(st, again, "c1", slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err != nil || len(again.views) != 1 || again.views[0].Index != index {
				t.Fatalf("after a restart the overlay got %d views and error %v, want the view with index %d", len(again.views), err, index)
			}
			if i, n := k.Have(); i != index || n != incarnation {
				t.Errorf("after a restart the view has index %d of incarnation %d, want index %d of incarnation %d", i, n, index, incarnation)
			}
			foreign := &overlay{}
			if k, err = New(st, foreign, "c2", slog.New(slog.NewTextHandler(io.Discard, nil))); err != nil || len(foreign.views) != 0 {
				t.Errorf("the state file has a view of cluster c1; on an agent of cluster c2 the overlay got %d views, error %v; want none", len(foreign.views), err)
			}
			if i, _ := k.Have(); i != 0 {
				t.Errorf("the state file has a view of cluster c1; the Keeper of an agent of cluster c2 has the view with index %d, want 0", i)
			}
		})
	}
	var none *Keeper
	if err := none.Offer(view(1, 1, 1)); err != nil {
		t.Errorf("an agent without overlay must ignore views, but returned %v", err)
	}
}
