package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// A role is a named set of permissions (package access). A binding gives a role to a subject: a
// user, a group of an OIDC issuer, or the account of a program. The state machine knows only the
// names of permissions. From these names, package rpc decides which calls a caller may make, and
// checks that no caller grants permissions that the caller does not have.

// Bounds of roles and bindings.
const (
	MaxRoles             = 100
	MaxBindings          = 5000
	maxBindingNamespaces = 256
	maxSubject           = 512 // maximum length of the name of a subject, in bytes
	maxPermissions       = 64
)

// permissionTrust is the permission to change roles, bindings, identities and join tokens. If the last person
// with this permission lost it, nobody could repair the rights in the cluster.
const permissionTrust = "trust"

// The kinds of subjects that a role can be bound to.
const (
	SubjectUser    = "user"
	SubjectGroup   = "group"
	SubjectAccount = "account"
)

var subjectKinds = [...]string{SubjectUser, SubjectGroup, SubjectAccount}

// Role is a role that is not built in. A record in the state is never modified; a change stores a new record.
type Role struct {
	Name        string
	Description string
	Permissions []string // sorted
	CreatedAt   int64    // Unix nanoseconds, as is UpdatedAt
	UpdatedAt   int64
	UpdatedBy   string
	CreateIndex uint64
	ModifyIndex uint64
}

// Binding gives a role to a subject.
type Binding struct {
	Role, Kind, Name string
	Everywhere       bool
	Namespaces       []string // namespaces in which the role applies, sorted; empty if Everywhere is set
	At               int64    // Unix nanoseconds
	By               string
	Index            uint64
}

// key returns the key of a binding in its table, which sorts by subject. Role names contain no slash, so keys
// are unique.
func (b *Binding) key() string { return b.Kind + "/" + b.Name + "/" + b.Role }

// Role returns the stored role with this name; false for other names and for the built-in roles,
// which have no record.
func (s State) Role(name string) (*Role, bool) { return s.r.roles.Get(name) }

// Roles scans the roles that are not built in, by name.
func (s State) Roles(fn func(*Role) bool) {
	s.r.roles.Scan(func(_ string, r *Role) bool { return fn(r) })
}

// Bindings scans all bindings, by kind, name and role.
func (s State) Bindings(fn func(*Binding) bool) {
	s.r.bindings.Scan(func(_ string, b *Binding) bool { return fn(b) })
}

// BindingsOf calls fn for the bindings of one subject, by role.
func (s State) BindingsOf(kind, name string, fn func(*Binding) bool) {
	prefix := kind + "/" + name + "/"
	s.r.bindings.Ascend(prefix, func(k string, b *Binding) bool {
		// The prefix also matches bindings of other subjects, whose names begin with this subject's
		// name and a slash. Skip those bindings.
		return strings.HasPrefix(k, prefix) && (b.Name != name || fn(b))
	})
}

func builtinRole(name string) bool { return slices.Contains(trustAccess[:], name) }

// fault describes the first invalid field of a role; "" if every field is valid.
func (r *Role) fault() string {
	switch {
	case !bounds.ValidID(r.Name):
		return "name: " + quoted(r.Name) + " does not match " + bounds.IDRule
	case builtinRole(r.Name) || r.Name == AccessNone:
		return "name: " + quoted(r.Name) + " is a built-in role, which cannot be changed: take another name"
	case len(r.Description) > maxNamespaceComment:
		return "description: " + decimal(len(r.Description)) + " bytes, limit " + decimal(maxNamespaceComment)
	case len(r.Permissions) == 0 || len(r.Permissions) > maxPermissions:
		return "permissions: " + decimal(len(r.Permissions)) + " entries, must have 1 to " + decimal(maxPermissions)
	}
	for _, p := range r.Permissions {
		if !bounds.ValidID(p) {
			return "permissions: " + quoted(p) + " does not match " + bounds.IDRule
		}
	}
	return ""
}

func (t *Tx) putRole(b *commandv1.PutRole) Result {
	r := &Role{
		Name: strings.Clone(b.GetName()), Description: strings.Clone(b.GetDescription()), Permissions: sortedStrings(b.GetPermissions()),
		CreatedAt: t.r.info.Clock, UpdatedAt: t.r.info.Clock, UpdatedBy: t.by, CreateIndex: t.meta.Index, ModifyIndex: t.meta.Index,
	}
	if fault := r.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	old, known := t.r.roles.Get(r.Name)
	if b.IfVersion != nil {
		var have uint64
		if known {
			have = old.ModifyIndex
		}
		if want := b.GetIfVersion(); want != have {
			return refuse(StaleGeneration, "role %q is at version %d, but the request is for version %d: persysctl role show %s, then repeat the request", r.Name, have, want, r.Name)
		}
	}
	kind := EventRoleCreated
	switch {
	case !known && t.r.roles.Len() >= MaxRoles:
		return refuse(Conflict, "there are %d roles, at most %d: delete some", t.r.roles.Len(), MaxRoles)
	case known && old.Description == r.Description && slices.Equal(old.Permissions, r.Permissions):
		return Result{Kind: AlreadyDone}
	case known:
		kind = EventRoleChanged
		r.CreatedAt, r.CreateIndex = old.CreatedAt, old.CreateIndex
	}
	had := t.state().hasTrusted()
	m := own(t, &t.r.roles, ownRoles)
	m.Set(r.Name, r)
	if had && !t.state().hasTrusted() {
		m.Set(old.Name, old)
		return lastTrusted()
	}
	t.trustChanged("role:"+r.Name, func(e *encoder) { e.role(r) })
	t.event(Event{Type: kind, Message: r.Name, Details: []Label{{"permissions", clipTo(strings.Join(r.Permissions, ","), 512)}}})
	if known && slices.ContainsFunc(r.Permissions, func(p string) bool { return !slices.Contains(old.Permissions, p) }) {
		t.dropTokensOf(t.usersOf(r.Name)...)
	}
	return Result{}
}

// usersOf returns the users to whom a role is bound.
func (t *Tx) usersOf(role string) (users []string) {
	t.state().Bindings(func(b *Binding) bool {
		if b.Role == role && b.Kind == SubjectUser {
			users = append(users, b.Name)
		}
		return true
	})
	return users
}

func (t *Tx) deleteRole(b *commandv1.DeleteRole) Result {
	r, ok := t.r.roles.Get(b.GetName())
	switch {
	case builtinRole(b.GetName()):
		return refuse(Conflict, "role %q is built in and cannot be deleted", clip(b.GetName()))
	case !ok:
		return refuse(NotFound, "role %q does not exist: persysctl role list shows them", clip(b.GetName()))
	}
	var to *Binding
	n := 0
	t.state().Bindings(func(b *Binding) bool {
		if b.Role == r.Name {
			to = b
			n++
		}
		return true
	})
	if n > 0 {
		return refuse(Conflict, "role %q has %d bindings, one of them to %s %q: persysctl role unbind first", r.Name, n, to.Kind, clip(to.Name))
	}
	own(t, &t.r.roles, ownRoles).Delete(r.Name)
	t.trustChanged("role:"+r.Name, nil)
	t.event(Event{Type: EventRoleDeleted, Message: r.Name})
	return Result{}
}

// subjectFault describes what is wrong with a subject (kind and name); "" if it is valid.
func subjectFault(kind, name string) string {
	switch {
	case !slices.Contains(subjectKinds[:], kind):
		return "kind: " + quoted(kind) + " must be one of " + strings.Join(subjectKinds[:], ", ")
	case name == "" || len(name) > maxSubject || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "name: " + quoted(name) + " must have 1 to " + decimal(maxSubject) + " bytes, and no control characters"
	case kind == SubjectAccount && !bounds.ValidID(name):
		return "name: " + quoted(name) + " does not match " + bounds.IDRule
	case kind == SubjectUser && !isTokenUser(name):
		if res := checkPrincipal("user", name, "", false); res.Kind != OK {
			return res.Reason
		}
	}
	return ""
}

// isTokenUser reports whether name has the form of a user of an OIDC issuer: oidc:ISSUER#SUBJECT.
func isTokenUser(name string) bool {
	rest, ok := strings.CutPrefix(name, "oidc:")
	issuer, subject, named := strings.Cut(rest, "#")
	return ok && named && issuer != "" && subject != ""
}

// bindingOf converts the binding in a command to a record. If the role, the subject or a namespace
// is invalid, it returns a refusal.
func (t *Tx) bindingOf(b *commandv1.BindRole) (*Binding, Result) {
	n := &Binding{
		Role: strings.Clone(b.GetRole()), Kind: strings.Clone(b.GetKind()), Name: strings.Clone(b.GetName()),
		Everywhere: b.GetEverywhere(), Namespaces: sortedStrings(b.GetNamespaces()), At: t.r.info.Clock, By: t.by, Index: t.meta.Index,
	}
	if fault := subjectFault(n.Kind, n.Name); fault != "" {
		return nil, refuse(Invalid, "%s", fault)
	}
	if b.GetRemove() {
		return n, Result{}
	}
	if n.Everywhere == (len(n.Namespaces) > 0) || len(n.Namespaces) > maxBindingNamespaces {
		return nil, refuse(Invalid, "namespaces: name 1 to %d of them, or set everywhere", maxBindingNamespaces)
	}
	for _, in := range n.Namespaces {
		if !t.state().HasNamespace(in) {
			return nil, refuse(NotFound, "namespace %q does not exist: persysctl namespace list shows them", clip(in))
		}
	}
	r, ok := t.r.roles.Get(n.Role)
	switch {
	case !ok && !builtinRole(n.Role):
		return nil, refuse(NotFound, "role %q does not exist: persysctl role list shows them", clip(n.Role))
	case ok && r.ModifyIndex != b.GetRoleVersion():
		return nil, refuse(StaleGeneration, "role %q is at version %d, changed by %s, but the request is for version %d: persysctl role show %s, then repeat the request", r.Name, r.ModifyIndex, r.UpdatedBy, b.GetRoleVersion(), r.Name)
	}
	return n, Result{}
}

func (t *Tx) bindRole(b *commandv1.BindRole) Result {
	n, res := t.bindingOf(b)
	if res.Kind != OK {
		return res
	}
	if _, ok := t.r.accounts.Get(n.Name); n.Kind == SubjectAccount && !ok && !b.GetRemove() {
		return refuse(NotFound, "account %q does not exist: persysctl account list shows them", clip(n.Name))
	}
	return t.storeBinding(n, b.GetRemove())
}

func (t *Tx) storeBinding(n *Binding, remove bool) Result {
	old, known := t.r.bindings.Get(n.key())
	switch {
	case remove && !known:
		return refuse(NotFound, "role %q is not bound to %s %q: persysctl role bindings shows them", clip(n.Role), n.Kind, clip(n.Name))
	case !remove && known && old.Everywhere == n.Everywhere && slices.Equal(old.Namespaces, n.Namespaces):
		return Result{Kind: AlreadyDone}
	case !known && t.r.bindings.Len() >= MaxBindings:
		return refuse(Conflict, "there are %d bindings of roles, at most %d: remove some", t.r.bindings.Len(), MaxBindings)
	}
	had := t.state().hasTrusted()
	m := own(t, &t.r.bindings, ownBindings)
	if remove {
		m.Delete(n.key())
	} else {
		m.Set(n.key(), n)
	}
	if had && !t.state().hasTrusted() {
		m.Set(old.key(), old)
		return lastTrusted()
	}
	if remove {
		t.bindingRemoved(old)
		return Result{}
	}
	t.bindingStored(n)
	if n.Kind == SubjectUser {
		t.dropTokensOf(n.Name)
	}
	return Result{}
}

// bindingStored stores a new or changed binding n and writes an event. The event also states the number
// of namespaces, because a long list of their names is cut off.
func (t *Tx) bindingStored(n *Binding) {
	t.trustChanged("binding:"+n.key(), func(e *encoder) { e.binding(n) })
	in, count := strings.Join(n.Namespaces, ","), decimal(len(n.Namespaces))
	if n.Everywhere {
		in, count = "*", ""
	}
	t.event(Event{Type: EventRoleBound, Message: n.Role, Details: details(
		Label{"kind", n.Kind}, Label{"name", n.Name}, Label{"namespace_count", count}, Label{"namespaces", clipTo(in, 512)})})
}

func (t *Tx) bindingRemoved(b *Binding) {
	t.trustChanged("binding:"+b.key(), nil)
	t.event(Event{Type: EventRoleUnbound, Message: b.Role, Details: []Label{{"kind", b.Kind}, {"name", b.Name}}})
}

// unbindNamespaceRoles removes a deleted namespace from all bindings, so that a later namespace of the same
// name does not get them. A binding that names no other namespace is removed.
func (t *Tx) unbindNamespaceRoles(namespace string) {
	var found []*Binding
	t.state().Bindings(func(b *Binding) bool {
		if slices.Contains(b.Namespaces, namespace) {
			found = append(found, b)
		}
		return true
	})
	for _, b := range found {
		m := own(t, &t.r.bindings, ownBindings)
		next := *b
		next.Namespaces = slices.DeleteFunc(slices.Clone(b.Namespaces), func(n string) bool { return n == namespace })
		if len(next.Namespaces) == 0 {
			m.Delete(b.key())
			t.bindingRemoved(b)
			continue
		}
		m.Set(b.key(), &next)
		t.bindingStored(&next)
	}
}

// dropBindingsOf removes all bindings of a subject.
func (t *Tx) dropBindingsOf(kind, name string) {
	var found []*Binding
	t.state().BindingsOf(kind, name, func(b *Binding) bool {
		found = append(found, b)
		return true
	})
	for _, b := range found {
		own(t, &t.r.bindings, ownBindings).Delete(b.key())
		t.bindingRemoved(b)
	}
}

// hasTrusted reports whether at least one person has the permission trust in the whole cluster, and a valid
// certificate. The certificate of user admin is valid even if it has expired, because the scheduler that
// formed the cluster renews it. Groups and accounts with the permission are not persons here: a group may
// have no members, and it may be that nobody uses the account.
func (s State) hasTrusted() (found bool) {
	users := pair("user", "")
	s.r.admissions.Ascend(users, func(key string, a *Admission) bool {
		found = strings.HasPrefix(key, users) && s.inUse(a) && s.trusted(a)
		return !found && strings.HasPrefix(key, users)
	})
	return found
}

// inUse reports whether the certificate that a records is valid at the present time: neither
// expired nor revoked.
func (s State) inUse(a *Admission) bool {
	r, revoked := s.RevokedIdentity(a.Role, a.Name)
	_, gone := s.RevokedCertificate(a.Fingerprint)
	return !gone && !(revoked && a.IssuedAt <= r.At) && (a.Name == adminName || a.NotAfter > s.r.info.Clock)
}

// trusted reports whether the user to whom certificate a was issued has the permission trust in the
// whole cluster.
func (s State) trusted(a *Admission) (yes bool) {
	if yes = a.Access == accessAdmin; yes {
		return yes
	}
	s.BindingsOf(SubjectUser, a.Name, func(b *Binding) bool {
		if b.Everywhere {
			r, own := s.Role(b.Role)
			yes = b.Role == accessAdmin || own && slices.Contains(r.Permissions, permissionTrust)
		}
		return !yes
	})
	return yes
}

func lastTrusted() Result {
	return refuse(Conflict, "nobody with a valid certificate would have the permission %s any more: let another admin join first (persysctl token create --role user --name NAME --access admin)", permissionTrust)
}

func sortedStrings(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	out := convert(in, strings.Clone)
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *checker) roles() {
	r := c.s.r
	r.roles.Scan(func(name string, v *Role) bool {
		c.must(v.Name == name && v.fault() == "" && slices.IsSorted(v.Permissions), "role %q is stored under %q: %s", clip(v.Name), clip(name), v.fault())
		return true
	})
	r.bindings.Scan(func(key string, b *Binding) bool {
		_, own := r.roles.Get(b.Role)
		c.must(b.key() == key && subjectFault(b.Kind, b.Name) == "" && (own || builtinRole(b.Role)), "binding of role %q to %s %q is stored under %q", clip(b.Role), clip(b.Kind), clip(b.Name), clip(key))
		c.must(b.Everywhere == (len(b.Namespaces) == 0) && slices.IsSorted(b.Namespaces), "binding %s is for namespaces %v", clip(key), b.Namespaces)
		for _, n := range b.Namespaces {
			c.must(c.s.HasNamespace(n), "binding %s names namespace %q, which does not exist", clip(key), clip(n))
		}
		_, known := r.accounts.Get(b.Name)
		c.must(b.Kind != SubjectAccount || known, "binding %s names an account that does not exist", clip(key))
		return true
	})
}

func rolePB(r *Role) *commandv1.RoleRecord {
	return &commandv1.RoleRecord{
		Put:       &commandv1.PutRole{Name: r.Name, Description: r.Description, Permissions: r.Permissions},
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, UpdatedBy: r.UpdatedBy, CreateIndex: r.CreateIndex, ModifyIndex: r.ModifyIndex,
	}
}

func roleOf(m *commandv1.RoleRecord) *Role {
	p := m.GetPut()
	return &Role{
		Name: p.GetName(), Description: p.GetDescription(), Permissions: convert(p.GetPermissions(), strings.Clone),
		CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(), UpdatedBy: m.GetUpdatedBy(), CreateIndex: m.GetCreateIndex(), ModifyIndex: m.GetModifyIndex(),
	}
}

func bindingPB(b *Binding) *commandv1.BindingRecord {
	return &commandv1.BindingRecord{
		Put: &commandv1.BindRole{Role: b.Role, Kind: b.Kind, Name: b.Name, Namespaces: b.Namespaces, Everywhere: b.Everywhere},
		At:  b.At, By: b.By, Index: b.Index,
	}
}

func bindingRecordOf(m *commandv1.BindingRecord) *Binding {
	p := m.GetPut()
	return &Binding{
		Role: p.GetRole(), Kind: p.GetKind(), Name: p.GetName(), Everywhere: p.GetEverywhere(), Namespaces: convert(p.GetNamespaces(), strings.Clone),
		At: m.GetAt(), By: m.GetBy(), Index: m.GetIndex(),
	}
}

func (e *encoder) role(r *Role) {
	e.str(r.Name)
	e.str(r.Description)
	e.strs(r.Permissions)
	e.i64(r.CreatedAt)
	e.i64(r.UpdatedAt)
	e.str(r.UpdatedBy)
	e.u64(r.CreateIndex)
	e.u64(r.ModifyIndex)
}

func (e *encoder) binding(b *Binding) {
	for _, s := range [...]string{b.Role, b.Kind, b.Name, b.By} {
		e.str(s)
	}
	e.bool(b.Everywhere)
	e.strs(b.Namespaces)
	e.i64(b.At)
	e.u64(b.Index)
}
