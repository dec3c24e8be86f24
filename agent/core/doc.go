// Package core makes all decisions of an agent about its workloads.
//
// Step takes the agent's state and one event, and returns the next state and the effects to carry
// out:
//
//	Step(State, Input) (State, []Effect)
//
// The package has no locks, clocks, files, goroutines or contexts. The current time is part of the input. A
// State is never changed in place, so the caller can keep the previous State: if a required Store effect
// fails, the caller drops the new State, and the input has no effect. The agent runs Step with real engines
// and a real disk; the simulator runs the same Step with simulated engines and a simulated disk.
//
// Guarantees:
//
//   - An order and its epoch are stored before the order is answered. Store is always the first
//     effect of a step.
//   - Orders of a lower epoch, a lower generation, or another cluster, node or instance are
//     refused, also after a restart. An order that is not newer than the workload's tombstone is
//     refused.
//   - A workload with on_lost_lease: stop starts only under a lease that the fencer has confirmed. The
//     fencer is a separate process that stops such workloads when the lease ends. After that only a
//     newer order starts them.
//   - An exclusive workload that does not run when the agent starts is not started until the
//     schedulers order it again.
//   - At most one Act (an action of a driver) is in progress for a workload.
//   - If an engine does not answer, the State keeps the workloads of that engine.
package core
