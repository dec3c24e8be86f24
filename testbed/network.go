package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NetworkEnv is an environment variable. It is set in a test process that has its own network namespace.
const NetworkEnv = "PERSYS_TEST_NETWORK"

// HasOwnNetwork reports whether this process has its own network namespace.
func HasOwnNetwork() bool { return os.Getenv(NetworkEnv) != "" }

// OwnNetwork runs the calling test again in a child process with its own network namespace, in which only the
// loopback interface exists. env is added to the environment of the child. OwnNetwork returns true in the
// child, which then does the work of the test. It returns false in the parent after the child has passed, and
// fails the test if the child failed. If this process is not root, the test is skipped or fails (see Need).
func OwnNetwork(t *testing.T, env ...string) bool {
	t.Helper()
	if HasOwnNetwork() {
		if err := RaiseLoopback(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Geteuid() != 0 {
		Need(t, "a network namespace", errors.New("the test needs root"))
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if at, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+(time.Until(at)-5*time.Second).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), NetworkEnv+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("output of the run in a network namespace:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// RaiseLoopback brings up the loopback device of this network namespace. The device is down in a new namespace.
func RaiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket to bring up lo: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return nil
}
