package cluster

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

func (n *Node) healthOf(id string) string {
	for _, p := range n.Status().Peers {
		if p.ID == id {
			return p.Health
		}
	}
	return "absent"
}

// A silent replica is first suspected, then declared dead, and is alive again as soon as it answers; with
// the default timing.
func TestSilentReplicaIsSuspected(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	lost := g.follower(leader)
	testbed.Until(t, "everybody alive", func() bool { return leader.healthOf(lost.id) == "alive" })

	lost.gossip.end.Do(func() { // without a leave message
		if err := lost.gossip.list.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	first := ""
	testbed.Until(t, "the silent replica missed", func() bool {
		first = leader.healthOf(lost.id)
		return first != "alive"
	})
	took := time.Since(began)
	t.Logf("suspected after %s", took.Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that has just fallen silent is %q, want suspect", first)
	}
	// Designed for 0.6 s and a tick. A busy machine may take more than double.
	if took > 2*time.Second {
		t.Errorf("it took %s to suspect it, limit 2s", took)
	}
	testbed.Until(t, "the silent replica given up", func() bool { return leader.healthOf(lost.id) == "dead" })
	took = time.Since(began)
	t.Logf("given up after %s", took.Round(time.Millisecond))
	if took > missedWithin { // designed for about 3 s
		t.Errorf("it took %s to give it up, limit %s", took, missedWithin)
	}
}

// missedWithin is the time in which a dead replica must be declared dead: the TTL of the schedulers'
// records, and a second for a busy machine.
const missedWithin = 6 * time.Second

// A replica that starts while another is dead has never met it. It lists the dead one last from the start,
// declares it dead as soon as the others would, and alive when it restarts.
func TestRestartedReplicaDetectsTheDead(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	dead, again := g.follower(leader), -1
	at := g.index(dead)
	for i, n := range g.snapshot() {
		if n != leader && n != dead {
			again = i
		}
	}
	g.close(at)
	g.close(again)
	began := time.Now()
	n := g.start(again)
	first := ""
	testbed.Until(t, "the dead replica given up", func() bool {
		h := n.healthOf(dead.id)
		if first == "" && h != "absent" {
			first = h
		}
		return h == "dead"
	})
	took := time.Since(began)
	t.Logf("given up after %s", took.Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that was not met yet is %q, want suspect", first)
	}
	if took > missedWithin {
		t.Errorf("it took %s to give it up, limit %s", took, missedWithin)
	}
	testbed.Until(t, "the leader alive there", func() bool { return n.healthOf(leader.id) == "alive" })
	g.start(at)
	testbed.Until(t, "it is back", func() bool { return n.healthOf(dead.id) == "alive" })
}

// A replica that stops sends a leave message.
func TestStoppingReplicaLeavesGossip(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	gone := g.follower(leader)
	testbed.Until(t, "everybody alive", func() bool { return leader.healthOf(gone.id) == "alive" })
	g.close(g.index(gone))
	seen := ""
	testbed.Until(t, "the leave message", func() bool {
		if h := leader.healthOf(gone.id); h != "alive" {
			seen = h
		}
		return seen != ""
	})
	if seen != "dead" {
		t.Errorf("a replica that stopped is %q, want dead at once", seen)
	}
}

// ping probes another replica with an encrypted packet.
func (n *Node) ping(to *Node) error {
	addr, err := net.ResolveUDPAddr("udp", to.GossipAddr())
	if err != nil {
		return err
	}
	_, err = n.gossip.list.Ping(to.id, addr)
	return err
}

// The gossip keys of three running replicas change in the order in which the leader changes them. No
// replica is suspected meanwhile, and a replica with only the former key cannot take part afterwards.
func TestGossipKeysChange(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	old, fresh := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	g.cfg = func(_ int, c *Config) { c.GossipKey = old }
	leader := g.form()
	nodes := g.snapshot()
	allAlive := func() bool {
		for _, n := range nodes {
			for _, o := range nodes {
				if n.healthOf(o.id) != "alive" {
					return false
				}
			}
		}
		return true
	}
	testbed.Until(t, "everybody alive", allAlive)
	stop, missed := make(chan struct{}), make(chan bool, 1)
	go func() {
		for {
			select {
			case <-stop:
				missed <- false
				return
			case <-time.After(5 * time.Millisecond):
			}
			for _, n := range nodes {
				for _, o := range nodes {
					if n.healthOf(o.id) == "dead" {
						missed <- true
						return
					}
				}
			}
		}
	}()
	for _, step := range []struct {
		seals []byte
		all   [][]byte
	}{{old, [][]byte{old, fresh}}, {fresh, [][]byte{old, fresh}}, {fresh, [][]byte{fresh}}} {
		for _, n := range nodes { // one replica after another, with a ping between each two
			if err := n.SetGossipKeys(step.seals, step.all); err != nil {
				t.Fatal(err)
			}
			for _, from := range nodes {
				for _, to := range nodes {
					testbed.Within(t, patience, "a word from "+from.id+" to "+to.id, func() error { return from.ping(to) })
				}
			}
		}
	}
	close(stop)
	if <-missed {
		t.Error("a replica was given up while the keys changed")
	}
	testbed.Until(t, "everybody alive with the new key", allAlive)
	stranger := func(key []byte) int {
		n, err := open(timeout(t, patience), Config{
			Name: "late", DataDir: t.TempDir(), RaftBind: "127.0.0.1:0", GossipBind: "127.0.0.1:0",
			Join: []string{leader.GossipAddr()}, GossipKey: key, Timing: fastTiming(),
		}, hooks{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		k, _ := n.gossip.join([]string{leader.GossipAddr()})
		return k
	}
	if k := stranger(old); k != 0 {
		t.Errorf("with the former key gossip reaches %d", k)
	}
	// The new ring lacks a middle key and keeps the last one.
	third := bytes.Repeat([]byte{3}, 32)
	for _, all := range [][][]byte{{fresh, old, third}, {fresh, third}} {
		if err := leader.SetGossipKeys(fresh, all); err != nil {
			t.Fatal(err)
		}
	}
	if got := leader.gossip.keys.GetKeys(); len(got) != 2 || !bytes.Equal(got[0], fresh) || !bytes.Equal(got[1], third) {
		t.Errorf("the ring holds %d keys", len(got))
	}
}

// TestFirstIP: the published address of a wildcard listener, also on a network without IPv4.
func TestFirstIP(t *testing.T) {
	for want, have := range map[string][]string{
		"127.0.0.1":   {"127.0.0.1/8", "::1/128", "fe80::1/64", "169.254.0.1/16"},
		"10.0.0.1":    {"::1/128", "2001:db8::1/64", "10.0.0.1/24", "10.0.0.2/24"},
		"2001:db8::1": {"127.0.0.1/8", "fe80::1/64", "2001:db8::1/64", "fd00::1/64"},
	} {
		var addrs []net.Addr
		for _, s := range have {
			ip, n, err := net.ParseCIDR(s)
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		if got := firstIP(addrs); got != want {
			t.Errorf("of %v it is %s, want %s", have, got, want)
		}
	}
}

// TestJoinByName: a DNS name in Join stands for the replicas at all of its addresses. The first of them
// may be down.
func TestJoinByName(t *testing.T) {
	t.Parallel()
	names := hooks{lookup: func(_ context.Context, host string) ([]net.IPAddr, error) {
		if host != "schedulers.test" {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		return []net.IPAddr{{IP: net.IPv6loopback}, {IP: net.IPv4(127, 0, 0, 9)}, {IP: net.IPv4(127, 0, 0, 1)}}, nil
	}}
	there := newGroup(t, 1).form()
	_, port, err := net.SplitHostPort(there.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := open(timeout(t, patience), Config{
		Name: "late", DataDir: t.TempDir(), RaftBind: "127.0.0.1:0", GossipBind: "127.0.0.1:0",
		Join: []string{net.JoinHostPort("schedulers.test", port)}, Timing: fastTiming(),
	}, names)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	testbed.Until(t, "it is let in", func() bool { return n.clusterID() == there.clusterID() })
	if _, err := n.gossip.join([]string{"nobody.test:1"}); err == nil || !contains(err.Error(), "nobody.test") {
		t.Errorf("of a name without an address: %v", err)
	}
}
