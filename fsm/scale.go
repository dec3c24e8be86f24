package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// ScaleGroup changes the number of members of a group; the caller does not send the specification.
// The present members keep their specifications. Package rpc makes the specifications of the new
// members, because secrets are sealed separately for each member.

// Members returns the members of a group that `count` created and that are not being deleted, by number, without
// surge members (extra members of an update). It returns only the members in the namespace of the first one.
func Members(v grouped, group string) (out []*Workload) {
	v.Group(group, func(w *Workload) bool {
		if w.Desired != DesiredDeleted && !w.Demand.Surge && MadeByCount(group, w.ID) {
			out = append(out, w)
		}
		return true
	})
	slices.SortFunc(out, func(a, b *Workload) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) // by number
	})
	return slices.DeleteFunc(out, func(w *Workload) bool { return w.In() != out[0].In() })
}

type grouped interface {
	Group(group string, fn func(*Workload) bool)
}

// Count returns the number of members that run or should run. A group with a count of 0 keeps its first
// member, stopped.
func Count(members []*Workload) int {
	if len(members) == 1 && members[0].Desired == DesiredStopped {
		return 0
	}
	return len(members)
}

// MemberIDs returns the ids that the members of a group with count members have: <group>-0,
// <group>-1 and so on.
func MemberIDs(group string, count int) []string {
	ids := make([]string, count)
	for i := range ids {
		ids[i] = group + "-" + strconv.Itoa(i)
	}
	return ids
}

// AsPut returns the WorkloadPut that would create a workload with the same specification, demand
// and desired state.
func (w *Workload) AsPut() *commandv1.WorkloadPut {
	p := workloadPB(w).Put
	p.Namespace = w.In()
	return p
}

func (t *Tx) scaleGroup(b *commandv1.ScaleGroup) Result {
	group, count := b.GetGroup(), int(b.GetCount())
	have := Members(t.state(), group)
	if len(have) == 0 {
		return refuse(NotFound, "group %q has no members: only a workload with `count` can be scaled", clip(group))
	}
	first, now := have[0], Count(have)
	if now == 0 && t.wanted(first) == DesiredRunning {
		now = 1 // the only member is stopped for a move of its volumes
	}
	if res, ok := t.may(first.ID, first.In()); !ok {
		return res
	}
	if why := t.unscalable(b, first, now); why.Kind != OK {
		return why
	}
	if b.GetAutoscaled() && first.Policy == "" { // an admin applied the group
		t.shares = RoomShares{}
	}
	put := &commandv1.PutWorkloads{GroupOf: group, ListDeleted: true}
	if r, ok := t.r.rollouts.Get(group); ok {
		put.Update = r.Policy.PB() // pass the policy of the last update, so that its record is kept
	}
	desired, fresh := t.wanted(first), []*commandv1.WorkloadPut(nil)
	switch {
	case count == 0:
		p := first.AsPut()
		p.Desired = string(DesiredStopped)
		put.Workloads = append(put.Workloads, p)
	case now == 0:
		desired = DesiredRunning
	}
	for _, id := range MemberIDs(group, count) {
		if i := slices.IndexFunc(have, func(w *Workload) bool { return w.ID == id }); i >= 0 {
			p := t.asPut(have[i])
			if now == 0 {
				if res, ok := t.judgedAgain(have[i]); !ok {
					return res
				}
				p.Desired = string(desired)
			}
			put.Workloads = append(put.Workloads, p)
			continue
		}
		p, why := t.newMember(b, id)
		if p == nil {
			return why
		}
		p.Desired, p.Namespace = string(desired), first.In()
		if p.Policy = t.under(p, nil); b.GetAutoscaled() {
			p.Policy = first.Policy
		}
		fresh, put.Workloads = append(fresh, p), append(put.Workloads, p)
	}
	if len(fresh) > 0 && first.Content != b.GetContent() {
		return refuse(Conflict, "the specification of %s has changed meanwhile: run the command again", group)
	}
	if res, ok := t.judged(fresh, make([]*Workload, len(fresh))); !ok {
		return res
	}
	if b.GetAutoscaled() {
		if res, ok := t.judgedLike(first, fresh); !ok {
			return res
		}
	}
	res := t.putWorkloads(put, true, false)
	if res.Kind != OK {
		return res
	}
	if !slices.ContainsFunc(res.Items, func(it Item) bool { return !it.Unchanged }) {
		res.Kind = AlreadyDone
		return res
	}
	t.event(Event{
		Type: EventGroupScaled, Namespace: first.Namespace, Message: fmt.Sprintf("%s from %d to %d", group, now, count) + suffix(": ", b.GetReason()),
		Details: []Label{{"from", strconv.Itoa(now)}, {"group", group}, {"to", strconv.Itoa(count)}},
	})
	return res
}

// judgedLike checks the new members that the autoscaler makes. The autoscaler may act in all namespaces, but
// the person who created the group perhaps not. So the new members are checked against the policy of first, the
// first member, and must not have the id of an orphan (an instance without a record).
func (t *Tx) judgedLike(first *Workload, fresh []*commandv1.WorkloadPut) (Result, bool) {
	for _, p := range fresh {
		if res, ok := judgedBy(t.state().Admitted(first), p, first.In()); !ok {
			return res, false
		}
	}
	if d := t.orphanAmong(fresh, t.replaced(fresh)); d != nil {
		return refuse(Denied, "an instance %q that the cluster does not know is on node %q, and the autoscaler takes over none: adopt or delete it (persysctl drift)", clip(d.Workload), d.Node), false
	}
	return Result{}, true
}

// unscalable refuses a command that cannot change the number of members. first is the first member of the
// group, and now the present number of members.
func (t *Tx) unscalable(b *commandv1.ScaleGroup, first *Workload, now int) Result {
	group := b.GetGroup()
	switch n, ok := t.state().Namespace(first.In()); {
	case b.GetCount() > bounds.MaxCount:
		return refuse(Invalid, "count: %d is not in 0..%d", b.GetCount(), bounds.MaxCount)
	case len(b.GetReason()) > maxScaleReason:
		return refuse(Invalid, "reason: has %d bytes, at most %d", len(b.GetReason()), maxScaleReason)
	case first.Demand.Job != nil:
		return refuse(Invalid, "%s is a job: its completions are part of its specification", group)
	case b.GetAutoscaled() && (first.Demand.Autoscale == nil || now == 0 || t.wanted(first) != DesiredRunning):
		return refuse(Conflict, "the autoscaler does not choose the number of members of %s any more", group)
	case !first.Demand.Autoscale.allows(b.GetCount(), b.GetAutoscaled()):
		a := first.Demand.Autoscale
		return refuse(Invalid, "count: %d is not in %d..%d, the limits of autoscale of %s: apply a file with other limits; 0 stops all members and pauses autoscaling", b.GetCount(), a.Min, a.Max, group)
	case b.GetSuggested() && (!ok || !n.AllowScaling):
		return refuse(NotAllowed, "namespace %q does not let automations scale: persysctl namespace set %s --allow-scaling", first.In(), first.In())
	case b.From != nil && int(b.GetFrom()) != now:
		return refuse(Conflict, "%s has %d members by now, not %d", group, now, b.GetFrom())
	}
	if r, ok := t.r.rollouts.Get(group); ok && r.Phase != rollout.Completed {
		state := "is being updated"
		switch r.Phase {
		case rollout.Paused:
			state = "has a paused update"
		case rollout.AwaitPromotion:
			state = "has an update that waits for its promotion"
		}
		return refuse(Conflict, "%s %s: scale it when the update has ended (persysctl rollout status %s), or apply a specification with another count", group, state, group)
	}
	return Result{}
}

// maxScaleReason is the maximum size of the reason of a ScaleGroup command in bytes.
const maxScaleReason = 256

// newMember returns a copy of the specification that command b has for id, a member that the group
// does not have yet. It returns nil and a refusal if b has no specification for id, or if another
// workload has the id.
func (t *Tx) newMember(b *commandv1.ScaleGroup, id string) (*commandv1.WorkloadPut, Result) {
	if w, ok := t.r.workloads.Get(id); ok && (w.Demand.Group != b.GetGroup() || w.Desired != DesiredDeleted) {
		return nil, refuse(Conflict, "workload %s exists and is not a member of the group %s: delete it, or scale to fewer members", id, b.GetGroup())
	}
	i := slices.IndexFunc(b.GetMembers(), func(p *commandv1.WorkloadPut) bool { return p.GetId() == id })
	if i < 0 {
		return nil, refuse(Conflict, "the members of %s have changed meanwhile: run the command again", b.GetGroup())
	}
	return b.GetMembers()[i].CloneVT(), Result{}
}

// belongsToNamespace reports whether events of a type are about something in a namespace other than a workload: a group, a
// secret or a config.
func belongsToNamespace(kind string) bool {
	switch kind {
	case EventGroupScaled, EventSecretChanged, EventSecretDeleted, EventSecretShown, EventConfigChanged, EventConfigDeleted:
		return true
	}
	return strings.HasPrefix(kind, "Rollout")
}
