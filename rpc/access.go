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
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// grantsOf returns the roles of the person on whose behalf a call is made. person is false for a machine that
// calls for itself, and for a gateway that does not send the role of its user.
func (s *Server) grantsOf(c caller) (grants []access.Grant, person bool) {
	v := s.store.View()
	switch {
	case c.account.name != "":
		return bound(v, fsm.SubjectAccount, c.account.name), true
	case !c.behalf.IsZero():
		return s.grants(c.behalf), true
	case c.access != "":
		permissions, _ := access.Builtin(c.access)
		grants = append(grants, access.Grant{Role: c.access, Permissions: permissions, In: access.Everywhere()})
		grants = append(grants, bound(v, fsm.SubjectUser, c.user)...)
		for _, g := range c.groups {
			grants = append(grants, bound(v, fsm.SubjectGroup, g)...)
		}
		return grants, true
	case c.id.Role == pki.RoleUser:
		return s.grants(c.id), true
	}
	return nil, false
}

// grants returns the roles of a person, each with the namespaces in which it applies.
func (s *Server) grants(id pki.Identity) []access.Grant {
	v := s.store.View()
	if id.IsAnonymous() {
		return s.userGrants(v, access.Admin, "")
	}
	return s.userGrants(v, s.accessOf(id), id.ID)
}

// userGrants returns the roles of a user: the access level with which the user was admitted, and the roles
// that are bound to the user. An access level other than admin applies only in the namespaces that list the
// user, if any does.
func (s *Server) userGrants(v fsm.View, level, name string) (grants []access.Grant) {
	if permissions, ok := access.Builtin(level); ok {
		in := access.Everywhere()
		if names := v.NamespacesOf(name); level != access.Admin && len(names) > 0 {
			in = access.Only(names)
		}
		grants = append(grants, access.Grant{Role: level, Permissions: permissions, In: in})
	}
	return append(grants, bound(v, fsm.SubjectUser, name)...)
}

// accessOf returns the built-in role of a person: viewer, operator or admin. It is the access level of the join token
// with which the person enrolled. A person with a certificate of another CA has no access level; that person is an
// operator, or an admin if the user id is "admin".
func (s *Server) accessOf(id pki.Identity) string {
	a, ok := s.store.View().Admission(string(id.Role), id.ID)
	switch {
	case ok && !id.Mapped && !id.IsAnonymous() && a.Access != "":
		return a.Access
	case s.cfg.Enrol: // a user who joined with a token of a former version has no access level
		return access.Viewer
	case id.ID == pki.AdminID || id.IsAnonymous():
		return access.Admin
	}
	return access.Operator
}

// callersOf returns the bit of the policy table (methods.go) that stands for machines with this role.
func callersOf(role pki.Role) callers {
	switch role {
	case pki.RoleScheduler:
		return schedulers
	case pki.RoleAgent:
		return agents
	case pki.RoleGateway:
		return gateways
	}
	return nobody
}

// GetAccess implements the call of cluster.v1: it returns the identity and the roles of the caller.
func (s *Server) GetAccess(ctx context.Context, _ *clusterv1.GetAccessRequest) (*clusterv1.GetAccessResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	c := callOf(ctx).caller
	out := &clusterv1.GetAccessResponse{}
	out.Identity, out.Via = c.by()
	grants, _ := s.grantsOf(c)
	for _, g := range grants {
		in := g.In.Narrow(c.narrow)
		if names := g.Permissions.Names(); len(names) > 0 {
			out.Grants = append(out.Grants, &clusterv1.Grant{Role: g.Role, Permissions: names, Everywhere: in.Everywhere(), Namespaces: in.Names()})
		}
	}
	id := c.id
	if !c.behalf.IsZero() {
		id = c.behalf
	}
	if a, ok := r.Admission(string(id.Role), id.ID); ok && !id.Mapped && c.user == "" {
		out.CertificateNotAfter = timestamppb.New(time.Unix(0, a.NotAfter))
	}
	if v, ok := r.Console(c.console.id); ok {
		out.SessionExpiresAt = timestamppb.New(time.Unix(0, v.ExpiresAt))
	}
	return out, nil
}

// CheckAccess implements the call of cluster.v1: it returns whether the caller may make a given API call or has a
// given permission, without making the call.
func (s *Server) CheckAccess(ctx context.Context, req *clusterv1.CheckAccessRequest) (*clusterv1.CheckAccessResponse, error) {
	if _, err := s.read(ctx); err != nil {
		return nil, err
	}
	c := callOf(ctx).caller
	if _, person := s.grantsOf(c); !person {
		return nil, errorf(KindInvalid, "%s %q calls for no user: only people have permissions", c.id.Role, c.id.ID)
	}
	p, full, err := verbOf(req.GetVerb())
	if err != nil {
		return nil, err
	}
	out := &clusterv1.CheckAccessResponse{Permission: p.String()}
	if full != "" {
		if _, err := s.authorize(c, full); err != nil {
			out.Reason = err.Error()
			return out, nil
		}
	}
	in := s.scopeOfCaller(c, p)
	switch namespace := cmp.Or(req.GetNamespace(), fsm.DefaultNamespace); {
	case in.Nowhere():
		out.Reason = "none of your roles has the permission " + p.String()
	case in.Everywhere(), full != "" && methods[full].namespaces == general:
		out.Allowed, out.Reason = true, "you have the permission "+p.String()+" in "+in.String()
	case !inNamespaces(p):
		out.Reason = "you have the permission " + p.String() + " only in " + in.String() + ", and this concerns the whole cluster"
	case namespace != anyNamespace && in.Has(namespace):
		out.Allowed, out.Reason = true, "you have the permission "+p.String()+" in "+in.String()
	default:
		out.Reason = "you have the permission " + p.String() + " only in " + in.String()
	}
	return out, nil
}

// anyNamespace, as the namespace in a CheckAccessRequest, stands for every namespace.
const anyNamespace = "*"

// inNamespaces reports whether a permission can be granted for some namespaces only, or, if false, only for the whole
// cluster.
func inNamespaces(p access.Permission) bool {
	for _, m := range methods {
		if m.permission == p && m.namespaces == namespaced {
			return true
		}
	}
	return false
}

// verbOf interprets the verb of a CheckAccessRequest. A verb is the name of a permission, or the name of a
// call. For a call, it returns the method and the permission that the method needs.
func verbOf(verb string) (p access.Permission, full string, err error) {
	if p, err = access.Parse(verb); err == nil {
		return p, "", nil
	}
	op := strings.ReplaceAll(verb, "-", " ")
	var ops []string
	for name, m := range methods {
		if m.op == op && (full == "" || name < full) { // skip an ambiguous name: several services have a method "health"
			p, full = m.permission, name
		}
		ops = append(ops, m.op)
	}
	if full != "" {
		return p, full, nil
	}
	slices.Sort(ops)
	return access.Never, "", errorf(KindInvalid, "verb %q must be a permission (%s) or a call (%s)", clip(verb, 64), permissionNames(), strings.Join(slices.Compact(ops), ", "))
}

func permissionNames() string {
	var names []string
	for _, p := range access.All() {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}
