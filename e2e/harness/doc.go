// Package harness runs the real programs on this machine: it builds them, starts schedulers and agents on
// loopback, injects faults, and finally stops and removes everything. The demo, the end-to-end tests and
// the benchmarks use it.
//
//	Build          → Binaries
//	Start(Options) → Cluster of Schedulers and Agents, each a Process
//	Process        Kill (SIGKILL), Pause and Continue (SIGSTOP, SIGCONT), Terminate, Restart
//	Scheduler.Wipe empties the data directory of a stopped scheduler
//	Cluster        Leader, WaitReady, Pinned (one replica), Conn (all of them), Ctl (persysctl)
//	OpenWire       cuts the network between two programs, in a network namespace of the test
//	OpenEngine     the Docker engine: an image FROM scratch, containers by cluster id
//
// Everything listens on 127.0.0.1, on ports below the kernel's ephemeral range, and writes below a
// temporary folder. Each process has a process group of its own, and the kernel kills it if the program
// that started it dies. The output of a process goes to one file, across restarts.
package harness
