package cluster

import (
	"sync/atomic"
	"testing"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// TestFeatureLevelRises: in a cluster that is upgraded replica by replica, the feature level rises only after
// the last replica is upgraded.
func TestFeatureLevelRises(t *testing.T) {
	const last = 2
	var upgraded atomic.Bool
	g := newGroup(t, 3)
	g.cfg = func(i int, c *Config) {
		if i != last || upgraded.Load() {
			c.FeatureLevel = 2
		}
	}
	leader := g.form()
	announced := func(level uint32) bool {
		n := 0
		leader.Store().View().Replicas(func(r *fsm.Replica) bool {
			if r.FeatureLevel >= level {
				n++
			}
			return true
		})
		return n == 3
	}
	testbed.Until(t, "all replicas have a record in the state", func() bool { return announced(1) })
	if level := leader.Store().View().Info().FeatureLevel; level != 1 {
		t.Fatalf("the cluster's feature level is %d while one replica knows only level 1, want 1", level)
	}
	g.close(last)
	upgraded.Store(true)
	g.start(last)
	for _, n := range g.snapshot() {
		testbed.Until(t, "the cluster's feature level is 2", func() bool { return n.Store().View().Info().FeatureLevel == 2 })
	}
}

func TestReplicasWithAMinorityDigestAreFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []digestAnswer
		most    int
	}{
		{"all replicas have the same digest", []digestAnswer{{7, 1}, {7, 1}, {7, 1}}, 0},
		{"no other replica answers", []digestAnswer{{7, 1}}, 0},
		{"one other replica has another digest", []digestAnswer{{7, 1}, {8, 1}, {7, 1}}, 1},
		{"two other replicas have the same other digest", []digestAnswer{{7, 1}, {8, 1}, {8, 1}}, 2},
		{"two other replicas have digests that differ from each other", []digestAnswer{{7, 1}, {8, 1}, {9, 1}}, 1},
		{"two other replicas are at another feature level", []digestAnswer{{7, 1}, {8, 2}, {8, 2}}, 0},
		{"two other replicas have the same other digest, and one of them is at another feature level", []digestAnswer{{7, 1}, {8, 1}, {8, 2}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if other, most := outvoted(c.answers); most != c.most || most > 0 && other == 7 {
				t.Errorf("outvoted counts %[2]d other replicas with digest %[1]d, want %[3]d", other, most, c.most)
			}
		})
	}
}
