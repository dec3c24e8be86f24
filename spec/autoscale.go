package spec

import (
	"fmt"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// autoscale reads the settings of the autoscaler: `autoscale: {min: 2, max: 10, cpu: 70}`.
func (d *decoder) autoscale(n *node, here where) *controlv1.Autoscale {
	a := &controlv1.Autoscale{}
	w := here.wire
	d.object(n, here, []field{
		{"min", w + ".min", func(_ string, n *node, at where) { a.Min = int32(d.integer(n, at, 32)) }},
		{"max", w + ".max", func(_ string, n *node, at where) { a.Max = int32(d.integer(n, at, 32)) }},
		{"cpu", w + ".cpu", func(_ string, n *node, at where) { a.Cpu = int32(d.integer(n, at, 32)) }},
	})
	return a
}

// autoscale checks the settings of the autoscaler.
func (e *Errors) autoscale(id string, s *controlv1.WorkloadSpec) {
	a := s.GetAutoscale()
	if a == nil {
		return
	}
	const at = "spec.autoscale"
	switch {
	case IsJob(s) || OnEveryNode(s):
		e.add(at, "is for services: the number of members of this kind is part of its specification", s.GetKind())
	case s.GetType() != "" && s.GetType() != TypeContainer || s.GetContainer() == nil:
		e.add(at, "is for containers: the CPU use of stacks and virtual machines does not say how many are needed", s.GetType())
	case len(localData(s)) > 0:
		e.addf(at, "", "is not for workloads with data that only their node keeps (%s): a member that is removed would lose it; use a volume that other nodes reach too", localData(s)[0].GetName())
	}
	e.between(at+".min", int64(a.GetMin()), 1, MaxCount, "")
	e.between(at+".max", int64(a.GetMax()), 1, MaxCount, "")
	e.between(at+".cpu", int64(a.GetCpu()), 1, bounds.MaxScaleCPU,
		": resources.cpu also limits the CPU use, so members could hardly use more than a higher target; raise resources.cpu instead")
	if a.GetMax() < a.GetMin() {
		e.addf(at+".max", strconv.Itoa(int(a.GetMax())), "must be at least min, %d", a.GetMin())
		return
	}
	if s.Count != nil && (s.GetCount() < a.GetMin() || s.GetCount() > a.GetMax()) {
		e.addf("spec.count", strconv.Itoa(int(s.GetCount())), "must be between min and max of autoscale, %d and %d: it is the number of members of a new group", a.GetMin(), a.GetMax())
	}
	e.members("autoscale", id, s, int(a.GetMax()))
}

// sized returns the number of members that a group with an autoscaler has after an apply. present is the present
// number of members. It is nil for a new group, which gets initial members. A group that a person scaled to 0 keeps 0
// members.
func sized(initial int, a *controlv1.Autoscale, present *int) int {
	if present == nil {
		return initial
	}
	if *present == 0 {
		return 0
	}
	return max(int(a.GetMin()), min(*present, int(a.GetMax())))
}

// needsCPU returns an error if a workload with an autoscaler has no CPU request.
func needsCPU(s *controlv1.WorkloadSpec) error {
	if s.GetAutoscale() == nil || s.GetResources().GetCpuMillicores() > 0 {
		return nil
	}
	var e Errors
	e.add("spec.autoscale", "needs resources.cpu: the CPU use of the members is measured in percent of it", "")
	return e
}

// autoscaleDemand converts the settings of the autoscaler for the log; nil if there is none.
func autoscaleDemand(s *controlv1.WorkloadSpec) *commandv1.Autoscale {
	a := s.GetAutoscale()
	if a == nil || s.GetGroup() == "" {
		return nil
	}
	return &commandv1.Autoscale{Min: uint32(a.GetMin()), Max: uint32(a.GetMax()), Cpu: uint32(a.GetCpu())}
}

// KeepAutoscale adds the settings of a group's autoscaler, which may be nil, to the command that stores one of its
// members (a put). Prepare cannot do this for a single member: from a request with an autoscaler it makes the command
// for a whole group.
func KeepAutoscale(p *commandv1.WorkloadPut, a *fsm.Autoscale) error {
	if a == nil {
		return nil
	}
	stored := &controlv1.WorkloadSpec{}
	if err := stored.UnmarshalVT(p.GetSpec()); err != nil {
		return fmt.Errorf("workload %s: stored specification: %w", p.GetId(), err)
	}
	stored.Autoscale = autoscaleView(a).GetSettings()
	p.Demand.Autoscale = autoscaleDemand(stored)
	text, err := stored.MarshalVT()
	p.Spec = text
	return err
}

// autoscaleView returns the settings of the autoscaler of a workload for users; nil if there is none.
func autoscaleView(a *fsm.Autoscale) *controlv1.AutoscaleStatus {
	if a == nil {
		return nil
	}
	return &controlv1.AutoscaleStatus{Settings: &controlv1.Autoscale{Min: int32(a.Min), Max: int32(a.Max), Cpu: int32(a.CPU)}}
}
