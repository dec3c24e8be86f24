// Package control is the leader's control loop as a pure value: a [Term] takes an
// [Input] and the time, and returns the [Effect]s to carry out. It reads no clock,
// starts no goroutine, takes no lock and waits for nothing, so the scheduler
// (sched/leader, in real time) and the simulator (sim, in virtual time) run the same
// code.
//
// One Term is one leadership term of one replica. It holds what only the leader knows
// and nobody replicates:
//
//   - the liveness table: when each node was last heard, and when its lease ends
//     (liveness.go, lease.go);
//   - the dispatcher: which orders wait, are in flight, or rest before another try
//     (orders.go);
//   - the workload reports that wait to be committed (reports.go);
//   - the planning cycle: observe, plan, propose, confirm, deliver (plan.go);
//   - the reads of agents: polls, drift detection, audits (inspect.go, drift.go);
//   - the pause detector and the planner's clock offset (clock.go).
//
// An effect that needs an answer carries an ID. Whoever carries it out answers with
// exactly one input of the same ID: Propose with Proposed, Confirm with Confirmed,
// Deliver with Delivered, and so on.
//
// Promises:
//
//   - A heartbeat costs no log entry. Only changes of workload status are committed,
//     the latest report of a workload wins, and reports are flushed every FlushEvery
//     or as soon as FlushItems wait.
//   - A lease is extended only after a Confirm that began after the heartbeat arrived.
//     One Confirm per ConfirmEvery serves all heartbeats of that window. Without it the
//     answer repeats the old expiry, so a deposed leader extends nothing.
//   - A new term, and the end of a frozen mode, grant every node one full lease. A pause
//     of this process moves every deadline by its length. A lease may be ended late,
//     never early.
//   - Orders go out after a Confirm that began after they were planned, on bounded
//     queues per node, one in flight per workload of a node, each with a deadline. A
//     dead node delays no other node.
//   - An agent of protocol 0 sends no status by itself: it is polled every PollEvery
//     until the accepted order has an outcome. Any agent that misses a deadline is asked
//     for its actions. These reads are bounded in number and time.
//   - Every node is compared with the state once in DriftInterval. A new difference is
//     recorded after a second comparison has confirmed it. It is repaired by the usual
//     means: a report, a new order, a person.
package control
