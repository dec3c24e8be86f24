package control

import (
	"fmt"
	"time"

	"github.com/tidwall/btree"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// scaling holds the groups with an autoscaler, each with its recent decisions (window). A new leader begins
// with empty windows.
type scaling struct {
	groups btree.Map[string, *scaledGroup]
	timer  *timer // the next decisions; nil while there is no group
}

type scaledGroup struct {
	window sched.ScaleWindow
	last   sched.Autoscaled
	asked  bool  // the effect Scale was issued for the group and is not answered yet
	pause  int64 // after a refusal: earliest time of the next change, on the monotonic clock
}

// scalePause is how long the leader waits before it scales a group again, after its last change was
// refused, for example because of a quota.
const scalePause = time.Minute

// findAutoscaled finds all groups that have an autoscaler.
func (t *Term) findAutoscaled(view fsm.View) {
	view.Workloads("", func(w *fsm.Workload) bool {
		t.scalable(w)
		return true
	})
}

// scalable adds the group of w to those that the leader scales, if the group has an autoscaler. The method
// autoscale drops groups that no longer have one.
func (t *Term) scalable(w *fsm.Workload) {
	if w.Demand.Autoscale == nil || w.Desired == fsm.DesiredDeleted {
		return
	}
	s := &t.scaling
	if _, ok := s.groups.Get(w.Demand.Group); !ok {
		s.groups.Set(w.Demand.Group, &scaledGroup{})
	}
	if s.timer == nil {
		s.timer = t.after(sched.ScaleEvery, t.autoscale)
	}
}

// autoscale decides about every group.
func (t *Term) autoscale() {
	s := &t.scaling
	var gone []string
	s.groups.Scan(func(group string, g *scaledGroup) bool {
		in, ok := sched.ScaleInputOf(t.view, group, t.cpuOf, t.planned(), t.now.Mono)
		if !ok {
			gone = append(gone, group)
			return true
		}
		t.scale(group, g, in)
		return true
	})
	for _, group := range gone {
		s.groups.Delete(group)
	}
	if s.timer = nil; s.groups.Len() > 0 {
		s.timer = t.after(sched.ScaleEvery, t.autoscale)
	}
}

// scale decides about one group.
func (t *Term) scale(group string, g *scaledGroup, in sched.ScaleInput) {
	if g.asked {
		return
	}
	var d sched.ScaleDecision
	d, g.window = sched.Autoscale(g.window, in)
	if d.Count != in.Count && t.now.Mono < g.pause {
		g.last.At, g.last.Use, g.last.Measured, g.last.Members = t.now.Wall, d.Use, d.Measured, in.Count
		return // g.last keeps the reason of the refusal
	}
	g.last.ScaleDecision, g.last.At, g.last.Members = d, t.now.Wall, in.Count
	if d.Count == in.Count {
		return
	}
	g.asked = true
	t.emit(Scale{
		ID: t.await(func(answer Input) {
			g.asked = false
			if err := answer.(Scaled).Err; err != nil {
				g.pause = t.now.Mono + int64(scalePause)
				g.last.Reason = fmt.Sprintf("%s; the change to %d was refused: %v", d.Reason, d.Count, err)
				return
			}
			g.last.Members = d.Count
			g.last.LastChange, g.last.ChangedAt = fmt.Sprintf("from %d to %d: %s", in.Count, d.Count, d.Reason), t.now.Wall
		}),
		Group: group, From: in.Count, Count: d.Count, Reason: d.Reason,
	})
}

// cpuOf returns the CPU use of a workload in percent of one core; false if it is unknown or too old.
func (t *Term) cpuOf(w *fsm.Workload) (float64, bool) {
	u, ok := t.WorkloadUsage(w.Node, w.ID)
	return u.CPUPercent, ok && !u.Unmeasured && t.now.Mono-u.Heard <= int64(sched.UsageFresh)
}

// Autoscaled returns the last decision about the number of members of a group; false if there is none in this
// term.
func (t *Term) Autoscaled(group string) (sched.Autoscaled, bool) {
	if g, ok := t.scaling.groups.Get(group); ok && g.last.At != 0 {
		return g.last, true
	}
	return sched.Autoscaled{}, false
}
