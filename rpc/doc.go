// Package rpc is the gRPC server of a scheduler replica, and its client for calls to agents and to other
// replicas.
//
// Any replica answers any call (rpc/DESIGN.md). The policy table in methods.go has one row per method. The
// row says which replica answers the method, which permission people need, which machines may call it,
// whether a call with an unknown outcome may be repeated, and what applies to people who have the permission
// only in some namespaces. A method is answered in one of three ways:
//
//   - leader: mutations, registrations and heartbeats. A follower forwards the call to the leader
//     with the caller's identity, one hop at most. If there is no leader, the follower holds the call for a while until
//     there is a leader. A mutation carries a request id, so a call whose outcome is unknown can be repeated safely. If
//     the caller sends no id, the server makes one.
//   - read: by the read level that the caller asks for. A stale or session read is answered by the
//     replica that was called, a linearizable read by the leader. If there has been no leader for a
//     second, callers that asked for no level get a stale answer, which is marked in the trailers.
//   - local: by the replica that received the call. RestoreBackup is local because it is a stream;
//     its handler forwards the stream to the leader.
//
// # Files by subject
//
//   - every call: server.go, methods.go (policy table), identity.go (the caller), access.go (roles),
//     namespaces.go, forward.go (routing), read.go (read levels), requestid.go, streams.go, errors.go,
//     peers.go (connections to replicas), audit.go (events about calls)
//   - changes of the state: propose.go
//   - workloads: apply.go, batch.go, plan.go, workloads.go (reads), revisions.go, rollouts.go,
//     automation.go, why.go, logs.go, exec.go
//   - nodes: register.go, heartbeat.go, nodes.go, drifts.go, storage.go; package rpc/message converts the
//     messages of agents
//   - calls to agents: agents.go (orders), inspect.go (reads for the leader)
//   - events and watches: events.go, watch.go
//   - the cluster: cluster.go, trust.go, backup.go, recovery.go
//
// Every error that leaves the server is of type Error, which errors.go maps to gRPC codes. The package
// declares the interfaces that it uses, and never imports cluster.
package rpc
