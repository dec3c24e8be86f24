// Package engine holds rules about names, sizes and options that Docker, runc and the Linux kernel apply when
// they create or start a container. Specifications and loaded Compose projects are checked by these rules at
// apply. So a fault is found before a node creates the container.
//
// Each function checks one value. It returns the rule that the value breaks, or "" if the value is accepted.
// The text of a rule is written to follow the name of a field: `hostname: must be …`. It does not repeat the
// value.
//
// InsideInterface is different: it recognises network interfaces by the names that engines give to them.
//
// The rules are the same for every supported engine. Properties that only one node knows, such as its
// devices, runtimes and plugins, are not checked here.
package engine
