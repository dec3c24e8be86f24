// Package scope says in which namespaces a call may act.
package scope

import (
	"slices"
	"strings"
)

// Scope is a set of namespaces, or all of them. The zero Scope is all of them.
type Scope struct {
	confined bool
	names    []string // sorted
}

// Of is what somebody acts in whom these namespaces name: none of them, everywhere.
func Of(names []string) Scope {
	if len(names) == 0 {
		return Scope{}
	}
	return Scope{confined: true, names: sorted(names)}
}

// Narrow is s without what names leave out; names that are none leave out nothing. What
// is left may be nothing at all.
func (s Scope) Narrow(names []string) Scope {
	if len(names) == 0 {
		return s
	}
	if !s.confined {
		return Of(names)
	}
	return Scope{confined: true, names: slices.DeleteFunc(sorted(names), func(n string) bool { return !s.Has(n) })}
}

// Everywhere reports whether s is all namespaces.
func (s Scope) Everywhere() bool { return !s.confined }

// Nowhere reports whether s is no namespace.
func (s Scope) Nowhere() bool { return s.confined && len(s.names) == 0 }

// Has reports whether a namespace is in s.
func (s Scope) Has(namespace string) bool { return !s.confined || slices.Contains(s.names, namespace) }

// Names are the namespaces, sorted; nil where they are all of them.
func (s Scope) Names() []string { return slices.Clone(s.names) }

// String is for messages.
func (s Scope) String() string {
	switch {
	case !s.confined:
		return "every namespace"
	case len(s.names) == 0:
		return "no namespace"
	}
	return strings.Join(s.names, ", ")
}

func sorted(names []string) []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}
