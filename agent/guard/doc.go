// Package guard stops workloads when the lease of their node ends, whatever has become of the agent.
//
// An exclusive workload with on_lost_lease: stop is placed elsewhere some time after the lease of its
// node has ended. That is safe only if it has been stopped by then, also when the agent was killed, or
// hangs, or was paused. So a second program of the same binary, `persys-agent guard`, holds the end of
// the lease on CLOCK_BOOTTIME and a list of what to stop, and stops it through the runtime.
//
// How it is built, and what each part is for:
//
//   - The agent tells the guard each extension of the lease, over a socket in a folder of its own
//     (mode 0700), and may start a guarded workload only under a lease that the guard has confirmed.
//   - The guard writes what it is told to a file in that folder. It needs no fsync: it is read again
//     after the death of a process only. After that of the machine nothing runs any more, since engines
//     never start exclusive workloads by themselves.
//   - There are two guards. The first serves the socket; the second reads the file when the lease is
//     about to end, and becomes the first when that dies: the kernel releases its lock. So one of
//     agent, first and second may be killed and another paused, in any order.
//   - An agent that does not confirm soon after the end of a lease that it knows of it is killed: one
//     that is paused in the middle of starting a workload could else do so when it goes on. What runs
//     is not touched by that, but what is guarded.
//   - After the end of the lease the guard looks again and again, and stops at once what an engine had
//     been about to start.
//   - An agent confirms by naming the number of lapses that it has seen. It then starts what lapsed
//     only by a newer order of the schedulers, because an older one may be from before the lapse.
//
// The loss of agent and both guards at the same moment, while the machine goes on, is for a supervisor
// to mend: Options.Beat tells it that a guard lives, and a new one goes on from the file
// (deploy/systemd/persys-guard.service, docs/adr/0008). Without a supervisor nothing mends it.
package guard

import "time"

// Times after the end of a lease.
const (
	// SecondWaits is how long the second leaves it to the first.
	SecondWaits = time.Second
	// KillAfter is how long an agent has to confirm that it knows of the end.
	KillAfter = 1500 * time.Millisecond
	// Margin is what Bound allows for beside the grace: the second's wait, the engine's own time to
	// kill, and a busy machine.
	Margin = 5 * time.Second
)

// Bound is the time after the end of a lease within which everything guarded has been stopped.
func Bound(grace time.Duration) time.Duration { return grace + Margin }
