// Package rpc is the gRPC server of a scheduler replica, and its client towards agents and other
// replicas.
//
// Any replica answers any call (rpc/DESIGN.md). The policy table in methods.go has one row per
// method: the replica that answers it, the roles that may call it, whether a call with an unknown
// outcome may be repeated, and how it treats users who are confined to namespaces. A method is
// answered in one of three ways:
//
//   - leader: mutations, registrations and heartbeats. A follower forwards the call to the leader
//     with the caller's identity, one hop at most, and holds it for a while if there is no leader.
//     A mutation carries a request id, so a call whose outcome is unknown can be repeated safely.
//     The server mints an id for callers that send none.
//   - read: by the read level that the caller asks for. A stale or session read is answered here, a
//     linearizable read by the leader. If there has been no leader for a second, callers that asked
//     for no level get a stale answer, which is marked in the trailers.
//   - local: by the replica that received the call. RestoreBackup is local because it is a stream;
//     it forwards itself to the leader.
//
// # Files by subject
//
//   - every call: server.go, methods.go (policy table), identity.go (the caller), namespaces.go and
//     namespacescope.go, forward.go (routing), read.go (read levels), requestid.go, streams.go,
//     errors.go, peers.go (connections to replicas), audit.go (events about calls)
//   - changes of the state: propose.go
//   - workloads: apply.go, batch.go, plan.go, workloads.go (reads), revisions.go, rollouts.go,
//     automation.go, why.go, logs.go, exec.go
//   - nodes: register.go, heartbeat.go, workloadstatus.go (statuses from agents), nodes.go, drifts.go,
//     storage.go
//   - calls to agents: agents.go (orders), inspect.go (reads for the leader)
//   - events and watches: events.go, watch.go
//   - the cluster: cluster.go, trust.go, backup.go, recovery.go
//
// All errors at the edge are of type Error, which errors.go maps to gRPC codes. The package declares
// the interfaces that it consumes and never imports cluster.
package rpc
