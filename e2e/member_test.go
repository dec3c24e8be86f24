package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// follower returns the index of a scheduler that is not the leader and not listed in not.
func follower(t *testing.T, c *harness.Cluster, not ...int) int {
	t.Helper()
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	for i := range c.Schedulers {
		if i != leader && (len(not) == 0 || i != not[0]) {
			return i
		}
	}
	t.Fatal("there is no other running scheduler that does not lead")
	return 0
}

func selfID(t *testing.T, c *harness.Cluster, i int) string {
	t.Helper()
	st, err := c.Status(t.Context(), i)
	must(t, err)
	return st.GetSelfId()
}

// caughtUp waits until scheduler i has applied the log up to the index that the leader has now.
func caughtUp(t *testing.T, c *harness.Cluster, i int) {
	t.Helper()
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	want, err := c.Status(t.Context(), leader)
	must(t, err)
	must(t, testbed.Poll(t.Context(), 20*time.Second, c.Schedulers[i].Name+" catching up", func(ctx context.Context) error {
		st, err := c.Status(ctx, i)
		if err != nil {
			return err
		}
		if st.GetAppliedIndex() < want.GetAppliedIndex() {
			return fmt.Errorf("the replica has applied only the log up to entry %d, want %d", st.GetAppliedIndex(), want.GetAppliedIndex())
		}
		return nil
	}))
}

// TestFollowerComesBack: under load, one follower restarts with its disk and keeps its Raft id. Another
// follower restarts with an empty disk. It gets a new Raft id, and its former id is removed from the voters.
func TestFollowerComesBack(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t)})
	tr := load(t, c)
	tr.more(60, 30*time.Second)

	kept := follower(t, c)
	id := selfID(t, c, kept)
	must(t, c.Schedulers[kept].Kill())
	tr.more(60, 30*time.Second)
	must(t, c.Schedulers[kept].Start())
	must(t, c.WaitReady(t.Context(), 20*time.Second))
	if now := selfID(t, c, kept); now != id {
		t.Errorf("scheduler %s restarted with its disk and must keep its id, but has %s, before it had %s", c.Schedulers[kept].Name, now, id)
	}
	caughtUp(t, c, kept)

	lost := follower(t, c, kept)
	old := selfID(t, c, lost)
	must(t, c.Schedulers[lost].Kill())
	must(t, c.Schedulers[lost].Wipe())
	tr.more(60, 30*time.Second)
	must(t, c.Schedulers[lost].Start())
	must(t, replaced(t.Context(), c, lost, old))
	must(t, c.WaitReady(t.Context(), 30*time.Second))
	fresh := selfID(t, c, lost)
	if fresh == old {
		t.Errorf("%s lost its disk and still votes under its old identity %s", c.Schedulers[lost].Name, old)
	}
	caughtUp(t, c, lost)

	// Check that the replica with the new id really votes: kill one of the other two replicas, so that every
	// write needs its vote.
	must(t, c.Schedulers[kept].Kill())
	tr.more(40, 30*time.Second)
	must(t, c.Schedulers[kept].Start())
	must(t, c.WaitReady(t.Context(), 20*time.Second))
	tr.end()

	res, err := c.Ctl(t.Context(), "status")
	must(t, err)
	if strings.Contains(res.Stdout, old) || res.Code != 0 {
		t.Errorf("persysctl status (code %d) still shows %s:\n%s%s", res.Code, old, res.Stdout, res.Stderr)
	}
}

// replaced returns nil if all schedulers list scheduler i as a voter under a new Raft id, and none lists its
// former Raft id old.
func replaced(ctx context.Context, c *harness.Cluster, i int, old string) error {
	return testbed.Poll(ctx, 30*time.Second, c.Schedulers[i].Name+" being replaced", func(ctx context.Context) error {
		for _, s := range c.Schedulers {
			st, err := c.Status(ctx, s.Index)
			if err != nil {
				return err
			}
			voters := 0
			for _, r := range st.GetReplicas() {
				if r.GetId() == old {
					return fmt.Errorf("scheduler %s still lists %s as %s", s.Name, old, r.GetRole())
				}
				if r.GetRole() == "leader" || r.GetRole() == "voter" {
					voters++
				}
			}
			if voters != len(c.Schedulers) {
				return fmt.Errorf("scheduler %s knows %d voters, want 3", s.Name, voters)
			}
		}
		return nil
	})
}

// TestReplicaLeaves: a replica that is removed while clients apply stops by itself, gives the reason, and can
// return with an empty disk. The same is true for a leader, which transfers leadership first. A replica that
// is asked to leave exits with code 0.
func TestReplicaLeaves(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t)})
	tr := load(t, c)
	tr.more(40, 30*time.Second)
	i := follower(t, c)
	s, old := c.Schedulers[i], selfID(t, c, i)
	admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
	_, err := admin.RemoveReplica(t.Context(), &clusterv1.RemoveReplicaRequest{Replica: s.Name})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	code, err := s.Wait(ctx)
	must(t, err)
	if code == 0 || !strings.Contains(s.Tail(20), "removed from the cluster") {
		t.Errorf("the removed replica exited with code %d, and its last lines do not give the reason:\n%s", code, s.Tail(5))
	}
	tr.more(40, 30*time.Second)
	// The disk of the removed replica contains a record of the removal, so a scheduler with this disk
	// refuses to start.
	must(t, s.Start())
	if code, err := s.Wait(ctx); err != nil || code == 0 {
		t.Errorf("started again on its disk, the removed replica ended with code %d, %v; want a refusal", code, err)
	}
	back := func(i int, old string) {
		t.Helper()
		must(t, c.Schedulers[i].Wipe())
		must(t, c.Schedulers[i].Start())
		must(t, replaced(t.Context(), c, i, old))
		must(t, c.WaitReady(t.Context(), 30*time.Second))
	}
	back(i, old)

	// Remove the leader with replica leave and with replica remove. It must transfer leadership first, and no write may
	// be lost.
	for _, verb := range []string{"leave", "remove"} {
		i := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		s, old := c.Schedulers[i], selfID(t, c, i)
		res, err := c.Ctl(t.Context(), "replica", verb, s.Name)
		if err != nil || res.Code != 0 {
			t.Fatalf("persysctl replica %s %s: code %d, %v\n%s%s", verb, s.Name, res.Code, err, res.Stdout, res.Stderr)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		code, err := s.Wait(ctx)
		cancel()
		must(t, err)
		if want := map[string]bool{"leave": true, "remove": false}[verb]; (code == 0) != want {
			t.Errorf("after persysctl replica %s the leader exited with the wrong code %d (want 0 only after leave):\n%s", verb, code, s.Tail(5))
		}
		tr.more(40, 30*time.Second)
		back(i, old)
	}
	tr.end()
}
