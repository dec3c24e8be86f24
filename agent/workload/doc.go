// Package workload defines the types that the agent's core and its drivers share: kinds, ids, generations,
// observations of instances, and classes of failures.
//
// It imports nothing of the project and nothing that does I/O, so that the core stays pure. Package driver
// has aliases for most of these types.
package workload
