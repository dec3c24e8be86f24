// Package access decides what people may do.
//
// A permission allows a kind of calls, for instance deploy. A role is a named set of permissions. A Grant
// is a role of a person, in every namespace or in some. Where returns the namespaces in which the grants of
// a person include a permission. Package rpc defines which permission each call needs.
//
// The package is pure and imports nothing of this project.
package access
