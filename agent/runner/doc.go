// Package runner drives the agent's core: it holds the State, stores records, and carries out the
// core's effects on drivers, volumes, health checks and the fencer.
//
//   - Do applies one event at a time. Records that must be durable are on disk before Do returns.
//     If that fails, the event has no effect.
//   - State returns a snapshot without a lock.
//   - Actions on different workloads run concurrently, each in its own goroutine. A panic of a driver
//     fails only its workload.
//   - Engines are listed at an interval. An event of an engine only triggers an inspection of the workload.
//   - Close waits for every goroutine.
package runner
