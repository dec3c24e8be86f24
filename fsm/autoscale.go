package fsm

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Autoscale holds the settings by which the leader chooses the number of members of a group. A value that is part of
// a State is never modified.
type Autoscale struct {
	Min, Max uint32 // limits of the number of members
	CPU      uint32 // wanted CPU use of the members in percent of Demand.CPU
}

// allows reports whether a group may be scaled to a number of members. A person may also scale the
// group to 0 members; the leader may not (byLeader).
func (a *Autoscale) allows(count uint32, byLeader bool) bool {
	return a == nil || a.Min <= count && count <= a.Max || count == 0 && !byLeader
}

func (a *Autoscale) String() string {
	if a == nil {
		return "off"
	}
	return fmt.Sprintf("from %d to %d at %d %% CPU", a.Min, a.Max, a.CPU)
}

func (a *Autoscale) equal(b *Autoscale) bool { return a == b || a != nil && b != nil && *a == *b }

func autoscaleOf(m *commandv1.Autoscale) *Autoscale {
	if m == nil {
		return nil
	}
	return &Autoscale{m.GetMin(), m.GetMax(), m.GetCpu()}
}

func autoscalePB(a *Autoscale) *commandv1.Autoscale {
	if a == nil {
		return nil
	}
	return &commandv1.Autoscale{Min: a.Min, Max: a.Max, Cpu: a.CPU}
}

func (e *encoder) autoscale(a *Autoscale) {
	if a == nil {
		return
	}
	e.str("autoscale")
	e.u64(uint64(a.Min))
	e.u64(uint64(a.Max))
	e.u64(uint64(a.CPU))
}
