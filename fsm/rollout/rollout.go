// Package rollout is the record and the arithmetic of an update that goes through a
// group a few members at a time (ADR 25).
//
// The record says which members wait for their turn and what they are to get. What
// each of them is doing is read from its own record, through Seen, whenever somebody
// asks: nothing about it is kept twice. Next is what the leader proposes; Allows is
// the bound that the state machine holds every proposal to, so that a leader which is
// late or wrong makes nothing unavailable.
package rollout

import (
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Phase is where an update stands.
type Phase string

// The phases. Only a running one changes members.
const (
	Running   Phase = "Running"
	Paused    Phase = "Paused"
	Completed Phase = "Completed"
)

// Policy is what the user asked for. Times are nanoseconds.
type Policy struct {
	MaxParallel int   // members that may be unavailable while the update goes on
	MinHealthy  int64 // a changed member counts once it has been available for so long
	Deadline    int64 // and has so long until then
	AutoRevert  bool
}

// Rollout is the last update of one group. A published one is never changed.
type Rollout struct {
	Group string
	// ID is the generation of the command that began it: two updates differ in it.
	Incarnation, Sequence uint64
	Policy                Policy
	Phase                 Phase
	Reason                string // why it is paused, or how it ended
	Members               []Member
	// Former is what the group was when it was last as somebody wanted it, FormerRan
	// whether any of that was available then: a revision that never ran is nothing to
	// go back to by itself.
	Former    []*commandv1.WorkloadPut
	FormerRan bool
	Reverting bool // it goes back to Former
	// Unix nanoseconds; ProgressAt is when a member was last changed, or settled.
	StartedAt, ProgressAt, EndedAt int64
	By                             string
}

// Member is one workload of the group.
type Member struct {
	ID string
	// Content is what it has as far as the update goes: one that has another was
	// changed by somebody, and is left alone.
	Content string
	Put     *commandv1.WorkloadPut // what it is to get; nil once it has it
	TakenAt int64                  // when it got it
	Settled bool                   // it has been available with it for long enough
}

// Seen is what the state says of a member now.
type Seen struct {
	There     bool // and not being deleted
	Stopped   bool // by request: it is missed by nobody
	Content   string
	Available bool   // it runs as it was last told to, and is healthy where that is checked
	Since     int64  // nothing about it has changed since
	GivenUp   string // why it was given up; "" = it was not
}

// Look finds a member.
type Look func(id string) Seen

// Decision is the next step of an update. Without Failure, Complete, Settled and Take
// there is nothing to do before WakeAt, or before something changes.
type Decision struct {
	Settled, Take []string
	Complete      bool
	Failure       string
	Revert        bool
	WakeAt        int64  // 0 = when something changes
	Waits         string // for people: what a running update waits for
}

// Idle reports whether there is nothing to propose.
func (d *Decision) Idle() bool {
	return len(d.Settled) == 0 && len(d.Take) == 0 && !d.Complete && d.Failure == ""
}

// Clone is a copy that may be changed.
func (r *Rollout) Clone() *Rollout {
	c := *r
	c.Members = slices.Clone(r.Members)
	return &c
}

// State is where one member stands, in a word for people.
func (m *Member) State(s Seen) string {
	switch {
	case !s.There || s.Content != m.Content:
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

// Alone reports whether somebody has changed, made or deleted by itself what the update
// would go back with.
func (r *Rollout) Alone(look Look, id string) bool {
	s := look(id)
	i := slices.IndexFunc(r.Members, func(m Member) bool { return m.ID == id })
	return i < 0 && s.There || i >= 0 && r.Members[i].State(s) == "Left"
}

// Turn says where a member stands, for people; "" if nothing is left to say.
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

// CanRevert reports whether a failure sends the group back by itself.
func (r *Rollout) CanRevert() bool {
	return r.Policy.AutoRevert && r.FormerRan && !r.Reverting && len(r.Former) > 0
}

// Next decides about one update. A member that is missed for whatever reason counts
// against MaxParallel, so that an update waits while a drain or a lost node has taken
// one; what is down already goes first, because its turn costs nothing.
func (r *Rollout) Next(look Look, now int64) (d Decision) {
	if r.Phase != Running {
		return d
	}
	c := r.count(look)
	left := 0 // members that have it and have not settled
	for _, m := range c.updating {
		s, due := look(m.ID), m.TakenAt+r.Policy.Deadline
		switch stable := s.Since + r.Policy.MinHealthy; {
		case s.Available && stable <= now:
			d.Settled = append(d.Settled, m.ID)
			continue
		case s.GivenUp != "":
			d.Failure = m.ID + " was given up: " + s.GivenUp
		case due <= now:
			d.Failure = fmt.Sprintf("%s was not healthy for %d s within %d s", m.ID, r.Policy.MinHealthy/1e9, r.Policy.Deadline/1e9)
		default:
			d.Waits = m.ID + " to be healthy for " + fmt.Sprint(r.Policy.MinHealthy/1e9) + " s"
			d.wake(due)
			if s.Available {
				d.wake(stable)
			}
			left++
			continue
		}
		d.Revert = r.CanRevert()
		return d
	}
	room, out := r.Policy.MaxParallel-left, c.out-len(d.Settled)
	d.Take = append(d.Take, c.stopped...)
	for _, id := range c.down[:max(0, min(room, len(c.down)))] {
		d.Take, room = append(d.Take, id), room-1
	}
	for _, id := range c.ready {
		if room <= 0 || out >= r.Policy.MaxParallel {
			break
		}
		d.Take, room, out = append(d.Take, id), room-1, out+1
	}
	waiting := len(c.stopped)+len(c.down)+len(c.ready) > 0
	d.Complete = !waiting && left == 0
	if waiting && left == 0 && len(d.Take) == 0 && len(d.Settled) == 0 {
		d.Waits = fmt.Sprintf("%s to be available again: at most %d may be missing", c.missed, r.Policy.MaxParallel)
		if due := r.ProgressAt + r.Policy.Deadline; due <= now {
			d.Failure, d.Revert = "waited too long for "+d.Waits, c.ours && r.CanRevert()
		} else {
			d.wake(due)
		}
	}
	return d
}

func (d *Decision) wake(at int64) {
	if d.WakeAt == 0 || at < d.WakeAt {
		d.WakeAt = at
	}
}

// Allows says why members may not get their turn now, "" if they may. The members
// that settle by the same step count as settled.
func (r *Rollout) Allows(look Look, take []string) string {
	c := r.count(look)
	updating, out := len(c.updating), c.out
	for _, id := range take {
		switch {
		case slices.Contains(c.stopped, id):
			continue
		case slices.Contains(c.ready, id):
			out++
			if out > r.Policy.MaxParallel {
				return fmt.Sprintf("%s would be one more than the %d members of %s that may be unavailable", id, r.Policy.MaxParallel, r.Group)
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

// Holds reports whether a member that is available is to stay as it is: the update
// has made, or found, as many unavailable as it may.
func (r *Rollout) Holds(look Look, id string) bool {
	return r.Phase == Running && look(id).Available && r.count(look).out >= r.Policy.MaxParallel
}

// counted is the group as it is.
type counted struct {
	updating             []*Member // have it and have not settled
	stopped, down, ready []string  // wait: by request not running, not available, available
	out                  int       // are missed, or count as such until they settle
	missed               string    // the first that is missed
	ours                 bool      // and it has what the update brings
}

func (r *Rollout) count(look Look) (c counted) {
	for i := range r.Members {
		m := &r.Members[i]
		s := look(m.ID)
		if !s.There {
			continue
		}
		waits := m.Put != nil && s.Content == m.Content
		updating := m.Put == nil && s.Content == m.Content && !m.Settled
		if s.Stopped {
			if waits {
				c.stopped = append(c.stopped, m.ID)
			}
			continue
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
	return c
}
