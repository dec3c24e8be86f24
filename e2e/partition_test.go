package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/driver/sim"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// inside runs the calling test again in a network namespace of its own, unless the process already has one.
// It reports whether this process has the namespace, and returns the network of the namespace.
func inside(t *testing.T) (*harness.Wire, bool) {
	t.Helper()
	if !testbed.HasOwnNetwork() {
		raced(t) // build the programs once; the other process uses them too
	}
	if !testbed.OwnNetwork(t, harness.BuildsEnv+"="+built.dir) {
		return nil, false
	}
	return got[*harness.Wire](t)(harness.OpenWire(t.Context())), true
}

// wired starts a cluster whose schedulers have group ids of their own, so that the test can cut the network
// between two of them (harness.Wire).
func wired(t *testing.T, w *harness.Wire, opt harness.Options) *harness.Cluster {
	t.Helper()
	opt.Schedulers = 3
	c := got[*harness.Cluster](t)(harness.Prepare(opt))
	watchCluster(t, c)
	for _, s := range c.Schedulers {
		w.Own(s.Process)
	}
	up(t, c)
	return c
}

// port is a function that returns one of the addresses of a scheduler, such as its Raft address.
type port func(*harness.Scheduler) string

func raftPort(s *harness.Scheduler) string   { return s.Raft }
func gossipPort(s *harness.Scheduler) string { return s.Gossip }
func grpcPort(s *harness.Scheduler) string   { return s.GRPC }

// between blocks the traffic between the schedulers a and b, in both directions, but only to the ports that
// the functions in ports return.
func between(t *testing.T, w *harness.Wire, how harness.How, a, b *harness.Scheduler, ports ...port) {
	t.Helper()
	for _, p := range ports {
		must(t, w.Cut(t.Context(), how, a.Process, p(b)))
		must(t, w.Cut(t.Context(), how, b.Process, p(a)))
	}
}

func others(c *harness.Cluster, i int) []*harness.Scheduler {
	var out []*harness.Scheduler
	for _, s := range c.Schedulers {
		if s.Index != i {
			out = append(out, s)
		}
	}
	return out
}

func term(t *testing.T, c *harness.Cluster, i int) uint64 {
	t.Helper()
	st, err := c.Status(t.Context(), i)
	must(t, err)
	return st.GetTerm()
}

// fewElections calls do up to three times, until a call causes at most the given number of elections, and
// fails the test if none does. It tries several times, because a missed heartbeat on a busy machine may cause
// an election.
func fewElections(t *testing.T, c *harness.Cluster, elections uint64, do func(leader int)) {
	t.Helper()
	var rose []uint64
	for range 3 {
		leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		before := term(t, c, leader)
		do(leader)
		leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		by := term(t, c, leader) - before
		if by <= elections {
			return
		}
		rose = append(rose, by)
	}
	t.Errorf("three rounds had %d elections, want at most %d in one of them", rose, elections)
}

// TestPartition: ports between replicas are cut one by one and together, once by dropping packets and once by
// refusing them, while eight clients apply through all replicas. No acknowledged write is lost, no read is
// stale, every replica that reaches a majority answers, and all replicas keep their identity.
func TestPartition(t *testing.T) {
	w, ok := inside(t)
	if !ok {
		return
	}
	c := wired(t, w, harness.Options{Binaries: raced(t)})
	ids := make([]string, len(c.Schedulers))
	for i := range ids {
		ids[i] = selfID(t, c, i)
	}
	tr := load(t, c)
	lead := func() int { t.Helper(); return got[int](t)(c.WaitLeader(t.Context(), electionLimit)) }
	// ask makes one linearizable read through the replica with the index via, and returns its error.
	ask := func(via int) error {
		control := got[controlv1.AgentControlClient](t)(c.Control(via))
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		_, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: workloadName(0), Level: controlv1.ReadLevel_READ_LEVEL_LINEARIZABLE})
		return err
	}

	for _, cut := range []struct {
		name  string
		ports []port
		how   harness.How
	}{
		{"the leader is cut off on all ports", []port{raftPort, gossipPort, grpcPort}, harness.Silence},
		{"connections to the leader's Raft port are refused", []port{raftPort}, harness.Refusal},
		{"the leader is cut off on its Raft port", []port{raftPort}, harness.Silence},
	} {
		t.Run(cut.name, func(t *testing.T) {
			tr.t = t
			tr.more(20, settle)
			old := lead()
			for _, o := range others(c, old) {
				between(t, w, cut.how, c.Schedulers[old], o, cut.ports...)
			}
			at := tr.rec.now()
			// Send many reads to the old leader at once, while it does not know yet that it was replaced.
			for i := range 40 {
				tr.read(t.Context(), &op{Client: clients + 1, Workload: workloadName(i % workloads), Via: old}, old)
			}
			next := got[int](t)(c.WaitLeader(t.Context(), electionLimit, old))
			tr.more(12, settle) // writes are slow, because every third call goes to the isolated replica
			if err := ask(next); err != nil {
				t.Errorf("the new leader does not answer a linearizable read: %v", err)
			}
			if err := ask(old); err == nil && len(cut.ports) == 3 {
				t.Errorf("scheduler %s is cut off from all other replicas, but answers a linearizable read", c.Schedulers[old].Name)
			} else if err != nil && (status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded) {
				t.Errorf("a replica that is cut off answers a read with %v, want Unavailable or a timeout", err)
			} else {
				t.Logf("the former leader %s, which is cut off, answered a read with %v, as it must", c.Schedulers[old].Name, err)
			}
			measured(t, "leadership went from %s to %s; no write was acknowledged for %s", c.Schedulers[old].Name, c.Schedulers[next].Name, tr.gap(at).Round(time.Millisecond))
			must(t, w.Heal(t.Context()))
			must(t, c.WaitReady(t.Context(), settle))
			caughtUp(t, c, old)
		})
	}

	for _, cut := range []struct {
		name  string
		ports []port
		how   harness.How
	}{
		{"one follower is cut off only from the leader", []port{raftPort}, harness.Silence},
		{"only the leader refuses one follower", []port{raftPort}, harness.Refusal},
	} {
		t.Run(cut.name, func(t *testing.T) {
			tr.t = t
			// The follower that is cut off from the leader may win one election with the vote of the third
			// replica. After that there must be no more elections.
			fewElections(t, c, 2, func(leader int) {
				tr.more(20, settle)
				between(t, w, cut.how, c.Schedulers[leader], others(c, leader)[0], cut.ports...)
				pause(t.Context(), 2*time.Second) // wait for several election timeouts
				tr.more(20, settle)
			})
			must(t, w.Heal(t.Context()))
			must(t, c.WaitReady(t.Context(), settle))
			for i := range c.Schedulers {
				caughtUp(t, c, i)
			}
		})
	}

	t.Run("no gRPC between replicas", func(t *testing.T) {
		tr.t = t
		tr.more(20, settle)
		for i, s := range c.Schedulers {
			for _, o := range others(c, i) {
				must(t, w.Cut(t.Context(), harness.Refusal, s.Process, o.GRPC))
			}
		}
		fewElections(t, c, 0, func(leader int) {
			tr.more(8, settle) // write through the leader, because calls through the other replicas hang
			if err := ask(leader); err != nil {
				t.Errorf("the leader %s must answer a linearizable read, but returns %v", c.Schedulers[leader].Name, err)
			}
			for _, s := range others(c, leader) {
				if err := ask(s.Index); status.Code(err) != codes.Unavailable || !strings.Contains(status.Convert(err).Message(), c.Schedulers[leader].GRPC) {
					t.Errorf("scheduler %s cannot reach the leader and answers with %v, want Unavailable with the leader's address", s.Name, err)
				}
			}
		})
		must(t, w.Heal(t.Context()))
		for i := range c.Schedulers {
			must(t, testbed.Poll(t.Context(), settle, c.Schedulers[i].Name+" forwarding again", func(context.Context) error { return ask(i) }))
		}
	})

	t.Run("no gossip", func(t *testing.T) {
		tr.t = t
		for i, s := range c.Schedulers {
			for _, o := range others(c, i) {
				must(t, w.Cut(t.Context(), harness.Silence, s.Process, o.Gossip))
			}
		}
		fewElections(t, c, 0, func(int) {
			pause(t.Context(), 4*time.Second) // wait until every replica considers all others to be dead
			tr.more(20, settle)
			for i := range c.Schedulers {
				if err := ask(i); err != nil {
					t.Errorf("scheduler %s, whose gossip is cut, must answer a read, but returns %v", c.Schedulers[i].Name, err)
				}
			}
		})
		must(t, w.Heal(t.Context()))
		must(t, c.WaitReady(t.Context(), settle))
	})

	tr.t = t
	tr.end()
	for i, id := range ids {
		if now := selfID(t, c, i); now != id {
			t.Errorf("scheduler %s has id %s and had %s: a replica that kept its disk was replaced", c.Schedulers[i].Name, now, id)
		}
	}
}

// TestAgentCutOff: an agent that is cut off from all schedulers keeps its workloads running. After its
// lease, ordinary workloads start on the other node, but the exclusive one does not. When the agent is
// reachable again, it stops its instances of the workloads that have moved.
func TestAgentCutOff(t *testing.T) {
	w, ok := inside(t)
	if !ok {
		return
	}
	c := wired(t, w, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	for range 2 {
		a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Simulate: true}))
		w.Own(a.Process)
		must(t, a.Start())
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	}
	single := container("persys/any:1")
	single.Exclusive = true
	apply(t, c, "single", single)
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, running))
	holder, other := agentOf(t, c, view.GetAssignedNodeId())
	moving := container("persys/any:1")
	for i := range 6 {
		apply(t, c, fmt.Sprintf("many-%d", i), moving)
	}
	var moved []string
	for i := range 6 {
		id := fmt.Sprintf("many-%d", i)
		if v := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running)); v.GetAssignedNodeId() == holder.NodeID {
			moved = append(moved, id)
		}
	}
	if len(moved) == 0 {
		t.Fatalf("none of the six workloads was placed on %s, the node to be cut off, so this test checks nothing", holder.NodeID)
	}

	at := sim.Boottime()
	for _, s := range c.Schedulers {
		must(t, w.Cut(t.Context(), harness.Silence, holder.Process, s.GRPC))
		must(t, w.Cut(t.Context(), harness.Silence, s.Process, holder.Addr))
	}
	for _, id := range moved {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(other.NodeID)))
		runs := runsOf(t, c, id)
		if len(runs) != 2 || runs[0].NodeID != holder.NodeID || runs[0].To != 0 {
			t.Fatalf("workload %s must have a run that has not ended on the node that is cut off, and a new one; got %+v", id, runs)
		}
		if early := runs[1].From - at; early < lease-interval-200*time.Millisecond {
			t.Errorf("workload %s was started on the other node %s after the cut, before the lease of %s could end", id, early, lease)
		}
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, func(v *controlv1.WorkloadView) bool {
		return v.GetReason().GetCode() == fsm.CodeAwaitFailover && v.GetAssignedNodeId() == holder.NodeID
	}))

	must(t, w.Heal(t.Context()))
	must(t, c.WaitNode(t.Context(), holder.NodeID, "Ready", settle))
	for _, id := range moved {
		must(t, testbed.Poll(t.Context(), settle, "one run of "+id, func(context.Context) error {
			var open []string
			for _, r := range runsOf(t, c, id) {
				if r.To == 0 {
					open = append(open, r.NodeID)
				}
			}
			if len(open) != 1 || open[0] != other.NodeID {
				return fmt.Errorf("the workload has open runs on the nodes %v, want only the node to which it moved", open)
			}
			return nil
		}))
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, runningOn(holder.NodeID)))
	if runs := runsOf(t, c, "single"); len(runs) != 1 || runs[0].To != 0 {
		t.Errorf("the exclusive workload must keep its only run, but has the runs %+v", runs)
	}
}
