// Package e2e holds the failure tests on the real binaries: leaders killed and
// frozen, disks lost, the network cut port by port, agents killed, bad input, TLS.
// Histories of what clients saw are checked for linearizability with porcupine,
// and what ran where is checked from the simulated engines' run logs.
//
// A failed test leaves the logs of every process, and its history, in
// artifacts/<test>/ at the top of the project. E2E_ONE_BUILD=1 uses the shipped
// build everywhere instead of the race detector's.
package e2e
