package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/persys/compute/testbed"
)

// Guards returns the process ids of an agent's guards (persys-agent guard). Guards outlive the agent
// and are not its children, so all processes of the machine are searched.
func (a *Agent) Guards() []int {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	want := []byte("PERSYS_STATE_PATH=" + a.StatePath)
	var out []int
	for _, path := range found {
		// A process that has exited meanwhile is not a guard.
		env, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return bytes.Equal(v, want) }) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if words := bytes.Split(command, []byte{0}); err != nil || len(words) < 2 || string(words[1]) != "guard" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// FirstGuard returns the process id of the guard that holds the lock; the agent talks to that one.
func (a *Agent) FirstGuard() (int, error) {
	info, err := os.Stat(filepath.Join(a.StatePath+".guard", "first.lock"))
	if err != nil {
		return 0, err
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, err
	}
	inode := ":" + strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	guards := a.Guards()
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && slices.Contains(guards, pid) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("none of the guards %v holds the lock", guards)
}

// SignalGuards sends a signal to all guards of the agent.
func (a *Agent) SignalGuards(sig syscall.Signal) error {
	var errs []error
	for _, pid := range a.Guards() {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("guard %d of %s: %w", pid, a.NodeID, err))
		}
	}
	return errors.Join(errs...)
}

// killGuards kills all guards of a dead agent. A guard may just be starting another one, so it repeats
// until none is left.
func (a *Agent) killGuards() error {
	return testbed.Poll(context.Background(), 10*time.Second, "the guards of "+a.NodeID+" to end", func(context.Context) error {
		left := a.Guards()
		if len(left) == 0 {
			return nil
		}
		return errors.Join(fmt.Errorf("%v are left", left), a.SignalGuards(syscall.SIGKILL))
	})
}
