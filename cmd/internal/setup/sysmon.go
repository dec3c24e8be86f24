package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// sysmonSlack is how late the kernel may wake the runtime's monitor (ADR 31 says what waits
	// for it).
	sysmonSlack = 4 * time.Millisecond
	// sysmonEvery is how often the other threads are looked at.
	sysmonEvery = time.Second
)

// SlowSysmon lets the kernel wake the Go runtime's monitor thread up to 4 ms late. For a while
// after a system call that took long, the monitor sleeps for 20 µs at a time, and where timers are
// expensive and CPUs few each look costs a thread that works its CPU: a tenth of what a replica has
// under load (ADR 31).
//
// The runtime has no setting for it. The kernel has one for each thread (timer slack), which
// another thread may set with CAP_SYS_NICE alone. A thread takes it over from the one that starts
// it, and the monitor starts some: until ctx ends those get the usual one back within a second.
// While the program may use one CPU alone the monitor is what lets others have it, and is left as
// it is. Where it cannot be done nothing is lost but speed: the error is for a log.
func SlowSysmon(ctx context.Context) error {
	m, err := findMonitor()
	if err == nil {
		err = m.settle()
	}
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w: it needs CAP_SYS_NICE", err)
		}
		return fmt.Errorf("the slack of the runtime's monitor: %w", err)
	}
	go m.keep(ctx, sysmonEvery)
	return nil
}

// monitor is the runtime's monitor thread.
type monitor struct {
	tid   string
	usual string // its slack before, and that of all others, ns
}

// findMonitor relies on two orders: the runtime starts the monitor before any other thread, and
// the kernel lists threads as they were started.
func findMonitor() (m monitor, err error) {
	names, err := threads()
	if err != nil {
		return m, err
	}
	if len(names) < 2 || names[0] != strconv.Itoa(os.Getpid()) {
		return m, fmt.Errorf("the threads of this process are listed as %q", names)
	}
	m.tid = names[1]
	m.usual, err = slackOf(m.tid)
	return m, err
}

// keep settles all threads every so often. What cannot be set is tried again.
func (m monitor) keep(ctx context.Context, every time.Duration) {
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			_ = m.settle()
		}
	}
}

// settle gives the monitor its slack, and the usual one to those that have taken it over.
func (m monitor) settle() error {
	names, err := threads()
	if err != nil {
		return err
	}
	var failed error
	late := strconv.Itoa(int(sysmonSlack))
	for _, tid := range names {
		have, err := slackOf(tid)
		want := have
		switch {
		case tid == m.tid && runtime.GOMAXPROCS(0) > 1:
			want = late
		case have == late:
			want = m.usual
		}
		if err == nil && want != have {
			err = os.WriteFile(slackFile(tid), []byte(want), 0) // #nosec G306 -- the file is there
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) { // it ended
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// threads are the ids of this process's threads, in the order in which they were started.
func threads() ([]string, error) {
	tasks, err := os.Open("/proc/self/task")
	if err != nil {
		return nil, err
	}
	defer tasks.Close()
	return tasks.Readdirnames(-1) // not sorted
}

func slackFile(tid string) string { return "/proc/" + tid + "/timerslack_ns" }

func slackOf(tid string) (string, error) {
	raw, err := os.ReadFile(slackFile(tid))
	return strings.TrimSpace(string(raw)), err
}
