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
	"github.com/persys/compute/agent/session"
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
			t.Fatalf("after a second: %d registrations, heartbeats %v; want one full one right after registering", registers, beats)
		}
		reg := s.registers[0]
		c := reg.Capabilities
		if reg.NodeId != "node-a" || reg.GrpcEndpoint != "127.0.0.1:50051" || reg.AgentVersion != "1.2" || reg.InstanceId == "" ||
			reg.Labels["region"] != "north" || reg.Labels["os"] == "" || reg.Labels["arch"] == "" ||
			c.Protocol != 1 || c.EngineId != "engine-1" || c.CpuTotalMillicores != 4000 || c.MemoryTotalMb != 8192 ||
			len(c.SupportedWorkloadTypes) != 1 || c.SupportedWorkloadTypes[0] != "container" || c.StoragePools[0].TotalGb != 100 {
			t.Errorf("registered as %v", reg)
		}

		begin := time.Now()
		r.apply("web", "sim/run", content("c1:a"), by(1), at(2), func(q *agentv1.ApplyWorkloadRequest) {
			q.Spec.GetContainer().Resources = &agentv1.ResourceLimits{CpuMillicores: 250, MemoryBytes: 64 << 20}
		})
		time.Sleep(400 * time.Millisecond)
		beats, _ = s.said()
		last := beats[len(beats)-1]
		if last.Full || ids(last) != "web Running" {
			t.Errorf("a change is reported as full=%t: %s", last.Full, ids(last))
		}
		w := last.WorkloadStatuses[0]
		if w.Generation.GetSequence() != 2 || w.Content != "c1:a" || w.RevisionId != "rev-1" || w.DesiredState != "Running" || len(w.Addresses) == 0 {
			t.Errorf("reported %v", w)
		}
		if u := last.Usage; u.CpuAllocatedMillicores != 250 || u.MemoryAllocatedMb != 64 || u.CpuUsedMillicores != 500 || u.DiskUsedGb != 10 || u.NetRxBytes != 11 || u.NetTxBytes != 12 {
			t.Errorf("usage %v", u)
		}
		if n := len(beats); n > 4 {
			t.Errorf("%d heartbeats for one workload within %s: changes are not coalesced", n, time.Since(begin))
		}
		time.Sleep(4 * time.Second)
		before, _ := s.said()
		quiet := before[len(before)-1]
		if quiet.Full || len(quiet.WorkloadStatuses) != 0 {
			t.Errorf("without changes: full=%t, %s", quiet.Full, ids(quiet))
		}

		r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(3) })
		time.Sleep(time.Second)
		beats, _ = s.said()
		absent := ""
		for _, b := range beats[len(before):] {
			absent += ids(b) + "; "
			for _, w := range b.WorkloadStatuses {
				if w.Absent && w.Generation.GetSequence() != 3 {
					t.Errorf("absent at %v, want 1.3", w.Generation)
				}
			}
		}
		if !strings.Contains(absent, "web absent") {
			t.Errorf("after a delete: %s", absent)
		}
		time.Sleep(3 * time.Second)
		beats, _ = s.said()
		if last := beats[len(beats)-1]; len(last.WorkloadStatuses) != 0 {
			t.Errorf("an acknowledged absence is repeated: %s", ids(last))
		}
		r.halt()
	})
}

func TestSessionIntervalIsTheServers(t *testing.T) {
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
		if want := n / (session.FullEvery + 1); full < want-1 || full > want+1 {
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
			t.Errorf("%d heartbeats in 5 min after the interval became 30 s", n)
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
		{"at once when the node is not known", status.Error(codes.NotFound, "unknown node"), 3200 * time.Millisecond},
		{"when the lease has lapsed", status.Error(codes.Unavailable, "no leader"), 13 * time.Second},
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
					t.Errorf("no new registration within %s", c.within)
				}
				if r.observed("web").State != "Running" || r.hooks.count("halt web") != 0 {
					t.Error("a lost lease stopped a workload")
				}
				s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(1), nil })
				time.Sleep(5 * time.Second)
				beats, _ := s.said()
				seenFull := false
				for _, b := range beats[len(beats)-3:] {
					seenFull = seenFull || b.Full && ids(b) == "web Running"
				}
				if !seenFull || !r.a.Session().Registered {
					t.Errorf("after registering again no full heartbeat came: %v", beats[len(beats)-1])
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
			t.Errorf("the lease moved from %v to %v", until, now)
		}
		time.Sleep(6 * time.Second)
		if _, n := s.said(); n < 2 {
			t.Error("no registration after the lease ended")
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
			t.Errorf("%d registrations in a minute of refusals, want one each 1 to 2 s after a short burst", n)
		}
		if p := r.a.Session().Problem; !strings.Contains(p, "frozen") {
			t.Errorf("problem %q", p)
		}
		s.mu.Lock()
		s.onRegister = ok
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		if st := r.a.Session(); !st.Registered || st.Problem != "" {
			t.Errorf("session %+v", st)
		}
		r.halt()
	})
}

func TestSessionSendsFullHeartbeats(t *testing.T) {
	for _, c := range []struct {
		name string
		next func() *controlv1.HeartbeatResponse
	}{
		{"when asked", func() *controlv1.HeartbeatResponse { out := beatOK(1); out.SendFull = true; return out }},
		{"to a new leader", func() *controlv1.HeartbeatResponse { return beatOK(2) }},
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
					t.Errorf("the next heartbeat has full=%t: %s", next.Full, ids(next))
				}
				r.halt()
			})
		})
	}
}

func TestSessionRefusesOtherClustersAndOldEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r := newRig(t, under(s)).start()
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(9), nil })
		time.Sleep(7 * time.Second)
		if e := r.a.Epoch(); e.Term != 9 || e.ClusterID != "c1" {
			t.Errorf("epoch %v, want term 9", e)
		}
		if out := r.apply("web", "sim/run", by(8), at(1)); !out.Fenced {
			t.Errorf("an order of the leader before is taken: %v", out)
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
			t.Errorf("another cluster's answer counted: epoch %v, session %+v", r.a.Epoch(), st)
		}
		r.halt()
	})
}

// No answer of a scheduler of another cluster or shard counts, and the problem of the session names it.
func TestSessionRefusesForeigners(t *testing.T) {
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
		{"of another cluster", epoch("c2", "east"), []string{`belongs to cluster "c1"`, `from cluster "c2"`}},
		{"of another shard", epoch("c1", "west"), []string{`belongs to shard "east"`, `from shard "west" of cluster "c1"`}},
	} {
		for _, call := range []string{"register", "heartbeat"} {
			t.Run(call+" answered by one "+tc.name, func(t *testing.T) {
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
							t.Errorf("a heartbeat names cluster %q, want c1", in.GetClusterId())
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
							t.Errorf("the session says %q, want %q in it", st.Problem, want)
						}
					}
					if e := r.a.Epoch(); e.ClusterID != "c1" || e.Shard != "east" || e.Term != 1 || st.Draining || st.LeaseUntil.After(before.LeaseUntil.Add(4*time.Second)) {
						t.Errorf("it counted: epoch %v, session %+v, it was %+v", e, st, before)
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
			t.Errorf("a new workload: want an in-band refusal, got %v", out)
		}
		if out := r.apply("web", "sim/run:2", content("c1:b"), by(1), at(3)); !out.Applied {
			t.Errorf("a known workload: %v", out)
		}
		time.Sleep(time.Second)
		if r.observed("web").State != "Running" {
			t.Error("a drain touched what runs")
		}
		s.answer(func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) { return beatOK(1), nil })
		time.Sleep(4 * time.Second)
		if out := r.apply("api", "sim/run", by(1), at(2)); !out.Applied {
			t.Errorf("after the drain: %v", out)
		}
		r.halt()
	})
}

// Legacy v1 schedulers name neither cluster nor epoch, and give the end of the lease as a time.
func TestLegacySchedulers(t *testing.T) {
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
			t.Fatalf("an order without epoch: %v", out)
		}
		time.Sleep(5 * time.Minute)
		beats, registers := s.said()
		if registers != 1 || len(beats) < 5 || len(beats) > 9 {
			t.Errorf("%d registrations, %d heartbeats in 5 min of 60 s", registers, len(beats))
		}
		for i, b := range beats {
			if !b.Full || i == len(beats)-1 && ids(b) != "web Running" {
				t.Errorf("heartbeat %d: full=%t, %s; they expect everything each time", i, b.Full, ids(b))
			}
			if text := ids(b); strings.Contains(text, "stray") || strings.Contains(text, "never-here") {
				t.Errorf("heartbeat %d tells of what was not ordered: %s", i, text)
			}
		}
		if o := r.observed("web"); o.ClusterID != Unbound {
			t.Errorf("labelled with cluster %q", o.ClusterID)
		}
		// Our schedulers take over the cluster: instances keep their label and are not replaced.
		before := r.observed("web").RuntimeID
		if out := r.apply("web", "sim/run", content("c1:a"), by(1), at(1)); !out.Skipped {
			t.Errorf("the same spec from our scheduler: want skipped, got %v", out)
		}
		time.Sleep(time.Minute)
		if st := r.status("web"); st.ActualState != running || st.Content != "c1:a" || r.observed("web").RuntimeID != before {
			t.Errorf("after the take-over: %v", st)
		}
		r.halt()
	})
}

// On a first boot the cluster is known before anything runs.
func TestLabelsCarryTheCluster(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.until(func() bool { return r.a.Session().Registered }, func() string { return "not registered" })
	r.apply("web", "sim/run", by(1), at(1))
	r.reaches("web", running)
	if o := r.observed("web"); o.ClusterID != "c1" || o.NodeID != "node-a" {
		t.Errorf("labels name cluster %q, node %q", o.ClusterID, o.NodeID)
	}
}

// Schedulers read an empty list as an old agent that runs everything but virtual machines
// (contract/wire-control.md, NodeCapabilities).
func TestOfferedKindsAreNeverEmpty(t *testing.T) {
	for _, c := range []struct {
		name, down, want string
		make             Factory
	}{
		{"an engine that works", "", "container", nil},
		{"an engine that is down", "told to", "container", nil},
		{"no engine at all", "", "none", func(Binding) ([]driver.Driver, error) { return nil, nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.make = c.make
			if err := r.engine.SetDown(c.down); err != nil {
				t.Fatal(err)
			}
			r.start()
			if got := r.a.session.Introduction().Capabilities.SupportedWorkloadTypes; !slices.Equal(got, []string{c.want}) {
				t.Errorf("it offers %q, want %q", got, c.want)
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
			t.Fatalf("%d registrations with the engine down, want one", n)
		}
		if err := r.engine.SetDown(""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if _, n := s.said(); n != 2 {
			t.Errorf("%d registrations after the engine came back, want two", n)
		}
		r.halt()
	})
}
