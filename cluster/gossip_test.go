package cluster

import (
	"testing"
	"time"
)

func (n *Node) healthOf(id string) string {
	for _, p := range n.Status().Peers {
		if p.ID == id {
			return p.Health
		}
	}
	return "absent"
}

// A replica that falls silent is suspected before it is given up, and is alive
// again as soon as it answers; with the shipped timing.
func TestSilentReplicaIsSuspected(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	lost := g.follower(leader)
	eventually(t, "everybody alive", func() bool { return leader.healthOf(lost.id) == "alive" })

	lost.gossip.end.Do(func() { // no goodbye
		if err := lost.gossip.list.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	first := ""
	eventually(t, "the silent replica missed", func() bool {
		first = leader.healthOf(lost.id)
		return first != "alive"
	})
	t.Logf("suspected after %s", time.Since(began).Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that has just fallen silent is %q, want suspect", first)
	}
	eventually(t, "the silent replica given up", func() bool { return leader.healthOf(lost.id) == "dead" })
	t.Logf("given up after %s", time.Since(began).Round(time.Millisecond))
}

// A replica that stops says so: nobody has to find out.
func TestStoppingReplicaSaysGoodbye(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) { c.Timing.FastGossip = false }
	leader := g.form()
	gone := g.follower(leader)
	eventually(t, "everybody alive", func() bool { return leader.healthOf(gone.id) == "alive" })
	g.close(g.index(gone))
	seen := ""
	eventually(t, "the goodbye heard", func() bool {
		if h := leader.healthOf(gone.id); h != "alive" {
			seen = h
		}
		return seen != ""
	})
	if seen != "dead" {
		t.Errorf("a replica that stopped is %q, want dead at once", seen)
	}
}
