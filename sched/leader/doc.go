// Package leader runs a leadership term in real time. The pure control.Term makes the decisions. This package
// passes to it the time, the changes of the state and the calls of nodes, and carries out its effects.
//
// Goroutines of one term, all ended when Run returns:
//
//   - Run steps the term whenever control.Term.WakeAt is reached (function clock).
//   - follow reads the change feed and hands it to the term.
//   - One goroutine runs each effect that takes time: a planning step, a Propose, a
//     Confirm, a Deliver, a read of an agent. The term bounds their number. Each has a
//     deadline and passes its answer to the term.
//   - Heartbeat and Registered run on their callers' goroutines and wait for the reply.
//
// One mutex guards the term. It is held while the term steps, which takes microseconds, and never during a
// wait.
package leader
