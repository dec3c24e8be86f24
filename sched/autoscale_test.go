package sched

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
)

// loads returns members that request 500 millicores each, one for each word: its CPU use in percent of the
// request, or "?" for a member without a measurement. The first letter of a word marks a member that is not
// ready: s starts, u is unhealthy, f has failed, a is absent.
func loads(words string) (out []ScaleMember) {
	states := map[byte]ScaleState{'s': ScaleStarting, 'u': ScaleUnhealthy, 'f': ScaleFailed, 'a': ScaleAbsent}
	for i, w := range strings.Fields(words) {
		m := ScaleMember{ID: fmt.Sprintf("web-%d", i)}
		if state, ok := states[w[0]]; ok {
			m.State, w = state, w[1:]
		}
		if m.Measured = w != "?"; m.Measured {
			percent, err := strconv.Atoi(w)
			if err != nil {
				panic(err)
			}
			m.CPU = float64(percent) / 2 // percent of one core
		}
		out = append(out, m)
	}
	return out
}

func scaleInput(words string, low, high uint32) ScaleInput {
	in := ScaleInput{Autoscale: fsm.Autoscale{Min: low, Max: high, CPU: 70}, Request: 500, Members: loads(words)}
	in.Count = len(in.Members)
	return in
}

// TestAutoscale: if all decisions of the last ten minutes see the same CPU use, Autoscale returns the number
// of members in the field want.
func TestAutoscale(t *testing.T) {
	for _, c := range []struct {
		name, use string
		min, max  uint32
		want      int
		reason    string
	}{
		{"a use at the target changes nothing", "70 70", 1, 10, 2, "no change"},
		{"a use above the target by less than a tenth changes nothing", "76 76", 1, 10, 2, "no change"},
		{"a use below the target by less than a tenth changes nothing", "64 64 64 64", 1, 10, 4, "no change"},
		{"a use above the target adds members at once", "100 100", 1, 10, 3, "CPU use is 100 % of the request in 2 of 2 members, target 70 %: 3 members"},
		{"a whole number of members is not rounded up", "84 84 84 84 84", 1, 10, 6, "6 members"},
		{"a group below min grows to min, even to more than twice its size", "100 100 100", 10, 20, 10, "min is 10"},
		{"a group at max does not grow", "100 100", 1, 2, 2, "the limit"},
		{"a group that wants more members grows to max", "100 100 100 100", 1, 5, 5, "5 members"},
		{"a use below the target removes members", "20 20 20 20", 1, 10, 2, "2 members"},
		{"a group at min does not shrink", "1 1 1 1", 3, 10, 3, "3 members"},
		{"a group without CPU use shrinks to one member", "0 0 0", 1, 10, 1, "1 member"},
		{"a group above max shrinks to max", "70 70 70", 1, 2, 2, "max is 2"},
		{"a group without measurements grows to min", "? a?", 3, 9, 3, "min is 3"},
		{"a group without measurements keeps its members", "? ? a?", 1, 10, 3, "no ready member has a measured CPU use"},
		{"an unmeasured member counts as idle, so that no member is added", "100 ?", 1, 10, 2, "no change"},
		{"an unmeasured member counts as idle, and members are added all the same", "100 100 100 100 100 ?", 1, 10, 8, "8 members"},
		{"an unmeasured member counts as busy, so that no member is removed", "20 ?", 1, 10, 2, "no change"},
		{"an unmeasured member counts as busy, and members are removed all the same", "1 1 1 ?", 1, 10, 2, "2 members"},
		{"a starting member counts as idle, so that no member is added", "100 s90", 1, 10, 2, "no change"},
		{"a starting member keeps the use within the tolerance", "100 100 100 s?", 1, 10, 4, "no change"},
		{"a starting member counts as idle, and members are added all the same", "100 100 100 100 s?", 1, 10, 6, "6 members"},
		{"no member is removed because members are starting", "100 s? s? s?", 1, 10, 4, "no change"},
		{"no member is removed while another one starts", "20 20 20 s?", 1, 10, 4, "no change while web-3 is not available"},
		{"no member is removed while another one is unplaced", "a? 20 20 20", 1, 10, 4, "no change while web-0 is not available"},
		{"no member is removed while another one fails", "f? 20 20 20", 1, 10, 4, "no change while web-0 is not available"},
		{"no member is removed while another one is unhealthy", "20 u90 u0 20", 1, 10, 4, "no change while web-1 is not available"},
		{"a failed member is replaced when the group needs more members", "100 f? 100 100", 1, 10, 6, "in 3 of 4 members, target 70 %, not counting 1 that failed: 6 members"},
		{"failed members are replaced even if most members have failed", "f? 100 f? 100", 1, 10, 5, "5 members"},
		{"a failed member is not replaced if the working members are enough", "70 f? 70 70", 1, 10, 4, "no change"},
		{"an absent member does not count when the group needs more members", "100 a? 100 100", 1, 10, 5, "5 members"},
		{"no member is added while another member fits on no node", "100 100 a?", 1, 10, 3, "no change"},
		{"a member that is unhealthy from overload counts as working", "100 u100 u100 100", 1, 10, 6, "in 4 of 4 members"},
		{"members are added if all members are unhealthy from overload", "u100 u100", 1, 10, 3, "3 members"},
		{"a member that is unhealthy without load counts as failed", "100 u0 100 100", 1, 10, 6, "not counting 1 that failed"},
		{"a member that is unhealthy and not measured counts as failed", "100 u? 100 100", 1, 10, 6, "not counting 1 that failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := scaleInput(c.use, c.min, c.max)
			var w ScaleWindow
			var d ScaleDecision
			for range 41 {
				in.Now += int64(ScaleEvery)
				d, w = Autoscale(w, in)
			}
			if d.Count != c.want || !strings.Contains(d.Reason, c.reason) {
				t.Errorf("with the CPU use %q the group gets %d members (%s), want %d (%s)", c.use, d.Count, d.Reason, c.want, c.reason)
			}
		})
	}
}

// TestAutoscaleDoubles: a group grows to at most twice its size at once. A short burst can use far more CPU
// than the request, and must not add more members than that.
func TestAutoscaleDoubles(t *testing.T) {
	in := scaleInput("400 400", 1, 100)
	in.Now = 1
	if d, _ := Autoscale(ScaleWindow{}, in); d.Count != 4 || !strings.Contains(d.Reason, "12 members, at most doubled at once") {
		t.Errorf("a group of 2 members that use 400 %% of their request gets %d members (%s), want 4", d.Count, d.Reason)
	}
}

// TestAutoscaleStaysWithinTheQuota: a group that wants six members gets as many as the quota has room for.
func TestAutoscaleStaysWithinTheQuota(t *testing.T) {
	for _, c := range []struct {
		within, want int
		reason       string
	}{
		{0, 6, ": 6 members"},
		{9, 6, ": 6 members"},
		{5, 5, ": 6 members, but the quota of the namespace has room for only 5 members"},
		{4, 4, ": 6 members, but the quota of the namespace has room for only 4 members"},
	} {
		in := scaleInput("100 100 100 100", 1, 10)
		in.Now, in.Within = 1, c.within
		if d, _ := Autoscale(ScaleWindow{}, in); d.Count != c.want || !strings.HasSuffix(d.Reason, c.reason) {
			t.Errorf("if the quota has room for %d members (0 = no limit), the group gets %d members (%s), want %d (%s)", c.within, d.Count, d.Reason, c.want, c.reason)
		}
	}
}

// scaling makes successive decisions about one group and keeps the clock and the window between them.
type scaling struct {
	t   *testing.T
	now int64
	w   ScaleWindow
}

// pass makes a decision every ScaleEvery until the time d has passed, and returns the last decision. In each
// decision the members have the CPU use that use names (see loads). change, if set, alters each input. pass
// fails the test if a decision before the last one changes the number of members.
func (s *scaling) pass(d time.Duration, use string, change func(*ScaleInput)) (last ScaleDecision) {
	s.t.Helper()
	for end := s.now + int64(d); s.now < end; {
		in := scaleInput(use, 1, 10)
		if change != nil {
			change(&in)
		}
		s.now += int64(ScaleEvery)
		in.Now = s.now
		if last, s.w = Autoscale(s.w, in); last.Count != in.Count && s.now < end {
			s.t.Errorf("at time %s the autoscaler wants %d members (%s); want that it changes the number only at the end of the %s", time.Duration(s.now), last.Count, last.Reason, d)
		}
	}
	return last
}

// TestAutoscaleDownWaits: members are removed only after five minutes in which every decision wanted fewer, and
// only down to the highest number that one of them wanted.
func TestAutoscaleDownWaits(t *testing.T) {
	const low, lower, high, fits = "20 20 20 20", "1 1 1 1", "90 90 90 90", "70 70 70 70"
	for _, c := range []struct {
		name   string
		before func(*scaling)
		left   time.Duration // time with a low use after which two members are removed
		want   int
	}{
		{"a new leadership term waits five minutes before it removes members", func(*scaling) {}, 5*time.Minute + ScaleEvery, 2},
		{"members are removed five minutes after the use needed all of them", func(s *scaling) { s.pass(10*time.Minute, fits, nil) }, 5 * time.Minute, 2},
		{"a time with an even lower use counts towards the five minutes", func(s *scaling) { s.pass(4*time.Minute, lower, nil) }, time.Minute + ScaleEvery, 2},
		{"one decision that needs all members begins the five minutes again", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.pass(ScaleEvery, fits, nil) }, 5 * time.Minute, 2},
		{"one decision without measurements begins the five minutes again", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.pass(ScaleEvery, "? ? ? ?", nil) }, 5 * time.Minute, 2},
		{"the end of an update begins the five minutes again", func(s *scaling) {
			s.pass(10*time.Minute, low, func(in *ScaleInput) { in.Blocked = "is being updated" })
		}, 5 * time.Minute, 2},
		{"a change of the number by a person begins the five minutes again", func(s *scaling) { s.pass(4*time.Minute, "20 20 20", nil) }, 5*time.Minute + ScaleEvery, 2},
		{"a change of the settings begins the five minutes again", func(s *scaling) {
			s.pass(4*time.Minute, low, func(in *ScaleInput) { in.Autoscale.CPU = 80 })
		}, 5*time.Minute + ScaleEvery, 2},
		{"a long gap between two decisions begins the five minutes again", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.now += int64(10 * time.Minute) }, 5*time.Minute + ScaleEvery, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scaling{t: t}
			c.before(s)
			if d := s.pass(c.left, low, nil); d.Count != c.want {
				t.Errorf("after a low use for %s the group has %d members (%s), want %d", c.left, d.Count, d.Reason, c.want)
			}
		})
	}
	s := &scaling{t: t}
	s.pass(4*time.Minute, low, nil)
	if d := s.pass(ScaleEvery, high, nil); d.Count != 6 {
		t.Errorf("when the use becomes high after a low use, the group gets %d members (%s), want 6 at once", d.Count, d.Reason)
	}
	s = &scaling{t: t}
	s.pass(10*time.Minute, fits, nil)
	if d := s.pass(time.Minute, low, nil); !strings.Contains(d.Reason, "if it stays so for 4m15s") {
		t.Errorf("the reason of the decision is %q, want it to say after what time members are removed", d.Reason)
	}
}

// TestAutoscaleSettles: decisions ignore the CPU use of a member in the first 15 seconds after it became ready, or
// after its instance was replaced. The first decision of a leadership term uses every ready member.
func TestAutoscaleSettles(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*ScaleMember)
	}{
		{"the use of a member that was starting is ignored at first", func(m *ScaleMember) { m.State = ScaleStarting }},
		{"the use of a member that was unhealthy is ignored at first", func(m *ScaleMember) { m.State, m.CPU = ScaleUnhealthy, 0 }},
		{"the use of a member with a new order is ignored at first", func(m *ScaleMember) { m.Order.Sequence++ }},
		{"the use of a member whose instance was replaced is ignored at first", func(m *ScaleMember) { m.Restarts++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scaling{t: t}
			change := func(in *ScaleInput) { c.change(&in.Members[1]) }
			s.pass(ScaleEvery, "70 70", nil)
			s.pass(ScaleEvery, "70 70", change)
			for range 2 {
				if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 2 || d.Measured != 1 {
					t.Errorf("soon after the change of member 1, the group gets %d members and %d are measured (%s); want 2 members, of which 1 is measured", d.Count, d.Measured, d.Reason)
				}
				s.now -= int64(ScaleEvery) / 2
			}
			if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 4 {
				t.Errorf("15 seconds after the change of member 1, the group gets %d members (%s), want 4", d.Count, d.Reason)
			}
		})
	}
	s := &scaling{t: t}
	if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 4 {
		t.Errorf("by the first decision of a leadership term the group gets %d members (%s), want 4, because both members are measured", d.Count, d.Reason)
	}
}

// TestScaleStateOf: scaleStateOf derives the state of a member from its status and from the times of its order.
func TestScaleStateOf(t *testing.T) {
	const now = int64(time.Hour)
	ago := func(d time.Duration) int64 { return now - int64(d) }
	for _, c := range []struct {
		name   string
		status fsm.Status
		change func(w *fsm.Workload, a *fsm.Observation)
		want   ScaleState
	}{
		{"a member that has run for long is ready", fsm.StatusRunning, nil, ScaleReady},
		{"a running member is ready after an apply that changes no order", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.UpdatedAt = now }, ScaleReady},
		{"a healthy member is ready", fsm.StatusRunning, func(_ *fsm.Workload, a *fsm.Observation) { a.Health = fsm.Healthy }, ScaleReady},
		{"a running member that was ordered a moment ago is starting", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.AssignedAt = ago(14 * time.Second) }, ScaleStarting},
		{"a running member whose order was accepted a moment ago is starting", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.AcknowledgedAt = ago(14 * time.Second) }, ScaleStarting},
		{"a running member whose health checks fail is unhealthy", fsm.StatusRunning, func(_ *fsm.Workload, a *fsm.Observation) { a.Health = fsm.Unhealthy }, ScaleUnhealthy},
		{"a member without a node is absent", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Node = "" }, ScaleAbsent},
		{"a new member without a node is absent", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Node, w.CreatedAt = "", now }, ScaleAbsent},
		{"a member on a lost node is absent", fsm.StatusUnknown, nil, ScaleAbsent},
		{"a member that was given up has failed", fsm.StatusFailed, nil, ScaleFailed},
		{"a member that waits for a retry has failed", fsm.StatusRetryPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Retry.Attempts = 1 }, ScaleFailed},
		{"a member that failed and was ordered again a moment ago has failed", fsm.StatusScheduled, func(w *fsm.Workload, _ *fsm.Observation) { w.Retry.Attempts, w.AssignedAt = 1, now }, ScaleFailed},
		{"a new member that fails is starting", fsm.StatusFailed, func(w *fsm.Workload, _ *fsm.Observation) { w.CreatedAt = ago(4 * time.Minute) }, ScaleStarting},
		{"a new member that is pending is starting", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.CreatedAt = ago(time.Minute) }, ScaleStarting},
		{"a member that was moved a minute ago is starting", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.AssignedAt = ago(time.Minute) }, ScaleStarting},
		{"a member whose health checks have just begun", fsm.StatusRunning, func(w *fsm.Workload, a *fsm.Observation) {
			w.AssignedAt, a.Health = ago(time.Minute), fsm.HealthStarting
		}, ScaleStarting},
		{"a member that has been pending for too long is absent", fsm.StatusPending, nil, ScaleAbsent},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &fsm.Observation{}
			w := &fsm.Workload{ID: "web-0", Status: c.status, Desired: fsm.DesiredRunning, Node: "a", Demand: &fsm.Demand{}, Actual: a,
				CreatedAt: ago(30 * time.Minute), AssignedAt: ago(20 * time.Minute), AcknowledgedAt: ago(20 * time.Minute), UpdatedAt: ago(20 * time.Minute)}
			if c.change != nil {
				c.change(w, a)
			}
			if got := scaleStateOf(w, now); got != c.want {
				t.Errorf("scaleStateOf returns the ScaleState %d for the member, want %d", got, c.want)
			}
		})
	}
}
