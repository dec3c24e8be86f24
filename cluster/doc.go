// Package cluster is one replica of the control plane: a Raft node over the pure state machine of
// package fsm, and the membership. One command line serves first boot, restart and scale-out.
//
//	Open → Node
//	  Store        the replicated state: views, waiting, the change feed
//	  Propose      commits commands; concurrent calls share log entries
//	  Confirm      proves leadership with a barrier that is proposed after the call
//	  Read         stale | session | linearizable
//	  Lead         runs a function per leadership term; its context ends with the leadership
//	  Leader, LeaderChanges, Status, LocalMode
//	  TransferLeadership, RemoveReplica, Dismiss, Leave, Close
//	  Halted, Err  why the replica stopped itself
//
// Three concepts:
//
//   - A replica is one data directory with a Raft id. A replica that lost its disk gets a new id and
//     joins as a new one. Gossip names replicas, the Raft port verifies them, and only Raft's
//     configuration decides which of them vote (membership.go).
//   - A leadership term is one period in which this replica leads. It begins with a barrier, so its
//     leader sees everything that was committed before (lead.go).
//   - A proposal is a batch of commands that ends with verdicts, with an error that means that nothing
//     happened, or with ErrUnknownOutcome (propose.go).
//
// # Proposals
//
// The caller's goroutine encodes the commands. One goroutine gathers waiting calls, up to 256 KiB, into a
// log entry and hands it to Raft; another collects the answers in order. While an entry is under way,
// later calls gather into the next one, which follows at once only if it has 64 KiB or more. So all
// callers share the cost of an entry: futures, channels, a message and an fsync per replica. The state
// machine (fsm.go) judges an entry in one transaction and publishes one root.
//
// A compare-and-swap between the caller that gives up and the goroutine that takes the call decides
// whether an error means "nothing happened" or ErrUnknownOutcome.
//
// # Files
//
// DataDir holds lock (flock, one process), raft-id (a copy for people), peers.json (gossip addresses, for
// a replica that has to join again) and raft/ with log.db and snapshots/. The replica id is stored in
// log.db, so a replica that loses its log loses its id and cannot vote under it. Every entry has a
// checksum. Everything above the newest snapshot is read before Raft starts, because the library panics
// on a bad entry. The first failed write stops the replica (logstore.go): a leader steps down, a follower
// stops acknowledging, and Err names the file and the cause.
//
// # Connections
//
// One port carries Raft's streams and the calls between replicas. Both begin with a greeting
// (transport.go) that names sender, receiver and cluster, since Raft checks none of them. A vote for a
// replica that no longer exists is refused by the replica that has its address now. A replica of another
// cluster is refused with both ids in the error. With TLS, both sides first check that the peer is a
// scheduler.
//
// # Membership
//
// A replica that knows no cluster makes itself visible in gossip and waits. Either a leader adds it, first
// as a non-voter; or, once BootstrapExpect replicas are visible, none of them knows a cluster and all
// promise to form one with the replica that has the lowest id, that replica bootstraps with all of them.
// The leader makes one change at a time:
//
//	a new replica                      add as non-voter
//	a non-voter, level for Stabilize   promote
//	a new replica with the name or     remove the old server, then add the replica
//	  address of a silent server
//	a known replica with another       change the address
//	  address
//	a server silent for DeadAfter      remove; a voter only while
//	                                   max(BootstrapExpect, 3) healthy voters remain
//
// Where gossip has another address for a replica than the configuration, Raft dials that one first: if
// most replicas have new addresses, there is no leader before they reach each other.
//
// # Trade-offs
//
//   - An idle leader sends a command at once, a loaded one fills entries: behind an entry under way, less
//     than 64 KiB waits for it. That costs a call up to one round of latency and saves every replica
//     fsyncs of small entries.
//   - Confirm costs a log entry, shared by all callers within a millisecond and the proposals of that
//     moment. The library's VerifyLeader costs none, but an answer to an older heartbeat can satisfy it.
//   - Failover by timeout takes about twice Timing.Heartbeat. For the common case, a dead process,
//     failover.go takes milliseconds. It trusts ECONNREFUSED: a firewall that rejects with a reset can
//     cause a needless change of leader, never two leaders in one term.
//   - An append to a follower that is away waits in the transport for its next heartbeat. The library's
//     own pause grows to 10 s, in which a follower that is back would stay behind, and the cluster would
//     stand still if it lost another one. A follower that is asked to take over is exempt
//     (transport.waitForContact).
//   - The log cache is bounded by bytes, not entries, and Raft messages carry at most 64 entries. With
//     entries of 256 KiB the library's defaults would hold a gigabyte.
//   - A voter that has been dead for less than DeadAfter stays a voter. Removing it sooner would shrink
//     the quorum for every reboot.
//   - A replica that was removed while it was unreachable learns of it from the leader that removed it. If
//     that leader changes first, the replica counts as a returning member and joins again as a non-voter.
//     Stop a machine before removing its replica with force.
package cluster
