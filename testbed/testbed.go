// Package testbed is what tests stand on: what they need of the machine, the servers of others that
// they run, how long they wait for something to come true, and what a program that still runs has
// printed.
package testbed

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

// Judged reports whether this run decides about a change: CI=true, as in make test. There, nothing
// that is tested may be left out.
func Judged() bool { return os.Getenv("CI") == "true" }

// SkipNotice begins the message of a test that is skipped.
const SkipNotice = "SKIPPED, NOTHING TESTED"

// Need ends the test when the machine lacks what it needs, as lacks says; nil is nothing. The test
// fails where it is judged, and elsewhere it is skipped in words that are not overlooked.
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

// Program is the path of a program that the test needs: one of those which
// hack/install-test-deps.sh installs.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Need(t, "the program "+name, errors.New("it is not in PATH; hack/install-test-deps.sh installs it"))
	}
	return path
}

// LoopDevices needs root and what file systems in files are mounted with.
func LoopDevices(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/dev/loop-control")
	if os.Geteuid() != 0 {
		err = errors.New("mounting takes root")
	}
	Need(t, "a mount of a file system in a file", err)
}
