package rpc

import (
	"slices"
	"strings"
)

// namespaceScope is the set of namespaces in which a caller may act. The zero value is all of them.
type namespaceScope struct {
	confined bool
	names    []string // sorted
}

// scopeOfNames returns the scope of a user whom these namespaces list. A user whom no namespace
// lists may act in every namespace.
func scopeOfNames(names []string) namespaceScope {
	if len(names) == 0 {
		return namespaceScope{}
	}
	return namespaceScope{confined: true, names: sortedSet(names)}
}

// narrow returns the namespaces of s that are among names, which may be none at all. Empty names
// change nothing.
func (s namespaceScope) narrow(names []string) namespaceScope {
	switch {
	case len(names) == 0:
		return s
	case !s.confined:
		return scopeOfNames(names)
	}
	return namespaceScope{confined: true, names: slices.DeleteFunc(sortedSet(names), func(n string) bool { return !s.has(n) })}
}

// everywhere reports whether s is all namespaces.
func (s namespaceScope) everywhere() bool { return !s.confined }

// nowhere reports whether s is no namespace.
func (s namespaceScope) nowhere() bool { return s.confined && len(s.names) == 0 }

// has reports whether a namespace is in s.
func (s namespaceScope) has(namespace string) bool {
	return !s.confined || slices.Contains(s.names, namespace)
}

// String is for messages.
func (s namespaceScope) String() string {
	switch {
	case !s.confined:
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
