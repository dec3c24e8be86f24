// Package runner drives the agent's core: it holds the State, writes what the core wants stored, and
// carries out the core's effects on drivers, volumes, health checks and the fencer.
//
//   - Do applies one event at a time. What has to be durable is on disk before Do returns; if that fails,
//     the event has had no effect.
//   - State is a snapshot, read without a lock.
//   - Acts of different workloads run side by side, each in a goroutine of its own. A driver that panics
//     fails its workload only.
//   - Engines are listed at an interval, and asked about a workload after its events, which are hints.
//   - Every goroutine ends with Close.
package runner
