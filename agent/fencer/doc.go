// Package fencer stops workloads when the lease of their node ends, even if the agent is dead, hangs, or
// is paused.
//
// An exclusive workload with on_lost_lease: stop is placed on another node some time after the lease of
// its node has ended. That is safe only if the workload has been stopped by then. A second process of the same
// binary, `persys-agent fencer`, is the fencer: it keeps the end of the lease (on CLOCK_BOOTTIME) and a list
// of workloads, and stops these workloads through their engines. Package lease makes the decisions. This package
// handles the processes, the lease file, the socket and the clock.
//
// The design:
//
//   - The agent tells the fencer each extension of the lease, over a socket in a folder of mode 0700.
//     The agent starts a leased workload only under a lease that the fencer has confirmed.
//   - The fencer writes the lease to a file in that folder. The file needs no fsync: it is read only
//     after the death of a process. After the death of the machine nothing runs any more, because
//     engines never start exclusive workloads by themselves.
//   - There are two fencers. The first serves the socket. The second reads the file when the lease is
//     about to end. When the first dies, the kernel releases its lock, and the second becomes the first. Of
//     the agent and the two fencers, any one may be killed and another one paused, in any order.
//   - The fencer kills an agent that does not confirm the end of its lease in time: an agent that was
//     paused while it started a workload could start it later. Workloads survive the kill.
//   - After the end of the lease the fencer keeps checking the engines. If an engine was about to start a
//     workload, the fencer stops that workload at once.
//   - An agent confirms the end of a lease (a lapse) by sending the number of lapses that it has seen.
//     After that it starts a workload that was leased only on a newer order of the schedulers, because an
//     older order may be from before the lapse.
//
// If agent and both fencers die at the same moment while the machine keeps running, a supervisor has to
// start a new fencer, which reads the file: Options.Beat tells the supervisor that the fencer works
// (deploy/systemd/persys-fencer.service, docs/adr/0008).
package fencer
