package rpc

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
	"github.com/persys/compute/spec"
)

// ListPolicies implements the call of cluster.v1: it returns the policies, and the namespaces and node labels to which
// they are bound.
func (s *Server) ListPolicies(ctx context.Context, req *clusterv1.ListPoliciesRequest) (*clusterv1.ListPoliciesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	in, out := s.scopeOf(ctx), &clusterv1.ListPoliciesResponse{Index: r.index}
	if name := req.GetName(); name != "" {
		p, err := policyNamed(r, name)
		if err != nil {
			return nil, err
		}
		view, err := policyView(p, in)
		out.Policies = append(out.Policies, view)
		return out, err
	}
	r.Policies(func(p *fsm.Policy) bool {
		var view *clusterv1.Policy
		view, err = policyView(p, in)
		out.Policies = append(out.Policies, view)
		return err == nil
	})
	return out, err
}

func policyNamed(v fsm.View, name string) (*fsm.Policy, error) {
	p, ok := v.Policy(name)
	if !ok {
		return nil, errorf(KindNotFound, "policy %q not found; `persysctl policy list` shows them", clip(name, 128))
	}
	return p, nil
}

func policyView(p *fsm.Policy, in access.Scope) (*clusterv1.Policy, error) {
	text, err := document.Format(&p.Policy)
	out := &clusterv1.Policy{
		Name: p.Name, Description: p.Description, Builtin: p.Builtin(), Document: text, UpdatedBy: p.UpdatedBy, Version: p.ModifyIndex,
		Namespaces: slices.DeleteFunc(slices.Clone(p.Namespaces), func(n string) bool { return !in.Has(n) }),
	}
	for _, l := range p.Nodes {
		out.NodeLabels = append(out.NodeLabels, l.Key+"="+l.Value)
	}
	if p.UpdatedAt > 0 {
		out.UpdatedAt = timestamppb.New(time.Unix(0, p.UpdatedAt))
	}
	return out, err
}

// PutPolicy implements the call of cluster.v1: it creates or replaces a policy. Bindings of an existing policy stay.
func (s *Server) PutPolicy(ctx context.Context, req *clusterv1.PutPolicyRequest) (*clusterv1.PolicyResponse, error) {
	p, err := document.Parse([]byte(req.GetDocument()))
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Err: err}
	}
	p.Name = req.GetName()
	return s.aboutPolicy(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutPolicy{
		PutPolicy: &commandv1.PutPolicy{Policy: fsm.PolicyPB(p), IfVersion: req.IfVersion},
	}})
}

// DeletePolicy implements the call of cluster.v1. The state machine refuses it while the policy is bound.
func (s *Server) DeletePolicy(ctx context.Context, req *clusterv1.DeletePolicyRequest) (*clusterv1.PolicyResponse, error) {
	return s.aboutPolicy(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeletePolicy{
		DeletePolicy: &commandv1.DeletePolicy{Name: req.GetName()},
	}})
}

// BindPolicy implements the call of cluster.v1: it binds a policy to a namespace or to the nodes with a label, in
// place of the policy that is bound there.
func (s *Server) BindPolicy(ctx context.Context, req *clusterv1.BindPolicyRequest) (*clusterv1.PolicyResponse, error) {
	body := &commandv1.BindPolicy{Policy: req.GetPolicy(), Namespace: req.GetNamespace()}
	if l := req.GetNodeLabel(); l != "" {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, errorf(KindInvalid, "node_label: %q must be KEY=VALUE", clip(l, 128))
		}
		body.NodeLabel = &commandv1.Label{Key: key, Value: value}
	}
	return s.aboutPolicy(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_BindPolicy{BindPolicy: body}})
}

func (s *Server) aboutPolicy(ctx context.Context, request string, c *commandv1.Command) (*clusterv1.PolicyResponse, error) {
	r, err := s.mutate(ctx, request, c)
	if err != nil {
		return nil, err
	}
	return &clusterv1.PolicyResponse{Index: r.Index}, nil
}

// policyOf returns the policy that restricts the workloads in a request of the caller; nil if none applies.
func (s *Server) policyOf(ctx context.Context, req *controlv1.ApplyWorkloadRequest) *policy.Policy {
	v, id := s.store.View(), spec.FirstID(strings.TrimSpace(req.GetWorkloadId()), req.GetSpec())
	in := fsm.NamespaceOf(v, &commandv1.WorkloadPut{Id: id, Namespace: strings.TrimSpace(req.GetSpec().GetNamespace())})
	by, _ := fsm.PolicyFor(v, in, s.unprivileged(ctx))
	return by
}

// unprivileged reports whether the policy baseline applies to the caller in namespaces without a bound policy: the
// caller may not bind policies, or may make this call only in certain namespaces. An admin could bind any policy, so
// baseline would protect nothing from an admin.
func (s *Server) unprivileged(ctx context.Context) bool {
	return !s.scopeOf(ctx).Everywhere() || !s.scopeOfCaller(callOf(ctx).caller, access.Policies).Everywhere()
}

// violations returns how one workload of a plan violates a policy: the policy that the caller of the plan names or, if
// the caller names none, the policy that would apply to an apply of the workload.
func (p *plan) violations(ctx context.Context, w *commandv1.WorkloadPut) []policy.Violation {
	if p.by == nil {
		return fsm.Violations(p.view, w, p.s.unprivileged(ctx))
	}
	return policy.Judge(p.by, fsm.Intended(w).Demand.Judged())
}
