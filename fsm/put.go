package fsm

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// DefaultMaxAttempts is the number of attempts to start a workload whose max_attempts is 0.
const DefaultMaxAttempts = 5

// putWorkloads creates or changes workloads. Without the field `each` the command stores all workloads or none.
// If back is set, the command restores former specifications of a group. If judge is set, a person asks for the
// specifications: they are checked against the present policies, whose names the records keep. Otherwise every workload
// keeps the policy against which it was checked before.
func (t *Tx) putWorkloads(b *commandv1.PutWorkloads, back, judge bool) Result {
	puts := b.GetWorkloads()
	t.offered, t.pool, t.growth = b.GetBundles(), b.GetNetworkPool(), 0
	switch {
	case b.GetEach():
		return t.putEach(b)
	case len(puts) == 1 && b.GetGroupOf() == "" && b.GetUpdate() == nil && !back && !isSystemPut(puts[0]):
		item, refusal, ok := t.putAlone(puts)
		if !ok {
			return refusal
		}
		return Result{Items: place(&t.slabs, &t.slabs.items, item)}
	}
	b, res := PinObjects(t.state(), b)
	if res.Kind != OK {
		return res
	}
	puts = b.GetWorkloads()
	if fault := t.putsFault(puts, b.GetGroupOf()); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if u := b.GetUpdate(); u != nil && rollout.PolicyOf(u).Fault() != "" {
		return refuse(Invalid, "update.%s", rollout.PolicyOf(u).Fault())
	}
	if fault := bounds.SurgeFault(b); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	b = t.withMembers(b)
	puts = b.GetWorkloads()
	if fault := membersFault(b); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if !back && (b.IfMembers != nil || b.IfCount != nil) {
		now := Count(Members(t.state(), b.GetGroupOf()))
		if b.IfMembers != nil && now != int(b.GetIfMembers()) {
			return refuse(Conflict, "%s has been scaled from %d to %d members meanwhile, by a person or the autoscaler: run the command again", b.GetGroupOf(), b.GetIfMembers(), now)
		}
		if b.IfCount != nil && now != int(b.GetIfCount()) {
			return refuse(Conflict, "the autoscaler has changed %s from %d to %d members meanwhile: run the command again", b.GetGroupOf(), b.GetIfCount(), now)
		}
	}
	extra := Surplus(t.state(), b)
	olds := t.replaced(puts)
	if res, ok := t.admits(b, olds, extra); !ok {
		return res
	}
	if fault := cmp.Or(templatesFault(puts, olds, b.GetGroupOf()), ofSystem(t.state(), b)); fault != "" {
		return refuse(Conflict, "%s", fault)
	}
	under := make([]string, len(puts))
	for i, p := range puts {
		if under[i] = p.GetPolicy(); judge {
			under[i] = t.under(p, olds[i])
		}
	}
	if judge {
		if res, ok := t.judged(puts, olds); !ok {
			return res
		}
	}
	if res, ok := t.admitsSurge(b, judge); !ok {
		return res
	}
	by := make([]int64, len(puts))
	for i, p := range puts {
		by[i] = t.grows(p, olds[i])
		t.growth += by[i]
	}
	roll, res := t.rolls(b, under, back)
	if res.Kind != OK {
		t.growth = 0
		return res
	}
	t.makeNetwork()
	items := make([]Item, 0, len(puts))
	for i, p := range puts {
		t.growth -= by[i]
		item, waits := t.waits(roll, p.GetId())
		if !waits {
			item = t.putOne(p, olds[i], under[i])
		}
		items = append(items, item)
	}
	for _, w := range extra {
		item := t.deleteOne(w, false, false)
		if item.Deleted = true; b.GetListDeleted() {
			items = append(items, item)
		}
	}
	t.begin(roll)
	t.dropSurge(b.GetGroupOf())
	return Result{Items: items}
}

// putsFault returns an error text for the first invalid workload in puts; "" if every one is valid.
func (t *Tx) putsFault(puts []*commandv1.WorkloadPut, group string) string {
	fault := bounds.PutsFault(puts, group)
	if fault == "" {
		fault = bounds.PortNamesFault(puts)
	}
	if fault == "" {
		fault = bundlesFault(t.state(), t.offered, puts)
	}
	return fault
}

// replaced returns the present record of each workload in puts; nil if the workload is new. The ids
// are distinct, so storing one workload does not change the record of another. The returned list is
// valid until the next command.
func (t *Tx) replaced(puts []*commandv1.WorkloadPut) []*Workload {
	t.olds = t.olds[:0]
	for _, p := range puts {
		old, _ := t.r.workloads.Get(p.GetId())
		t.olds = append(t.olds, old)
	}
	return t.olds
}

// Surplus returns the members of a group that a command does not list and therefore deletes. It returns only members in
// the namespaces of the listed workloads. If the command lists none, it returns the members in the namespace of the
// command or, if that is empty, of the group's first member. Members of other namespaces are not deleted.
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

// membersIn calls fn for the members of a group that were created by the field count of a specification. It
// leaves out surge members (extra members of an update), and members in namespaces to which no workload in
// puts belongs.
func membersIn(v groupView, group string, puts []*commandv1.WorkloadPut, fn func(*Workload) bool) {
	var in []string
	for _, p := range puts {
		if name := NamespaceOf(v, p); !slices.Contains(in, name) {
			in = append(in, name)
		}
	}
	v.Group(group, func(w *Workload) bool {
		return w.Desired == DesiredDeleted || w.Demand.Surge || !MadeByCount(group, w.ID) || !slices.Contains(in, w.In()) || fn(w)
	})
}

type groupView interface {
	namespaced
	Group(group string, fn func(*Workload) bool)
}

// Intended returns the record that a workload would have after p was applied, without generation and times.
// Dry runs (plans) compare it with the present record.
func Intended(p *commandv1.WorkloadPut) *Workload {
	return &Workload{ID: p.GetId(), Spec: p.GetSpec(), Content: p.GetContent(), Demand: demandOf(p.GetDemand()), Actual: unobserved, Desired: Desired(p.GetDesired())}
}

// SameAs reports whether w has the content, the desired state and the demand of record next, so that storing next
// would change nothing.
func (w *Workload) SameAs(next *Workload) bool {
	return w.Content == next.Content && w.Desired == next.Desired && demandEqual(w.Demand, next.Demand)
}

// TakesTurn reports whether the change from record w to record next must wait until a rolling update reaches the
// workload. Two kinds of changes are made at once: those that start or stop the workload, and those that give its
// node no new order.
func (w *Workload) TakesTurn(next *Workload) bool {
	same := w.Content == next.Content && demandEqualBut(w.Demand, next.Demand)
	return !same && w.Desired == DesiredRunning && next.Desired == DesiredRunning
}

// MadeByCount reports whether id has the form <group>-<number>, which the field `count` of a specification gives to
// members. Members with other ids joined the group through their own specification and are not deleted with it.
func MadeByCount(group, id string) bool {
	n, ok := strings.CutPrefix(id, group+"-")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// putOne stores the workload that p describes. old is its present record, or nil; under is the name of the
// policy against which p was checked.
func (t *Tx) putOne(p *commandv1.WorkloadPut, old *Workload, under string) Item {
	demand := t.demanded(p, old)
	desired, limit := Desired(word(p.GetDesired())), attemptsOf(p)
	if old == nil {
		w := t.made(p, demand, under)
		t.create(w)
		return itemOf(w)
	}
	desired = t.desiredInMove(old, desired, old.Content == p.GetContent() && old.Demand == demand && old.Policy == under && !p.GetDiscardData())
	if old.Content == p.GetContent() && old.Desired == desired && old.Demand == demand && old.Policy == under {
		item := itemOf(old)
		item.Unchanged = true
		if n := t.nodeOf(old); p.GetDiscardData() && old.BoundByData(n) {
			t.discardOn(n, []*Workload{old}, CodeUserRequest)
			item.Unchanged = false
			return item
		}
		if old.CallerRevision != p.GetCallerRevision() || old.Retry.MaxAttempts != limit || old.Update != updateOf(p) {
			w := *old
			w.CallerRevision, w.Retry.MaxAttempts, w.Update = p.GetCallerRevision(), limit, updateOf(p)
			t.putWorkload(old, &w)
		}
		return item
	}
	if old.Content == p.GetContent() && old.Desired == desired && old.Policy == under && !p.GetDiscardData() && demandEqualBut(old.Demand, demand) {
		w := *old // only the rules of the autoscaler have changed, of which the node knows nothing
		w.Spec, w.Demand = nonEmpty(p.GetSpec()), demand
		w.CallerRevision, w.Retry.MaxAttempts, w.Update = p.GetCallerRevision(), limit, updateOf(p)
		t.putWorkload(old, &w)
		t.eventOf(&w, Event{Type: EventWorkloadUpdated, Node: w.Node, Message: "autoscale " + demand.Autoscale.String()})
		return itemOf(&w)
	}
	w := *old
	w.Spec = nonEmpty(p.GetSpec())
	w.Content = p.GetContent()
	w.Bundle = strings.Clone(p.GetBundle())
	w.Objects, w.SpecContent, w.Update = usesOf(p.GetObjects()), strings.Clone(p.GetSpecContent()), updateOf(p)
	w.CallerRevision = p.GetCallerRevision()
	w.Demand = demand
	w.Policy = strings.Clone(under)
	if w.Owner == "" {
		w.SealedFor = "" // the secrets of this put are sealed for the workload itself
	}
	w.Desired, w.KeepVolumes = desired, false
	w.Retry = Retry{MaxAttempts: limit}
	w.FailedOn = nil
	w.Actions = nil // drop the recorded agent tasks: they are about the former specification
	if w.Node != "" {
		t.holdPorts(&w, old.Demand.Ports)
	}
	t.carryOutlives(old, &w)
	reschedule(old, &w)
	n := t.nodeOf(&w)
	w.DiscardData = n != nil && (p.GetDiscardData() || old.DiscardData && (n.Draining || n.Fenced))
	t.newOrder(&w)
	if demand.Job != nil && old.Demand.Job != nil && old.Content == w.Content && old.Desired == desired {
		// The content is the same; for example, only the priority changed. A finished job does not run again, and a
		// running job keeps its instance, its deadline and its number of attempts.
		w.JobSince, w.Retry.Attempts = old.JobSince, old.Retry.Attempts
		if w.Node != "" {
			w.SameSince = old.sameSince()
		}
		if keepsResult(p, old) {
			w.Result = old.Result
			w.Reason = t.reason(&w, n)
		}
	}
	if w.Reason.Code == "" && w.Node == "" && old.Reason.Code == CodeUnplaced && old.Demand == demand {
		// The demand is unchanged, so the planner's reason why the workload waits still holds. A new explanation would
		// cost a log entry for each change of a waiting workload.
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
	if w.DiscardData && old.BoundByData(n) {
		t.eventOf(&w, discarded(&w, n, CodeUserRequest))
	}
	return itemOf(&w)
}

// made returns the record of a new workload, which is not stored yet.
func (t *Tx) made(p *commandv1.WorkloadPut, demand *Demand, under string) *Workload {
	w := &Workload{
		ID:             strings.Clone(p.GetId()), // events, receipts and indexes keep the id, so it must not share the memory of the command
		Spec:           nonEmpty(p.GetSpec()),
		Content:        p.GetContent(),
		Bundle:         strings.Clone(p.GetBundle()),
		Objects:        usesOf(p.GetObjects()),
		SpecContent:    strings.Clone(p.GetSpecContent()),
		Update:         updateOf(p),
		CallerRevision: p.GetCallerRevision(),
		Namespace:      strings.Clone(stored(p.GetNamespace())),
		Demand:         demand,
		Policy:         strings.Clone(under),
		Actual:         unobserved,
		Desired:        Desired(word(p.GetDesired())),
		Generation:     t.generation(),
		Retry:          Retry{MaxAttempts: attemptsOf(p)},
		CreatedAt:      t.r.info.Clock,
		CreateIndex:    t.meta.Index,
	}
	if demand.Template != nil {
		w.Template = &TemplateState{}
	}
	w.Reason = reasonOf(w, nil, t.r.info.Clock)
	return w
}

// create stores w, a new record, and its event.
func (t *Tx) create(w *Workload) {
	t.renumber(w)
	t.putWorkload(nil, w)
	t.eventOf(w, Event{Type: EventWorkloadCreated})
}

// attemptsOf returns the number of attempts to start that p gives its workload: max_attempts, or
// the default.
func attemptsOf(p *commandv1.WorkloadPut) int32 {
	if n := p.GetMaxAttempts(); n != 0 {
		return n
	}
	return DefaultMaxAttempts
}

// demanded returns the demand of p. If the record old has an equal demand, demanded returns old's demand, so that
// both records share its memory.
func (t *Tx) demanded(p *commandv1.WorkloadPut, old *Workload) *Demand {
	d := demandValue(p.GetDemand())
	if old != nil && demandEqual(old.Demand, &d) {
		return old.Demand
	}
	kept := d // copy d to the heap only here, because the return above needs no copy
	return &kept
}

// nextOrder gives w, a copy of a record, the generation of its next order.
func (t *Tx) nextOrder(w *Workload) {
	w.Generation, w.SameSince = t.generation(), Generation{}
}

// repeatOrder gives w, a copy of a record, a new generation and no new revision, so that the node keeps an instance that
// runs. Only for jobs the record says that the order asks for the same instance: FinishesOn needs that.
func (t *Tx) repeatOrder(w *Workload) {
	since := w.sameSince()
	t.nextOrder(w)
	w.Acknowledged, w.AcknowledgedAt = false, 0
	if w.Demand.Job != nil {
		w.SameSince = since
	}
}

// newOrder gives w, a copy of a record, a new generation, which the node must acknowledge. It also
// computes the reason again.
func (t *Tx) newOrder(w *Workload) {
	t.nextOrder(w)
	w.Acknowledged, w.AcknowledgedAt = false, 0
	w.Result, w.JobSince = nil, 0
	if w.Demand.Job != nil && w.Node != "" {
		w.JobSince = t.r.info.Clock
	}
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
		return t.deleteWorkload(&commandv1.DeleteWorkload{Id: b.GetId(), IfRevision: b.GetIfRevision()})
	default:
		return refuse(Invalid, "desired: %q is none of Running, Stopped, Deleted", b.GetDesired())
	}
	old, res, ok := t.theirs(b.GetId(), b.GetIfRevision())
	if ok && desired == DesiredStopped {
		t.stayStopped(old)
	}
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted: apply it again to keep it", old.ID)
	case old.Desired == desired && !old.Diverged(), old.Finished():
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Items: []Item{item}}
	}
	if desired == DesiredRunning {
		if res, ok := t.judgedAgain(old); !ok {
			return res
		}
	}
	w := *old
	w.Desired = desired
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	w.FailedOn = nil
	reschedule(old, &w)
	t.newOrder(&w)
	t.putWorkload(old, &w)
	if w.IsSystem() {
		t.desireMembers(&w)
	}
	if desired == DesiredRunning {
		t.started(&w)
	}
	t.event(Event{Type: EventWorkloadUpdated, Workload: w.ID, Node: w.Node, Message: "desired state " + string(desired)})
	return Result{Items: []Item{itemOf(&w)}}
}

// deleteWorkload marks a workload for deletion; see deleteOne. A second delete may decide to keep the volumes. It cannot
// decide to delete them: a request that does not say what happens to volumes would otherwise delete data that a user
// wanted to keep.
func (t *Tx) deleteWorkload(b *commandv1.DeleteWorkload) Result {
	old, res, ok := t.theirs(b.GetId(), b.GetIfRevision())
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted && !b.GetForce() && (old.KeepVolumes || !b.GetKeepVolumes()):
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Items: []Item{item}}
	}
	keep := b.GetKeepVolumes() || old.Desired == DesiredDeleted && old.KeepVolumes
	return Result{Items: []Item{t.deleteOne(old, b.GetForce(), keep)}}
}

// deleteOne marks the record of a workload as deleted and turns its assignment into a residual, which tells
// the node to remove the instance. It removes the record at once with force, or if no node may have an
// instance. The residuals stay, so that a node that returns removes the workload. It also deletes the children
// of a template. With keep, the volumes that have a name are kept, whatever their retain policy.
func (t *Tx) deleteOne(old *Workload, force, keep bool) Item {
	if old.IsTemplate() {
		for _, child := range t.childrenOf(old.ID) {
			if child.Desired != DesiredDeleted || force || keep && !child.KeepVolumes {
				t.deleteOne(child, force, keep || child.Desired == DesiredDeleted && child.KeepVolumes)
			}
		}
	}
	w := *old
	w.Desired, w.KeepVolumes = DesiredDeleted, keep
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	if w.Node != "" {
		t.release(&w, false, CodeDeleting)
	}
	t.newOrder(&w)
	t.keepVolumesOf(w.ID, keep)
	if force || !t.hasResidual(w.ID) {
		if keep != old.KeepVolumes {
			leaving := *old
			leaving.KeepVolumes = keep
			t.putWorkload(old, &leaving)
			old = &leaving
		}
		t.dropWorkload(old)
		return itemOf(&w)
	}
	t.putWorkload(old, &w)
	if old.Desired != DesiredDeleted {
		t.event(Event{Type: EventWorkloadDeleting, Workload: w.ID, Node: old.Node})
	}
	return itemOf(&w)
}

// release takes w, the copy of a placed record, off its node. gone says that the node runs no instance of w. If gone
// is not set and no operator has confirmed that the node is off, release stores a residual, which keeps the resources
// and ports of w reserved until the node has removed the instance.
func (t *Tx) release(w *Workload, gone bool, why string) {
	n := t.nodeOf(w)
	t.resumes(w)
	if !gone && !n.Fenced {
		left := *w.Demand
		left.Asks = nil // a residual needs no asks: policies do not judge it
		left.Ports = united(left.Ports, w.FormerPorts)
		if w.MayOutliveLease {
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
	t.nextOrder(w)
	w.Acknowledged, w.AcknowledgedAt = false, 0
	w.AssignedAt = 0
	w.Actual = unobserved
	w.FormerPorts = nil
	w.MayOutliveLease = false
	w.Data, w.DiscardData = nil, false
	attempts := int32(0)
	if w.Demand.Job != nil {
		attempts = w.Retry.Attempts // the attempts of a job count across nodes
	}
	w.Retry = Retry{MaxAttempts: w.Retry.MaxAttempts, Attempts: attempts}
}

// retryWorkload resets the failure counters and forces a restart with a new revision. If if_needed is set, it does this
// only if a retry would help, and otherwise changes nothing.
func (t *Tx) retryWorkload(b *commandv1.RetryWorkload) Result {
	old, res, ok := t.theirs(b.GetId(), b.GetIfRevision())
	switch {
	case !ok:
		return res
	case old.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted: apply it again to keep it", old.ID)
	case old.IsTemplate():
		return refuse(Conflict, "%q is %s and is not run itself: start a run of it, or restart one of its runs", old.ID, kindWord(old.Demand.Template.Kind))
	case old.Desired == DesiredStopped && old.Node == "":
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Reason: "it is stopped: start it instead", Items: []Item{item}}
	}
	if why := t.noRetry(old); b.GetIfNeeded() && why != "" {
		item := itemOf(old)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Reason: why, Items: []Item{item}}
	}
	if res, ok := t.readmits(old); !ok {
		return res
	}
	if res, ok := t.judgedAgain(old); !ok {
		return res
	}
	w := *old
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
	w.FailedOn = nil
	w.Restarts++
	t.newOrder(&w)
	t.putWorkload(old, &w)
	t.event(Event{
		Type: EventRetryTriggered, Workload: w.ID, Node: w.Node, Reason: CodeUserRetry,
		Details: []Label{{"attempts", "0"}, {"restarts", strconv.FormatUint(uint64(w.Restarts), 10)}},
	})
	return Result{Items: []Item{itemOf(&w)}}
}

// theirs returns the workload that a caller wants to change. condition is the revision that it must
// have; "" for any. It returns a refusal if the workload does not exist, if the caller may not act
// on the workload, or if the condition on its revision does not hold.
func (t *Tx) theirs(id, condition string) (*Workload, Result, bool) {
	w, ok := t.r.workloads.Get(id)
	if !ok {
		return nil, noWorkload(id), false
	}
	res, ok := t.may(w.ID, w.In())
	if why := ConditionFault(condition, id, w); ok && why != "" {
		res, ok = refuse(OtherRevision, "%s", why), false
	}
	return w, res, ok
}

func noWorkload(id string) Result { return refuse(NotFound, "workload %q does not exist", id) }

func noNode(id string) Result { return refuse(NotFound, "node %q does not exist", id) }

// nonEmpty returns nil for an empty slice, and otherwise b. A snapshot does not distinguish nil
// from an empty slice, and a state that was read from a snapshot must equal the original.
func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}
