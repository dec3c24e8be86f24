// Package agent runs the workloads of one machine for the schedulers of one cluster.
//
// It is level-triggered: orders hold the desired state, engines report the actual state, and the core decides
// the next action from both. Orders, engine events and timers only make the core compare the two again. So a
// crash of the agent loses nothing: the next process reads the state file, lists the engines, adopts the
// running instances and continues.
//
// Promises:
//
//   - An order is on disk before it is acknowledged, together with the epoch of its sender. Lower epochs,
//     lower generations, other clusters and other nodes are refused, also after a restart.
//   - The agent touches only workloads that it was ordered to run and instances with its labels. It does
//     not forget a workload because its engine does not answer.
//   - If the schedulers are unreachable, all workloads keep running, except those with on_lost_lease: stop.
//
// This package connects the following packages:
//
//   - core makes the decisions. It is a pure step function that the simulator also uses.
//   - store keeps the state file. spec parses orders and specifications.
//   - runner holds the core's state and carries out its effects on drivers.
//   - session calls the schedulers, and server serves their calls. message converts between the core's values
//     and the messages of both; the simulator uses it too.
//   - fencer is a separate process that stops exclusive workloads when the lease ends.
//   - garbage, health, usage, host, volume, credentials and metrics each do what their name says.
package agent
