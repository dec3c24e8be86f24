package rpc

import (
	"cmp"
	"context"
	"errors"
	"slices"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Limits of one plan.
const (
	maxPlan     = 256
	maxVerdicts = 16 // largest number of workloads for which the plan shows the verdict on every node
)

// requested returns the workloads of a request: those in listed, or those that the text file contains, then with the
// positions of their fields in the text. The total size of the large texts that are parsed at the same time is limited,
// so requested may wait before it parses a large text.
func (s *Server) requested(ctx context.Context, listed []*controlv1.ApplyWorkloadRequest, file, name string, most int) ([]spec.Document, error) {
	var docs []spec.Document
	for _, req := range listed {
		docs = append(docs, spec.Document{Request: req})
	}
	if file != "" {
		if len(listed) > 0 {
			return nil, errorf(KindInvalid, "file: only one of file and workloads may be given")
		}
		leave, err := s.parse(ctx, len(file))
		if err != nil {
			return nil, err
		}
		defer leave()
		if docs, err = spec.Documents("", []byte(file), spec.Options{Name: name}); err != nil {
			return nil, &Error{Kind: KindInvalid, Err: err}
		}
	}
	if n := len(docs); n == 0 || n > most {
		return nil, errorf(KindInvalid, "workloads has %d entries, must have 1 to %d", n, most)
	}
	return docs, nil
}

// PlanWorkloads implements the call of cluster.v1: it shows what an apply would do, in a state of the read
// level that the caller asks for.
func (s *Server) PlanWorkloads(ctx context.Context, req *clusterv1.PlanWorkloadsRequest) (*clusterv1.PlanWorkloadsResponse, error) {
	docs, err := s.requested(ctx, req.GetWorkloads(), req.GetFile(), req.GetName(), maxPlan)
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	p := plan{s: s, view: r.View, keep: req.GetKeepVolumes()}
	if name := req.GetPolicy(); name != "" {
		by, err := policyNamed(r, name)
		if err != nil {
			return nil, err
		}
		p.by = &by.Policy
	}
	for _, doc := range docs {
		before := len(p.out)
		if err := p.add(ctx, doc.Request); err != nil {
			return nil, err
		}
		for _, w := range p.out[before:] {
			if w.Action == "refused" {
				w.Reason = doc.Locate(w.Reason)
			}
		}
	}
	p.judgeData()
	p.place()
	return &clusterv1.PlanWorkloadsResponse{Workloads: p.out, Index: r.index, Frozen: s.frozen()}, nil
}

// plan collects what an apply would do.
type plan struct {
	s    *Server
	view fsm.View
	by   *policy.Policy // policy that judges the workloads in place of the policies of their namespaces; nil for none
	out  []*clusterv1.PlannedWorkload
	next []*fsm.Workload // workloads for which the planner has to find a node
	at   []int           // for each workload in the list next: its index in the list out

	keep    bool // requested deletes keep the volumes that have a name
	leaving []leaving
}

func (p *plan) say(id, action, reason string) *clusterv1.PlannedWorkload {
	w := &clusterv1.PlannedWorkload{WorkloadId: id, Action: action, Reason: reason}
	p.out = append(p.out, w)
	return w
}

// add plans one request. If it returns an error, the whole call fails; the refusal of a single request is a
// part of the plan.
func (p *plan) add(ctx context.Context, req *controlv1.ApplyWorkloadRequest) error {
	id := req.GetWorkloadId()
	prepared, err := p.s.prepare(ctx, req, p.by, true)
	var bad spec.Errors
	switch {
	case errors.As(err, &bad), errors.Is(err, spec.ErrBlankID), errors.Is(err, spec.ErrNoKey):
		p.say(id, "refused", err.Error())
		return nil
	case err != nil:
		return err
	}
	switch body := prepared.Command.GetBody().(type) {
	case *commandv1.Command_PutWorkloads:
		put, res := fsm.PinObjects(p.view, body.PutWorkloads)
		if res.Kind != fsm.OK {
			p.say(id, "refused", res.Reason)
			return nil
		}
		gone := fsm.Surplus(p.view, put)
		for _, w := range append(p.present(put.GetWorkloads()), gone...) {
			if err := p.s.within(ctx, w); err != nil {
				return err
			}
		}
		if why := p.misplaced(ctx, put, gone); why != "" {
			for _, w := range put.GetWorkloads() {
				p.say(w.GetId(), "refused", why)
			}
			return nil
		}
		for _, w := range put.GetWorkloads() {
			p.put(w, put.GetUpdate(), len(put.GetWorkloads()))
		}
		p.shrink(gone)
	case *commandv1.Command_DeleteWorkload:
		return p.desire(ctx, prepared.IDs[0], fsm.DesiredDeleted)
	case *commandv1.Command_SetDesired:
		return p.desire(ctx, prepared.IDs[0], fsm.Desired(body.SetDesired.GetDesired()))
	}
	return nil
}

// present returns the existing records of the workloads that the request would change.
func (p *plan) present(puts []*commandv1.WorkloadPut) (out []*fsm.Workload) {
	for _, w := range puts {
		if have, ok := p.view.Workload(w.GetId()); ok {
			out = append(out, have)
		}
	}
	return out
}

// misplaced returns the reason if an apply would be refused because of its condition (if_revision), namespace,
// priority or policy; otherwise "". Each request of a plan is checked as if it were the only request.
func (p *plan) misplaced(ctx context.Context, put *commandv1.PutWorkloads, gone []*fsm.Workload) string {
	in := p.s.scopeOf(ctx)
	for _, w := range put.GetWorkloads() {
		have, _ := p.view.Workload(w.GetId())
		if why := fsm.ConditionFault(w.GetIfRevision(), w.GetId(), have); why != "" {
			return why
		}
		if name := fsm.NamespaceOf(p.view, w); !in.Has(name) {
			return "it would be in namespace " + name + ", and you have rights only in " + in.String()
		}
	}
	if why := p.view.NameFault(put, gone, in.Has); why != "" {
		return why
	}
	if err := fsm.Fits(p.view, put, gone, p.s.shares(ctx)); err != nil {
		return err.Error()
	}
	for _, w := range put.GetWorkloads() {
		if why := fsm.PriorityFault(p.view, w, !in.Everywhere()); why != "" {
			return why
		}
		if bad := p.violations(ctx, w); len(bad) > 0 {
			return policy.Text(bad) + "\n" + policy.Next(fsm.NamespaceOf(p.view, w))
		}
	}
	return ""
}

// put plans one workload. If update is set, the workload is a member of a group whose members are updated a
// few at a time, and members is their number.
func (p *plan) put(w *commandv1.WorkloadPut, update *commandv1.UpdatePolicy, members int) {
	next := fsm.Intended(w)
	next.Namespace = fsm.NamespaceOf(p.view, w)
	have, known := p.view.Workload(next.ID)
	action, changes := "create", []spec.Difference(nil)
	if known && have.Desired != fsm.DesiredDeleted {
		next.Node, next.Actual, next.Data = have.Node, have.Actual, have.Data
		next.DiscardData = w.GetDiscardData() || have.DiscardData
		if wanted := fsm.Wanted(p.view, have); wanted != have.Desired { // it is stopped for a move of its volumes
			then := *have
			then.Desired = wanted
			have = &then
		}
		switch {
		case have.SameAs(next):
			action = "unchanged"
		case have.Content != next.Content:
			action = "replace"
		case have.Desired != next.Desired && next.Desired == fsm.DesiredStopped:
			action = "stop"
		case have.Desired != next.Desired:
			action = "start"
		default:
			action = "update"
		}
		if action != "unchanged" {
			changes = specDiff(have.Spec, next.Spec)
			if len(changes) == 0 && action == "replace" {
				changes = []spec.Difference{{Field: secretValue}}
			}
		}
	}
	out := p.say(next.ID, action, "")
	if known {
		out.PresentNodeId = have.Node
	}
	if known && update != nil && have.TakesTurn(next) {
		out.AtATime, out.ExtraMembers = int32(rollout.PolicyOf(update).MaxParallel), int32(fsm.SurgeCount(update, members))
	}
	out.TakesBack = takesBack(p.view, w)
	for _, c := range changes {
		out.Changes = append(out.Changes, &clusterv1.FieldChange{Field: c.Field, Before: c.Before, After: c.After})
	}
	switch {
	case next.IsSystem():
		p.members(out, next)
	case next.Desired != fsm.DesiredRunning, action == "unchanged":
		out.NodeId = next.Node
	default:
		p.next, p.at = append(p.next, next), append(p.at, len(p.out)-1)
	}
}

// members adds to the plan of a system workload which nodes, and how many, would get a member.
func (p *plan) members(out *clusterv1.PlannedWorkload, next *fsm.Workload) {
	if next.Desired != fsm.DesiredRunning {
		return
	}
	ex := sched.Explain(p.view, next, p.s.cfg.Tuning)
	out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, "")
	out.Members = sched.MembersText(p.view, next, p.s.cfg.Tuning)
}

// shrink adds to the plan the group members that are deleted because the new count is smaller.
func (p *plan) shrink(gone []*fsm.Workload) {
	for _, w := range gone {
		p.leaves(p.say(w.ID, "delete", "the new count is smaller"), w, false)
	}
}

// leaves adds two facts to the plan of a workload that will be deleted: its node, and its data that exists only on
// that node. With keep, the volumes that have a name are kept.
func (p *plan) leaves(out *clusterv1.PlannedWorkload, w *fsm.Workload, keep bool) {
	p.leaving = append(p.leaving, leaving{out, w, keep})
	out.PresentNodeId = w.Node
	if n, ok := p.view.Node(w.Node); ok {
		out.LocalData = w.DataOn(n)
	}
}

// desire adds to the plan a request that changes only the desired state of a workload, such as a stop.
func (p *plan) desire(ctx context.Context, id string, to fsm.Desired) error {
	for _, id := range selected(p.view, id) {
		w, known := p.view.Workload(id)
		if !known {
			p.say(id, "refused", "there is no such workload; `persysctl list` shows all")
			continue
		}
		if err := p.s.within(ctx, w); err != nil {
			return err
		}
		action := map[fsm.Desired]string{fsm.DesiredDeleted: "delete", fsm.DesiredStopped: "stop", fsm.DesiredRunning: "start"}[to]
		if w.Desired == to && !w.Diverged() {
			action = "unchanged"
		}
		out := p.say(id, action, "")
		out.PresentNodeId = w.Node
		if to == fsm.DesiredDeleted && action == "delete" {
			p.leaves(out, w, p.keep)
			if w.IsTemplate() {
				p.childrenLeave(w)
			}
		}
		if to != fsm.DesiredRunning || action == "unchanged" {
			continue
		}
		next := *w
		next.Desired = to
		p.next, p.at = append(p.next, &next), append(p.at, len(p.out)-1)
	}
	return nil
}

// childrenLeave adds to the plan the deletion of the workloads that were made from a template, as far as they are on a
// node.
func (p *plan) childrenLeave(template *fsm.Workload) {
	p.view.Children(template.ID, func(w *fsm.Workload) bool {
		if w.Node != "" && w.Desired != fsm.DesiredDeleted {
			p.leaves(p.say(w.ID, "delete", ""), w, p.keep)
		}
		return true
	})
}

// secretValue is shown in place of a secret whose value differs.
const secretValue = "a secret value"

// specDiff returns the differences between two stored specifications, with secrets redacted.
func specDiff(before, after []byte) []spec.Difference {
	a, b := &controlv1.WorkloadSpec{}, &controlv1.WorkloadSpec{}
	if a.UnmarshalVT(before) != nil || b.UnmarshalVT(after) != nil {
		return nil
	}
	return spec.Diff(spec.Redact(a), spec.Redact(b))
}

// place plans on which node each workload is placed, higher priorities first.
func (p *plan) place() {
	order := make([]int, len(p.next))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(p.next[b].Demand.Priority, p.next[a].Demand.Priority)
	})
	sorted := make([]*fsm.Workload, len(order))
	for i, n := range order {
		sorted[i] = p.next[n]
	}
	for i, move := range sched.PlanPlace(p.view, sorted, p.s.cfg.Tuning) {
		out := p.out[p.at[order[i]]]
		out.NodeId, out.Reason, out.LocalData, out.Preempts = move.To, move.Message, move.Data, move.Preempts
	}
	for i, next := range p.next[:min(len(p.next), maxVerdicts)] {
		ex := sched.Explain(p.view, next, p.s.cfg.Tuning)
		out := p.out[p.at[i]]
		out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, "")
	}
}
