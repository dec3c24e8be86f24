// Package leader runs a leadership term in real time. The decisions are made by the pure
// control.Term; this package gives it the time, the changes of the state and the calls of
// nodes, and carries out its effects.
//
// Goroutines of one term, all ended when Run returns:
//
//   - Run itself steps the term when control.Term.WakeAt is due (clock).
//   - follow reads the change feed and hands it to the term.
//   - One goroutine per effect that takes time: a planning step, a Propose, a Confirm, a
//     Deliver, a read of an agent. The term bounds how many there are; each has a
//     deadline, and hands its answer to the term.
//   - Heartbeat and Registered run on their callers' goroutines and wait for the reply.
//
// One mutex guards the term. It is held while the term steps, which takes microseconds,
// and never while something waits.
package leader
