package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
)

// The number of members of a group with the field autoscale follows the CPU use of its members. The formula is
// that of the Kubernetes HorizontalPodAutoscaler; docs/adr/0057-autoscaler.md lists the differences.

// Rules of the autoscaler.
const (
	ScaleEvery      = 15 * time.Second // time between two decisions about a group
	scaleSettle     = 15 * time.Second // after this time the use of a new member no longer contains its start
	scaleStart      = 5 * time.Minute  // a member that is not available after this time does not count as starting
	scaleDownWindow = 5 * time.Minute  // members are removed only if all decisions within this time wanted fewer members
	scaleGap        = time.Minute      // a longer time between two decisions begins a new window
	scaleTolerance  = 0.1              // difference between use and target, as a fraction of the target, up to which the number of members stays
	UsageFresh      = time.Minute      // a CPU measurement older than this counts as missing
)

// ScaleInput holds the facts about one group from which the autoscaler decides.
type ScaleInput struct {
	fsm.Autoscale
	Request int64  // CPU request of each member in millicores
	Count   int    // present number of members
	Within  int    // most members that the quota of the namespace has room for, at least Count; 0 = no limit
	Blocked string // why the number must not be changed now; "" if it may
	Members []ScaleMember
	Now     int64 // nanoseconds on a clock that never goes back
}

// ScaleMember is one member of a group.
type ScaleMember struct {
	ID       string
	State    ScaleState
	Order    fsm.Generation // another Order or Restarts means another instance
	Restarts int32
	Measured bool
	CPU      float64 // percent; 100 = one core
}

// ScaleState says how a decision treats a member, for example as ready, as starting or as failed.
type ScaleState int

const (
	ScaleReady     ScaleState = iota // available
	ScaleStarting                    // is starting, or became available only a moment ago
	ScaleUnhealthy                   // runs, but its health checks fail
	ScaleFailed                      // has failed, and waits for a retry or was given up
	ScaleAbsent                      // has no node, is on a lost node, or has been starting for too long
)

// ScaleDecision is the result of one decision about a group.
type ScaleDecision struct {
	Count    int     // number of members that the group should have now
	Use      float64 // CPU use of the measured members in percent of their request; -1 if no member is measured
	Measured int     // number of measured members
	Reason   string
}

// ScaleWindow holds the decisions of the last minutes about one group: for each, the number of members that
// the CPU use asked for (its wish). The zero value is an empty window.
type ScaleWindow struct {
	settings fsm.Autoscale
	count    int // number of members at the last decision
	since    int64
	last     int64
	wishes   []wish // oldest first
	members  map[string]instance
}

// instance describes a member as the last decision saw it.
type instance struct {
	ready    bool
	order    fsm.Generation
	restarts int32
	since    int64 // time since which the member is ready, on the clock of ScaleInput.Now
}

type wish struct {
	at    int64
	count int
}

// Autoscaled is the last decision about a group, for users. Times are Unix nanoseconds; 0 = never.
type Autoscaled struct {
	ScaleDecision
	Members    int // present number of members
	At         int64
	LastChange string
	ChangedAt  int64
}

// Autoscale decides how many members a group should have, and returns the window for the next
// decision. More members are added at once, but the group at most doubles. Members are removed only
// if every decision during scaleDownWindow wanted fewer, and only down to the highest number that
// one of these decisions wanted. Any change of the number or of the settings begins a new window.
func Autoscale(w ScaleWindow, in ScaleInput) (ScaleDecision, ScaleWindow) {
	in.Members, w.members = settled(w.members, in.Members, in.Now)
	d, want := in.wish()
	if w.last == 0 || w.count != in.Count || w.settings != in.Autoscale || in.Now-w.last > int64(scaleGap) {
		w = ScaleWindow{since: in.Now, members: w.members}
	}
	w.settings, w.count, w.last = in.Autoscale, in.Count, in.Now
	w.wishes = append(slices.DeleteFunc(slices.Clone(w.wishes), func(x wish) bool { return x.at <= in.Now-int64(scaleDownWindow) }), wish{in.Now, want})
	d.Count = in.Count
	switch low, high := int(in.Min), int(in.Max); {
	case in.Blocked != "":
	case in.Count < low:
		d.Count, d.Reason = low, fmt.Sprintf("min is %d", low)
	case in.Count > high:
		d.Count, d.Reason = high, fmt.Sprintf("max is %d", high)
	case want > in.Count:
		if d.Count = min(want, 2*in.Count); d.Count < want {
			d.Reason += ", at most doubled at once"
		}
	case want < in.Count:
		highest, fewer := want, in.Now // fewer is the time from which on every decision wanted fewer members
		for _, x := range slices.Backward(w.wishes) {
			if x.count >= in.Count {
				break
			}
			highest, fewer = max(highest, x.count), x.at
		}
		if fewer == w.wishes[0].at {
			fewer = max(w.since, in.Now-int64(scaleDownWindow))
		}
		if left := fewer + int64(scaleDownWindow) - in.Now; left > 0 {
			d.Reason += fmt.Sprintf(", if it stays so for %s", time.Duration(left).Round(time.Second))
			break
		}
		if d.Count = highest; highest > want {
			d.Reason += fmt.Sprintf(", and wanted up to %d in the last %d minutes", highest, scaleDownWindow/time.Minute)
		}
	}
	if in.Within > 0 && d.Count > in.Within {
		d.Count = in.Within
		d.Reason += fmt.Sprintf(", but the quota of the namespace has room for only %s", plural(in.Within))
	}
	return d, w
}

// settled returns the members for a decision. Members that became ready less than scaleSettle ago
// are returned as ScaleStarting, because their CPU use is not typical yet. before has the members as the
// last decision saw them. The second result has the members as this decision sees them; pass it to the next
// decision. A member that is not in before keeps the State that ScaleInputOf set.
func settled(before map[string]instance, members []ScaleMember, now int64) ([]ScaleMember, map[string]instance) {
	members, after := slices.Clone(members), make(map[string]instance, len(members))
	for i, m := range members {
		x := instance{m.State == ScaleReady, m.Order, m.Restarts, now}
		switch old, known := before[m.ID]; {
		case !x.ready:
		case !known:
			x.since = now - int64(scaleSettle)
		case old.ready && old.order == x.order && old.restarts == x.restarts:
			x.since = old.since
		}
		if x.ready && now-x.since < int64(scaleSettle) {
			members[i].State = ScaleStarting
		}
		after[m.ID] = x
	}
	return members, after
}

// wish returns the number of members that the present CPU use asks for, between min and max.
//
// While a member is not ready, no member is removed. When the group grows, the CPU use of a starting member is
// taken as 0, and failed or absent members are left out. An unhealthy member whose use is above the target is
// overloaded, so its use is included.
func (in *ScaleInput) wish() (ScaleDecision, int) {
	d, target := ScaleDecision{Use: -1}, float64(in.CPU)
	var sum float64 // sum of the use of the measured members, in percent of one request
	missing, starting, failed, unavailable := 0, 0, 0, ""
	for _, m := range in.Members {
		use := -1.0
		if m.Measured && in.Request > 0 {
			use = m.CPU * 1000 / float64(in.Request)
		}
		switch {
		case m.State == ScaleReady && use >= 0, m.State == ScaleUnhealthy && use >= target:
			sum += use
			d.Measured++
		case m.State == ScaleReady:
			missing++
		case m.State == ScaleStarting:
			starting++
		case m.State == ScaleFailed, m.State == ScaleUnhealthy:
			failed++
		}
		if m.State != ScaleReady && unavailable == "" {
			unavailable = m.ID
		}
	}
	if d.Measured > 0 {
		d.Use = sum / float64(d.Measured)
	}
	if in.Blocked != "" {
		d.Reason = in.Blocked
		return d, in.Count
	}
	if d.Measured == 0 {
		d.Reason = "no ready member has a measured CPU use"
		return d, in.Count
	}
	d.Reason = fmt.Sprintf("CPU use is %.0f %% of the request in %d of %d members, target %d %%", d.Use, d.Measured, in.Count, in.CPU)
	up := d.Use > target
	// For a member without a measurement, assume the CPU use that makes the change smaller: 0 if members would
	// be added, the full request if members would be removed.
	of := d.Measured + missing
	if up {
		of += starting
	} else {
		sum += 100 * float64(missing)
	}
	ratio := sum / float64(of) / target
	n := int(math.Ceil(ratio*float64(of) - 1e-6)) // the small number absorbs rounding errors
	if up && failed > 0 {
		n += failed // failed members do no work: add n working members beside them
		d.Reason += fmt.Sprintf(", not counting %d that failed", failed)
	}
	if math.Abs(ratio-1) <= scaleTolerance || (ratio > 1) != up || n == in.Count || (n > in.Count) != up {
		d.Reason += ": no change"
		return d, in.Count
	}
	if !up && unavailable != "" {
		d.Reason += ": no change while " + unavailable + " is not available"
		return d, in.Count
	}
	n = max(int(in.Min), min(n, int(in.Max)))
	if n == in.Count {
		d.Reason += fmt.Sprintf(": %s, the limit", plural(n))
	} else {
		d.Reason += ": " + plural(n)
	}
	return d, n
}

func plural(n int) string {
	if n == 1 {
		return "1 member"
	}
	return fmt.Sprintf("%d members", n)
}

// ScaleInputOf collects the input of a decision about a group from the state; ok is false if the
// group has no autoscaler. usage returns the CPU use of a workload in percent of one core. clock is
// the present time on the clock of the state; now becomes ScaleInput.Now.
func ScaleInputOf(v fsm.View, group string, usage func(*fsm.Workload) (float64, bool), clock, now int64) (in ScaleInput, ok bool) {
	members := fsm.Members(v, group)
	if len(members) == 0 || members[0].Demand.Autoscale == nil {
		return in, false
	}
	in = ScaleInput{Autoscale: *members[0].Demand.Autoscale, Request: members[0].Demand.CPU, Count: fsm.Count(members), Now: now}
	if n, limited := fsm.MembersWithin(v, members[0], in.Count); limited {
		in.Within = n
	}
	stopped := ""
	for _, w := range members {
		if w.Desired == fsm.DesiredStopped && stopped == "" {
			stopped = w.ID
		}
		m := ScaleMember{ID: w.ID, State: scaleStateOf(w, clock), Order: w.Generation, Restarts: w.Actual.RestartCount}
		m.CPU, m.Measured = usage(w)
		in.Members = append(in.Members, m)
	}
	r, rolls := v.Rollout(group)
	switch mode := v.Info().Mode; {
	case mode.Frozen():
		in.Blocked = fmt.Sprintf("the control plane is in mode %s", mode)
	case in.Count == 0:
		in.Blocked = "scaled to 0: `persysctl scale " + group + "=N` starts the group again"
	case stopped != "":
		in.Blocked = stopped + " is stopped: `persysctl start " + stopped + "` starts it again"
	case rolls && r.Phase != rollout.Completed:
		in.Blocked = "waits for the end of the update: `persysctl rollout status " + group + "` shows it"
	}
	return in, true
}

// scaleStateOf returns how a decision must treat a member. It does not use UpdatedAt, which changes with
// every apply, but the times of the order for the member.
func scaleStateOf(w *fsm.Workload, clock int64) ScaleState {
	switch {
	case w.Available() && max(w.AssignedAt, w.AcknowledgedAt) <= clock-int64(scaleSettle):
		return ScaleReady
	case w.Available():
		return ScaleStarting
	case w.Status == fsm.StatusRunning && w.Actual.Health == fsm.Unhealthy:
		return ScaleUnhealthy
	case w.Node == "" || w.Status == fsm.StatusUnknown:
		return ScaleAbsent // do not add a member in its place: either no node has room, or this member is placed again soon
	case w.CreatedAt > clock-int64(scaleStart):
		return ScaleStarting // a member that fails from the beginning is not replaced before scaleStart
	case w.Status == fsm.StatusFailed || w.Retry.Attempts > 0 || w.Retry.FirstFailureAt != 0:
		return ScaleFailed
	case w.AssignedAt > clock-int64(scaleStart):
		return ScaleStarting
	}
	return ScaleAbsent
}
