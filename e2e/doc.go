// Package e2e holds the end-to-end tests of the real programs: leaders are killed and
// frozen, disks lost, ports cut, agents killed. Histories of what clients saw are
// checked for linearizability with porcupine, and the run logs of simulated engines
// show which workload ran where and when.
//
// make test runs them by e2e/lanes, several at a time. go test -run TestName ./e2e
// runs one. A failed test writes the logs of every process, and its history, to
// artifacts/<test>/ in the root of the repository.
package e2e
