// Package e2e holds the end-to-end tests of the real programs. They kill and freeze leaders, lose disks,
// cut ports and kill agents. The operations that clients saw are checked for linearizability with
// porcupine. The run logs of simulated engines show which workload ran where and when.
//
// make test runs them by e2e/lanes, several at a time. go test -run TestName ./e2e runs one. A failed test
// writes the logs of every process, and its history of operations, to artifacts/<test>/ in the root of the
// repository.
package e2e
