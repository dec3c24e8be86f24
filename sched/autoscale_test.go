package sched

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
)

// loads makes members that request 500 millicores each. Each word is a CPU use in percent of the request, or "?"
// without a measurement. A member that is not ready has a letter before: s starts, u is unhealthy, f has failed,
// a is absent.
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

// TestAutoscale: if all decisions of the last ten minutes wanted the same number of members,
// Autoscale returns that number (want).
func TestAutoscale(t *testing.T) {
	for _, c := range []struct {
		name, use string
		min, max  uint32
		want      int
		reason    string
	}{
		{"use at the target", "70 70", 1, 10, 2, "no change"},
		{"use above the target by less than a tenth", "76 76", 1, 10, 2, "no change"},
		{"use below the target by less than a tenth", "64 64 64 64", 1, 10, 4, "no change"},
		{"use above the target adds members at once", "100 100", 1, 10, 3, "CPU use is 100 % of the request in 2 of 2 members, target 70 %: 3 members"},
		{"a whole number of members is not rounded up", "84 84 84 84 84", 1, 10, 6, "6 members"},
		{"a group below min grows to min, even to more than twice its size", "100 100 100", 10, 20, 10, "min is 10"},
		{"a group at max does not grow", "100 100", 1, 2, 2, "the limit"},
		{"a group that wants more members grows to max", "100 100 100 100", 1, 5, 5, "5 members"},
		{"use below the target removes members", "20 20 20 20", 1, 10, 2, "2 members"},
		{"a group at min does not shrink", "1 1 1 1", 3, 10, 3, "3 members"},
		{"a group without CPU use shrinks to one member", "0 0 0", 1, 10, 1, "1 member"},
		{"a group above max shrinks to max", "70 70 70", 1, 2, 2, "max is 2"},
		{"a group without measurements grows to min", "? a?", 3, 9, 3, "min is 3"},
		{"a group without measurements keeps its members", "? ? a?", 1, 10, 3, "no ready member has a measured CPU use"},
		{"a missing member counts as idle when more are wanted", "100 ?", 1, 10, 2, "no change"},
		{"a missing member counts as idle, and still more are wanted", "100 100 100 100 100 ?", 1, 10, 8, "8 members"},
		{"a missing member counts as busy when fewer are wanted", "20 ?", 1, 10, 2, "no change"},
		{"a missing member counts as busy, and still fewer are wanted", "1 1 1 ?", 1, 10, 2, "2 members"},
		{"a starting member counts as idle when more are wanted", "100 s90", 1, 10, 2, "no change"},
		{"a starting member keeps the use within the tolerance", "100 100 100 s?", 1, 10, 4, "no change"},
		{"a starting member counts as idle, and still more are wanted", "100 100 100 100 s?", 1, 10, 6, "6 members"},
		{"starting members are no reason for fewer", "100 s? s? s?", 1, 10, 4, "no change"},
		{"nothing is removed while a member starts", "20 20 20 s?", 1, 10, 4, "no change while web-3 is not available"},
		{"nothing is removed while a member is unplaced", "a? 20 20 20", 1, 10, 4, "no change while web-0 is not available"},
		{"nothing is removed while a member fails", "f? 20 20 20", 1, 10, 4, "no change while web-0 is not available"},
		{"nothing is removed while a member is unhealthy", "20 u90 u0 20", 1, 10, 4, "no change while web-1 is not available"},
		{"a member that failed is replaced when more are wanted", "100 f? 100 100", 1, 10, 6, "in 3 of 4 members, target 70 %, not counting 1 that failed: 6 members"},
		{"most members failed", "f? 100 f? 100", 1, 10, 5, "5 members"},
		{"a member that failed is not replaced when the others are enough", "70 f? 70 70", 1, 10, 4, "no change"},
		{"an absent member does not count when more are wanted", "100 a? 100 100", 1, 10, 5, "5 members"},
		{"no member is added while another member fits on no node", "100 100 a?", 1, 10, 3, "no change"},
		{"a member that is unhealthy from overload counts", "100 u100 u100 100", 1, 10, 6, "in 4 of 4 members"},
		{"all members are unhealthy from overload", "u100 u100", 1, 10, 3, "3 members"},
		{"a member that is unhealthy without load has failed", "100 u0 100 100", 1, 10, 6, "not counting 1 that failed"},
		{"a member that is unhealthy and not measured has failed", "100 u? 100 100", 1, 10, 6, "not counting 1 that failed"},
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
				t.Errorf("%s gives %d members (%s), want %d (%s)", c.use, d.Count, d.Reason, c.want, c.reason)
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
		t.Errorf("2 members at 400 %% become %d (%s), want 4", d.Count, d.Reason)
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
			t.Errorf("with room for %d members, the group gets %d (%s), want %d (%s)", c.within, d.Count, d.Reason, c.want, c.reason)
		}
	}
}

// scaling makes successive decisions about one group and keeps the clock and the window between them.
type scaling struct {
	t   *testing.T
	now int64
	w   ScaleWindow
}

// pass makes one decision after another until the time d has passed, and returns the last decision. In each
// decision the members have the CPU use that the argument use names. change, if set, alters each input. pass
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
			s.t.Errorf("after %s the number becomes %d (%s), want a change after %s only", time.Duration(s.now), last.Count, last.Reason, d)
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
		left   time.Duration // time with a low use after which two members are removed; 0 = at once
		want   int
	}{
		{"in a new leadership term", func(*scaling) {}, 5*time.Minute + ScaleEvery, 2},
		{"after a use that needs all members", func(s *scaling) { s.pass(10*time.Minute, fits, nil) }, 5 * time.Minute, 2},
		{"after a lower use", func(s *scaling) { s.pass(4*time.Minute, lower, nil) }, time.Minute + ScaleEvery, 2},
		{"after one decision that needs all members", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.pass(ScaleEvery, fits, nil) }, 5 * time.Minute, 2},
		{"after one decision without measurements", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.pass(ScaleEvery, "? ? ? ?", nil) }, 5 * time.Minute, 2},
		{"after an update", func(s *scaling) {
			s.pass(10*time.Minute, low, func(in *ScaleInput) { in.Blocked = "is being updated" })
		}, 5 * time.Minute, 2},
		{"after a person changed the number", func(s *scaling) { s.pass(4*time.Minute, "20 20 20", nil) }, 5*time.Minute + ScaleEvery, 2},
		{"after a change of the settings", func(s *scaling) {
			s.pass(4*time.Minute, low, func(in *ScaleInput) { in.Autoscale.CPU = 80 })
		}, 5*time.Minute + ScaleEvery, 2},
		{"after a gap between decisions", func(s *scaling) { s.pass(4*time.Minute, low, nil); s.now += int64(10 * time.Minute) }, 5*time.Minute + ScaleEvery, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scaling{t: t}
			c.before(s)
			if d := s.pass(c.left, low, nil); d.Count != c.want {
				t.Errorf("after %s there are %d members (%s), want %d", c.left, d.Count, d.Reason, c.want)
			}
		})
	}
	s := &scaling{t: t}
	s.pass(4*time.Minute, low, nil)
	if d := s.pass(ScaleEvery, high, nil); d.Count != 6 {
		t.Errorf("a high use after a low one gives %d members (%s), want 6 at once", d.Count, d.Reason)
	}
	s = &scaling{t: t}
	s.pass(10*time.Minute, fits, nil)
	if d := s.pass(time.Minute, low, nil); !strings.Contains(d.Reason, "if it stays so for 4m15s") {
		t.Errorf("the reason is %q, want the time that is left", d.Reason)
	}
}

// TestAutoscaleSettles: decisions ignore the CPU use of a member in the first 15 seconds after it became ready, or
// after its instance was replaced. The first decision of a leadership term uses every ready member.
func TestAutoscaleSettles(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*ScaleMember)
	}{
		{"a member that was starting", func(m *ScaleMember) { m.State = ScaleStarting }},
		{"a member that was unhealthy", func(m *ScaleMember) { m.State, m.CPU = ScaleUnhealthy, 0 }},
		{"a member with a new order", func(m *ScaleMember) { m.Order.Sequence++ }},
		{"a member whose instance was replaced", func(m *ScaleMember) { m.Restarts++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scaling{t: t}
			change := func(in *ScaleInput) { c.change(&in.Members[1]) }
			s.pass(ScaleEvery, "70 70", nil)
			s.pass(ScaleEvery, "70 70", change)
			for range 2 {
				if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 2 || d.Measured != 1 {
					t.Errorf("soon after the change: %d members, %d measured (%s), want 2, 1", d.Count, d.Measured, d.Reason)
				}
				s.now -= int64(ScaleEvery) / 2
			}
			if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 4 {
				t.Errorf("15 seconds after the change: %d members (%s), want 4", d.Count, d.Reason)
			}
		})
	}
	s := &scaling{t: t}
	if d := s.pass(ScaleEvery, "70 300", nil); d.Count != 4 {
		t.Errorf("the first decision of a term gives %d members (%s), want 4", d.Count, d.Reason)
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
		{"a member that has run for long", fsm.StatusRunning, nil, ScaleReady},
		{"a running member after an apply that changes no order", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.UpdatedAt = now }, ScaleReady},
		{"a healthy member", fsm.StatusRunning, func(_ *fsm.Workload, a *fsm.Observation) { a.Health = fsm.Healthy }, ScaleReady},
		{"a running member that was ordered a moment ago", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.AssignedAt = ago(14 * time.Second) }, ScaleStarting},
		{"a running member whose order was accepted a moment ago", fsm.StatusRunning, func(w *fsm.Workload, _ *fsm.Observation) { w.AcknowledgedAt = ago(14 * time.Second) }, ScaleStarting},
		{"an unhealthy member", fsm.StatusRunning, func(_ *fsm.Workload, a *fsm.Observation) { a.Health = fsm.Unhealthy }, ScaleUnhealthy},
		{"a member without a node", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Node = "" }, ScaleAbsent},
		{"a new member without a node", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Node, w.CreatedAt = "", now }, ScaleAbsent},
		{"a member on a lost node", fsm.StatusUnknown, nil, ScaleAbsent},
		{"a member that was given up", fsm.StatusFailed, nil, ScaleFailed},
		{"a member that waits for a retry", fsm.StatusRetryPending, func(w *fsm.Workload, _ *fsm.Observation) { w.Retry.Attempts = 1 }, ScaleFailed},
		{"a failed member that was ordered again a moment ago", fsm.StatusScheduled, func(w *fsm.Workload, _ *fsm.Observation) { w.Retry.Attempts, w.AssignedAt = 1, now }, ScaleFailed},
		{"a new member that fails", fsm.StatusFailed, func(w *fsm.Workload, _ *fsm.Observation) { w.CreatedAt = ago(4 * time.Minute) }, ScaleStarting},
		{"a new member that is pending", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.CreatedAt = ago(time.Minute) }, ScaleStarting},
		{"a member that was moved a minute ago", fsm.StatusPending, func(w *fsm.Workload, _ *fsm.Observation) { w.AssignedAt = ago(time.Minute) }, ScaleStarting},
		{"a member whose health checks have just begun", fsm.StatusRunning, func(w *fsm.Workload, a *fsm.Observation) {
			w.AssignedAt, a.Health = ago(time.Minute), fsm.HealthStarting
		}, ScaleStarting},
		{"a member that has been pending for too long", fsm.StatusPending, nil, ScaleAbsent},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &fsm.Observation{}
			w := &fsm.Workload{ID: "web-0", Status: c.status, Desired: fsm.DesiredRunning, Node: "a", Demand: &fsm.Demand{}, Actual: a,
				CreatedAt: ago(30 * time.Minute), AssignedAt: ago(20 * time.Minute), AcknowledgedAt: ago(20 * time.Minute), UpdatedAt: ago(20 * time.Minute)}
			if c.change != nil {
				c.change(w, a)
			}
			if got := scaleStateOf(w, now); got != c.want {
				t.Errorf("the member has the ScaleState %d, want %d", got, c.want)
			}
		})
	}
}
