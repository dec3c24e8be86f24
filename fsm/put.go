package fsm

import (
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// DefaultMaxAttempts replaces a max_attempts of 0.
const DefaultMaxAttempts = 5

// putWorkloads creates or changes workloads. Without each, it does all of them or none.
func (t *Tx) putWorkloads(b *commandv1.PutWorkloads) Result {
	puts := b.GetWorkloads()
	switch {
	case b.GetEach():
		return t.putEach(b)
	case len(puts) == 1 && b.GetGroupOf() == "" && b.GetUpdate() == nil:
		item, refusal, ok := t.putAlone(puts)
		if !ok {
			return refusal
		}
		return Result{Items: place(&t.slabs, &t.slabs.items, item)}
	}
	if fault := t.putsFault(puts, b.GetGroupOf()); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if u := b.GetUpdate(); u != nil && rollout.PolicyOf(u).Fault() != "" {
		return refuse(Invalid, "update.%s", rollout.PolicyOf(u).Fault())
	}
	extra := Surplus(t.state(), b)
	olds := t.replaced(puts)
	if res, ok := t.admits(b, olds, extra); !ok {
		return res
	}
	roll := t.rolls(b)
	items := make([]Item, 0, len(puts))
	for i, p := range puts {
		item, waits := t.waits(roll, p.GetId())
		if !waits {
			item = t.putOne(p, olds[i])
		}
		items = append(items, item)
	}
	for _, w := range extra {
		t.deleteOne(w, false)
	}
	t.begin(roll)
	return Result{Items: items}
}

// putsFault returns an error text for invalid puts, or "".
func (t *Tx) putsFault(puts []*commandv1.WorkloadPut, group string) string {
	fault := bounds.PutsFault(puts, group)
	if fault == "" {
		fault = bounds.PortNamesFault(puts)
	}
	return fault
}

// replaced returns the present records of puts, nil where there is none. The ids are distinct,
// so one put does not change the record of another. The list is valid until the next command.
func (t *Tx) replaced(puts []*commandv1.WorkloadPut) []*Workload {
	t.olds = t.olds[:0]
	for _, p := range puts {
		old, _ := t.r.workloads.Get(p.GetId())
		t.olds = append(t.olds, old)
	}
	return t.olds
}

// Surplus returns the members of a group that a command does not list and therefore deletes:
// those in the namespaces of the listed members, or in the namespace of the command if it lists
// none. Members of other namespaces are not affected.
func Surplus(v groupView, b *commandv1.PutWorkloads) []*Workload {
	if b.GetGroupOf() == "" {
		return nil
	}
	return surplus(v, b, b.GetGroupOf())
}

func surplus(v groupView, b *commandv1.PutWorkloads, group string) (out []*Workload) {
	of := b.GetWorkloads()
	if len(of) == 0 {
		in := b.GetNamespace()
		v.Group(group, func(w *Workload) bool {
			if in == "" && w.Desired != DesiredDeleted && MadeByCount(group, w.ID) {
				in = w.In()
			}
			return in == ""
		})
		of = []*commandv1.WorkloadPut{{Namespace: in}}
	}
	membersIn(v, group, of, func(w *Workload) bool {
		if !slices.ContainsFunc(b.GetWorkloads(), func(p *commandv1.WorkloadPut) bool { return p.GetId() == w.ID }) {
			out = append(out, w)
		}
		return true
	})
	return out
}

// membersIn calls fn for the members that `count` made of a group, in the namespaces of puts.
func membersIn(v groupView, group string, puts []*commandv1.WorkloadPut, fn func(*Workload) bool) {
	var in []string
	for _, p := range puts {
		if name := NamespaceOf(v, p); !slices.Contains(in, name) {
			in = append(in, name)
		}
	}
	v.Group(group, func(w *Workload) bool {
		return w.Desired == DesiredDeleted || !MadeByCount(group, w.ID) || !slices.Contains(in, w.In()) || fn(w)
	})
}

type groupView interface {
	namespaced
	Group(group string, fn func(*Workload) bool)
}

// Intended returns the record that a put would leave, without order and times. A plan compares
// it with the present record.
func Intended(p *commandv1.WorkloadPut) *Workload {
	return &Workload{ID: p.GetId(), Spec: p.GetSpec(), Content: p.GetContent(), Demand: demandOf(p.GetDemand()), Actual: unobserved, Desired: Desired(p.GetDesired())}
}

// SameAs reports whether next would change nothing in w.
func (w *Workload) SameAs(next *Workload) bool {
	return w.Content == next.Content && w.Desired == next.Desired && demandEqual(w.Demand, next.Demand)
}

// TakesTurn reports whether a member-by-member update makes w wait for its turn before it
// changes to next. A workload that starts or stops does so at once.
func (w *Workload) TakesTurn(next *Workload) bool {
	return !w.SameAs(next) && w.Desired == DesiredRunning && next.Desired == DesiredRunning
}

// MadeByCount reports whether id has the form that `count` gives to members, <group>-<number>.
// Members with other ids joined the group through their own specification and are not deleted
// with it.
func MadeByCount(group, id string) bool {
	n, ok := strings.CutPrefix(id, group+"-")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// putOne stores p in place of old, which may be nil.
func (t *Tx) putOne(p *commandv1.WorkloadPut, old *Workload) Item {
	demand := t.demanded(p, old)
	desired := Desired(word(p.GetDesired()))
	limit := p.GetMaxAttempts()
	if limit == 0 {
		limit = DefaultMaxAttempts
	}
	if old == nil {
		w := &Workload{
			ID:             strings.Clone(p.GetId()), // kept by events, receipts and indexes
			Spec:           nonEmpty(p.GetSpec()),
			Content:        p.GetContent(),
			CallerRevision: p.GetCallerRevision(),
			Namespace:      strings.Clone(stored(p.GetNamespace())),
			Demand:         demand,
			Actual:         unobserved,
			Desired:        desired,
			Generation:     t.generation(),
			Retry:          Retry{MaxAttempts: limit},
			CreatedAt:      t.r.info.Clock,
			CreateIndex:    t.meta.Index,
		}
		w.Reason = reasonOf(w, nil, t.r.info.Clock)
		t.putWorkload(nil, w)
		t.eventOf(w, Event{Type: EventWorkloadCreated})
		return itemOf(w)
	}
	if old.Content == p.GetContent() && old.Desired == desired && old.Demand == demand {
		item := itemOf(old)
		item.Unchanged = true
		if old.CallerRevision != p.GetCallerRevision() || old.Retry.MaxAttempts != limit {
			w := *old
			w.CallerRevision, w.Retry.MaxAttempts = p.GetCallerRevision(), limit
			t.putWorkload(old, &w)
		}
		return item
	}
	w := *old
	w.Spec = nonEmpty(p.GetSpec())
	w.Content = p.GetContent()
	w.CallerRevision = p.GetCallerRevision()
	w.Demand = demand
	w.Desired = desired
	w.Retry = Retry{MaxAttempts: limit}
	w.Actions = nil // they belong to the former specification
	if w.Node != "" {
		t.holdPorts(&w, old.Demand.Ports)
	}
	t.guards(old, &w)
	t.newOrder(&w)
	if w.Reason.Code == "" && w.Node == "" && old.Reason.Code == CodeUnplaced && old.Demand == demand {
		// Same demand as before: keep the reason. Explaining it again would cost a log entry for
		// each change of a workload that waits.
		w.Reason = old.Reason
	}
	t.revise(old, &w)
	t.putWorkload(old, &w)
	if old.Demand.Group != demand.Group {
		t.disband(old)
	}
	e := Event{Type: EventWorkloadUpdated, Node: w.Node}
	if old.Desired == DesiredDeleted {
		e.Message = "applied again while it was being deleted"
	} else if old.Content == w.Content && old.Desired != w.Desired {
		e.Message = "desired state " + string(w.Desired)
	}
	t.eventOf(&w, e)
	return itemOf(&w)
}

// demanded returns the demand of p. If it equals the demand of old, both records share it.
func (t *Tx) demanded(p *commandv1.WorkloadPut, old *Workload) *Demand {
	d := demandValue(p.GetDemand())
	if old != nil && demandEqual(old.Demand, &d) {
		return old.Demand
	}
	kept := d // allocate only a demand that is stored
	return &kept
}

// newOrder gives the copy of a record a new generation, which its node must acknowledge, and
// derives its reason.
func (t *Tx) newOrder(w *Workload) {
	w.Generation = t.generation()
	w.Acknowledged, w.AcknowledgedAt = false, 0
	w.Reason = reasonOf(w, t.nodeOf(w), t.r.info.Clock)
}

// nodeOf returns the node of w, or nil if w is unplaced.
func (t *Tx) nodeOf(w *Workload) *Node {
	if w.Node == "" {
		return nil
	}
	n, _ := t.r.nodes.Get(w.Node)
	return n
}

func itemOf(w *Workload) Item {
	return Item{ID: w.ID, Generation: w.Generation, Revision: w.Revision()}
}

// setDesired starts, stops or deletes a workload.
func (t *Tx) setDesired(b *commandv1.SetDesired) Result {
	desired := Desired(b.GetDesired())
	switch desired {
	case DesiredRunning, DesiredStopped:
	case DesiredDeleted:
		return t.deleteWorkload(&commandv1.DeleteWorkload{Id: b.GetId()})
	default:
		return refuse(Invalid, "desired: %q is none of Running, Stopped, Deleted", b.GetDesired())
	}
	old, res, ok := t.theirs(b.GetId())
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted: apply it again to keep it", old.ID)
	case old.Desired == desired && !old.Diverged():
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Items: []Item{item}}
	}
	w := *old
	w.Desired = desired
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	t.newOrder(&w)
	t.putWorkload(old, &w)
	if desired == DesiredRunning {
		t.started(&w)
	}
	t.event(Event{Type: EventWorkloadUpdated, Workload: w.ID, Node: w.Node, Message: "desired state " + string(desired)})
	return Result{Items: []Item{itemOf(&w)}}
}

// deleteWorkload marks a workload for deletion; see deleteOne.
func (t *Tx) deleteWorkload(b *commandv1.DeleteWorkload) Result {
	old, res, ok := t.theirs(b.GetId())
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted && !b.GetForce():
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Items: []Item{item}}
	}
	return Result{Items: []Item{t.deleteOne(old, b.GetForce())}}
}

// deleteOne turns an assignment into a residual and marks the record as deleted. The record is
// removed at once if no node may hold the workload, or with force. Residuals stay, so that a
// node which returns removes the workload.
func (t *Tx) deleteOne(old *Workload, force bool) Item {
	w := *old
	w.Desired = DesiredDeleted
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	if w.Node != "" {
		t.release(&w, false, CodeDeleting)
	}
	t.newOrder(&w)
	if force || !t.hasResidual(w.ID) {
		t.dropWorkload(old)
		return itemOf(&w)
	}
	t.putWorkload(old, &w)
	if old.Desired != DesiredDeleted {
		t.event(Event{Type: EventWorkloadDeleting, Workload: w.ID, Node: old.Node})
	}
	return itemOf(&w)
}

// release takes w, the copy of a placed record, off its node. With gone, or if the node is
// fenced, the node runs nothing of it. Otherwise a residual keeps its claims.
func (t *Tx) release(w *Workload, gone bool, why string) {
	n := t.nodeOf(w)
	if !gone && !n.Fenced {
		left := *w.Demand
		left.Ports = united(left.Ports, w.FormerPorts)
		if w.Unguarded {
			left.OnLostLease = OnLostLeaseKeep
		}
		t.putResidual(&Residual{
			Node:       n.ID,
			Workload:   w.ID,
			Generation: t.generation(),
			Engine:     n.Engine(),
			Demand:     left,
			Since:      t.r.info.Clock,
			Reason:     why,
		})
	}
	w.PreviousNode = w.Node
	w.Node = ""
	w.Generation = t.generation()
	w.Acknowledged, w.AcknowledgedAt = false, 0
	w.AssignedAt = 0
	w.Actual = unobserved
	w.FormerPorts = nil
	w.Unguarded = false
	w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts}
}

// retryWorkload resets the failure counters and forces a restart with a new revision.
func (t *Tx) retryWorkload(b *commandv1.RetryWorkload) Result {
	old, res, ok := t.theirs(b.GetId())
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted: apply it again to keep it", old.ID)
	case old.Desired == DesiredStopped && old.Node == "":
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Reason: "it is stopped: start it instead", Items: []Item{item}}
	}
	w := *old
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	w.Restarts++
	t.newOrder(&w)
	t.putWorkload(old, &w)
	t.event(Event{
		Type: EventRetryTriggered, Workload: w.ID, Node: w.Node, Reason: CodeUserRetry,
		Details: []Label{{"attempts", "0"}, {"restarts", strconv.FormatUint(uint64(w.Restarts), 10)}},
	})
	return Result{Items: []Item{itemOf(&w)}}
}

// theirs returns a workload if the caller may act on it.
func (t *Tx) theirs(id string) (*Workload, Result, bool) {
	w, ok := t.r.workloads.Get(id)
	if !ok {
		return nil, noWorkload(id), false
	}
	res, ok := t.may(w.ID, w.In())
	return w, res, ok
}

func noWorkload(id string) Result { return refuse(NotFound, "workload %q does not exist", id) }

func noNode(id string) Result { return refuse(NotFound, "node %q does not exist", id) }

// nonEmpty returns nil for an empty slice, so that a state read from a snapshot equals the
// original.
func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}
