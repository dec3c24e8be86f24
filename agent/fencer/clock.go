package fencer

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/fencer/lease"
)

// Now returns the time since the machine started (CLOCK_BOOTTIME). Nobody can set this clock, unlike the wall
// clock. It continues while the machine is suspended, unlike Go's monotonic clock.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // cannot happen: Linux has the clock since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// BootID returns an id that changes each time the machine starts. A time that Now returned is valid only
// while BootID is the same.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

// Self returns the calling process.
func Self() (lease.Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (lease.Process, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return lease.Process{}, err
	}
	// In /proc/PID/stat the name of the program is in parentheses. It may contain any character, so look for
	// the last closing parenthesis.
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return lease.Process{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return lease.Process{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return lease.Process{PID: pid, Start: start}, err
}

// Alive reports whether the process exists. It returns true for a paused process.
func Alive(p lease.Process) bool {
	now, err := processOf(p.PID)
	return p.PID > 0 && err == nil && now == p
}

// Kill kills process p. It never kills another process that got the same process id.
func Kill(p lease.Process) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	if !Alive(p) { // the start time is compared only now, because an open pidfd keeps the process id from being reused
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
