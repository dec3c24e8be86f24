package leader

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// scaler carries out the leader's decisions about the number of members: it applies the commands
// that package rpc would send to the fake log.
type scaler struct {
	w      *world
	refuse atomic.Bool
	calls  atomic.Int32
}

func (s *scaler) Autoscale(ctx context.Context, group string, from, count int, reason string) error {
	s.calls.Add(1)
	if s.refuse.Load() {
		return errors.New("over the quota")
	}
	first := fsm.Members(s.w.view(), group)[0]
	b := &commandv1.ScaleGroup{Group: group, Count: uint32(count), From: new(uint32(from)), Content: first.Content, Reason: reason, Autoscaled: true}
	for _, id := range fsm.MemberIDs(group, count) {
		p := first.AsPut()
		p.Id = id
		b.Members = append(b.Members, p)
	}
	r, err := s.w.log.Propose(ctx, &commandv1.Command{
		Head: &commandv1.Head{At: time.Now().UnixNano(), By: "autoscaler"}, Body: &commandv1.Command_ScaleGroup{ScaleGroup: b},
	})
	if err != nil {
		return err
	}
	return r[0].Err()
}

// group stores a group of n members that request half a core each. Its autoscaler keeps between 1 and 4
// members and aims at 70 % CPU use.
func (w *world) group(n int, opts ...func(*commandv1.WorkloadPut)) {
	for _, id := range fsm.MemberIDs("web", n) {
		w.put(id, append([]func(*commandv1.WorkloadPut){func(p *commandv1.WorkloadPut) {
			p.Content = "c1:0000000000000000"
			p.Demand.CpuMillicores, p.Demand.Group = 500, "web"
			p.Demand.Autoscale = &commandv1.Autoscale{Min: 1, Max: 4, Cpu: 70}
		}}, opts...)...)
	}
}

// members returns the number of members of the group.
func (w *world) members() int { return fsm.Count(fsm.Members(w.view(), "web")) }

// load lets the time d pass while every workload reports this CPU use, in percent of its request of
// half a core.
func (w *world) load(d time.Duration, percent float64) {
	w.loadBut("", fsm.Observation{}, d, percent)
}

// loadBut does the same as load, but workload id reports observation o.
func (w *world) loadBut(id string, o fsm.Observation, d time.Duration, percent float64) {
	for end := time.Now().Add(d); time.Now().Before(end); w.pass(3 * time.Second) {
		hb := sched.Heartbeat{Node: "a", Full: true, ReceivedAt: time.Now().UnixNano()}
		w.view().WorkloadsOn("a", func(m *fsm.Workload) bool {
			if m.ID == id {
				o.Generation = m.Generation
				hb.Reports = append(hb.Reports, sched.Reported{Workload: m.ID, Observation: o})
				return true
			}
			hb.Reports = append(hb.Reports, w.running(m.ID))
			hb.Usage = append(hb.Usage, sched.WorkloadUsage{Workload: m.ID, CPUPercent: percent / 2, At: time.Now().UnixNano()})
			return true
		})
		w.beat(hb)
	}
}

func (w *world) decision() sched.Autoscaled {
	w.t.Helper()
	d, ok := w.loop.AutoscaleOf("web")
	if !ok {
		w.t.Error("the leader must have made a decision about the group, but has made none")
	}
	return d
}

func inScaledWorld(t *testing.T, fn func(w *world, s *scaler)) {
	t.Helper()
	s := &scaler{}
	inWorld(t, []string{"a"}, func(w *world) {
		s.w = w
		fn(w, s)
	}, func(c *Config) { c.Scaler = s })
}

// TestAutoscale: the leader adds members soon under load, and removes them five minutes after the CPU use went
// down.
func TestAutoscale(t *testing.T) {
	inScaledWorld(t, func(w *world, _ *scaler) {
		w.group(2)
		w.load(3*time.Minute, 95)
		is(t, "number of members under load", w.members(), 4)
		is(t, "LastChange of the decision says that the CPU use is 95 %", strings.HasPrefix(w.decision().LastChange, "from 3 to 4: CPU use is 95 %"), true)
		w.load(4*time.Minute, 10)
		is(t, "number of members after four minutes without load", w.members(), 4)
		w.load(90*time.Second, 10)
		is(t, "number of members after five minutes without load", w.members(), 1)
		e := fsm.Event{}
		w.view().Events(0, func(x *fsm.Event) bool {
			if x.Type == fsm.EventGroupScaled {
				e = *x
			}
			return true
		})
		is(t, "the message of event GroupScaled gives the CPU use and the target", strings.HasPrefix(e.Message, "web from 4 to 1: CPU use is 10 % of the request in 4 of 4 members, target 70 %"), true)
		is(t, "caller in the event", e.By, "autoscaler")
	})
}

// TestAutoscaleWithDeadMember: while the first member fails, no working member is removed, and under load a
// member is added.
func TestAutoscaleWithDeadMember(t *testing.T) {
	failed := fsm.Observation{State: fsm.ActualFailed, Code: "Exited", Message: "exit code 1", Terminal: true}
	inScaledWorld(t, func(w *world, _ *scaler) {
		w.group(3)
		w.load(6*time.Minute, 50)
		is(t, "number of members of the group", w.members(), 3)
		w.loadBut("web-0", failed, 10*time.Minute, 10)
		is(t, "number of members without load", w.members(), 3)
		is(t, "the reason of the decision says that web-0 is not available", strings.HasSuffix(w.decision().Reason, "no change while web-0 is not available"), true)
		w.loadBut("web-0", failed, time.Minute, 100)
		is(t, "number of members under load", w.members(), 4)
	})
}

// TestAutoscaleAfterApplies: an apply that changes no order does not restart the 15 seconds in which a new
// member's CPU use is not counted.
func TestAutoscaleAfterApplies(t *testing.T) {
	inScaledWorld(t, func(w *world, _ *scaler) {
		w.group(2)
		for i := range 12 {
			w.load(9*time.Second, 50)
			w.group(2, func(p *commandv1.WorkloadPut) { p.CallerRevision = strconv.Itoa(i) })
		}
		is(t, "number of members whose CPU use the decision counts", w.decision().Measured, 2)
		is(t, `the applies have changed UpdatedAt of member "web-0"`, w.workload("web-0").UpdatedAt > w.workload("web-0").AssignedAt+int64(time.Minute), true)
	})
}

// TestAutoscaleInNewTerm: a new leader waits five minutes before it removes members, whatever the previous
// leader measured.
func TestAutoscaleInNewTerm(t *testing.T) {
	inScaledWorld(t, func(w *world, _ *scaler) {
		w.group(4)
		w.load(4*time.Minute, 10)
		w.resign()
		w.log.set(func(l *fakeLog) { l.term++ })
		w.lead()
		w.load(4*time.Minute, 10)
		is(t, "number of members after four minutes in each term", w.members(), 4)
		w.load(2*time.Minute, 10)
		is(t, "number of members after six minutes in one term", w.members(), 1)
	})
}

// TestAutoscaleIgnoresStaleMeasurements: a node repeats an old measurement in every heartbeat. The measurement becomes
// stale, and no member is removed because of it.
func TestAutoscaleIgnoresStaleMeasurements(t *testing.T) {
	inScaledWorld(t, func(w *world, _ *scaler) {
		w.group(4)
		w.load(time.Minute, 10)
		at := time.Now().UnixNano()
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); w.pass(3 * time.Second) {
			hb := sched.Heartbeat{Node: "a", Full: true}
			w.view().WorkloadsOn("a", func(m *fsm.Workload) bool {
				hb.Reports = append(hb.Reports, w.running(m.ID))
				hb.Usage = append(hb.Usage, sched.WorkloadUsage{Workload: m.ID, CPUPercent: 5, At: at})
				return true
			})
			w.beat(hb)
		}
		is(t, "number of members of the group", w.members(), 4)
		is(t, "reason of the decision", w.decision().Reason, "no ready member has a measured CPU use")
	})
}

// TestAutoscaleRefused: if its change of the number of members is refused, the leader waits a
// minute before it tries again, and its last decision has the reason.
func TestAutoscaleRefused(t *testing.T) {
	inScaledWorld(t, func(w *world, s *scaler) {
		w.group(2)
		s.refuse.Store(true)
		w.load(3*time.Minute, 95)
		is(t, "number of members of the group", w.members(), 2)
		is(t, "the reason of the decision has the refusal", strings.HasSuffix(w.decision().Reason, "the change to 3 was refused: over the quota"), true)
		if n := s.calls.Load(); n < 2 || n > 3 {
			t.Errorf("the leader tried %d times in three minutes, want one try a minute", n)
		}
		s.refuse.Store(false)
		w.load(3*time.Minute, 95)
		is(t, "number of members after the change was allowed", w.members(), 4)
	})
}

// TestAutoscaleWaits: while a member is stopped, an update is paused or the mode is frozen, the number of
// members does not change.
func TestAutoscaleWaits(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		block        func(*world)
	}{
		{"the number of members does not change in a frozen mode", "mode degraded", func(w *world) { w.mode(fsm.ModeDegraded) }},
		{"the number of members does not change while a member is stopped", "web-1 is stopped", func(w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web-1", Desired: "Stopped"}}})
		}},
		{"the number of members does not change while an update is paused", "waits for the end of the update", func(w *world) {
			b := &commandv1.PutWorkloads{GroupOf: "web", Update: &commandv1.UpdatePolicy{MaxParallel: 1, MinHealthy: int64(time.Second), HealthyDeadline: int64(time.Minute)}}
			for _, m := range fsm.Members(w.view(), "web") {
				p := m.AsPut()
				p.Content = "c1:1111111111111111"
				b.Workloads = append(b.Workloads, p)
			}
			w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: b}})
			w.do(&commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "web", Action: "pause"}}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inScaledWorld(t, func(w *world, _ *scaler) {
				w.group(2)
				w.load(12*time.Second, 95) // the first decision is due after sched.ScaleEvery, 15 s
				c.block(w)
				w.load(3*time.Minute, 95)
				is(t, "number of members of the group", w.members(), 2)
				is(t, "the reason of the decision says why nothing is changed", strings.Contains(w.decision().Reason, c.reason), true)
			})
		})
	}
}
