package sim

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// parallel returns how many members of group g an update may make unavailable. It is constant in a run.
func (w *world) parallel() int { return 1 + int(w.cfg.Seed%2) }

// policy returns the update policy of group g; nil in runs without rollouts.
func (w *world) policy() *commandv1.UpdatePolicy {
	if !w.has(Rollouts) {
		return nil
	}
	u := &commandv1.UpdatePolicy{
		MaxParallel: int32(w.parallel()), MinHealthy: 3 * sec, HealthyDeadline: 40 * sec, AutoRevert: w.chance(500),
		StartFirst: w.chance(500), Canary: int32(w.rng.IntN(2)),
	}
	if w.cfg.Sabotage == AllAtOnce {
		u.MaxParallel = 9
	}
	return u
}

// roll makes a user take a random action on group g.
func (w *world) roll() {
	switch n := w.rng.IntN(10); {
	case n < 5:
		w.ask("update group g", w.groupOf(2+w.rng.IntN(3)), nil)
	case n < 8:
		action := pick(&w.clock, []string{"pause", "resume", "resume", "undo", "promote", "promote", "abort"})
		w.ask("rollout "+action, func(c *commandv1.Command) {
			c.Body = &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "g", Action: action}}
		}, nil)
	case w.has(Operator):
		m := pick(&w.clock, w.machines)
		on := w.chance(500)
		w.ask("drain "+m.id, drain(m.id, on), nil)
	}
}

// surges adds the surge members (extra members that start before old ones stop) to a command that begins a
// start-first update. They get the specification of the last member in the command.
func (w *world) surges(b *commandv1.PutWorkloads) {
	n := len(b.GetWorkloads())
	for i := range fsm.SurgeCount(b.GetUpdate(), n) {
		p := b.GetWorkloads()[n-1].CloneVT()
		p.Id, p.Desired, p.Demand.Surge = fmt.Sprintf("g-%d", n+i), string(fsm.DesiredRunning), true
		b.Surge = append(b.Surge, p)
	}
}

// waits reports whether the new specification p of a group member was accepted but has no effect
// yet, because a rolling update changes this member later.
func (w *world) waits(after fsm.State, p *commandv1.WorkloadPut) bool {
	x, ok := after.Workload(p.GetId())
	r, rolls := after.Rollout(p.GetDemand().GetGroup())
	if !ok || !rolls || !w.has(Rollouts) || x.SameAs(fsm.Intended(p)) {
		return false
	}
	for _, m := range r.Members {
		if m.ID == x.ID && m.Put != nil && m.Put.GetContent() == p.GetContent() {
			w.oracle.wanted[x.ID] = want{x.Content, x.Desired}
			return true
		}
	}
	return false
}

// rolled checks the promises of rolling updates for one command:
//
//   - a member gets the specification that waited for it, or its previous one;
//   - at most max_parallel members are unavailable because of the update;
//   - while that many are unavailable, a drain evicts no more members.
func (w *world) rolled(before, after fsm.State, c fsm.Command) {
	if !w.has(Rollouts) {
		return
	}
	o := &w.oracle
	steps := c.GetAdvanceRollout() != nil || c.GetSetRollout() != nil
	for _, id := range keys(o.wanted) {
		if id[0] != 'g' {
			continue
		}
		was, known := before.Workload(id)
		x, ok := after.Workload(id)
		if steps && !ok {
			delete(o.wanted, id)
		} else if steps && (!known || x.Content != was.Content || x.Desired != was.Desired) {
			if !expected(before, id, x.Content) && x.Desired != fsm.DesiredDeleted {
				w.violate("rollout", id, "", "%s gives the member content %s, but another specification waits for its turn", fsm.ArmName(c), x.Content[:19])
			}
			o.wanted[id] = want{x.Content, x.Desired}
		}
		switch {
		case !ok || x.Desired != fsm.DesiredRunning || x.Available():
			delete(o.missing, id)
		case known && was.Available() && was.Content != x.Content && !(was.Demand.Surge && !x.Demand.Surge): // not a surge member that becomes a member
			if c.GetPutWorkloads().GetUpdate() != nil {
				w.violate("rollout", id, "", "an apply changes the member before it has its turn")
			}
			o.missing[id] = true
		}
	}
	if len(o.missing) > w.parallel() {
		w.violate("rollout", "", "", "%s: %v are unavailable because of the update; the limit is %d", fsm.ArmName(c), keys(o.missing), w.parallel())
	}
	if r, ok := before.Rollout("g"); ok && c.GetEvict() != nil && r.Phase == "Running" {
		// When the planner decided about the drain, the members that the same step evicts for other reasons
		// were still available. So they are not included here.
		out, others := 0, map[string]bool{}
		for _, e := range c.GetEvict().GetEvictions() {
			was, known := before.Workload(e.GetWorkload())
			others[e.GetWorkload()] = known && was.Available() && e.GetCode() != fsm.CodeDraining && e.GetCode() != fsm.CodeTainted
		}
		after.Group("g", func(x *fsm.Workload) bool {
			if x.Desired == fsm.DesiredRunning && !x.Available() && !others[x.ID] {
				out++
			}
			return true
		})
		for _, e := range c.GetEvict().GetEvictions() {
			was, known := before.Workload(e.GetWorkload())
			x, ok := after.Workload(e.GetWorkload())
			if known && ok && was.Available() && x.Node == "" && was.Demand.Group == "g" && was.Desired == fsm.DesiredRunning &&
				(e.GetCode() == fsm.CodeDraining || e.GetCode() == fsm.CodeTainted) && out > w.parallel() {
				w.violate("rollout", was.ID, was.Node, "a drain evicts it during an update while %d members are unavailable", out)
			}
		}
	}
	// From now on the oracle expects the members that this step creates: surge members (extra
	// members of a start-first update), and members that had been deleted before.
	if steps {
		after.Group("g", func(x *fsm.Workload) bool {
			if _, ok := o.wanted[x.ID]; !ok {
				o.wanted[x.ID] = want{x.Content, x.Desired}
			}
			return true
		})
	}
}

// expected reports whether the next step of an update may give member id the specification with
// this content hash.
func expected(s fsm.State, id, content string) bool {
	r, ok := s.Rollout("g")
	if !ok {
		return false
	}
	for _, m := range r.Members {
		if m.ID == id && m.Put.GetContent() == content {
			return true
		}
	}
	for _, p := range r.Former {
		if p.GetId() == id && p.GetContent() == content {
			return true
		}
	}
	return false
}
