// Package cluster is one replica of the control plane: a Raft node over the pure state machine of package
// fsm, and the membership. The same command line is used for the first start of a cluster, for a restart,
// and to add a replica.
//
//	Repair  moves damaged data aside, so that Open joins anew
//	Open returns a Node, whose methods are:
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
//   - A replica is one data directory with a Raft id. A replica that lost its disk gets a new id and joins
//     as a new replica. Gossip names the replicas, each is verified on its Raft port, and only Raft's
//     configuration decides which of them vote (membership.go).
//   - A leadership term is one period in which this replica leads. It begins with a barrier, so its leader
//     sees everything that was committed before (lead.go).
//   - A proposal is a batch of commands that ends with verdicts, with an error that means that nothing
//     happened, or with ErrUnknownOutcome (propose.go).
//
// # Proposals
//
// The caller's goroutine encodes the commands. One goroutine gathers waiting calls, up to 256 KiB, into a
// log entry and hands it to Raft; another goroutine collects the answers in order. While an entry is in
// progress, later calls are gathered into the next entry, which is sent at once only if it has 64 KiB or
// more. So all callers share the cost of an entry: futures, channels, a message and an fsync per replica.
// The state machine (fsm.go) judges all commands of an entry in one transaction and publishes one root.
//
// A caller may give up while the goroutine takes its call from the queue. A compare-and-swap
// decides whether the caller or the goroutine was first, and so whether the error means "nothing
// happened" or ErrUnknownOutcome.
//
// # Files
//
// DataDir holds lock (flock, one process), raft-id (a copy for people), peers.json (the cluster id and the
// other replicas, for a replica that has to join again) and raft/ with log.db and snapshots/. The replica
// id is stored in log.db, so a replica that loses its log loses its id and cannot vote under it. log.db also contains
// the boot id, path and Raft address of the last use, from which a copy is recognised (place.go). Every entry, and
// every value of the stable store (term, vote, ids), has a checksum. Everything above the newest snapshot is read
// before Raft starts, because the library panics on a bad entry. The first write that fails stops the replica
// (logstore.go): a leader steps down, a follower stops acknowledging, and Err names the file and the cause.
//
// # Connections
//
// One port carries Raft's streams and the calls between replicas. Both begin with a greeting (transport.go)
// that names sender, receiver and cluster, since Raft checks none of them. If a vote request is meant for a removed
// replica, the replica that now has its address refuses the request. A replica of another cluster is refused, and the
// error names both cluster ids. With TLS, both sides first check that the peer is a scheduler.
//
// # Membership
//
// A replica that knows no cluster makes itself visible in gossip and waits. Either a leader adds it, first
// as a non-voter. Or the replicas form a new cluster: once BootstrapExpect replicas are visible, none of
// them knows a cluster, and all promise to form one with the replica that has the lowest id, that replica
// bootstraps a cluster of all of them. The leader makes one change at a time:
//
//	a new replica                      add as non-voter
//	a non-voter, caught up for         promote
//	Stabilize
//	a new replica with the name or     remove the old server, then add the replica
//	  address of a silent server
//	a known replica with another       change the address, unless the old one
//	  address                            answers: then it is a copy, and is told to stop
//	a server silent for DeadAfter      remove; a voter only while
//	                                   max(BootstrapExpect, 3) healthy voters remain
//
// If gossip has another address for a replica than the configuration, Raft dials the address in gossip
// first. This is needed when most replicas have new addresses, because there is no leader before they reach
// each other.
//
// # Trade-offs
//
//   - An idle leader sends a command at once. While an entry is in progress, less than 64 KiB of further
//     commands waits until that entry is committed. That costs a call up to one round of latency and saves
//     every replica the fsyncs for small entries.
//   - Confirm costs a log entry, which all callers within a millisecond share, and also the commands that
//     are proposed at that moment. The library's VerifyLeader costs no log entry, but an answer to an older heartbeat
//     can satisfy it.
//   - Failover by timeout takes about twice Timing.Heartbeat. For the common case, a dead process,
//     failover.go takes milliseconds. It trusts ECONNREFUSED: a firewall that rejects with a reset can
//     cause a needless change of leader, never two leaders in one term.
//   - An append to a follower that does not answer waits in the transport until the follower answers a
//     heartbeat. The alternative, the library's own pause, grows to 10 s. For that time a follower that has come back
//     would get no entries, and if another follower were lost, the cluster could commit nothing. A follower that is
//     asked to take over leadership is exempt (transport.waitForContact).
//   - The log cache is limited in bytes, not in entries, and a Raft message has at most 64 entries. With
//     entries of 256 KiB the library's defaults would hold a gigabyte.
//   - A leader whose disk hangs gives leadership up after Timing.DiskStall (stall.go). A shorter hang only delays the
//     writes made during it.
//   - A voter that has been dead for less than DeadAfter stays a voter. Removing it sooner would shrink the
//     quorum for every reboot.
//   - A replica that was removed while it was unreachable learns of it from the leader that removed it. If leadership
//     changes before the replica learns of its removal, the new leader lets it join again as a non-voter. Stop a
//     machine before removing its replica with force.
package cluster
