// Package fsm is the replicated state of a cluster and the only place where it changes.
//
// A [State] is an immutable value. [State.Apply] takes one command of the Raft log and returns
// the next state, the verdict on the command, and the records that changed. The same commands in
// the same order give the same state on every replica, byte for byte. The package therefore has
// no clock, no randomness, no goroutine, no Go map, and no I/O except the reader and writer of
// snapshots. The time comes with the command, and ids are made by the caller.
//
// The log carries decisions, not algorithms. A planner proposes "web-1 goes to node-a if it is
// still at generation 7". Apply checks epoch, generation, readiness, capacity and ports again,
// and skips the item if one of them no longer holds. A planner that is wrong, late or deposed
// does no harm.
//
// A reader may rely on these rules:
//
//   - A record that a [View] returns never changes. A change makes a new record.
//   - A refused command changes only the index, the term, the clock and the digest. If it came
//     with a request id it also leaves a receipt, and if it came through the API, an event.
//   - A deleted workload leaves a tombstone, the record of its last generation, for a while. If a lost node
//     returns and still runs the workload, the node gets an order to remove it.
//   - The status of a workload is computed from its record and the record of its node.
//   - [State.Check] recomputes every index, sum and invariant from the records.
//
// The files:
//
//   - tx.go runs one command, and modes.go lists the commands and the modes that permit them.
//   - put.go, each.go, plan.go, report.go, nodes.go, cluster.go, namespaces.go, rollouts.go,
//     failures.go, drifts.go, ports.go, stops.go, lostlease.go, tombstones.go, jobs.go, templates.go,
//     volumes.go, volumecommands.go and trust.go hold the commands and the rules that they share.
//   - receipts.go answers a repeated request. Package receipts stores the answers.
//   - types.go and view.go hold the records and the read-only interface. tables.go writes
//     records, indexes.go maintains what is derived from them, and status.go derives states.
//   - codec.go decodes commands, snapshot.go and records.go encode snapshots, and digest.go
//     computes the digest that finds replicas that have diverged.
//   - restore.go and assemble.go build a state from a backup or from another store.
//   - check.go verifies a state.
//
// The package does not block and does not publish states. Package fsm/store does both.
package fsm
