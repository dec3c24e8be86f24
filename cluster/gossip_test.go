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
	took := time.Since(began)
	t.Logf("suspected after %s", took.Round(time.Millisecond))
	if first != "suspect" {
		t.Errorf("a replica that has just fallen silent is %q, want suspect", first)
	}
	// Designed: 0.6 s and what a tick takes. A busy machine may double that, no more.
	if took > 2*time.Second {
		t.Errorf("it took %s to suspect it, limit 2s", took)
	}
	eventually(t, "the silent replica given up", func() bool { return leader.healthOf(lost.id) == "dead" })
	took = time.Since(began)
	t.Logf("given up after %s", took.Round(time.Millisecond))
	if took > missedWithin { // designed: about 3 s
		t.Errorf("it took %s to give it up, limit %s", took, missedWithin)
	}
}

// missedWithin is within what a dead replica is to be given up: the TTL of the
// schedulers' records and a second for a busy machine.
const missedWithin = 6 * time.Second

// A replica that starts while another is dead never met it: it asks it last from
// the first moment, gives it up as soon as the others would, and takes it back
// when it comes.
func TestRestartedReplicaMissesTheDead(t *testing.T) {
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
	eventually(t, "the dead replica given up", func() bool {
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
	eventually(t, "the leader alive there", func() bool { return n.healthOf(leader.id) == "alive" })
	g.start(at)
	eventually(t, "it is back", func() bool { return n.healthOf(dead.id) == "alive" })
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
