// Package mirror keeps a durable copy of the replicated state in etcd, in the
// keys and JSON shapes that existing Persys tools read (docs/contract/state-etcd.md).
//
// It is one way, state machine → etcd: nothing in etcd ever changes the state
// machine by itself. What a reader of etcd and a leader may rely on:
//
//   - One writer. Every transaction compares the value of the cursor key and of
//     the owner key, and writes the cursor's next value, which no other writer
//     ever writes. So a leader that was deposed while it slept changes nothing
//     when it wakes up, and a write that was given up cannot land later.
//     Values, not revisions, because revisions go back when etcd is restored.
//   - A cursor that is complete and has no "upto" means: etcd holds exactly the
//     state of that index. With "upto", some records are newer, up to that index.
//     Not complete means that a full comparison is under way.
//   - Replaying is harmless. Every write puts a record as it is, never a
//     difference, so a new leader resumes after the cursor's index; where the
//     change feed no longer reaches it, the whole is compared page by page.
//   - Transactions hold at most 100 operations and 1 MiB; calls have a deadline.
//   - Only the documented prefixes are touched, and there everything that the
//     state does not explain is removed. That is why a prefix that holds data of
//     unknown origin, or of another cluster, is refused (ErrForeignData) until
//     somebody asks for Restore.
//   - Retention: at most 10,000 events and none older than 7 days (by the state's
//     clock), trimmed in the same transactions; the record of a drift that has
//     ended goes with the event of its end, one that is open is as it is now. Old
//     revisions are compacted, by age and by how much was written, so etcd does not
//     fill.
//   - Secrets stay as they are stored: sealed.
//   - In no case is a running workload concerned. What an unhealthy mirror means
//     for the control plane is ModeFor's to say, and the leader's to propose.
//
// The package knows no specification: Describe, given by the wiring, turns a
// workload's opaque bytes into the documented fields.
//
// Where things are: shapes.go holds the JSON shapes; projection.go turns records
// into keys and values; keys.go names the keys; cursor.go the fence; decide.go
// what a leader does with what it finds; writer.go one transaction and the full comparison; session.go
// one attempt at streaming; mirror.go a
// leader's stint; health.go the judgement; recovery.go preview and restore;
// read.go reads an etcd back for import; etcd.go holds the calls and client.go
// the connection.
package mirror
