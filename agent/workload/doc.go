// Package workload has the values that the agent's core and its drivers share: kinds, ids,
// generations, what an engine shows of an instance, and classes of failures.
//
// It imports nothing of the project and nothing that does I/O, so that the core stays pure. Package
// driver gives most of these types a second name.
package workload
