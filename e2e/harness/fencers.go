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

// Fencers returns the process ids of an agent's fencers (persys-agent fencer). Fencers (the processes that
// stop exclusive workloads when a lease ends) outlive the agent and are not its children. So this method
// searches all processes of the machine.
func (a *Agent) Fencers() []int {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	want := []byte("PERSYS_STATE_PATH=" + a.StatePath)
	var out []int
	for _, path := range found {
		// A process that has exited since the list was made has no environment any more and is skipped.
		env, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return bytes.Equal(v, want) }) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if words := bytes.Split(command, []byte{0}); err != nil || len(words) < 2 || string(words[1]) != "fencer" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// FirstFencer returns the process id of the active fencer, which has the lock. The agent talks only to this
// fencer; the other one is on standby.
func (a *Agent) FirstFencer() (int, error) {
	info, err := os.Stat(filepath.Join(a.StatePath+".fencer", "first.lock"))
	if err != nil {
		return 0, err
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, err
	}
	inode := ":" + strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
	fencers := a.Fencers()
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && slices.Contains(fencers, pid) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("none of the fencers %v holds the lock", fencers)
}

// SignalFencers sends a signal to all fencers of the agent.
func (a *Agent) SignalFencers(sig syscall.Signal) error {
	var errs []error
	for _, pid := range a.Fencers() {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("fencer %d of %s: %w", pid, a.NodeID, err))
		}
	}
	return errors.Join(errs...)
}

// killFencers kills all fencers of a dead agent. It repeats until none is left, because a fencer may just
// be starting another one.
func (a *Agent) killFencers() error {
	return testbed.Poll(context.Background(), 10*time.Second, "the fencers of "+a.NodeID+" to end", func(context.Context) error {
		left := a.Fencers()
		if len(left) == 0 {
			return nil
		}
		return errors.Join(fmt.Errorf("the fencers %v still run", left), a.SignalFencers(syscall.SIGKILL))
	})
}
