package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/order"
)

// Rolling updates (ADR 25): a group whose specification has an update policy is changed a few
// members at a time. The new specifications wait in a Rollout record. Each workload keeps its
// present specification until it is updated. The leader chooses the next members, and the state
// machine checks the choice with rollout.Allows.

// Rollout returns the last member-by-member update of a group.
func (s State) Rollout(group string) (*rollout.Rollout, bool) { return s.r.rollouts.Get(group) }

// Rolling calls fn for each running update, by group.
func (s State) Rolling(fn func(*rollout.Rollout) bool) {
	s.r.rolling.Scan(func(group string, _ struct{}) bool {
		r, ok := s.r.rollouts.Get(group)
		return !ok || fn(r)
	})
}

// RolloutID returns the generation of the command that began update r. It identifies the update.
func RolloutID(r *rollout.Rollout) Generation {
	return Generation{Incarnation: r.Incarnation, Sequence: r.Sequence}
}

// Available reports whether w runs its present order and is healthy, if it has health checks, or has
// completed.
func (w *Workload) Available() bool {
	return w.Status == StatusRunning && (w.Actual.Health == "" || w.Actual.Health == Healthy) || w.Completed()
}

// Seen returns what a rolling update needs to know about the present state of a member.
func (s State) Seen(id string) rollout.Seen {
	w, ok := s.Workload(id)
	if !ok || w.Desired == DesiredDeleted {
		return rollout.Seen{}
	}
	out := rollout.Seen{There: true, Stopped: w.Desired == DesiredStopped, Content: w.Content, Available: w.Available(), Since: w.UpdatedAt}
	if w.Retry.Terminal && w.Status == StatusFailed {
		out.GivenUp = w.Reason.Code + suffix(": ", w.Reason.Message)
	}
	switch {
	case w.Working():
		out.Working = w.Actual.Message
	case w.Reason.Message != "":
		out.Why = w.Reason.Message + w.portNote()
	case w.Acknowledged && w.Actual.Generation == w.Generation, w.SameInstance():
		out.Why = w.Actual.Message
	}
	return out
}

// rolls returns the rolling update that command b, which stores the members of a group, begins or
// continues. It returns nil if all members change at once. under has, for each member, the name of
// the policy against which it was checked. back means that b undoes or reverts an update: available
// surge members then stay until all members have their previous specifications.
func (t *Tx) rolls(b *commandv1.PutWorkloads, under []string, back bool) (*rollout.Rollout, Result) {
	if b.GetGroupOf() == "" {
		return nil, Result{}
	}
	old, active := t.r.rollouts.Get(b.GetGroupOf())
	active = active && old.Phase != rollout.Completed
	if b.GetUpdate() == nil {
		if old != nil {
			t.supersede(old)
			t.dropRollout(old)
		}
		return nil, Result{}
	}
	clock := t.r.info.Clock
	r := &rollout.Rollout{
		Group: strings.Clone(b.GetGroupOf()), Policy: rollout.PolicyOf(b.GetUpdate()), Phase: rollout.Running,
		StartedAt: clock, ProgressAt: clock, By: t.by,
	}
	waits, same := false, active // same: each member already has its specification of this put, or waits for it
	for i, p := range b.GetWorkloads() {
		if p.GetDemand().GetTemplate() != nil {
			continue // a template is not a member
		}
		m := rollout.Member{ID: strings.Clone(p.GetId()), Content: p.GetContent(), TakenAt: clock, Settled: Desired(p.GetDesired()) == DesiredStopped}
		w, known := t.r.workloads.Get(p.GetId())
		next := Intended(p)
		var was *rollout.Member
		if active {
			if i := slices.IndexFunc(old.Members, func(m rollout.Member) bool { return m.ID == p.GetId() }); i >= 0 {
				was = &old.Members[i]
			}
		}
		switch {
		case known && w.SameAs(next) && was != nil && was.Put == nil && was.Content == w.Content:
			if m.Settled = was.Settled; old.Phase == rollout.Running {
				m.TakenAt = was.TakenAt // Keep TakenAt: when a paused update is resumed, the deadline of the member begins again anyway.
			}
		case known && w.SameAs(next):
			m.Settled = true
		case known && w.Demand.Surge:
			// The command has more members than the group had, so this surge member (an extra
			// member of the last update) becomes an ordinary member with the same id.
		case known && w.TakesTurn(next):
			if p.GetNamespace() == "" || p.GetPolicy() != under[i] {
				p = p.CloneVT()
				p.Namespace = cmp.Or(p.GetNamespace(), w.In()) // record the namespace now, because another workload may have this id later
				p.Policy = under[i]
			}
			m.Content, m.Put, m.TakenAt, waits = w.Content, p, 0, true
		}
		same = same && was != nil && was.Content == m.Content && (was.Put == nil) == (m.Put == nil) &&
			(m.Put == nil && known || m.Put != nil && Intended(was.Put).SameAs(next))
		r.Members = append(r.Members, m)
	}
	same = same && len(r.Members) == ownMembers(old)
	switch {
	case same && old.Policy == r.Policy && (old.Reverting || t.sameSurge(old, b.GetSurge())):
		return old, Result{}
	case active:
		r.Former, r.FormerRan = old.Former, old.FormerRan
	case !waits:
		return nil, Result{}
	default:
		t.remember(r, b.GetWorkloads())
	}
	if back && !t.renews {
		t.keepSurge(r)
		return r, Result{}
	}
	if same {
		r.Promoted = old.Promoted
	} else {
		old = nil
	}
	return r, t.surges(r, old, b, under)
}

// maxFormer is the maximum size in bytes of the previous specifications that an update keeps for a revert. They
// fit into one command, and the record stays far below the limit of a snapshot record.
const maxFormer = 2 << 20

// remember stores the present specifications of the group in r.Former, for a revert. It stores nothing if
// they are too large for one command, or for the free part of the limits of the state and the namespace.
func (t *Tx) remember(r *rollout.Rollout, puts []*commandv1.WorkloadPut) {
	if of, ok := t.r.workloads.Get(r.Group); ok && of.IsSystem() {
		p := of.AsPut()
		for _, w := range t.childrenOf(of.ID) {
			r.FormerRan = r.FormerRan || w.Available()
		}
		r.Former = append(r.Former, p)
		return
	}
	size := 0
	membersIn(t.state(), r.Group, puts, func(w *Workload) bool {
		p := t.asPut(w)
		size += p.SizeVT()
		r.Former = append(r.Former, p)
		r.FormerRan = r.FormerRan || w.Available()
		return size <= maxFormer
	})
	if len(r.Former) > 0 && int64(size) > min(maxFormer, t.spare(r.Former[0].GetNamespace())) {
		r.Former, r.FormerRan = nil, false
	}
}

// waits returns the result for a group member whose change waits for its turn. The second value is
// false if the member changes at once.
func (t *Tx) waits(r *rollout.Rollout, id string) (Item, bool) {
	put := r.Waiting(id)
	if put == nil {
		return Item{}, false
	}
	w, _ := t.r.workloads.Get(id)
	to := &Workload{Content: put.GetContent(), Restarts: w.Restarts}
	return Item{ID: w.ID, Generation: w.Generation, Revision: to.Revision(), Unchanged: r.Sequence != 0}, true
}

// begin stores update r if the present command begins it, and does nothing if the command only continues an
// update.
func (t *Tx) begin(r *rollout.Rollout) {
	if r == nil || r.Sequence != 0 {
		return
	}
	if old, ok := t.r.rollouts.Get(r.Group); ok {
		t.supersede(old)
	}
	id := t.generation()
	r.Incarnation, r.Sequence = id.Incarnation, id.Sequence
	t.storeRollout(r)
	t.rolloutEvent(EventRolloutStarted, r, "")
}

func (t *Tx) supersede(old *rollout.Rollout) {
	if old.Phase != rollout.Completed {
		t.rolloutEvent(EventRolloutSuperseded, old, "by another apply")
	}
}

// advanceRollout applies the next step of an update that the planner proposes.
func (t *Tx) advanceRollout(b *commandv1.AdvanceRollout) (res Result) {
	old, ok := t.r.rollouts.Get(b.GetGroup())
	if !ok || RolloutID(old) != order.GenerationOf(b.GetIfRollout()) || !old.Active() {
		res.skip("the group " + quoted(b.GetGroup()) + " is not in the update that was planned for")
		return res
	}
	r, clock := old.Clone(), t.r.info.Clock
	if !slices.ContainsFunc(r.Members, func(m rollout.Member) bool { return m.Put.GetPolicy() != "" }) {
		t.shares = RoomShares{} // an admin applied the specifications that wait
	}
	for i := range r.Members {
		if m := &r.Members[i]; m.Put == nil && slices.Contains(b.GetSettled(), m.ID) && t.state().Seen(m.ID).Available {
			m.Settled, r.ProgressAt = true, clock
		}
	}
	if why := r.Allows(t.state().Seen, b.GetTake()); why != "" {
		res.skip(why)
	} else if why := t.exceeds(r, b.GetTake()); why != "" {
		t.pause(r, why)
		return res
	} else {
		for i := range r.Members {
			if m := &r.Members[i]; m.Put != nil && slices.Contains(b.GetTake(), m.ID) {
				res.Items = append(res.Items, t.turn(r, m))
			}
		}
	}
	open := func(m rollout.Member) bool {
		s := m.State(t.state().Seen(m.ID))
		return !m.Surge && (s == "Waiting" || s == "Updating")
	}
	switch {
	case b.GetFailure() != "" && b.GetRevert() && r.CanRevert():
		t.storeRollout(r)
		if back := t.goBack(r, b.GetFailure(), true); back.Kind != OK {
			t.pause(r, b.GetFailure()+"; it cannot go back: "+back.Reason)
		}
		return res
	case b.GetFailure() != "":
		t.pause(r, b.GetFailure())
		return res
	case b.GetComplete() && !slices.ContainsFunc(r.Members, open):
		r.Phase, r.EndedAt = rollout.Completed, clock
		r.Members = slices.DeleteFunc(r.Members, func(m rollout.Member) bool { return m.Surge })
		t.rolloutEvent(EventRolloutCompleted, r, r.Reason)
	case b.GetAwaitPromotion() && r.Phase == rollout.Running && r.Awaits(t.state().Seen):
		r.Phase, r.ProgressAt = rollout.AwaitPromotion, clock
		t.rolloutEvent(EventRolloutAwaits, r, "")
	}
	t.storeRollout(r)
	t.dropSurge(r.Group)
	return res
}

// exceeds returns an error text if a quota, or the share of the state, has no room for the new specifications of the
// members in take. A specification that waits for its turn reserves nothing in the quota.
func (t *Tx) exceeds(r *rollout.Rollout, take []string) string {
	var puts []*commandv1.WorkloadPut
	var olds []*Workload
	var kept sizes // what leaves the record of the update
	for i := range r.Members {
		if m := &r.Members[i]; m.Put != nil && slices.Contains(take, m.ID) {
			w, _ := t.r.workloads.Get(m.ID)
			puts, olds = append(puts, m.Put), append(olds, w)
			specs, files := putBytes(t.state(), nil, m.Put)
			kept = append(kept, sizeIn{namespace: namespaceOf(m.Put, w), specs: -specs, files: -files})
		}
	}
	if err := fits(t.state(), puts, olds, nil, nil, kept, t.shares); err != nil {
		if slices.ContainsFunc(puts, func(p *commandv1.WorkloadPut) bool { return p.GetDemand().GetSurge() }) {
			return "no room for an extra member of " + r.Group + ", which start-first needs: " + err.Error()
		}
		return err.Error()
	}
	for i, p := range puts {
		if w := olds[i]; p.GetDemand().GetSurge() && w != nil && (w.Demand.Group != r.Group || w.In() != p.GetNamespace()) {
			return fmt.Sprintf("a workload %s in namespace %s is being deleted, and the extra member needs its id: persysctl rollout resume %s once it is gone", w.ID, w.In(), r.Group)
		}
	}
	return ""
}

// resumeRollouts restarts the deadlines of all running updates after a frozen mode, during which
// no member could make progress.
func (t *Tx) resumeRollouts() {
	var all []*rollout.Rollout
	t.state().Rolling(func(r *rollout.Rollout) bool {
		all = append(all, r.Clone())
		return true
	})
	for _, r := range all {
		r.ProgressAt = t.r.info.Clock
		for i := range r.Members {
			if m := &r.Members[i]; m.Put == nil && !m.Settled {
				m.TakenAt = t.r.info.Clock
			}
		}
		t.storeRollout(r)
	}
}

// held reports whether a drain of w's node must not evict w yet, because its group already has as
// many unavailable members as its update policy permits.
func (t *Tx) held(w *Workload) bool {
	r, ok := t.r.rollouts.Get(w.Demand.Group)
	return ok && r.Holds(t.state().Seen, w.ID)
}

// turn gives member m of update r its new specification. A member that was stopped stays stopped.
func (t *Tx) turn(r *rollout.Rollout, m *rollout.Member) Item {
	p := m.Put
	w, _ := t.r.workloads.Get(m.ID)
	if w != nil && w.Desired != DesiredDeleted && string(t.wanted(w)) != p.GetDesired() {
		p = p.CloneVT()
		p.Desired = string(t.wanted(w))
	}
	m.Put, m.Content, m.TakenAt, m.Settled = nil, p.GetContent(), t.r.info.Clock, Desired(p.GetDesired()) == DesiredStopped
	r.ProgressAt = t.r.info.Clock
	leader := t.by
	t.by = r.By // events name the caller who started the update, not the leader that continues it
	defer func() { t.by = leader }()
	return t.putOne(p, w, p.GetPolicy())
}

// started restarts the time within which w, a member in a rolling update, must become healthy. It is called
// when a user starts w again after a stop, and when the agent has carried out the order for w, which may
// include stopping the previous instance.
func (t *Tx) started(w *Workload) {
	r, ok := t.r.rollouts.Get(w.Demand.Group)
	if !ok {
		return
	}
	i := slices.IndexFunc(r.Members, func(m rollout.Member) bool { return m.ID == w.ID && m.Put == nil && !m.Settled })
	if i < 0 {
		return
	}
	r = r.Clone()
	r.Members[i].TakenAt = t.r.info.Clock
	t.storeRollout(r)
}

func (t *Tx) pause(r *rollout.Rollout, why string) {
	r = r.Clone()
	r.Phase, r.Reason = rollout.Paused, why
	t.storeRollout(r)
	t.rolloutEvent(EventRolloutPaused, r, why)
}

// UndoFault returns why the update r cannot be undone, or "". An undo also restores the number of members from
// before the update. If the autoscaler has added members since then, the undo would delete them although they
// serve requests.
func UndoFault(v grouped, r *rollout.Rollout) string {
	if len(r.Former) == 0 {
		return "the former specifications of " + r.Group + " were too large to be kept: apply them again"
	}
	have, was := Members(v, r.Group), len(r.Former)
	if was == 1 && Desired(r.Former[0].GetDesired()) == DesiredStopped {
		was = 0
	}
	if now := Count(have); len(have) > 0 && have[0].Demand.Autoscale != nil && now != was {
		return fmt.Sprintf("%s has autoscale and %d members by now, not %d as before the update, and an undo would set the number back: apply the former file, which keeps the number (persysctl apply)", r.Group, now, was)
	}
	return ""
}

// goBack gives the group its previous specifications again, with the same update policy. why is the reason
// for the event. byItself is set for an automatic revert: goBack then does not touch members that a user has
// changed, created or deleted since the update began. Nor does it delete members that the update added to a
// group with an autoscaler. Those members keep the specification of the update, because they have no previous
// one.
func (t *Tx) goBack(r *rollout.Rollout, why string, byItself bool) Result {
	// Set the namespace in the command: if the group has no member left, no record says to which
	// namespace the group belongs.
	b := &commandv1.PutWorkloads{GroupOf: r.Group, Update: r.Policy.PB(), Namespace: r.Former[0].GetNamespace()}
	alone := func(id string) bool { return byItself && id != r.Group && r.Alone(t.state().Seen, id) }
	var added []string
	membersIn(t.state(), r.Group, r.Former, func(w *Workload) bool {
		was := slices.ContainsFunc(r.Former, func(p *commandv1.WorkloadPut) bool { return p.GetId() == w.ID })
		kept := byItself && !was && !alone(w.ID) && (w.Demand.Autoscale != nil || r.Former[0].GetDemand().GetAutoscale() != nil)
		if kept {
			added = append(added, w.ID)
		}
		if kept || alone(w.ID) {
			p := workloadPB(w).Put
			p.Desired = string(t.wanted(w))
			b.Workloads = append(b.Workloads, p)
		}
		return true
	})
	for _, p := range r.Former {
		if alone(p.GetId()) {
			continue
		}
		p = p.CloneVT()
		if w, ok := t.r.workloads.Get(p.GetId()); ok && w.Desired != DesiredDeleted {
			p.Desired = string(t.wanted(w)) // a workload that was stopped since then stays stopped
		}
		b.Workloads = append(b.Workloads, p)
	}
	if of := r.Former[0]; of.GetDemand().GetTemplate() != nil {
		// A command that stores a system workload changes its members too.
		b = &commandv1.PutWorkloads{Update: r.Policy.PB(), Workloads: b.GetWorkloads()}
	}
	if shares := t.shares; byItself {
		t.shares = RoomShares{}
		defer func() { t.shares = shares }()
	}
	res := t.putWorkloads(b, true, !byItself) // an automatic revert is not judged: it gives back what ran until now
	if now, ok := t.r.rollouts.Get(r.Group); ok && res.Kind == OK && now.Phase != rollout.Completed {
		now = now.Clone()
		if now.Phase == rollout.Paused { // a user put the previous specifications by hand and paused that update
			t.resume(now)
		}
		if len(added) > 0 {
			// The revert leaves the members unchanged that the update added. Take them out of the list of
			// members, so that the revert does not wait until they are healthy.
			now.Members = slices.DeleteFunc(now.Members, func(m rollout.Member) bool { return slices.Contains(added, m.ID) })
			why += "; members that the update added keep its specification: apply the former file"
		}
		now.Reverting, now.Reason = true, why
		t.storeRollout(now)
		t.rolloutEvent(EventRolloutReverting, now, why)
	}
	return res
}

// resume continues the paused update r, a copy of the record, and begins the deadlines of its
// members again.
func (t *Tx) resume(r *rollout.Rollout) {
	r.Phase, r.Reason, r.ProgressAt = rollout.Running, "", t.r.info.Clock
	for i := range r.Members {
		m := &r.Members[i]
		if s := t.state().Seen(m.ID); m.State(s) == "Updating" {
			m.TakenAt = t.r.info.Clock
			if s.GivenUp != "" {
				t.retryWorkload(&commandv1.RetryWorkload{Id: m.ID})
			}
		}
	}
	t.storeRollout(r)
	t.rolloutEvent(EventRolloutResumed, r, "")
}

// setRollout pauses, resumes, promotes, aborts or undoes an update at the request of a person.
func (t *Tx) setRollout(b *commandv1.SetRollout) Result {
	old, ok := t.r.rollouts.Get(b.GetGroup())
	if !ok {
		return refuse(NotFound, "group %q has not been updated member by member: it needs `update` in its specification", clip(b.GetGroup()))
	}
	for _, m := range old.Members {
		if w, ok := t.r.workloads.Get(m.ID); ok {
			if res, ok := t.may(w.ID, w.In()); !ok {
				return res
			}
		}
	}
	r := old.Clone()
	switch b.GetAction() {
	case "pause":
		if r.Phase == rollout.Paused {
			return Result{Kind: AlreadyDone}
		}
		if r.Phase == rollout.Completed {
			return refuse(Conflict, "the update of %s has ended", r.Group)
		}
		t.pause(r, "paused by request")
	case "resume":
		if r.Active() {
			return Result{Kind: AlreadyDone}
		}
		if r.Phase == rollout.Completed {
			return refuse(Conflict, "the update of %s has ended", r.Group)
		}
		if res, ok := t.judgedWaiting(r); !ok {
			return res
		}
		t.resume(r)
	case "promote":
		if why := r.Unpromotable(t.state().Seen); r.Promoted && r.Active() && !r.Reverting {
			return Result{Kind: AlreadyDone}
		} else if why != "" {
			return refuse(Conflict, "%s", why)
		}
		if res, ok := t.judgedWaiting(r); !ok {
			return res
		}
		r.Phase, r.Promoted, r.ProgressAt = rollout.Running, true, t.r.info.Clock
		t.storeRollout(r)
		t.rolloutEvent(EventRolloutPromoted, r, "")
	case "undo", "abort":
		if b.GetAction() == "abort" && r.Phase == rollout.Completed {
			return refuse(Conflict, "the update of %s has ended: persysctl rollout undo %s", r.Group, r.Group)
		}
		if r.Reverting && r.Phase == rollout.Running {
			return Result{Kind: AlreadyDone}
		}
		if r.Reverting && r.Phase == rollout.Paused {
			return refuse(Conflict, "the update of %s is being reverted already: resume it, or apply the specification that the group should have", r.Group)
		}
		if fault := UndoFault(t.state(), r); fault != "" {
			return refuse(Conflict, "%s", fault)
		}
		why := "undone by request"
		if b.GetAction() == "abort" {
			why = "aborted by request"
		}
		return t.goBack(r, why, false)
	default:
		return refuse(Invalid, "action: %q is none of pause, resume, promote, abort, undo", clip(b.GetAction()))
	}
	return Result{}
}

// judgedWaiting checks the specifications that an update has not given to its members yet against the present policy,
// because a person asks to continue the update.
func (t *Tx) judgedWaiting(r *rollout.Rollout) (Result, bool) {
	var puts []*commandv1.WorkloadPut
	for _, m := range r.Members {
		if p := r.Waiting(m.ID); p != nil {
			puts = append(puts, p)
		}
	}
	return t.judged(puts, t.replaced(puts))
}

func (t *Tx) storeRollout(r *rollout.Rollout) {
	old, _ := own(t, &t.r.rollouts, ownRollouts).Set(r.Group, r)
	t.refer(rolloutBundles(old), rolloutBundles(r))
	t.countRollout(old, -1)
	t.countRollout(r, +1)
	if r.Active() {
		own(t, &t.r.rolling, ownRolling).Set(r.Group, struct{}{})
	} else {
		own(t, &t.r.rolling, ownRolling).Delete(r.Group)
	}
	var e encoder
	e.str("rollout/" + r.Group)
	e.generation(RolloutID(r))
	e.str(string(r.Phase))
	e.bool(r.Reverting)
	for i := range r.Members {
		m := &r.Members[i]
		e.str(m.ID)
		e.str(m.Content)
		e.str(m.Put.GetContent())
		e.i64(m.TakenAt)
		e.bool(m.Settled)
		if m.Surge || m.Canary {
			e.bool(m.Surge)
			e.bool(m.Canary)
		}
	}
	if r.Promoted {
		e.str("promoted")
	}
	t.sideFold = append(t.sideFold, e...)
}

func (t *Tx) dropRollout(r *rollout.Rollout) {
	old, _ := own(t, &t.r.rollouts, ownRollouts).Delete(r.Group)
	t.refer(rolloutBundles(old), nil)
	t.countRollout(old, -1)
	own(t, &t.r.rolling, ownRolling).Delete(r.Group)
	var e encoder
	e.str("rollout/" + r.Group)
	t.sideFold = append(t.sideFold, e...)
}

// disband removes the update of a group after the last member of the group is gone.
func (t *Tx) disband(gone *Workload) {
	r, ok := t.r.rollouts.Get(gone.Demand.Group)
	if !ok {
		return
	}
	left := false
	t.state().Group(r.Group, func(w *Workload) bool { left = left || !w.Demand.Surge; return !left })
	if left {
		return
	}
	if r.Phase != rollout.Completed {
		t.rolloutEventIn(gone.Namespace, EventRolloutSuperseded, r, "no member is left")
	}
	t.dropRollout(r)
	t.dropSurge(r.Group)
}

func (t *Tx) rolloutEvent(kind string, r *rollout.Rollout, why string) {
	in := ""
	for _, m := range r.Members {
		if w, ok := t.r.workloads.Get(m.ID); ok {
			in = w.Namespace
			break
		}
	}
	t.rolloutEventIn(in, kind, r, why)
}

func (t *Tx) rolloutEventIn(namespace, kind string, r *rollout.Rollout, why string) {
	t.event(Event{Type: kind, Namespace: namespace, Message: r.Group + suffix(": ", why), Details: []Label{{"group", r.Group}}})
}

func (c *checker) rollouts() {
	c.s.r.rollouts.Scan(func(group string, r *rollout.Rollout) bool {
		c.must(r.Group == group && bounds.ValidID(group), "rollout of %q is stored under %q", r.Group, clip(group))
		c.must(r.Policy.Fault() == "" && r.Sequence > 0, "rollout of %s: %s", group, r.Policy.Fault())
		c.must(r.Active() || r.Phase == rollout.Paused || r.Phase == rollout.Completed, "rollout of %s has phase %q", group, r.Phase)
		for _, p := range r.Former {
			of := group
			if isSystemPut(p) {
				of = "" // for a system workload, Former has only the put of the template: the puts of the members are derived from it
			}
			c.must(bounds.PutFault(p, of) == "", "rollout of %s has an invalid former member %s", group, clip(p.GetId()))
		}
		for _, m := range r.Members {
			c.must(m.Put == nil || bounds.PutFault(m.Put, group) == "" && m.Put.GetId() == m.ID && m.Put.GetDemand().GetSurge() == m.Surge,
				"rollout of %s has an invalid waiting specification for member %s", group, clip(m.ID))
			c.must(!m.Surge || r.Phase != rollout.Completed, "rollout of %s has ended and keeps surge member %s", group, clip(m.ID))
		}
		return true
	})
	c.s.Workloads("", func(w *Workload) bool {
		c.must(!w.Demand.Surge || w.Desired == DesiredDeleted || c.s.surging(w), "surge member %s of group %s has no update", w.ID, w.Demand.Group)
		return true
	})
}
