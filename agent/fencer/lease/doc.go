// Package lease decides when a node's lease has ended and what must be stopped then.
//
// Step is the whole decision of one fencer, without clock, file, process or engine: package fencer
// drives it with real ones, and the simulator with virtual ones. The agent's core uses the same
// values for its side of the conversation: Renewal is what an agent tells its fencer, Status is the
// answer.
//
// Times are durations since the machine started (CLOCK_BOOTTIME): nobody sets that clock, and it
// goes on while the machine sleeps.
package lease

import "time"

// Times after the end of a lease.
const (
	// SecondWaits is how long the second fencer waits for the first one to act.
	SecondWaits = time.Second
	// KillAfter is how long an agent has to confirm that it knows of the end of its lease. Then the
	// fencer kills it.
	KillAfter = 1500 * time.Millisecond
	// Margin is what Bound adds to the grace: the wait of the second fencer, the time in which an
	// engine kills a workload, and the delays of a busy machine.
	Margin = 5 * time.Second
)

// Bound is the time after the end of a lease within which every guarded workload has been stopped.
// grace is what a workload gets to end by itself.
func Bound(grace time.Duration) time.Duration { return grace + Margin }
