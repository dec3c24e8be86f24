// Package sim is a driver with a simulated engine. Workloads are records; their behaviour follows from their
// image's name and the time. It serves tests, demonstrations without Docker, and scale: a workload costs one
// record, no goroutine and no timer, so one process holds thousands.
//
// Images and their behaviour (tags are optional unless noted; all other images run until stopped):
//
//	sim/slow:5s       is Pending that long before it runs (2s)
//	sim/crash:3       runs a moment, then ends with that exit code (1)
//	sim/exit          runs a moment, then ends with exit code 0
//	sim/stubborn:1m   takes that long to stop (for ever: killed after the grace)
//	sim/missing       does not exist (INVALID_IMAGE)
//	sim/fail:CLASS    Ensure always fails with that class of agent/driver
//	sim/flaky:2       Ensure fails that many times with RUNTIME_ERROR, then works (1)
//
// The variables SIM_START_DELAY, SIM_CRASH_AFTER, SIM_STOP_DELAY (durations), SIM_EXIT_CODE and SIM_FAIL (a
// class) set the same for any image, in a container's or Compose project's environment or a VM's metadata.
// Restart policies and host ports work as on Docker; ports are per engine.
//
// Commands in a running workload (driver.Execer): true, false, echo, err (echo to stderr), cat, sleep SECONDS,
// exit CODE, size (of the terminal), and sh, which reads lines of these. Every kind has a console, which is
// that shell.
//
// An Engine lives in memory or in a folder. In a folder it outlives its process, as a real engine outlives an
// agent, and several processes may use it at one time under its lock file. Both keep a log of every start and
// stop on the machine's monotonic clock: Runs returns the run intervals, and Overlaps the intervals in which
// one workload ran twice.
package sim
