// Package leader is the leader's loop around the pure planner:
//
//	for { step := sched.Next(observe()); propose(step.Commands); deliver(step.Orders); wait(feed | acks | step.WakeAt) }
//
// One ordered, level-triggered loop of pure passes. It owns what only the leader
// knows and nobody replicates: who was heard when (the liveness table), which
// orders are on their way, and which reports wait to be committed.
//
// Promises:
//
//   - Heartbeats cost no log entry. Only transitions are committed, latest wins,
//     flushed every FlushEvery or FlushItems (DESIGN, decision 6).
//   - A lease is extended only after a Confirm that began after the heartbeat
//     arrived; one Confirm per ConfirmEvery serves all heartbeats of that window.
//     Without it the answer repeats the old expiry, so a deposed leader extends
//     nothing.
//   - A new stint, and the end of a frozen mode, grant every node one full lease.
//     A pause of this very process shifts every deadline by its length. Expiry may
//     be late, never early.
//   - Orders go out after a Confirm of the state they come from, on bounded queues
//     per node, one in flight per workload, each with a deadline: a dead node
//     delays nobody.
//   - Agents that do not push are asked every PollEvery until what they accepted has
//     come to an end, and every agent that is too late is asked what it did. Such
//     reads are bounded in number and time, and nothing waits for them.
//   - Every node is compared with the state once in DriftInterval, each at its own
//     moment. What differs is noted when a second look confirms it, and repaired by
//     the ordinary ways: a report, a new order, a person.
//   - Everything a stint started has ended when Run returns.
package leader
