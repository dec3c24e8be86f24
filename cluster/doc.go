// Package cluster is one replica of the control plane: a Raft node over the
// pure state machine of package fsm, and the membership that lets the same
// command line serve first boot, restart and scale-out.
//
//	Open → Node
//	  Store        the replicated state: views, waiting, the change feed
//	  Propose      commands in, verdicts out; concurrent calls share log entries
//	  Confirm      "I still lead", proven by a barrier proposed after the question
//	  Read         stale | session | linearizable
//	  Lead         one stint at a time; its context dies with the leadership
//	  Leader, LeaderChanges, Status, LocalMode
//	  TransferLeadership, RemoveReplica, Dismiss, Leave, Close
//	  Halted, Err  why the replica stopped itself
//
// # How a proposal travels
//
// The caller's goroutine encodes (propose.go). One goroutine concatenates what
// waits, up to 256 KiB, into one log entry and hands it to Raft; another collects
// the answers in order. While an entry is on its way, later calls gather into the
// next one, which follows at once only when it holds 64 KiB or more. So the cost
// of an entry (futures, channels, a message and an fsync per replica) is shared by all
// callers. The adapter (fsm.go) judges an entry in one transaction and publishes
// one root.
//
// A call ends in one of three ways: with verdicts; with an error that says that
// nothing happened; or with ErrUnknownOutcome, when the deadline passed or
// leadership was lost after Raft had the entry. The line between the last two is
// drawn at a compare-and-swap between the caller giving up and the coalescer
// taking the call.
//
// # What is on disk
//
// DataDir holds lock (flock, one process), raft-id (a copy for people),
// peers.json (gossip addresses, for a replica that has to join anew) and raft/
// with log.db and snapshots/. The replica id is stored inside log.db: whoever
// loses the log loses the id, so an emptied voter cannot vote under its old id.
// Every entry carries a checksum, and everything above the newest snapshot is
// read before Raft starts, because the library panics on a bad entry. The first
// failed write stops the replica (logstore.go): a leader steps down, a follower
// stops acknowledging, and Err names the file and the cause.
//
// # Who may talk to whom
//
// One port carries Raft's streams and the calls between replicas. Both begin
// with a greeting (transport.go) that names sender, addressee and cluster, since
// Raft checks none of them: a vote meant for a replica that is not there any more
// is refused by whoever now has its address, and a replica of another cluster is
// refused with both ids in the error. With TLS, both sides check the other's
// role first.
//
// # Membership
//
// memberlist names candidates; each is asked on the Raft port who it is; only
// Raft's configuration decides (membership.go). A replica that knows no cluster
// makes itself visible and waits: either a leader adds it, as a non-voter first,
// or, when BootstrapExpect replicas are visible, none knows a cluster and all
// promise themselves to the one with the lowest id, that one bootstraps with all
// of them. The leader makes one change at a time:
//
//	newcomer                           add as non-voter
//	non-voter, level for Stabilize     promote
//	newcomer with the name or address
//	  of a server that does not answer remove that one, then as above
//	known replica at another address,  change the address
//	  this one among them
//	server silent for DeadAfter        remove; a voter only while
//	                                   max(BootstrapExpect, 3) healthy ones remain
//
// Where gossip sees a replica at another address than the configuration does, Raft
// dials the former first: if most have moved at once, nobody leads before that.
//
// # Trade-offs
//
//   - An idle leader sends a command at once, a loaded one fills entries: behind
//     an entry on its way, less than 64 KiB waits for it. That costs a call up to
//     one round of latency and saves every replica fsyncs that would carry little.
//   - Confirm costs a log entry, shared by everybody who asks within a
//     millisecond and by the proposals of that moment. The library's VerifyLeader
//     costs none, but can be satisfied by an answer to an older heartbeat.
//   - Failover by timeout takes about twice Timing.Heartbeat. For the common
//     case, a dead process, failover.go takes milliseconds, at the price of trust
//     in ECONNREFUSED: a firewall that rejects with a reset can cause a change
//     of leader that was not needed, never two leaders in one term.
//   - An append to a follower that is away waits in the transport for its next
//     heartbeat. The library's own pause grows to 10 s, in which a follower that
//     is back would stay behind, and the cluster stand still if it lost another.
//     Whoever is asked to take over is exempt (transport.returned says why).
//   - The log cache is bounded by bytes, not entries, and Raft messages carry at
//     most 64 entries: entries of 256 KiB would otherwise make the library's
//     defaults hold a gigabyte.
//   - A voter that has been dead for less than DeadAfter stays a voter. Removing
//     it sooner would shrink the quorum for every reboot.
//   - A replica removed while it was unreachable learns of it from the leader
//     that removed it; should that leader change first, it is taken for a
//     returning member and joins again as a non-voter. Stop a machine before
//     removing its replica with force.
package cluster
