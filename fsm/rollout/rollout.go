// Package rollout updates the members of a group a few at a time (ADR 25).
//
// A Rollout records which members wait for their turn and their new specifications. A Rollout does not
// contain the present state of the members. The functions get that state from the records of the workloads,
// by a callback of type Look. The leader calls Next and proposes its result. The state machine checks every
// proposal with Allows, so that a late or wrong proposal cannot make too many members unavailable.
//
// An update with the order start-first has surge members (ADR 58): extra members with the new specification.
// With S surge members, at most S members may be unavailable, and a surge member that does not run is one of
// them. So the surge members are made first, and the number of available members never falls below the number
// of the group's own members.
package rollout

import (
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Phase is the phase of a rolling update, such as running or paused.
type Phase string

// The phases of an update. Only a running update changes members.
const (
	Running Phase = "Running"
	// AwaitPromotion: the canaries have been available for MinHealthy, and the update waits until a user
	// promotes or aborts it.
	AwaitPromotion Phase = "AwaitPromotion"
	Paused         Phase = "Paused"
	Completed      Phase = "Completed"
)

// Policy is the update policy that the user set for a group. Times are in nanoseconds.
type Policy struct {
	MaxParallel int   // maximum number of members that may be unavailable during the update
	MinHealthy  int64 // a changed member counts as settled after it was available for this time
	Deadline    int64 // a changed member must settle within this time
	AutoRevert  bool  // after a failure, return the group to its previous specifications instead of pausing
	StartFirst  bool  // surge members run before a member is changed
	Canary      int   // number of members that are changed before the update waits for its promotion; 0 = it does not wait
}

// SurgeCount returns how many surge members (extra members that start before old ones stop) an
// update of a group with this number of members creates.
func (p Policy) SurgeCount(members int) int {
	if !p.StartFirst {
		return 0
	}
	return max(min(p.MaxParallel, members), p.Canary)
}

// Rollout is the record of the last member-by-member update of one group. A published Rollout is never
// changed.
type Rollout struct {
	Group string
	// Incarnation and Sequence are the generation of the command that began the update. Together they
	// identify the update.
	Incarnation, Sequence uint64
	Policy                Policy
	Phase                 Phase
	Reason                string // why the update is paused, or how it ended
	Members               []Member
	// Former holds the specifications that the group's members had before the update, for a rollback. An update
	// that replaces an unfinished update copies Former from it. FormerRan says that at least one member was
	// available with these specifications; otherwise a failed update is not rolled back.
	Former    []*commandv1.WorkloadPut
	FormerRan bool
	Reverting bool // this update is a revert: it returns the group to its previous specifications
	Promoted  bool // members that are not canaries may be changed
	// Unix nanoseconds. ProgressAt is when a member last got its new specification or became Settled.
	StartedAt, ProgressAt, EndedAt int64
	By                             string
}

// Member is one workload of the group that is updated.
type Member struct {
	ID string
	// Content is the content hash that the update expects in the member's record. If the record has
	// another hash, a user has changed the member, and the update skips the member.
	Content string
	Put     *commandv1.WorkloadPut // the new specification of the member; nil once the member has it
	// TakenAt is when the deadline of the member began, Unix nanoseconds. The deadline begins when the member
	// gets the new specification, and again when its agent has carried out the order.
	TakenAt int64
	Settled bool // the member has been available with the new specification for MinHealthy
	// Surge marks an extra member, which is deleted when the update ends. While it does not exist yet, Content is
	// empty.
	Surge  bool
	Canary bool // the member is changed before the promotion
}

// Waiting returns the specification that the update will give the member id; nil if r is nil or has ended, or the member
// has its specification.
func (r *Rollout) Waiting(id string) *commandv1.WorkloadPut {
	if r == nil || r.Phase == Completed {
		return nil
	}
	for i := range r.Members {
		if r.Members[i].ID == id {
			return r.Members[i].Put
		}
	}
	return nil
}

// Seen is what an update needs to know about the present state of a member.
type Seen struct {
	There     bool // the workload exists and is not being deleted
	Stopped   bool // a user stopped the member, so it does not count as unavailable
	Content   string
	Available bool   // the workload runs its present order and is healthy, if it has health checks
	Since     int64  // time of the last change of the workload's record, Unix nanoseconds
	GivenUp   string // why the planner gave up starting the member; "" = the planner has not given up
	Working   string // the step of the present order that the agent is carrying out or waits for; "" = none
	Why       string // why the member is not available; "" if unknown
}

// Look returns the present state of a member by its workload id.
type Look func(id string) Seen

// Decision is the next step of an update. If Failure, Complete, Await, Settled and Take are all unset,
// there is nothing to do until WakeAt or until a member changes.
type Decision struct {
	Settled, Take []string
	Complete      bool
	Await         bool // the canaries have settled: wait for the promotion
	Failure       string
	Revert        bool
	WakeAt        int64  // when to call Next again, Unix nanoseconds; 0 = only after a change of a member
	Waits         string // why a running update waits, as a text for users
}

// Idle reports whether the decision requires no command now.
func (d *Decision) Idle() bool {
	return len(d.Settled) == 0 && len(d.Take) == 0 && !d.Complete && !d.Await && d.Failure == ""
}

// Active reports whether an update may still need a command of the planner: it runs, or waits for a
// user to promote it.
func (r *Rollout) Active() bool { return r.Phase == Running || r.Phase == AwaitPromotion }

// gated reports whether only canaries may be changed.
func (r *Rollout) gated() bool { return r.Policy.Canary > 0 && !r.Promoted && !r.Reverting }

// Clone returns a copy that may be changed.
func (r *Rollout) Clone() *Rollout {
	c := *r
	c.Members = slices.Clone(r.Members)
	return &c
}

// State returns the state of a member in the update as one word for users. "Left" means that a user deleted
// or changed the member, so that the update skips it.
func (m *Member) State(s Seen) string {
	switch {
	case s.Content != m.Content || !s.There && !(m.Surge && m.Put != nil):
		return "Left"
	case s.Stopped:
		return "Stopped"
	case m.Put != nil:
		return "Waiting"
	case !m.Settled:
		return "Updating"
	}
	return "Updated"
}

// Alone reports whether a user has changed, created or deleted the member outside of the update. An
// automatic revert does not touch such a member.
func (r *Rollout) Alone(look Look, id string) bool {
	s := look(id)
	i := slices.IndexFunc(r.Members, func(m Member) bool { return m.ID == id })
	return i < 0 && s.There || i >= 0 && r.Members[i].State(s) == "Left"
}

// Turn describes for users the position of a member in the update; "" if the member is not part of it or the
// update is completed.
func (r *Rollout) Turn(look Look, id string) string {
	i := slices.IndexFunc(r.Members, func(m Member) bool { return m.ID == id })
	if i < 0 || r.Phase == Completed {
		return ""
	}
	state := strings.ToLower(r.Members[i].State(look(id)))
	if r.Phase == Paused {
		return fmt.Sprintf("%s in the update of %s, which is paused: %s; persysctl rollout resume %s, or undo", state, r.Group, r.Reason, r.Group)
	}
	return fmt.Sprintf("%s in the update of %s: persysctl rollout status %s", state, r.Group, r.Group)
}

// CanRevert reports whether the group gets the specifications in Former back automatically if the
// update fails.
func (r *Rollout) CanRevert() bool {
	return r.Policy.AutoRevert && r.FormerRan && !r.Reverting && len(r.Former) > 0
}

// Next returns the next step of the update. At most MaxParallel members may be unavailable, whatever the
// cause, so an update also waits for members that are unavailable because of a drain or a lost node.
// Unavailable members are updated first, because changing them makes no other member unavailable. With surge
// members (extra members that the update starts first), the limit is the number of surge members.
func (r *Rollout) Next(look Look, now int64) (d Decision) {
	switch r.Phase {
	case Running:
	case AwaitPromotion:
		return r.watch(look, now)
	default:
		return d
	}
	c := r.count(look)
	left, open := 0, c.todo // left counts the changed members that have not settled; open, the group's own members that are not done
	for _, m := range c.updating {
		s, due := look(m.ID), m.TakenAt+r.Policy.Deadline
		switch stable := s.Since + r.Policy.MinHealthy; {
		case s.Available && stable <= now:
			d.Settled = append(d.Settled, m.ID)
			continue
		case s.GivenUp != "":
			d.Failure = m.ID + " was given up: " + s.GivenUp
		case s.Working != "":
			d.Waits = m.ID + ": " + s.Working
		case due <= now:
			d.Failure = r.late(m, s)
		default:
			d.Waits = m.ID + " to be healthy for " + fmt.Sprint(r.Policy.MinHealthy/1e9) + " s"
			if m.Surge && !s.Available && s.Why != "" {
				d.Waits += " (" + s.Why + ")"
			}
			d.wake(due)
			if s.Available {
				d.wake(stable)
			}
		}
		if d.Failure != "" {
			d.Revert = r.CanRevert()
			return d
		}
		left++
		if !m.Surge {
			open++
		}
	}
	if open == 0 {
		d.Complete = true
		return d
	}
	room, out := r.Policy.MaxParallel-left, c.out-len(d.Settled)
	d.Take = append(d.Take, c.stopped...)
	for _, id := range c.down[:max(0, min(room, len(c.down)))] {
		d.Take, room = append(d.Take, id), room-1
	}
	for _, id := range c.ready {
		if room <= 0 || out >= c.bound {
			break
		}
		d.Take, room, out = append(d.Take, id), room-1, out+1
	}
	if c.todo == 0 || left > 0 || len(d.Take) > 0 {
		return d
	}
	if r.gated() && len(c.stopped)+len(c.down)+len(c.ready) == 0 {
		d.Await = true
		return d
	}
	if len(d.Settled) > 0 {
		return d
	}
	if c.bound == 0 {
		d.Failure = "no extra member of " + r.Group + " is left, because users changed, stopped or deleted them: apply the specification again"
		d.Revert = r.CanRevert()
		return d
	}
	d.Waits = fmt.Sprintf("%s to be available again: at most %d may be missing", c.missed, c.bound)
	if c.own > 0 {
		d.Waits = fmt.Sprintf("%s to be available again: start-first keeps %d members available", c.missed, c.own)
	}
	due := r.ProgressAt + r.Policy.Deadline
	switch s := look(c.missed); {
	case s.Working != "":
		d.Waits += ": " + s.Working
	case due <= now:
		d.Failure, d.Revert = "waited too long for "+d.Waits, c.ours && r.CanRevert()
		if s.Why != "" {
			d.Failure += ": " + s.Why
		}
	default:
		d.wake(due)
	}
	return d
}

// Awaits reports whether all canaries are Settled, so that the other members wait only for the
// promotion by a user.
func (r *Rollout) Awaits(look Look) bool {
	c := r.count(look)
	return r.gated() && c.todo > 0 && len(c.stopped)+len(c.down)+len(c.ready)+len(c.updating) == 0
}

// watch returns the next step of an update that waits for a user to promote it: the update fails if a canary
// fails.
func (r *Rollout) watch(look Look, now int64) (d Decision) {
	d.Waits = fmt.Sprintf("its promotion: persysctl rollout promote %s, or abort", r.Group)
	for i := range r.Members {
		m := &r.Members[i]
		s := look(m.ID)
		if !m.Canary || m.State(s) != "Updated" || s.Available {
			continue
		}
		d.Waits = m.ID + ", a canary, to be available again"
		switch due := max(s.Since, r.ProgressAt) + r.Policy.Deadline; {
		case s.GivenUp != "":
			d.Failure = m.ID + " was given up: " + s.GivenUp
		case s.Working != "":
			d.Waits += ": " + s.Working
		case due <= now:
			d.Failure = r.late(m, s)
		default:
			d.wake(due)
		}
		if d.Failure != "" {
			d.Revert = r.CanRevert()
			return d
		}
	}
	return d
}

// late describes the failure of a member that missed its deadline.
func (r *Rollout) late(m *Member, s Seen) string {
	if s.Why == "" || s.Available {
		return fmt.Sprintf("%s was not healthy for %d s within %d s", m.ID, r.Policy.MinHealthy/1e9, r.Policy.Deadline/1e9)
	}
	return fmt.Sprintf("%s: %s (for %d s)", m.ID, s.Why, r.Policy.Deadline/1e9)
}

// Unpromotable returns why a user cannot promote the update now (let it go on beyond the canaries);
// "" if the user can.
func (r *Rollout) Unpromotable(look Look) string {
	switch {
	case r.Policy.Canary == 0:
		return "the update of " + r.Group + " has no canaries: it needs `canary` in its `update`"
	case r.Phase == Completed:
		return "the update of " + r.Group + " has ended"
	case r.Reverting:
		return "the update of " + r.Group + " goes back to the former specifications"
	case r.Phase == Paused:
		return "the update of " + r.Group + " is paused: persysctl rollout resume " + r.Group
	case r.Phase == Running:
		return "the canaries of " + r.Group + " have not settled yet: persysctl rollout status " + r.Group
	}
	for i := range r.Members {
		m := &r.Members[i]
		if s := look(m.ID); m.Canary && m.State(s) == "Updated" && !s.Available {
			return m.ID + ", a canary, is not available: wait until it is, or persysctl rollout abort " + r.Group
		}
	}
	return ""
}

func (d *Decision) wake(at int64) {
	if d.WakeAt == 0 || at < d.WakeAt {
		d.WakeAt = at
	}
}

// Allows returns why the members in take must not get their new specifications now; "" if they may. If the
// same step makes other members Settled, the caller sets Settled in their entries before the call.
func (r *Rollout) Allows(look Look, take []string) string {
	c := r.count(look)
	updating, out := len(c.updating), c.out
	for _, id := range take {
		switch {
		case slices.Contains(c.stopped, id):
			continue
		case slices.Contains(c.ready, id):
			out++
			if out > c.bound {
				return fmt.Sprintf("%s would be one more than the %d members of %s that may be unavailable", id, c.bound, r.Group)
			}
		case !slices.Contains(c.down, id):
			return fmt.Sprintf("%s does not wait for its turn in the update of %s", id, r.Group)
		}
		if updating++; updating > r.Policy.MaxParallel {
			return fmt.Sprintf("%s would be one more than the %d members of %s that are changed at a time", id, r.Policy.MaxParallel, r.Group)
		}
	}
	return ""
}

// Holds reports whether an available member must not be made unavailable, because as many members as the update
// permits are unavailable already.
func (r *Rollout) Holds(look Look, id string) bool {
	if !r.Active() || !look(id).Available {
		return false
	}
	c := r.count(look)
	return c.out >= c.bound
}

// counted holds the members of the group, counted by their present state.
type counted struct {
	updating             []*Member // changed members that have not settled
	stopped, down, ready []string  // members that wait for their turn, by condition: stopped by request, unavailable, available
	out                  int       // number of members that are unavailable or have not settled
	bound                int       // number of members that may be unavailable
	todo                 int       // number of the group's own members that wait for their turn, or for the promotion
	own                  int       // with surge members: number of the group's own members that are not stopped
	missed               string    // id of the first member counted in out
	ours                 bool      // the unavailable member has its new specification already
}

func (r *Rollout) count(look Look) (c counted) {
	surge, own := 0, 0
	for i := range r.Members {
		m := &r.Members[i]
		s := look(m.ID)
		waits := m.Put != nil && s.Content == m.Content
		updating := m.Put == nil && s.Content == m.Content && !m.Settled
		if m.Surge {
			// A revert does not wait for surge members (extra members of the update) that do not run: they have
			// the specification that failed.
			if m.State(s) == "Left" || s.Stopped || r.Reverting && !s.Available {
				continue
			}
			surge++
		} else if !s.There {
			continue
		}
		if waits && !m.Surge {
			c.todo++
		}
		waits = waits && (m.Canary || !r.gated())
		if s.Stopped {
			if waits {
				c.stopped = append(c.stopped, m.ID)
			}
			continue
		}
		if !m.Surge {
			own++
		}
		if !s.Available || updating {
			c.out++
			if c.missed == "" {
				c.missed, c.ours = m.ID, m.Put == nil
			}
		}
		switch {
		case updating:
			c.updating = append(c.updating, m)
		case waits && s.Available:
			c.ready = append(c.ready, m.ID)
		case waits:
			c.down = append(c.down, m.ID)
		}
	}
	switch {
	case surge > 0:
		c.bound, c.own = surge, own
	case !r.Policy.StartFirst || r.Reverting:
		c.bound = r.Policy.MaxParallel
	}
	return c
}
