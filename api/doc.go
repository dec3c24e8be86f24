// Package api holds the protobuf contracts of the project and the code generated from them, one
// package per API and version. It has no logic of its own.
//
//   - control/v1: calls of agents, gateways and command lines to a scheduler.
//   - agent/v1: calls of a scheduler to an agent.
//   - cluster/v1: calls to a scheduler that legacy v1 does not have, such as membership, events, drain
//     and backup.
//   - command/v1: the messages of the Raft log and of snapshots.
//
// control/v1 and agent/v1 are shared with legacy v1 peers. Their numbers below 1000 are fixed by
// testdata/*.tsv; additions start at 1000. In all four a number, once used, keeps its meaning for
// ever: testdata/*.golden lists every one, and the tests fail when one is changed or removed.
package api
