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

// A replica that falls silent is first suspected and then declared dead. As soon as it answers, it is alive
// again. The test uses the default timing.
func TestSilentReplicaIsSuspected(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	lost := g.follower(leader)
	testbed.Until(t, "the leader sees the other replica alive", func() bool { return leader.healthOf(lost.id) == "alive" })

	if err := lost.gossip.close(false); err != nil {
		t.Error(err)
	}
	began := time.Now()
	first := ""
	testbed.Until(t, "gossip declares the silent replica dead", func() bool {
		first = leader.healthOf(lost.id)
		return first != "alive"
	})
	took := time.Since(began)
	t.Logf("the silent replica was suspected after %s", took.Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that has just fallen silent has the health %q, want suspect", first)
	}
	// By design a dead replica is suspected after 0.6 s and one tick. A busy machine may take more than twice as long.
	if took > 10*time.Second {
		t.Errorf("the silent replica was suspected after %s, want at most 10 s", took)
	}
	testbed.Until(t, "the leader declares the silent replica dead", func() bool { return leader.healthOf(lost.id) == "dead" })
	took = time.Since(began)
	t.Logf("the silent replica was declared dead after %s", took.Round(time.Millisecond))
	if took > missedWithin { // by design this takes about 3 s
		t.Errorf("the silent replica was declared dead after %s, want at most %s", took, missedWithin)
	}
}

// missedWithin is the time in which gossip must declare a stopped replica dead: the 5 s TTL of the schedulers' DNS
// records, plus a second for a busy machine.
const missedWithin = 6 * time.Second

// A replica that starts while another replica is dead has never met the dead replica in gossip. It must list the dead
// replica last from the start, declare it dead within the usual time, and show it as alive after its restart.
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
	testbed.Until(t, "the restarted replica declares the dead replica dead", func() bool {
		h := n.healthOf(dead.id)
		if first == "" && h != "absent" {
			first = h
		}
		return h == "dead"
	})
	took := time.Since(began)
	t.Logf("the replica that gossip never met was declared dead after %s", took.Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that gossip has not met yet has the health %q, want suspect", first)
	}
	if took > missedWithin {
		t.Errorf("the replica that gossip never met was declared dead after %s, want at most %s", took, missedWithin)
	}
	testbed.Until(t, "the restarted replica sees the leader alive", func() bool { return n.healthOf(leader.id) == "alive" })
	g.start(at)
	testbed.Until(t, "the dead replica is alive again after its restart", func() bool { return n.healthOf(dead.id) == "alive" })
}

// A replica that stops sends a leave message. The other replicas must notice its end at once, without failure
// detection.
func TestStoppingReplicaLeavesGossip(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	gone := g.follower(leader)
	testbed.Until(t, "the leader sees the other replica alive", func() bool { return leader.healthOf(gone.id) == "alive" })
	g.close(g.index(gone))
	seen := ""
	testbed.Until(t, "the leave message has arrived at the leader", func() bool {
		if h := leader.healthOf(gone.id); h != "alive" {
			seen = h
		}
		return seen != ""
	})
	if seen != "dead" {
		t.Errorf("a replica that stopped has the health %q at the leader, want dead at once", seen)
	}
}

// ping sends an encrypted gossip packet to another replica and waits for the answer.
func (n *Node) ping(to *Node) error {
	addr, err := net.ResolveUDPAddr("udp", to.GossipAddr())
	if err != nil {
		return err
	}
	_, err = n.gossip.list.Ping(to.id, addr)
	return err
}

// Three running replicas change their gossip key step by step, under the direction of the leader: all add the
// new key, then use it, then drop the former key. No replica is suspected during the change. A replica that
// has only the former key cannot take part afterwards.
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
	testbed.Until(t, "all replicas see each other alive", allAlive)
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
		for _, n := range nodes { // change the keys of one replica after the other, with a ping in between
			if err := n.SetGossipKeys(step.seals, step.all); err != nil {
				t.Fatal(err)
			}
			for _, from := range nodes {
				for _, to := range nodes {
					testbed.Within(t, patience, "an answer from "+from.id+" to "+to.id, func() error { return from.ping(to) })
				}
			}
		}
	}
	close(stop)
	if <-missed {
		t.Error("no replica may be declared dead while the keys change, but one was")
	}
	testbed.Until(t, "all replicas are alive with the new key", allAlive)
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
		t.Errorf("a replica that has only the former gossip key must reach no other member, but reached %d", k)
	}
	// Replace the three keys by a list that lacks the middle key and still has the last one.
	third := bytes.Repeat([]byte{3}, 32)
	for _, all := range [][][]byte{{fresh, old, third}, {fresh, third}} {
		if err := leader.SetGossipKeys(fresh, all); err != nil {
			t.Fatal(err)
		}
	}
	if got := leader.gossip.keys.GetKeys(); len(got) != 2 || !bytes.Equal(got[0], fresh) || !bytes.Equal(got[1], third) {
		t.Errorf("the key ring of gossip has %d keys, want the two keys that were set last", len(got))
	}
}

// TestAWildcardListenerPublishesItsFirstIP: a listener on a wildcard address publishes the first IP address
// of its network, also on a network without IPv4.
func TestAWildcardListenerPublishesItsFirstIP(t *testing.T) {
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
			t.Errorf("the first IP address of %v is %s, want %s", have, got, want)
		}
	}
}

// TestJoinByName: a DNS name in Join stands for the replicas at all of its addresses. The replica at the
// first address may be down.
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
	testbed.Until(t, "the replica joins the cluster", func() bool { return n.clusterID() == there.clusterID() })
	if _, err := n.gossip.join([]string{"nobody.test:1"}); err == nil || !contains(err.Error(), "nobody.test") {
		t.Errorf("the error of join about a DNS name without an address must contain the name, but is: %v", err)
	}
}
