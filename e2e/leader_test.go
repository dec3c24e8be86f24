package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

const electionLimit = 15 * time.Second

// Eight clients apply through all replicas while leaders are killed and restarted. It runs the
// released build, because it measures the gap.
func TestLeaderKilled(t *testing.T) {
	c := start(t, harness.Options{Binaries: shipped(t)})
	tr := load(t, c)
	var gaps []time.Duration
	for range 3 {
		tr.more(100, 20*time.Second)
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		at := tr.rec.now()
		must(t, c.Schedulers[leader].Kill())
		tr.more(100, 20*time.Second)
		next := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		if next == leader {
			t.Fatalf("%s leads although it is dead", c.Schedulers[leader].Name)
		}
		gaps = append(gaps, tr.gap(at))
		must(t, c.Schedulers[leader].Start())
		must(t, c.WaitReady(t.Context(), 20*time.Second))
	}
	tr.end()
	slices.Sort(gaps)
	measured(t, "failover gap, leader killed, last acknowledged apply before to first after: median %s of %v", gaps[len(gaps)/2].Round(time.Millisecond), gaps)
	if worst := gaps[len(gaps)-1]; worst > 5*time.Second {
		t.Errorf("the longest failover took %s, want at most 5 s even on a busy machine", worst)
	}
}

// A leader that was frozen for longer than the election timeout must not answer a stale read after
// it continues, nor lose what was written meanwhile.
func TestLeaderPaused(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t)})
	tr := load(t, c)
	for range 2 {
		tr.more(60, 30*time.Second)
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		at := tr.rec.now()
		must(t, c.Schedulers[leader].Pause())
		next := got[int](t)(c.WaitLeader(t.Context(), electionLimit, leader))
		tr.more(25, 30*time.Second) // slowly: every third call reaches the frozen replica
		must(t, c.Schedulers[leader].Continue())
		// It may still think that it leads: send it many reads at once.
		for i := range 40 {
			tr.read(t.Context(), &op{Client: clients + 1, Workload: workloadName(i % workloads), Via: leader}, leader)
		}
		measured(t, "%s frozen, %s leads; gap %s", c.Schedulers[leader].Name, c.Schedulers[next].Name, tr.gap(at).Round(time.Millisecond))
		must(t, c.WaitReady(t.Context(), 20*time.Second))
	}
	tr.end()
}

// Planned transfers of leadership and a stop by SIGTERM while applies run.
func TestLeadershipMoves(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t)})
	tr := load(t, c)
	for range c.Schedulers {
		tr.more(40, 30*time.Second)
		i := (got[int](t)(c.WaitLeader(t.Context(), electionLimit)) + 1) % len(c.Schedulers)
		admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
		at := tr.rec.now()
		resp, err := admin.TransferLeadership(t.Context(), &clusterv1.TransferLeadershipRequest{Replica: c.Schedulers[i].Name})
		must(t, err)
		must(t, testbed.Poll(t.Context(), electionLimit, "leadership at "+c.Schedulers[i].Name, func(ctx context.Context) error {
			if l, err := c.Leader(ctx); err != nil || l != i {
				return fmt.Errorf("leader %d, %v", l, err)
			}
			return nil
		}))
		tr.more(40, 30*time.Second)
		measured(t, "leadership moved to %s in %d ms; gap %s", c.Schedulers[i].Name, resp.GetTookMs(), tr.gap(at).Round(time.Millisecond))
	}
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	resp, err := admin.TransferLeadership(t.Context(), &clusterv1.TransferLeadershipRequest{Replica: c.Schedulers[leader].Name})
	if err != nil || resp.GetLeaderId() != selfID(t, c, leader) {
		t.Errorf("handing leadership to who has it: %v, %v", resp, err)
	}
	at := tr.rec.now()
	if err := c.Schedulers[leader].Terminate(10 * time.Second); err != nil {
		t.Errorf("SIGTERM at the leader: %v", err)
	}
	tr.more(40, 30*time.Second)
	measured(t, "%s stopped by SIGTERM; gap %s", c.Schedulers[leader].Name, tr.gap(at).Round(time.Millisecond))
	must(t, c.Schedulers[leader].Start())
	must(t, c.WaitReady(t.Context(), 20*time.Second))
	tr.end()
}
