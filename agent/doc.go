// Package agent runs the workloads of one machine for the schedulers of one cluster.
//
// It is level-triggered. What should run is an intent in a bbolt file; what runs is what the
// drivers list; decide, a pure function of the two, says the next step. Orders, engine events,
// timers and the start of the process only ask for another look. So nothing is lost with a
// process: an agent that was killed reads its intents, lists its engines and goes on, and what ran
// meanwhile is adopted, never recreated.
//
// Three promises hold at every moment:
//
//   - An order is on disk before it is acknowledged, and the epoch that gave it before it is
//     obeyed (fence.go; agent/DESIGN.md). Lower epochs, lower generations, other clusters
//     and other nodes are refused, also after a restart.
//   - Only what this agent was told to run, or what carries its labels, is ever touched. What an
//     engine does not list for the moment, because it is away, is not forgotten.
//   - Losing the schedulers stops nothing. A lease is the schedulers' business; the agent only
//     registers anew.
//
// The pieces: store.go keeps the file, fence.go and decide.go are the two pure rules, converge.go
// carries decisions out, server.go is the API to schedulers, session.go the conversation with
// them.
package agent
