// Package api holds the protobuf contracts of the project and the code generated from them, one
// package per API and version. It has no logic of its own.
//
//   - control/v1: what agents, gateways and command lines say to a scheduler.
//   - agent/v1: what a scheduler says to an agent.
//   - cluster/v1: our own control API: membership, events, explanations, drain, backup.
//   - command/v1: the messages of the Raft log and of snapshots.
//
// The first two are shared with legacy v1 peers. Their numbers below 1000 are fixed by
// testdata/*.tsv; additions start at 1000. In all four a number, once used, keeps its meaning for
// ever: testdata/*.golden lists every one, and the tests fail when one is changed or removed.
package api
