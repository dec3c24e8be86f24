// Package fsm is the replicated state of a cluster and the only place where it
// changes.
//
// A [State] is an immutable value. [State.Apply] takes a command of the Raft log
// and gives the next value, the verdict and the records that changed; the same
// commands in the same order give the same value, byte for byte, on every
// replica. To keep that promise the package has no clock, no randomness, no
// goroutine, no I/O but the snapshot's reader and writer, and no Go map: time
// comes with the command, ids are minted outside.
//
// The log carries decisions, not algorithms. A planner proposes "web-1 goes to
// node-a if it is still at generation 7"; Apply disposes: it checks epoch,
// generation, readiness, capacity and ports again and skips what no longer
// holds. So a planner may be wrong, late or deposed and still do no harm.
//
// What a reader may rely on:
//
//   - A record that a [View] shows never changes. A change is a new record.
//   - A command that is refused changes nothing but the index, the term, the
//     clock, the digest, where it carried a request id, its receipt, and the
//     line of history that says that it was refused (trust.go).
//   - What was deleted is remembered for a while (tombstones.go), so that a node which
//     returns with it is told to let go.
//   - Every status follows from the record and its node alone (see status.go),
//     so no path through the commands can leave a stale one behind.
//   - [State.Check] recomputes every index, sum and invariant from the records.
//
// Where things are: tx.go runs one command; put.go, nodes.go, plan.go, report.go,
// failures.go, cluster.go, tombstones.go, ports.go and trust.go hold the commands; modes.go says which mode permits which;
// receipts.go answers a repeated request once (package receipts keeps the answers); tables.go writes records and
// indexes.go what follows from them; status.go derives states; digest.go folds
// the divergence digest; codec.go and snapshot.go are the two byte formats;
// check.go is the auditor.
//
// The package does not block and does not publish: package fsm/store does.
package fsm
