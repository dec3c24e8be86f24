package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// A system workload is a template with one member for each node that meets its placement rules. A
// member is an ordinary workload: a constraint on the id of its node binds it to that node. The
// planner proposes which members to create and to delete. A command that changes the template
// changes all members, in a rolling update if the template has an update policy.

// TemplateSystem is the value of Template.Kind for a system workload, which has one member on each
// suitable node.
const TemplateSystem = "system"

// NodeIDLabel is the key of a label that every node has implicitly. Its value is the id of the node.
const NodeIDLabel = "node.id"

// IsSystem reports whether w is a system workload, the template of its members.
func (w *Workload) IsSystem() bool { return w.IsTemplate() && w.Demand.Template.Kind == TemplateSystem }

// IsMember reports whether w is a member of a system workload.
func (w *Workload) IsMember() bool { return w.Run != nil && w.Run.Node != "" }

// MemberOf returns the member of a system workload for a node, also while it is being deleted.
func MemberOf(v namespaced, template, node string) (*Workload, bool) {
	is := func(w *Workload, ok bool) bool { return ok && w.Owner == template && w.Run.Node == node }
	if w, ok := v.Workload(memberID(template, node)); is(w, ok) {
		return w, true
	}
	if w, ok := v.Workload(HashedID(template, node)); is(w, ok) {
		return w, true
	}
	return nil, false
}

func memberID(template, node string) string { return template + "-" + node }

// HashedID returns an id for a child of a template: for the run that a user starts with a key, or
// for a member of a system workload whose plain id is too long or belongs to another workload.
func HashedID(template, of string) string {
	sum := sha256.Sum256([]byte(of))
	return template + "-" + hex.EncodeToString(sum[:6])
}

// placeMembers creates and deletes members of system workloads (workloads with one member on each
// suitable node), as the planner proposes.
func (t *Tx) placeMembers(b *commandv1.PlaceMembers) (res Result) {
	for _, c := range b.GetChanges() {
		of, why := t.planned(c.GetTemplate(), c.GetIfGeneration())
		if why == "" && !of.IsSystem() {
			why = fmt.Sprintf("workload %q is not a system workload", of.ID)
		}
		if why == "" && c.GetDelete() {
			why = t.deleteMember(of, c, &res)
		} else if why == "" {
			why = t.createMember(of, c, &res)
		}
		if why != "" {
			res.skip(why)
		}
	}
	return res
}

// deleteMember deletes the member of a system workload on a node. It returns why the member was not
// deleted; "" if it was.
func (t *Tx) deleteMember(of *Workload, c *commandv1.MemberChange, res *Result) string {
	w, ok := MemberOf(t.state(), of.ID, c.GetNode())
	if !ok || w.Desired == DesiredDeleted {
		return fmt.Sprintf("system workload %q has no member for node %q", of.ID, clip(c.GetNode()))
	}
	if n, ok := t.r.nodes.Get(c.GetNode()); ok && c.GetCode() == CodeDraining && !n.Draining {
		return n.drainEnded()
	}
	if n := t.nodeOf(w); n != nil && c.GetCode() == CodeDraining && w.FinishesOn(n, t.r.info.Clock) {
		return fmt.Sprintf("job %q stays on its node: %s", w.ID, n.EndsText()) // the node has accepted the order since the planner looked
	}
	item := t.deleteOne(w, false, false)
	item.Deleted = true
	t.event(Event{Type: EventMemberRemoved, Workload: of.ID, Node: w.Run.Node, Message: clipTo(c.GetMessage(), maxJobMessage), Details: []Label{{"member", w.ID}}})
	res.Items = append(res.Items, item)
	return ""
}

// createMember creates the member of a system workload (of) for a node. It returns why the change is skipped;
// "" if the member was created, or if a check refused it. If a quota refuses the member, the reason is stored
// in the record of the template.
func (t *Tx) createMember(of *Workload, c *commandv1.MemberChange, res *Result) string {
	n, ok := t.r.nodes.Get(c.GetNode())
	switch {
	case !ok:
		return fmt.Sprintf("node %q does not exist", clip(c.GetNode()))
	case !n.Schedulable():
		return fmt.Sprintf("node %q takes no new workloads", n.ID)
	case of.Desired != DesiredRunning:
		return fmt.Sprintf("system workload %q has the desired state %s", of.ID, of.Desired)
	case of.Reason.Code == CodeNotCreated && of.Reason.At == t.r.info.Clock:
		return fmt.Sprintf("a member of system workload %q was refused by this command: %s", of.ID, of.Reason.Message)
	}
	if w, ok := MemberOf(t.state(), of.ID, n.ID); ok {
		return fmt.Sprintf("node %q has the member %q already", n.ID, w.ID)
	}
	id := memberID(of.ID, n.ID)
	if _, taken := t.r.workloads.Get(id); taken || !bounds.ValidID(id) {
		id = HashedID(of.ID, n.ID)
	}
	w, refusal := t.createRun(of, id, Run{Node: n.ID}, memberPut(workloadPB(of).GetPut(), of.ID, id, n.ID), of.ID, of.approval())
	if w == nil {
		t.notCreated(of, n.ID, refusal.Reason)
		return ""
	}
	if of.Reason.Code == CodeNotCreated {
		again := *of
		again.Reason = t.reason(&again, nil)
		t.putWorkload(of, &again)
	}
	t.event(Event{Type: EventMemberCreated, Workload: of.ID, Node: n.ID, Details: []Label{{"member", id}}})
	res.Items = append(res.Items, itemOf(w))
	return ""
}

// notCreated records, in the record of a system workload (of), why its member for a node was not created. The
// time of the reason tells the planner when to try again.
func (t *Tx) notCreated(of *Workload, node, why string) {
	w := *of
	w.Reason = Reason{Code: CodeNotCreated, Message: clipTo("the member for node "+node+" was not created: "+why, maxJobMessage), At: t.r.info.Clock, Retryable: true}
	t.putWorkload(of, &w)
	if of.Reason.Code != w.Reason.Code { // one event, however many nodes get no member
		t.event(Event{Type: EventWorkloadUnplaced, Workload: of.ID, Node: node, Reason: w.Reason.Code, Message: w.Reason.Message})
	}
}

// memberPut turns p, a copy of the template's specification, into the specification of the member with the given id on
// a node, and returns p. It changes p in place, so the caller must not use p as the template afterwards.
func memberPut(p *commandv1.WorkloadPut, template, id, node string) *commandv1.WorkloadPut {
	p.Id, p.IfRevision = id, ""
	p.Demand.Template, p.Demand.Group = nil, template
	p.Demand.Constraints = append(p.Demand.Constraints, &commandv1.Constraint{Key: NodeIDLabel, Op: "=", Values: []string{node}})
	return p
}

func isSystemPut(p *commandv1.WorkloadPut) bool {
	return p.GetDemand().GetTemplate().GetKind() == TemplateSystem
}

// withMembers adds the specifications of all members to a command that stores a system workload, as if
// they were a group, so that the members can be updated a few at a time. It returns other commands
// unchanged.
func (t *Tx) withMembers(b *commandv1.PutWorkloads) *commandv1.PutWorkloads {
	puts := b.GetWorkloads()
	if len(puts) != 1 || b.GetGroupOf() != "" || !isSystemPut(puts[0]) {
		return b
	}
	of, ok := t.r.workloads.Get(puts[0].GetId())
	all := &commandv1.PutWorkloads{GroupOf: puts[0].GetId(), Update: b.GetUpdate(), Workloads: puts[:1:1], Bundles: b.GetBundles()}
	for _, w := range t.childrenOf(all.GetGroupOf()) {
		if !ok || w.Desired == DesiredDeleted {
			continue
		}
		p := memberPut(puts[0].CloneVT(), of.ID, w.ID, w.Run.Node)
		if p.GetDesired() == string(of.Desired) {
			p.Desired = string(w.Desired) // a member that a user stopped stays stopped
		}
		p.Namespace = w.In()
		all.Workloads = append(all.Workloads, p)
	}
	return all
}

// maxWaiting is the maximum size in bytes of the specifications that an update of a system workload keeps until
// the turn of each member. One record holds them all, and it must fit into a snapshot record.
const maxWaiting = 6 << 20

// membersFault returns why a system workload with its members is too large for one update, or "".
func membersFault(b *commandv1.PutWorkloads) string {
	puts := b.GetWorkloads()
	if b.GetUpdate() == nil || len(puts) < 2 || !isSystemPut(puts[0]) {
		return ""
	}
	if size := puts[0].SizeVT() * len(puts); size > maxWaiting {
		return fmt.Sprintf("system workload %q: an update of %d members with a specification of %d bytes takes %d bytes, at most %d: make the specification smaller",
			clip(puts[0].GetId()), len(puts)-1, puts[0].SizeVT(), size, maxWaiting)
	}
	return ""
}

// desireMembers starts or stops the members of a system workload when the system workload is
// started or stopped.
func (t *Tx) desireMembers(of *Workload) {
	for _, w := range t.childrenOf(of.ID) {
		if w.Desired != of.Desired && w.Desired != DesiredDeleted {
			t.setDesired(&commandv1.SetDesired{Id: w.ID, Desired: string(of.Desired)})
		}
	}
}

// ofSystem returns an error text if command b changes, as a group, the members of a system workload, which can
// only be changed through the system workload; "" otherwise.
func ofSystem(v namespaced, b *commandv1.PutWorkloads) string {
	w, ok := v.Workload(b.GetGroupOf())
	if !ok || !w.IsSystem() || w.Desired == DesiredDeleted {
		return ""
	}
	for _, p := range b.GetWorkloads() {
		if p.GetId() == w.ID {
			return ""
		}
	}
	return fmt.Sprintf("%q is a system workload: delete it first, or take another id", w.ID)
}
