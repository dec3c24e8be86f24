package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/session/heartbeat"
)

func ids(h *controlv1.HeartbeatRequest) string {
	var out []string
	for _, s := range h.WorkloadStatuses {
		text := s.WorkloadId + " " + s.State
		if s.Absent {
			text = s.WorkloadId + " absent"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func TestSessionRegistersAndReportsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s), func(c *Config) { c.Labels = map[string]string{"region": "north"}; c.Version = "1.2" }).start()
		time.Sleep(time.Second)
		beats, registers := s.said()
		if registers != 1 || len(beats) != 1 || !beats[0].Full || beats[0].Sequence != 1 {
			t.Fatalf("in its first second the agent sent %d registrations and the heartbeats %v; want one registration and then one full heartbeat", registers, beats)
		}
		reg := s.registers[0]
		c := reg.Capabilities
		if reg.NodeId != "node-a" || reg.GrpcEndpoint != "127.0.0.1:50051" || reg.AgentVersion != "1.2" || reg.InstanceId == "" ||
			reg.Labels["region"] != "north" || reg.Labels["os"] == "" || reg.Labels["arch"] == "" ||
			c.Protocol != 1 || c.EngineId != "engine-1" || c.CpuTotalMillicores != 4000 || c.MemoryTotalMb != 8192 ||
			len(c.SupportedWorkloadTypes) != 1 || c.SupportedWorkloadTypes[0] != "container" || c.StoragePools[0].TotalGb != 100 {
			t.Errorf("the agent registered with wrong data: %v", reg)
		}

		begin := time.Now()
		r.apply("web", "sim/run", content("c1:a"), by(1), at(2), func(q *agentv1.ApplyWorkloadRequest) {
			q.Spec.GetContainer().Resources = &agentv1.ResourceLimits{CpuMillicores: 250, MemoryBytes: 64 << 20}
		})
		time.Sleep(400 * time.Millisecond)
		beats, _ = s.said()
		last := beats[len(beats)-1]
		if last.Full || ids(last) != "web Running" {
			t.Errorf("the heartbeat after a change of web has full=%t and reports %s; want a partial heartbeat with only web, Running", last.Full, ids(last))
		}
		w := last.WorkloadStatuses[0]
		if w.Generation.GetSequence() != 2 || w.Content != "c1:a" || w.RevisionId != "rev-1" || w.DesiredState != "Running" || len(w.Addresses) == 0 {
			t.Errorf("the heartbeat reports the workload as %v", w)
		}
		if u := last.Usage; u.CpuAllocatedMillicores != 250 || u.MemoryAllocatedMb != 64 || u.CpuUsedMillicores != 500 || u.DiskUsedGb != 10 || u.NetRxBytes != 11 || u.NetTxBytes != 12 {
			t.Errorf("the heartbeat reports the usage %v", u)
		}
		if n := len(beats); n > 4 {
			t.Errorf("the agent sent %d heartbeats for changes of one workload within %s, want the changes together in one heartbeat", n, time.Since(begin))
		}
		time.Sleep(4 * time.Second)
		before, _ := s.said()
		quiet := before[len(before)-1]
		if quiet.Full || len(quiet.WorkloadStatuses) != 0 {
			t.Errorf("the heartbeat after no changes has full=%t and reports %s, want a partial heartbeat without workloads", quiet.Full, ids(quiet))
		}

		r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(3) })
		time.Sleep(time.Second)
		beats, _ = s.said()
		absent := ""
		for _, b := range beats[len(before):] {
			absent += ids(b) + "; "
			for _, w := range b.WorkloadStatuses {
				if w.Absent && w.Generation.GetSequence() != 3 {
					t.Errorf("the deleted workload is reported as absent with generation %v, want 1.3", w.Generation)
				}
			}
		}
		if !strings.Contains(absent, "web absent") {
			t.Errorf("the heartbeat after a delete reports %s, want web as absent", absent)
		}
		time.Sleep(3 * time.Second)
		beats, _ = s.said()
		if last := beats[len(beats)-1]; len(last.WorkloadStatuses) != 0 {
			t.Errorf("the leader has acknowledged the report that the workload is absent, but the next heartbeat repeats the report: %s", ids(last))
		}
		r.halt()
	})
}

func TestSessionUsesTheIntervalOfTheSchedulers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		time.Sleep(10 * time.Minute)
		full := 0
		s.mu.Lock()
		for i := 1; i < len(s.beatAt); i++ {
			if d := s.beatAt[i].Sub(s.beatAt[i-1]); d > 3*time.Second || d < 2700*time.Millisecond {
				t.Errorf("heartbeat %d came after %s, want 2.7 to 3 s", i, d)
			}
			if s.beats[i].Full {
				full++
			}
		}
		n := len(s.beats)
		s.mu.Unlock()
		if want := n / (heartbeat.FullEvery + 1); full < want-1 || full > want+1 {
			t.Errorf("%d of %d heartbeats are full, want about %d", full, n, want)
		}
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			out := beatOK(1)
			out.HeartbeatIntervalSeconds, out.LeaseSeconds = 30, 100
			return out, nil
		})
		time.Sleep(10 * time.Second)
		before, _ := s.said()
		time.Sleep(5 * time.Minute)
		after, _ := s.said()
		if n := len(after) - len(before); n < 9 || n > 12 {
			t.Errorf("the agent sent %d heartbeats in 5 min after the interval became 30 s, want 9 to 12", n)
		}
		r.halt()
	})
}

func TestSessionRegistersAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer error
		within time.Duration
	}{
		{"the node registers again at once if the leader does not know the node", status.Error(codes.NotFound, "unknown node"), 3200 * time.Millisecond},
		{"the node registers again when its lease has lapsed", status.Error(codes.Unavailable, "no leader"), 13 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leader()
				r := newRig(t, under(s)).start()
				r.apply("web", "sim/run", by(1), at(1))
				time.Sleep(4 * time.Second)
				s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return nil, c.answer })
				time.Sleep(c.within)
				_, n := s.said()
				if n < 2 {
					t.Errorf("the node did not register again within %s", c.within)
				}
				if r.observed("web").State != "Running" || r.hooks.count("halt web") != 0 {
					t.Error("the end of the lease stopped an ordinary workload")
				}
				s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(1), nil })
				time.Sleep(5 * time.Second)
				beats, _ := s.said()
				seenFull := false
				for _, b := range beats[len(beats)-3:] {
					seenFull = seenFull || b.Full && ids(b) == "web Running"
				}
				if !seenFull || !r.a.Session().Registered {
					t.Errorf("no full heartbeat followed the second registration: %v", beats[len(beats)-1])
				}
				r.halt()
			})
		})
	}
}

func TestSessionLeaseIsNotExtendedByAnUnconfirmedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		time.Sleep(time.Second)
		until := r.a.Session().LeaseUntil
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			out := beatOK(1)
			out.LeaseSeconds = 0
			return out, nil
		})
		time.Sleep(5 * time.Second)
		if now := r.a.Session().LeaseUntil; !now.Equal(until) {
			t.Errorf("a leader that could not confirm itself extended the lease from %v to %v", until, now)
		}
		time.Sleep(6 * time.Second)
		if _, n := s.said(); n < 2 {
			t.Error("the node did not register again after the lease ended")
		}
		r.halt()
	})
}

func TestSessionBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		ok := s.onRegister
		s.onRegister = func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
			return &controlv1.RegisterNodeResponse{Reason: "frozen"}, nil
		}
		r := newRig(t, under(s)).start()
		time.Sleep(time.Minute)
		_, n := s.said()
		if n < 30 || n > 80 {
			t.Errorf("while registrations were refused the agent tried %d times in a minute, want a few quick attempts and then one attempt every 1 to 2 s", n)
		}
		if p := r.a.Session().Problem; !strings.Contains(p, "frozen") {
			t.Errorf("the session reports the problem %q", p)
		}
		s.mu.Lock()
		s.onRegister = ok
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		if st := r.a.Session(); !st.Registered || st.Problem != "" {
			t.Errorf("the state of the session is %+v", st)
		}
		r.halt()
	})
}

func TestSessionSendsFullHeartbeats(t *testing.T) {
	for _, c := range []struct {
		name string
		next func() *controlv1.HeartbeatResponse
	}{
		{"the next heartbeat is full if the leader asks for a full heartbeat", func() *controlv1.HeartbeatResponse { out := beatOK(1); out.SendFull = true; return out }},
		{"the next heartbeat is full if a new leader answers", func() *controlv1.HeartbeatResponse { return beatOK(2) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leader()
				r := newRig(t, under(s)).start()
				r.apply("web", "sim/run", by(1), at(1))
				time.Sleep(10 * time.Second)
				before, _ := s.said()
				s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return c.next(), nil })
				time.Sleep(7 * time.Second)
				after, _ := s.said()
				if next := after[len(before)+1]; !next.Full || ids(next) != "web Running" {
					t.Errorf("the next heartbeat has full=%t and reports %s; want a full heartbeat with web, Running", next.Full, ids(next))
				}
				r.halt()
			})
		})
	}
}

// TestSessionReportsVolumes: a heartbeat contains the list of the node's volumes if the list has changed, or
// if it is a full heartbeat.
func TestSessionReportsVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		time.Sleep(10 * time.Second)
		before, _ := s.said()
		r.apply("web", "sim/run", by(1), at(1), managed(&agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data", RetainPolicy: "Retain"}))
		time.Sleep(30 * time.Second)
		after, _ := s.said()
		reports := 0
		for _, b := range after[len(before):] {
			v := b.GetVolumes()
			if v != nil && !b.GetFull() {
				reports++
			}
			for _, h := range v.GetVolumes() {
				if h.GetName() != "data" || h.GetNamespace() != "default" || h.GetDriver() != "local" || !h.GetRetain() || h.GetOwner() != "web" || !v.GetComplete() {
					t.Errorf("the heartbeat reports the volumes %v", v)
				}
			}
		}
		if reports != 1 {
			t.Errorf("%d heartbeats that are not full report volumes, want 1: the one after the volume was made", reports)
		}
		r.halt()
	})
}

func TestSessionRefusesOtherClustersAndOldEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(9), nil })
		time.Sleep(7 * time.Second)
		if e := r.a.Epoch(); e.Term != 9 || e.ClusterID != "c1" {
			t.Errorf("the agent's epoch is %v, want term 9", e)
		}
		if out := r.apply("web", "sim/run", by(8), at(1)); !out.Fenced {
			t.Errorf("an order of the previous leader was accepted: %v", out)
		}
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			out := beatOK(99)
			out.Epoch = controlEpoch("c2", 99)
			out.DrainNode = true
			return out, nil
		})
		time.Sleep(7 * time.Second)
		st := r.a.Session()
		if r.a.Epoch().Term != 9 || st.Draining || !strings.Contains(st.Problem, `"c2"`) {
			t.Errorf("the answer of a scheduler of another cluster had an effect: the agent has epoch %v, its session is %+v", r.a.Epoch(), st)
		}
		r.halt()
	})
}

// The agent ignores the answers of a scheduler of another cluster or shard. The problem that the session
// reports names that cluster or shard.
func TestSessionRefusesAnswersOfOtherClustersAndShards(t *testing.T) {
	epoch := func(cluster, shard string) *controlv1.Epoch {
		e := controlEpoch(cluster, 99)
		e.Shard = shard
		return e
	}
	for _, tc := range []struct {
		name     string
		from     *controlv1.Epoch
		problems []string
	}{
		{"an answer of a scheduler of another cluster is ignored", epoch("c2", "east"), []string{`belongs to cluster "c1"`, `answered belongs to cluster "c2"`}},
		{"an answer of a scheduler of another shard is ignored", epoch("c1", "west"), []string{`belongs to shard "east"`, `answered belongs to shard "west" of cluster "c1"`}},
	} {
		for _, call := range []string{"register", "heartbeat"} {
			t.Run(call+": "+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := leader()
					own, foreign := s.onRegister, false
					s.onRegister = func(in *controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
						out, err := own(in)
						out.Epoch.Shard = "east"
						if foreign {
							out.Epoch, out.ClusterId = tc.from, tc.from.GetClusterId()
						}
						return out, err
					}
					r := newRig(t, under(s)).start()
					time.Sleep(7 * time.Second)
					before := r.a.Session()
					s.answer(func(in *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
						if in.GetClusterId() != "c1" {
							t.Errorf("the heartbeat names cluster %q, want c1", in.GetClusterId())
						}
						if call == "register" {
							s.mu.Lock()
							foreign = true
							s.mu.Unlock()
							return nil, status.Error(codes.NotFound, "no such node")
						}
						out := beatOK(99)
						out.Epoch, out.DrainNode = tc.from, true
						return out, nil
					})
					time.Sleep(7 * time.Second)
					st := r.a.Session()
					for _, want := range append(tc.problems, call+": this node") {
						if !strings.Contains(st.Problem, want) {
							t.Errorf("the problem of the session is %q, want %q in it", st.Problem, want)
						}
					}
					if e := r.a.Epoch(); e.ClusterID != "c1" || e.Shard != "east" || e.Term != 1 || st.Draining || st.LeaseUntil.After(before.LeaseUntil.Add(4*time.Second)) {
						t.Errorf("the refused answer had an effect: the epoch is %v, the session %+v; before, the session was %+v", e, st, before)
					}
					r.halt()
				})
			})
		}
	}
}

func TestDrainRefusesOnlyNewWorkloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		r.apply("web", "sim/run", content("c1:a"), by(1), at(1))
		time.Sleep(time.Second)
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			out := beatOK(1)
			out.DrainNode = true
			return out, nil
		})
		time.Sleep(4 * time.Second)
		out := r.apply("api", "sim/run", by(1), at(2))
		if out.Applied || out.Fenced || !strings.Contains(out.Message, "draining") {
			t.Errorf("an order for a new workload on a draining node must be refused in its answer, got %v", out)
		}
		if out := r.apply("web", "sim/run:2", content("c1:b"), by(1), at(3)); !out.Applied {
			t.Errorf("an order for a known workload on a draining node was refused: %v", out)
		}
		time.Sleep(time.Second)
		if r.observed("web").State != "Running" {
			t.Error("a drain changed a running workload")
		}
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(1), nil })
		time.Sleep(4 * time.Second)
		if out := r.apply("api", "sim/run", by(1), at(2)); !out.Applied {
			t.Errorf("after the end of the drain an order for a new workload was answered %v, want that it is applied", out)
		}
		r.halt()
	})
}

// Legacy v1 schedulers send neither cluster id nor epoch, and send the end of the lease as a time of day. The
// agent works with such schedulers, and continues to work when schedulers of this version replace them.
func TestSessionWithLegacySchedulers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		lease := func() *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(180 * time.Second)) }
		s.onRegister = func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
			return &controlv1.RegisterNodeResponse{Accepted: true, HeartbeatIntervalSeconds: 60, LeaseExpiresAt: lease()}, nil
		}
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
			return &controlv1.HeartbeatResponse{Acknowledged: true, LeaseExpiresAt: lease()}, nil
		})
		r := newRig(t, under(s))
		err := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: "node-a"}).Ensure(context.Background(), driver.Spec{
			ID: "stray", Content: "c1:s", ClusterID: Unbound, NodeID: "node-a", Running: true, Body: container("sim/run"),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		r.delete("never-here")
		if out := r.apply("web", "sim/run"); !out.Applied {
			t.Fatalf("an order without epoch of a legacy v1 scheduler was refused: %v", out)
		}
		time.Sleep(5 * time.Minute)
		beats, registers := s.said()
		if registers != 1 || len(beats) < 5 || len(beats) > 9 {
			t.Errorf("in 5 min with an interval of 60 s the agent sent %d registrations and %d heartbeats; want one registration and 5 to 9 heartbeats", registers, len(beats))
		}
		for i, b := range beats {
			if !b.Full || i == len(beats)-1 && ids(b) != "web Running" {
				t.Errorf("heartbeat %d has full=%t and reports %s; legacy v1 schedulers expect all workloads in each heartbeat", i, b.Full, ids(b))
			}
			if text := ids(b); strings.Contains(text, "stray") || strings.Contains(text, "never-here") {
				t.Errorf("heartbeat %d reports a workload that was not ordered: %s", i, text)
			}
		}
		if o := r.observed("web"); o.ClusterID != Unbound {
			t.Errorf("the instance has the label of cluster %q, want the label for an unknown cluster id", o.ClusterID)
		}
		// Schedulers of this version replace the legacy v1 schedulers. The instance keeps its old cluster
		// label and is not recreated.
		before := r.observed("web").RuntimeID
		if out := r.apply("web", "sim/run", content("c1:a"), by(1), at(1)); !out.Skipped {
			t.Errorf("an order of our scheduler with the same specification must be skipped, got %v", out)
		}
		time.Sleep(time.Minute)
		if st := r.status("web"); st.ActualState != running || st.Content != "c1:a" || r.observed("web").RuntimeID != before {
			t.Errorf("after our schedulers replaced the legacy v1 schedulers, the status is %v; want the instance that ran before, with the content hash of our order", st)
		}
		r.halt()
	})
}

// A new agent learns the cluster id before it runs any workload, so the labels of all its instances contain the
// cluster id.
func TestLabelsCarryTheCluster(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.until(func() bool { return r.a.Session().Registered }, func() string { return "the agent does not register" })
	r.apply("web", "sim/run", by(1), at(1))
	r.reaches("web", running)
	if o := r.observed("web"); o.ClusterID != "c1" || o.NodeID != "node-a" {
		t.Errorf("the labels of the instance name cluster %q and node %q, want c1 and node-a", o.ClusterID, o.NodeID)
	}
}

// The list of workload kinds that an agent registers is never empty, because schedulers take an empty list as
// that of an old agent, which runs every kind except virtual machines (contract/wire-control.md,
// NodeCapabilities).
func TestOfferedKindsAreNeverEmpty(t *testing.T) {
	for _, c := range []struct {
		name, down, want string
		make             Factory
	}{
		{"an agent with a working engine registers the engine's kind", "", "container", nil},
		{"an agent whose engine is down registers the engine's kind", "told to", "container", nil},
		{"an agent without engines registers the kind none", "", "none", func(Binding) ([]driver.Driver, error) { return nil, nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.make = c.make
			if err := r.engine.SetDown(c.down); err != nil {
				t.Fatal(err)
			}
			r.start()
			if got := r.a.session.Registration().Capabilities.SupportedWorkloadTypes; !slices.Equal(got, []string{c.want}) {
				t.Errorf("the agent registers the workload kinds %q, want %q", got, c.want)
			}
		})
	}
}

func TestRegistersAgainWhenAnEngineComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s))
		if err := r.engine.SetDown("told to"); err != nil {
			t.Fatal(err)
		}
		r.start()
		time.Sleep(time.Second)
		if _, n := s.said(); n != 1 {
			t.Fatalf("after a start with the engine down the agent has registered %d times, want once", n)
		}
		if err := r.engine.SetDown(""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if _, n := s.said(); n != 2 {
			t.Errorf("after the engine came back the agent has registered %d times, want twice", n)
		}
		r.halt()
	})
}
