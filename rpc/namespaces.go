package rpc

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/quota"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// maxNarrow is the most namespaces that a call may limit itself to.
const maxNarrow = 64

// onBehalf reads the user for whom a gateway calls, and the namespaces to which the caller limits
// the call. Namespaces are accepted from every caller, because they only remove rights. The user
// appears in the history, so it is accepted from gateways only.
func onBehalf(ctx context.Context, c *caller) error {
	if v := told(ctx, dial.KeyNamespaces); v != "" {
		c.narrow = strings.Split(v, ",")
		if len(c.narrow) > maxNarrow {
			return errorf(KindInvalid, "%s: %d namespaces, at most %d", dial.KeyNamespaces, len(c.narrow), maxNarrow)
		}
	}
	v, user := told(ctx, dial.KeyOnBehalf), told(ctx, dial.KeyUser)
	if v == "" && user == "" {
		return nil
	}
	if c.id.Role != pki.RoleGateway {
		return errorf(KindPermission, "%s %q may not act for others: only gateways may send %s and %s", c.id.Role, c.id.ID, dial.KeyOnBehalf, dial.KeyUser)
	}
	if from := told(ctx, dial.KeyFrom); from != "" && !c.relayed {
		c.from = clipFrom(from)
	}
	if v == "" {
		if !isTokenUser(user) {
			return errorf(KindInvalid, "%s %q must be oidc:, the issuer's URL, # and the subject, %d bytes at most", dial.KeyUser, clip(user, 128), maxTokenUser)
		}
		c.user = user
		return nil
	}
	id, err := pki.ParseIdentity(v)
	if err != nil || id.Role != pki.RoleUser || id.IsAnonymous() {
		return errorf(KindInvalid, "%s %q must be the identity of a user", dial.KeyOnBehalf, clip(v, 128))
	}
	c.behalf = id
	if v := told(ctx, dial.KeyIssued); v != "" {
		at, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return errorf(KindInvalid, "%s %q must be Unix nanoseconds", dial.KeyIssued, clip(v, 128))
		}
		c.issued = time.Unix(0, at)
	}
	return nil
}

const maxTokenUser = 512

// isTokenUser reports whether v is a valid value of KeyUser. No identity has this form.
func isTokenUser(v string) bool {
	rest, ok := strings.CutPrefix(v, "oidc:")
	_, subject, named := strings.Cut(rest, "#")
	return ok && named && subject != "" && len(v) <= maxTokenUser && !strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' })
}

// standing refuses the user of a gateway if the user's identity is revoked or belongs to another
// cluster. The gateway may not know of the revocation. A gateway that serves several clusters
// trusts the CAs of all of them, so it may present a user of another cluster.
func (s *Server) standing(c caller) error {
	if c.behalf.IsZero() {
		return nil
	}
	if err := s.ours(c.behalf); err != nil {
		return err
	}
	if err := s.cfg.TLS.CheckRevoked(c.behalf, c.issued); err != nil {
		return errorf(KindUnauthenticated, "through %s %q: %w", c.id.Role, c.id.ID, err)
	}
	return nil
}

// scopeOfCaller returns the namespaces in which a caller may act now. Admins may act in all.
func (s *Server) scopeOfCaller(c caller) namespaceScope {
	id := c.id
	if !c.behalf.IsZero() {
		id = c.behalf
	}
	var out namespaceScope
	if id.Role == pki.RoleUser && s.rolesOf(id)&admins == 0 {
		out = scopeOfNames(s.store.View().NamespacesOf(id.ID))
	}
	return out.narrow(c.narrow)
}

// scopeOf returns the namespaces in which the caller of a call may act now.
func (s *Server) scopeOf(ctx context.Context) namespaceScope {
	return s.scopeOfCaller(callOf(ctx).caller)
}

// checkNamespaces applies the namespace rule of a method to a caller who is confined to namespaces.
func (s *Server) checkNamespaces(c caller, m method) error {
	in := s.scopeOfCaller(c)
	switch {
	case in.everywhere() || m.namespaces == general:
		return nil
	case in.nowhere():
		return errorf(KindPermission, "%s %q may act in none of the namespaces that the call is limited to: %s", c.id.Role, c.id.ID, strings.Join(c.narrow, ", "))
	case m.namespaces != namespaced:
		return errorf(KindPermission, "%s %q acts only in %s and may not %s, which concerns the whole cluster", c.id.Role, c.id.ID, in, m.op)
	}
	return nil
}

// visible returns a workload if the caller may see it.
func (s *Server) visible(ctx context.Context, v fsm.View, id string) (*fsm.Workload, error) {
	w, ok := v.Workload(id)
	if !ok {
		return nil, errorf(KindNotFound, "workload %q not found; `persysctl list` shows all", id)
	}
	return w, s.within(ctx, w)
}

// within refuses a workload in a namespace that is outside of the caller's scope.
func (s *Server) within(ctx context.Context, w *fsm.Workload) error {
	if in := s.scopeOf(ctx); !in.has(w.In()) {
		c := callOf(ctx)
		return errorf(KindPermission, "workload %q is in namespace %q, and %s %q acts only in %s", w.ID, w.In(), c.id.Role, c.id.ID, in)
	}
	return nil
}

// nowhere stands for an empty scope in the head of a command. It is not a valid namespace name.
const nowhere = "-"

// ListNamespaces implements cluster.v1.
func (s *Server) ListNamespaces(ctx context.Context, req *clusterv1.ListNamespacesRequest) (*clusterv1.ListNamespacesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	in := s.scopeOf(ctx)
	out := &clusterv1.ListNamespacesResponse{Index: r.index}
	if name := req.GetName(); name != "" {
		if !in.has(name) {
			return nil, errorf(KindPermission, "%s acts only in %s, not in namespace %q", callOf(ctx).who(), in, clip(name, 128))
		}
		n, ok := r.Namespace(name)
		if !ok {
			return nil, errorf(KindNotFound, "namespace %q not found; `persysctl namespace list` shows them", clip(name, 128))
		}
		out.Namespaces = []*clusterv1.Namespace{namespaceView(r, n)}
		return out, nil
	}
	r.Namespaces(func(n *fsm.Namespace) bool {
		if in.has(n.Name) {
			out.Namespaces = append(out.Namespaces, namespaceView(r, n))
		}
		return true
	})
	return out, nil
}

func namespaceView(v fsm.View, n *fsm.Namespace) *clusterv1.Namespace {
	used := v.UseOf(n.Name).Amounts
	out := &clusterv1.Namespace{
		Name: n.Name, Description: n.Description, Quota: amountsView(n.Quota), Used: amountsView(used), OverQuota: used.Over(n.Quota),
		Users: n.Users, UpdatedBy: n.UpdatedBy, Version: n.ModifyIndex,
	}
	if n.CreatedAt > 0 {
		out.CreatedAt, out.UpdatedAt = timestamppb.New(time.Unix(0, n.CreatedAt)), timestamppb.New(time.Unix(0, n.UpdatedAt))
	}
	return out
}

func amountsView(a quota.Amounts) *clusterv1.NamespaceAmounts {
	return &clusterv1.NamespaceAmounts{CpuMillicores: a.CPU, MemoryMib: a.Memory, DiskGb: a.Disk, Workloads: a.Workloads}
}

// PutNamespace implements cluster.v1.
func (s *Server) PutNamespace(ctx context.Context, req *clusterv1.PutNamespaceRequest) (*clusterv1.NamespaceResponse, error) {
	q := req.GetQuota()
	r, err := s.aboutNamespace(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{
		Name: req.GetName(), Description: req.GetDescription(), Users: req.GetUsers(), Release: req.GetRelease(), IfVersion: req.IfVersion,
		Quota: &commandv1.Quota{CpuMillicores: q.GetCpuMillicores(), MemoryMib: q.GetMemoryMib(), DiskGb: q.GetDiskGb(), Workloads: q.GetWorkloads()},
	}}})
	if err != nil {
		return nil, err
	}
	view, err := s.store.At(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.NamespaceResponse{Index: r.Index}
	if n, ok := view.Namespace(req.GetName()); ok {
		out.Namespace = namespaceView(view, n)
	}
	return out, nil
}

// DeleteNamespace implements cluster.v1.
func (s *Server) DeleteNamespace(ctx context.Context, req *clusterv1.DeleteNamespaceRequest) (*clusterv1.DeleteNamespaceResponse, error) {
	r, err := s.aboutNamespace(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteNamespace{
		DeleteNamespace: &commandv1.DeleteNamespace{Name: req.GetName()},
	}})
	if err != nil {
		return nil, err
	}
	return &clusterv1.DeleteNamespaceResponse{Index: r.Index}, nil
}

func (s *Server) aboutNamespace(ctx context.Context, request string, c *commandv1.Command) (fsm.Result, error) {
	return s.mutate(ctx, request, c)
}
