package rpc

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// permissionsOf returns the permissions of a role, and the role's version, which is 0 for a built-in role. known is
// false if there is no such role.
func permissionsOf(v fsm.View, role string) (set access.Set, version uint64, known bool) {
	if set, ok := access.Builtin(role); ok {
		return set, 0, true
	}
	r, ok := v.Role(role)
	if !ok {
		return 0, 0, false
	}
	return access.SetOf(r.Permissions), r.ModifyIndex, true
}

// bound returns the roles that are bound to a subject.
func bound(v fsm.View, kind, name string) (grants []access.Grant) {
	v.BindingsOf(kind, name, func(b *fsm.Binding) bool {
		if set, _, ok := permissionsOf(v, b.Role); ok {
			grants = append(grants, access.Grant{Role: b.Role, Permissions: set, In: scopeOfBinding(b.Everywhere, b.Namespaces)})
		}
		return true
	})
	return grants
}

func scopeOfBinding(everywhere bool, namespaces []string) access.Scope {
	if everywhere {
		return access.Everywhere()
	}
	return access.Only(namespaces)
}

// mayGrant returns an error if the caller would give others permissions that the caller lacks, or, in a call through a
// gateway, permissions that calls through gateways cannot grant.
func (s *Server) mayGrant(ctx context.Context, what string, given ...access.Grant) error {
	c := callOf(ctx).caller
	if c.id.IsAnonymous() {
		return nil
	}
	own, person := s.grantsOf(c)
	if !person {
		return errorf(KindPermission, "%s %q acts for nobody and may not grant rights", c.id.Role, c.id.ID)
	}
	for i := range own {
		own[i].In = own[i].In.Narrow(c.narrow)
	}
	for _, g := range given {
		if lacks := access.Lacking(own, g); lacks != 0 {
			return errorf(KindPermission, "%s may not %s: it gives %s in %s, which the caller does not have there; `persysctl auth whoami` shows your permissions", c.person(), what, lacks, g.In)
		}
		if never := g.Permissions.And(access.NeverThroughGateways()); never != 0 && c.id.Role == pki.RoleGateway {
			return errorf(KindPermission, "%s may not %s: it gives %s, which nobody can grant through a gateway; call a scheduler directly (persysctl --server HOST:8085)", c.person(), what, never)
		}
	}
	return nil
}

// ListRoles implements cluster.v1.
func (s *Server) ListRoles(ctx context.Context, req *clusterv1.ListRolesRequest) (*clusterv1.ListRolesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.ListRolesResponse{Index: r.index}
	add := func(v *clusterv1.Role) {
		if req.GetName() == "" || req.GetName() == v.GetName() {
			out.Roles = append(out.Roles, v)
		}
	}
	for _, name := range access.Builtins() {
		set, _ := access.Builtin(name)
		add(&clusterv1.Role{Name: name, Builtin: true, Permissions: set.Names()})
	}
	r.Roles(func(v *fsm.Role) bool {
		add(&clusterv1.Role{
			Name: v.Name, Description: v.Description, Permissions: v.Permissions, UpdatedAt: timestamppb.New(time.Unix(0, v.UpdatedAt)),
			UpdatedBy: v.UpdatedBy, Version: v.ModifyIndex,
		})
		return true
	})
	if len(out.GetRoles()) == 0 {
		return nil, errorf(KindNotFound, "role %q not found; `persysctl role list` shows them", clip(req.GetName(), 128))
	}
	return out, nil
}

// PutRole implements cluster.v1.
func (s *Server) PutRole(ctx context.Context, req *clusterv1.PutRoleRequest) (*clusterv1.RoleResponse, error) {
	for _, p := range req.GetPermissions() {
		if _, err := access.Parse(p); err != nil {
			return nil, &Error{Kind: KindInvalid, Err: err}
		}
	}
	err := s.mayGrant(ctx, "put role "+clip(req.GetName(), 128), access.Grant{Permissions: access.SetOf(req.GetPermissions()), In: access.Everywhere()})
	if err != nil {
		return nil, err
	}
	return s.aboutRole(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutRole{PutRole: &commandv1.PutRole{
		Name: req.GetName(), Description: req.GetDescription(), Permissions: req.GetPermissions(), IfVersion: req.IfVersion,
	}}})
}

// DeleteRole implements cluster.v1.
func (s *Server) DeleteRole(ctx context.Context, req *clusterv1.DeleteRoleRequest) (*clusterv1.RoleResponse, error) {
	return s.aboutRole(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteRole{DeleteRole: &commandv1.DeleteRole{Name: req.GetName()}}})
}

// ListBindings implements cluster.v1.
func (s *Server) ListBindings(ctx context.Context, req *clusterv1.ListBindingsRequest) (*clusterv1.ListBindingsResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.ListBindingsResponse{Index: r.index}
	r.Bindings(func(b *fsm.Binding) bool {
		if req.GetRole() == "" || req.GetRole() == b.Role {
			out.Bindings = append(out.Bindings, &clusterv1.Binding{
				Role: b.Role, Kind: b.Kind, Name: b.Name, Everywhere: b.Everywhere, Namespaces: b.Namespaces, At: timestamppb.New(time.Unix(0, b.At)), By: b.By,
			})
		}
		return true
	})
	slices.SortStableFunc(out.Bindings, func(a, b *clusterv1.Binding) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetRole(), b.GetRole()))
	})
	return out, nil
}

// BindRole implements cluster.v1.
func (s *Server) BindRole(ctx context.Context, req *clusterv1.BindRoleRequest) (*clusterv1.RoleResponse, error) {
	b := &commandv1.BindRole{
		Role: req.GetRole(), Kind: req.GetKind(), Name: req.GetName(), Everywhere: req.GetEverywhere(), Namespaces: req.GetNamespaces(), Remove: req.GetRemove(),
	}
	if err := s.grantable(ctx, b); err != nil {
		return nil, err
	}
	return s.aboutRole(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: b}})
}

// grantable refuses a binding that gives permissions that the caller lacks. It writes the version of the role
// that it has checked into the command, so that the state machine refuses the binding if the role has changed
// meanwhile.
func (s *Server) grantable(ctx context.Context, b *commandv1.BindRole) error {
	if b.GetRemove() {
		return nil
	}
	set, version, known := permissionsOf(s.store.View(), b.GetRole())
	if !known {
		return nil // an unknown role: leave the refusal to the state machine
	}
	b.RoleVersion = version
	what := "bind role " + clip(b.GetRole(), 128) + " to " + clip(b.GetKind(), 16) + " " + clip(b.GetName(), 128)
	return s.mayGrant(ctx, what, access.Grant{Role: b.GetRole(), Permissions: set, In: scopeOfBinding(b.GetEverywhere(), b.GetNamespaces())})
}

func (s *Server) aboutRole(ctx context.Context, request string, c *commandv1.Command) (*clusterv1.RoleResponse, error) {
	r, err := s.commit(ctx, request, c)
	if err != nil {
		return nil, err
	}
	return &clusterv1.RoleResponse{Index: r.Index}, nil
}

// mayInvite refuses a join token that gives its holder permissions that the caller lacks. A token for a scheduler or
// a gateway needs all permissions, because a scheduler has the cluster key and a gateway acts for every user. A token
// for an agent needs the permission fence, because an agent sees the workloads and secrets of its node.
func (s *Server) mayInvite(ctx context.Context, req *clusterv1.CreateTokenRequest) error {
	what := "create a token for " + clip(req.GetRole(), 16) + " " + clip(req.GetName(), 128)
	all, _ := access.Builtin(access.Admin)
	switch pki.Role(req.GetRole()) {
	case pki.RoleAgent:
		return s.mayGrant(ctx, what, access.Grant{Permissions: access.SetOf([]string{access.Fence.String()}), In: access.Everywhere()})
	case pki.RoleUser:
		return s.mayGrant(ctx, what, s.userGrants(s.store.View(), req.GetAccess(), req.GetName())...)
	}
	return s.mayGrant(ctx, what, access.Grant{Permissions: all, In: access.Everywhere()})
}

// mayReplaceCA refuses a caller who does not have all permissions, because the holder of an authority's key
// can issue certificates for every identity.
func (s *Server) mayReplaceCA(ctx context.Context) error {
	all, _ := access.Builtin(access.Admin)
	return s.mayGrant(ctx, "change the authorities", access.Grant{Permissions: all, In: access.Everywhere()})
}

// mayChangeUsers refuses a change of the users of a namespace to callers without the permission trust, and to callers
// who lack rights that a user gains by the change. For a caller without the permission trust, it writes the version of
// the namespace that it has checked into the command, so that the state machine refuses the new list of users if the
// users have changed meanwhile.
func (s *Server) mayChangeUsers(ctx context.Context, put *commandv1.PutNamespace) error {
	v := s.store.View()
	var have []string
	var version uint64
	if n, ok := v.Namespace(put.GetName()); ok {
		have, version = n.Users, n.ModifyIndex
	}
	want := slices.Compact(slices.Sorted(slices.Values(put.GetUsers())))
	c := callOf(ctx).caller
	switch _, person := s.grantsOf(c); {
	case !person:
		return nil
	case s.scopeOfCaller(c, access.Trust).Everywhere():
		return s.mayFree(ctx, v, put, have, want)
	case !slices.Equal(have, want):
		return errorf(KindPermission, "%s may not change the users of namespace %q (now %s): this needs the permission %s; `persysctl auth whoami` shows yours",
			c.person(), clip(put.GetName(), 128), cmp.Or(strings.Join(have, ", "), "none"), access.Trust)
	}
	if put.IfVersion == nil || put.GetIfVersion() > version {
		put.IfVersion = &version
	}
	return nil
}

// mayFree refuses a change of the users of a namespace by which a user would gain rights that the caller lacks. A user
// in put.Release is released from the namespace, and gets the rights of the user's access level in all namespaces. A
// user who is added, and had rights only in other namespaces before, gets these rights in this namespace too. mayFree
// checks the rights of every user in put.Release, even if view v does not list the user in the namespace, because v
// may be older than the state that the put changes.
func (s *Server) mayFree(ctx context.Context, v fsm.View, put *commandv1.PutNamespace, have, want []string) error {
	judge := func(what, user string, in access.Scope) error {
		level := s.accessOf(pki.Identity{Role: pki.RoleUser, ID: user})
		if level == access.Admin { // skip admins: namespaces never confine them
			return nil
		}
		permissions, _ := access.Builtin(level)
		return s.mayGrant(ctx, what, access.Grant{Role: level, Permissions: permissions, In: in})
	}
	for _, u := range put.GetRelease() {
		if err := judge("release user "+clip(u, 128), u, access.Everywhere()); err != nil {
			return err
		}
	}
	for _, u := range want {
		if slices.Contains(have, u) || len(v.NamespacesOf(u)) == 0 {
			continue
		}
		if err := judge("add user "+clip(u, 128)+" to namespace "+clip(put.GetName(), 128), u, access.Only([]string{put.GetName()})); err != nil {
			return err
		}
	}
	return nil
}
