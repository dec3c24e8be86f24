package spec

import (
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// reschedule reads how often a workload may be moved off nodes that cannot run it: `reschedule: {attempts: 3,
// interval: 1h}`.
func (d *decoder) reschedule(n *node, here where) *controlv1.RescheduleSpec {
	r := &controlv1.RescheduleSpec{}
	w := here.wire
	d.object(n, here, []field{
		{"attempts", w + ".attempts", func(_ string, n *node, at where) { r.Attempts = new(int32(d.integer(n, at, 32))) }},
		{"interval interval_seconds", w + ".interval_seconds", d.longSeconds(&r.IntervalSeconds)},
	})
	return r
}

// reschedule validates the limit of moves.
func (e *Errors) reschedule(s *controlv1.WorkloadSpec) {
	const at = "spec.reschedule"
	r := s.GetReschedule()
	switch {
	case r == nil:
		return
	case s.GetType() == TypeVM:
		e.add(at, "is for containers and stacks: a virtual machine keeps its node", "")
	case s.GetExclusive():
		e.add(at, "is not for exclusive workloads: they keep their node", "")
	case OnEveryNode(s):
		e.add(at, "is not for workloads with a member on every node: each member keeps its node", "")
	}
	e.between(at+".attempts", int64(r.GetAttempts()), 0, bounds.MaxMoves, "")
	if within := r.GetIntervalSeconds(); within != 0 {
		e.between(at+".interval_seconds", within, bounds.MinMovesWithin, bounds.MaxMovesWithin, " seconds")
	}
}

// normaliseReschedule sets the default attempts and interval, if the specification leaves them out.
func normaliseReschedule(s *controlv1.WorkloadSpec) {
	r := s.GetReschedule()
	if r == nil {
		return
	}
	if r.Attempts == nil {
		r.Attempts = new(int32(fsm.DefaultMoves))
	}
	if r.IntervalSeconds == 0 {
		r.IntervalSeconds = fsm.DefaultMovesWithin / int64(time.Second)
	}
}

// rescheduleDemand returns, for the planner, how often the workload may be moved off nodes that cannot run it; nil
// means the default.
func rescheduleDemand(s *controlv1.WorkloadSpec) *commandv1.Reschedule {
	r := s.GetReschedule()
	if r == nil {
		return nil
	}
	return &commandv1.Reschedule{Attempts: r.GetAttempts(), Interval: r.GetIntervalSeconds() * int64(time.Second)}
}
