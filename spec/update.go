package spec

import (
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Defaults of the update strategy of a workload, in seconds.
const (
	defaultMinHealthy = 10
	defaultDeadline   = 300
)

// update reads the update strategy of a workload, such as `update: {max_parallel: 1, min_healthy_time: 10s}`.
func (d *decoder) update(n *node, here where) *controlv1.UpdateStrategy {
	u := &controlv1.UpdateStrategy{}
	w := here.wire
	d.object(n, here, []field{
		{"max_parallel", w + ".max_parallel", func(_ string, n *node, at where) { u.MaxParallel = int32(d.integer(n, at, 32)) }},
		{"min_healthy_time min_healthy_time_seconds", w + ".min_healthy_time_seconds", d.seconds(&u.MinHealthyTimeSeconds)},
		{"healthy_deadline healthy_deadline_seconds", w + ".healthy_deadline_seconds", d.seconds(&u.HealthyDeadlineSeconds)},
		{"auto_revert", w + ".auto_revert", func(_ string, n *node, at where) { u.AutoRevert = d.boolean(n, at) }},
	})
	return u
}

// update checks the update strategy of a workload.
func (e *Errors) update(s *controlv1.WorkloadSpec) {
	u := s.GetUpdate()
	if u == nil {
		return
	}
	const at = "spec.update"
	if s.Count == nil && s.Autoscale == nil && !OnEveryNode(s) {
		e.add(at, "is for the copies of a count and for system workloads: a single workload is replaced at once", "")
	}
	e.between(at+".max_parallel", int64(u.GetMaxParallel()), 0, MaxCount, "")
	e.between(at+".min_healthy_time_seconds", int64(u.GetMinHealthyTimeSeconds()), 0, 3600, "")
	e.between(at+".healthy_deadline_seconds", int64(u.GetHealthyDeadlineSeconds()), 0, 86400, "")
	if p := updatePolicy(u); p.GetHealthyDeadline() <= p.GetMinHealthy() {
		e.addf(at+".healthy_deadline_seconds", "", "must be more than min_healthy_time, %d s", p.GetMinHealthy()/int64(time.Second))
	}
}

// updatePolicy converts an update strategy to its message for the log. nil means that all members are updated
// at once.
func updatePolicy(u *controlv1.UpdateStrategy) *commandv1.UpdatePolicy {
	if u == nil {
		return nil
	}
	or := func(v, other int32) int64 {
		if v == 0 {
			v = other
		}
		return int64(v)
	}
	return &commandv1.UpdatePolicy{
		MaxParallel: int32(or(u.GetMaxParallel(), 1)), AutoRevert: u.GetAutoRevert(),
		MinHealthy:      or(u.GetMinHealthyTimeSeconds(), defaultMinHealthy) * int64(time.Second),
		HealthyDeadline: or(u.GetHealthyDeadlineSeconds(), defaultDeadline) * int64(time.Second),
	}
}
