package spec

import (
	"strconv"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Defaults of the update strategy of a workload, in seconds.
const (
	defaultMinHealthy = 10
	defaultDeadline   = 300
)

// Orders of an update.
const (
	stopFirst  = "stop-first"
	startFirst = "start-first"
)

var updateOrders = []string{stopFirst, startFirst}

// update reads the update strategy of a workload, such as `update: {max_parallel: 1, min_healthy_time: 10s}`.
func (d *decoder) update(n *node, here where) *controlv1.UpdateStrategy {
	u := &controlv1.UpdateStrategy{}
	w := here.wire
	d.object(n, here, []field{
		{"max_parallel", w + ".max_parallel", func(_ string, n *node, at where) { u.MaxParallel = int32(d.integer(n, at, 32)) }},
		{"min_healthy_time min_healthy_time_seconds", w + ".min_healthy_time_seconds", d.seconds(&u.MinHealthyTimeSeconds)},
		{"healthy_deadline healthy_deadline_seconds", w + ".healthy_deadline_seconds", d.seconds(&u.HealthyDeadlineSeconds)},
		{"auto_revert", w + ".auto_revert", func(_ string, n *node, at where) { u.AutoRevert = d.boolean(n, at) }},
		{"order", w + ".order", func(_ string, n *node, at where) { u.Order = d.str(n, at) }},
		{"canary", w + ".canary", func(_ string, n *node, at where) { u.Canary = int32(d.integer(n, at, 32)) }},
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
	e.word(at+".order", u.GetOrder(), updateOrders)
	e.between(at+".canary", int64(u.GetCanary()), 0, MaxCount, "")
	first := startsFirst(u)
	switch kind := strings.ToLower(strings.TrimSpace(s.GetKind())); {
	case !first:
	case kind != "" && kind != KindService:
		e.add(at+".order", "must be stop-first for a workload of kind "+kind+": start-first is for the copies of a count", u.GetOrder())
	case s.GetExclusive():
		e.add(at+".order", "must be stop-first for an exclusive workload, which never runs twice at once", u.GetOrder())
	case s.GetType() == TypeVM:
		e.add(at+".order", "must be stop-first for virtual machines, whose disks and addresses only one machine can have", u.GetOrder())
	case hasData(s):
		e.dataStartsFirst(u)
	}
	if u.GetCanary() <= 0 {
		return
	}
	count, of := int(s.GetCount()), "count"
	if s.Autoscale != nil {
		count, of = int(s.GetAutoscale().GetMin()), "autoscale.min"
	}
	switch {
	case OnEveryNode(s):
		e.add(at+".canary", "is for the copies of a count", strconv.Itoa(int(u.GetCanary())))
	case count == 0: // a count of 0: no copy runs, so canary has no upper limit here
	case first && int(u.GetCanary()) > count:
		e.addf(at+".canary", strconv.Itoa(int(u.GetCanary())), "must be at most %s, %d: as many extra copies run until the promotion", of, count)
	case !first && int(u.GetCanary()) >= count:
		e.addf(at+".canary", strconv.Itoa(int(u.GetCanary())), "must be less than %s, %d: otherwise all copies are updated before the promotion", of, count)
	}
}

// hasData reports whether the workload has data that exists only on its node, such as a volume, as far as the
// specification shows. For an inline Compose stack it reads only the text of the Compose file. SetStackData
// checks the loaded project, which includes services from other files.
func hasData(s *controlv1.WorkloadSpec) bool {
	var seen []string
	if c := s.GetCompose(); s.GetType() == TypeCompose && !isGit(c) {
		seen, _ = composeData(c)
	}
	return len(dataWith(s, seen)) > 0
}

func (e *Errors) dataStartsFirst(u *controlv1.UpdateStrategy) {
	e.add("spec.update.order", "must be stop-first for a workload with local data, which an extra copy does not have", u.GetOrder())
}

// startsFirst reports whether an update runs extra copies before it replaces a copy.
func startsFirst(u *controlv1.UpdateStrategy) bool {
	return strings.EqualFold(strings.TrimSpace(u.GetOrder()), startFirst)
}

// updateOrder returns the order of an update as a word; empty for the default.
func updateOrder(first bool) string {
	if first {
		return startFirst
	}
	return ""
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
		MaxParallel: int32(or(u.GetMaxParallel(), 1)), AutoRevert: u.GetAutoRevert(), StartFirst: startsFirst(u), Canary: u.GetCanary(),
		MinHealthy:      or(u.GetMinHealthyTimeSeconds(), defaultMinHealthy) * int64(time.Second),
		HealthyDeadline: or(u.GetHealthyDeadlineSeconds(), defaultDeadline) * int64(time.Second),
	}
}
