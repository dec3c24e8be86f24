package rpc

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/quota"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// maxNarrow is the maximum number of namespaces to which a caller can limit a call.
const maxNarrow = 64

// onBehalf reads from the metadata the user on whose behalf a gateway calls, and the namespaces to which the
// caller limits the call. The namespaces are accepted from every caller, because they can only take rights
// away. The history shows the user, so the name of a user is accepted only from gateways.
func (s *Server) onBehalf(ctx context.Context, c *caller) error {
	if v := told(ctx, dial.KeyNamespaces); v != "" {
		c.narrow = strings.Split(v, ",")
		if len(c.narrow) > maxNarrow {
			return errorf(KindInvalid, "%s: %d namespaces, at most %d", dial.KeyNamespaces, len(c.narrow), maxNarrow)
		}
	}
	v, user, token := told(ctx, dial.KeyOnBehalf), told(ctx, dial.KeyUser), told(ctx, dial.KeyConsole)
	a, isAccount, err := accountOf(ctx)
	switch {
	case err != nil:
		return err
	case token != "" && (isAccount || v+user != ""):
		return errorf(KindInvalid, "%s excludes %s, %s, %s and %s", dial.KeyConsole, dial.KeyAccount, dial.KeyAccountToken, dial.KeyOnBehalf, dial.KeyUser)
	case token != "":
		if err = s.throughConsole(ctx, c, token); err == nil {
			c.fromGateway(ctx)
		}
		return err
	case isAccount && v+user != "":
		return errorf(KindInvalid, "the call names an account and a user: %s and %s exclude %s and %s", dial.KeyAccount, dial.KeyAccountToken, dial.KeyOnBehalf, dial.KeyUser)
	case isAccount:
		if err = s.actsAs(c, a); err == nil {
			c.fromGateway(ctx)
		}
		return err
	case v+user == "":
		return nil
	}
	if c.id.Role != pki.RoleGateway {
		return errorf(KindPermission, "%s %q may not call on behalf of others: only gateways may send %s and %s", c.id.Role, c.id.ID, dial.KeyOnBehalf, dial.KeyUser)
	}
	c.fromGateway(ctx)
	if v == "" {
		if !isTokenUser(user) {
			return errorf(KindInvalid, "%s %q must be oidc:, the issuer's URL, # and the subject, %d bytes at most", dial.KeyUser, clip(user, 128), maxTokenUser)
		}
		c.user, c.access = user, told(ctx, dial.KeyAccess)
		if c.groups, err = dial.DecodeGroups(told(ctx, dial.KeyGroups)); err != nil {
			return errorf(KindInvalid, "%s: %w", dial.KeyGroups, err)
		}
		if _, ok := access.Builtin(c.access); !ok && c.access != "" && c.access != fsm.AccessNone {
			return errorf(KindInvalid, "%s %q must be %s or %s", dial.KeyAccess, clip(c.access, 128), strings.Join(access.Builtins(), ", "), fsm.AccessNone)
		}
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

// fromGateway sets the address of the caller to the address that the gateway sends.
func (c *caller) fromGateway(ctx context.Context) {
	if from := told(ctx, dial.KeyFrom); from != "" && !c.relayed {
		c.from = clipFrom(from)
	}
}

const maxTokenUser = 512

// isTokenUser reports whether v is a valid value of KeyUser: "oidc:", an issuer and a subject. No identity of a
// certificate has this form.
func isTokenUser(v string) bool {
	rest, ok := strings.CutPrefix(v, "oidc:")
	_, subject, named := strings.Cut(rest, "#")
	return ok && named && subject != "" && len(v) <= maxTokenUser && !strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' })
}

// standing returns an error if a gateway calls for a user who is revoked or belongs to another cluster. The gateway
// may not have learned of the revocation yet. A gateway that serves several clusters trusts the CAs of all of them, so
// it may send a user of another cluster.
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

// scopeOfCaller returns the namespaces in which a caller has a permission. A machine that calls for itself
// has it in all namespaces.
func (s *Server) scopeOfCaller(c caller, p access.Permission) access.Scope {
	out := access.Everywhere()
	if grants, person := s.grantsOf(c); person {
		out = access.Where(grants, p)
	}
	return out.Narrow(c.narrow)
}

// scopeOf returns the namespaces in which the caller has the permission that the call needs.
func (s *Server) scopeOf(ctx context.Context) access.Scope {
	c := callOf(ctx)
	return s.scopeOfCaller(c.caller, c.permission)
}

// checkNamespaces applies the namespace rule of a method to a caller. in are the namespaces in which the
// caller has the permission.
func checkNamespaces(c caller, m method, in access.Scope) error {
	switch {
	case in.Everywhere() || m.namespaces == general:
		return nil
	case in.Nowhere():
		return errorf(KindPermission, "%s has rights in none of the namespaces to which the call is limited: %s", c.person(), strings.Join(c.narrow, ", "))
	case m.namespaces != namespaced:
		return errorf(KindPermission, "%s has rights only in %s and may not %s, which concerns the whole cluster", c.person(), in, m.op)
	}
	return nil
}

// mayEnter returns an error if the caller does not have the permission of the call in a namespace.
func (s *Server) mayEnter(ctx context.Context, namespace string) error {
	if in := s.scopeOf(ctx); !in.Has(namespace) {
		return errorf(KindPermission, "%s has rights only in %s, not in namespace %q", callOf(ctx).who(), in, clip(namespace, 128))
	}
	return nil
}

// visible returns the workload with this id if the caller may see it, and otherwise an error.
func (s *Server) visible(ctx context.Context, v fsm.View, id string) (*fsm.Workload, error) {
	w, ok := v.Workload(id)
	if !ok {
		return nil, errorf(KindNotFound, "workload %q not found; `persysctl list` shows all", id)
	}
	return w, s.within(ctx, w)
}

// within returns an error if a workload is in a namespace in which the caller has no rights.
func (s *Server) within(ctx context.Context, w *fsm.Workload) error {
	if in := s.scopeOf(ctx); !in.Has(w.In()) {
		c := callOf(ctx)
		return errorf(KindPermission, "workload %q is in namespace %q, and %s %q has rights only in %s", w.ID, w.In(), c.id.Role, c.id.ID, in)
	}
	return nil
}

// nowhere is put into the head of a command, where it stands for the list of namespaces: the caller has rights in no
// namespace. It is not a valid name of a namespace.
const nowhere = "-"

// ListNamespaces implements the call of cluster.v1. It returns the namespaces in which the caller has rights, with
// their quotas and what is used of them.
func (s *Server) ListNamespaces(ctx context.Context, req *clusterv1.ListNamespacesRequest) (*clusterv1.ListNamespacesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	in := s.scopeOf(ctx)
	out := &clusterv1.ListNamespacesResponse{Index: r.index}
	if name := req.GetName(); name != "" {
		if err := s.mayEnter(ctx, name); err != nil {
			return nil, err
		}
		n, ok := r.Namespace(name)
		if !ok {
			return nil, errorf(KindNotFound, "namespace %q not found; `persysctl namespace list` shows them", clip(name, 128))
		}
		out.Namespaces = []*clusterv1.Namespace{namespaceView(r, n)}
		return out, nil
	}
	r.Namespaces(func(n *fsm.Namespace) bool {
		if in.Has(n.Name) {
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
		Users: n.Users, UpdatedBy: n.UpdatedBy, Version: n.ModifyIndex, MaxPriority: n.MaxPriority, AllowScaling: n.AllowScaling,
	}
	if len(n.NodeLabels) > 0 {
		out.NodeLabels = map[string]string{}
		for _, l := range n.NodeLabels {
			out.NodeLabels[l.Key] = l.Value
		}
		v.Nodes("", func(node *fsm.Node) bool {
			if _, misses := node.MissesLabel(n.NodeLabels); !misses {
				out.MatchingNodes++
			}
			return true
		})
	}
	if n.CreatedAt > 0 {
		out.CreatedAt, out.UpdatedAt = timestamppb.New(time.Unix(0, n.CreatedAt)), timestamppb.New(time.Unix(0, n.UpdatedAt))
	}
	return out
}

func amountsView(a quota.Amounts) *clusterv1.NamespaceAmounts {
	return &clusterv1.NamespaceAmounts{CpuMillicores: a.CPU, MemoryMib: a.Memory, DiskGb: a.Disk, Workloads: a.Workloads, Devices: a.Devices, Volumes: a.Volumes, VolumeGb: a.VolumeGB}
}

// PutNamespace implements the call of cluster.v1: it creates a namespace, or replaces its settings.
func (s *Server) PutNamespace(ctx context.Context, req *clusterv1.PutNamespaceRequest) (*clusterv1.NamespaceResponse, error) {
	q := req.GetQuota()
	put := &commandv1.PutNamespace{
		Name: req.GetName(), Description: req.GetDescription(), Users: req.GetUsers(), Release: req.GetRelease(), IfVersion: req.IfVersion,
		MaxPriority: req.GetMaxPriority(), AllowScaling: req.GetAllowScaling(),
		Quota: &commandv1.Quota{CpuMillicores: q.GetCpuMillicores(), MemoryMib: q.GetMemoryMib(), DiskGb: q.GetDiskGb(), Workloads: q.GetWorkloads(), Devices: q.GetDevices(), Volumes: q.GetVolumes(), VolumeGb: q.GetVolumeGb()},
	}
	for _, k := range slices.Sorted(maps.Keys(req.GetNodeLabels())) {
		put.NodeLabels = append(put.NodeLabels, &commandv1.Label{Key: k, Value: req.GetNodeLabels()[k]})
	}
	if err := s.mayChangeUsers(ctx, put); err != nil {
		return nil, err
	}
	r, err := s.aboutNamespace(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: put}})
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

// DeleteNamespace implements the call of cluster.v1: it deletes a namespace.
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
