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
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Bounds of one plan.
const (
	maxPlan     = 256
	maxVerdicts = 16 // number of workloads for which the verdict of every node is shown
)

// requested returns the workloads of a call: the listed ones, or those of its file.
func requested(listed []*controlv1.ApplyWorkloadRequest, file, name string, most int) ([]*controlv1.ApplyWorkloadRequest, error) {
	if file != "" {
		if len(listed) > 0 {
			return nil, errorf(KindInvalid, "file: only one of file and workloads can be given")
		}
		var err error
		if listed, err = spec.Parse("", []byte(file), spec.Options{Name: name}); err != nil {
			return nil, &Error{Kind: KindInvalid, Err: err}
		}
	}
	if n := len(listed); n == 0 || n > most {
		return nil, errorf(KindInvalid, "workloads has %d entries, must have 1 to %d", n, most)
	}
	return listed, nil
}

// PlanWorkloads implements cluster.v1 on a state of the read level that the caller asks for.
func (s *Server) PlanWorkloads(ctx context.Context, req *clusterv1.PlanWorkloadsRequest) (*clusterv1.PlanWorkloadsResponse, error) {
	reqs, err := requested(req.GetWorkloads(), req.GetFile(), req.GetName(), maxPlan)
	if err != nil {
		return nil, err
	}
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	p := plan{s: s, view: r.View}
	for _, one := range reqs {
		if err := p.add(ctx, one); err != nil {
			return nil, err
		}
	}
	p.place()
	return &clusterv1.PlanWorkloadsResponse{Workloads: p.out, Index: r.index, Frozen: s.frozen()}, nil
}

// plan collects what an apply would do.
type plan struct {
	s    *Server
	view fsm.View
	out  []*clusterv1.PlannedWorkload
	next []*fsm.Workload // workloads to place
	at   []int           // for each of next, its index in out
}

func (p *plan) say(id, action, reason string) *clusterv1.PlannedWorkload {
	w := &clusterv1.PlannedWorkload{WorkloadId: id, Action: action, Reason: reason}
	p.out = append(p.out, w)
	return w
}

// add plans one request. An error concerns the whole call; a refusal of the request is part of the
// plan.
func (p *plan) add(ctx context.Context, req *controlv1.ApplyWorkloadRequest) error {
	id := req.GetWorkloadId()
	prepared, err := p.s.prepare(ctx, req)
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
		put := body.PutWorkloads
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
			p.put(w, put.GetUpdate())
		}
		p.shrink(gone)
	case *commandv1.Command_DeleteWorkload:
		return p.desire(ctx, prepared.IDs[0], fsm.DesiredDeleted)
	case *commandv1.Command_SetDesired:
		return p.desire(ctx, prepared.IDs[0], fsm.Desired(body.SetDesired.GetDesired()))
	}
	return nil
}

// present returns the existing records that puts would change.
func (p *plan) present(puts []*commandv1.WorkloadPut) (out []*fsm.Workload) {
	for _, w := range puts {
		if have, ok := p.view.Workload(w.GetId()); ok {
			out = append(out, have)
		}
	}
	return out
}

// misplaced returns why an apply would be refused because of its namespace or of the cluster's
// version, "" if it would not. Each request of a plan is judged as if it were the only one.
func (p *plan) misplaced(ctx context.Context, put *commandv1.PutWorkloads, gone []*fsm.Workload) string {
	in := p.s.scopeOf(ctx)
	for _, w := range put.GetWorkloads() {
		if name := fsm.NamespaceOf(p.view, w); !in.has(name) {
			return "it would be in namespace " + name + ", and you act only in " + in.String()
		}
	}
	if err := fsm.Fits(p.view, put, gone); err != nil {
		return err.Error()
	}
	return ""
}

// put plans one workload. With an update policy it is a member of a group that is updated member by
// member.
func (p *plan) put(w *commandv1.WorkloadPut, update *commandv1.UpdatePolicy) {
	next := fsm.Intended(w)
	have, known := p.view.Workload(next.ID)
	action, changes := "create", []spec.Difference(nil)
	if known && have.Desired != fsm.DesiredDeleted {
		next.Node = have.Node
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
		out.AtATime = int32(rollout.PolicyOf(update).MaxParallel)
	}
	for _, c := range changes {
		out.Changes = append(out.Changes, &clusterv1.FieldChange{Field: c.Field, Before: c.Before, After: c.After})
	}
	switch {
	case next.Desired != fsm.DesiredRunning, action == "unchanged":
		out.NodeId = next.Node
	default:
		p.next, p.at = append(p.next, next), append(p.at, len(p.out)-1)
	}
}

// shrink plans the deletion of the members that a smaller count leaves out.
func (p *plan) shrink(gone []*fsm.Workload) {
	for _, w := range gone {
		p.say(w.ID, "delete", "the new count is smaller").PresentNodeId = w.Node
	}
}

// desire plans a change of the desired state only.
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
		if to != fsm.DesiredRunning || action == "unchanged" {
			continue
		}
		next := *w
		next.Desired = to
		p.next, p.at = append(p.next, &next), append(p.at, len(p.out)-1)
	}
	return nil
}

// secretValue stands for a difference in a secret, which is not shown.
const secretValue = "a secret value"

// specDiff compares two stored specifications with their secrets redacted.
func specDiff(before, after []byte) []spec.Difference {
	a, b := &controlv1.WorkloadSpec{}, &controlv1.WorkloadSpec{}
	if a.UnmarshalVT(before) != nil || b.UnmarshalVT(after) != nil {
		return nil
	}
	return spec.Diff(spec.Redact(a), spec.Redact(b))
}

// place plans the node of each workload, higher priority first.
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
		out.NodeId = move.To
		if move.To == "" {
			out.Reason = move.Message
		}
	}
	for i, next := range p.next[:min(len(p.next), maxVerdicts)] {
		ex := sched.Explain(p.view, next, p.s.cfg.Tuning)
		out := p.out[p.at[i]]
		out.Counts, out.Nodes = countsOf(&ex), verdictsOf(&ex, "")
	}
}
