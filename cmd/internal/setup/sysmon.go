package setup

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

// sysmonSlack is how late the kernel may wake the runtime's monitor. Nothing that it looks for
// is due sooner than after 10 ms but one: the processor of a thread that the kernel keeps, in
// fdatasync for example, is given to another thread. Others take its work meanwhile.
const sysmonSlack = 4 * time.Millisecond

// SlowSysmon has the Go runtime's monitor thread look at the others some 200 times a second at
// most. It sleeps for 20 µs whenever the program does anything, and each time that it wakes it
// takes a processor from a thread that works: a tenth of a replica's CPU under load where there
// are few processors, a fifth of a follower's (ADR 31).
//
// The runtime has no setting for it, but the kernel has one for each thread
// (PR_SET_TIMERSLACK), which another thread may set with CAP_SYS_NICE alone. A program that may
// use one processor needs its monitor and keeps it. Where it cannot be done nothing is lost but
// speed: the error is for a log.
func SlowSysmon() error {
	if runtime.GOMAXPROCS(0) < 2 {
		return nil
	}
	sysmon, err := sysmonThread()
	if err != nil {
		return fmt.Errorf("the slack of the runtime's monitor: %w", err)
	}
	err = os.WriteFile(slackFile(sysmon), strconv.AppendInt(nil, int64(sysmonSlack), 10), 0) // #nosec G306 -- the file is there
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("the slack of the runtime's monitor: %w: it needs CAP_SYS_NICE", err)
	}
	return err
}

// sysmonThread is the id of the monitor: the first thread that the runtime starts. The kernel
// lists threads in the order in which they were started.
func sysmonThread() (tid int, err error) {
	tasks, err := os.Open("/proc/self/task")
	if err != nil {
		return 0, err
	}
	defer tasks.Close()
	names, err := tasks.Readdirnames(2) // not sorted
	if err != nil {
		return 0, err
	}
	if len(names) < 2 || names[0] != strconv.Itoa(os.Getpid()) {
		return 0, fmt.Errorf("the threads of this process are listed as %q", names)
	}
	return strconv.Atoi(names[1])
}

func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }
