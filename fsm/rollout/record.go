package rollout

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Conversions between rollout records and the messages of commands and snapshots.

// PolicyOf converts an update policy from its protobuf message. The sender has filled in the defaults.
func PolicyOf(m *commandv1.UpdatePolicy) Policy {
	return Policy{int(m.GetMaxParallel()), m.GetMinHealthy(), m.GetHealthyDeadline(), m.GetAutoRevert(), m.GetStartFirst(), int(m.GetCanary())}
}

// PB converts an update policy to its protobuf message.
func (p Policy) PB() *commandv1.UpdatePolicy {
	return &commandv1.UpdatePolicy{
		MaxParallel: int32(p.MaxParallel), MinHealthy: p.MinHealthy, HealthyDeadline: p.Deadline, AutoRevert: p.AutoRevert,
		StartFirst: p.StartFirst, Canary: int32(p.Canary),
	}
}

// Fault describes the first invalid field of an update policy; "" if every field is valid.
func (p Policy) Fault() string {
	const day = 24 * 3600 * 1e9
	switch {
	case p.MaxParallel < 1:
		return fmt.Sprintf("max_parallel: %d is not 1 or more", p.MaxParallel)
	case p.MinHealthy < 1 || p.Deadline <= p.MinHealthy || p.Deadline > day:
		return fmt.Sprintf("healthy_deadline: %d ns must be more than min_healthy_time, %d ns, and at most a day", p.Deadline, p.MinHealthy)
	case p.Canary < 0:
		return fmt.Sprintf("canary: %d is negative", p.Canary)
	}
	return ""
}

// PB converts a rollout record to its protobuf message.
func (r *Rollout) PB() *commandv1.RolloutRecord {
	m := &commandv1.RolloutRecord{
		Group: r.Group, Id: &commandv1.Generation{Incarnation: r.Incarnation, Sequence: r.Sequence}, Policy: r.Policy.PB(),
		Phase: string(r.Phase), Reason: r.Reason, Former: r.Former, FormerRan: r.FormerRan, Reverting: r.Reverting,
		StartedAt: r.StartedAt, ProgressAt: r.ProgressAt, EndedAt: r.EndedAt, By: r.By,
		Promoted: r.Promoted,
	}
	for i := range r.Members {
		x := &r.Members[i]
		m.Members = append(m.Members, &commandv1.RolloutMember{Id: x.ID, Content: x.Content, Put: x.Put, TakenAt: x.TakenAt, Settled: x.Settled, Surge: x.Surge, Canary: x.Canary})
	}
	return m
}

// Of converts a rollout record from its protobuf message. It does not check the specifications of
// the members; package fsm does.
func Of(m *commandv1.RolloutRecord) *Rollout {
	r := &Rollout{
		Group: m.GetGroup(), Incarnation: m.GetId().GetIncarnation(), Sequence: m.GetId().GetSequence(), Policy: PolicyOf(m.GetPolicy()),
		Phase: Phase(m.GetPhase()), Reason: m.GetReason(), Former: m.GetFormer(), FormerRan: m.GetFormerRan(), Reverting: m.GetReverting(),
		StartedAt: m.GetStartedAt(), ProgressAt: m.GetProgressAt(), EndedAt: m.GetEndedAt(), By: m.GetBy(),
		Promoted: m.GetPromoted(),
	}
	for _, x := range m.GetMembers() {
		r.Members = append(r.Members, Member{x.GetId(), x.GetContent(), x.GetPut(), x.GetTakenAt(), x.GetSettled(), x.GetSurge(), x.GetCanary()})
	}
	return r
}
