// Package testbed holds helper functions for tests: Need checks what a test needs from the machine, Server
// builds etcd and CoreDNS, Until, Within and Poll wait for a condition, and Output collects the output of a
// program that still runs.
package testbed

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// Judged reports whether the tests run with CI=true, when no test may be skipped.
func Judged() bool { return os.Getenv("CI") == "true" }

// SkipNotice begins the message of a test that is skipped.
const SkipNotice = "SKIPPED, NOTHING TESTED"

// Need ends the test if lacks is not nil. what names a requirement of the test, such as a program, and lacks
// says why this machine does not meet it. With CI=true the test fails; otherwise it is skipped with
// SkipNotice.
func Need(t testing.TB, what string, lacks error) {
	t.Helper()
	switch {
	case lacks == nil:
	case Judged():
		t.Fatalf("%s is needed: %v", what, lacks)
	default:
		t.Skipf("%s: %s is needed: %v", SkipNotice, what, lacks)
	}
}

// Program returns the path of a program that hack/install-test-deps.sh installs. It calls Need if the
// program is not in PATH.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Need(t, "the program "+name, errors.New("it is not in PATH; hack/install-test-deps.sh installs it"))
	}
	return path
}

// LoopDevices checks with Need that the test runs as root and can mount loop devices.
func LoopDevices(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/dev/loop-control")
	if os.Geteuid() != 0 {
		err = errors.New("mounting takes root")
	}
	Need(t, "a mount of a file system in a file", err)
}
