// Package sim is a driver with a simulated engine. A workload is only a record; its state is computed from the
// name of its image and the time. The package serves tests, demonstrations without Docker, and tests of scale:
// a workload costs only one record, and no goroutine or timer, so one process can simulate thousands.
//
// The name of the image selects the behaviour. The default of an optional tag is in parentheses. Workloads with
// other images run until they are stopped.
//
//	sim/slow:5s       is Pending for that time before it runs (2s)
//	sim/crash:3       runs for a moment, then ends with that exit code (1)
//	sim/exit          runs for a moment, then ends with exit code 0
//	sim/busy:50       reports a CPU use of that percentage of one core (90); other images report 1 percent
//	sim/stubborn:1m   takes that time to stop (for ever, so it is killed after the grace period)
//	sim/missing       does not exist (INVALID_IMAGE)
//	sim/fail:CLASS    Ensure always fails with that error class of agent/driver (the tag is required)
//	sim/flaky:2       Ensure fails that many times with RUNTIME_ERROR, then works (1)
//
// The variables SIM_START_DELAY, SIM_CRASH_AFTER, SIM_STOP_DELAY (durations), SIM_EXIT_CODE and SIM_FAIL (an
// error class) set the same behaviour for any image, in a container's or Compose project's environment or a VM's
// metadata. Restart policies and host ports work as on Docker. Each Engine has its own host ports.
//
// Commands in a running workload (driver.Execer): true, false, echo, err (echo to stderr), cat, sleep
// SECONDS, exit CODE, size (of the terminal), and sh, which reads lines of these commands. Every kind of
// workload has a console, which is that shell.
//
// An Engine is stored in memory or in a folder. In a folder it outlives its process, as a real engine outlives
// an agent, and several processes may use it at the same time under its lock file. Both kinds of engine keep a
// log of every start and stop, with times of the machine's monotonic clock. Runs returns the intervals in which
// instances ran. Overlaps returns the intervals in which one workload ran twice.
package sim
