// Package rpc is the gRPC face of a scheduler replica and its client side
// towards agents and other replicas.
//
// Any replica answers any call (DESIGN, decision 7). Each method belongs to one
// class, in one table (methods.go), together with who may call it:
//
//   - leader: mutations, registrations and heartbeats. Another replica passes the
//     call on, at most one hop, with the caller's identity; it holds the call for
//     a while when there is no leader. Mutations carry a request id, minted here
//     for peers that send none, so repeating a call whose fate is unknown is safe.
//   - read: answered here from a stale or session view when the caller asks for
//     it, by the leader otherwise (linearizable). Without a leader for a second,
//     callers that did not ask for a level get a stale answer, marked in trailers.
//   - local: this replica's own view. A restore is local by class because it is a
//     stream, and passes itself on to the leader.
//
// Errors have one type here, Error, mapped once to gRPC codes (errors.go). The
// package declares the interfaces it consumes and never imports cluster.
package rpc
