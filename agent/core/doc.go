// Package core decides everything that an agent does about its workloads.
//
// Step takes what the agent knows and one thing that happened, and returns what it knows next and
// what has to be done:
//
//	Step(State, Input) (State, []Effect)
//
// There is no lock, clock, file, goroutine or context here. Times come in with the input, and a State
// is never changed in place, so the caller may keep the former one: if a Store effect fails, it drops
// the new State, and the input has never happened. The agent drives Step with real engines and a real
// disk; the simulator drives the same Step with virtual ones.
//
// Promises:
//
//   - An order is stored before it is answered, together with the epoch that came with it: Store is
//     always the first effect of a step.
//   - Orders of a lower epoch, a lower generation, another cluster, node or instance are refused, also
//     after a restart. An order that is not above a tombstone is refused.
//   - A workload that is to be stopped with the lease starts only under a lease that the fencer has
//     confirmed, and after a lapse only by a newer order.
//   - An exclusive workload that does not run when the agent's process starts is not started before the
//     schedulers order it again.
//   - Of one workload at most one Act is under way.
//   - What an engine does not list because it does not answer is not forgotten.
package core
