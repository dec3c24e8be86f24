package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
)

// The number of members of a group with the field autoscale follows the CPU use of its members. The rules are
// those of the Kubernetes HorizontalPodAutoscaler.

// Rules of the autoscaler.
const (
	ScaleEvery      = 15 * time.Second // time between two decisions about a group
	scaleSettle     = 15 * time.Second // after this time the use of a new member no longer contains its start
	scaleDownWindow = 5 * time.Minute  // all decisions of this time must want fewer members
	scaleGap        = time.Minute      // a longer time between two decisions begins a new window
	scaleTolerance  = 0.1              // difference from the target, as a fraction, that changes nothing
	UsageFresh      = time.Minute      // an older sample counts as missing
)

// ScaleInput is what the autoscaler knows about one group.
type ScaleInput struct {
	fsm.Autoscale
	Request int64  // CPU request of each member in millicores
	Count   int    // present number of members
	Blocked string // why the number must not be changed now; "" if it may
	Members []ScaleMember
	Now     int64 // nanoseconds on a clock that never goes back
}

// ScaleMember is one member of a group.
type ScaleMember struct {
	Ready    bool // it is available, and not since a moment ago
	Measured bool
	CPU      float64 // percent; 100 = one core
}

// ScaleDecision is the result of one decision about a group.
type ScaleDecision struct {
	Count    int     // number of members that the group should have now
	Use      float64 // CPU use of the measured members in percent of their request; -1 if no member is measured
	Measured int     // number of measured members
	Reason   string
}

// ScaleWindow holds the wishes of the last minutes. The zero value is an empty window.
type ScaleWindow struct {
	settings fsm.Autoscale
	count    int // number of members at the last decision
	since    int64
	last     int64
	wishes   []wish // oldest first
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

// Autoscale decides how many members a group should have, and returns the window for the next decision. More
// members are added at once, but at most as many as there are. Members are removed only after scaleDownWindow
// in which every decision wanted fewer, and only down to the highest wish of that time. A change of the number
// or of the settings, by whomever, begins a new window.
func Autoscale(w ScaleWindow, in ScaleInput) (ScaleDecision, ScaleWindow) {
	d, want := in.wish()
	if w.last == 0 || w.count != in.Count || w.settings != in.Autoscale || in.Now-w.last > int64(scaleGap) {
		w = ScaleWindow{since: in.Now}
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
	return d, w
}

// wish returns the number of members that the present use asks for, between min and max.
func (in *ScaleInput) wish() (ScaleDecision, int) {
	d := ScaleDecision{Use: -1}
	var sum float64 // of the measured members, in percent of one request
	missing, unready := 0, 0
	for _, m := range in.Members {
		switch {
		case !m.Ready:
			unready++
		case !m.Measured || in.Request <= 0:
			missing++
		default:
			sum += m.CPU * 1000 / float64(in.Request)
			d.Measured++
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
	target := float64(in.CPU)
	up := d.Use > target
	// Members without a measurement count against the change: as idle if members would be added, as fully used
	// if members would be removed. Members that are not ready count as idle members too, if members would be added.
	of := d.Measured + missing
	if up {
		of += unready
	} else {
		sum += 100 * float64(missing)
	}
	ratio := sum / float64(of) / target
	n := int(math.Ceil(ratio*float64(of) - 1e-6)) // the small number absorbs rounding errors
	if math.Abs(ratio-1) <= scaleTolerance || (ratio > 1) != up || n == in.Count || (n > in.Count) != up {
		d.Reason += ": no change"
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

// ScaleInputOf collects the input of a decision about a group from the state; ok is false if the group has no
// autoscaler. usage returns the CPU use of a workload in percent of one core. clock is the time of the state
// and now the time for ScaleInput.Now.
func ScaleInputOf(v fsm.View, group string, usage func(*fsm.Workload) (float64, bool), clock, now int64) (in ScaleInput, ok bool) {
	members := fsm.Members(v, group)
	if len(members) == 0 || members[0].Demand.Autoscale == nil {
		return in, false
	}
	in = ScaleInput{Autoscale: *members[0].Demand.Autoscale, Request: members[0].Demand.CPU, Count: fsm.Count(members), Now: now}
	stopped := ""
	for _, w := range members {
		if w.Desired == fsm.DesiredStopped && stopped == "" {
			stopped = w.ID
		}
		m := ScaleMember{Ready: w.Desired == fsm.DesiredRunning && w.Available() && w.UpdatedAt <= clock-int64(scaleSettle)}
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
