// Package harness runs the real programs on this machine: it builds them,
// starts schedulers and agents on loopback, hurts them, and takes everything
// down again. The demo, the failure tests and the benchmarks use it.
//
//	Build          → Binaries
//	Start(Options) → Cluster of Schedulers and Agents, each a Process
//	Process        Kill (SIGKILL), Pause and Continue (SIGSTOP, SIGCONT), Terminate, Restart
//	Scheduler.Wipe empties the data directory of a stopped scheduler
//	Cluster        Leader, WaitReady, Pinned (one replica), Conn (all of them), Ctl (persysctl)
//	OpenWire       cuts the network between two programs, in a namespace of the test's own
//	OpenEngine     the Docker engine: an image FROM scratch, containers by cluster id
//	Poll           waits for a condition, with a deadline and the last reason in the error
//
// Everything is on 127.0.0.1, on ports below the range that the kernel hands
// out, in a temporary folder. Each process is in a group of its own and is
// killed by the kernel if the program that started it dies. Output goes to one
// file per process, across restarts.
package harness
