// Package mirror keeps a durable copy of the replicated state in etcd. Keys and JSON
// shapes are those that legacy v1 peers read (docs/contract/state-etcd.md).
//
// Data flows one way, from the state machine to etcd. A change in etcd never changes
// the state machine. The mirror guarantees:
//
//   - One writer. Every transaction compares the values of the cursor key and of the
//     owner key, and writes the next cursor value. Cursor values are never reused.
//     A deposed leader therefore cannot write, and an abandoned transaction cannot
//     take effect later. Values are compared, not revisions, because revisions
//     decrease when etcd is restored from a backup.
//   - The cursor describes the contents. If it is complete and has no "upto", etcd holds exactly
//     the state at its index. With "upto", some records are newer than its index, up to the index
//     in "upto". If it is not complete, a full comparison is in progress.
//   - Replay is idempotent. Every write stores a whole record. A new leader resumes
//     after the cursor's index. If the change feed no longer reaches back to that
//     index, the mirror compares the whole state with etcd, page by page.
//   - Transactions hold at most 100 operations and 1 MiB. Every call has a deadline.
//   - The mirror writes only below its documented prefixes. Keys there that do not
//     belong to the state are removed. A prefix that holds data of unknown origin or
//     of another cluster is refused (ErrForeignData) until an operator calls Restore.
//   - Retention: at most 10,000 events, none older than 7 days by the clock of the
//     state. Old events are removed in the same transactions. The record of a
//     resolved drift is removed with its DriftResolved event. The record of an open
//     drift stays. Old revisions are compacted by age and by bytes written, so that
//     etcd does not fill up.
//   - Secrets are written sealed, as they are stored.
//   - Running workloads are never affected. ModeFor maps the health of the mirror to
//     a mode of the control plane; the leader proposes that mode.
//
// The package does not parse specifications. Deps.Describe turns the stored bytes of
// a workload into the documented fields.
//
// Files:
//
//   - shapes.go: JSON shapes.
//   - projection.go: records to keys and values; extra.go: additional keys.
//   - keys.go: key names.
//   - cursor.go: the cursor and owner keys.
//   - decide.go: the action for the contents found in etcd.
//   - writer.go: fenced transactions and the comparison of records.
//   - session.go: one attempt to synchronise etcd and follow the change feed.
//   - mirror.go: options and the loop of one leadership term.
//   - health.go: health of the mirror and its mode.
//   - recovery.go: preview and restore.
//   - read.go, import.go: read an etcd back as a state.
//   - etcd.go: calls to etcd; client.go: the connection.
package mirror
