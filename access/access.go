package access

import (
	"fmt"
	"slices"
	"strings"
)

// Permission allows the calls of one kind, for instance reading logs. The zero value is Never.
type Permission uint8

// The permissions. Roles are stored with the names of their permissions, so a name never changes.
const (
	Never      Permission = iota // Never: no role has this permission
	Always                       // Always: every caller has this permission, even without a role
	Any                          // Any: every caller who has some other permission has this one
	Read                         // see workloads, nodes, namespaces, policies, events and the audit log
	Logs                         // read the logs of workloads
	Exec                         // open sessions in workloads
	Deploy                       // plan, apply, start, stop, retry, roll back and delete workloads
	Nodes                        // cordon and drain nodes, collect their garbage
	Fence                        // fence and remove nodes, register them by hand
	Volumes                      // delete and move managed volumes
	Namespaces                   // create, change and delete namespaces
	Policies                     // create, change, bind and delete policies
	Cluster                      // change the mode, the replicas, the leader and the mirror
	Backups                      // make and restore backups, which hold the whole state
	Secrets                      // see the values of secrets
	Trust                        // join tokens, identities, authorities, revocations, roles
	count
)

// names holds the name and the meaning of each permission.
var names = [count]struct{ name, meaning string }{
	Never:      {"never", "no role has it"},
	Always:     {"always", "everybody has it"},
	Any:        {"any", "any permission"},
	Read:       {"read", "see workloads, nodes, namespaces, policies, events and the audit log"},
	Logs:       {"logs", "read the logs of workloads"},
	Exec:       {"exec", "open sessions in workloads"},
	Deploy:     {"deploy", "plan, apply, start, stop, retry, roll back and delete workloads"},
	Nodes:      {"nodes", "cordon and drain nodes, collect their garbage"},
	Fence:      {"fence", "fence and remove nodes, register them by hand"},
	Volumes:    {"volumes", "delete and move managed volumes"},
	Namespaces: {"namespaces", "create, change and delete namespaces"},
	Policies:   {"policies", "create, change, bind and delete policies"},
	Cluster:    {"cluster", "change the mode, the replicas, the leader and the mirror"},
	Backups:    {"backups", "make and restore backups, which hold the whole state"},
	Secrets:    {"secrets", "see the values of secrets"},
	Trust:      {"trust", "join tokens, identities, authorities, revocations, roles"},
}

// All returns the permissions that a role can have.
func All() []Permission {
	var out []Permission
	for p := Read; p < count; p++ {
		out = append(out, p)
	}
	return out
}

// Parse returns the permission that has this name.
func Parse(name string) (Permission, error) {
	for p := Read; p < count; p++ {
		if names[p].name == name {
			return p, nil
		}
	}
	return Never, fmt.Errorf("permission %.64q must be one of %s", name, setOf(All()...))
}

func (p Permission) String() string { return names[p].name }

// Meaning describes, for people, which calls the permission allows.
func (p Permission) Meaning() string { return names[p].meaning }

// Set is a set of permissions.
type Set uint32

func setOf(list ...Permission) Set {
	var s Set
	for _, p := range list {
		s |= 1 << p
	}
	return s
}

// SetOf returns the permissions that have these names. Names that this version does not know are ignored.
func SetOf(list []string) Set {
	var s Set
	for _, name := range list {
		if p, err := Parse(name); err == nil {
			s |= setOf(p)
		}
	}
	return s
}

// Has reports whether the set contains p.
func (s Set) Has(p Permission) bool {
	return s&(1<<p) != 0 || p == Any && s != 0 || p == Always
}

// Names returns the names of the permissions in the set, in the order of their declaration.
func (s Set) Names() []string {
	var out []string
	for _, p := range All() {
		if s.Has(p) {
			out = append(out, p.String())
		}
	}
	return out
}

func (s Set) String() string { return strings.Join(s.Names(), ", ") }

// The built-in roles.
const (
	Viewer   = "viewer"
	Operator = "operator"
	Admin    = "admin"
)

// Builtins returns the names of the built-in roles, from the one with the fewest permissions to the one with
// the most.
func Builtins() []string { return []string{Viewer, Operator, Admin} }

// Builtin returns the permissions of a built-in role. It returns false for other names.
func Builtin(role string) (Set, bool) {
	switch role {
	case Viewer:
		return setOf(Read, Logs), true
	case Operator:
		return setOf(Read, Logs, Exec, Deploy, Nodes), true
	case Admin:
		return setOf(All()...), true
	}
	return 0, false
}

// Grant gives a person the permissions of a role, in every namespace or in some.
type Grant struct {
	Role        string
	Permissions Set
	In          Scope
}

// Where returns the namespaces in which grants give a permission.
func Where(grants []Grant, p Permission) Scope {
	var out Scope
	if p == Always {
		return Everywhere()
	}
	for _, g := range grants {
		if g.Permissions.Has(p) {
			out = out.plus(g.In)
		}
	}
	return out
}

// Scope is a set of namespaces. The zero value is empty.
type Scope struct {
	all   bool
	names []string // sorted names of the namespaces, if the scope is not all namespaces
}

// Everywhere returns the scope of all namespaces.
func Everywhere() Scope { return Scope{all: true} }

// Only returns the scope of these namespaces.
func Only(names []string) Scope { return Scope{names: sortedSet(names)} }

// plus returns the union of the scopes s and o.
func (s Scope) plus(o Scope) Scope {
	switch {
	case s.all || o.all:
		return Everywhere()
	case len(s.names) == 0:
		return o
	case len(o.names) == 0:
		return s
	}
	return Only(slices.Concat(s.names, o.names))
}

// Narrow returns the namespaces of s that are also in names. If names is empty, it returns s
// unchanged.
func (s Scope) Narrow(names []string) Scope {
	switch {
	case len(names) == 0:
		return s
	case s.all:
		return Only(names)
	}
	return Scope{names: slices.DeleteFunc(sortedSet(names), func(n string) bool { return !s.Has(n) })}
}

// Everywhere reports whether s contains all namespaces.
func (s Scope) Everywhere() bool { return s.all }

// Nowhere reports whether the scope contains no namespace.
func (s Scope) Nowhere() bool { return !s.all && len(s.names) == 0 }

// Has reports whether a namespace is in s.
func (s Scope) Has(namespace string) bool {
	return s.all || slices.Contains(s.names, namespace)
}

// Names returns the namespaces of s, sorted. It is empty if s contains all namespaces.
func (s Scope) Names() []string { return s.names }

// String describes the scope for messages.
func (s Scope) String() string {
	switch {
	case s.all:
		return "every namespace"
	case len(s.names) == 0:
		return "no namespace"
	}
	return strings.Join(s.names, ", ")
}

func sortedSet(names []string) []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}

// Covers reports whether every namespace of o is in s. The scope of all namespaces includes the whole cluster.
func (s Scope) Covers(o Scope) bool {
	if s.all || o.all {
		return s.all
	}
	for _, n := range o.names {
		if !s.Has(n) {
			return false
		}
	}
	return true
}

// Lacking checks whether a person may pass on a grant. own are the grants of that person; given is the grant for
// somebody else. Lacking returns the permissions of given that own does not include in every namespace of given. The
// person may pass the grant on only if the result is empty.
func Lacking(own []Grant, given Grant) Set {
	var out Set
	for _, p := range All() {
		if given.Permissions.Has(p) && !Where(own, p).Covers(given.In) {
			out |= setOf(p)
		}
	}
	return out
}

// And returns the permissions that are in both sets.
func (s Set) And(o Set) Set { return s & o }

// NeverThroughGateways are the permissions that nobody can grant to others by a call through a
// gateway: they lead to the keys, the secrets and the whole state of the cluster, so a stolen
// certificate of a gateway must not get them.
func NeverThroughGateways() Set { return setOf(Backups, Secrets, Trust) }
