// Package lease decides when a node's lease has ended and which workloads must be stopped then.
//
// Step makes all decisions of one fencer. It uses no clock, file, process or engine: package fencer
// calls it with real ones, and the simulator with virtual ones. The agent's core uses the same
// types for its part of the protocol: Renewal is a message of an agent to its fencer, and Status is
// the answer.
//
// Times are durations since the machine started (CLOCK_BOOTTIME). That clock is never set, and it
// continues while the machine sleeps.
package lease

import "time"

// These durations count from the end of a lease.
const (
	// SecondWaits is how long the second fencer waits, after the end of a lease, for the first fencer to act.
	SecondWaits = time.Second
	// KillAfter is how long an agent has to confirm that it knows of the end of its lease. If the
	// agent has not confirmed it by then, the fencer kills the agent.
	KillAfter = 1500 * time.Millisecond
	// Margin is the time that Bound adds to the grace period of the workloads. It covers the wait of the
	// second fencer, the time in which an engine kills a workload, and the delays of a busy machine.
	Margin = 5 * time.Second
)

// Bound returns the time after the end of a lease within which every leased workload (one with on_lost_lease:
// stop) has been stopped. grace is how long a workload may take to stop before it is killed.
func Bound(grace time.Duration) time.Duration { return grace + Margin }
