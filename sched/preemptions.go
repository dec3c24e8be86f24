package sched

import (
	"fmt"

	"github.com/persys/compute/fsm"
)

// Two limits keep preemption from moving workloads over and over: a workload that was preempted is not preempted again
// within Tuning.PreemptionCooldown, and within that time at most Tuning.PreemptionBudget workloads are preempted. The
// state has the time of each workload's last preemption, so the limits also hold under a new leader.

// preemptions holds what one planning step needs to enforce the two limits.
type preemptions struct {
	read  bool
	times []int64 // times of the preemptions within the cool-down, earliest first
	made  int     // number of preemptions in this step

	free  bool  // the limits are ignored, see limitText
	again int64 // earliest end of a limit that kept the present search from an eviction; 0 = none did
	most  int   // size of the smallest set of workloads whose eviction would make room, if the budget is too small for it; 0 = no such set
}

// meets records that one of the two limits kept the present search from evicting a workload, and
// when that limit ends.
func (l *preemptions) meets(until int64) { l.again = earlier(l.again, until) }

// cooling reports whether a workload was preempted too recently to be preempted again.
func (p *planner) cooling(v *fsm.Workload) bool {
	until := v.PreemptedAt + p.Tuning.PreemptionCooldown
	if p.preemptions.free || v.PreemptedAt == 0 || until <= p.Now {
		return false
	}
	p.preemptions.meets(until)
	return true
}

// allows reports whether the budget (the limit of preemptions within the cool-down) allows n more
// preemptions.
func (p *planner) allows(n int) bool {
	l := &p.preemptions
	if l.free || n == 0 {
		return true
	}
	if !l.read {
		l.read = true
		p.State.Preempted(p.Now-p.Tuning.PreemptionCooldown, func(w *fsm.Workload) bool {
			l.times = append(l.times, w.PreemptedAt)
			return true
		})
	}
	over := len(l.times) + l.made + n - p.Tuning.PreemptionBudget
	switch {
	case over <= 0:
		return true
	case n > p.Tuning.PreemptionBudget:
		if l.most == 0 || n < l.most {
			l.most = n
		}
	case over <= len(l.times):
		l.meets(l.times[over-1] + p.Tuning.PreemptionCooldown)
	default:
		l.meets(p.Now + p.Tuning.PreemptionCooldown)
	}
	return false
}

// limitText describes the limit that keeps a workload from preempting others, after a search that found no way
// to make room. It is empty if no limit applies.
func (p *planner) limitText(w *fsm.Workload) string {
	l := &p.preemptions
	again, most := l.again, l.most
	if again == 0 && most == 0 {
		return ""
	}
	l.free = true
	best, ok := p.clearance(w, p.State.RankOf(w))
	l.free, l.again = false, 0
	if !ok {
		return ""
	}
	text := fmt.Sprintf("it may not take the place of %s on node %s yet: within %s at most %d workloads are preempted, and none twice",
		named(ids(best.victims)), p.c.nodes.recs[best.slot].ID, span(p.Tuning.PreemptionCooldown), p.Tuning.PreemptionBudget)
	if again == 0 {
		return text + fmt.Sprintf("; %d would have to leave: SCHEDULER_PREEMPTION_BUDGET", most)
	}
	l.again = again
	return text + "; next attempt at " + clock(again)
}

// retryPreemptions queues for evaluation the pending workloads whose limit on preemptions has ended.
func (p *planner) retryPreemptions() {
	c := p.c
	for {
		at, id := c.limited.next()
		if at == 0 || at > p.Now {
			p.wake(at)
			return
		}
		c.limited.set(id, 0)
		delete(c.verdicts, id)
		c.open.add(id)
	}
}
